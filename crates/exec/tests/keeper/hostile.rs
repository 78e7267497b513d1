//! Tools that turn against their keeper: by stopping what it starts, and by taking what it needs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lodge_exec::{Evidence, Executor, ExitOutcome, KeeperCommand, KeeperEvent};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, setrlimit};

use crate::home::{BOX, PATIENCE, SandboxHome, exited, mark, next, processes_with, until};

/// Those of the keeper's own program that are not the keeper: guardians, and children that are no program yet.
fn half_born(home: &SandboxHome) -> Vec<Pid> {
    let keeper = home.keeper_pid().unwrap();
    let pids = processes_with(home.state().to_str().unwrap());
    pids.into_iter().filter(|pid| *pid != keeper).filter_map(Pid::from_raw).collect()
}

/// Starts an exec and stops all that it consists of before it has become its program.
async fn start_held_up(home: &SandboxHome, link: &mut lodge_exec::Link, count: usize) -> String {
    let program = home.root.join("program");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // A program that is open for writing is tried again for a while, in which the child can be met.
    let _writer = fs::File::options().write(true).open(&program).unwrap();
    for attempt in 0..20 {
        let exec = format!("e{attempt}");
        let mut start = home.sh(&exec, "");
        start.argv = vec![program.clone().into()];
        link.send(&KeeperCommand::Start(start)).await.unwrap();
        let mut looks = 0;
        until("it was met", || {
            looks += 1;
            half_born(home).len() >= count || looks > 150
        })
        .await;
        let met = half_born(home);
        // One that is gone by now was too fast, which is seen below.
        for pid in &met {
            if kill_process(*pid, Signal::STOP).is_err() {}
        }
        if met.len() >= count && half_born(home).len() >= count {
            return exec;
        }
        // It was refused as busy, or was only partly received and delayed.
        while !matches!(next(link).await, KeeperEvent::Refused { .. } | KeeperEvent::Exited { .. }) {}
    }
    panic!("no child was met")
}

async fn held_up(way: Option<&str>) {
    let home = SandboxHome::new();
    let mut link = home.up_without(way).await;
    let has_cgroup = link.welcome.layers.iter().any(|layer| layer.name == "kill" && layer.missing.is_none());
    let exec = start_held_up(&home, &mut link, if has_cgroup { 1 } else { 2 }).await;
    link.send(&KeeperCommand::Ping { token: 7 }).await.unwrap();
    let mut heard = Vec::new();
    let record = loop {
        match next(&mut link).await {
            KeeperEvent::Exited { exec: ended, record, .. } if ended == exec => break record,
            other => heard.push(other),
        }
    };
    assert_eq!(record.ended, ExitOutcome::Signal(libc::SIGKILL), "{way:?}: {record:?}");
    assert!(record.note.contains("delayed"), "{way:?}: {record:?}");
    if !heard.contains(&KeeperEvent::Pong { token: 7 }) {
        assert_eq!(next(&mut link).await, KeeperEvent::Pong { token: 7 }, "{way:?}");
    }
    until("nothing of it is left", || half_born(&home).is_empty()).await;
    home.run_sh(&mut link, "after", "true").await;
}

#[tokio::test]
async fn an_exec_that_is_stopped_before_it_begins_holds_nobody_up_but_itself() {
    tokio::join!(
        held_up(None),
        held_up(Some("keeper.no_cgroup")),
        held_up(Some("keeper.no_namespaces")),
        held_up(Some("keeper.no_namespaces+keeper.no_cgroup")),
    );
}

#[tokio::test]
async fn a_stopped_guardian_that_outlives_its_keeper_is_woken_to_end_what_that_left() {
    for next_keeper in [false, true] {
        let home = SandboxHome::new();
        let mut link = home.up_without(Some("keeper.no_namespaces+keeper.no_cgroup")).await;
        let mark = mark();
        link.send(&KeeperCommand::Start(home.sh("e1", &format!("while :; do sleep {mark}; done"))))
            .await
            .unwrap();
        // The keeper has written down its guardian before it reports the start.
        while !matches!(link.next().await.expect("an event"), KeeperEvent::Started { .. }) {}
        until("it runs", || processes_with(&mark).len() == 2 && half_born(&home).len() == 1).await;
        kill_process(half_born(&home)[0], Signal::STOP).unwrap();
        home.kill_keeper();
        until("nobody listens", || std::os::unix::net::UnixStream::connect(home.run().join("k")).is_err())
            .await;
        assert!(home.host.is_held(BOX));
        if next_keeper {
            home.host.start(&home.spec()).await.unwrap();
        } else {
            assert!(home.host.wait_gone(BOX, PATIENCE).await);
        }
        assert!(processes_with(&mark).is_empty());
    }
}

#[tokio::test]
async fn without_a_proc_of_its_own_a_group_is_killed_also_when_its_leader_is_gone() {
    let home = SandboxHome::new();
    let mut link = home.up_without(Some("keeper.no_cgroup+keeper.no_proc")).await;
    let (killed, spared) = (mark(), mark());
    for (exec, mark) in [("e1", &killed), ("e2", &spared)] {
        let script = format!(
            "sh -c 'echo > up-{exec}; while :; do sleep {mark}; done' & until test -e up-{exec}; do :; done"
        );
        home.run_sh(&mut link, exec, &script).await;
    }
    assert!(!processes_with(&killed).is_empty());
    link.send(&KeeperCommand::Kill { exec: "e1".to_owned(), grace_ms: 0 }).await.unwrap();
    until("its group is gone", || processes_with(&killed).is_empty()).await;
    assert!(!processes_with(&spared).is_empty());
}

#[tokio::test]
async fn without_a_proc_of_its_own_the_group_of_a_program_that_ended_at_once_is_killed() {
    let home = SandboxHome::new();
    let mut link = home.up_without(Some("keeper.no_cgroup+keeper.no_proc")).await;
    for round in 0..20 {
        let (exec, mark) = (format!("e{round}"), mark());
        home.run_sh(&mut link, &exec, &format!("sleep {mark} &")).await;
        link.send(&KeeperCommand::Kill { exec, grace_ms: 0 }).await.unwrap();
        until("its group is gone", || processes_with(&mark).is_empty()).await;
    }
}

#[tokio::test]
async fn tools_have_the_ordinary_limit_on_descriptors_and_their_keeper_all_it_can_get() {
    // The two must differ; nothing else in this process needs more.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let lower = Rlimit { current: Some(current.map_or(1024, |current| current.min(1024))), maximum };
    setrlimit(Resource::Nofile, lower).unwrap();
    let home = SandboxHome::new();
    let mut link = home.up().await;
    home.run_sh(&mut link, "e1", "ulimit -Sn; ulimit -Hn").await;
    let ordinary = getrlimit(Resource::Nofile);
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    assert_eq!(home.stdout("e1"), format!("{}\n{}\n", shown(ordinary.current), shown(ordinary.maximum)));
    let limits = fs::read_to_string(format!("/proc/{}/limits", home.keeper_pid().unwrap())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
}

#[tokio::test]
async fn an_exec_for_which_descriptors_are_missing_leaves_a_record_or_no_trace() {
    for way in [None, Some("keeper.no_cgroup")] {
        let home = SandboxHome::new();
        let mut link = home.up_without(way).await;
        let keeper = Pid::from_raw(home.keeper_pid().unwrap());
        let ordinary = getrlimit(Resource::Nofile);
        let (mut without_trace, mut ran) = (0, 0);
        for limit in 6..60 {
            let few = Rlimit { current: Some(limit), maximum: ordinary.maximum };
            prlimit(keeper, Resource::Nofile, few).unwrap();
            let exec = format!("e{limit}");
            let effects = home.root.join(&exec);
            link.send(&KeeperCommand::Start(home.sh(&exec, &format!("echo > {exec}")))).await.unwrap();
            match next(&mut link).await {
                KeeperEvent::Started { .. } => {
                    exited(&mut link, &exec).await;
                    ran += 1;
                }
                KeeperEvent::Refused { recorded: false, why, .. } => {
                    assert!(matches!(home.host.evidence(BOX, &exec), Evidence::NoClaim), "{limit}: {why}");
                    assert!(!effects.exists());
                    without_trace += 1;
                }
                KeeperEvent::Refused { recorded: true, why, .. } => {
                    assert!(matches!(home.host.evidence(BOX, &exec), Evidence::Exited(_)), "{limit}: {why}");
                    assert!(!effects.exists());
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(without_trace > 0 && ran > 0, "{way:?}: {without_trace} {ran}");
    }
}

#[tokio::test]
async fn a_tool_limits_itself_and_nobody_else() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = "ulimit -n 64 && ulimit -n; for pid in 1 $PPID $$; do \
        prlimit --pid $pid --nofile=32:32 2>/dev/null && echo limited $pid; done; true";
    home.run_sh(&mut link, "e1", script).await;
    assert_eq!(home.stdout("e1"), "64\n");
}
