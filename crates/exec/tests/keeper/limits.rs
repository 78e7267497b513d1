//! Programs that want everything: each is ended, says why, and takes nothing else with it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lodge_exec::{
    ExecKind, Executor, ExitOutcome, ExitRecord, KeeperCommand, KeeperEvent, LimitHit, Limits, Link,
    Resource, SandboxSpec,
};

use crate::home::{BOX, SandboxHome, exited, next, until};

const MIB: u64 = 1 << 20;

/// As the host is; with cgroups for killing alone; and with none at all.
const HOSTS: [Option<&str>; 3] =
    [None, Some("keeper.no_controllers"), Some("keeper.no_controllers+keeper.no_cgroup")];

fn limits() -> Limits {
    Limits { memory_bytes: Some(64 * MIB), pids: Some(48), cpu_ms: Some(2_000), disk_bytes: Some(16 * MIB) }
}

async fn up(home: &SandboxHome, limits: Limits, failpoint: Option<&str>) -> Link {
    let failpoint = failpoint.map(str::to_owned);
    home.host.start(&SandboxSpec { limits, failpoint, ..home.spec() }).await.unwrap();
    home.dial(1).await
}

fn is_over(home: &SandboxHome, exec: &str) -> bool {
    matches!(home.host.evidence(BOX, exec), lodge_exec::Evidence::Exited(_))
}

fn cause(record: &ExitRecord) -> Option<Resource> {
    record.cause.map(|cause| cause.resource)
}

/// The sandbox and what lives in it go on: another tool runs, and the runtime is the one from before.
async fn goes_on(home: &SandboxHome, link: &mut Link, exec: &str) {
    let record = home.run_sh(link, exec, "echo fine").await;
    assert_eq!((record.ended, record.cause), (ExitOutcome::Code(0), None), "{}", home.log());
    assert_eq!(home.stdout(exec), "fine\n");
}

async fn with_runtime(home: &SandboxHome, link: &mut Link) {
    let start = lodge_exec::StartExec { kind: ExecKind::Runtime, ..home.sh("runtime", "cat") };
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    loop {
        if let KeeperEvent::Started { exec, .. } = next(link).await {
            assert_eq!(exec, "runtime");
            return;
        }
    }
}

async fn runtime_answers(link: &mut Link) {
    link.send(&KeeperCommand::RuntimeLine(b"there?".to_vec())).await.unwrap();
    loop {
        match next(link).await {
            KeeperEvent::RuntimeLine(line) => return assert_eq!(line, b"there?"),
            KeeperEvent::Exited { exec, record, .. } => panic!("{exec} ended: {record:?}"),
            _ => {}
        }
    }
}

/// Lets a bomb go off on every kind of host.
async fn bomb(limits: Limits, script: &str, expected: Resource) {
    for host in HOSTS {
        let home = SandboxHome::new();
        let mut link = up(&home, limits, host).await;
        with_runtime(&home, &mut link).await;
        let record = home.run_sh(&mut link, "bomb", script).await;
        assert_eq!(cause(&record), Some(expected), "{host:?}: {record:?}\n{}", home.log());
        runtime_answers(&mut link).await;
        goes_on(&home, &mut link, "after").await;
    }
}

#[tokio::test]
async fn a_program_that_takes_all_memory_is_ended_by_name() {
    bomb(limits(), "tail /dev/zero", Resource::Memory).await;
}

#[tokio::test]
async fn memory_is_watched_also_where_there_are_no_namespaces() {
    let home = SandboxHome::new();
    let without = "keeper.no_namespaces+keeper.no_controllers+keeper.no_cgroup";
    for dir in home.root.ancestors().skip(1).take_while(|dir| dir.starts_with(home.state())) {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
    }
    fs::set_permissions(home.state().parent().unwrap(), fs::Permissions::from_mode(0o711)).unwrap();
    let mut link = up(&home, limits(), Some(without)).await;
    let record = home.run_sh(&mut link, "bomb", "tail /dev/zero & tail /dev/zero & wait").await;
    assert_eq!(cause(&record), Some(Resource::Memory), "{record:?}\n{}", home.log());
    goes_on(&home, &mut link, "after").await;
}

#[tokio::test]
async fn memory_taken_by_many_processes_counts_together() {
    let script = "for i in 1 2 3 4 5 6; do tail /dev/zero & done; wait; sleep 60";
    bomb(limits(), script, Resource::Memory).await;
}

#[tokio::test]
async fn a_fork_bomb_is_ended_and_others_can_fork_again() {
    let limits = Limits { memory_bytes: Some(512 * MIB), cpu_ms: None, ..limits() };
    // One that keeps trying, and one that gives up and leaves its processes behind.
    bomb(limits, "exec awk 'BEGIN { while (1) system(\"sleep 60 & sleep 60 &\") }'", Resource::Pids).await;
    bomb(limits, "while :; do sleep 60 & done", Resource::Pids).await;
}

/// Execs that follow each other may be in the same cgroup.
#[tokio::test]
async fn the_cpu_time_of_earlier_execs_does_not_count_against_a_later_one() {
    let home = SandboxHome::new();
    let mut link = up(&home, Limits { cpu_ms: Some(900), ..limits() }, None).await;
    // A third of the limit each: below it alone, and beyond it together.
    let script = "until read -r a b c d e f g h i j k l m user system rest </proc/$$/stat &&
        [ $((user + system)) -ge 30 ]; do :; done";
    for number in 0..4 {
        let record = home.run_sh(&mut link, &format!("exe_{number}"), script).await;
        assert_eq!((record.ended, record.cause), (ExitOutcome::Code(0), None), "{}", home.log());
    }
}

#[tokio::test]
async fn processor_time_of_all_processes_counts_together() {
    let limits = Limits { cpu_ms: Some(600), ..limits() };
    bomb(limits, "spin() { while :; do :; done; }; spin & spin & spin & wait", Resource::CpuTime).await;
}

#[tokio::test]
async fn one_large_file_is_cut_and_its_writer_is_ended() {
    for host in HOSTS {
        let home = SandboxHome::new();
        let mut link = up(&home, limits(), host).await;
        let script = "head -c 40m /dev/zero >large; sleep 60";
        let record = home.run_sh(&mut link, "bomb", script).await;
        assert_eq!(cause(&record), Some(Resource::Disk), "{host:?}: {record:?}\n{}", home.log());
        assert_eq!(fs::metadata(home.root.join("large")).unwrap().len(), 16 * MIB);
        fs::remove_file(home.root.join("large")).unwrap();
        goes_on(&home, &mut link, "after").await;
    }
}

#[tokio::test]
async fn many_small_files_count_as_much() {
    let limits = Limits { disk_bytes: Some(4 * MIB), cpu_ms: None, ..limits() };
    for host in HOSTS {
        let home = SandboxHome::new();
        let mut link = up(&home, limits, host).await;
        let script = "i=0; while :; do i=$((i+1)); : >f$i; done";
        let record = home.run_sh(&mut link, "bomb", script).await;
        assert_eq!(cause(&record), Some(Resource::Disk), "{host:?}: {record:?}\n{}", home.log());
        // The next one can write nothing, lives with that, and can make room.
        let script = "echo more >more; sleep 3; rm -f f*; echo removed";
        let record = home.run_sh(&mut link, "removes", script).await;
        assert_eq!(
            (&record.ended, record.cause),
            (&ExitOutcome::Code(0), None),
            "{host:?}: {record:?}\n{}",
            home.log()
        );
        assert_eq!(home.stdout("removes"), "removed\n");
        let told = format!("bytes of {} are used", 4 * MIB);
        assert!(record.note.contains("no room is left") && record.note.contains(&told), "{record:?}");
        assert_eq!(fs::metadata(home.root.join("more")).map_or(0, |more| more.len()), 0);
        let record = home.run_sh(&mut link, "after", "echo fine >fine; cat fine").await;
        assert_eq!((record.ended, record.note.as_str()), (ExitOutcome::Code(0), ""), "{}", home.log());
        assert_eq!(home.stdout("after"), "fine\n");
    }
}

#[tokio::test]
async fn who_may_only_remove_files_makes_no_new_ones() {
    let limits = Limits { disk_bytes: Some(4 * MIB), cpu_ms: None, ..limits() };
    let home = SandboxHome::new();
    let mut link = up(&home, limits, None).await;
    home.run_sh(&mut link, "bomb", "i=0; while :; do i=$((i+1)); : >f$i; done").await;
    let before = fs::read_dir(&home.root).unwrap().count();
    let script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); : >g$i; mkdir d$i; ln f1 h$i; ln -s f1 s$i; done; \
        : >f1; echo cut";
    let record = home.run_sh(&mut link, "makes", script).await;
    assert_eq!(fs::read_dir(&home.root).unwrap().count(), before, "{record:?}\n{}", home.log());
}

#[tokio::test]
async fn what_others_free_meanwhile_hides_nobody_who_writes() {
    let limits = Limits { cpu_ms: None, ..limits() };
    let home = SandboxHome::new();
    let others = home.state().join("others");
    fs::write(&others, vec![1; 64 << 20]).unwrap();
    let mut link = up(&home, limits, None).await;
    let script = "head -c 12m /dev/zero >a; : >written; while [ ! -e freed ]; do sleep 0.1; done; \
        head -c 12m /dev/zero >b; sleep 20; echo late";
    link.send(&KeeperCommand::Start(home.sh("hides", script))).await.unwrap();
    until("it wrote", || home.root.join("written").exists()).await;
    fs::remove_file(&others).unwrap();
    fs::write(home.root.join("freed"), "").unwrap();
    let record = exited(&mut link, "hides").await;
    assert_eq!(cause(&record), Some(Resource::Disk), "{record:?}\n{}", home.log());
}

#[tokio::test]
async fn a_limit_that_one_exec_hit_is_reported_of_no_other() {
    let limits = Limits { cpu_ms: None, disk_bytes: None, ..limits() };
    let bombs = [("tail /dev/zero", Resource::Memory), ("while :; do sleep 60 & done; wait", Resource::Pids)];
    for (host, (bomb, resource)) in HOSTS.into_iter().flat_map(|host| bombs.map(|bomb| (host, bomb))) {
        let home = SandboxHome::new();
        let mut link = up(&home, limits, host).await;
        let runtime =
            lodge_exec::StartExec { kind: ExecKind::Runtime, ..home.sh("runtime", "read line; kill -9 $$") };
        link.send(&KeeperCommand::Start(runtime)).await.unwrap();
        link.send(&KeeperCommand::Start(home.sh("beside", "while [ ! -e over ]; do sleep 0.1; done")))
            .await
            .unwrap();
        let record = home.run_sh(&mut link, "bomb", bomb).await;
        assert_eq!(cause(&record), Some(resource), "{host:?}: {record:?}\n{}", home.log());
        // A fork that was refused may have ended it, which is its own end.
        fs::write(home.root.join("over"), "").unwrap();
        let record = exited(&mut link, "beside").await;
        let is_own = resource == Resource::Pids && record.ended != ExitOutcome::Code(0);
        assert!(is_own || record.cause.is_none(), "{host:?} {resource:?}: {record:?}\n{}", home.log());
        link.send(&KeeperCommand::RuntimeLine(b"end".to_vec())).await.unwrap();
        let record = exited(&mut link, "runtime").await;
        assert_eq!(
            (record.ended, record.cause),
            (ExitOutcome::Signal(libc::SIGKILL), None),
            "{host:?} {resource:?}"
        );
    }
}

#[tokio::test]
async fn memory_in_a_file_that_nobody_maps_counts() {
    let program = "import os, time\nfile = os.memfd_create(\"x\")\n\
        for _ in range(200): os.write(file, bytes(1 << 20))\ntime.sleep(60)\n";
    let limits = Limits { disk_bytes: None, ..limits() };
    bomb(limits, &format!("exec /usr/bin/python3 -c '{program}'"), Resource::Memory).await;
}

#[tokio::test]
async fn a_runtime_whose_log_is_as_long_as_a_file_may_be_goes_on_without_it() {
    let home = SandboxHome::new();
    let mut link = up(&home, Limits { disk_bytes: Some(MIB), ..Limits::default() }, None).await;
    let script = "head -c 2m /dev/zero >&2; echo more >&2; exec cat";
    let start = lodge_exec::StartExec { kind: ExecKind::Runtime, ..home.sh("runtime", script) };
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    runtime_answers(&mut link).await;
}

#[tokio::test]
async fn directories_that_are_closed_to_their_owner_count() {
    for mode in ["0000", "0400", "0100"] {
        let home = SandboxHome::new();
        let mut link = up(&home, limits(), None).await;
        let script = format!(
            "i=0; while [ $i -lt 40 ]; do i=$((i+1)); mkdir d$i; head -c 1m /dev/zero >d$i/f; chmod {mode} d$i; done; \
             sleep 60"
        );
        let record = home.run_sh(&mut link, "hides", &script).await;
        assert_eq!(cause(&record), Some(Resource::Disk), "{mode}: {record:?}\n{}", home.log());
        for entry in fs::read_dir(&home.root).unwrap().flatten() {
            if entry.file_type().unwrap().is_symlink() {
                continue;
            }
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
}

#[tokio::test]
async fn a_file_that_was_removed_and_is_still_written_counts() {
    let home = SandboxHome::new();
    let mut link = up(&home, limits(), None).await;
    let script = "fill() { exec 3>hidden$1; rm hidden$1; head -c 12m /dev/zero >&3; sleep 60; }; \
        fill 1 & fill 2 & wait";
    let record = home.run_sh(&mut link, "bomb", script).await;
    assert_eq!(cause(&record), Some(Resource::Disk), "{record:?}\n{}", home.log());
}

#[tokio::test]
async fn shared_memory_is_the_sandboxes_own_and_has_an_end() {
    let home = SandboxHome::new();
    let mut link = up(&home, limits(), None).await;
    let host_has = fs::File::options().create_new(true).write(true).open("/dev/shm/lodge-limits-test");
    let script = "ls /dev/shm; head -c 200m /dev/zero >/dev/shm/all; echo $?; wc -c </dev/shm/all";
    let record = home.run_sh(&mut link, "fill", script).await;
    if host_has.is_ok() {
        fs::remove_file("/dev/shm/lodge-limits-test").unwrap();
    }
    let said = home.stdout("fill");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}\n{record:?}");
    assert_ne!(lines[0], "0", "{said}");
    assert!(lines[1].trim().parse::<u64>().unwrap() <= 32 * MIB, "{said}");
    assert!(!std::path::Path::new("/dev/shm/all").exists());
    goes_on(&home, &mut link, "after").await;
}

#[tokio::test]
async fn temporary_files_are_the_sandboxes_own() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let name = format!("lodge-limits-{}", std::process::id());
    for dir in ["/tmp", "/var/tmp"] {
        fs::write(format!("{dir}/{name}"), "").unwrap();
    }
    let script = format!("ls /tmp /var/tmp; echo x >/tmp/{name}-own && echo wrote");
    let record = home.run_sh(&mut link, "look", &script).await;
    for dir in ["/tmp", "/var/tmp"] {
        fs::remove_file(format!("{dir}/{name}")).unwrap();
    }
    let said = home.stdout("look");
    assert!(!said.lines().any(|line| line == name) && said.ends_with("wrote\n"), "{said} {record:?}");
    assert!(!std::path::Path::new(&format!("/tmp/{name}-own")).exists());
}

#[tokio::test]
async fn a_flood_of_output_is_ended_at_its_limit() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let start = lodge_exec::StartExec { output_max: MIB, ..home.sh("flood", "yes >&2 & yes") };
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    let record = exited(&mut link, "flood").await;
    assert_eq!(cause(&record), Some(Resource::Output), "{record:?}");
    assert!(record.stdout.seen + record.stderr.seen > MIB, "{record:?}");
    until("nothing floods", || is_over(&home, "flood")).await;
    goes_on(&home, &mut link, "after").await;
}

#[tokio::test]
async fn what_takes_too_long_is_ended_also_without_a_daemon() {
    for host in [None, Some("keeper.no_cgroup")] {
        let home = SandboxHome::new();
        let link = up(&home, Limits::default(), host).await;
        let start = lodge_exec::StartExec { timeout_ms: 300, ..home.sh("slow", "sleep 100 & sleep 100") };
        link.send(&KeeperCommand::Start(start)).await.unwrap();
        until("it is claimed", || home.exec_dir("slow").exists()).await;
        drop(link);
        until("it is ended", || is_over(&home, "slow")).await;
        let lodge_exec::Evidence::Exited(record) = home.host.evidence(BOX, "slow") else { panic!() };
        assert_eq!(record.cause, Some(LimitHit { resource: Resource::Time, limit: 300, used: 300 }));
        // The shell may see its child's end before its own.
        assert!(
            matches!(record.ended, ExitOutcome::Signal(libc::SIGTERM) | ExitOutcome::Code(143)),
            "{record:?}"
        );
    }
}

#[tokio::test]
async fn a_keeper_tells_its_limits_and_leaves_no_cgroup_however_it_ends() {
    let home = SandboxHome::new();
    let link = up(&home, limits(), None).await;
    let told: Vec<(Resource, u64)> =
        link.welcome.limits.iter().map(|one| (one.resource, one.limit)).collect();
    let expected = [
        (Resource::Memory, 64 * MIB),
        (Resource::Pids, 48),
        (Resource::CpuTime, 2_000),
        (Resource::Disk, 16 * MIB),
    ];
    assert_eq!(told, expected);
    assert!(link.welcome.limits.iter().all(|one| !one.by.is_empty()), "{:?}", link.welcome.limits);
    let left = || -> Vec<String> {
        let text = fs::read_to_string(home.run().join("controllers")).unwrap_or_default();
        text.lines().filter(|path| std::path::Path::new(path).exists()).map(str::to_owned).collect()
    };
    let paths = left();
    let has_controllers = link.welcome.limits.iter().any(|one| one.by.contains("version 1"));
    assert_eq!(!paths.is_empty(), has_controllers);
    link.send(&KeeperCommand::End { grace_ms: 0 }).await.unwrap();
    until("it ends", || !home.host.is_held(BOX)).await;
    until("its cgroups are gone", || left().is_empty()).await;
    let _second = up(&home, limits(), None).await;
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, crate::home::PATIENCE).await);
    assert_eq!(left(), Vec::<String>::new());
}
