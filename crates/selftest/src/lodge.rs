//! A real daemon on a state directory of its own.
//!
//! Owns: the directory, the daemon's process, and everything it started; nothing is left when it is dropped.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lodge_proto::client::{Client, ClientError, Target};
use serde_json::Value;

use crate::clock::now_us;
use crate::processes;
use crate::throw_away::ThrowAway;
use crate::trouble::Trouble;

/// How long anything may take before a run gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at a daemon that starts or ends.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How much of a log is shown if a daemon did not start.
const LOG_LINES_TOLD: usize = 40;

/// One state directory and, most of the time, one daemon.
#[derive(Debug)]
pub struct Lodge {
    // The daemon is gone before its directory: see `drop`.
    child: Option<Child>,
    lodged: PathBuf,
    env: Vec<(String, String)>,
    alive_us: u64,
    ends: Vec<DaemonEnd>,
    dir: ThrowAway,
}

/// When a daemon ended: between the last look that saw it alive and the one that found it gone, in microseconds since
/// 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaemonEnd {
    pub from_us: u64,
    pub to_us: u64,
}

/// The state of a started daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonStatus {
    Starting,
    Answers,
    Ended(ExitStatus),
}

impl Lodge {
    /// A state directory without a daemon.
    pub fn new(lodged: impl Into<PathBuf>) -> io::Result<Lodge> {
        let dir = ThrowAway::new("lodge-")?;
        Ok(Lodge { child: None, lodged: lodged.into(), env: Vec::new(), alive_us: 0, ends: Vec::new(), dir })
    }

    /// Starts daemons of another program from now on. Returns the one before.
    pub fn replace_program(&mut self, lodged: PathBuf) -> PathBuf {
        std::mem::replace(&mut self.lodged, lodged)
    }

    /// The temporary directory that holds the state directory; files of the run's own go here.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn home(&self) -> PathBuf {
        self.dir().join("home")
    }

    /// Keeps the directory for inspection.
    pub fn keep(&mut self) -> PathBuf {
        self.dir.keep();
        self.dir().to_owned()
    }

    /// Sets a variable for every daemon started after.
    pub fn set_env(&mut self, key: &str, value: &str) {
        self.unset_env(key);
        self.env.push((key.to_owned(), value.to_owned()));
    }

    pub fn unset_env(&mut self, key: &str) {
        self.env.retain(|(known, _)| known != key);
    }

    /// The daemon's command, with nothing inherited but what it needs.
    pub fn daemon_command(&self) -> Command {
        let mut command = Command::new(&self.lodged);
        command
            .env_clear()
            .env("LODGE_HOME", self.home())
            .env("HOME", self.dir())
            .env("LODGED_HTTP_ADDR", "127.0.0.1:0")
            .env("LODGED_LOG_LEVEL", "debug")
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null());
        command
    }

    /// Starts the daemon and does not wait. One that is there already stays as it is.
    pub fn spawn(&mut self) -> Result<(), Trouble> {
        if self.child.is_some() {
            return Ok(());
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(|cause| Trouble::System { what: "open the daemon's log", cause })?;
        let mut command = self.daemon_command();
        command.stdout(Stdio::null()).stderr(log);
        // SAFETY: prctl with PR_SET_PDEATHSIG only sets a property of the calling process; it is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // A killed test must not leave a daemon behind.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child =
            command.spawn().map_err(|cause| Trouble::NoProgram { program: self.lodged.clone(), cause })?;
        (self.child, self.alive_us) = (Some(child), now_us());
        Ok(())
    }

    /// Starts the daemon and waits until it answers.
    pub async fn start(&mut self) -> Result<(), Trouble> {
        self.spawn()?;
        self.wait_ready().await
    }

    /// Waits until a spawned daemon answers.
    pub async fn wait_ready(&mut self) -> Result<(), Trouble> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.look()? {
                DaemonStatus::Answers => return Ok(()),
                DaemonStatus::Ended(status) => return Err(Trouble::Ended { status, log: self.last_words() }),
                DaemonStatus::Starting if Instant::now() >= until => {
                    return Err(Trouble::Silent { waited_s: PATIENCE.as_secs(), log: self.last_words() });
                }
                DaemonStatus::Starting => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// The current state of the daemon.
    pub fn look(&mut self) -> Result<DaemonStatus, Trouble> {
        if let Some(status) = self.ended()? {
            return Ok(DaemonStatus::Ended(status));
        }
        // What a killed daemon was just starting has its socket, too, until it becomes a program of its own.
        let listener = UnixStream::connect(self.home().join("lodge.sock")).and_then(|stream| peer(&stream));
        let answers = listener.is_ok_and(|listener| self.pid() == Some(listener));
        Ok(if answers { DaemonStatus::Answers } else { DaemonStatus::Starting })
    }

    /// The exit status of the daemon, if it ended; returned once.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Trouble> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let looked_us = now_us();
        let ended =
            child.try_wait().map_err(|cause| Trouble::System { what: "wait for the daemon", cause })?;
        match ended {
            Some(_) => {
                self.child = None;
                self.ends.push(DaemonEnd { from_us: self.alive_us, to_us: now_us() });
            }
            None => self.alive_us = looked_us,
        }
        Ok(ended)
    }

    /// Waits until the daemon has ended by itself; `None` when it has not, or when there is none.
    pub async fn wait_ended(&mut self, within: Duration) -> Result<Option<ExitStatus>, Trouble> {
        let until = Instant::now() + within;
        loop {
            match self.ended()? {
                Some(status) => return Ok(Some(status)),
                None if self.child.is_none() || Instant::now() >= until => return Ok(None),
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Ends the daemon as a power switch would, and waits until it is gone.
    pub fn kill9(&mut self) -> Result<(), Trouble> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let from_us = now_us();
        let gone = child.kill().and_then(|()| child.wait());
        self.ends.push(DaemonEnd { from_us, to_us: now_us() });
        gone.map(drop).map_err(|cause| Trouble::System { what: "end the daemon", cause })
    }

    /// When each daemon so far ended, in order.
    pub fn ends(&self) -> &[DaemonEnd] {
        &self.ends
    }

    /// Asks the daemon to end, as a service manager would.
    pub fn terminate(&self) {
        if let Some(pid) = self.pid() {
            // SAFETY: sending a signal touches no memory; the pid is our child's, which was not waited for yet.
            unsafe {
                libc::kill(pid.cast_signed(), libc::SIGTERM);
            }
        }
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir().join("lodged.log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The end of the daemons' log.
    pub fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_TOLD)..].join("\n")
    }

    /// What the daemon wrote for its clients, once it answers.
    pub fn credentials(&self) -> Result<Value, Trouble> {
        let read = fs::read(self.home().join("credentials.json"))
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other));
        read.map_err(|cause| Trouble::System { what: "read the daemon's credentials", cause })
    }

    /// The operator's token; empty when the daemon has not written any.
    pub fn bearer(&self) -> String {
        let token = self.credentials().ok().and_then(|known| Some(known.get("token")?.as_str()?.to_owned()));
        token.unwrap_or_default()
    }

    pub fn target(&self) -> Target {
        Target::Unix(self.home().join("lodge.sock"))
    }

    pub async fn try_client(&self) -> Result<Client, ClientError> {
        self.try_client_with(&self.bearer()).await
    }

    /// With a token that may be another than the operator's.
    pub async fn try_client_with(&self, token: &str) -> Result<Client, ClientError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Client::connect(&self.target(), token).await {
                // A daemon lets those go who say nothing for seconds, as a machine with too much to do may make one.
                Err(ClientError::NoDaemon { cause, .. })
                    if is_closed_by_peer(&cause) && Instant::now() < until => {}
                other => return other,
            }
        }
    }

    /// Writes an agent's directory: an Agentfile and the files beside it.
    pub fn write_agent(&self, name: &str, agentfile: &str, files: &[(&str, &str)]) -> io::Result<PathBuf> {
        let dir = self.dir().join(format!("src-{name}"));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("Agentfile"), agentfile)?;
        for (name, text) in files {
            fs::write(dir.join(name), text)?;
        }
        Ok(dir)
    }

    /// Every keeper of this state directory that is alive, by the keepers' own notes.
    pub fn keepers(&self) -> Vec<i32> {
        let home = self.home();
        let Ok(boxes) = fs::read_dir(home.join("run")) else { return Vec::new() };
        boxes
            .flatten()
            .filter_map(|entry| processes::keeper(&home, entry.file_name().to_str()?))
            .map(|keeper| keeper.pid)
            .collect()
    }

    /// Everything that runs for this state directory, but no daemon.
    fn rest(&self) -> Vec<i32> {
        let found = processes::of(&self.home()).into_iter().map(|(pid, _)| pid);
        self.keepers().into_iter().chain(found).collect()
    }
}

/// Whether the peer closed the connection early.
fn is_closed_by_peer(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Who listens at the other end.
fn peer(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both outlive the call, which writes at most the given length.
    let asked = unsafe {
        let (option, room) = (libc::SO_PEERCRED, (&raw mut peer).cast());
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, room, &raw mut len)
    };
    if asked == -1 { Err(io::Error::last_os_error()) } else { Ok(peer.pid.cast_unsigned()) }
}

impl Drop for Lodge {
    fn drop(&mut self) {
        // A daemon that cannot be ended is found when processes are counted.
        let _ = self.kill9();
        // A keeper takes its tree with it, and one that is just being started is found by its program.
        let until = Instant::now() + PATIENCE;
        let mut rest = self.rest();
        while !rest.is_empty() && Instant::now() < until {
            rest.into_iter().for_each(processes::kill9);
            std::thread::sleep(LOOK_EVERY);
            rest = self.rest();
        }
    }
}
