//! Where the daemon is, how to prove who we are, and dialling it.
//!
//! Owns: addresses, the state directory, the token. Never: following events (see `follow`).

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lodge_proto::client::{Client, ClientError, Login, Target};
use lodge_proto::post::post;
use lodge_proto::proof::without_localhost;
use lodge_proto::state_dir::check_state_dir;
use serde::Deserialize;
use serde_json::Value;

use crate::args::Global;
use crate::autostart;
use crate::failure::{Exit, Failure};
use crate::parse::{daemon_url, is_loopback};
use crate::words::Words;

const SOCKET_NAME: &str = "lodge.sock";
const CREDENTIALS_NAME: &str = "credentials.json";

/// Whether a missing daemon may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Autostart {
    Allowed,
    Forbidden,
}

/// Everything needed to reach the daemon, decided before anything is dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub target: Target,
    pub state_dir: PathBuf,
    pub autostart: Autostart,
    /// The daemon's own address, where something forwards to it what is sent to the target.
    pub listens_at: Option<SocketAddr>,
    /// The authorities that may have issued the daemon's certificate; those of the system otherwise.
    pub ca_file: Option<PathBuf>,
}

/// `credentials.json`, as the daemon writes it.
#[derive(Debug, Deserialize)]
struct Credentials {
    token: String,
    #[serde(default)]
    http: Option<String>,
}

impl Address {
    /// Decides from the flags, then the environment, then the state directory.
    pub(crate) fn resolve(global: &Global, env: impl Fn(&str) -> Option<String>) -> Result<Address, Failure> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let state_dir = state_dir(&env)?;
        let default_socket = state_dir.join(SOCKET_NAME);
        let socket = global.socket.clone();
        let target = if let Some(path) = socket {
            Target::Unix(absolute(&path)?)
        } else if let Some(url) = &global.daemon {
            parse_url(url, "--daemon")?
        } else if let Some(path) = env("LODGE_SOCKET") {
            Target::Unix(absolute(Path::new(&path))?)
        } else if let Some(url) = env("LODGE_DAEMON") {
            parse_url(&url, "LODGE_DAEMON")?
        } else {
            Target::Unix(default_socket.clone())
        };
        let forbidden = global.no_autostart || env("LODGE_NO_AUTOSTART").is_some_and(|value| value != "0");
        let ours = target == Target::Unix(default_socket);
        let autostart = if ours && !forbidden { Autostart::Allowed } else { Autostart::Forbidden };
        let listens_at = env("LODGE_DAEMON_ADDR").map(|addr| own_address(&addr)).transpose()?;
        let ca_file = env("LODGE_CA_FILE").map(|path| absolute(Path::new(&path))).transpose()?;
        Ok(Address { target, state_dir, autostart, listens_at, ca_file })
    }

    /// Refuses a state directory that another user could change, when its socket or its token is to be used.
    pub(crate) fn check_state_dir(&self) -> Result<(), Failure> {
        if !self.uses_state_dir() {
            return Ok(());
        }
        check_state_dir(&self.state_dir).map(drop).map_err(|error| {
            let failure = Failure::refused(error.to_string()).with_code(error.code()).hint(error.hint());
            match std::error::Error::source(&error) {
                Some(cause) => failure.because(cause),
                None => failure,
            }
        })
    }

    fn uses_state_dir(&self) -> bool {
        match &self.target {
            Target::Unix(path) if path.parent() == Some(&self.state_dir) => true,
            Target::Unix(path) => given_token().is_none() && path.parent().and_then(credentials).is_none(),
            Target::Tcp(_) | Target::Tls(_) => given_token().is_none(),
        }
    }

    /// Whether the daemon sees the same files as we do.
    pub(crate) fn is_this_machine(&self) -> bool {
        match &self.target {
            Target::Unix(_) => true,
            Target::Tcp(addr) | Target::Tls(addr) => is_loopback(addr),
        }
    }

    /// Dials once. The token is read anew each time: a daemon that started meanwhile may have written another.
    pub(crate) async fn dial(&self) -> Result<Client, ClientError> {
        Client::connect(&self.target, self.login()).await
    }

    /// Calls once, on a connection that is for nothing else.
    pub(crate) async fn post(&self, method: &str, params: Value) -> Result<Value, ClientError> {
        post(&self.target, &self.login(), method, params).await
    }

    /// Dials, and starts a daemon when there is none and that is allowed.
    pub(crate) async fn connect(&self, words: &Words) -> Result<Client, Failure> {
        match self.dial().await {
            Ok(client) => Ok(client),
            Err(error) if self.autostart == Autostart::Allowed && is_absent(&error) => {
                autostart::start(self, words).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The token for this target, from the environment or from the daemon's own file; empty when there is none.
    ///
    /// The file's token goes to no other machine, unless the file itself names that address. Wherever it goes, the
    /// daemon is verified first.
    pub(crate) fn login(&self) -> Login {
        self.token().listening_at(self.listens_at).trusting(self.ca_file.clone())
    }

    fn token(&self) -> Login {
        if let Some(token) = given_token() {
            return Login::new(token);
        }
        let beside_socket = match &self.target {
            Target::Unix(path) => path.parent().and_then(credentials),
            Target::Tcp(_) | Target::Tls(_) => None,
        };
        let Some((found, owner)) = beside_socket.or_else(|| credentials(&self.state_dir)) else {
            return Login::default();
        };
        let named = found.http.as_deref().and_then(|url| daemon_url(url).ok());
        let may_have_it = match &self.target {
            Target::Unix(_) => true,
            Target::Tcp(addr) | Target::Tls(addr) => {
                is_loopback(addr) || named.as_ref() == Some(&self.target)
            }
        };
        if !may_have_it {
            return Login::default();
        }
        Login::new(found.token).owned_by(owner)
    }
}

/// The token of the environment, which goes before any file.
fn given_token() -> Option<String> {
    std::env::var("LODGE_TOKEN").ok().filter(|token| !token.is_empty())
}

/// Whether nobody serves there (any more, or yet), as opposed to somebody who does not want us or is too slow.
pub(crate) fn is_absent(error: &ClientError) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, NotFound};
    match error {
        ClientError::NoDaemon { cause, .. } => {
            matches!(cause.kind(), NotFound | ConnectionRefused | ConnectionReset | ConnectionAborted)
        }
        // Somebody who has no room now is there, unlike somebody who is about to go.
        ClientError::Handshake { status: Some(503), .. } => error.code() != Some("daemon.busy"),
        ClientError::Lost | ClientError::Handshake { status: None, .. } => true,
        ClientError::Handshake { .. }
        | ClientError::Unverified { .. }
        | ClientError::Refused(_)
        | ClientError::Garbled { .. } => false,
    }
}

/// What a daemon wrote for its clients, and the user whose file it is.
fn credentials(dir: &Path) -> Option<(Credentials, u32)> {
    let mut file = std::fs::File::open(dir.join(CREDENTIALS_NAME)).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    Some((serde_json::from_str(&text).ok()?, file.metadata().ok()?.uid()))
}

fn state_dir(env: &impl Fn(&str) -> Option<String>) -> Result<PathBuf, Failure> {
    if let Some(home) = env("LODGE_HOME") {
        return absolute(Path::new(&home));
    }
    match env("HOME") {
        Some(home) => absolute(&Path::new(&home).join(".lodge")),
        None => Err(Failure::usage("there is no state directory: neither `LODGE_HOME` nor `HOME` is set")
            .hint("set `LODGE_HOME` to a directory of yours")),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|cause| Failure::usage(format!("`{}` is not a usable path", path.display())).because(cause))
}

fn own_address(text: &str) -> Result<SocketAddr, Failure> {
    without_localhost(text).parse().map_err(|_| {
        Failure::usage(format!("`{text}` given by LODGE_DAEMON_ADDR is not an address"))
            .hint("write it as the daemon's `http-addr`, such as `127.0.0.1:5500`")
    })
}

fn parse_url(url: &str, given_by: &str) -> Result<Target, Failure> {
    daemon_url(url).map_err(|why| {
        Failure::new(Exit::Usage, format!("`{url}` given by {given_by} is not a daemon's URL"))
            .because(why)
            .hint("write it as `http://127.0.0.1:5500` or `https://HOST:PORT`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(global: &Global, env: &[(&str, &str)]) -> Result<Address, Failure> {
        let pairs: Vec<(String, String)> =
            env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Address::resolve(global, |name| {
            pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        })
    }

    fn unix(path: &str) -> Target {
        Target::Unix(path.into())
    }

    #[test]
    fn the_state_directory_is_lodge_home_and_else_below_home() {
        let address = resolve(&Global::default(), &[("HOME", "/h")]).unwrap();
        assert_eq!(address.target, unix("/h/.lodge/lodge.sock"));
        let address = resolve(&Global::default(), &[("HOME", "/h"), ("LODGE_HOME", "/s")]).unwrap();
        assert_eq!(address.target, unix("/s/lodge.sock"));
        assert_eq!(address.autostart, Autostart::Allowed);
    }

    #[test]
    fn a_flag_beats_the_environment_and_an_empty_variable_counts_for_nothing() {
        let global = Global { daemon: Some("http://127.0.0.1:5500".into()), ..Global::default() };
        let address = resolve(&global, &[("HOME", "/h"), ("LODGE_SOCKET", "/other.sock")]).unwrap();
        assert_eq!(address.target, Target::Tcp("127.0.0.1:5500".into()));
        let address = resolve(&Global::default(), &[("HOME", "/h"), ("LODGE_SOCKET", "")]).unwrap();
        assert_eq!(address.target, unix("/h/.lodge/lodge.sock"));
    }

    #[test]
    fn an_https_address_is_dialled_with_tls_and_the_authorities_of_the_environment() {
        let env = [("HOME", "/h"), ("LODGE_DAEMON", "https://box:5500"), ("LODGE_CA_FILE", "/ca.pem")];
        let address = resolve(&Global::default(), &env).unwrap();
        assert_eq!(address.target, Target::Tls("box:5500".into()));
        assert_eq!(address.ca_file, Some("/ca.pem".into()));
        assert!(!address.is_this_machine());
    }

    #[test]
    fn only_the_state_directorys_own_socket_is_started_for() {
        let check = |env: &[(&str, &str)], expected: Autostart| {
            assert_eq!(resolve(&Global::default(), env).unwrap().autostart, expected, "{env:?}");
        };
        check(&[("LODGE_HOME", "/s"), ("LODGE_SOCKET", "/s/lodge.sock")], Autostart::Allowed);
        check(&[("LODGE_HOME", "/s"), ("LODGE_SOCKET", "/t/lodge.sock")], Autostart::Forbidden);
        check(&[("LODGE_HOME", "/s"), ("LODGE_DAEMON", "http://127.0.0.1:1")], Autostart::Forbidden);
        check(&[("LODGE_HOME", "/s"), ("LODGE_NO_AUTOSTART", "1")], Autostart::Forbidden);
        check(&[("LODGE_HOME", "/s"), ("LODGE_NO_AUTOSTART", "0")], Autostart::Allowed);
    }

    #[test]
    fn a_bad_url_is_bad_usage() {
        let failure =
            resolve(&Global::default(), &[("HOME", "/h"), ("LODGE_DAEMON", "nonsense")]).unwrap_err();
        assert_eq!(failure.exit(), Exit::Usage);
        let failure =
            resolve(&Global::default(), &[("HOME", "/h"), ("LODGE_DAEMON_ADDR", "nonsense")]).unwrap_err();
        assert_eq!(failure.exit(), Exit::Usage);
        let failure = resolve(&Global::default(), &[]).unwrap_err();
        assert_eq!(failure.exit(), Exit::Usage);
    }
}
