//! The root of an agent: what is in it, what is not, and that ordinary programs work in it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, is_root, sh};

const PATIENCE: Duration = Duration::from_secs(30);

/// What an agent's shell says to a script.
async fn says(api: &mut CheckedClient, agent: &str, script: &str) -> String {
    api.answer(agent, "s", &format!("{} [[reply:{{{{tool}}}}]]", sh(script))).await
}

/// Whether a shell finds that program on this host.
fn has(name: &str) -> bool {
    ["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(name).exists())
}

fn layer<'v>(view: &'v Value, name: &str) -> &'v Value {
    let layers = view["isolation"].as_array().expect("layers");
    layers.iter().find(|layer| layer["name"] == name).unwrap_or(&Value::Null)
}

/// A daemon with one agent that has the usual tools and these.
async fn with_tools(tools: &str) -> (ApiWorld, CheckedClient, Value) {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}NETWORK none\n{tools}");
    api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    let view = api.agent_is("one", "ready").await;
    (world, api, view)
}

#[tokio::test]
async fn an_agents_directory_is_its_root_and_its_path_on_the_host_leads_there() {
    let (_world, mut api, view) = with_tools("").await;
    assert_eq!(layer(&view, "private_root")["in_force"], true, "{view:#}");
    let root = view["root"].as_str().expect("a root");
    let script = format!(
        "pwd; echo $LODGE_AGENT_ROOT; cat {root}/etc/hostname; echo x > {root}/workspace/by-the-old-path; ls /workspace; \
         cat /etc/passwd; test -e {root}/../../daemon.db && echo LEAK; test -e /{root}/../../run && echo LEAK; hostname 2>/dev/null; true"
    );
    let said = says(&mut api, "one", &script).await;
    assert!(said.contains("/workspace\n/\none\nby-the-old-path\n"), "{said}");
    assert!(said.contains("agent:x:") && !said.contains("LEAK"), "{said}");
    assert!(Path::new(root).join("workspace/by-the-old-path").exists());
}

#[tokio::test]
async fn files_move_and_link_between_the_parts_of_a_root() {
    let (_world, mut api, _) = with_tools("BIN python3 host:python3 \"moves\"\n").await;
    let program = "import os\nopen('/workspace/a', 'w').write('x')\n\
        os.rename('/workspace/a', '/home/a'); os.link('/home/a', '/tmp/b'); os.rename('/tmp/b', '/var/lib/c')\n\
        os.rename('/var/lib/c', '/workspace/c'); print('mo' + 'ved')\n\
        for part in ('/workspace', '/home', '/etc', '/tmp'):\n    \
            try:\n        os.rename(part, '/other'); print('RENAMED', part)\n    except OSError: pass\n";
    let said = api
        .answer("one", "s", &format!("[[tool:python3|{}]] [[reply:{{{{tool}}}}]]", json!(["-c", program])))
        .await;
    assert!(said.contains("moved") && !said.contains("RENAMED"), "{said}");
}

#[tokio::test]
async fn an_agent_without_host_programs_sees_no_directory_of_the_host() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = "FROM scratch\nNAME bare\nMODEL mock/m\nNETWORK none\n";
    api.ok("agent/create", json!({"content": content, "name": "bare"})).await;
    let view = api.agent_is("bare", "ready").await;
    assert!(api.answer("bare", "s", "[[reply:well]]").await.contains("well"));
    assert_eq!(view["host_dirs"], json!([]), "{view:#}");
    let home = world.lodge.home().canonicalize().expect("a path");
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", view["pid"])).expect("mounts");
    let mut points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    points.retain(|point| !point.starts_with("/dev") && !point.starts_with("/sys/fs/cgroup"));
    points.sort_unstable();
    let expected = ["/", "/etc", "/opt", "/opt/lodge/runtime", "/proc", "/sys", "/sys/devices/system/cpu"];
    assert_eq!(points, expected, "{mounts}");
    assert!(!home.join("agents").join(view["id"].as_str().expect("an id")).join("usr").exists());
}

/// Programs that hosts have, each with what to ask it and what it answers.
const PROGRAMS: [(&str, &str, &str); 8] = [
    (
        "git",
        "git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty -m mess''age && git log --format=%s",
        "message",
    ),
    (
        "python3",
        "python3 -c 'import ssl, sqlite3, ctypes, getpass; print(getpass.getuser(), 6 * 7)'",
        "agent 42",
    ),
    ("perl", "perl -e 'print 6 * 7, \"\\n\"'", "42"),
    ("node", "node -e 'console.log(6 * 7, require(\"os\").cpus().length > 0)'", "42 true"),
    ("awk", "awk 'BEGIN { print 6 * 7 }'", "42"),
    ("openssl", "openssl version -d", "OPENSSLDIR"),
    ("make", "printf 'all:\\n\\t@echo ma''de\\n' > Makefile && make", "made"),
    ("bash", "bash -c 'echo $((6 * 7)) > >(cat); wait'", "42"),
];

#[tokio::test]
async fn programs_of_the_host_run_as_they_do_outside() {
    let found: Vec<_> = PROGRAMS.iter().filter(|(name, ..)| has(name)).collect();
    let tools: String =
        found.iter().map(|(name, ..)| format!("BIN {name} host:{name} \"a program\"\n")).collect();
    let (_world, mut api, view) = with_tools(&tools).await;
    assert!(view["host_dirs"].as_array().is_some_and(|dirs| dirs.contains(&json!("/usr"))), "{view:#}");
    for (name, script, answer) in found {
        let said = says(&mut api, "one", &format!("PATH=/opt/bins:/usr/bin:/bin; {script}")).await;
        assert!(said.contains(answer), "{name}: {said}");
    }
    if has("python3") {
        let script = "python3 -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix)'";
        let said = says(&mut api, "one", script).await;
        assert!(said.contains("/workspace/v"), "{said}");
    }
}

#[tokio::test]
async fn a_program_elsewhere_comes_with_its_own_tree_and_nothing_beside_it() {
    let world = ApiWorld::new();
    let base = world.lodge.dir().canonicalize().expect("a path");
    let kit = base.join("kit");
    fs::create_dir_all(kit.join("bin")).expect("a directory");
    fs::create_dir(kit.join("lib")).expect("a directory");
    fs::write(kit.join("lib/word"), "from its own tree\n").expect("a file");
    fs::write(base.join("beside"), "SECRET").expect("a file");
    let program = kit.join("bin/tool");
    fs::write(
        &program,
        "#!/bin/sh\ncat \"$(dirname \"$(readlink -f \"$0\")\")\"/../lib/word; cat ../../beside; ls /\n",
    )
    .expect("a file");
    for (path, mode) in [(&program, 0o755), (&base, 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    }
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}BIN tool host:{} \"elsewhere\"\n", program.display());
    api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    let view = api.agent_is("one", "ready").await;
    assert!(view["host_dirs"].as_array().is_some_and(|dirs| dirs.contains(&json!(kit))), "{view:#}");
    let inspected = world.lodge.cli_ok(["inspect", "one"]);
    assert!(inspected.contains(&format!("{} (read-only", kit.display())), "{inspected}");
    let script = format!(
        "PATH=/usr/bin:$PATH; tool; cat {}; ls {}; echo x > {}/lib/word; echo over",
        base.join("beside").display(),
        base.display(),
        kit.display()
    );
    let said = says(&mut api, "one", &script).await;
    assert!(
        said.contains("from its own tree") && said.contains("over") && !said.contains("SECRET"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(kit.join("lib/word")).expect("a file"), "from its own tree\n");
}

#[tokio::test]
async fn a_program_right_above_the_state_directory_does_not_bring_that_along() {
    let world = ApiWorld::new();
    let base = world.lodge.dir().canonicalize().expect("a path");
    let home = world.lodge.home().canonicalize().expect("a path");
    fs::create_dir(base.join("bin")).expect("a directory");
    let program = base.join("bin/tool");
    let script = format!(
        "#!/bin/sh\nls -A {0}; cat {0}/credentials.json {0}/providers.yaml; echo over\n",
        home.display()
    );
    fs::write(&program, script).expect("a file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}BIN tool host:{} \"beside the state\"\n", program.display());
    api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    api.agent_is("one", "ready").await;
    let said = says(&mut api, "one", "PATH=/usr/bin:$PATH; tool 2>/dev/null").await;
    assert!(said.contains("over"), "{said}");
    for word in ["daemon.db", "credentials.json", "token", "api-key"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
}

#[tokio::test]
async fn no_descriptor_of_a_keeper_leads_out_of_its_own_directory() {
    if !is_root() {
        // Other users may not inspect a keeper's descriptors.
        return;
    }
    let (_world, _api, view) = with_tools("").await;
    let keeper = view["pid"].as_u64().expect("a pid");
    let own =
        |way: &str| fs::metadata(format!("/proc/{keeper}/fd/3{way}")).map(|found| (found.dev(), found.ino()));
    assert!(own("/pid").is_ok(), "descriptor 3 is the keeper's directory");
    assert_eq!(own("/..").expect("a directory"), own("").expect("a directory"));
    let root = fs::metadata(format!("/proc/{keeper}/root")).expect("a root");
    let agents = fs::metadata(view["root"].as_str().expect("a root")).expect("a directory");
    assert_eq!((root.dev(), root.ino()), (agents.dev(), agents.ino()));
}

#[tokio::test]
async fn where_no_root_can_be_built_the_paths_of_the_host_are_reported_and_used() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_KEEPER_CRASH_AT", "keeper.no_private_root");
    world.lodge.start();
    let mut api = world.checked().await;
    api.ok("agent/create", json!({"content": AGENTFILE, "name": "one"})).await;
    let view = api.agent_is("one", "ready").await;
    let missing = layer(&view, "private_root");
    assert_eq!(missing["in_force"], false, "{view:#}");
    assert!(missing["why"].as_str().is_some_and(|why| why.contains("a test does without")), "{missing}");
    let root = PathBuf::from(view["root"].as_str().expect("a root"));
    let said = says(&mut api, "one", "pwd; echo $PATH; echo $LODGE_AGENT_ROOT; echo x > made; id -u").await;
    let shown = root.display();
    assert!(said.contains(&format!("{shown}/workspace\n{shown}/opt/bins\n{shown}\n")), "{said}");
    assert!(root.join("workspace/made").exists());
    let told = fs::read_to_string(root.join("etc/context/WORKSPACE.md")).expect("a file");
    assert!(told.contains(&format!("`{shown}/workspace`")), "{told}");
    let yaml = fs::read_to_string(root.join("etc/agent.yaml")).expect("a file");
    assert!(yaml.contains(&format!("{shown}/opt/bins/sh")), "{yaml}");
    // The next start has its own root again, with the matching paths.
    api.ok("agent/stop", json!({"agent": "one"})).await;
    api.ok("agent/start", json!({"agent": "one"})).await;
    api.agent_is("one", "ready").await;
    let said = says(&mut api, "one", "pwd; cat made").await;
    assert!(said.contains("/workspace\nx\n") && !said.contains(&root.display().to_string()), "{said}");
    let told = fs::read_to_string(root.join("etc/context/WORKSPACE.md")).expect("a file");
    assert!(told.contains("`/workspace`") && !told.contains(&root.display().to_string()), "{told}");
}

#[tokio::test]
async fn an_agent_whose_root_cannot_be_built_for_now_fails_and_says_what_to_do() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_KEEPER_CRASH_AT", "keeper.no_room");
    world.lodge.start();
    let mut api = world.checked().await;
    api.ok("agent/create", json!({"content": AGENTFILE, "name": "one"})).await;
    let view = api.agent_is("one", "failed").await;
    assert_eq!(view["failure_reason"], "init", "{view:#}");
    let detail = view["failure_detail"].as_str().expect("a detail");
    assert!(detail.contains("make room on the disk") && detail.contains("start the agent again"), "{detail}");
    api.ok("agent/start", json!({"agent": "one"})).await;
    let view = api.agent_is("one", "ready").await;
    assert_eq!(layer(&view, "private_root")["in_force"], true, "{view:#}");
}

#[tokio::test]
async fn settings_of_the_host_are_read_with_overlays_and_without() {
    for without in [None, Some("keeper.no_overlay")] {
        let mut world = ApiWorld::asleep();
        if let Some(point) = without {
            world.lodge.set_env("LODGED_KEEPER_CRASH_AT", point);
        }
        world.lodge.start();
        let mut api = world.checked().await;
        api.ok("agent/create", json!({"content": AGENTFILE, "name": "one"})).await;
        let view = api.agent_is("one", "ready").await;
        assert_eq!(layer(&view, "private_root")["in_force"], true, "{without:?}: {view:#}");
        let programs = layer(&view, "host_programs");
        match without {
            None => assert_eq!(programs["in_force"], true, "{programs}"),
            Some(_) => assert!(
                programs["why"].as_str().is_some_and(|why| why.contains("sockets in it can be reached")),
                "{programs}"
            ),
        }
        let script = "cat /etc/hostname; test -s /etc/ld.so.cache && echo cac''he; \
            for file in new hostname ld.so.cache; do echo x > /etc/$file && echo WR''OTE $file; done; \
            mkdir /etc/dir && echo WR''OTE dir; true";
        let said = says(&mut api, "one", script).await;
        assert!(said.contains("one\ncache\n"), "{without:?}: {said}");
        assert!(!said.contains("WROTE"), "{without:?}: {said}");
    }
}

#[tokio::test]
async fn a_program_whose_link_was_moved_shows_nothing_more_of_the_host() {
    let world = ApiWorld::new();
    let base = world.lodge.dir().canonicalize().expect("a path");
    for place in ["kit", "private"] {
        fs::create_dir_all(base.join(place).join("bin")).expect("a directory");
        let program = base.join(place).join("bin/tool");
        fs::write(&program, "#!/bin/sh\necho ran\n").expect("a file");
        fs::write(base.join("beside"), "SECRET").expect("a file");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    fs::write(base.join("private/secret"), "SECRET").expect("a file");
    let way = base.join("tool");
    std::os::unix::fs::symlink("kit/bin/tool", &way).expect("a link");
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}BIN tool host:{} \"elsewhere\"\n", way.display());
    api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    api.agent_is("one", "ready").await;
    let script = format!("PATH=/usr/bin:$PATH; tool; cat {0}/beside {0}/private/secret", base.display());
    let said = says(&mut api, "one", &script).await;
    assert!(said.contains("ran") && !said.contains("SECRET"), "{said}");
    api.ok("agent/stop", json!({"agent": "one"})).await;
    // An update of the program is none of the daemon's business.
    fs::write(base.join("kit/bin/tool"), "#!/bin/sh\necho newer\n").expect("a file");
    api.ok("agent/start", json!({"agent": "one"})).await;
    api.agent_is("one", "ready").await;
    assert!(says(&mut api, "one", "PATH=/usr/bin:$PATH; tool").await.contains("newer"));
    api.ok("agent/stop", json!({"agent": "one"})).await;
    fs::remove_file(&way).expect("it is removed");
    std::os::unix::fs::symlink("private/bin/tool", &way).expect("a link");
    api.ok("agent/start", json!({"agent": "one"})).await;
    let view = api.agent_is("one", "failed").await;
    let detail = view["failure_detail"].as_str().expect("a detail");
    assert_eq!(view["failure_reason"], "init", "{view:#}");
    assert!(detail.contains(&format!("leads to {} now", base.join("private").display())), "{detail}");
    // What it says to do is what helps.
    let command = detail.split('`').nth(1).expect("a command");
    let words = command.strip_prefix("lodge ").expect("a command").split(' ');
    world.lodge.cli_ok(words);
    api.ok("agent/start", json!({"agent": "one"})).await;
    api.agent_is("one", "ready").await;
    assert!(says(&mut api, "one", "PATH=/usr/bin:$PATH; tool").await.contains("ran"));
}

#[tokio::test]
async fn a_state_directory_can_be_removed_by_its_owner_after_agents_ran() {
    let (mut world, mut api, _) = with_tools("").await;
    assert!(
        says(&mut api, "one", "mkdir -p /workspace/a/b; echo x > /workspace/a/b/c; echo over")
            .await
            .contains("over")
    );
    drop(api);
    world.lodge.cli_ok(["shutdown", "--agents"]);
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false));
    let home = world.lodge.home();
    let removed = std::process::Command::new("rm").arg("-rf").arg(&home).output().expect("rm runs");
    assert!(removed.status.success() && !home.exists(), "{}", String::from_utf8_lossy(&removed.stderr));
}

/// The memory limit as each kind of cgroup has it in a sandbox.
const LIMIT_FILES: &str =
    "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes";

/// Programs that choose the size of their heap by the limit, and print it in bytes.
const HEAPS: [(&str, &str); 2] = [
    (
        "node",
        "node -e 'console.log(\"he\" + \"ap\", require(\"v8\").getHeapStatistics().heap_size_limit, \
         require(\"os\").availableParallelism())'",
    ),
    (
        "java",
        "echo he''ap $(java -XX:+PrintFlagsFinal -version 2>/dev/null | sed -n 's/.* MaxHeapSize *= *\\([0-9]*\\).*/\\1/p') \
         $(java -XshowSettings:system -version 2>&1 | sed -n 's/.*Effective CPU Count: //p')",
    ),
];

#[tokio::test]
async fn programs_see_the_memory_that_they_may_use() {
    const LIMIT: u64 = 512 << 20;
    let found: Vec<_> = HEAPS.iter().filter(|(name, _)| has(name)).collect();
    let tools: String =
        found.iter().map(|(name, _)| format!("BIN {name} host:{name} \"a program\"\n")).collect();
    let tools = format!("LIMIT memory 512m\nBIN sed host:sed \"lines\"\n{tools}");
    let (_world, mut api, view) = with_tools(&tools).await;
    let limits = view["limits"].as_array().expect("limits");
    let memory = limits.iter().find(|limit| limit["name"] == "memory").expect("a limit");
    if !memory["by"].as_str().is_some_and(|by| by.starts_with("cgroup")) {
        // Without a cgroup there is nothing that programs could read.
        return;
    }
    let said = says(&mut api, "one", LIMIT_FILES).await;
    assert!(said.contains(&LIMIT.to_string()), "{said}");
    let processors = std::thread::available_parallelism().expect("processors").get() as u64;
    for (name, script) in found {
        let said = says(&mut api, "one", script).await;
        let numbers = said.split_once("heap ").map(|(_, rest)| rest).unwrap_or_default();
        let numbers: Vec<u64> =
            numbers.split_whitespace().map_while(|number| number.parse().ok()).take(2).collect();
        assert!(matches!(numbers[..], [1..LIMIT, seen] if seen == processors), "{name}: {said}");
    }
}
