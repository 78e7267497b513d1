//! Killing reaches everything that an exec started, by cgroup and by walking, and nothing else.

use std::fs;
use std::path::PathBuf;

use lodge_exec::{Evidence, Executor, ExitOutcome, KeeperCommand, KeeperEvent, Link};

use crate::home::{
    BOX, PATIENCE, SandboxHome, command_lines_with, exited, is_root, mark, next, processes_with,
    stopped_with, until,
};

/// What a keeper does without: nothing, and what many hosts do not have.
const WAYS: [Option<&str>; 4] = [
    None,
    Some("keeper.no_cgroup"),
    Some("keeper.no_namespaces"),
    Some("keeper.no_namespaces+keeper.no_cgroup"),
];

/// Leaves a process in a session of its own whose parents are gone, which ignores SIGTERM and holds the
/// exec's output open.
fn daemonize(mark: &str) -> String {
    format!("(setsid sh -c \"(trap '' TERM; while :; do sleep {mark}; done) &\" &)")
}

/// Starts an exec that has such a daemon, and waits until its parents are gone.
async fn start_with_daemon(home: &SandboxHome, link: &Link, exec: &str, mark: &str) {
    let script = format!("{}; while :; do sleep {mark}; done", daemonize(mark));
    link.send(&KeeperCommand::Start(home.sh(exec, &script))).await.unwrap();
    // The exec and its daemon, each a shell that waits for its sleep: those between them are gone.
    until("its processes run", || {
        let lines = command_lines_with(mark);
        let sleeps = lines.iter().filter(|line| line.starts_with("sleep")).count();
        (sleeps, lines.len()) == (2, 4)
    })
    .await;
}

#[tokio::test]
async fn kill_reaches_what_left_the_exec_long_before_and_no_other_exec() {
    for way in WAYS {
        let home = SandboxHome::new();
        let mut link = home.up_without(way).await;
        let (killed, spared) = (mark(), mark());
        start_with_daemon(&home, &link, "e1", &killed).await;
        start_with_daemon(&home, &link, "e2", &spared).await;
        let before = processes_with(&spared).len();
        link.send(&KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 50 }).await.unwrap();
        let record = exited(&mut link, "e1").await;
        assert!(matches!(record.ended, ExitOutcome::Signal(_)), "{way:?}: {record:?}");
        until("all of it is gone", || processes_with(&killed).is_empty()).await;
        assert_eq!(processes_with(&spared).len(), before, "{way:?}");
        link.send(&KeeperCommand::End { grace_ms: 50 }).await.unwrap();
        assert!(home.host.wait_gone(BOX, PATIENCE).await);
        assert!(processes_with(&spared).is_empty(), "{way:?}");
        assert!(matches!(home.host.evidence(BOX, "e2"), Evidence::Exited(_)), "{way:?}");
    }
}

#[tokio::test]
async fn what_an_exec_left_behind_lives_until_it_is_killed_by_name_even_when_the_exec_is_forgotten() {
    for way in WAYS {
        let home = SandboxHome::new();
        let mut link = home.up_without(way).await;
        let (killed, spared) = (mark(), mark());
        for (exec, mark) in [("e1", &killed), ("e2", &spared)] {
            let record = home.run_sh(&mut link, exec, &format!("{}; exit 4", daemonize(mark))).await;
            assert_eq!(record.ended, ExitOutcome::Code(4));
            link.send(&KeeperCommand::Forget { exec: exec.to_owned() }).await.unwrap();
            until("what it left lives", || !processes_with(mark).is_empty()).await;
        }
        link.send(&KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 0 }).await.unwrap();
        until("what it left is gone", || processes_with(&killed).is_empty()).await;
        assert!(!processes_with(&spared).is_empty(), "{way:?}");
        link.send(&KeeperCommand::End { grace_ms: 0 }).await.unwrap();
        assert!(home.host.wait_gone(BOX, PATIENCE).await);
        assert!(processes_with(&spared).is_empty(), "{way:?}");
    }
}

/// Starts an exec whose processes fork faster than they can be counted.
async fn start_with_rabbits(home: &SandboxHome, link: &Link, exec: &str, mark: &str) {
    // Each generation leaves a successor in a new session, and a second one in its own, and goes.
    let rabbit = "setsid sh rabbit.sh \"$1\" >/dev/null 2>&1 &\nsh -c \"sleep $1\" >/dev/null 2>&1 &\n";
    fs::write(home.root.join("rabbit.sh"), rabbit).unwrap();
    let script = format!("for i in 1 2 3 4; do sh rabbit.sh {mark}; done; while :; do sleep {mark}; done");
    link.send(&KeeperCommand::Start(home.sh(exec, &script))).await.unwrap();
    until("they multiply", || processes_with(mark).len() > 40).await;
}

/// Waits until none is left. One that is between two programs has no command line to be found by, so one look
/// proves little.
async fn all_gone(mark: &str) {
    let mut quiet = 0;
    until("all are gone", || {
        quiet = if processes_with(mark).is_empty() { quiet + 1 } else { 0 };
        quiet > 20
    })
    .await;
}

#[tokio::test]
async fn processes_that_fork_faster_than_they_can_be_counted_lose() {
    for way in WAYS {
        let home = SandboxHome::new();
        let mut link = home.up_without(way).await;
        let mark = mark();
        start_with_rabbits(&home, &link, "e1", &mark).await;
        link.send(&KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 0 }).await.unwrap();
        exited(&mut link, "e1").await;
        all_gone(&mark).await;
        link.send(&KeeperCommand::Ping { token: 1 }).await.unwrap();
        assert_eq!(next(&mut link).await, KeeperEvent::Pong { token: 1 }, "{way:?}");
        assert!(!home.log().contains("did not end"), "{way:?}: {}", home.log());
    }
}

#[tokio::test]
async fn they_lose_as_well_when_the_sandbox_ends_or_its_keeper_is_killed() {
    for way in WAYS {
        let home = SandboxHome::new();
        let link = home.up_without(way).await;
        let mark = mark();
        start_with_rabbits(&home, &link, "e1", &mark).await;
        link.send(&KeeperCommand::End { grace_ms: 0 }).await.unwrap();
        assert!(home.host.wait_gone(BOX, PATIENCE).await, "{way:?}: {}", home.log());
        // Gone is a promise: nothing is waited for here.
        assert!(processes_with(&mark).is_empty(), "{way:?}");
        let link = home.up_without(way).await;
        start_with_rabbits(&home, &link, "e2", &mark).await;
        home.kill_keeper();
        assert!(home.host.wait_gone(BOX, PATIENCE).await, "{way:?}: {}", home.log());
        assert!(processes_with(&mark).is_empty(), "{way:?}");
    }
}

#[tokio::test]
async fn nothing_survives_a_killed_keeper_with_or_without_namespaces_and_the_next_one_starts_after() {
    for way in WAYS {
        let home = SandboxHome::new();
        let mut link = home.up_without(way).await;
        let (first, second) = (mark(), mark());
        home.run_sh(&mut link, "e1", &daemonize(&first)).await;
        start_with_daemon(&home, &link, "e2", &second).await;
        home.kill_keeper();
        until("its lock is free", || !home.host.is_held(BOX)).await;
        // From here on, starting waits for the end of the old tree by itself.
        home.host.start(&home.spec()).await.unwrap();
        assert!(processes_with(&first).is_empty() && processes_with(&second).is_empty(), "{way:?}");
        let mut link = home.dial(2).await;
        home.run_sh(&mut link, "e3", "true").await;
        home.kill_keeper();
        assert!(home.host.wait_gone(BOX, PATIENCE).await);
        home.host.remove(BOX).await.unwrap();
    }
}

#[tokio::test]
async fn an_exec_that_kills_its_guardian_is_killed_with_all_it_started() {
    let home = SandboxHome::new();
    let mut link = home.up_without(Some("keeper.no_cgroup")).await;
    let mark = mark();
    let other = home.sh("e2", "until test -e go; do sleep 0.01; done");
    link.send(&KeeperCommand::Start(other)).await.unwrap();
    let script = format!("{}; kill -9 $PPID || exit 7; while :; do sleep {mark}; done", daemonize(&mark));
    let record = home.run_sh(&mut link, "e1", &script).await;
    if is_root() {
        // Its guardian belongs to another user.
        assert_eq!(record.ended, ExitOutcome::Code(7));
    } else {
        assert_eq!(record.ended, ExitOutcome::Signal(libc::SIGKILL));
        assert!(record.note.contains("guardian"), "{record:?}");
        until("all of it is gone", || processes_with(&mark).is_empty()).await;
    }
    fs::write(home.root.join("go"), "").unwrap();
    assert_eq!(exited(&mut link, "e2").await.ended, ExitOutcome::Code(0));
}

#[tokio::test]
async fn a_stopped_exec_is_killed_when_its_grace_is_over() {
    for way in WAYS {
        let home = SandboxHome::new();
        let mut link = home.up_without(way).await;
        let mark = mark();
        let script = format!("sh -c 'kill -STOP $$; sleep {mark}' & kill -STOP $$; sleep {mark}");
        link.send(&KeeperCommand::Start(home.sh("e1", &script))).await.unwrap();
        until("both are stopped", || stopped_with(&mark) == 2).await;
        link.send(&KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 50 }).await.unwrap();
        assert_eq!(exited(&mut link, "e1").await.ended, ExitOutcome::Signal(libc::SIGKILL), "{way:?}");
        until("all of it is gone", || processes_with(&mark).is_empty()).await;
    }
}

#[tokio::test]
async fn how_execs_are_killed_is_a_layer_of_its_own() {
    let home = SandboxHome::new();
    let link = home.up_without(Some("keeper.no_cgroup")).await;
    let kill = |layers: &[lodge_exec::Layer]| -> Vec<Option<String>> {
        layers.iter().filter(|layer| layer.name == "kill").map(|layer| layer.missing.clone()).collect()
    };
    let walk = "by walking the processes; no cgroup: ";
    match kill(&link.welcome.layers).as_slice() {
        [Some(why)] => assert!(why.starts_with(walk), "{why}"),
        other => panic!("{other:?}"),
    }
    link.send(&KeeperCommand::End { grace_ms: 0 }).await.unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    let link = home.up().await;
    let found = kill(&link.welcome.layers);
    assert_eq!(found, kill(&home.host.probe().await));
    // Who was given a cgroup must be seen to use it, or that way would be tested nowhere.
    let is_given = std::env::var_os("LODGE_TEST_CGROUP").is_some_and(|given| !given.is_empty());
    let is_masked = link.welcome.layers.iter().any(|layer| layer.name == "masks" && layer.missing.is_none());
    match found.as_slice() {
        [None] => assert!(cgroup(&home).is_some()),
        [Some(why)] if is_given && is_masked => panic!("{why}"),
        [Some(why)] => assert!(why.starts_with(walk), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// The cgroup of the sandbox, if its keeper has one.
fn cgroup(home: &SandboxHome) -> Option<PathBuf> {
    let path = fs::read_to_string(home.run().join("cgroup")).unwrap();
    (!path.is_empty()).then(|| path.into())
}

fn execs_in(cgroup: &PathBuf) -> usize {
    fs::read_dir(cgroup).unwrap().flatten().filter(|entry| entry.file_type().unwrap().is_dir()).count()
}

#[tokio::test]
async fn cgroups_go_with_their_exec_and_with_their_sandbox_however_it_ended() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let Some(first) = cgroup(&home) else {
        // The layer reports it, and nothing has to be removed.
        assert!(link.welcome.layers.iter().any(|layer| layer.name == "kill" && layer.missing.is_some()));
        return;
    };
    let mark = mark();
    home.run_sh(&mut link, "e1", "true").await;
    home.run_sh(&mut link, "e2", &daemonize(&mark)).await;
    until("only what lives has one", || execs_in(&first) == 1).await;
    link.send(&KeeperCommand::Kill { exec: "e2".to_owned(), grace_ms: 0 }).await.unwrap();
    until("nothing lives", || execs_in(&first) == 0).await;
    link.send(&KeeperCommand::End { grace_ms: 0 }).await.unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    assert!(!first.exists());

    let link = home.up().await;
    let second = cgroup(&home).unwrap();
    start_with_daemon(&home, &link, "e3", &mark).await;
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    assert!(!second.exists());
}

#[tokio::test]
async fn a_tool_cannot_leave_its_cgroup_nor_make_one() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = "find /sys/fs/cgroup -name cgroup.procs 2>/dev/null > doors; while read door; do \
        (echo $$ > $door) 2>/dev/null && echo moved by $door; \
        mkdir ${door%/*}/mine 2>/dev/null && echo made beside $door; done < doors; true";
    let record = home.run_sh(&mut link, "e1", script).await;
    assert_eq!((record.ended, home.stdout("e1").as_str()), (ExitOutcome::Code(0), ""));
    if cgroup(&home).is_some() {
        let doors = fs::read_to_string(home.root.join("doors")).unwrap();
        assert!(!doors.is_empty(), "nothing was tried");
    }
}

#[tokio::test]
async fn a_keeper_answers_while_tools_flood_and_others_are_killed() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    for n in 0..6 {
        let mut start = home.sh(&format!("e{n}"), "echo > up$0; yes; true");
        start.argv.push(n.to_string().into());
        start.output_cap = 1 << 16;
        link.send(&KeeperCommand::Start(start)).await.unwrap();
    }
    until("they flood", || (0..6).all(|n| home.root.join(format!("up{n}")).exists())).await;
    for token in 0..50 {
        link.send(&KeeperCommand::Ping { token }).await.unwrap();
        let answered = async { while next(&mut link).await != (KeeperEvent::Pong { token }) {} };
        tokio::time::timeout(PATIENCE, answered).await.unwrap();
    }
    for n in 0..6 {
        link.send(&KeeperCommand::Kill { exec: format!("e{n}"), grace_ms: 0 }).await.unwrap();
    }
    for _ in 0..6 {
        assert!(matches!(next(&mut link).await, KeeperEvent::Exited { .. }));
    }
}
