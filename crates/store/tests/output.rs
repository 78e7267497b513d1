//! What jobs wrote is kept once, byte for byte, and its room is given back.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use lodge_core::{IdSource, JobId, Timestamp};
use lodge_store::{
    OutputChunk, OutputEnds, OutputError, OutputOpenError, OutputOpened, OutputReader, OutputReads,
    OutputStore, OutputStream, OutputWriter, ShrinkState,
};
use rusqlite::Connection;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);
const STREAM: OutputStream = OutputStream::Stdout;
/// For the writer that is killed: where it writes.
const DIR: &str = "LODGE_OUTPUT_DIR";

fn opened(dir: &Path) -> OutputOpened {
    OutputStore::open(dir, NOW).unwrap_or_else(|error| panic!("{error:?}"))
}

fn job(number: u64) -> JobId {
    JobId::new(&mut IdSource::new(number), NOW)
}

/// What a stream has at these places: no two pages of it are alike.
fn bytes(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

fn chunk(job: &JobId, range: std::ops::Range<u64>) -> OutputChunk {
    OutputChunk { job: job.clone(), stream: STREAM, offset: range.start, bytes: bytes(range) }
}

fn append(store: &mut OutputStore, chunks: &[OutputChunk]) {
    drop(store.append(chunks).unwrap_or_else(|error| panic!("{error:?}")));
}

/// Everything from an offset up to the first hole, in pieces.
fn read_all(reader: &OutputReader, job: &JobId, from: u64, piece_bytes: usize) -> (u64, Vec<u8>) {
    let (mut first, mut all) = (None, Vec::new());
    loop {
        let at = first.unwrap_or(from) + all.len() as u64;
        let piece = reader.read(job, STREAM, at, piece_bytes).unwrap();
        assert!(piece.bytes.len() <= piece_bytes);
        if piece.bytes.is_empty() || (first.is_some() && piece.offset != at) {
            return (first.unwrap_or(from), all);
        }
        first.get_or_insert(piece.offset);
        all.extend(piece.bytes);
    }
}

#[test]
fn what_was_appended_is_read_from_any_offset_in_pieces_of_any_size() {
    let dir = tempfile::tempdir().unwrap();
    let OutputOpened { mut store, reader, set_aside } = opened(dir.path());
    assert_eq!(set_aside, None);
    let (a, b) = (job(1), job(2));
    let lengths = [1_u64, 7, 65_536, 262_144, 3, 16_384, 100_000];
    let mut end = 0;
    for length in lengths {
        append(&mut store, &[chunk(&a, end..end + length), chunk(&b, 0..1)]);
        end += length;
    }
    assert_eq!(reader.archived(&a).unwrap(), OutputEnds { stdout: end, ..OutputEnds::default() });
    for from in [0, 1, 7, 8, 65_543, 65_544, 65_545, 300_000, end - 1] {
        for piece_bytes in [1_000_000, 40_000, 65_536] {
            assert_eq!(read_all(&reader, &a, from, piece_bytes), (from, bytes(from..end)), "{from}");
        }
    }
    for past in [end, end + 1, u64::MAX] {
        let piece = reader.read(&a, STREAM, past, 10).unwrap();
        assert_eq!((piece.offset, piece.bytes.len()), (past, 0));
    }
    assert_eq!(reader.bytes(&a).unwrap(), end);
    assert_eq!(reader.read(&job(3), STREAM, 5, 10).unwrap().bytes, Vec::<u8>::new());
    assert_eq!(reader.archived(&job(3)).unwrap(), OutputEnds::default());
}

#[test]
fn the_streams_of_a_job_are_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let OutputOpened { mut store, reader, .. } = opened(dir.path());
    let a = job(1);
    let chunks: Vec<OutputChunk> = OutputStream::ALL
        .into_iter()
        .zip(["out", "error", "o"])
        .map(|(stream, text)| OutputChunk { job: a.clone(), stream, offset: 0, bytes: text.into() })
        .collect();
    append(&mut store, &chunks);
    for written in &chunks {
        assert_eq!(reader.read(&a, written.stream, 0, 100).unwrap().bytes, written.bytes);
        assert_eq!(reader.archived(&a).unwrap().of(written.stream), written.bytes.len() as u64);
    }
}

#[test]
fn a_read_in_a_hole_begins_after_it_and_a_read_before_it_ends_there() {
    let dir = tempfile::tempdir().unwrap();
    let OutputOpened { mut store, reader, .. } = opened(dir.path());
    let a = job(1);
    append(&mut store, &[chunk(&a, 0..10), chunk(&a, 10..20), chunk(&a, 1_000..1_010)]);
    for (from, found) in
        [(0, 0..20), (15, 15..20), (20, 1_000..1_010), (999, 1_000..1_010), (1_005, 1_005..1_010)]
    {
        let piece = reader.read(&a, STREAM, from, 5_000).unwrap();
        assert_eq!((piece.offset, piece.bytes), (found.start, bytes(found)), "{from}");
    }
    assert_eq!(reader.archived(&a).unwrap().stdout, 1_010);
}

#[test]
fn what_is_archived_already_is_not_written_again_wherever_the_chunk_begins() {
    let dir = tempfile::tempdir().unwrap();
    let OutputOpened { mut store, reader, .. } = opened(dir.path());
    let a = job(1);
    append(&mut store, &[chunk(&a, 0..1_000)]);
    append(
        &mut store,
        &[chunk(&a, 0..1_000), chunk(&a, 500..700), chunk(&a, 900..1_200), chunk(&a, 0..1_300)],
    );
    assert_eq!(read_all(&reader, &a, 0, 5_000), (0, bytes(0..1_300)));
    assert_eq!(reader.bytes(&a).unwrap(), 1_300);
}

#[test]
fn removed_output_is_gone_and_the_file_becomes_smaller() {
    const EACH: u64 = 6 << 20;
    let dir = tempfile::tempdir().unwrap();
    let OutputOpened { mut store, reader, .. } = opened(dir.path());
    let jobs: Vec<JobId> = (1..=4).map(job).collect();
    // In turn, so that what goes lies between what stays.
    for start in (0..EACH).step_by(256 << 10) {
        let round: Vec<OutputChunk> = jobs.iter().map(|job| chunk(job, start..start + (256 << 10))).collect();
        append(&mut store, &round);
    }
    let (file, total) = (dir.path().join("output.db"), reader.total_bytes().unwrap());
    assert!((4 * EACH..5 * EACH).contains(&total), "{total}");
    store.remove(&[jobs[0].clone(), jobs[2].clone(), job(9)]).unwrap();
    assert!((2 * EACH..3 * EACH).contains(&reader.total_bytes().unwrap()));
    let mut calls = 0;
    while store.shrink().unwrap() == ShrinkState::Some {
        calls += 1;
        assert!(calls < 10, "it never ends");
    }
    assert!(calls > 0, "one call gives back a part");
    assert!(std::fs::metadata(&file).unwrap().len() < 3 * EACH);
    for (job, kept) in jobs.iter().zip([0, EACH, 0, EACH]) {
        assert_eq!(read_all(&reader, job, 0, 1 << 20), (0, bytes(0..kept)));
    }
    let mut left = [jobs[1].clone(), jobs[3].clone()];
    left.sort();
    assert_eq!(reader.jobs(None, 10).unwrap(), left);
    assert_eq!(reader.jobs(Some(&left[0]), 10).unwrap(), left[1..]);
    assert_eq!(reader.jobs(None, 1).unwrap(), left[..1]);
    assert_eq!(reader.integrity().unwrap(), "ok");
}

#[test]
fn the_wal_stays_below_48_mb_while_somebody_reads() {
    const ROUND: u64 = 20 << 20;
    const ROUNDS: u64 = 6;
    let dir = tempfile::tempdir().unwrap();
    let OutputOpened { mut store, reader, .. } = opened(dir.path());
    let (a, wal) = (job(1), dir.path().join("output.db-wal"));
    let reader = &reader;
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut at = 0;
            while at < ROUND * ROUNDS {
                at += reader.read(&job(1), STREAM, at, 64 << 10).unwrap().bytes.len() as u64;
            }
        });
        for round in 0..ROUNDS {
            let chunk =
                |offset| OutputChunk { job: a.clone(), stream: STREAM, offset, bytes: vec![7; 256 << 10] };
            let chunks: Vec<OutputChunk> =
                (round * ROUND..(round + 1) * ROUND).step_by(256 << 10).map(chunk).collect();
            append(&mut store, &chunks);
            let length = std::fs::metadata(&wal).unwrap().len();
            assert!(length <= 48_000_000, "{length} bytes after round {round}");
        }
        reads.join().unwrap();
    });
}

#[test]
fn a_full_disk_is_reported_and_leaves_everything_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let OutputOpened { mut store, reader, .. } = opened(dir.path());
    let a = job(1);
    append(&mut store, &[chunk(&a, 0..100_000)]);
    store.limit_pages(20);
    let refused = store.append(&[chunk(&a, 100_000..200_000), chunk(&a, 200_000..500_000)]);
    assert!(matches!(refused, Err(OutputError::Full { .. })), "{refused:?}");
    assert_eq!(reader.archived(&a).unwrap().stdout, 100_000);
    store.limit_pages(u32::MAX - 1);
    append(&mut store, &[chunk(&a, 100_000..200_000), chunk(&a, 200_000..500_000)]);
    assert_eq!(read_all(&reader, &a, 0, 1 << 20), (0, bytes(0..500_000)));
}

/// What lies in a directory, by name.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_that_is_no_archive_is_set_aside_unchanged_and_a_new_one_begun() {
    let foreign = |path: &Path| {
        let made = Connection::open(path).unwrap();
        made.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1); PRAGMA user_version = 7").unwrap();
    };
    let garbage = |path: &Path| std::fs::write(path, b"not a database at all ".repeat(1_000)).unwrap();
    let makers: [&dyn Fn(&Path); 2] = [&foreign, &garbage];
    for make in makers {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.db");
        make(&path);
        let before = std::fs::read(&path).unwrap();
        let OutputOpened { mut store, reader, set_aside } = opened(dir.path());
        let set_aside = set_aside.expect("it says so");
        assert_eq!(set_aside.to, dir.path().join(format!("output.db.broken-{}", NOW.ms())));
        assert!(!set_aside.why.is_empty());
        assert_eq!(std::fs::read(&set_aside.to).unwrap(), before);
        append(&mut store, &[chunk(&job(1), 0..10)]);
        assert_eq!(reader.bytes(&job(1)).unwrap(), 10);
        drop((store, reader));
        assert_eq!(opened(dir.path()).set_aside, None, "the new one is an archive");
    }
}

#[test]
fn a_file_of_zeros_that_a_power_failure_left_is_begun_again_without_a_word() {
    for length in [0, 512, 16_384] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("output.db"), vec![0; length]).unwrap();
        assert_eq!(opened(dir.path()).set_aside, None, "{length}");
    }
}

#[test]
fn an_archive_of_a_newer_release_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("output.db");
    drop(opened(dir.path()));
    let newer = Connection::open(&path).unwrap();
    newer.execute_batch("PRAGMA user_version = 131074; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(newer);
    let before = std::fs::read(&path).unwrap();
    let refused = OutputStore::open(dir.path(), NOW);
    assert!(matches!(refused, Err(OutputOpenError::FromTheFuture { needs: 2, known: 1, .. })), "{refused:?}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// A write meets damage in the middle and stops there. Other data is still read.
#[test]
fn damage_that_a_write_meets_stops_the_archive_until_the_next_opening_sets_it_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("output.db");
    let a = job(1);
    let OutputOpened { mut store, reader, .. } = opened(dir.path());
    append(&mut store, &[chunk(&a, 0..2_000_000)]);
    assert_eq!(reader.bytes(&a).unwrap(), 2_000_000);
    drop((store, reader));
    assert_eq!(names(dir.path()), ["output.db"], "a reader that goes last leaves one file");
    let mut broken = std::fs::read(&path).unwrap();
    // All but the first pages, which an opening looks at.
    broken[3 * 16_384..].fill(0xa5);
    std::fs::write(&path, &broken).unwrap();
    let OutputOpened { mut store, reader, set_aside } = opened(dir.path());
    assert_eq!(set_aside, None, "nothing was looked at but the beginning");
    let failed = store.append(&[chunk(&a, 2_000_000..2_100_000)]);
    assert!(matches!(failed, Err(OutputError::Corrupt { .. })), "{failed:?}");
    let stopped = store.append(&[chunk(&job(2), 0..10)]);
    assert!(matches!(stopped, Err(OutputError::InDoubt { .. })), "{stopped:?}");
    drop((store, reader));
    let OutputOpened { mut store, set_aside, .. } = opened(dir.path());
    let set_aside = set_aside.expect("it is damaged");
    assert!(set_aside.to.exists());
    append(&mut store, &[chunk(&job(2), 0..10)]);
    drop(store);
    assert_eq!(opened(dir.path()).set_aside, None);
}

/// Runs alone, and as the process that the other test kills: continues where the archive ends, and notes what was
/// acknowledged.
#[test]
fn a_writer_goes_on_where_the_archive_ends() {
    let own = tempfile::tempdir().unwrap();
    let killed = std::env::var_os(DIR);
    let dir = killed.as_ref().map_or(own.path(), Path::new);
    let OutputOpened { mut store, reader, set_aside } = opened(dir);
    assert_eq!(set_aside, None);
    let a = job(1);
    let mut end = reader.archived(&a).unwrap().stdout;
    // A process that will be killed continues until then.
    let until = if killed.is_some() { u64::MAX } else { end + 1_000_000 };
    while end < until {
        let length = 1 + end % 70_000;
        append(&mut store, &[chunk(&a, end..end + length), chunk(&a, end + length..end + 2 * length)]);
        end += 2 * length;
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nacknowledged {end}").and_then(|()| out.flush()).unwrap();
    }
    assert_eq!(read_all(&reader, &a, 0, 1 << 20), (0, bytes(0..end)));
}

#[test]
fn a_writer_that_is_killed_loses_nothing_it_acknowledged_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let a = job(1);
    let mut least = 0;
    for life in 1..=8 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_writer_goes_on_where_the_archive_ends", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines().map_while(Result::ok);
        let acknowledged = lines.filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        least = acknowledged.take(life * 3).last().expect("it acknowledges");
        writer.kill().unwrap();
        writer.wait().unwrap();
        let OutputOpened { reader, .. } = opened(dir.path());
        let end = reader.archived(&a).unwrap().stdout;
        assert!(end >= least, "{least} bytes were acknowledged, {end} are there");
        assert_eq!(read_all(&reader, &a, 0, 1 << 20), (0, bytes(0..end)));
        assert_eq!(reader.bytes(&a).unwrap(), end);
    }
    assert!(least > 0);
}
