//! One runtime at a time, and a clean slate for the next.

use lodge_exec::{ExecKind, ExitOutcome, KeeperCommand, KeeperEvent, Link, StartExec};

use crate::home::{SandboxHome, exited, mark, next, stopped_with, until};

const ECHO: &str = "while read line; do echo \"new $line\"; done";

fn runtime(home: &SandboxHome, exec: &str, script: &str) -> StartExec {
    StartExec { kind: ExecKind::Runtime, ..home.sh(exec, script) }
}

async fn said(link: &mut Link) -> String {
    loop {
        if let KeeperEvent::RuntimeLine(line) = next(link).await {
            return String::from_utf8(line).unwrap();
        }
    }
}

#[tokio::test]
async fn a_stopped_runtime_is_killed_and_the_next_one_gets_nothing_that_was_meant_for_it_or_said_by_it() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    link.send(&KeeperCommand::Start(home.sh("e1", "until test -e go; do sleep 0.01; done; echo done")))
        .await
        .unwrap();
    let mark = mark();
    let script = format!("echo one; printf 'half a line'; kill -STOP $$; sleep {mark}");
    link.send(&KeeperCommand::Start(runtime(&home, "r1", &script))).await.unwrap();
    assert_eq!(said(&mut link).await, "one");
    until("it is stopped", || stopped_with(&mark) == 1).await;
    // More than a pipe holds, so that some of it waits in the keeper.
    for _ in 0..4 {
        link.send(&KeeperCommand::RuntimeLine(vec![b'x'; 100_000])).await.unwrap();
    }
    link.send(&KeeperCommand::Kill { exec: "r1".to_owned(), grace_ms: 50 }).await.unwrap();
    assert_eq!(exited(&mut link, "r1").await.ended, ExitOutcome::Signal(libc::SIGKILL));
    link.send(&KeeperCommand::RuntimeLine(b"to nobody".to_vec())).await.unwrap();
    link.send(&KeeperCommand::Start(runtime(&home, "r2", ECHO))).await.unwrap();
    link.send(&KeeperCommand::RuntimeLine(b"hello".to_vec())).await.unwrap();
    assert_eq!(said(&mut link).await, "new hello");

    // The tool went on meanwhile.
    std::fs::write(home.root.join("go"), "").unwrap();
    assert_eq!(exited(&mut link, "e1").await.ended, ExitOutcome::Code(0));
    assert_eq!(home.stdout("e1"), "done\n");
}

#[tokio::test]
async fn a_second_runtime_is_refused_until_the_first_one_is_over() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    link.send(&KeeperCommand::Start(runtime(&home, "r1", "trap '' TERM; echo up; while :; do read x; done")))
        .await
        .unwrap();
    assert_eq!(said(&mut link).await, "up");
    let second = KeeperCommand::Start(runtime(&home, "r2", ECHO));
    link.send(&second).await.unwrap();
    // Asked to go, it still runs.
    link.send(&KeeperCommand::Kill { exec: "r1".to_owned(), grace_ms: 60_000 }).await.unwrap();
    link.send(&second).await.unwrap();
    for _ in 0..2 {
        let why = "a runtime is running already".to_owned();
        assert_eq!(
            next(&mut link).await,
            KeeperEvent::Refused { exec: "r2".to_owned(), kind: ExecKind::Runtime, why, recorded: false }
        );
    }
    link.send(&KeeperCommand::Kill { exec: "r1".to_owned(), grace_ms: 0 }).await.unwrap();
    assert_eq!(exited(&mut link, "r1").await.ended, ExitOutcome::Signal(libc::SIGKILL));
    link.send(&second).await.unwrap();
    link.send(&KeeperCommand::RuntimeLine(b"hello".to_vec())).await.unwrap();
    assert_eq!(said(&mut link).await, "new hello");
}

#[tokio::test]
async fn what_a_runtime_left_behind_does_not_speak_for_the_next_one() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = "(until test -e late; do sleep 0.01; done; echo late; echo > spoke) & echo one; exit 3";
    link.send(&KeeperCommand::Start(runtime(&home, "r1", script))).await.unwrap();
    assert_eq!(exited(&mut link, "r1").await.ended, ExitOutcome::Code(3));
    link.send(&KeeperCommand::Start(runtime(&home, "r2", ECHO))).await.unwrap();
    std::fs::write(home.root.join("late"), "").unwrap();
    until("it spoke", || home.root.join("spoke").exists()).await;
    link.send(&KeeperCommand::RuntimeLine(b"hello".to_vec())).await.unwrap();
    assert_eq!(said(&mut link).await, "new hello");
}
