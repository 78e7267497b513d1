//! Lines of the daemon in an agent's log, between those of its runtime.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, openat};

use super::actor::Actor;

/// The longest line. The event has the full text.
const LINE_BYTES_MAX: usize = 4_096;
/// How much of the end of the log is searched for the same line.
const TAIL_BYTES: u64 = 64 * 1024;

impl Actor {
    /// Appends a failure to the agent's log. A log that cannot be written is no error: the failure is recorded as an event, too.
    pub(super) async fn note_failure(&self, line: String) {
        if let Err(error) = self.context.files.append_log(&self.agent, line).await {
            tracing::warn!(event = "log.not_written", agent = %self.agent, error);
        }
    }
}

/// Appends a line, unless it is there. Follows no link.
pub(super) fn append(dir: &Path, name: &str, line: &str) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(rustix::fs::CWD, dir, flags, Mode::empty())?;
    let flags = OFlags::RDWR
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let file = openat(&dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    let found = fstat(&file)?;
    if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_file() || found.st_nlink != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the log is not a plain file"));
    }
    let mut file = File::from(file);
    let tail = tail(&mut file)?;
    let line = cut(line);
    if tail.split(|byte| *byte == b'\n').any(|known| known == line.as_bytes()) {
        return Ok(());
    }
    // The last line of the runtime may lack its newline.
    let begin = if tail.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
    file.write_all(format!("{begin}{line}\n").as_bytes())
}

fn tail(file: &mut File) -> io::Result<Vec<u8>> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail)?;
    Ok(tail)
}

fn cut(line: &str) -> &str {
    let mut end = line.len().min(LINE_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(dir: &Path) -> String {
        std::fs::read_to_string(dir.join("a.log")).unwrap()
    }

    #[test]
    fn a_failure_is_a_line_of_its_own_and_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), "a.log", "[t] failed: init: x").unwrap();
        append(dir.path(), "a.log", "[t] failed: init: x").unwrap();
        assert_eq!(log(dir.path()), "[t] failed: init: x\n");
        std::fs::write(dir.path().join("a.log"), "half a word").unwrap();
        append(dir.path(), "a.log", "[t] failed: init: x").unwrap();
        assert_eq!(log(dir.path()), "half a word\n[t] failed: init: x\n");
    }

    #[test]
    fn a_line_is_not_written_through_a_link_or_to_a_special_file() {
        let dir = tempfile::tempdir().unwrap();
        let (logs, other) = (dir.path().join("logs"), dir.path().join("other"));
        std::fs::create_dir(&logs).unwrap();
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, logs.join("a.log")).unwrap();
        assert!(append(&logs, "a.log", "x").is_err());
        std::fs::hard_link(&other, logs.join("b.log")).unwrap();
        assert!(append(&logs, "b.log", "x").is_err());
        std::fs::create_dir(logs.join("c.log")).unwrap();
        assert!(append(&logs, "c.log", "x").is_err());
        std::os::unix::fs::symlink(&logs, dir.path().join("linked")).unwrap();
        assert!(append(&dir.path().join("linked"), "d.log", "x").is_err());
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
    }

    #[test]
    fn a_line_has_an_end_however_much_there_is_to_say() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), "a.log", &"é".repeat(10_000)).unwrap();
        assert_eq!(log(dir.path()).len(), LINE_BYTES_MAX + 1);
    }
}
