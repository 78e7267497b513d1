//! Logins of registries, as `docker login` keeps them: in `config.json`, or with programs that it names.
//!
//! Read again whenever one is needed, and never kept. No error message contains a secret: neither what
//! stands in the file nor what a program said.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lodge_exec::Helper;
use lodge_image::registry::{RegistryLogin, RegistryLogins};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

const FILE: &str = "config.json";
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What the names of such programs begin with.
const HELPER_PREFIX: &str = "docker-credential-";
const HELPER_WITHIN: Duration = Duration::from_secs(10);
const HELPER_BYTES_MAX: usize = 64 << 10;
/// What such a program needs to find its keys, and nothing else of the daemon's environment.
const HELPER_ENV: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "DOCKER_CONFIG",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "GNUPGHOME",
    "PASSWORD_STORE_DIR",
];
/// What a program says that knows no login.
const NOT_FOUND: &[u8] = b"credentials not found";
/// The user that a program names when its secret is an identity token.
const TOKEN_USER: &str = "<token>";
/// One registry with several names, and how programs call it.
const HUB: &str = "docker.io";
const HUB_NAMES: [&str; 3] = [HUB, "index.docker.io", "registry-1.docker.io"];
const HUB_ASKED: &str = "https://index.docker.io/v1/";

/// Where logins are looked for.
pub(crate) struct DockerLogins {
    /// The directory with `config.json`; without a home there is none.
    dir: Option<PathBuf>,
    env: BTreeMap<&'static str, OsString>,
}

impl DockerLogins {
    /// As the environment says it.
    pub(crate) fn of(var: impl Fn(&str) -> Option<OsString>) -> DockerLogins {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let home = || var("HOME").map(|home| PathBuf::from(home).join(".docker"));
        let dir = var("DOCKER_CONFIG").map(PathBuf::from).or_else(home);
        let env = HELPER_ENV.iter().filter_map(|name| Some((*name, var(name)?)));
        DockerLogins { dir, env: env.collect() }
    }

    fn ask(&self, helper: &str, host: &str) -> Result<Option<RegistryLogin>, String> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if helper.is_empty() || !helper.chars().all(plain) {
            return Err("it names a helper that no program can be called".to_owned());
        }
        let name = format!("{HELPER_PREFIX}{helper}");
        let program = self.env.get("PATH").and_then(|path| lodge_exec::find_program(path, &name));
        let program = program.ok_or_else(|| format!("it names the helper `{name}`, which is not in PATH"))?;
        let asked = Helper {
            program,
            args: vec!["get".to_owned()],
            env: self.env.iter().map(|(name, value)| (OsString::from(name), value.clone())).collect(),
            within: HELPER_WITHIN,
            output_max: HELPER_BYTES_MAX,
        };
        let question = if host == HUB { HUB_ASKED } else { host };
        let answer = asked.ask(question.as_bytes()).map_err(|error| crate::chain(&error))?;
        let ended = match answer.code {
            Some(0) => return given(&answer.stdout).map(Some).ok_or(format!("`{name}` answered no login")),
            Some(code) => format!("ended with {code}"),
            None => "was ended by a signal".to_owned(),
        };
        let knows_none = [&answer.stdout, &answer.stderr].into_iter().any(|said| begins(said, NOT_FOUND));
        if knows_none { Ok(None) } else { Err(format!("`{name} get` {ended}")) }
    }
}

impl std::fmt::Debug for DockerLogins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DockerLogins").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl RegistryLogins for DockerLogins {
    fn login(&self, host: &str) -> Result<Option<RegistryLogin>, String> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let path = dir.join(FILE);
        let told = |why: String| format!("{}: {why}", path.display());
        let Some(file) = read(&path).map_err(told)? else { return Ok(None) };
        let host = host_of(host);
        let named = file.cred_helpers.iter().find(|(key, _)| host_of(key) == host).map(|(_, helper)| helper);
        if let Some(helper) = named.or(file.creds_store.as_ref()).filter(|helper| !helper.is_empty())
            && let Some(login) = self.ask(helper, &host).map_err(told)?
        {
            return Ok(Some(login));
        }
        // An exact key goes before one that only means the same.
        let exact = file.auths.get(host.as_str());
        let same = || file.auths.iter().find(|(key, _)| host_of(key) == host).map(|(_, auth)| auth);
        match exact.or_else(same) {
            Some(auth) => auth.login().map_err(|why| told(format!("the login for `{host}` {why}"))),
            None => Ok(None),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigFile {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default)]
    creds_store: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
struct Auth {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    identitytoken: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl Auth {
    /// An entry without a secret only says that a program has it.
    fn login(&self) -> Result<Option<RegistryLogin>, &'static str> {
        let (user, secret) = if self.auth.is_empty() {
            (self.username.clone(), self.password.clone())
        } else {
            let bytes = base64(self.auth.trim()).ok_or("is not written in Base64")?;
            let text = String::from_utf8(bytes).map_err(|_| "is not written in UTF-8")?;
            let (user, secret) = text.split_once(':').ok_or("has no `:` between user and password")?;
            (user.to_owned(), secret.trim_end_matches('\0').to_owned())
        };
        if !self.identitytoken.is_empty() {
            return Ok(Some(RegistryLogin { user, secret: self.identitytoken.clone(), is_token: true }));
        }
        let is_empty = user.is_empty() && secret.is_empty();
        Ok((!is_empty).then_some(RegistryLogin { user, secret, is_token: false }))
    }
}

/// What a program answers.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

fn given(stdout: &[u8]) -> Option<RegistryLogin> {
    let HelperAnswer { username, secret } = serde_json::from_slice(stdout).ok()?;
    let is_token = username == TOKEN_USER;
    Some(RegistryLogin { user: username, secret, is_token })
}

/// The file; `None` when there is none. What is told of a broken one is where it is broken, and not what stands there.
fn read(path: &Path) -> Result<Option<ConfigFile>, String> {
    // Without this flag, opening a pipe blocks until a writer opens it.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, how, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if !file.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it is over {FILE_BYTES_MAX} bytes"));
    }
    // A list would be read as an object that says nothing.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err("it is no JSON object".to_owned());
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        format!("line {}, column {}: no logins can be read from it", error.line(), error.column())
    })
}

/// The host of `host`, `host/path` and `https://host/v1/`; one that has several names by one of them.
fn host_of(key: &str) -> String {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let host = bare.split('/').next().unwrap_or_default().to_ascii_lowercase();
    if HUB_NAMES.contains(&host.as_str()) { HUB.to_owned() } else { host }
}

fn begins(said: &[u8], words: &[u8]) -> bool {
    said.trim_ascii_start().starts_with(words)
}

/// Reads Base64 with or without the `=` at its end.
fn base64(text: &str) -> Option<Vec<u8>> {
    let bare = text.trim_end_matches('=');
    let padding = bare.len().next_multiple_of(4) - bare.len();
    lodge_proto::base64::decode(&format!("{bare}{}", "=".repeat(padding)))
}

#[cfg(test)]
mod tests;
