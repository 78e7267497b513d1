//! The same for the archive of job output: what was appended before the power failed is there, once and in order.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use lodge_core::{IdSource, JobId, Timestamp};
use lodge_store::{
    OutputChunk, OutputOpened, OutputReads, OutputStore, OutputStream, OutputWriter, ShrinkState,
};

use crate::check::DatabaseContents;

pub const DATABASE: &str = "output.db";
const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);
const STREAM: OutputStream = OutputStream::Stdout;
/// Commits of one life: what is between opening and closing.
const COMMITS_OF_A_LIFE: u64 = 4;
/// Bytes of one commit, so that some take a page and some take many.
const LENGTHS: [u64; 4] = [40, 20_000, 300, 36_000];

/// Opens, appends and closes this many times, continuing from the existing state. Acknowledged writes are noted at
/// once.
pub fn run(dir: &Path, notes: &Path, lives: usize) {
    let mut notes = File::options().create(true).append(true).open(notes).expect("a file of notes");
    let mut note = |line: String| notes.write_all(line.as_bytes()).expect("a note");
    for _ in 0..lives {
        let OutputOpened { mut store, reader, set_aside } =
            OutputStore::open(dir, NOW).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(set_aside, None);
        let end = reader.archived(&kept()).expect("an end").stdout;
        let done = commits_up_to(end).expect("only whole commits are there");
        for number in done + 1..=done + COMMITS_OF_A_LIFE {
            note(format!("begin {number}\n"));
            drop(store.append(&chunks(number)).expect("a commit"));
            note(format!("ack {number}\n"));
            // What is removed and given back must not take anything else with it.
            store.remove(&[passing(number)]).expect("a removal");
            while store.shrink().expect("room") == ShrinkState::Some {}
        }
    }
}

fn kept() -> JobId {
    JobId::new(&mut IdSource::new(1), NOW)
}

/// A job whose output is removed as soon as it is there.
fn passing(number: u64) -> JobId {
    JobId::new(&mut IdSource::new(number + 1), NOW)
}

fn end_of(number: u64) -> u64 {
    (1..=number).map(|number| LENGTHS[number as usize % LENGTHS.len()]).sum()
}

fn commits_up_to(end: u64) -> Option<u64> {
    (0..).find(|number| end_of(*number) >= end).filter(|number| end_of(*number) == end)
}

fn bytes(from: u64, to: u64) -> Vec<u8> {
    (from..to).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

fn chunks(number: u64) -> [OutputChunk; 2] {
    let (from, to) = (end_of(number - 1), end_of(number));
    let passes = OutputChunk { job: passing(number), stream: STREAM, offset: 0, bytes: vec![7; 17_000] };
    [passes, OutputChunk { job: kept(), stream: STREAM, offset: from, bytes: bytes(from, to) }]
}

/// Opens an archive, which must be sound and hold whole commits in order.
pub fn look_at(dir: &Path) -> Result<DatabaseContents, String> {
    let opened = OutputStore::open(dir, NOW).map_err(|error| format!("it does not open: {error:?}"))?;
    if let Some(set_aside) = opened.set_aside {
        return Err(format!("it was set aside: {set_aside:?}"));
    }
    let reader = opened.reader;
    let sound = reader.integrity().map_err(|error| format!("{error:?}"))?;
    if sound != "ok" {
        return Err(format!("it is not sound: {sound}"));
    }
    let end = reader.archived(&kept()).map_err(|error| format!("{error:?}"))?.stdout;
    let Some(commits) = commits_up_to(end) else { return Err(format!("{end} bytes are no whole commits")) };
    let piece = reader.read(&kept(), STREAM, 0, usize::MAX).map_err(|error| format!("{error:?}"))?;
    if (piece.offset, piece.bytes) != (0, bytes(0, end)) {
        return Err(format!("{commits} commits have other bytes than they wrote"));
    }
    if reader.bytes(&kept()).map_err(|error| format!("{error:?}"))? != end {
        return Err(format!("of {end} bytes some are there twice"));
    }
    Ok(DatabaseContents { commits, identity: None })
}
