//! The daemon's address, the credentials, and the connection.
//!
//! Owns: addresses, the state directory, the token. Never: following events (see `follow`).

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use lodge_proto::client::{Client, ClientError, Login, Target};
use lodge_proto::proof::{token_id, without_localhost};
use lodge_proto::state_dir::check_state_dir;
use lodge_proto::{error_code, post::post};
use serde::Deserialize;
use serde_json::Value;

use crate::args::GlobalArgs;
use crate::autostart;
use crate::failure::{CommandExit, CommandFailure, io_words};
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
pub(crate) struct DaemonAddress {
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

impl DaemonAddress {
    /// Decides from the flags, then the environment, then the state directory.
    pub(crate) fn resolve(
        global: &GlobalArgs,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<DaemonAddress, CommandFailure> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let state_dir = state_dir(&env)?;
        let default_socket = state_dir.join(SOCKET_NAME);
        let socket = global.socket.clone();
        let target = if let Some(path) = socket {
            Target::Unix(socket_path(&path, "--socket")?)
        } else if let Some(url) = &global.daemon {
            parse_url(url, "--daemon")?
        } else if let Some(path) = env("LODGE_SOCKET") {
            Target::Unix(socket_path(Path::new(&path), "LODGE_SOCKET")?)
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
        if let Some(token) = env("LODGE_TOKEN") {
            check_token(&token)?;
        }
        Ok(DaemonAddress { target, state_dir, autostart, listens_at, ca_file })
    }

    /// Refuses a state directory that another user could change, if its socket or its token is needed.
    pub(crate) fn check_state_dir(&self) -> Result<(), CommandFailure> {
        if !self.uses_state_dir() {
            return Ok(());
        }
        if std::fs::metadata(&self.state_dir).is_ok_and(|found| !found.is_dir()) {
            let what = format!("the state directory {} is not a directory", self.state_dir.display());
            return Err(CommandFailure::refused(what).hint("move it away, or set LODGE_HOME to a directory"));
        }
        let is_missing = std::fs::metadata(&self.state_dir)
            .is_err_and(|cause| cause.kind() == std::io::ErrorKind::NotFound);
        if let (true, Ok(target)) = (is_missing, std::fs::read_link(&self.state_dir)) {
            let what = format!("the state directory {} is a link to nothing", self.state_dir.display());
            let hint = format!("create {}, or set LODGE_HOME to another directory", target.display());
            return Err(CommandFailure::refused(what).hint(hint));
        }
        check_state_dir(&self.state_dir).map(drop).map_err(|error| {
            let failure =
                CommandFailure::refused(error.to_string()).with_code(error.code()).hint(error.hint());
            match std::error::Error::source(&error) {
                Some(cause) => failure.because(cause),
                None => failure,
            }
        })
    }

    fn uses_state_dir(&self) -> bool {
        match &self.target {
            Target::Unix(path) if path.parent() == Some(&self.state_dir) => true,
            Target::Unix(path) => token_from_env().is_none() && path.parent().and_then(credentials).is_none(),
            Target::Tcp(_) | Target::Tls(_) => token_from_env().is_none(),
        }
    }

    /// Whether the daemon sees the same files as we do.
    pub(crate) fn is_this_machine(&self) -> bool {
        match &self.target {
            Target::Unix(_) => true,
            Target::Tcp(addr) | Target::Tls(addr) => is_loopback(addr),
        }
    }

    /// Connects once. The token is read each time: a new daemon may have written another.
    pub(crate) async fn dial(&self) -> Result<Client, ClientError> {
        Client::connect(&self.target, self.login()).await
    }

    /// Calls once, on a connection that is for nothing else.
    pub(crate) async fn post(&self, method: &str, params: Value) -> Result<Value, ClientError> {
        post(&self.target, &self.login(), method, params).await
    }

    /// Dials, and starts a daemon when there is none and that is allowed.
    pub(crate) async fn connect(&self, words: &Words) -> Result<Client, CommandFailure> {
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
        if let Some(token) = token_from_env() {
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
pub(crate) fn token_from_env() -> Option<String> {
    std::env::var("LODGE_TOKEN").ok().filter(|token| !token.is_empty())
}

/// Whether no daemon serves there, as opposed to a daemon that refuses or is too slow.
pub(crate) fn is_absent(error: &ClientError) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, NotFound};
    match error {
        ClientError::NoDaemon { cause, .. } => {
            matches!(cause.kind(), NotFound | ConnectionRefused | ConnectionReset | ConnectionAborted)
        }
        // A daemon without capacity is present; one that is shutting down counts as absent.
        ClientError::Handshake { status: Some(503), .. } => !error.is(error_code!("daemon.busy")),
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

fn state_dir(env: &impl Fn(&str) -> Option<String>) -> Result<PathBuf, CommandFailure> {
    if let Some(home) = env("LODGE_HOME") {
        return absolute(Path::new(&home));
    }
    match env("HOME") {
        Some(home) => absolute(&Path::new(&home).join(".lodge")),
        None => {
            Err(CommandFailure::usage("there is no state directory: neither `LODGE_HOME` nor `HOME` is set")
                .hint("set `LODGE_HOME` to a directory of yours"))
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, CommandFailure> {
    std::path::absolute(path).map_err(|cause| {
        CommandFailure::usage(format!("`{}` is not a usable path", path.display())).because(cause)
    })
}

/// Refuses what no daemon issued before it is sent to one.
fn check_token(token: &str) -> Result<(), CommandFailure> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) && token_id(token).is_some() {
        return Ok(());
    }
    Err(CommandFailure::refused("LODGE_TOKEN is not a token of Lodge")
        .hint("set LODGE_TOKEN to the line that `lodge token issue` printed, or unset it")
        .with_code("auth.invalid"))
}

fn own_address(text: &str) -> Result<SocketAddr, CommandFailure> {
    without_localhost(text).parse().map_err(|_| {
        let hint = match daemon_url(text) {
            Ok(Target::Tcp(addr) | Target::Tls(addr)) => {
                format!("leave out the scheme: LODGE_DAEMON_ADDR={addr}. A daemon is chosen by LODGE_DAEMON")
            }
            Ok(Target::Unix(_)) | Err(_) if path_in(text).is_some() => {
                "it is the address that the daemon listens on, such as `127.0.0.1:5500`; a socket is chosen by LODGE_SOCKET"
                    .to_owned()
            }
            Ok(Target::Unix(_)) | Err(_) => {
                "write it as the daemon's `http-addr`, such as `127.0.0.1:5500`".to_owned()
            }
        };
        CommandFailure::usage(format!("`{text}` given by LODGE_DAEMON_ADDR is not an address")).hint(hint)
    })
}

fn parse_url(url: &str, given_by: &str) -> Result<Target, CommandFailure> {
    daemon_url(url).map_err(|why| {
        let failure = CommandFailure::new(
            CommandExit::Usage,
            format!("`{url}` given by {given_by} is not a daemon's URL"),
        );
        let Some(path) = path_in(url) else {
            return failure.because(why).hint("write it as `http://127.0.0.1:5500` or `https://HOST:PORT`");
        };
        let shown = path.display();
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => failure
                .because("it is a directory")
                .hint(format!("if it is a state directory, set LODGE_HOME={shown}")),
            Ok(found) if found.file_type().is_socket() => {
                failure.because("it is a socket").hint(format!("write `--socket {shown}`"))
            }
            Ok(_) => failure.because("it is a file").hint(URL_OR_SOCKET),
            Err(cause) => failure
                .because(format!("it looks like the path of a socket: {}", io_words(&cause)))
                .hint(URL_OR_SOCKET),
        }
    })
}

const URL_OR_SOCKET: &str =
    "write a URL such as `http://127.0.0.1:5500`, or name the socket with `--socket PATH`";

/// The path in what should be a URL or an address.
fn path_in(text: &str) -> Option<&Path> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    (path.starts_with(['/', '.', '~']) || path.ends_with(".sock")).then_some(Path::new(path))
}

fn socket_path(path: &Path, given_by: &str) -> Result<PathBuf, CommandFailure> {
    match path.to_str() {
        Some(url) if daemon_url(url).is_ok() => Err(CommandFailure::usage(format!(
            "`{url}` given by {given_by} is a URL, not the path of a socket"
        ))
        .hint(format!("write `--daemon {url}`, or set LODGE_DAEMON"))),
        Some(_) | None => absolute(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(global: &GlobalArgs, env: &[(&str, &str)]) -> Result<DaemonAddress, CommandFailure> {
        let pairs: Vec<(String, String)> =
            env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        DaemonAddress::resolve(global, |name| {
            pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        })
    }

    fn unix(path: &str) -> Target {
        Target::Unix(path.into())
    }

    #[test]
    fn the_state_directory_is_lodge_home_and_else_below_home() {
        let address = resolve(&GlobalArgs::default(), &[("HOME", "/h")]).unwrap();
        assert_eq!(address.target, unix("/h/.lodge/lodge.sock"));
        let address = resolve(&GlobalArgs::default(), &[("HOME", "/h"), ("LODGE_HOME", "/s")]).unwrap();
        assert_eq!(address.target, unix("/s/lodge.sock"));
        assert_eq!(address.autostart, Autostart::Allowed);
    }

    #[test]
    fn a_flag_beats_the_environment_and_an_empty_variable_counts_for_nothing() {
        let global = GlobalArgs { daemon: Some("http://127.0.0.1:5500".into()), ..GlobalArgs::default() };
        let address = resolve(&global, &[("HOME", "/h"), ("LODGE_SOCKET", "/other.sock")]).unwrap();
        assert_eq!(address.target, Target::Tcp("127.0.0.1:5500".into()));
        let address = resolve(&GlobalArgs::default(), &[("HOME", "/h"), ("LODGE_SOCKET", "")]).unwrap();
        assert_eq!(address.target, unix("/h/.lodge/lodge.sock"));
    }

    #[test]
    fn an_https_address_is_dialled_with_tls_and_the_authorities_of_the_environment() {
        let env = [("HOME", "/h"), ("LODGE_DAEMON", "https://box:5500"), ("LODGE_CA_FILE", "/ca.pem")];
        let address = resolve(&GlobalArgs::default(), &env).unwrap();
        assert_eq!(address.target, Target::Tls("box:5500".into()));
        assert_eq!(address.ca_file, Some("/ca.pem".into()));
        assert!(!address.is_this_machine());
    }

    #[test]
    fn only_the_state_directorys_own_socket_is_started_for() {
        let check = |env: &[(&str, &str)], expected: Autostart| {
            assert_eq!(resolve(&GlobalArgs::default(), env).unwrap().autostart, expected, "{env:?}");
        };
        check(&[("LODGE_HOME", "/s"), ("LODGE_SOCKET", "/s/lodge.sock")], Autostart::Allowed);
        check(&[("LODGE_HOME", "/s"), ("LODGE_SOCKET", "/t/lodge.sock")], Autostart::Forbidden);
        check(&[("LODGE_HOME", "/s"), ("LODGE_DAEMON", "http://127.0.0.1:1")], Autostart::Forbidden);
        check(&[("LODGE_HOME", "/s"), ("LODGE_NO_AUTOSTART", "1")], Autostart::Forbidden);
        check(&[("LODGE_HOME", "/s"), ("LODGE_NO_AUTOSTART", "0")], Autostart::Allowed);
    }

    fn words(failure: CommandFailure) -> String {
        let CommandFailure::Told(report) = failure else { panic!("not told") };
        format!("{}\n{}\n{}", report.what, report.because.join("\n"), report.hint.unwrap_or_default())
    }

    #[test]
    fn a_url_where_a_path_belongs_and_a_path_where_a_url_belongs_are_reported_with_the_right_flag() {
        let env = |name: &'static str, value: &'static str| [("HOME", "/h"), (name, value)];
        for (env, expected) in [
            (env("LODGE_DAEMON", "/"), "it is a directory\nif it is a state directory, set LODGE_HOME=/"),
            (env("LODGE_DAEMON", "/dev/null"), "it is a file"),
            (env("LODGE_DAEMON", "unix:///nowhere/x.sock"), "no such file or directory"),
            (env("LODGE_SOCKET", "http://127.0.0.1:1"), "write `--daemon http://127.0.0.1:1`"),
            (env("LODGE_DAEMON_ADDR", "http://127.0.0.1:1"), "LODGE_DAEMON_ADDR=127.0.0.1:1"),
            (env("LODGE_DAEMON_ADDR", "/s/lodge.sock"), "a socket is chosen by LODGE_SOCKET"),
        ] {
            let failure = resolve(&GlobalArgs::default(), &env).unwrap_err();
            assert_eq!(failure.exit(), CommandExit::Usage);
            let told = words(failure);
            assert!(told.contains(expected), "{told}");
        }
    }

    #[test]
    fn what_is_no_token_is_reported_before_anything_is_dialled() {
        // {"alg":"HS256"} . {"jti":"tok_01"} . x
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJqdGkiOiJ0b2tfMDEifQ.x";
        let given = |token: &str| resolve(&GlobalArgs::default(), &[("HOME", "/h"), ("LODGE_TOKEN", token)]);
        assert!(given(token).is_ok());
        assert!(given("").is_ok(), "an empty variable counts for nothing");
        for garbage in ["garbage", "a.b.c", &format!("{token} "), &format!("{token}\nx")] {
            let told = words(given(garbage).unwrap_err());
            assert!(told.starts_with("LODGE_TOKEN is not a token"), "{told}");
            assert!(!told.contains(garbage), "{told}");
        }
    }

    #[test]
    fn a_bad_url_is_bad_usage() {
        let failure =
            resolve(&GlobalArgs::default(), &[("HOME", "/h"), ("LODGE_DAEMON", "nonsense")]).unwrap_err();
        assert_eq!(failure.exit(), CommandExit::Usage);
        let failure = resolve(&GlobalArgs::default(), &[("HOME", "/h"), ("LODGE_DAEMON_ADDR", "nonsense")])
            .unwrap_err();
        assert_eq!(failure.exit(), CommandExit::Usage);
        let failure = resolve(&GlobalArgs::default(), &[]).unwrap_err();
        assert_eq!(failure.exit(), CommandExit::Usage);
    }
}
