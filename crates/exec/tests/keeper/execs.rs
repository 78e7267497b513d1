//! Execs: once, recorded, captured, killed.

use std::fs;

use lodge_exec::{
    Evidence, ExecKind, ExecStream, Executor, ExitOutcome, KeeperCommand, KeeperEvent, StreamCount,
};

use crate::home::{BOX, PATIENCE, SandboxHome, exited, mark, next, processes_with, until};

#[tokio::test]
async fn an_exec_asked_for_twice_runs_once() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let start =
        KeeperCommand::Start(home.sh("e1", "echo ran >> effects; until test -e go; do sleep 0.01; done"));
    link.send(&start).await.unwrap();
    link.send(&start).await.unwrap();
    let (first, second) = (next(&mut link).await, next(&mut link).await);
    assert!(matches!(first, KeeperEvent::Started { .. }), "{first:?}");
    assert_eq!(first, second);
    fs::write(home.root.join("go"), "").unwrap();
    let record = exited(&mut link, "e1").await;
    link.send(&start).await.unwrap();
    assert_eq!(
        next(&mut link).await,
        KeeperEvent::Exited { exec: "e1".to_owned(), kind: ExecKind::Tool, record }
    );
    assert_eq!(fs::read_to_string(home.root.join("effects")).unwrap(), "ran\n");
}

#[tokio::test]
async fn exit_codes_and_signals_are_recorded() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let code = home.run_sh(&mut link, "e1", "echo out; echo err >&2; exit 3").await;
    assert_eq!(code.ended, ExitOutcome::Code(3));
    assert_eq!((code.stdout.seen, code.stderr.kept), (4, 4));
    assert!(code.finished_ms >= code.started_ms && code.usage.max_rss_kb > 0, "{code:?}");
    assert_eq!(home.stdout("e1"), "out\n");
    let stderr = home.host.read_output(BOX, "e1", ExecStream::Stderr, 100, 0).unwrap();
    assert_eq!(stderr.head, b"err\n");
    let signal = home.run_sh(&mut link, "e2", "kill -SEGV $$").await;
    assert_eq!(signal.ended, ExitOutcome::Signal(11));
    match home.host.evidence(BOX, "e2") {
        Evidence::Exited(record) => assert_eq!(record, signal),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_refused_and_recorded() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let mut start = home.sh("e1", "");
    start.argv = vec!["no-such-program".into()];
    link.send(&KeeperCommand::Start(start.clone())).await.unwrap();
    let expected = "no program `no-such-program`".to_owned();
    let refused = KeeperEvent::Refused {
        exec: "e1".to_owned(),
        kind: ExecKind::Tool,
        why: expected.clone(),
        recorded: true,
    };
    assert_eq!(next(&mut link).await, refused);
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    let record = exited(&mut link, "e1").await;
    assert_eq!(record.ended, ExitOutcome::NotStarted { errno: libc::ENOENT, why: expected });

    let mut start = home.sh("e2", "");
    start.cwd = "/no/such/place".into();
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    assert!(matches!(next(&mut link).await, KeeperEvent::Refused { recorded: true, .. }));
    let mut start = home.sh("../e3", "");
    start.cwd = "/".into();
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    assert!(matches!(next(&mut link).await, KeeperEvent::Refused { recorded: false, .. }));
}

#[tokio::test]
async fn a_program_is_found_in_the_given_path_only() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let mut start = home.sh("e1", "");
    start.argv = vec!["true".into()];
    link.send(&KeeperCommand::Start(start.clone())).await.unwrap();
    assert_eq!(exited(&mut link, "e1").await.ended, ExitOutcome::Code(0));
    start.exec = "e2".to_owned();
    start.env = vec![("PATH".into(), home.root.clone().into())];
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    assert!(matches!(next(&mut link).await, KeeperEvent::Refused { recorded: true, .. }));
}

#[tokio::test]
async fn output_is_kept_up_to_its_cap_and_counted_beyond() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let mut start = home.sh("e1", "head -c 300000 /dev/zero; head -c 10 /dev/zero >&2");
    start.output_cap = 100_000;
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    let record = exited(&mut link, "e1").await;
    assert_eq!(record.stdout, StreamCount { seen: 300_000, kept: 100_000 });
    assert_eq!(record.stderr, StreamCount { seen: 10, kept: 10 });
    assert_eq!(fs::metadata(home.exec_dir("e1").join("stdout")).unwrap().len(), 100_000);
}

#[tokio::test]
async fn output_larger_than_any_pipe_is_kept_whole() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let mut start = home.sh("e1", "seq 1 400000");
    start.output_cap = 1 << 30;
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    let record = exited(&mut link, "e1").await;
    let whole = fs::read_to_string(home.exec_dir("e1").join("stdout")).unwrap();
    assert_eq!(record.stdout.kept, whole.len() as u64);
    assert!(whole.lines().zip(1..).all(|(line, n)| line == n.to_string()));
    let ends = home.host.read_output(BOX, "e1", ExecStream::Stdout, 4, 7).unwrap();
    assert_eq!((ends.head.as_slice(), ends.tail.as_slice()), (&b"1\n2\n"[..], &b"400000\n"[..]));
}

#[tokio::test]
async fn stdin_is_fed_whole_and_then_closed() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let mut start = home.sh("e1", "wc -c; echo end");
    start.stdin = vec![b'x'; 3_000_000];
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    exited(&mut link, "e1").await;
    assert_eq!(home.stdout("e1").split_whitespace().collect::<Vec<_>>(), ["3000000", "end"]);
}

#[tokio::test]
async fn the_environment_is_exactly_what_was_given() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let mut start = home.sh("e1", "");
    start.argv = vec!["/usr/bin/env".into()];
    start.env = vec![("B".into(), "two=2".into()), ("A".into(), "one".into())];
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    exited(&mut link, "e1").await;
    assert_eq!(home.stdout("e1"), "B=two=2\nA=one\n");
}

#[tokio::test]
async fn an_exec_ends_with_its_main_process_and_what_it_left_behind_lives_on() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let mark = mark();
    let script = format!("echo before; (while :; do echo noise; sleep {mark}; done) & exit 0");
    let record = home.run_sh(&mut link, "e1", &script).await;
    assert_eq!(record.ended, ExitOutcome::Code(0));
    assert!(home.stdout("e1").starts_with("before\n"));
    assert!(!processes_with(&mark).is_empty());
    link.send(&KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 0 }).await.unwrap();
    until("the leftovers are killed", || processes_with(&mark).is_empty()).await;
}

#[tokio::test]
async fn kill_ends_the_exec_and_descendants_that_ignore_being_asked() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let mark = mark();
    let script =
        format!("trap '' TERM; setsid sh -c \"trap '' TERM; sleep {mark}\" & sleep {mark}; sleep {mark}");
    link.send(&KeeperCommand::Start(home.sh("e1", &script))).await.unwrap();
    until("its processes run", || processes_with(&mark).len() >= 3).await;
    link.send(&KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 50 }).await.unwrap();
    assert_eq!(exited(&mut link, "e1").await.ended, ExitOutcome::Signal(libc::SIGKILL));
    until("all are gone", || processes_with(&mark).is_empty()).await;
}

#[tokio::test]
async fn forgetting_removes_an_exec_that_ended_and_no_other() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    home.run_sh(&mut link, "e1", "true").await;
    link.send(&KeeperCommand::Start(home.sh("e2", "until test -e go; do sleep 0.01; done"))).await.unwrap();
    for exec in ["e1", "e1", "e2"] {
        link.send(&KeeperCommand::Forget { exec: exec.to_owned() }).await.unwrap();
    }
    fs::write(home.root.join("go"), "").unwrap();
    exited(&mut link, "e2").await;
    assert!(matches!(home.host.evidence(BOX, "e1"), Evidence::NoClaim));
    assert!(matches!(home.host.evidence(BOX, "e2"), Evidence::Exited(_)));
    assert_eq!(home.execs(), ["e2"]);
}

#[tokio::test]
async fn the_end_of_a_sandbox_ends_all_of_it_and_records_how() {
    let home = SandboxHome::new();
    let link = home.up().await;
    let mark = mark();
    let script = format!("setsid sh -c \"trap '' TERM; while :; do sleep {mark}; done\" & wait");
    link.send(&KeeperCommand::Start(home.sh("e1", &script))).await.unwrap();
    until("its processes run", || processes_with(&mark).len() >= 3).await;
    link.send(&KeeperCommand::End { grace_ms: 100 }).await.unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    assert!(processes_with(&mark).is_empty());
    match home.host.evidence(BOX, "e1") {
        Evidence::Exited(record) => assert_eq!(record.ended, ExitOutcome::Signal(libc::SIGTERM)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_execs_at_once_each_leave_their_own_record() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    for n in 0..40 {
        link.send(&KeeperCommand::Start(home.sh(&format!("e{n}"), &format!("echo {n}; exit {n}"))))
            .await
            .unwrap();
    }
    let mut ended = 0;
    while ended < 40 {
        if let KeeperEvent::Exited { exec, record, .. } = next(&mut link).await {
            let n: i32 = exec[1..].parse().unwrap();
            assert_eq!(record.ended, ExitOutcome::Code(n));
            assert_eq!(home.stdout(&exec), format!("{n}\n"));
            ended += 1;
        }
    }
}

#[tokio::test]
async fn killing_what_was_never_started_is_answered() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    link.send(&KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 0 }).await.unwrap();
    assert!(matches!(next(&mut link).await, KeeperEvent::Refused { recorded: false, .. }));
    home.run_sh(&mut link, "e2", "true").await;
    link.send(&KeeperCommand::Kill { exec: "e2".to_owned(), grace_ms: 0 }).await.unwrap();
    link.send(&KeeperCommand::Ping { token: 1 }).await.unwrap();
    assert_eq!(next(&mut link).await, KeeperEvent::Pong { token: 1 });
}
