//! Files of a job that are read, given back and replaced while it writes them, and those that an enemy left.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};

use lodge_exec::{Evidence, ExecStream, Executor, KeeperCommand, SandboxReadError};
use rustix::fs::FallocateFlags;

use crate::home::{BOX, SandboxHome, exited, until};
use crate::jobs::{read_all, seq};

/// Whether files here can have holes made.
fn has_holes(home: &SandboxHome) -> bool {
    let path = home.state().join("probe");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 0, 1 << 19).is_ok()
}

fn is_over(home: &SandboxHome, job: &str) -> bool {
    matches!(home.host.evidence(BOX, job), Evidence::Exited(_))
}

#[tokio::test]
async fn a_reader_gets_no_wrong_byte_while_segments_are_replaced() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let whole = seq(1_500_000);
    link.send(&KeeperCommand::Start(home.job("j1", "seq 1 1500000", (100_000, 8192)))).await.unwrap();
    // By then what follows the head is gone, so that the reader has to go on from somewhere else.
    until("it dropped something", || {
        home.host.job_totals(BOX, "j1").is_ok_and(|totals| totals.stdout.dropped() > 0)
    })
    .await;
    let (mut at, mut jumps) = (0, 0);
    loop {
        let was_over = is_over(&home, "j1");
        let read = home.host.job_read(BOX, "j1", ExecStream::Stdout, at as u64, 3000).unwrap();
        let offset = read.offset as usize;
        assert!(read.bytes == whole[offset..offset + read.bytes.len()], "wrong bytes at {offset}");
        jumps += usize::from(offset > at);
        at = offset + read.bytes.len();
        if was_over && read.bytes.is_empty() {
            break;
        }
    }
    assert_eq!(at, whole.len());
    assert!(jumps > 0);
    let totals = home.host.job_totals(BOX, "j1").unwrap().stdout;
    assert_eq!((totals.head, totals.end), (100_000, whole.len() as u64));
    exited(&mut link, "j1").await;
}

#[tokio::test]
async fn what_was_stored_elsewhere_is_given_back_while_the_job_writes_and_is_never_read_as_zeroes() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let whole = seq(1_500_000);
    link.send(&KeeperCommand::Start(home.job("j1", "seq 1 1500000", (8 << 20, 1 << 20)))).await.unwrap();
    until("it began", || home.host.job_totals(BOX, "j1").is_ok_and(|totals| totals.stdout.end > 0)).await;
    std::thread::scope(|scope| {
        // Stores what is final, and gives it back.
        scope.spawn(|| {
            loop {
                let was_over = is_over(&home, "j1");
                let head = home.host.job_totals(BOX, "j1").unwrap().stdout.head;
                home.host.job_release(BOX, "j1", ExecStream::Stdout, head).unwrap();
                if was_over {
                    break;
                }
            }
        });
        // Reads from the beginning and from wherever something is.
        loop {
            let was_over = is_over(&home, "j1");
            for from in [0, 100_000, 5_000_000] {
                let read = home.host.job_read(BOX, "j1", ExecStream::Stdout, from, 200_000).unwrap();
                let (offset, len) = (read.offset as usize, read.bytes.len());
                assert!(read.offset >= from.max(read.released));
                assert!(read.bytes == whole[offset..offset + len], "wrong bytes at {offset}");
            }
            if was_over {
                break;
            }
        }
    });
    let record = exited(&mut link, "j1").await;
    assert_eq!(record.stdout.seen, whole.len() as u64);
    let head = fs::metadata(home.exec_dir("j1").join("stdout")).unwrap();
    assert_eq!(head.len(), 8 << 20);
    if has_holes(&home) {
        assert!(head.blocks() * 512 <= 128 * 1024, "{} blocks", head.blocks());
    }
    let totals = home.host.job_totals(BOX, "j1").unwrap().stdout;
    assert_eq!((totals.head, totals.released), (8 << 20, 8 << 20));
    let pieces = read_all(&home.host, "j1", ExecStream::Stdout, 1 << 20);
    assert_eq!(pieces.len(), 1);
    assert!(pieces[0].1 == whole[pieces[0].0 as usize..] && totals.tail_from == Some(pieces[0].0));
    // Whole segments go, and the last one stays until it is forgotten.
    home.host.job_release(BOX, "j1", ExecStream::Stdout, totals.end).unwrap();
    let after = home.host.job_totals(BOX, "j1").unwrap().stdout;
    assert!(after.tail_from > totals.tail_from && after.end == totals.end && after.dropped() == 0);
    assert_eq!(read_all(&home.host, "j1", ExecStream::Stdout, 100), []);
}

#[test]
fn segments_that_a_keeper_had_no_time_to_remove_are_not_read_as_the_end_of_what_was_written() {
    let home = SandboxHome::new();
    let dir = home.exec_dir("j1");
    fs::create_dir_all(&dir).unwrap();
    for (name, bytes) in [("stdout", "abc"), ("stdout.3", "de"), ("stdout.5", "fg"), ("stdout.11", "")] {
        fs::write(dir.join(name), bytes).unwrap();
    }
    let read = || read_all(&home.host, "j1", ExecStream::Stdout, 100);
    let totals = || home.host.job_totals(BOX, "j1").unwrap().stdout;
    // Killed when it had begun the segment behind some that it had passed over.
    assert_eq!(read(), [(0, b"abc".to_vec())]);
    assert_eq!((totals().end, totals().dropped()), (11, 8));
    fs::write(dir.join("stdout.11"), "l").unwrap();
    assert_eq!(read(), [(0, b"abc".to_vec()), (11, b"l".to_vec())]);
    assert_eq!((totals().end, totals().dropped()), (12, 8));
    // Killed when it had begun the one behind two that follow each other.
    fs::remove_file(dir.join("stdout.11")).unwrap();
    fs::write(dir.join("stdout.7"), "").unwrap();
    assert_eq!(read(), [(0, b"abcdefg".to_vec())]);
    assert_eq!((totals().end, totals().dropped()), (7, 0));
}

#[test]
fn files_of_a_job_that_are_no_plain_files_are_refused() {
    let home = SandboxHome::new();
    let dir = home.exec_dir("j1");
    let read = |offset| home.host.job_read(BOX, "j1", ExecStream::Stdout, offset, 100);
    assert!(matches!(read(0), Err(SandboxReadError::Absent { .. })));
    fs::create_dir_all(&dir).unwrap();
    fs::write(home.state().join("secret"), "secret").unwrap();
    for (name, offset) in [("stdout", 0), ("stdout.9", 9), ("released", 0)] {
        symlink(home.state().join("secret"), dir.join(name)).unwrap();
        assert!(matches!(read(offset), Err(SandboxReadError::NotPlain { .. })), "{name}");
        fs::remove_file(dir.join(name)).unwrap();
        fs::hard_link(home.state().join("secret"), dir.join(name)).unwrap();
        assert!(matches!(read(offset), Err(SandboxReadError::NotPlain { .. })), "{name}");
        fs::remove_file(dir.join(name)).unwrap();
    }
    symlink(home.state().join("secret"), dir.join("order")).unwrap();
    assert!(matches!(home.host.job_order(BOX, "j1", 0), Err(SandboxReadError::NotPlain { .. })));
    for bad in ["../box", "", "a/b"] {
        assert!(matches!(home.host.job_totals(BOX, bad), Err(SandboxReadError::BadId { .. })));
    }
    // Names that are none of a segment say nothing.
    fs::write(dir.join("stdout.07"), "x").unwrap();
    fs::write(dir.join("stdout.x"), "x").unwrap();
    assert_eq!(read(0).unwrap().bytes, b"");
}
