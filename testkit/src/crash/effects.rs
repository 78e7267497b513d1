//! The process that counts what tools did, and the shell line by which a tool tells it.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::lodge::bin;

/// A running `effect-counter`. Dropping it ends the process.
#[derive(Debug)]
pub struct EffectCounter {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl EffectCounter {
    pub fn spawn(dir: &Path) -> io::Result<Self> {
        let log = dir.join("effects.log");
        let mut child = Command::new(bin("effect-counter"))
            .arg(&log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        match port {
            Some(port) => Ok(EffectCounter { child, port, log }),
            None => {
                child.kill()?;
                child.wait()?;
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("it said {line:?}")))
            }
        }
    }

    /// For `bash -c`: has the effects `<last word of $0>.$1.begin` and `.end`, `$2` seconds apart, and says so.
    pub fn tool_line(&self) -> String {
        let port = self.port;
        format!(
            "say() {{ exec 3<>/dev/tcp/127.0.0.1/{port} && echo \"$1\" >&3 && read -r ok <&3; exec 3>&-; }}; \
             t=\"${{0##* }}.$1\"; say \"$t.begin\"; sleep $2; say \"$t.end\"; echo \"did $t\""
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

impl Drop for EffectCounter {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing to do about that here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
