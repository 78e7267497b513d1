//! Starting a daemon when none answers, and waiting until it does.
//!
//! Owns: finding `lodged`, detaching it, reading its log when it fails. Never: deciding whether to start one.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lodge_proto::client::{Client, ClientError};
use lodge_proto::state_dir::check_program;
use lodge_proto::{Empty, GetInfo};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::connect::{DaemonAddress, is_absent};
use crate::failure::{CommandExit, CommandFailure, io_words};
use crate::words::Words;

/// How long a daemon may take from its start until it answers.
const START_MAX: Duration = Duration::from_secs(15);
/// How long we still hope for another daemon after ours ended for a reason of its own.
const LOSER_GRACE: Duration = Duration::from_secs(2);
/// A daemon that lost the lock is started again this often, in case the winner was about to exit.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
const DIAL_PAUSE_MIN: Duration = Duration::from_millis(10);
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(100);
/// What of the log is shown when the daemon did not come up.
const LOG_LINES_SHOWN: usize = 8;
const LOG_BYTES_READ: u64 = 16 * 1024;
/// How `lodged` exits when another one holds the state directory.
const LODGED_ALREADY_RUNNING: i32 = 75;

/// Starts a daemon for this address and returns a connection to it, or to the one that was faster.
pub(crate) async fn start(address: &DaemonAddress, words: &Words) -> Result<Client, CommandFailure> {
    let deadline = Instant::now() + START_MAX;
    let mut daemon = StartedDaemon::spawn(&address.state_dir)?;
    let mut give_up = deadline;
    let mut pause = DIAL_PAUSE_MIN;
    loop {
        let dialled = address.dial().await;
        let ended = daemon.ended()?;
        match dialled {
            Ok(mut client) => {
                if ended.is_none() {
                    let state = address.state_dir.display();
                    words.print_note(&format!("started lodged (pid {}) on {state}", daemon.pid));
                    print_taken_port(&mut client, words).await;
                }
                return Ok(client);
            }
            Err(error) if !may_become_ready(&error, address) => return Err(error.into()),
            Err(error) if Instant::now() >= give_up => return Err(daemon.failure(ended, error)),
            Err(_) => {}
        }
        match ended {
            Some(LODGED_ALREADY_RUNNING) if daemon.born.elapsed() >= RESTART_PAUSE => {
                daemon = StartedDaemon::spawn(&address.state_dir)?;
            }
            Some(LODGED_ALREADY_RUNNING) | None => {}
            Some(_) => give_up = give_up.min(Instant::now() + LOSER_GRACE),
        }
        sleep(pause).await;
        pause = (pause * 2).min(DIAL_PAUSE_MAX);
    }
}

/// Says that the daemon works without its TCP listener. The command does not depend on it.
async fn print_taken_port(client: &mut Client, words: &Words) {
    let Ok(info) = client.call::<GetInfo>(&Empty {}).await else { return };
    if let (Some(addr), "taken") = (&info.http.addr, info.http.state.as_str()) {
        words.print_note(&format!(
            "{addr} is taken by another program, so the daemon serves only its socket; commands work as usual \
             (`http-addr` in lodged.yaml chooses another port, `no-http: true` needs none)"
        ));
    }
}

/// Whether a refusal may be over in a moment: not listening yet, or listening before its token was written.
fn may_become_ready(error: &ClientError, address: &DaemonAddress) -> bool {
    match error {
        ClientError::Handshake { status: Some(401), .. } => address.login().is_empty(),
        _ => is_absent(error),
    }
}

/// A daemon that we started.
struct StartedDaemon {
    /// Kept so that the runtime collects the process when it ends. Otherwise it would stay a zombie.
    child: Child,
    pid: u32,
    born: Instant,
    log: PathBuf,
    /// Where its own lines begin.
    log_start: u64,
}

impl StartedDaemon {
    fn spawn(state_dir: &Path) -> Result<StartedDaemon, CommandFailure> {
        let (log, file) = open_log(state_dir).map_err(|cause| {
            could_not_start(format!("the state directory {} cannot be written", state_dir.display()))
                .because(io_words(&cause))
                .hint("set LODGE_HOME to a directory that you can write; it needs a local file system")
        })?;
        let program = on_path(find_lodged(), std::env::var_os("PATH").as_deref());
        let spawned = file.metadata().and_then(|meta| {
            let (_open, runs) = open_program(&program)?;
            let child = detached(&runs, &program, state_dir, file)?.spawn()?;
            Ok((child, meta.len()))
        });
        let (child, log_start) = spawned.map_err(|cause| {
            could_not_start(format!("`{}` cannot be run", program.display())).because(io_words(&cause)).hint(
                "put `lodged` beside `lodge` or on the PATH, or start it yourself and use `--no-autostart`",
            )
        })?;
        let pid = child.id().unwrap_or_default();
        Ok(StartedDaemon { child, pid, born: Instant::now(), log, log_start })
    }

    /// Its exit code, when it has ended; -1 when a signal ended it.
    fn ended(&mut self) -> Result<Option<i32>, CommandFailure> {
        match self.child.try_wait() {
            Ok(status) => Ok(status.map(|status| status.code().unwrap_or(-1))),
            Err(cause) => Err(could_not_start("its state is unknown").because(cause)),
        }
    }

    fn failure(&self, ended: Option<i32>, last: ClientError) -> CommandFailure {
        let failure = match (ended, last) {
            (Some(code), _) if code >= 0 => could_not_start(format!("lodged exited with code {code}")),
            (Some(_), _) => could_not_start("lodged was killed"),
            (None, ClientError::NoDaemon { target, .. }) => {
                could_not_start(format!("lodged does not answer at {target} after {} s", START_MAX.as_secs()))
            }
            (None, other) => could_not_start(other),
        };
        let (causes, hint) = parse_error_output(&tail(&self.log, self.log_start).unwrap_or_default());
        let see = format!("see {}, or run `lodged serve` to watch it", self.log.display());
        failure.because(causes.join("\n")).hint(hint.unwrap_or(see))
    }
}

/// The output of a daemon before it ended: its error and causes, and its hint if it has one.
fn parse_error_output(text: &str) -> (Vec<String>, Option<String>) {
    let (mut causes, mut hint) = (Vec::new(), None);
    for line in text.lines() {
        if let Some(told) = line.strip_prefix("hint: ") {
            hint = Some(told.to_owned());
        } else {
            let told = line.trim_start();
            let told =
                told.strip_prefix("error: ").or_else(|| told.strip_prefix("because: ")).unwrap_or(told);
            causes.push(told.to_owned());
        }
    }
    (causes, hint)
}

fn could_not_start(cause: impl ToString) -> CommandFailure {
    CommandFailure::new(CommandExit::NoDaemon, "could not start the daemon").because(cause)
}

/// The `lodged` in the directory of this program, otherwise the one on the PATH.
pub(crate) fn find_lodged() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("lodged")));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("lodged"))
}

/// A bare name as the PATH has it.
pub(crate) fn on_path(program: PathBuf, path: Option<&std::ffi::OsStr>) -> PathBuf {
    if program.components().count() > 1 {
        return program;
    }
    let dirs = path.into_iter().flat_map(std::env::split_paths).filter(|dir| dir.is_absolute());
    let mut found = dirs.map(|dir| dir.join(&program));
    found.find(|path| path.is_file()).unwrap_or(program)
}

/// Opens a program that no other user can change, and says by which path exactly that file is run. It must stay open until then.
///
/// The owner of this program may own it as well: we run what is his already.
fn open_program(program: &Path) -> io::Result<(File, PathBuf)> {
    let mut file = File::open(program)?;
    let own = std::env::current_exe().and_then(|exe| exe.metadata()).map(|meta| meta.uid());
    check_program(&file, own.ok()).map_err(io::Error::other)?;
    let mut start = [0; 2];
    // A script is read again by its interpreter, by its name.
    if file.read(&mut start)? == 2 && &start == b"#!" {
        return Ok((file, program.to_owned()));
    }
    let runs = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, runs))
}

fn open_log(state_dir: &Path) -> io::Result<(PathBuf, File)> {
    let dir = state_dir.join("logs");
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    let path = dir.join("lodged.log");
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
    Ok((path, file))
}

fn detached(runs: &Path, program: &Path, state_dir: &Path, log: File) -> io::Result<Command> {
    let mut command = Command::new(runs);
    command
        .arg0(program)
        .arg("serve")
        // The daemon must use the state directory in which we look for its socket, regardless of the rest of the
        // environment.
        .env_remove("LODGED_DATA_DIR")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(false);
    // The default place is not mentioned: `info` shows it.
    let default = std::env::var_os("HOME").map(|home| Path::new(&home).join(".lodge"));
    if default.as_deref() != Some(state_dir) || std::env::var_os("LODGE_HOME").is_some() {
        command.env("LODGE_HOME", state_dir);
    }
    // SAFETY: between fork and exec only setsid runs, which is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| {
            // It can only fail for a process that leads a group already, which a fresh child does not.
            if libc::setsid() == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    Ok(command)
}

/// The last lines written after `start`.
fn tail(log: &Path, start: u64) -> io::Result<String> {
    let mut file = File::open(log)?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(start.max(end.saturating_sub(LOG_BYTES_READ)).min(end)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_READ).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    Ok(lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_daemon_said_before_it_ended_is_reported_once_and_its_hint_as_a_hint() {
        let said = "error: could not listen on 127.0.0.1:1\n  because: in use\n\nhint: choose another\n";
        let (causes, hint) = parse_error_output(said);
        assert_eq!(
            causes.iter().filter(|cause| !cause.is_empty()).collect::<Vec<_>>(),
            ["could not listen on 127.0.0.1:1", "in use"]
        );
        assert_eq!(hint.as_deref(), Some("choose another"));
    }
}
