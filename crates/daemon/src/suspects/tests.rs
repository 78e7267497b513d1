use super::record::{FILE_BYTES, HEADER_BYTES, SLOT_BYTES};
use super::*;

const BOOT: &str = "11111111-2222-3333-4444-555555555555";

/// A daemon that computes some work and dies: what it left is what the next one finds.
struct SuspectsDir(tempfile::TempDir);

impl SuspectsDir {
    fn new() -> SuspectsDir {
        SuspectsDir(tempfile::tempdir().unwrap())
    }

    fn start(&self) -> (Suspects, Vec<Suspect>) {
        Suspects::open(self.0.path(), BOOT)
    }

    /// Starts, computes these turns, and dies in the middle of it.
    fn die_computing(&self, turns: &[&str]) -> Vec<Suspect> {
        let (suspects, convicted) = self.start();
        for turn in turns {
            let watched = suspects.begin(WorkKind::ModelCall, turn, "");
            std::mem::forget(watched.mark());
            std::mem::forget(watched);
            HERE.with_borrow_mut(Vec::clear);
        }
        std::mem::forget(suspects);
        convicted
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.0.path().join(file::NAME)).unwrap()
    }
}

fn subjects(suspects: &[Suspect]) -> Vec<&str> {
    suspects.iter().map(|suspect| suspect.work.subject.as_str()).collect()
}

#[test]
fn work_that_was_computed_at_three_deaths_in_a_row_is_set_aside() {
    let home = SuspectsDir::new();
    for _ in 0..3 {
        assert_eq!(subjects(&home.die_computing(&["trn_1"])), [""; 0]);
    }
    let (suspects, convicted) = home.start();
    assert_eq!(subjects(&convicted), ["trn_1"]);
    assert_eq!(convicted[0].deaths, 3);
    // A death before that is recorded changes nothing: the next one finds the same.
    std::mem::forget(suspects);
    assert_eq!(
        subjects(&home.die_computing(&["trn_2"])),
        [""; 0],
        "a death that nothing explains ends the row"
    );
}

#[test]
fn two_pills_that_take_turns_are_both_found() {
    let home = SuspectsDir::new();
    for turns in [&["trn_1"], &["trn_2"], &["trn_1"], &["trn_2"], &["trn_1"]] {
        assert_eq!(subjects(&home.die_computing(turns)), [""; 0]);
    }
    assert_eq!(subjects(&home.die_computing(&["trn_2"])), ["trn_1"]);
    let mut both: Vec<String> = home.start().1.into_iter().map(|suspect| suspect.work.subject).collect();
    both.sort();
    assert_eq!(both, ["trn_1", "trn_2"]);
}

#[test]
fn a_death_that_nothing_explains_an_end_that_was_asked_for_and_a_minute_of_life_break_the_row() {
    type DaemonLife = fn(&SuspectsDir);
    let kinds: [(&str, DaemonLife); 3] = [
        ("killed while nothing was computed", |home| drop(home.die_computing(&[]))),
        ("ended as asked", |home| home.start().0.close()),
        ("lived for a minute", |home| {
            let (suspects, _) = home.start();
            suspects.settle();
            let watched = suspects.begin(WorkKind::ModelCall, "trn_1", "");
            std::mem::forget(watched.mark());
            HERE.with_borrow_mut(Vec::clear);
        }),
    ];
    for (name, between) in kinds {
        let home = SuspectsDir::new();
        home.die_computing(&["trn_1"]);
        home.die_computing(&["trn_1"]);
        between(&home);
        home.die_computing(&["trn_1"]);
        assert_eq!(subjects(&home.start().1), [""; 0], "{name}");
    }
}

#[test]
fn waiting_is_not_computing() {
    let home = SuspectsDir::new();
    for _ in 0..5 {
        let (suspects, convicted) = home.start();
        assert_eq!(subjects(&convicted), [""; 0]);
        let watched = suspects.begin(WorkKind::ModelCall, "trn_1", "");
        let mut waits = std::pin::pin!(watched.watch(std::future::pending::<()>()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
    }
}

#[test]
fn what_is_computed_is_marked_on_other_threads_and_tasks_too() {
    let home = SuspectsDir::new();
    let (suspects, _) = home.start();
    let watched = suspects.begin(WorkKind::Pull, "agt_1", "sha256:0");
    let computing = || watched.0.computing().unwrap().load(Ordering::Acquire);
    let mark = watched.mark();
    let (carried, followed) = (carry(computing), follow(async { computing() }));
    drop(mark);
    assert_eq!(computing(), 0);
    std::thread::scope(|scope| assert_eq!(scope.spawn(carried).join().unwrap(), 1));
    assert_eq!(computing(), 0);
    let mut followed = std::pin::pin!(followed);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert_eq!(followed.as_mut().poll(&mut context), std::task::Poll::Ready(1));
}

#[test]
fn a_kill_at_a_named_point_is_one_from_outside_whatever_other_threads_compute() {
    let home = SuspectsDir::new();
    for _ in 0..4 {
        let (suspects, convicted) = home.start();
        assert_eq!(subjects(&convicted), [""; 0]);
        let watched = suspects.begin(WorkKind::ModelCall, "trn_1", "");
        std::thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(watched.mark()));
        });
        suspects.shared.absolve();
    }
}

#[test]
fn slots_are_given_back_and_work_beyond_them_is_computed_without_a_mark() {
    let home = SuspectsDir::new();
    let (suspects, _) = home.start();
    let all: Vec<SuspectWatch> =
        (0..SLOTS).map(|at| suspects.begin(WorkKind::Request, &format!("{at:032x}"), "turn/send")).collect();
    assert!(all.iter().all(|watched| watched.0.at.is_some()));
    let more = suspects.begin(WorkKind::Request, "ff", "turn/send");
    assert!(more.0.at.is_none());
    drop(more.mark());
    let same = suspects.begin(WorkKind::Request, &format!("{:032x}", 7), "turn/send");
    assert_eq!(same.0.at, all[7].0.at);
    drop((all, more));
    assert_eq!(suspects.shared.slots().used.len(), 1);
    drop(same);
    assert_eq!(suspects.shared.slots().free.len(), SLOTS);
    assert!(home.bytes()[HEADER_BYTES..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_was_decided_is_not_counted_again() {
    let home = SuspectsDir::new();
    let die = || {
        let (suspects, convicted) = home.start();
        let watched = suspects.begin(WorkKind::Request, "abc", "image/diff");
        std::mem::forget(watched.mark());
        HERE.with_borrow_mut(Vec::clear);
        std::mem::forget(watched);
        convicted
    };
    for _ in 0..3 {
        die();
    }
    let (suspects, convicted) = home.start();
    assert_eq!((convicted[0].detail.as_str(), suspects.refuses("abc")), ("image/diff", true));
    suspects.decided(&convicted[0].work, true);
    assert!(suspects.refuses("abc"));
    suspects.decided(&convicted[0].work, false);
    assert!(!suspects.refuses("abc"));
    std::mem::forget(suspects);
    assert_eq!(subjects(&die()), [""; 0]);
    assert_eq!(subjects(&home.start().1), [""; 0]);
}

#[test]
fn a_file_that_is_not_ours_or_makes_no_sense_accuses_nobody() {
    let home = SuspectsDir::new();
    home.die_computing(&["trn_1"]);
    let good = home.bytes();
    assert_eq!(good.len(), FILE_BYTES);
    assert_eq!(record::judge(&good, BOOT).len(), 1);
    assert_eq!(record::judge(&good, "another boot").len(), 0);
    assert_eq!(record::judge(&good[..FILE_BYTES - 1], BOOT).len(), 0);
    assert_eq!(record::judge(&[], BOOT).len(), 0);
    // Any byte of the header or of the slot may be any other: it is read, or it is not, and nothing else happens.
    for at in (0..96).chain(HEADER_BYTES..HEADER_BYTES + SLOT_BYTES) {
        for byte in [0, 1, 3, 0x7f, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            for suspect in record::judge(&bytes, BOOT) {
                assert!(suspect.deaths <= 3 && suspect.work.subject.starts_with("trn_"), "{suspect:?}");
            }
        }
    }
    // Neither is what lies there followed or written through.
    let path = home.0.path().join(file::NAME);
    let outside = home.0.path().join("outside");
    std::fs::write(&outside, "untouched").unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&outside, &path).unwrap();
    let (suspects, convicted) = home.start();
    assert!(convicted.is_empty() && suspects.shared.file.is_some());
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "untouched");
}
