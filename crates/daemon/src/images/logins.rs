//! Logins of registries, as `docker login` stores them: in `config.json`, or in the credential helpers that it names.
//!
//! A login is read for each use and never cached. No error message contains text of the file or output of a helper, because
//! both may contain a secret.

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
/// The prefix of the names of credential helpers.
const HELPER_PREFIX: &str = "docker-credential-";
const HELPER_WITHIN: Duration = Duration::from_secs(10);
const HELPER_BYTES_MAX: usize = 64 << 10;
/// The variables that a helper needs to find its keys. It gets nothing else of the daemon's environment.
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
/// The output of a helper without a login for the registry.
const NOT_FOUND: &[u8] = b"credentials not found";
/// The user name in a helper's answer whose secret is an identity token.
const TOKEN_USER: &str = "<token>";
/// A registry with several names, and the name that helpers use for it.
const HUB: &str = "docker.io";
const HUB_NAMES: [&str; 3] = [HUB, "index.docker.io", "registry-1.docker.io"];
const HUB_HELPER_NAME: &str = "https://index.docker.io/v1/";

/// Where logins are read from.
pub(crate) struct DockerLogins {
    /// The directory with `config.json`. None without a home directory.
    dir: Option<PathBuf>,
    env: BTreeMap<&'static str, OsString>,
}

impl DockerLogins {
    /// The locations that the environment names.
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
        let question = if host == HUB { HUB_HELPER_NAME } else { host };
        let answer = asked.ask(question.as_bytes()).map_err(|error| crate::chain(&error))?;
        let ended = match answer.code {
            Some(0) => {
                return parse_helper_login(&answer.stdout)
                    .map(Some)
                    .ok_or(format!("`{name}` answered no login"));
            }
            Some(code) => format!("ended with {code}"),
            None => "was ended by a signal".to_owned(),
        };
        let knows_none = [&answer.stdout, &answer.stderr]
            .into_iter()
            .any(|said| starts_with_ignoring_space(said, NOT_FOUND));
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
        // An exact key is preferred to an equivalent one.
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
    /// None: an entry without a secret only marks that a helper has it.
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

/// The answer of a credential helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperLogin {
    username: String,
    secret: String,
}

fn parse_helper_login(stdout: &[u8]) -> Option<RegistryLogin> {
    let HelperLogin { username, secret } = serde_json::from_slice(stdout).ok()?;
    let is_token = username == TOKEN_USER;
    Some(RegistryLogin { user: username, secret, is_token })
}

/// Reads the file. `None`: there is no file. The error for an invalid file has the position and none of its text.
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
    // The deserializer would accept a list as an object without fields.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err("it is no JSON object".to_owned());
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        format!("line {}, column {}: no logins can be read from it", error.line(), error.column())
    })
}

/// The host of `host`, `host/path` or `https://host/v1/`. A registry with several names gets one of them.
fn host_of(key: &str) -> String {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let host = bare.split('/').next().unwrap_or_default().to_ascii_lowercase();
    if HUB_NAMES.contains(&host.as_str()) { HUB.to_owned() } else { host }
}

fn starts_with_ignoring_space(said: &[u8], words: &[u8]) -> bool {
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
