//! `/v2/`: the store as any OCI client reads it, and `skopeo` as one of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use lodge_proto::base64;
use lodge_testkit::lodge::{Lodge, PATIENCE};
use serde_json::{Value, json};

use crate::bins::{platform, tool};
use crate::tokens::issue;
use crate::world::{AGENTFILE, ApiWorld, http_unix};

/// An answer with its head.
struct HttpAnswer {
    status: u16,
    head: Vec<(String, String)>,
    body: Vec<u8>,
}

impl HttpAnswer {
    fn header(&self, name: &str) -> &str {
        self.head.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    #[track_caller]
    fn is(&self, status: u16, code: &str) {
        let body = self.json();
        assert_eq!((self.status, body["errors"][0]["code"].as_str()), (status, Some(code)), "{body}");
        assert!(body["errors"][0]["message"].as_str().is_some_and(|words| !words.is_empty()), "{body}");
    }
}

fn ask(lodge: &Lodge, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    let addr = lodge.http_addr();
    let mut stream = TcpStream::connect(&addr).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\ncontent-length: 0\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).expect("a request");
    let mut reader = BufReader::new(stream);
    let mut lines = std::iter::from_fn(|| {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
    });
    let status = lines.next().expect("a status").split(' ').nth(1).and_then(|code| code.parse().ok());
    let split = |line: String| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    let head = lines.filter_map(split).collect();
    let mut body = Vec::new();
    reader.read_to_end(&mut body).expect("a body");
    HttpAnswer { status: status.expect("a status"), head, body }
}

fn basic(user: &str, token: &str) -> String {
    format!("Basic {}", base64::encode(format!("{user}:{token}").as_bytes()))
}

fn get(lodge: &Lodge, path: &str) -> HttpAnswer {
    ask(lodge, "GET", path, &[("authorization", &basic("lodge", &lodge.token()))])
}

#[tokio::test]
async fn only_callers_that_may_read_images_read_them_here() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let (_, of_agent) = issue(&mut api, json!({"agent": "one"})).await;
    let token = world.lodge.token();
    for header in [basic("lodge", &token), basic("", &token), basic("x:y", "z"), format!("Bearer {token}")] {
        let good = !header.contains(&base64::encode(b"x:y:z"));
        let answer = ask(&world.lodge, "GET", "/v2/", &[("authorization", &header)]);
        assert_eq!(answer.status, if good { 200 } else { 401 }, "{header}");
        assert_eq!(answer.header("docker-distribution-api-version"), "registry/2.0");
    }
    for path in ["/v2/", "/v2", "/v2/_catalog", "/v2/tester/manifests/latest"] {
        let nobody = ask(&world.lodge, "GET", path, &[]);
        nobody.is(401, "UNAUTHORIZED");
        assert_eq!(nobody.header("www-authenticate"), "Basic realm=\"lodge\"");
        ask(&world.lodge, "GET", path, &[("authorization", &basic("lodge", &of_agent))]).is(403, "DENIED");
        let unix = http_unix(
            &world.lodge.home().join("lodge.sock"),
            "GET",
            path,
            &[("authorization", &format!("Bearer {token}"))],
            b"",
        );
        assert_eq!(unix.0, 200, "{path}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        for path in ["/v2/tester/blobs/uploads/", "/v2/tester/manifests/latest", "/v2/"] {
            let answer = ask(&world.lodge, method, path, &[("authorization", &format!("Bearer {token}"))]);
            answer.is(405, "UNSUPPORTED");
            assert_eq!(answer.header("allow"), "GET, HEAD");
        }
    }
}

#[tokio::test]
async fn manifests_and_blobs_are_what_their_digests_say_whole_and_in_parts() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let built = api.ok("image/build", json!({"content": AGENTFILE, "tags": ["deep/er/name:v1"]})).await;
    let digest = built["digest"].as_str().expect("a digest");
    let by_tag = get(&world.lodge, "/v2/deep/er/name/manifests/v1");
    let by_digest = get(&world.lodge, &format!("/v2/deep/er/name/manifests/{digest}"));
    for answer in [&by_tag, &by_digest] {
        assert_eq!((answer.status, answer.header("docker-content-digest")), (200, digest));
        assert_eq!(answer.header("content-type"), "application/vnd.oci.image.manifest.v1+json");
    }
    assert_eq!(by_tag.body, by_digest.body);
    let manifest = by_tag.json();
    let layer = manifest["layers"][0].clone();
    let path = format!("/v2/deep/er/name/blobs/{}", layer["digest"].as_str().expect("a digest"));
    let whole = get(&world.lodge, &path);
    assert_eq!((whole.status, String::from_utf8_lossy(&whole.body).as_ref()), (200, AGENTFILE));
    let auth = basic("lodge", &world.lodge.token());
    let part = ask(&world.lodge, "GET", &path, &[("authorization", &auth), ("range", "bytes=5-11")]);
    assert_eq!((part.status, part.body.as_slice()), (206, &AGENTFILE.as_bytes()[5..12]));
    assert_eq!(part.header("content-range"), format!("bytes 5-11/{}", AGENTFILE.len()));
    let behind = ask(&world.lodge, "GET", &path, &[("authorization", &auth), ("range", "bytes=999999-")]);
    behind.is(416, "RANGE_INVALID");
    assert_eq!(behind.header("content-range"), format!("bytes */{}", AGENTFILE.len()));
    for (path, length, kind) in [
        (path.as_str(), AGENTFILE.len(), "application/octet-stream"),
        ("/v2/deep/er/name/manifests/v1", by_tag.body.len(), "application/vnd.oci.image.manifest.v1+json"),
    ] {
        let head = ask(&world.lodge, "HEAD", path, &[("authorization", &auth)]);
        assert_eq!(
            (head.status, head.header("content-length"), head.header("content-type")),
            (200, length.to_string().as_str(), kind)
        );
        assert!(
            head.body.is_empty() && head.header("docker-content-digest").starts_with("sha256:"),
            "{path}"
        );
    }
    let nothing = format!("sha256:{}", "0".repeat(64));
    for (path, code) in [
        ("/v2/deep/er/name/manifests/v2".to_owned(), "MANIFEST_UNKNOWN"),
        ("/v2/nobody/manifests/latest".to_owned(), "MANIFEST_UNKNOWN"),
        (format!("/v2/deep/er/name/manifests/{nothing}"), "MANIFEST_UNKNOWN"),
        // A blob that is no manifest is none.
        (
            format!("/v2/deep/er/name/manifests/{}", layer["digest"].as_str().expect("a digest")),
            "MANIFEST_UNKNOWN",
        ),
        (format!("/v2/deep/er/name/blobs/{nothing}"), "BLOB_UNKNOWN"),
        (format!("/v2/nobody/blobs/{}", layer["digest"].as_str().expect("a digest")), "NAME_UNKNOWN"),
        ("/v2/nobody/tags/list".to_owned(), "NAME_UNKNOWN"),
        ("/v2/deep/er/name/blobs/x".to_owned(), "NAME_UNKNOWN"),
        ("/v2/..%2f..%2fetc/manifests/passwd".to_owned(), "MANIFEST_UNKNOWN"),
        ("/v2/%00/tags/list".to_owned(), "NAME_UNKNOWN"),
        ("/v2/%ff%fe/manifests/latest".to_owned(), "NAME_UNKNOWN"),
        ("/v2/what".to_owned(), "NAME_UNKNOWN"),
    ] {
        get(&world.lodge, &path).is(404, code);
    }
    // A missing file and a damaged file are both reported as such.
    let blob = |digest: &str| {
        world.lodge.home().join("registry/blobs/sha256").join(digest.trim_start_matches("sha256:"))
    };
    std::fs::remove_file(blob(layer["digest"].as_str().expect("a digest"))).expect("a blob");
    get(&world.lodge, &path).is(404, "BLOB_UNKNOWN");
    assert_eq!(ask(&world.lodge, "HEAD", &path, &[("authorization", &auth)]).status, 404);
    std::fs::remove_file(blob(digest)).and_then(|()| std::fs::write(blob(digest), "{}")).expect("a blob");
    assert_eq!(get(&world.lodge, "/v2/deep/er/name/manifests/v1").status, 500);
}

#[tokio::test]
async fn a_blob_that_is_not_what_it_was_never_comes_to_its_end_and_is_damaged_from_then_on() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let program = world.lodge.home().join("program");
    for (name, bytes, status) in [("small", 1000, 500), ("large", 2 << 20, 200)] {
        std::fs::write(&program, noise(bytes)).expect("a program");
        let tag = format!("{name}:v1");
        tool(&mut api, name, program.to_str().expect("text"), &[&tag]).await;
        let index = get(&world.lodge, &format!("/v2/{name}/manifests/v1")).json();
        let manifest = index["manifests"][0]["digest"].as_str().expect("a digest");
        let manifest = get(&world.lodge, &format!("/v2/{name}/manifests/{manifest}")).json();
        let digest = manifest["layers"][0]["digest"].as_str().expect("a digest");
        let path = format!("/v2/{name}/blobs/{digest}");
        let whole = get(&world.lodge, &path);
        let file =
            world.lodge.home().join("registry/blobs/sha256").join(digest.trim_start_matches("sha256:"));
        let mut other = whole.body.clone();
        other[bytes / 2] ^= 1;
        std::fs::remove_file(&file).and_then(|()| std::fs::write(&file, other)).expect("another");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).expect("permissions");
        let answer = get(&world.lodge, &path);
        assert_eq!((whole.status, answer.status), (200, status), "{name}");
        assert!(answer.body.len() < whole.body.len(), "{name}");
        let push = json!({"bin": tag, "to": "127.0.0.1:1/x:y"});
        api.refused("bin/push", push, "image.damaged").await;
        tool(&mut api, name, program.to_str().expect("text"), &[&tag]).await;
        assert!(get(&world.lodge, &path).body == whole.body, "{name}");
    }
}

/// Bytes that no packing makes smaller.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[tokio::test]
async fn names_and_tags_are_listed_in_pages() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let tags = ["a:1", "a:2", "a:3", "b/c:1", "z:1", "Upper:1", "localhost:5000/d:1"];
    api.ok("image/build", json!({"content": AGENTFILE, "tags": tags})).await;
    assert_eq!(get(&world.lodge, "/v2/_catalog").json(), json!({"repositories": ["a", "b/c", "z"]}));
    let mut path = "/v2/_catalog?n=2".to_owned();
    let mut seen: Vec<Value> = Vec::new();
    loop {
        let page = get(&world.lodge, &path);
        seen.extend(page.json()["repositories"].as_array().expect("names").clone());
        match page.header("link").split_once('>') {
            Some((next, _)) => path = next.trim_start_matches('<').to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b/c", "z"]);
    assert_eq!(get(&world.lodge, "/v2/a/tags/list").json(), json!({"name": "a", "tags": ["1", "2", "3"]}));
    let page = get(&world.lodge, "/v2/a/tags/list?n=1&last=1");
    assert_eq!(
        (page.json()["tags"].clone(), page.header("link")),
        (json!(["2"]), "</v2/a/tags/list?last=2&n=1>; rel=\"next\"")
    );
    get(&world.lodge, "/v2/_catalog?n=x").is(400, "PAGINATION_NUMBER_INVALID");
    // `localhost` is no repository because of `localhost:5000/d:1`.
    get(&world.lodge, "/v2/localhost/tags/list").is(404, "NAME_UNKNOWN");
}

fn skopeo(lodge: &Lodge, args: &[&str]) {
    let home = lodge.dir().join("skopeo");
    std::fs::create_dir_all(&home).expect("a directory");
    let policy = home.join("policy.json");
    std::fs::write(&policy, r#"{"default":[{"type":"insecureAcceptAnything"}]}"#).expect("a policy");
    let ran = Command::new("skopeo")
        .arg("--policy")
        .arg(&policy)
        .arg("--tmpdir")
        .arg(&home)
        .args(args)
        .env("HOME", &home)
        .env("XDG_RUNTIME_DIR", &home)
        .output()
        .expect("this test needs skopeo: run `make tools`");
    assert!(ran.status.success(), "skopeo {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// Packs a directory as a tar.
fn tar(dir: &Path) -> Vec<u8> {
    let ran = Command::new("tar").arg("-C").arg(dir).args(["-cf", "-", "."]).output().expect("tar");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    ran.stdout
}

#[tokio::test]
async fn skopeo_copies_agents_and_tools_and_what_comes_back_has_the_same_digest() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let bin = tool(&mut api, "show", "/bin/cat", &["tools/show:v1"]).await;
    let source = format!("{AGENTFILE}BIN show tools/show:v1\n");
    let agent = api.ok("image/build", json!({"content": source, "tags": ["team/reader:v1"]})).await;
    let creds = format!("--src-creds=lodge:{}", world.lodge.token());
    let out = world.lodge.dir().join("out");
    let from = |name: &str| format!("docker://{}/{name}", world.lodge.http_addr());
    let to = |name: &str| format!("oci:{}:{name}", out.display());
    let common = ["copy", "--all", "--src-tls-verify=false", creds.as_str()];
    skopeo(&world.lodge, &[&common[..], &[&from("team/reader:v1"), &to("team/reader:v1")]].concat());
    skopeo(&world.lodge, &[&common[..], &[&from("tools/show:v1"), &to("tools/show:v1")]].concat());
    // By its digest under the agent's name, as a client that pulls the agent requests it.
    let pinned = format!("team/reader@{}", bin["digest"].as_str().expect("a digest"));
    let dir = format!("dir:{}", world.lodge.dir().join("plain").display());
    skopeo(&world.lodge, &[&common[..], &[&from(&pinned), &dir]].concat());
    let other = ApiWorld::new();
    let mut api = other.checked().await;
    let imported = crate::images_archive::import(&other.lodge, &tar(&out));
    assert_eq!(imported["images"][0]["digest"], agent["digest"], "{imported:#}");
    assert_eq!(
        (&imported["images"][0]["refs"], &imported["bins"][0]["refs"]),
        (&json!(["team/reader:v1"]), &json!(["tools/show:v1"]))
    );
    let found = api.ok("bin/inspect", json!({"bin": "tools/show:v1"})).await;
    assert_eq!((&found["digest"], &found["platforms"]), (&bin["digest"], &json!([platform()])));
    api.ok("agent/create", json!({"image": "team/reader:v1", "name": "one"})).await;
    api.agent_is("one", "ready").await;
}

#[tokio::test]
async fn one_lodge_pulls_from_another_with_a_token_as_its_login() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    tool(&mut api, "show", "/bin/cat", &["show"]).await;
    let source = format!("{AGENTFILE}BIN show show\n");
    let built = api.ok("image/build", json!({"content": source, "tags": ["team/reader:v1"]})).await;
    let from = world.lodge.http_addr();
    let other = ApiWorld::new();
    let name = format!("{from}/team/reader:v1");
    let mut api = other.checked().await;
    api.refused("image/pull", json!({"image": name}), "registry.denied").await;
    let docker = other.lodge.dir().join(".docker");
    std::fs::create_dir_all(&docker).expect("a directory");
    let auth = base64::encode(format!("lodge:{}", world.lodge.token()).as_bytes());
    std::fs::write(docker.join("config.json"), json!({"auths": {from.clone(): {"auth": auth}}}).to_string())
        .expect("a login");
    assert_eq!(api.ok("image/pull", json!({"image": name})).await["digest"], built["digest"]);
    api.ok("agent/create", json!({"image": name, "name": "one"})).await;
    api.agent_is("one", "ready").await;
}
