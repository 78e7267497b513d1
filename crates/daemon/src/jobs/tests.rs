//! Output on its way from files into the archive, cut off at every step.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use lodge_core::job::{JobProgress, JobRequest, JobRow, JobState, JobStreamBytes};
use lodge_core::{JobId, Timestamp};
use lodge_exec::{StreamKind, SystemExecutor};

use super::JobFileLayout;
use super::archiver::{
    ArchiveRemainder, ArchiveRequest, ArchiveTask, Archiver, JobOutputLayout, NotArchived,
};
use super::db::ArchiveDb;
use super::read::{JobOutputSource, OutputSelection};

const SANDBOX: &str = "box";

/// Marks of the order in which two streams speak, as a keeper makes them.
#[derive(Debug)]
pub(super) struct Marks {
    turn: StreamKind,
    run: u64,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { turn: StreamKind::Stdout, run: 0 }
    }
}

impl Marks {
    pub(super) fn spoke(&mut self, who: StreamKind, len: u64) -> Vec<u8> {
        if who == self.turn {
            self.run += len;
            return Vec::new();
        }
        let (mut run, mut mark) = (std::mem::replace(&mut self.run, len), Vec::new());
        while run >= 0x80 {
            mark.push((run & 0x7f) as u8 | 0x80);
            run >>= 7;
        }
        mark.push(run as u8);
        self.turn = who;
        mark
    }
}

/// A job's files as a keeper writes them, and an archive.
struct JobsWorld {
    dir: tempfile::TempDir,
    host: Arc<SystemExecutor>,
    row: JobRow,
    marks: Marks,
    /// What was written, and may have been dropped since.
    streams: [Vec<u8>; 2],
    merged: Vec<u8>,
    next: u8,
}

impl JobsWorld {
    fn new(output_bytes: u64) -> JobsWorld {
        let dir = tempfile::tempdir().unwrap();
        let host = Arc::new(SystemExecutor::open(dir.path(), &b"keeper"[..]).unwrap());
        let request = JobRequest { output_bytes, ..JobRequest::default() };
        let row = JobRow {
            id: "job_1".parse().unwrap(),
            agent: "agt_1".parse().unwrap(),
            session: None,
            priority: 0,
            created_at: Timestamp::from_ms(1),
            request,
            progress: JobProgress { state: JobState::Running, ..JobProgress::pending() },
            archived: false,
            told: false,
            output_removed: false,
        };
        let world = JobsWorld {
            dir,
            host,
            row,
            marks: Marks::default(),
            streams: [Vec::new(), Vec::new()],
            merged: Vec::new(),
            next: 0,
        };
        fs::create_dir_all(world.job_dir()).unwrap();
        world
    }

    fn job_dir(&self) -> PathBuf {
        self.dir.path().join("run").join(SANDBOX).join("exec/job_1")
    }

    /// Writes this many bytes, no two runs of which are equal.
    fn say(&mut self, who: StreamKind, len: usize) {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                self.next = self.next.wrapping_mul(5).wrapping_add(13);
                self.next
            })
            .collect();
        let (of, name) = match who {
            StreamKind::Stdout => (0, "stdout"),
            StreamKind::Stderr => (1, "stderr"),
        };
        let mark = self.marks.spoke(who, len as u64);
        self.streams[of].extend(&bytes);
        self.merged.extend(&bytes);
        append(&self.job_dir().join("order"), &mark);
        self.put(of, name, &bytes);
    }

    /// Appends to the head, and beyond it to segments of which the last two are kept.
    fn put(&self, of: usize, name: &str, mut bytes: &[u8]) {
        let layout = JobFileLayout::of(&self.row);
        let mut at = (self.streams[of].len() - bytes.len()) as u64;
        while !bytes.is_empty() {
            let (file, upto) = if at < layout.head {
                (name.to_owned(), layout.head)
            } else {
                let base = layout.head + (at - layout.head) / layout.segment * layout.segment;
                if at == base && base >= layout.head + 2 * layout.segment {
                    let old = format!("{name}.{}", base - 2 * layout.segment);
                    drop(fs::remove_file(self.job_dir().join(old)));
                }
                (format!("{name}.{base}"), base + layout.segment)
            };
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(upto - at).unwrap()));
            append(&self.job_dir().join(file), now);
            (at, bytes) = (at + now.len() as u64, later);
        }
    }

    fn end(&mut self) {
        let layout = JobFileLayout::of(&self.row);
        let stream = |bytes: &Vec<u8>| {
            let seen = bytes.len() as u64;
            let tail = seen.saturating_sub(layout.head);
            let kept_tail = match tail / layout.segment {
                0 => tail,
                _several => layout.segment + (tail - 1) % layout.segment + 1,
            };
            JobStreamBytes { seen, kept: seen.min(layout.head) + kept_tail.min(tail) }
        };
        (self.row.progress.stdout, self.row.progress.stderr) =
            (stream(&self.streams[0]), stream(&self.streams[1]));
        self.row.progress.state = JobState::Done;
    }

    fn archiver(&self) -> Archiver {
        Archiver::new(self.host.clone(), Arc::new(ArchiveDb::new(self.dir.path())))
    }

    fn task(&self, want: ArchiveRequest) -> ArchiveTask {
        let placed = JobOutputLayout { sandbox: SANDBOX.to_owned(), head: JobFileLayout::of(&self.row).head };
        ArchiveTask { job: self.row.id.clone(), placed, want }
    }

    /// One round, interrupted after this many steps.
    fn round(&self, archiver: &mut Archiver, want: ArchiveRequest, steps: usize) -> ArchiveRemainder {
        let batch = archiver.gather(vec![self.task(want)]).unwrap();
        if steps > 0 {
            archiver.write(&batch).unwrap();
        }
        if steps > 1 {
            archiver.release(&batch);
        }
        batch.parts[0].left
    }

    /// Everything there is of an output, in pieces of a length, each with where it begins.
    fn read(&self, pick: OutputSelection, len_max: usize) -> Vec<(u64, Vec<u8>)> {
        let db = ArchiveDb::new(self.dir.path());
        let sandbox = (!self.row.archived).then(|| SANDBOX.to_owned());
        let output = JobOutputSource { executor: &*self.host, db: &db, row: &self.row, sandbox };
        let (mut pieces, mut at) = (Vec::new(), 0);
        loop {
            let piece = output.piece(pick, at, len_max).unwrap();
            let is_last = piece.end || piece.bytes.is_empty();
            at = piece.offset + piece.bytes.len() as u64;
            if !piece.bytes.is_empty() {
                pieces.push((piece.offset, piece.bytes));
            }
            if is_last {
                return pieces;
            }
        }
    }

    /// Everything that is read was written there, and enough of it is kept.
    fn check(&self, what: &str) {
        let layout = JobFileLayout::of(&self.row);
        for (pick, written) in [
            (OutputSelection::Stdout, &self.streams[0]),
            (OutputSelection::Stderr, &self.streams[1]),
            (OutputSelection::Merged, &self.merged),
        ] {
            for len_max in [10_007, 1 << 20] {
                let pieces = self.read(pick, len_max);
                let mut kept = 0;
                for (offset, bytes) in &pieces {
                    let from = usize::try_from(*offset).unwrap();
                    assert_eq!(bytes, &written[from..from + bytes.len()], "{what}: {pick:?} at {from}");
                    kept += bytes.len();
                }
                let dropped: usize = self
                    .streams
                    .iter()
                    .map(|bytes| {
                        let tail = (bytes.len() as u64).saturating_sub(layout.head);
                        let segments = tail.div_ceil(layout.segment);
                        usize::try_from(segments.saturating_sub(2) * layout.segment).unwrap()
                    })
                    .sum();
                if pick == OutputSelection::Merged {
                    assert_eq!(kept, written.len() - dropped, "{what}: {pick:?} by {len_max}");
                }
            }
        }
    }
}

fn append(path: &std::path::Path, bytes: &[u8]) {
    use std::io::Write;
    if !bytes.is_empty() {
        fs::File::options().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
    }
}

fn talk(world: &mut JobsWorld, lens: &[usize]) {
    for (index, len) in lens.iter().enumerate() {
        world.say(if index % 2 == 0 { StreamKind::Stdout } else { StreamKind::Stderr }, *len);
    }
}

#[test]
fn every_byte_is_read_as_it_was_written_wherever_the_move_to_the_archive_was_cut_off() {
    for (first, second) in (0..=2).flat_map(|first| (0..=2).map(move |second| (first, second))) {
        let mut world = JobsWorld::new(400 << 10);
        talk(&mut world, &[70_000, 300, 5_000, 90_000]);
        world.check("before anything");
        world.round(&mut world.archiver(), ArchiveRequest::Final, first);
        world.check("after a round that was cut off");
        // The next daemon knows nothing of it.
        talk(&mut world, &[100_000, 1, 80_000]);
        let mut archiver = world.archiver();
        assert_eq!(world.round(&mut archiver, ArchiveRequest::Final, 2), ArchiveRemainder::Nothing);
        world.check("after another daemon's round");
        talk(&mut world, &[200_000, 10]);
        world.end();
        world.round(&mut archiver, ArchiveRequest::All, second);
        world.check("after the last round was cut off");
        drop(archiver);
        assert_eq!(world.round(&mut world.archiver(), ArchiveRequest::All, 2), ArchiveRemainder::Nothing);
        world.check("when all is archived");
        world.row.archived = true;
        world.check("when nobody looks at the files");
        fs::remove_dir_all(world.job_dir()).unwrap();
        world.check("when the files are gone");
        world.row.archived = false;
        world.check("when the files are gone and that is not recorded");
        assert_eq!(
            world.round(&mut world.archiver(), ArchiveRequest::All, 2),
            ArchiveRemainder::Nothing,
            "asked for twice"
        );
        world.check("when it was asked for twice");
    }
}

#[test]
fn the_files_of_a_job_that_runs_give_back_what_is_archived() {
    use std::os::unix::fs::MetadataExt;
    let mut world = JobsWorld::new(8 << 20);
    world.say(StreamKind::Stdout, 1 << 20);
    let blocks = |world: &JobsWorld| fs::metadata(world.job_dir().join("stdout")).unwrap().blocks() * 512;
    let before = blocks(&world);
    world.round(&mut world.archiver(), ArchiveRequest::Final, 2);
    assert!(blocks(&world) < before / 4, "{} of {before} bytes are left", blocks(&world));
    world.check("after that");
}

#[test]
fn a_job_that_says_nothing_makes_no_archive() {
    let mut world = JobsWorld::new(1 << 20);
    world.end();
    assert_eq!(world.round(&mut world.archiver(), ArchiveRequest::All, 2), ArchiveRemainder::Nothing);
    assert!(!world.dir.path().join("output.db").exists());
    assert!(matches!(world.archiver().remove(&[world.row.id.clone()]), Ok(())));
    assert!(!world.dir.path().join("output.db").exists());
}

#[test]
fn without_room_nothing_is_lost_and_with_room_it_goes_on() {
    let mut world = JobsWorld::new(4 << 20);
    let mut archiver = world.archiver();
    world.say(StreamKind::Stdout, 300_000);
    world.round(&mut archiver, ArchiveRequest::Final, 2);
    archiver.store().unwrap().limit_pages(30);
    talk(&mut world, &[600_000, 100_000]);
    let batch = archiver.gather(vec![world.task(ArchiveRequest::Final)]).unwrap();
    assert!(matches!(archiver.write(&batch), Err(NotArchived::Full)));
    world.check("without room");
    archiver.store().unwrap().limit_pages(1 << 20);
    talk(&mut world, &[5_000, 5_000]);
    world.end();
    assert_eq!(world.round(&mut archiver, ArchiveRequest::All, 2), ArchiveRemainder::Nothing);
    world.row.archived = true;
    fs::remove_dir_all(world.job_dir()).unwrap();
    world.check("with room");
}

#[test]
fn a_long_output_takes_several_rounds_and_leaves_room_for_others() {
    let mut world = JobsWorld::new(32 << 20);
    world.say(StreamKind::Stdout, 13 << 20);
    let mut archiver = world.archiver();
    let other = ArchiveTask { job: "job_2".parse().unwrap(), ..world.task(ArchiveRequest::Final) };
    let shared = archiver.gather(vec![world.task(ArchiveRequest::Final), other]).unwrap();
    assert_eq!(
        (shared.bytes(), shared.parts[0].left),
        (4 << 20, ArchiveRemainder::Some),
        "half of a round that is shared"
    );
    archiver.write(&shared).unwrap();
    archiver.release(&shared);
    let mut rounds = 1;
    while world.round(&mut archiver, ArchiveRequest::Final, 2) == ArchiveRemainder::Some {
        rounds += 1;
    }
    assert_eq!(rounds, 2, "alone, eight MiB each");
    world.check("after all");
}

#[test]
fn what_is_removed_is_no_longer_read() {
    let mut world = JobsWorld::new(1 << 20);
    talk(&mut world, &[1_000, 1_000]);
    world.end();
    let mut archiver = world.archiver();
    world.round(&mut archiver, ArchiveRequest::All, 2);
    let other: JobId = "job_2".parse().unwrap();
    archiver.remove(&[other]).unwrap();
    (world.row.archived, world.row.output_removed) = (true, true);
    for pick in OutputSelection::ALL {
        assert_eq!(world.read(pick, 100), [], "recorded as removed");
    }
    archiver.remove(&[world.row.id.clone()]).unwrap();
    world.row.output_removed = false;
    for pick in OutputSelection::ALL {
        assert_eq!(world.read(pick, 100), [], "removed");
    }
}
