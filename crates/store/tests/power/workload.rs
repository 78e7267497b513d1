//! What is done to a database while its every write is recorded, and how it is recognised afterwards.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use lodge_core::Timestamp;
use lodge_core::event::TurnText;
use lodge_core::record::{DAEMON_STREAM, EventRow, RequestRow, Write};
use lodge_store::{OpenedDatabase, WalLimits, open};
use rusqlite::Connection;

/// So short that a few commits reach every way in which the WAL is copied back.
const WAL: WalLimits = WalLimits { checkpoint_pages: 12, rest_pages: 4, restart_pages: 24, stride_pages: 2 };
const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);
const CHECKPOINTS_WITHIN: Duration = Duration::from_secs(30);
/// Commits of one life: what is between opening and closing.
const COMMITS_OF_A_LIFE: u64 = 9;
pub const CALLER: &str = "power";
pub const NEWEST: &str = "newest";
pub const DATABASE: &str = "daemon.db";

/// Opens, commits and closes this many times, continuing from the existing state. Acknowledged commits are noted at
/// once.
pub fn run(dir: &Path, notes: &Path, lives: usize) {
    let mut notes = File::options().create(true).append(true).open(notes).expect("a file of notes");
    let mut note = |line: String| notes.write_all(line.as_bytes()).expect("a note");
    for last in [LastProcess::Reader, LastProcess::Writer].into_iter().cycle().take(lives) {
        note("opening\n".to_owned());
        let OpenedDatabase { mut writer, reader, loaded, .. } =
            open(&dir.join(DATABASE), &[7; 64]).unwrap_or_else(|error| panic!("{error:?}"));
        note(format!("opened {}\n", loaded.epoch));
        writer.limit_wal(WAL);
        let done = commits_up_to(loaded.seq).expect("only whole commits are there");
        for number in done + 1..=done + COMMITS_OF_A_LIFE {
            note(format!("begin {number}\n"));
            drop(writer.commit(&writes(number), ()).expect("a commit"));
            note(format!("ack {number}\n"));
            assert_eq!(reader.here(|snapshot| snapshot.head()).expect("a head"), last_event(number));
        }
        match last {
            LastProcess::Reader => drop((writer, reader)),
            LastProcess::Writer => drop((reader, writer)),
        }
    }
    wait_for_checkpoints();
}

/// A checkpoint that our exit interrupts would write data that the trace lacks.
fn wait_for_checkpoints() {
    let is_one = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "checkpoint")
    };
    let until = Instant::now() + CHECKPOINTS_WITHIN;
    while std::fs::read_dir("/proc/self/task").expect("threads").flatten().any(is_one) {
        assert!(Instant::now() < until, "a copy on the side does not end");
        std::thread::yield_now();
    }
}

/// Who goes last. A reader that does copies the WAL back and removes it.
#[derive(Clone, Copy)]
enum LastProcess {
    Reader,
    Writer,
}

/// A database as the first release would have left it.
pub fn first_release(path: &Path) {
    const COMMITS: u64 = 3;
    let made = Connection::open(path).expect("a database");
    made.pragma_update(None, "page_size", 2_048).expect("a size");
    made.execute_batch(include_str!("../../src/sqlite/migrations/0001.sql")).expect("its tables");
    made.pragma_update(None, "user_version", (1_u32 << 16) | 1).expect("its version");
    made.execute("INSERT INTO meta VALUES ('state-key', ?1), ('log', x'3031')", [[7_u8; 32]])
        .expect("its key");
    made.execute("INSERT INTO counters VALUES ('epoch', 5)", []).expect("its epoch");
    for event in (1..=COMMITS).flat_map(events) {
        let data = event.body.encode();
        let row = (
            event.seq.cast_signed(),
            event.stream,
            event.stream_seq.cast_signed(),
            event.at.ms(),
            event.body.kind().code(),
            data,
        );
        made.execute("INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6)", row).expect("an event");
    }
    for (id, answer) in [(NEWEST, "3"), ("1", "1"), ("2", "2"), ("3", "3")] {
        let row = (CALLER, id, [1_u8; 32], answer.as_bytes(), NOW.ms());
        made.execute("INSERT INTO requests VALUES (?1, ?2, ?3, ?4, ?5)", row).expect("an answer");
    }
}

/// Everything that one commit writes.
fn writes(number: u64) -> Vec<Write> {
    let request = |id: String| {
        let answer = number.to_string().into_bytes();
        Write::Request(RequestRow { caller: CALLER.into(), request_id: id, digest: [1; 32], answer, at: NOW })
    };
    let mut writes = vec![request(NEWEST.to_owned())];
    writes.extend(events(number).into_iter().map(Write::Event));
    writes.push(request(number.to_string()));
    writes
}

/// How many events a commit has, and the bytes of each: one page, many pages, more than the WAL may hold.
fn shape(number: u64) -> (u64, usize) {
    match number % 8 {
        0 => (1, 50_000),
        1 => (1, 20),
        2 => (12, 150),
        3 | 4 => (1, 8_000),
        5 => (3, 1_500),
        6 => (2, 7_000),
        _ => (5, 100),
    }
}

/// The events of one commit. Their text contains its number and their own.
pub fn events(number: u64) -> Vec<EventRow> {
    let (count, bytes) = shape(number);
    let first = last_event(number - 1) + 1;
    let event = |seq: u64| EventRow {
        seq,
        stream: DAEMON_STREAM.into(),
        stream_seq: seq,
        at: NOW,
        body: TurnText { text: format!("{number:03}.{seq:03} ").repeat(bytes / 8), ..TurnText::default() }
            .into(),
    };
    (first..first + count).map(event).collect()
}

/// The last event of a commit.
pub fn last_event(number: u64) -> u64 {
    (1..=number).map(|number| shape(number).0).sum()
}

/// Which commit ends with this event. `None`: none does.
pub fn commits_up_to(seq: u64) -> Option<u64> {
    (0..=seq).find(|number| last_event(*number) >= seq).filter(|number| last_event(*number) == seq)
}
