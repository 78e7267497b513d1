//! What this machine can do at best: the floors that everything else is printed beside.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::sample::Sample;

const PAGE: usize = 4096;
const PACKET: usize = 128;
/// The file is recreated before it grows large.
const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The means to measure a floor at any time.
#[derive(Debug)]
pub(crate) struct Floors {
    dir: tempfile::TempDir,
    file: File,
    written: usize,
    echo: UnixStream,
}

/// One reading of all floors.
#[derive(Debug)]
pub(crate) struct Readings {
    pub(crate) fsync: Sample,
    pub(crate) spawn: Sample,
    pub(crate) socket: Sample,
}

impl Floors {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("lodge-floor-").tempdir().expect("a temporary directory");
        let file = File::create(dir.path().join("appended")).expect("a file");
        let (echo, mut other) = UnixStream::pair().expect("a pair of sockets");
        // Ends when our end of the pair is dropped.
        std::thread::spawn(move || {
            let mut packet = [0; PACKET];
            while other.read_exact(&mut packet).and_then(|()| other.write_all(&packet)).is_ok() {}
        });
        Floors { dir, file, written: 0, echo }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.dir.path().parent().unwrap_or(Path::new("/")).to_owned()
    }

    /// `fdatasync` after appending 4 KB, on the disk that holds the state directories.
    pub(crate) fn fsync(&mut self, rounds: usize) -> Sample {
        let mut sample = Sample::default();
        let page = [7; PAGE];
        for _ in 0..rounds {
            if self.written >= FILE_BYTES_MAX {
                self.file = File::create(self.dir.path().join("appended")).expect("a file");
                self.written = 0;
            }
            let from = Instant::now();
            self.file.write_all(&page).expect("a written page");
            self.file.sync_data().expect("a flushed page");
            sample.push(from.elapsed());
            self.written += PAGE;
        }
        sample
    }

    pub(crate) fn spawn(&self, rounds: usize) -> Sample {
        let mut sample = Sample::default();
        for _ in 0..rounds {
            let from = Instant::now();
            let status = Command::new("true").stdin(Stdio::null()).status().expect("`true` runs");
            sample.push(from.elapsed());
            assert!(status.success(), "`true` is false here");
        }
        sample
    }

    /// 128 bytes there and back between two threads.
    pub(crate) fn socket(&mut self, rounds: usize) -> Sample {
        let mut sample = Sample::default();
        let mut packet = [0; PACKET];
        for _ in 0..rounds {
            let from = Instant::now();
            self.echo.write_all(&packet).expect("a sent packet");
            self.echo.read_exact(&mut packet).expect("a packet back");
            sample.push(from.elapsed());
        }
        sample
    }

    pub(crate) fn measure_all(&mut self, rounds: usize) -> Readings {
        self.fsync(rounds / 10 + 1);
        self.socket(rounds / 10 + 1);
        Readings { fsync: self.fsync(rounds), spawn: self.spawn(rounds / 4 + 1), socket: self.socket(rounds) }
    }
}
