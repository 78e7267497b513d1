use std::os::unix::fs::PermissionsExt;

use super::*;

/// A home with this `config.json`, and with programs by their names.
struct DockerHome {
    dir: tempfile::TempDir,
}

impl DockerHome {
    fn new(config: &str) -> DockerHome {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".docker")).unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::fs::write(dir.path().join(".docker/config.json"), config).unwrap();
        DockerHome { dir }
    }

    fn with_helper(self, name: &str, script: &str) -> DockerHome {
        let path = self.dir.path().join("bin").join(format!("docker-credential-{name}"));
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn logins(&self) -> DockerLogins {
        let path = format!("{}:/usr/bin:/bin", self.dir.path().join("bin").display());
        DockerLogins::of(|name| match name {
            "HOME" => Some(self.dir.path().into()),
            "PATH" => Some(path.clone().into()),
            "SECRET_OF_THE_DAEMON" => Some("x".into()),
            _other => None,
        })
    }

    fn login(&self, host: &str) -> Result<Option<RegistryLogin>, String> {
        self.logins().login(host)
    }

    fn finds(&self, host: &str) -> Option<(String, String, bool)> {
        self.login(host).unwrap().map(|login| (login.user, login.secret, login.is_token))
    }
}

fn plain(user: &str, secret: &str) -> Option<(String, String, bool)> {
    Some((user.to_owned(), secret.to_owned(), false))
}

#[test]
fn logins_are_found_by_every_spelling_of_their_registry() {
    // otter:river, otter:s:e and an identity token.
    let home = DockerHome::new(
        r#"{"auths": {
            "registry.example": {"auth": "b3R0ZXI6cml2ZXI="},
            "https://Other.example:5000/v1/": {"auth": "b3R0ZXI6czpl"},
            "https://index.docker.io/v1/": {"auth": "b3R0ZXI6cml2ZXI"},
            "token.example": {"auth": "b3R0ZXI6", "identitytoken": "tok"},
            "plain.example": {"username": "u", "password": "p"},
            "elsewhere.example": {}
        }, "HttpHeaders": {"X": "y"}, "unknown": 7}"#,
    );
    assert_eq!(home.finds("registry.example"), plain("otter", "river"));
    assert_eq!(home.finds("REGISTRY.example"), plain("otter", "river"));
    assert_eq!(home.finds("other.example:5000"), plain("otter", "s:e"));
    for hub in ["docker.io", "index.docker.io", "registry-1.docker.io"] {
        assert_eq!(home.finds(hub), plain("otter", "river"), "{hub}");
    }
    assert_eq!(home.finds("token.example"), Some(("otter".into(), "tok".into(), true)));
    assert_eq!(home.finds("plain.example"), plain("u", "p"));
    for none in ["elsewhere.example", "unknown.example", "registry.example:5000", "other.example", "example"]
    {
        assert_eq!(home.finds(none), None, "{none}");
    }
}

#[test]
fn no_home_and_no_file_are_no_login() {
    assert_eq!(DockerLogins::of(|_| None).login("registry.example"), Ok(None));
    let dir = tempfile::tempdir().unwrap();
    let logins = DockerLogins::of(|name| (name == "HOME").then(|| dir.path().into()));
    assert_eq!(logins.login("registry.example"), Ok(None));
    std::fs::write(dir.path().join("config.json"), r#"{"auths": {"a.example": {"auth": "YTpi"}}}"#).unwrap();
    let logins = DockerLogins::of(|name| (name == "DOCKER_CONFIG").then(|| dir.path().into()));
    assert_eq!(logins.login("a.example").unwrap().map(|login| login.user), Some("a".into()));
}

#[test]
fn the_error_for_an_invalid_file_has_its_path_and_no_secrets() {
    for config in [
        "",
        "{",
        "[]",
        r#"{"auths": {"a.example": {"auth": ["secretsecret"]}}}"#,
        r#"{"auths": {"a.example": {"auth": "secret secret"}}}"#,
        r#"{"auths": {"a.example": {"auth": "c2VjcmV0"}}}"#,
        r#"{"auths": {"a.example": {"auth": "/////w=="}}}"#,
    ] {
        let home = DockerHome::new(config);
        let told = home.login("a.example").unwrap_err();
        assert!(told.contains(".docker/config.json") && !told.contains("secret"), "{config}: {told}");
    }
    let large = DockerHome::new(&" ".repeat(2 << 20));
    assert!(large.login("a.example").unwrap_err().contains("over"));
}

#[test]
fn a_pipe_in_place_of_the_file_is_refused_without_blocking() {
    let home = DockerHome::new("");
    let path = home.dir.path().join(".docker/config.json");
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    let told = home.login("a.example").unwrap_err();
    assert!(told.starts_with(&path.display().to_string()) && told.contains("no regular file"), "{told}");
}

#[test]
fn a_helper_is_asked_for_its_host_and_gets_a_small_environment() {
    let script = r#"read host; [ "$1" = get ] || exit 9
        case "$host" in
            registry.example) printf '{"ServerURL":"x","Username":"otter","Secret":"river"}' ;;
            https://index.docker.io/v1/) printf '{"Username":"<token>","Secret":"t"}' ;;
            env.example) printf '{"Username":"%s","Secret":"%s"}' "${SECRET_OF_THE_DAEMON-none}" "${HOME+home}" ;;
            broken.example) echo secretsecret; exit 1 ;;
            odd.example) echo secretsecret ;;
            *) echo "credentials not found in native keychain"; exit 1 ;;
        esac"#;
    let config = r#"{"credHelpers": {"https://registry.example/v1/": "x", "missing.example": "nowhere",
        "bad.example": "../evil"}, "credsStore": "x",
        "auths": {"file.example": {"auth": "YTpi"}, "registry.example": {}}}"#;
    let home = DockerHome::new(config).with_helper("x", script);
    assert_eq!(home.finds("registry.example"), plain("otter", "river"));
    assert_eq!(home.finds("docker.io"), Some(("<token>".into(), "t".into(), true)));
    assert_eq!(home.finds("env.example"), plain("none", "home"));
    assert_eq!((home.finds("unknown.example"), home.finds("file.example")), (None, plain("a", "b")));
    for (host, why) in [
        ("broken.example", "ended with 1"),
        ("odd.example", "answered no login"),
        ("missing.example", "`docker-credential-nowhere`, which is not in PATH"),
        ("bad.example", "no program can be called"),
    ] {
        let told = home.login(host).unwrap_err();
        assert!(
            told.contains(why) && told.contains("config.json") && !told.contains("secret"),
            "{host}: {told}"
        );
    }
    assert!(!format!("{:?}", home.logins()).contains("bin"));
}
