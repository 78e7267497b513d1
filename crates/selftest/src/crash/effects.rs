//! The process that counts effects of tools, and the shell line that reports one.
//!
//! A line that arrives is appended to the log before it is confirmed with `ok`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::job_plan;
use crate::programs::Programs;
use crate::role::{self, RoleProcess};

/// What makes a tool leave a process behind, and one that does not listen to signals.
pub const LEAVE: &str = "leave";
pub const LEAVE_DEAF: &str = "leave-deaf";
/// The command line of what it leaves. It would outlive every round, and is gone soon where the whole run was killed.
pub const LEFT: &str = "sleep 607";

/// A running counter. Dropping it ends the process.
#[derive(Debug)]
pub struct EffectCounter {
    role: RoleProcess,
    log: PathBuf,
}

impl EffectCounter {
    /// Starts one that writes to `log`.
    pub fn spawn(programs: &Programs, log: PathBuf) -> io::Result<Self> {
        let mut command = programs.role(role::EFFECTS);
        command.arg(&log);
        Ok(EffectCounter { role: RoleProcess::spawn(command)?, log })
    }

    /// For `bash -c`: has the effects `<last word of $0>.$1.begin` and `.end`, `$2` seconds apart, and reports them. If
    /// its process group is killed, its child may die first; then there is no `.end` either. If `$3` is [`LEAVE`] or
    /// [`LEAVE_DEAF`], it leaves a process behind that tries everything to escape.
    pub fn tool_line(&self) -> String {
        let say = self.shell_function();
        format!(
            "{say}t=\"${{0##* }}.$1\"; say \"$t.begin\"; if [ -n \"$3\" ]; then \
             (setsid bash -c '[ $0 = {LEAVE} ] || trap \"\" TERM HUP INT; cd /; export -n $(compgen -e); {LEFT} &' \
             \"$3\" </dev/null >/dev/null 2>&1 &); fi; sleep $2 || exit; say \"$t.end\"; echo \"did $t\""
        )
    }

    /// For `bash -c`, as a job.
    pub fn job_line(&self) -> String {
        format!("{}{}", self.shell_function(), job_plan::job_script())
    }

    /// Of the host's loopback.
    pub fn port(&self) -> u16 {
        self.role.address().port()
    }

    /// Defines the shell function that reports an effect.
    fn shell_function(&self) -> String {
        let port = self.port();
        format!(
            "say() {{ exec 3<>/dev/tcp/127.0.0.1/{port} && echo \"$1\" >&3 && read -r ok <&3; exec 3>&-; }}; "
        )
    }

    /// Every effect so far, in order.
    pub fn seen(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    /// Grows with every effect.
    pub fn bytes(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |meta| meta.len())
    }
}

/// The counter's own life: `arguments` is the log it writes to.
pub(crate) fn count_to(arguments: &[String]) -> io::Result<()> {
    let [log] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "usage: effects LOG"));
    };
    let log = Arc::new(Mutex::new(File::options().create(true).append(true).open(log)?));
    role::end_with_stdin();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    role::listening(listener.local_addr()?)?;
    for stream in listener.incoming() {
        let (stream, log) = (stream?, log.clone());
        std::thread::spawn(move || {
            if let Err(error) = count(&stream, &log) {
                eprintln!("selftest effects: {error}");
            }
        });
    }
    Ok(())
}

/// A connection that breaks is the tool's affair: it may have been killed.
fn count(stream: &TcpStream, log: &Mutex<File>) -> io::Result<()> {
    let mut answers = stream;
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { break };
        // One write per line, so that concurrent readers see complete lines.
        let line = format!("{line}\n");
        log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())?;
        if answers.write_all(b"ok\n").is_err() {
            break;
        }
    }
    Ok(())
}
