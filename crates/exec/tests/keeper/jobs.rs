//! Jobs: both ends of a long output, reported while it is written, although processes die.

use std::fs;

use lodge_exec::{
    Evidence, ExecKind, ExecState, ExecStream, Executor, ExitOutcome, JobBytes, KeeperCommand, KeeperEvent,
    LimitHit, Link, OrderRuns, Resource, StartExec, StreamCount, StreamKind, SystemExecutor,
};

use crate::home::{BOX, PATIENCE, SandboxHome, exited, next, until};

/// What `seq 1 last` prints.
pub(crate) fn seq(last: u64) -> Vec<u8> {
    (1..=last).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

/// Every byte of a stream that can be read, in pieces, each with where it begins.
pub(crate) fn read_all(
    host: &SystemExecutor,
    job: &str,
    stream: ExecStream,
    step: usize,
) -> Vec<(u64, Vec<u8>)> {
    let (mut pieces, mut at) = (Vec::<(u64, Vec<u8>)>::new(), 0);
    loop {
        let JobBytes { offset, bytes, .. } = host.job_read(BOX, job, stream, at, step).unwrap();
        assert!(offset >= at && bytes.len() <= step);
        if bytes.is_empty() {
            return pieces;
        }
        at = offset + bytes.len() as u64;
        match pieces.last_mut() {
            Some((base, piece)) if *base + piece.len() as u64 == offset => piece.extend(bytes),
            Some(_) | None => pieces.push((offset, bytes)),
        }
    }
}

/// What has to be there of a stream, by the rule: its head, and the last one to two segments.
fn kept(whole: &[u8], (head, segment): (u64, u64)) -> Vec<(u64, Vec<u8>)> {
    let (len, head) = (whole.len() as u64, head.min(whole.len() as u64));
    let part = |from: u64, to: u64| (from, whole[from as usize..to as usize].to_vec());
    if len == head || segment == 0 {
        return [part(0, head)].into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    }
    let begun = (len - head).div_ceil(segment);
    let tail = head + begun.saturating_sub(2) * segment;
    if tail == head {
        vec![part(0, len)]
    } else {
        [part(0, head), part(tail, len)].into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect()
    }
}

/// Runs a job to its end, and checks all that can be read of it.
async fn check(home: &SandboxHome, link: &mut Link, id: &str, (out, err): (u64, u64), layout: (u64, u64)) {
    let script = format!("seq 1 {err} >&2 & seq 1 {out}; wait");
    link.send(&KeeperCommand::Start(home.job(id, &script, layout))).await.unwrap();
    let record = exited(link, id).await;
    assert_eq!((record.ended, record.note), (ExitOutcome::Code(0), String::new()));
    for (stream, last, counted) in
        [(ExecStream::Stdout, out, record.stdout), (ExecStream::Stderr, err, record.stderr)]
    {
        let whole = seq(last);
        let expected = kept(&whole, layout);
        let bytes: u64 = expected.iter().map(|(_, piece)| piece.len() as u64).sum();
        assert_eq!(counted, StreamCount { seen: whole.len() as u64, kept: bytes }, "{layout:?} {last}");
        assert!(bytes <= layout.0 + 2 * layout.1);
        for step in [1 << 20, 7919] {
            assert!(read_all(&home.host, id, stream, step) == expected, "{layout:?} {last} by {step}");
        }
        let totals = home.host.job_totals(BOX, id).unwrap();
        let totals = if stream == ExecStream::Stdout { totals.stdout } else { totals.stderr };
        let end = expected.last().map_or(0, |(base, piece)| base + piece.len() as u64);
        assert_eq!((totals.end, totals.dropped()), (end, end - bytes), "{layout:?} {last}");
    }
}

#[tokio::test]
async fn both_ends_of_every_stream_are_kept_byte_for_byte() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    // `seq 1 999` prints 2889 bytes and `seq 1 100000` 588895.
    let cases = [
        ((0, 0), (100, 50)),
        ((999, 9), (2889, 100)),
        ((999, 0), (2888, 100)),
        ((999, 99), (1889, 1000)),
        ((999, 999), (889, 1000)),
        ((999, 999), (888, 1000)),
        ((999, 99), (0, 1000)),
        ((999, 99), (1000, 0)),
        ((100_000, 90_000), (65_536, 4096)),
        ((100_000, 100_000), (1, 1)),
        ((100_000, 70_000), (100_000, 200_000)),
        ((100_000, 100_000), (1 << 30, 1 << 30)),
    ];
    for (at, (streams, layout)) in cases.into_iter().enumerate() {
        if layout == (1, 1) {
            // A file for each byte takes its time: fewer will do.
            check(&home, &mut link, &format!("j{at}"), (99, 9), layout).await;
        } else {
            check(&home, &mut link, &format!("j{at}"), streams, layout).await;
        }
    }
}

#[tokio::test]
async fn a_job_that_says_nothing_leaves_no_file_but_its_record() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    link.send(&KeeperCommand::Start(home.job("j1", "exit 3", (1000, 1000)))).await.unwrap();
    assert_eq!(exited(&mut link, "j1").await.ended, ExitOutcome::Code(3));
    let files: Vec<_> =
        fs::read_dir(home.exec_dir("j1")).unwrap().flatten().map(|file| file.file_name()).collect();
    assert_eq!(files, ["exit"]);
    assert_eq!(home.host.job_totals(BOX, "j1").unwrap(), Default::default());
    assert_eq!(home.host.job_read(BOX, "j1", ExecStream::Stdout, 5, 100).unwrap().bytes, b"");
}

/// Waits until so much output was reported to the daemon, and returns all reported numbers.
async fn told(link: &mut Link, job: &str, enough: (u64, u64)) -> Vec<(u64, u64)> {
    let mut told = Vec::new();
    loop {
        match next(link).await {
            KeeperEvent::Output { exec, kind: ExecKind::Job, stdout, stderr } if exec == job => {
                told.push((stdout, stderr));
                if stdout >= enough.0 && stderr >= enough.1 {
                    return told;
                }
            }
            KeeperEvent::Exited { record, .. } => panic!("it ended: {record:?}"),
            _ => {}
        }
    }
}

/// A script whose steps wait for each other: step `n` begins once the file `n` is there.
fn steps(steps: &[&str]) -> String {
    let step = |(at, step): (usize, &&str)| format!("until test -e {at}; do sleep 0.005; done; {step}\n");
    steps.iter().enumerate().map(step).collect()
}

fn go(home: &SandboxHome, step: usize) {
    fs::write(home.root.join(step.to_string()), "").unwrap();
}

#[tokio::test]
async fn the_order_in_which_both_streams_spoke_is_known_and_told_as_they_speak() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let said = [(2, "b1"), (2, "b2"), (1, "a3"), (2, "b4"), (1, "a5"), (1, "a6")];
    let script: Vec<String> = said.iter().map(|(to, what)| format!("echo {what} >&{to}")).collect();
    // The last step waits, because the end of a job reports its output anyway.
    let script: Vec<&str> = script.iter().map(String::as_str).chain(["true"]).collect();
    // Heads so short that most of it lies in segments.
    link.send(&KeeperCommand::Start(home.job("j1", &steps(&script), (1, 4)))).await.unwrap();
    let mut seen = (0, 0);
    for (at, (to, _)) in said.iter().enumerate() {
        if *to == 1 {
            seen.0 += 3
        } else {
            seen.1 += 3
        }
        go(&home, at);
        let told = told(&mut link, "j1", seen).await;
        assert_eq!(told.last(), Some(&seen));
    }
    go(&home, said.len());
    exited(&mut link, "j1").await;
    let order = home.host.job_order(BOX, "j1", 0).unwrap();
    let runs: Vec<_> = OrderRuns::new(&order).collect();
    let (out, err) = (StreamKind::Stdout, StreamKind::Stderr);
    assert_eq!(runs, [(out, 0), (err, 6), (out, 3), (err, 3)]);
    assert_eq!(home.host.job_order(BOX, "j1", 2).unwrap(), order[2..]);
    assert_eq!(home.host.job_totals(BOX, "j1").unwrap().order, order.len() as u64);
}

#[tokio::test]
async fn a_job_that_floods_is_reported_periodically_and_never_with_less_than_before() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = format!("seq 1 2000000; {}", steps(&["true"]));
    link.send(&KeeperCommand::Start(home.job("j1", &script, (65_536, 65_536)))).await.unwrap();
    let whole = seq(2_000_000).len() as u64;
    let told = told(&mut link, "j1", (whole, 0)).await;
    assert!(told.is_sorted() && told.len() < 1000, "{}", told.len());
    go(&home, 0);
    assert_eq!(
        exited(&mut link, "j1").await.stdout,
        StreamCount { seen: whole, kept: kept_bytes(whole, 65_536) }
    );
}

fn kept_bytes(whole: u64, part: u64) -> u64 {
    let rest = (whole - part) % part;
    2 * part + if rest == 0 { part } else { rest }
}

#[tokio::test]
async fn what_a_killed_keeper_had_captured_can_be_read() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = format!("seq 1 100000; echo last >&2; {}", steps(&["true"]));
    link.send(&KeeperCommand::Start(home.job("j1", &script, (10_000, 50_000)))).await.unwrap();
    let whole = seq(100_000);
    told(&mut link, "j1", (whole.len() as u64, 5)).await;
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    assert!(matches!(home.host.evidence(BOX, "j1"), Evidence::Claimed));
    assert!(read_all(&home.host, "j1", ExecStream::Stdout, 100_000) == kept(&whole, (10_000, 50_000)));
    assert_eq!(read_all(&home.host, "j1", ExecStream::Stderr, 100), [(0, b"last\n".to_vec())]);
    home.host.forget(BOX, "j1").await.unwrap();
    assert!(matches!(home.host.evidence(BOX, "j1"), Evidence::NoClaim));
}

#[tokio::test]
async fn a_job_goes_on_without_a_daemon_and_the_next_one_finds_all_of_it() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = format!("echo one; {}", steps(&["seq 1 50000; echo two >&2"]));
    link.send(&KeeperCommand::Start(home.job("j1", &script, (1000, 1000)))).await.unwrap();
    told(&mut link, "j1", (4, 0)).await;
    drop(link);
    go(&home, 0);
    until("it ended", || matches!(home.host.evidence(BOX, "j1"), Evidence::Exited(_))).await;
    let link = home.dial(2).await;
    assert!(link.welcome.supports_jobs());
    assert!(matches!(&link.welcome.execs[..], [known] if matches!(known.state, ExecState::Exited(_))));
    let whole = [b"one\n".to_vec(), seq(50_000)].concat();
    assert!(read_all(&home.host, "j1", ExecStream::Stdout, 999) == kept(&whole, (1000, 1000)));
}

#[tokio::test]
async fn forgetting_a_job_removes_every_file_of_it() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = "echo first >&2; seq 1 20000; echo last >&2; seq 1 20000 >&2";
    link.send(&KeeperCommand::Start(home.job("j1", script, (1000, 1000)))).await.unwrap();
    exited(&mut link, "j1").await;
    home.host.job_release(BOX, "j1", ExecStream::Stdout, 900).unwrap();
    assert!(fs::read_dir(home.exec_dir("j1")).unwrap().count() > 7);
    link.send(&KeeperCommand::Forget { exec: "j1".to_owned() }).await.unwrap();
    until("its directory is gone", || !home.exec_dir("j1").exists()).await;
    assert!(home.host.job_read(BOX, "j1", ExecStream::Stdout, 0, 1).is_err());
    home.host.job_release(BOX, "j1", ExecStream::Stdout, 1000).unwrap();
}

#[tokio::test]
async fn a_directory_that_is_used_again_tells_only_of_the_job_that_has_it() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let spares = || {
        let names = fs::read_dir(home.run().join("exec")).unwrap().flatten().map(|file| file.file_name());
        names.filter(|name| name.to_string_lossy().starts_with('.')).count()
    };
    for round in 0..20 {
        let (job, earlier) = (format!("j{round}"), format!("j{}", round - 1));
        let start = KeeperCommand::Start(home.job(&job, &format!("exit {round}"), (100, 100)));
        link.send(&start).await.unwrap();
        assert_eq!(exited(&mut link, &job).await.ended, ExitOutcome::Code(round));
        link.send(&start).await.unwrap();
        assert_eq!(exited(&mut link, &job).await.ended, ExitOutcome::Code(round), "asked again");
        assert_eq!(home.execs(), [job.as_str()]);
        assert!(matches!(home.host.evidence(BOX, &job), Evidence::Exited(_)));
        assert!(matches!(home.host.evidence(BOX, &earlier), Evidence::NoClaim));
        assert!(home.host.job_totals(BOX, &earlier).is_err());
        link.send(&KeeperCommand::Forget { exec: job.clone() }).await.unwrap();
        until("it is forgotten", || home.execs().is_empty()).await;
        // A job without output releases nothing.
        home.host.job_release(BOX, &job, ExecStream::Stdout, 0).unwrap();
    }
    until("one waits for the next", || spares() == 1).await;
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    home.host.start(&home.spec()).await.unwrap();
    assert_eq!(spares(), 0);
    let mut link = home.dial(2).await;
    link.send(&KeeperCommand::Start(home.job("last", "echo out", (100, 100)))).await.unwrap();
    assert_eq!(exited(&mut link, "last").await.ended, ExitOutcome::Code(0));
    assert_eq!(read_all(&home.host, "last", ExecStream::Stdout, 100), [(0, b"out\n".to_vec())]);
}

#[tokio::test]
async fn on_a_disk_that_gets_full_a_job_goes_on_and_its_output_is_counted() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let start = home.job("j1", "seq 1 1000; echo more >&2", (1 << 20, 1 << 20));
    link.send(&KeeperCommand::Start(StartExec { keep_free: u64::MAX, ..start })).await.unwrap();
    let record = exited(&mut link, "j1").await;
    assert_eq!(record.ended, ExitOutcome::Code(0));
    assert_eq!(record.stdout, StreamCount { seen: seq(1000).len() as u64, kept: 0 });
    assert_eq!(record.stderr, StreamCount { seen: 5, kept: 0 });
    assert!(record.note.contains("3893 bytes of its stdout were dropped: the disk has"), "{}", record.note);
    assert_eq!(read_all(&home.host, "j1", ExecStream::Stdout, 100), []);
    // With as much as there is, all of it is kept.
    let start = home.job("j2", "seq 1 1000", (1 << 20, 1 << 20));
    link.send(&KeeperCommand::Start(StartExec { keep_free: 1, ..start })).await.unwrap();
    assert_eq!(exited(&mut link, "j2").await.stdout.kept, 3893);
}

#[tokio::test]
async fn the_limits_of_a_tool_hold_for_a_job() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let flood = StartExec { output_max: 1 << 20, ..home.job("j1", "yes >&2 & yes", (1000, 1000)) };
    link.send(&KeeperCommand::Start(flood)).await.unwrap();
    let record = exited(&mut link, "j1").await;
    assert!(matches!(record.cause, Some(LimitHit { resource: Resource::Output, .. })), "{record:?}");
    let slow = StartExec { timeout_ms: 3_000, ..home.job("j2", "echo begun; sleep 100", (1000, 1000)) };
    link.send(&KeeperCommand::Start(slow)).await.unwrap();
    let record = exited(&mut link, "j2").await;
    assert!(matches!(record.cause, Some(LimitHit { resource: Resource::Time, .. })), "{record:?}");
    assert_eq!(read_all(&home.host, "j2", ExecStream::Stdout, 100), [(0, b"begun\n".to_vec())]);
    let fed = StartExec { stdin: b"fed".to_vec(), ..home.job("j3", "cat", (1000, 1000)) };
    link.send(&KeeperCommand::Start(fed.clone())).await.unwrap();
    exited(&mut link, "j3").await;
    assert_eq!(read_all(&home.host, "j3", ExecStream::Stdout, 100), [(0, b"fed".to_vec())]);
    // Asked again, it is answered and not run again.
    link.send(&KeeperCommand::Start(fed)).await.unwrap();
    assert_eq!(exited(&mut link, "j3").await.stdout.seen, 3);
}
