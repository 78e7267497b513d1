//! Where the other task daemons come from: pueue is built into `target/tools`, task-spooler is the distribution's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::proc;
use crate::table::BenchTable;

/// The newest that builds with the Rust this workspace asks for.
const PUEUE_VERSION: &str = "4.0.4";
/// The directories in which a distribution puts programs.
const PROGRAM_DIRS: [&str; 2] = ["/usr/bin", "/usr/local/bin"];

/// What may be done about a peer that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingPeer {
    Install,
    /// A smoke run changes nothing on its machine and asks nothing of the network.
    Leave,
}

/// The programs of pueue.
#[derive(Debug, Clone)]
pub(crate) struct PueueTool {
    pub(crate) client: PathBuf,
    pub(crate) daemon: PathBuf,
}

/// The program of task-spooler: daemon and client are one.
#[derive(Debug, Clone)]
pub(crate) struct TspTool {
    pub(crate) program: PathBuf,
}

#[derive(Debug, Clone)]
pub(crate) struct PeerTools {
    pub(crate) pueue: Option<PueueTool>,
    pub(crate) tsp: Option<TspTool>,
}

impl PeerTools {
    /// Finds the peers, and says of each which version it is, or why it does not run.
    pub(crate) fn find(missing: MissingPeer, table: &mut BenchTable) -> PeerTools {
        let pueue = find_peer(pueue(missing, table), "pueue", table);
        let tsp = find_peer(tsp(missing, table), "task-spooler", table);
        if let Some(tool) = &pueue {
            table.note(&format!("beside {}", version(&tool.client, "--version")));
        }
        if let Some(tool) = &tsp {
            table.note(&format!("beside {}", version(&tool.program, "-V")));
        }
        PeerTools { pueue, tsp }
    }
}

fn find_peer<T>(looked: Result<T, String>, name: &str, table: &mut BenchTable) -> Option<T> {
    match looked {
        Ok(tool) => Some(tool),
        Err(why) => {
            table.not_run(name, &why);
            None
        }
    }
}

fn pueue(missing: MissingPeer, table: &BenchTable) -> Result<PueueTool, String> {
    let root = tools_dir()?;
    let tool = PueueTool { client: root.join("bin/pueue"), daemon: root.join("bin/pueued") };
    let is_there = || tool.daemon.is_file() && version(&tool.client, "--version").contains(PUEUE_VERSION);
    if is_there() {
        return Ok(tool);
    }
    match missing {
        MissingPeer::Leave => Err(format!("version {PUEUE_VERSION} is not in {}", root.display())),
        MissingPeer::Install => {
            table.note(&format!("building pueue {PUEUE_VERSION} into {}, once", root.display()));
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["install", "--quiet", "--locked", "--force", "--version", PUEUE_VERSION, "--root"]);
            // Elsewhere, so that neither this workspace's settings nor its target directory are used.
            cargo.arg(&root).arg("pueue").current_dir("/").env_remove("CARGO_TARGET_DIR");
            ran(&mut cargo)?;
            if is_there() { Ok(tool) } else { Err("it was built, and is not there".to_owned()) }
        }
    }
}

fn tsp(missing: MissingPeer, table: &BenchTable) -> Result<TspTool, String> {
    let look = || PROGRAM_DIRS.iter().map(|dir| Path::new(dir).join("tsp")).find(|path| path.is_file());
    if let Some(program) = look() {
        return Ok(TspTool { program });
    }
    match missing {
        MissingPeer::Leave => Err("`tsp` is not installed".to_owned()),
        MissingPeer::Install if !proc::is_root() => Err("only root can install it".to_owned()),
        MissingPeer::Install => {
            table.note("installing task-spooler with apt-get");
            let mut apt = Command::new("apt-get");
            apt.args(["install", "-y", "-q", "task-spooler"]).env("DEBIAN_FRONTEND", "noninteractive");
            ran(&mut apt)?;
            look().map(|program| TspTool { program }).ok_or_else(|| "installed, and not there".to_owned())
        }
    }
}

/// `target/tools`, wherever the target directory of this program is.
fn tools_dir() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = exe.parent().and_then(Path::parent).ok_or("this program lies in no target directory")?;
    Ok(target.join("tools"))
}

/// Runs an installer; its last words when it fails.
fn ran(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("`{name}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("`{name}` ended with {}: {last}", output.status))
}

fn version(program: &Path, flag: &str) -> String {
    let output = Command::new(program).arg(flag).stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("an unknown version").to_owned()
}
