//! Adoption, proofs, epochs: who may drive a keeper.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use lodge_exec::{
    DialError, Evidence, ExecKind, ExecState, Executor, ExitOutcome, KeeperCommand, KeeperEvent,
    KeeperSecret, Link, StartExec, SystemExecutor,
};

use crate::home::{BOX, PATIENCE, SandboxHome, exited, keeper, next, until};

#[tokio::test]
async fn a_second_host_adopts_what_the_first_one_started() {
    let home = SandboxHome::new();
    let link = home.up().await;
    let script = "read line; echo got $line > done";
    let mut start = home.sh("e1", &format!("until test -e go; do sleep 0.01; done; {script}"));
    start.stdin = b"hello\n".to_vec();
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    until("claimed", || home.exec_dir("e1").join("stdout").exists()).await;
    drop(link);

    let second = SystemExecutor::open(&home.state(), keeper()).unwrap();
    assert_eq!(second.sandboxes().await, [BOX]);
    assert!(second.is_held(BOX));
    second.start(&home.spec()).await.unwrap();
    let mut link = second.dial(BOX, &home.secret, 2).await.unwrap();
    assert!(matches!(link.welcome.execs[0].state, ExecState::Running { .. }), "{:?}", link.welcome.execs);
    std::fs::write(home.root.join("go"), "").unwrap();
    exited(&mut link, "e1").await;
    assert_eq!(std::fs::read_to_string(home.root.join("done")).unwrap(), "got hello\n");

    drop(link);
    let link = second.dial(BOX, &home.secret, 3).await.unwrap();
    assert!(matches!(link.welcome.execs[0].state, ExecState::Exited(_)));
    assert_eq!(link.welcome.host_pid.map(u32::cast_signed), home.keeper_pid());
}

#[tokio::test]
async fn the_kind_of_an_exec_is_reported_by_its_keeper_and_by_the_next_keeper() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    // By their ids, all of these would be tools.
    let kinds = [("a", ExecKind::Tool), ("b", ExecKind::Job), ("c", ExecKind::Runtime)];
    let start = |exec: &str, kind, script| StartExec { kind, ..home.job(exec, script, (1000, 1000)) };
    for (exec, kind) in kinds {
        let ended = format!("{exec}1");
        link.send(&KeeperCommand::Start(start(&ended, kind, "true"))).await.unwrap();
        exited(&mut link, &ended).await;
        let running = format!("{exec}2");
        link.send(&KeeperCommand::Start(start(&running, kind, "sleep 1000"))).await.unwrap();
        loop {
            if let KeeperEvent::Started { exec: started, kind: told, .. } = next(&mut link).await {
                assert_eq!((started, told), (running, kind));
                break;
            }
        }
    }
    let told = |link: &Link, is_running: bool| {
        let mut known: Vec<_> = link.welcome.execs.iter().collect();
        known.sort_by(|one, other| one.exec.cmp(&other.exec));
        for (known, (exec, kind)) in known.chunks(2).zip(kinds) {
            let [ended, running] = known else { panic!("{known:?}") };
            assert_eq!((ended.exec.clone(), ended.kind), (format!("{exec}1"), kind));
            assert!(matches!(ended.state, ExecState::Exited(_)), "{ended:?}");
            assert_eq!((running.exec.clone(), running.kind), (format!("{exec}2"), kind));
            let runs = matches!(running.state, ExecState::Running { .. });
            assert!(runs == is_running && (runs || running.state == ExecState::Lost), "{running:?}");
        }
        assert_eq!(known.len(), 6);
    };
    told(&home.dial(2).await, true);
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    home.host.start(&home.spec()).await.unwrap();
    let mut link = home.dial(3).await;
    told(&link, false);
    for (exec, kind) in kinds {
        let exec = format!("{exec}2");
        link.send(&KeeperCommand::Start(start(&exec, kind, "true"))).await.unwrap();
        assert_eq!(next(&mut link).await, KeeperEvent::Lost { exec, kind });
    }
}

#[tokio::test]
async fn keepers_started_at_the_same_time_are_one_keeper() {
    let home = SandboxHome::new();
    let spec = home.spec();
    let (a, b, c) = tokio::join!(home.host.start(&spec), home.host.start(&spec), home.host.start(&spec));
    for started in [a, b, c] {
        started.unwrap();
    }
    let mut link = home.dial(1).await;
    home.run_sh(&mut link, "e1", "true").await;
    assert_eq!(home.log().matches("keeps box").count(), 1, "{}", home.log());
}

#[tokio::test]
async fn a_daemon_with_the_wrong_secret_is_turned_away() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let refused = home.host.dial(BOX, &KeeperSecret::new([8; 32]), 9).await.unwrap_err();
    assert!(matches!(refused, DialError::WrongSecret { .. }), "{refused}");
    link.send(&KeeperCommand::Ping { token: 5 }).await.unwrap();
    assert_eq!(next(&mut link).await, KeeperEvent::Pong { token: 5 });
}

#[tokio::test]
async fn a_process_that_answers_without_the_secret_is_not_taken_for_the_keeper() {
    let home = SandboxHome::new();
    std::fs::create_dir_all(home.run()).unwrap();
    let impostor = UnixListener::bind(home.run().join("k")).unwrap();
    let answering = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = impostor.accept().unwrap();
        let mut bytes = Vec::new();
        lodge_link::KeeperChallenge { version: 1, nonce: [1; 32] }.append_to(&mut bytes);
        stream.write_all(&bytes).unwrap();
        assert!(stream.read(&mut [0; 256]).unwrap() > 0);
        bytes.clear();
        let welcome = lodge_link::Welcome {
            proof: [0; 32],
            version: 1,
            incarnation: 1,
            host_pid: None,
            layers: Vec::new(),
            execs: Vec::new(),
            limits: Vec::new(),
        };
        welcome.append_to(&mut bytes);
        stream.write_all(&bytes).unwrap();
    });
    let refused = home.host.dial(BOX, &home.secret, 1).await.unwrap_err();
    assert!(matches!(refused, DialError::Impostor { .. }), "{refused}");
    answering.join().unwrap();
}

#[tokio::test]
async fn a_higher_epoch_displaces_the_lower_one_and_never_the_other_way_round() {
    let home = SandboxHome::new();
    let mut first = home.up().await;
    let mut second = home.dial(5).await;
    assert_eq!(tokio::time::timeout(PATIENCE, first.next()).await.unwrap(), None);
    let refused = home.host.dial(BOX, &home.secret, 4).await.unwrap_err();
    assert!(matches!(refused, DialError::OldEpoch { current: 5, .. }), "{refused}");
    second.send(&KeeperCommand::Ping { token: 1 }).await.unwrap();
    assert_eq!(next(&mut second).await, KeeperEvent::Pong { token: 1 });
}

#[tokio::test]
async fn strangers_who_say_nothing_do_not_keep_the_daemon_out() {
    let home = SandboxHome::new();
    home.host.start(&home.spec()).await.unwrap();
    let silent: Vec<_> =
        (0..5).map(|_| std::os::unix::net::UnixStream::connect(home.run().join("k")).unwrap()).collect();
    let mut link = home.dial(1).await;
    link.send(&KeeperCommand::Ping { token: 1 }).await.unwrap();
    assert_eq!(next(&mut link).await, KeeperEvent::Pong { token: 1 });
    drop(silent);
}

#[tokio::test]
async fn a_sandbox_without_a_keeper_cannot_be_dialled_and_can_be_removed() {
    let home = SandboxHome::new();
    let absent = home.host.dial(BOX, &home.secret, 1).await.unwrap_err();
    assert_eq!(absent.code(), "keeper.absent");
    let link = home.up().await;
    assert_eq!(home.host.remove(BOX).await.unwrap_err().to_string(), "sandbox box still has a keeper");
    link.send(&KeeperCommand::End { grace_ms: 1000 }).await.unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    assert!(!home.host.is_held(BOX));
    home.host.remove(BOX).await.unwrap();
    home.host.remove(BOX).await.unwrap();
    assert!(home.host.sandboxes().await.is_empty());
}

#[tokio::test]
async fn waiting_for_a_living_keeper_to_go_times_out() {
    let home = SandboxHome::new();
    let _link = home.up().await;
    assert!(!home.host.wait_gone(BOX, Duration::from_millis(20)).await);
}

fn runtime(home: &SandboxHome, exec: &str, script: &str) -> StartExec {
    StartExec { kind: ExecKind::Runtime, ..home.sh(exec, script) }
}

#[tokio::test]
async fn lines_are_relayed_to_and_from_the_runtime_and_its_stderr_is_logged() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = "echo starting >&2; while read line; do echo \"<$line>\"; done";
    link.send(&KeeperCommand::Start(runtime(&home, "r1", script))).await.unwrap();
    assert!(matches!(next(&mut link).await, KeeperEvent::Started { .. }));
    let long = "x".repeat(300_000);
    for line in ["{}", "two words", &long] {
        link.send(&KeeperCommand::RuntimeLine(line.as_bytes().to_vec())).await.unwrap();
        assert_eq!(next(&mut link).await, KeeperEvent::RuntimeLine(format!("<{line}>").into_bytes()));
    }
    link.send(&KeeperCommand::Start(runtime(&home, "r2", "true"))).await.unwrap();
    assert!(matches!(next(&mut link).await, KeeperEvent::Refused { recorded: false, .. }));
    assert!(home.log().contains("starting\n"), "{}", home.log());

    drop(link);
    let mut link = home.dial(2).await;
    link.send(&KeeperCommand::RuntimeLine(b"again".to_vec())).await.unwrap();
    assert_eq!(next(&mut link).await, KeeperEvent::RuntimeLine(b"<again>".to_vec()));
}

#[tokio::test]
async fn a_runtime_that_floods_is_held_back_while_nobody_reads() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = "i=0; while test $i -lt 20000; do echo \"$i 0123456789012345678901234567890123456789\"; i=$((i+1)); done; echo > full; read x";
    link.send(&KeeperCommand::Start(runtime(&home, "r1", script))).await.unwrap();
    // About a megabyte: more than the keeper queues, so every line must still come, in order.
    let mut expected = 0;
    while expected < 20000 {
        if let KeeperEvent::RuntimeLine(line) = next(&mut link).await {
            let line = String::from_utf8(line).unwrap();
            assert!(line.starts_with(&format!("{expected} ")), "{line}");
            expected += 1;
        }
    }
}

#[tokio::test]
async fn commands_are_obeyed_while_the_longest_line_waits_to_be_read() {
    let home = SandboxHome::new();
    let link = home.up().await;
    let script = "head -c 16777216 /dev/zero | tr '\\0' x; echo; echo more; echo > written; read x";
    link.send(&KeeperCommand::Start(runtime(&home, "r1", script))).await.unwrap();
    until("all of it was written", || home.root.join("written").exists()).await;
    // Nothing was read from the link so far, and nothing is until these were obeyed.
    for exec in ["e1", "e2"] {
        link.send(&KeeperCommand::Start(home.sh(exec, &format!("echo > {exec}")))).await.unwrap();
        until("the command was obeyed", || home.root.join(exec).exists()).await;
    }
    let mut link = link;
    loop {
        if let KeeperEvent::RuntimeLine(line) = next(&mut link).await {
            assert_eq!(line.len(), 16 * 1024 * 1024);
            break;
        }
    }
}

#[tokio::test]
async fn a_keeper_left_alone_ends_and_records_how_its_runtime_did() {
    for (script, signal) in [
        ("echo up > up; while read x; do :; done", libc::SIGTERM),
        ("trap '' TERM; echo up > up; while :; do read x; done", libc::SIGKILL),
    ] {
        let home = SandboxHome::new();
        let mut spec = home.spec();
        spec.failpoint = Some("keeper.alone_at_once".to_owned());
        home.host.start(&spec).await.unwrap();
        let link = home.dial(1).await;
        link.send(&KeeperCommand::Start(runtime(&home, "r1", script))).await.unwrap();
        until("the runtime runs", || home.root.join("up").exists()).await;
        drop(link);
        assert!(home.host.wait_gone(BOX, PATIENCE).await);
        match home.host.evidence(BOX, "r1") {
            Evidence::Exited(record) => assert_eq!(record.ended, ExitOutcome::Signal(signal)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_keeper_left_alone_with_a_tool_stays() {
    let home = SandboxHome::new();
    let mut spec = home.spec();
    spec.failpoint = Some("keeper.alone_at_once".to_owned());
    home.host.start(&spec).await.unwrap();
    let link = home.dial(1).await;
    let script = "echo up > up; until test -e go; do sleep 0.01; done";
    link.send(&KeeperCommand::Start(home.sh("e1", script))).await.unwrap();
    until("the tool runs", || home.root.join("up").exists()).await;
    drop(link);
    assert!(!home.host.wait_gone(BOX, Duration::from_millis(300)).await);
    std::fs::write(home.root.join("go"), "").unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    assert!(matches!(home.host.evidence(BOX, "e1"), Evidence::Exited(_)));
}

#[tokio::test]
async fn a_runtime_that_writes_a_line_without_end_is_killed_and_that_is_noted() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = "echo first; head -c 17000000 /dev/zero; echo; sleep 1000";
    link.send(&KeeperCommand::Start(runtime(&home, "r1", script))).await.unwrap();
    let record = exited(&mut link, "r1").await;
    assert_eq!(record.ended, ExitOutcome::Signal(libc::SIGKILL));
    assert!(record.note.contains("line"), "{record:?}");
}

#[tokio::test]
async fn a_runtime_that_does_not_read_is_killed_before_its_queue_grows_without_end() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    link.send(&KeeperCommand::Start(runtime(&home, "r1", "sleep 1000"))).await.unwrap();
    let line = KeeperCommand::RuntimeLine(vec![b'x'; 8_000_000]);
    for _ in 0..6 {
        link.send(&line).await.unwrap();
    }
    let record = exited(&mut link, "r1").await;
    assert!(record.note.contains("did not read"), "{record:?}");
}

#[tokio::test]
async fn a_keeper_asked_by_the_host_ends_and_one_asked_from_inside_does_not() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    home.run_sh(&mut link, "e1", "kill -TERM 1; kill -INT 1; true").await;
    home.run_sh(&mut link, "e2", "true").await;
    let pid = rustix::process::Pid::from_raw(home.keeper_pid().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
}

#[tokio::test]
async fn a_link_can_kill_a_keeper_that_does_not_answer() {
    let home = SandboxHome::new();
    let link = home.up().await;
    let pid = rustix::process::Pid::from_raw(home.keeper_pid().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    link.sender.kill_keeper().await.unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
}
