//! The fence, seen from inside.

use lodge_exec::{Bind, Executor, ExitOutcome, KeeperCommand};

use crate::home::{BOX, PATIENCE, SandboxHome, exited, is_root, mark, processes_with, until};

#[tokio::test]
async fn a_tool_sees_neither_the_state_directory_nor_other_homes() {
    let home = SandboxHome::new();
    let other = home.state().join("agents/b/root");
    std::fs::create_dir_all(&other).unwrap();
    let mut link = home.up().await;
    let state = home.state();
    let script = format!(
        "ls -A {state}; ls -A {state}/agents; ls -A /run /home /root | grep -v '^/' | tr -d '\\n'; test -e {run}/k && echo socket",
        state = state.display(),
        run = home.run().display(),
    );
    home.run_sh(&mut link, "e1", &script).await;
    // What names resolve by is bound back on hosts that keep it beneath /run.
    let seen = home.stdout("e1").replace("systemd", "").replace("resolve", "");
    assert_eq!(seen.trim(), "agents\na", "{}", home.stdout("e1"));
}

#[tokio::test]
async fn a_tool_cannot_reach_the_keepers_socket_by_any_path() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let run = home.run();
    let script = format!(
        "for path in {run}/k /proc/1/root{run}/k /proc/1/cwd{run}/k /proc/1/fd/3/k; do test -e $path && echo $path; done; ls /proc/1/fd 2>/dev/null; true",
        run = run.display(),
    );
    home.run_sh(&mut link, "e1", &script).await;
    assert_eq!(home.stdout("e1"), "");
}

#[tokio::test]
async fn a_tool_sees_only_processes_of_its_sandbox() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    home.run_sh(&mut link, "e1", "cd /proc; ls -d [0-9]* | wc -l; kill -9 1; echo $?").await;
    let output = home.stdout("e1");
    let words: Vec<&str> = output.split_whitespace().collect();
    assert!(words[0].parse::<u32>().unwrap() <= 5, "{output}");
    // Pid 1 takes no signal from its own namespace: as root the attempt is refused, else it has no effect.
    home.run_sh(&mut link, "e2", "true").await;
}

#[tokio::test]
async fn a_tool_has_its_own_uid_when_it_can_and_never_a_capability() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    let script = "id -u; id -g; id -G; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; cat /proc/self/oom_score_adj; umask; ulimit -c; ls /proc/self/fd | tr '\\n' ' '";
    home.run_sh(&mut link, "e1", script).await;
    let output = home.stdout("e1");
    let lines: Vec<&str> = output.lines().collect();
    if let Some(uid) = home.uid {
        let uid = uid.to_string();
        assert_eq!(lines[..3], [uid.as_str(), uid.as_str(), uid.as_str()], "{output}");
    } else {
        assert_eq!(lines[0], rustix::process::geteuid().as_raw().to_string());
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(output.contains(&format!("{set}:\t0000000000000000")), "{output}");
    }
    assert!(output.contains("NoNewPrivs:\t1") && output.contains("Seccomp:\t2"), "{output}");
    // The descriptor beyond the standard ones is the one that `ls` itself opened.
    assert_eq!(lines[lines.len() - 4..], ["500", "0022", "0", "0 1 2 3 "], "{output}");
}

#[tokio::test]
async fn a_tool_writes_to_the_parts_of_its_root_that_are_its_own_and_not_elsewhere() {
    let home = SandboxHome::new();
    let work = home.root.join("work");
    std::fs::create_dir(&work).unwrap();
    if let Some(uid) = home.uid {
        std::os::unix::fs::chown(&work, Some(uid), Some(uid)).unwrap();
    }
    let mut spec = home.spec();
    spec.private_root.as_mut().unwrap().writable = vec!["work".into(), "tmp".into()];
    home.host.start(&spec).await.unwrap();
    let mut link = home.dial(1).await;
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    // The root belongs to the tool's user here, so that nothing but the rules keeps it from changing it.
    let script = "cd /work; echo x > inside && mkdir -p a/b && mv inside a/b/ && mv a /tmp/ && mv /tmp/a . && echo ok; \
        for place in /etc /usr /run /home /root /proc /sys /dev / /var; do touch $place/x 2>/dev/null && echo wrote $place; done; \
        mv /work /other 2>/dev/null && echo renamed; mkdir /new 2>/dev/null && echo made; rmdir /tmp 2>/dev/null && echo removed; \
        t=$(mktemp) && rm $t && echo temporary; mount -t tmpfs none . 2>/dev/null && echo mounted; \
        unshare -U true 2>/dev/null && echo unshared; true";
    let mut start = home.sh("e1", script);
    start.env.push(("TMPDIR".into(), "/tmp".into()));
    link.send(&KeeperCommand::Start(start)).await.unwrap();
    exited(&mut link, "e1").await;
    assert_eq!(home.stdout("e1"), "ok\ntemporary\n");
    drop(outside);
}

#[tokio::test]
async fn binds_show_host_paths_inside_and_read_only_ones_stay_so() {
    let home = SandboxHome::new();
    let outside = home.state().join("shared");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "shared\n").unwrap();
    if let Some(uid) = home.uid {
        std::os::unix::fs::chown(&outside, Some(uid), Some(uid)).unwrap();
    }
    let (writable, read_only) = (home.root.join("work"), home.state().join("elsewhere/ro"));
    let program = home.host.program("tool", b"#!/bin/sh\necho ran\n".as_slice()).unwrap();
    let program = program.path().unwrap().to_owned();
    let bind = |target: &std::path::Path, read_only| Bind {
        source: outside.clone(),
        target: target.to_owned(),
        read_only,
        checked: None,
        owner: None,
    };
    let mut spec = home.spec();
    spec.binds = vec![
        bind(&writable, false),
        bind(&read_only, true),
        Bind {
            source: program.clone(),
            target: program.clone(),
            read_only: true,
            checked: None,
            owner: None,
        },
    ];
    home.host.start(&spec).await.unwrap();
    let mut link = home.dial(1).await;
    let script = format!(
        "cat work/file {ro}/file; echo new > work/new && cat {ro}/new; touch {ro}/x 2>/dev/null && echo wrote; {program}",
        ro = read_only.display(),
        program = program.display(),
    );
    home.run_sh(&mut link, "e1", &script).await;
    assert_eq!(home.stdout("e1"), "shared\nshared\nnew\nran\n", "{:?}", link.welcome.layers);
    assert_eq!(std::fs::read_to_string(outside.join("new")).unwrap(), "new\n");
}

/// A directory of the host that the sandbox's user may write to, beneath which root finds another mount.
struct SharedDirectory {
    source: std::path::PathBuf,
    inner: Option<std::path::PathBuf>,
}

impl SharedDirectory {
    fn new(home: &SandboxHome) -> SharedDirectory {
        let source = home.state().join("shared");
        let inner = source.join("inner");
        std::fs::create_dir_all(&inner).unwrap();
        if let Some(uid) = home.uid {
            std::os::unix::fs::chown(&source, Some(uid), Some(uid)).unwrap();
            let mount = std::process::Command::new("mount");
            assert!(run(mount, &["-t", "tmpfs", "-o", "mode=0777,size=64k", "none"], &inner));
        }
        SharedDirectory { source, inner: home.uid.map(|_| inner) }
    }
}

impl Drop for SharedDirectory {
    fn drop(&mut self) {
        if let Some(inner) = &self.inner
            && !run(std::process::Command::new("umount"), &["-l"], inner)
        {}
    }
}

fn run(mut program: std::process::Command, args: &[&str], path: &std::path::Path) -> bool {
    program.args(args).arg(path).status().is_ok_and(|status| status.success())
}

#[tokio::test]
async fn a_read_only_bind_is_read_only_beneath_the_root_and_beneath_its_own_mounts() {
    let home = SandboxHome::new();
    let shared = SharedDirectory::new(&home);
    let mut spec = home.spec();
    let bind = |name: &str, read_only| Bind {
        source: shared.source.clone(),
        target: home.root.join(name),
        read_only,
        checked: None,
        owner: None,
    };
    spec.binds = vec![bind("ro", true), bind("rw", false)];
    home.host.start(&spec).await.unwrap();
    let mut link = home.dial(1).await;
    let script = "for place in ro ro/inner rw rw/inner; do touch $place/x 2>/dev/null && echo wrote $place; done; true";
    home.run_sh(&mut link, "e1", script).await;
    assert_eq!(home.stdout("e1"), "wrote rw\nwrote rw/inner\n", "{:?}", link.welcome.layers);
}

#[tokio::test]
async fn a_bind_that_cannot_be_made_read_only_ends_the_start() {
    let home = SandboxHome::new();
    let shared = SharedDirectory::new(&home);
    // Made step by step, such a way is no trouble; named as a whole, it is longer than a path may be.
    let name = "n".repeat(250);
    let target = (0..17).fold(home.root.clone(), |way, _| way.join(&name));
    let mut spec = home.spec();
    spec.binds =
        vec![Bind { source: shared.source.clone(), target, read_only: true, checked: None, owner: None }];
    let refused = home.host.start(&spec).await.unwrap_err();
    assert_eq!(refused.code(), "sandbox.keeper_gave_up");
    let lodge_exec::StartError::GaveUp { why, .. } = refused else { panic!("{refused}") };
    assert!(why.contains("cannot be made read-only"), "{why}");
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
}

/// Why the start of a sandbox was refused.
async fn refusal(home: &SandboxHome, spec: &lodge_exec::SandboxSpec) -> String {
    let refused = home.host.start(spec).await.expect_err("it started");
    assert_eq!(refused.code(), "sandbox.keeper_gave_up");
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    match refused {
        lodge_exec::StartError::GaveUp { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_root_that_cannot_be_built_for_now_ends_the_start_instead_of_weakening_the_fence() {
    let home = SandboxHome::new();
    let mut spec = home.spec();
    spec.failpoint = Some("keeper.no_room".to_owned());
    let why = refusal(&home, &spec).await;
    assert!(
        why.contains("a root of its own; make room on the disk") && why.contains("No space left"),
        "{why}"
    );
    // Something of the agent's in the place of a mount is no matter of the host, either.
    std::fs::write(home.root.join("proc"), "").unwrap();
    let why = refusal(&home, &home.spec()).await;
    assert!(why.contains("it cannot have a root of its own"), "{why}");
    std::fs::remove_file(home.root.join("proc")).unwrap();
    let link = home.up().await;
    let root = link.welcome.layers.iter().find(|layer| layer.name == "private_root").unwrap();
    assert_eq!(root.missing, None);
}

#[tokio::test]
async fn a_full_disk_ends_the_start_and_room_lets_it_succeed() {
    if !is_root() {
        // Only root can make a disk that is full.
        return;
    }
    let home = SandboxHome::new();
    let full = home.root.join("full");
    std::fs::create_dir(&full).unwrap();
    let mount = std::process::Command::new("mount");
    assert!(run(mount, &["-t", "tmpfs", "-o", "mode=0755,size=64k,nr_inodes=2", "none"], &full));
    std::fs::write(full.join("the last"), "").unwrap();
    let spec = lodge_exec::SandboxSpec { root: full.clone(), ..home.spec() };
    let why = refusal(&home, &spec).await;
    let removed = std::fs::remove_file(full.join("the last"));
    assert!(run(std::process::Command::new("umount"), &["-l"], &full));
    removed.unwrap();
    assert!(why.contains("a root of its own") && why.contains("No space left"), "{why}");
    home.up().await;
}

#[tokio::test]
async fn a_program_that_is_not_the_file_that_was_checked_is_not_bound() {
    let home = SandboxHome::new();
    let program = home.state().join("tool");
    let put = |path: &std::path::Path, word: &str| {
        std::fs::write(path, format!("#!/bin/sh\necho {word}\n")).unwrap();
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    put(&program, "good");
    let checked = lodge_exec::FileIdentity::of(&program.metadata().unwrap());
    let target = home.root.join("shown");
    let bind = Bind::read_only(program.clone(), target).checked(Some(checked));
    let spec = lodge_exec::SandboxSpec { binds: vec![bind], ..home.spec() };
    home.host.start(&spec).await.unwrap();
    let mut link = home.dial(1).await;
    home.run_sh(&mut link, "e1", "/shown").await;
    assert_eq!(home.stdout("e1"), "good\n");
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    // Another file of that name, and of the same length; then the same file with other contents.
    let kept = home.state().join("kept");
    std::fs::rename(&program, &kept).unwrap();
    put(&program, "evil");
    assert!(refusal(&home, &spec).await.contains("replaced after it was checked"));
    std::fs::rename(&kept, &program).unwrap();
    put(&program, "evil");
    assert!(refusal(&home, &spec).await.contains("replaced after it was checked"));
    // The masks do not bind it, either.
    let masked = lodge_exec::SandboxSpec { failpoint: Some("keeper.no_private_root".to_owned()), ..spec };
    assert!(refusal(&home, &masked).await.contains("replaced after it was checked"));
}

#[tokio::test]
async fn a_source_that_a_link_has_taken_the_place_of_ends_the_start() {
    let home = SandboxHome::new();
    let outside = home.root.parent().unwrap().join("outside");
    std::fs::create_dir_all(outside.join("real/below")).unwrap();
    std::os::unix::fs::symlink(outside.join("real"), outside.join("link")).unwrap();
    for (way, binds) in [("real/below", true), ("link", false), ("link/below", false)] {
        let mut spec = home.spec();
        spec.binds = vec![Bind {
            source: outside.join(way),
            target: home.root.join("shown"),
            read_only: false,
            checked: None,
            owner: None,
        }];
        match home.host.start(&spec).await {
            Ok(_) => {
                assert!(binds, "{way}");
                home.kill_keeper();
            }
            Err(refused) => {
                let lodge_exec::StartError::GaveUp { why, .. } = refused else { panic!("{refused}") };
                assert!(!binds && why.contains("a link leads elsewhere now"), "{way}: {why}");
            }
        }
        assert!(home.host.wait_gone(BOX, PATIENCE).await);
    }
}

#[tokio::test]
async fn tools_of_one_sandbox_may_signal_each_other() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    home.run_sh(&mut link, "e1", "sleep 1000 & echo $! > pid").await;
    let record = home.run_sh(&mut link, "e2", "kill $(cat pid)").await;
    assert_eq!(record.ended, ExitOutcome::Code(0));
}

#[tokio::test]
async fn killing_the_keeper_frees_its_lock_and_kills_all_of_its_namespace() {
    let home = SandboxHome::new();
    let mut link = home.up().await;
    home.run_sh(&mut link, "e1", "true").await;
    let mark = mark();
    let script = format!("setsid sleep {mark} & sleep {mark}; true");
    link.send(&KeeperCommand::Start(home.sh("e2", &script))).await.unwrap();
    until("its processes run", || processes_with(&mark).len() >= 3).await;
    home.kill_keeper();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    assert!(processes_with(&mark).is_empty());
    assert!(matches!(home.host.evidence(BOX, "e1"), lodge_exec::Evidence::Exited(_)));
    assert!(matches!(home.host.evidence(BOX, "e2"), lodge_exec::Evidence::Claimed));
    assert_eq!(tokio::time::timeout(PATIENCE, async { while link.next().await.is_some() {} }).await, Ok(()));

    // The next keeper knows that e2 was claimed and does not run it again.
    home.host.start(&home.spec()).await.unwrap();
    let mut link = home.dial(2).await;
    link.send(&KeeperCommand::Start(home.sh("e2", "echo again > again"))).await.unwrap();
    let lost = lodge_exec::KeeperEvent::Lost { exec: "e2".to_owned(), kind: lodge_exec::ExecKind::Tool };
    assert_eq!(crate::home::next(&mut link).await, lost);
    assert!(!home.root.join("again").exists());
}

#[tokio::test]
async fn a_host_can_be_probed_for_its_layers() {
    let home = SandboxHome::new();
    let layers = home.host.probe().await;
    for name in ["pidns", "seccomp", "landlock", "own_uid"] {
        assert!(layers.iter().any(|layer| layer.name == name), "{name}: {layers:?}");
    }
    let link = home.up().await;
    let names = |layers: &[lodge_exec::Layer]| -> Vec<String> {
        layers.iter().filter(|layer| layer.missing.is_none()).map(|layer| layer.name.clone()).collect()
    };
    // Only a sandbox that is not to have the host's network has one of its own, so that is tried for all.
    let of_network = |layer: &lodge_exec::Layer| {
        matches!(layer.name.as_str(), "netns" | "network_landlock" | "network_filter")
    };
    let (netns, others): (Vec<_>, Vec<_>) = layers.into_iter().partition(of_network);
    assert_eq!(
        netns.iter().take(2).map(|layer| &*layer.name).collect::<Vec<_>>(),
        ["netns", "network_landlock"]
    );
    assert_eq!(names(&others), names(&link.welcome.layers));
}

#[tokio::test]
async fn as_root_a_sandbox_without_a_user_is_refused() {
    let home = SandboxHome::new();
    let mut spec = home.spec();
    spec.uid = None;
    let started = home.host.start(&spec).await;
    assert_eq!(started.is_err(), is_root());
}
