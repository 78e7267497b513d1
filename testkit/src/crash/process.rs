//! Processes of a state directory, as the kernel tells of them.

use std::fs;
use std::path::Path;

use crate::lodge::is_alive;

/// One keeper: its pid alone would not say that it is the same process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keeper {
    pub pid: i32,
    /// Clock ticks since boot.
    pub started: u64,
}

/// The living keeper of a sandbox, by its own note and by the kernel's word.
pub fn keeper(home: &Path, sandbox: &str) -> Option<Keeper> {
    let note = fs::read_to_string(home.join("run").join(sandbox).join("pid")).ok()?;
    let (pid, started) = note.trim().split_once(' ')?;
    let noted = Keeper { pid: pid.parse().ok()?, started: started.parse().ok()? };
    (started_at(noted.pid)? == noted.started && is_alive(noted.pid)).then_some(noted)
}

fn started_at(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything; the start is the 20th field after it.
    stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()
}

/// Every living process whose command line names something in this state directory, except daemons.
pub fn all_of(home: &Path) -> Vec<(i32, String)> {
    let prefix = home.to_string_lossy().into_owned();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&bytes).replace('\0', " ");
            (line.starts_with(&prefix) && is_alive(pid)).then_some((pid, line))
        })
        .collect()
}

/// How many of these are keepers. One that is about to become a tool counts for a moment.
pub fn keepers_in(processes: &[(i32, String)]) -> usize {
    processes.iter().filter(|(_, line)| line.contains("/bin/keeper-")).count()
}
