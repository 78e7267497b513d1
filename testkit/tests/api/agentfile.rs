//! Agentfiles and the images that they become: built, named, inherited from, run and removed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::world::{AGENTFILE, ApiWorld, sh};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The runtime that the daemon carries, where it put it.
fn stock_runtime(world: &ApiWorld) -> PathBuf {
    let programs = fs::read_dir(world.lodge.home().join("bin")).expect("a directory").flatten();
    let mut runtimes = programs
        .filter(|program| program.file_name().to_str().is_some_and(|name| name.starts_with("runtime-")));
    runtimes.next().expect("a runtime").path()
}

/// Everything that an image can say, with a parent on disk below it.
const BASE: &str = "FROM scratch\nMODEL mock/m\nNAME base\nCONTEXT SOUL file://soul.md\nCONFIG max-iterations=3\n\
    CONFIG room! \"where it works\"\nENV GREETING=hello \"what it says\"\nBIN sh host:sh safe \"a shell\"\n\
    BIN cat host:cat\nADD data.txt \"facts\"\nLABEL description=\"a base\"\nLIMIT memory 256m\nLIMIT pids 64\n";
const CHILD: &str = "FROM ../src-base\nARG who=nobody\nNAME child\nCONTEXT SOUL <<E\nI am ${who}.\n  E2\nE\nCONFIG room=hall\n\
    ENV GREETING=\"hi ${who}\"\nADD data.txt\nLABEL team=a\nLIMIT pids 32\nLIMIT disk 1g\nNETWORK none\n\
    CAPABILITY note_save job_wait\nEXEC [\"serve\"]\n";

#[tokio::test]
async fn a_child_is_recorded_flat_with_what_its_parent_said_and_it_did_not() {
    let world = ApiWorld::new();
    let base = world.lodge.agent_dir("base", BASE, &[("soul.md", "base soul"), ("data.txt", "base data")]);
    let child = world.lodge.agent_dir("child", CHILD, &[("data.txt", "child data")]);
    let mut api = world.checked().await;
    let asked = json!({"path": child, "tags": ["child", "child:v1"], "build_args": {"who": "otter"}});
    let built = api.ok("image/build", asked.clone()).await;
    assert_eq!((&built["refs"], &built["agents"]), (&json!(["child:latest", "child:v1"]), &json!(0)));
    let image = api.ok("image/inspect", json!({"image": "child:v1"})).await;
    assert_eq!(image["digest"], built["digest"]);
    assert_eq!(
        (&image["name"], &image["model"], &image["from"]),
        (&json!("child"), &json!("mock/m"), &json!("../src-base"))
    );
    assert_eq!((&image["parents"], &image["exec"]), (&json!(1), &json!(["serve"])));
    assert_eq!(
        image["contexts"],
        json!([{"name": "SOUL", "description": null, "text": "I am ${who}.\n  E2"}])
    );
    assert_eq!(image["configs"][1]["value"], "hall");
    assert_eq!(image["envs"][0]["value"], "hi otter");
    assert_eq!(image["files"], json!([{"name": "data.txt", "bytes": 10, "description": null}]));
    assert_eq!(image["labels"], json!({"description": "a base", "team": "a"}));
    let limits = &image["limits"];
    assert_eq!(
        (&limits["memory_bytes"], &limits["pids"], &limits["disk_bytes"]),
        (&json!(256 << 20), &json!(32), &json!(1 << 30))
    );
    assert_eq!((&limits["cpu_ms"], &image["network"]), (&Value::Null, &json!({"mode": "none", "allow": []})));
    let idle = |name: &str| json!({"name": name, "granted": false});
    assert_eq!(image["capabilities"], json!([idle("note_save"), idle("job_wait")]));
    assert!(image["agentfile"].as_str().expect("its text").starts_with("FROM ../src-base\n"));
    // The same contents are the same image, wherever they stand; a change of the parent is another one.
    fs::create_dir(world.lodge.dir().join("elsewhere")).expect("a directory");
    for (from, to) in [(&base, "elsewhere/src-base"), (&child, "elsewhere/src-child")] {
        assert!(
            std::process::Command::new("cp")
                .arg("-r")
                .arg(from)
                .arg(world.lodge.dir().join(to))
                .status()
                .expect("cp")
                .success()
        );
    }
    let mut moved = asked.clone();
    moved["path"] = json!(world.lodge.dir().join("elsewhere/src-child"));
    assert_eq!(api.ok("image/build", moved).await["digest"], built["digest"]);
    fs::write(base.join("Agentfile"), BASE.replace("a base", "another base")).expect("a file");
    assert_ne!(api.ok("image/build", asked).await["digest"], built["digest"]);
    fs::remove_dir_all(base).expect("gone");
    let after = api.ok("image/inspect", json!({"image": "child"})).await;
    assert_eq!(after["labels"]["description"], "another base", "an image needs its parent no more");
}

#[tokio::test]
async fn an_agent_runs_from_an_image_by_name_and_an_image_is_a_parent_by_name() {
    let world = ApiWorld::new();
    let dir = world.lodge.agent_dir("base", &format!("{AGENTFILE}ENV WHO=base\n"), &[]);
    let digest = world.lodge.cli_ok(["image", "build", text(&dir), "-t", "tools/base:v2"]);
    assert!(digest.starts_with("sha256:") && digest.trim().len() == 71, "{digest}");
    let child = "FROM tools/base:v2\nNAME child\nENV MORE=1\n";
    let mut api = world.checked().await;
    let built = api.ok("image/build", json!({"content": child})).await;
    assert_eq!(built["refs"], json!(["child:latest"]));
    let agent = world.cli_json(&["--json", "run", "child", "-e", "MORE=2"]);
    assert_eq!(
        (&agent["name"], &agent["image"], &agent["image_digest"]),
        (&json!("child"), &json!("child:latest"), &built["digest"])
    );
    let said = api.answer("child", "s", &format!("{} [[reply:{{{{tool}}}}]]", sh("echo $WHO$MORE"))).await;
    assert!(said.contains("base2"), "{said}");
    let short = digest.trim()["sha256:".len()..][..12].to_owned();
    for (given, named) in
        [("tools/base:v2", "tools/base:v2"), (digest.trim(), digest.trim()), (short.as_str(), digest.trim())]
    {
        let made = api.ok("agent/create", json!({"image": given})).await;
        assert_eq!((&made["image"], &made["image_digest"]), (&json!(named), &json!(digest.trim())));
    }
    let list = world.cli_json(&["--json", "image", "ls"]);
    let agents: Vec<&Value> =
        list.as_array().expect("an array").iter().map(|image| &image["agents"]).collect();
    assert_eq!(agents.iter().filter_map(|count| count.as_u64()).sum::<u64>(), 4);
    let table = world.lodge.cli_ok(["image", "ls"]);
    assert!(
        table.starts_with("REF") && table.contains("child:latest") && table.contains("tools/base:v2"),
        "{table}"
    );
    let shown = world.lodge.cli_ok(["image", "inspect", "child"]);
    assert!(
        ["tools/base:v2", "used by", "sh host:sh (this host only) a shell"]
            .iter()
            .all(|part| shown.contains(part)),
        "{shown}"
    );
}

#[tokio::test]
async fn names_are_kept_across_a_kill_of_the_daemon_and_go_only_when_nobody_has_the_image() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let request = json!({"content": AGENTFILE, "tags": ["a:1", "a:2"], "request_id": "b1"});
    let built = api.ok("image/build", request.clone()).await;
    let agent = world.agent(&mut api, "user").await;
    assert_eq!(api.ok("agent/get", json!({"agent": agent})).await["image_digest"], built["digest"]);
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.ok("image/build", request).await, built, "one request is one build");
    let image = |name: &str| json!({"image": name});
    assert_eq!(api.ok("image/inspect", image("a:1")).await["used_by"], json!(["user"]));
    for name in ["a:1", "a:2"] {
        let removed = api.ok("image/remove", image(name)).await;
        assert_eq!((&removed["untagged"], &removed["removed"]), (&json!([name]), &json!(false)));
    }
    // `run` and `create` gave it another name, which is the last one now.
    let error = api.refused("image/remove", image("tester"), "image.in_use").await;
    assert!(error["message"].as_str().expect("words").contains("`user`"), "{error}");
    let digest = built["digest"].as_str().expect("a digest");
    api.refused("image/remove", image(digest), "image.in_use").await;
    api.agent_is("user", "ready").await;
    api.ok("agent/remove", json!({"agent": "user", "force": true})).await;
    assert_eq!(world.lodge.cli_ok(["image", "rm", "tester"]), "tester:latest\n");
    api.refused("image/inspect", image(digest), "image.not_found").await;
    assert_eq!(world.cli_json(&["--json", "image", "ls"]), json!([]));
    // What went can be built again, although a removed agent is still on record with it.
    assert_eq!(api.ok("image/build", json!({"content": AGENTFILE})).await["digest"], built["digest"]);
}

#[tokio::test]
async fn references_that_name_nothing_or_cannot_be_are_refused() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let huge = "x".repeat(1 << 20);
    for given in ["nobody", "nobody:v1", "team/nobody", "abcdef012345", &format!("sha256:{}", "0".repeat(64))]
    {
        for method in ["image/inspect", "image/remove", "agent/create"] {
            let error = api.refused(method, json!({"image": given}), "image.not_found").await;
            assert!(error["data"]["hint"].as_str().expect("a hint").contains("lodge image ls"), "{error}");
        }
    }
    for given in ["", "../x", "/etc/passwd", "a b", "a\0b", "a\nb", "a:b:c", "-x", "ü", huge.as_str()] {
        for method in ["image/inspect", "image/remove", "agent/create"] {
            let error = api.refused(method, json!({"image": given}), "image.bad_ref").await;
            assert!(error["message"].as_str().expect("words").len() < 500, "{error}");
        }
        let error =
            api.refused("image/build", json!({"content": AGENTFILE, "tags": [given]}), "image.bad_ref").await;
        assert!(error["data"]["hint"].is_string(), "{error}");
    }
    api.refused("image/build", json!({"content": AGENTFILE, "tags": ["a@sha256:12"]}), "image.bad_ref").await;
    api.refused("image/build", json!({"content": "FROM scratch\n"}), "image.no_name").await;
    api.refused("image/build", json!({}), "params.invalid").await;
    api.refused("image/build", json!({"content": AGENTFILE, "path": "/x"}), "params.invalid").await;
    api.refused("agent/create", json!({"image": "a", "path": "/x"}), "params.invalid").await;
    api.ok("image/build", json!({"content": AGENTFILE, "tags": ["a"]})).await;
    api.refused("agent/create", json!({"image": "a", "build_args": {"x": "1"}}), "params.invalid").await;
    let (code, out, err) = world.cli(&["run", "nobody"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.contains("no directory or Agentfile `nobody`, and no image") && err.contains("hint: "),
        "{err}"
    );
    let (code, _, err) = world.cli(&["run", "./nobody"]);
    assert!(code == 1 && err.contains("there is no Agentfile at `./nobody`"), "{err}");
    let (code, _, err) = world.cli(&["image", "rm", "nobody", "a"]);
    assert!(code == 1 && err.contains("no image `nobody`"), "{err}");
    assert_eq!(world.cli_json(&["--json", "image", "ls"]), json!([]), "the other one went all the same");
}

#[tokio::test]
async fn a_child_without_a_name_is_called_like_its_directory_and_leaves_its_parents_name_alone() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let base = world.lodge.agent_dir("base", "FROM scratch\nNAME base\nMODEL mock/m\n", &[]);
    let parent = api.ok("image/build", json!({"path": base})).await;
    assert_eq!(parent["refs"], json!(["base:latest"]));
    let child = world.lodge.agent_dir("child", "FROM ../src-base\nLABEL a=b\nLIMIT budget-usd 2\n", &[]);
    let built = api.ok("image/build", json!({"path": child})).await;
    assert_eq!(built["refs"], json!(["src-child:latest"]), "{built}");
    let agent = api.ok("agent/create", json!({"path": child.join("Agentfile")})).await;
    assert_eq!((&agent["name"], &agent["image"]), (&json!("base"), &json!("src-child:latest")));
    assert_eq!(agent["limits_not_enforced"], json!(["budget-usd"]));
    let inline = "FROM base\nLABEL c=d\n";
    api.refused("image/build", json!({"content": inline}), "image.no_name").await;
    let agent = api.ok("agent/create", json!({"content": inline})).await;
    assert_eq!((&agent["name"], &agent["image"]), (&json!("base-2"), &json!("agent:latest")));
    let found = api.ok("image/inspect", json!({"image": "base"})).await;
    assert_eq!(found["digest"], parent["digest"]);
}

#[tokio::test]
async fn every_mistake_of_a_chain_is_reported_at_once_and_nothing_is_recorded() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.lodge.agent_dir("base", "FROM scratch\nADD ../../etc/passwd x\nWAT\n", &[]);
    let child =
        "FROM ../src-base\nMCP a host:b\nADD gone.txt\nBIN rg some/image:1\nCONTEXT A file://link\nSKILL s\n";
    let dir = world.lodge.agent_dir("child", child, &[]);
    std::os::unix::fs::symlink("/etc/passwd", dir.join("link")).expect("a link");
    let error = api.refused("image/build", json!({"path": dir}), "agentfile.invalid").await;
    let told = error["message"].as_str().expect("words");
    for place in [
        "Agentfile:2:1: MCP is not supported by this release",
        "Agentfile:3:5: `gone.txt` could not be read",
        "Agentfile:4:1: there is no tool `some/image:1` here",
        "Agentfile:5:11: `link` leads out",
        "Agentfile:6:1: SKILL is not supported by this release",
        "/src-base/Agentfile:2:5: the path `../../etc/passwd` leaves",
        "/src-base/Agentfile:3:1: unknown instruction `WAT`",
    ] {
        assert!(told.contains(place), "{place} is missing: {told}");
    }
    let only =
        "FROM scratch\nMODEL mock/m\nNAME x\nSERVICE db postgres:16\nSCHEDULE @daily \"x\"\nON x \"y\"\n";
    let error = api.refused("agent/create", json!({"content": only}), "agentfile.unsupported").await;
    assert_eq!(error["message"].as_str().expect("words").matches("not supported by this release").count(), 3);
    for (content, code) in [
        ("FROM nobody:v1\n", "agentfile.invalid"),
        ("FROM ../src-base\n", "agentfile.invalid"),
        ("FROM /etc\n", "agentfile.invalid"),
        ("FROM scratch\nCAPABILITY fly\n", "agentfile.invalid"),
        ("FROM scratch\nNAME ../x\n", "agentfile.invalid"),
        ("FROM scratch\nADD x\n", "agentfile.invalid"),
    ] {
        api.refused("agent/create", json!({"content": content}), code).await;
    }
    let args = json!({"content": "FROM scratch\nARG tag=1\nMODEL mock/m\n", "build_args": {"tga": "2"}});
    let error = api.refused("agent/create", args, "agentfile.undeclared_arg").await;
    assert!(error["data"]["hint"].as_str().expect("a hint").contains("`tag`"), "{error}");
    assert_eq!(api.ok("image/list", json!({})).await["images"], json!([]));
    let (code, _, err) = world.cli(&["image", "build", text(&dir)]);
    assert!(code == 1 && err.contains("Agentfile:3:5"), "{err}");
}

#[tokio::test]
async fn places_that_hold_no_agentfile_are_refused_without_waiting_for_them() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let empty = world.lodge.dir().join("empty");
    fs::create_dir(&empty).expect("a directory");
    let pipe = world.lodge.dir().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let deep = format!("/{}", "x/".repeat(100_000));
    for path in [
        "",
        "/no/such/place",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/mem",
        "/a\0b",
        deep.as_str(),
        text(&empty),
        text(&pipe),
    ] {
        for method in ["agent/create", "image/build"] {
            let error = api.refused(method, json!({"path": path}), "agentfile.unreadable").await;
            assert!(error["message"].as_str().expect("words").len() < 500, "{error}");
            assert!(error["data"]["hint"].is_string(), "{error}");
        }
    }
    // A file that is no Agentfile is one with mistakes, and a huge one is not read to its end.
    api.refused("image/build", json!({"path": "/bin/sh"}), "agentfile.invalid").await;
    let huge = world.lodge.dir().join("huge");
    fs::File::create(&huge).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    let error = api.refused("image/build", json!({"path": huge}), "agentfile.invalid").await;
    assert!(error["message"].as_str().expect("words").contains("too large"), "{error}");
}

#[tokio::test]
async fn a_setting_that_the_runtime_cannot_use_fails_the_agent_until_it_is_changed() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}CONFIG max-tokens=lots\nCONFIG tool-timeout=90s\n");
    api.ok("agent/create", json!({"content": content, "name": "odd"})).await;
    let failed = api.agent_is("odd", "failed").await;
    assert_eq!((&failed["failure_reason"], failed.get("retry_at")), (&json!("config"), None), "{failed}");
    let detail = failed["failure_detail"].as_str().expect("a detail");
    assert!(
        detail.contains("max-tokens is a whole number from 1") && !detail.contains("tool-timeout"),
        "{detail}"
    );
    api.ok("agent/update", json!({"agent": "odd", "configs": {"max-tokens": "100"}})).await;
    api.ok("agent/start", json!({"agent": "odd"})).await;
    api.agent_is("odd", "ready").await;
}

#[tokio::test]
async fn a_setting_that_must_be_given_and_is_not_fails_the_agent_and_tells_the_fix() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let needy = format!("{AGENTFILE}CONFIG room! \"where\"\nCONFIG floor!\nCONFIG color\n");
    let dir = world.lodge.agent_dir("needy", &needy, &[]);
    let (code, out, err) = world.cli(&["run", text(&dir), "--name", "lost"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(
        err.contains("config")
            && err.contains("CONFIG room, floor must be set")
            && err.contains("--config room="),
        "{err}"
    );
    let failed = api.agent_is("lost", "failed").await;
    assert_eq!(failed["failure_reason"], "config");
    let given = world.cli_json(&[
        "--json",
        "run",
        text(&dir),
        "--name",
        "found",
        "--config",
        "room=hall",
        "--config",
        "floor=2",
    ]);
    assert_eq!(given["status"], "ready");
    let root = world.lodge.home().join("agents").join(given["id"].as_str().expect("an id"));
    let yaml = fs::read_to_string(root.join("etc/agent.yaml")).expect("a file");
    assert!(yaml.contains("room: hall") || yaml.contains("room: \"hall\""), "{yaml}");
    // A child settles what its parent asks for.
    api.ok("image/build", json!({"path": dir, "tags": ["needy"]})).await;
    let child = json!({"content": "FROM needy\nCONFIG room=hall\nCONFIG floor=1\n", "name": "child"});
    api.ok("agent/create", child).await;
    api.agent_is("child", "ready").await;
}

#[tokio::test]
async fn a_runtime_of_the_host_is_the_agents_runtime() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "stock").await;
    let program = world.lodge.dir().join("my-loop");
    fs::copy(stock_runtime(&world), &program).expect("a copy");
    let line = format!("{AGENTFILE}CONFIG dropped=1\nRUNTIME host:{}\nCONFIG kept=1\n", program.display());
    let agent = api.ok("agent/create", json!({"content": line, "name": "own"})).await;
    api.agent_is("own", "ready").await;
    assert_eq!(api.answer("own", "s", "[[reply:by my own loop]]").await, "by my own loop");
    let image = api.ok("image/inspect", json!({"image": agent["image"]})).await;
    assert_eq!(image["runtime"], format!("host:{}", program.display()));
    let keys: Vec<&Value> =
        image["configs"].as_array().expect("configs").iter().map(|config| &config["key"]).collect();
    assert_eq!(keys, ["kept"], "settings belong to the runtime they were written for");
    // Before what the image says, and by a name of the host's programs.
    for (runtime, code) in [
        ("host:no-such-program", "runtime.not_found"),
        ("host:/no/such/program", "runtime.not_found"),
        ("host:/etc/passwd", "runtime.not_found"),
        ("host:", "runtime.not_found"),
        ("host:../x", "runtime.not_found"),
        ("some/image:1", "bin.not_found"),
    ] {
        api.refused("agent/create", json!({"content": AGENTFILE, "runtime": runtime}), code).await;
    }
    let wrong =
        api.ok("agent/create", json!({"content": line, "name": "wrong", "runtime": "host:false"})).await;
    assert_eq!(api.agent_is("wrong", "failed").await["id"], wrong["id"]);
}

#[tokio::test]
async fn what_does_nothing_yet_is_recorded_and_shown_and_said_to_do_nothing() {
    let world = ApiWorld::new();
    let source = format!("{AGENTFILE}CAPABILITY note_save\nLIMIT budget-usd 2\nLIMIT context-tokens 9k\n");
    let dir = world.lodge.agent_dir("able", &source, &[]);
    let (code, out, err) = world.cli(&[
        "--json",
        "run",
        text(&dir),
        "--name",
        "able",
        "--cap",
        "job_wait",
        "--cap",
        "note_save",
    ]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("grant nothing in this release: `note_save`, `job_wait`"), "{err}");
    assert!(err.contains("not enforced in this release: `budget-usd`, `context-tokens`"), "{err}");
    let agent: Value = serde_json::from_str(&out).expect("JSON");
    let names: Vec<&Value> =
        agent["capabilities"].as_array().expect("a list").iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["note_save", "job_wait"]);
    let mut api = world.checked().await;
    let unknown = json!({"content": AGENTFILE, "capabilities": ["fly"]});
    api.refused("agent/create", unknown, "params.invalid").await;
}
