//! Sandboxes that belong to no agent, and execs in them: their life, their output, and what a killed daemon leaves.

use std::fs;
use std::path::PathBuf;

use lodge_proto::base64;
use lodge_testkit::lodge::{PATIENCE, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, family, id, kill};

/// A sandbox with a shell and the ordinary utilities.
async fn create(api: &mut CheckedClient, chosen: &str) -> Value {
    let params = json!({"id": chosen, "shell": true, "network": ["none"], "labels": {"team": "web"}});
    let created = api.ok("sandbox/create", params).await;
    assert_eq!((&created["id"], &created["status"]), (&json!(chosen), &json!("pending")));
    sandbox_is(api, chosen, "ready").await
}

async fn sandbox_is(api: &mut CheckedClient, sandbox: &str, status: &str) -> Value {
    api.until("sandbox/get", json!({"sandbox": sandbox}), |view| {
        view["status"] == status && view["stopping"] == false
    })
    .await
}

async fn run(api: &mut CheckedClient, sandbox: &str, script: &str) -> String {
    let params = json!({"sandbox": sandbox, "command": ["sh", "-c", script]});
    id(&api.ok("exec/run", params).await).to_owned()
}

async fn exec_is(api: &mut CheckedClient, exec: &str, status: &str) -> Value {
    api.until("exec/get", json!({"exec": exec}), |view| view["status"] == status).await
}

/// All of both streams, read to the end.
async fn output(api: &mut CheckedClient, exec: &str) -> [String; 2] {
    let mut all = [Vec::new(), Vec::new()];
    for (stream, bytes) in ["stdout", "stderr"].into_iter().zip(&mut all) {
        let mut from = 0;
        loop {
            let asked =
                json!({"exec": exec, format!("{stream}_from"): from, "limit": 1000, "wait_ms": 10_000});
            let piece = api.ok("exec/output", asked).await[stream].clone();
            let data = piece["data"].as_str().expect("data");
            bytes.extend(match piece["encoding"].as_str() {
                Some("base64") => base64::decode(data).expect("base64"),
                _utf8 => data.as_bytes().to_vec(),
            });
            from = piece["next"].as_u64().expect("a number");
            if piece["end"] == true {
                break;
            }
        }
    }
    all.map(|bytes| String::from_utf8(bytes).expect("text"))
}

/// The events of a sandbox, whose numbers have no gap.
async fn events(api: &mut CheckedClient, sandbox: &str) -> Vec<String> {
    let page = api.ok("event/list", json!({"sandbox": sandbox, "limit": 500})).await;
    let events = page["events"].as_array().expect("events");
    for (at, event) in events.iter().enumerate() {
        assert_eq!((&event["stream"], &event["stream_seq"]), (&json!(sandbox), &json!(at + 1)));
    }
    events.iter().map(|event| event["kind"].as_str().expect("a kind").to_owned()).collect()
}

fn dir_of(world: &ApiWorld, sandbox: &str) -> PathBuf {
    world.lodge.home().join("sandboxes").join(sandbox)
}

/// Nothing of a sandbox is left in the state directory.
fn assert_nothing_left(world: &ApiWorld, sandbox: &str) {
    let home = world.lodge.home();
    for left in
        [dir_of(world, sandbox), home.join("run").join(sandbox), home.join(format!("logs/{sandbox}.log"))]
    {
        assert!(!left.exists(), "{}", left.display());
    }
}

#[tokio::test]
async fn a_sandbox_is_created_used_stopped_resumed_and_deleted() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let ready = create(&mut api, "box-1").await;
    assert_eq!((&ready["executor"], &ready["network"]["mode"]), (&json!("system"), &json!("none")));
    let missing: Vec<&Value> = ready["isolation"]
        .as_array()
        .expect("layers")
        .iter()
        .filter(|layer| layer["in_force"] == false)
        .collect();
    let expected = api.ok("info", json!({})).await["isolation"].clone();
    let expected: Vec<&Value> =
        expected.as_array().expect("layers").iter().filter(|layer| layer["in_force"] == false).collect();
    assert_eq!(missing.len(), expected.len(), "it has the isolation of an agent: {missing:?}, {expected:?}");
    let exec = run(&mut api, "box-1", "echo out; echo err >&2; echo kept > file; exit 3").await;
    let ended = exec_is(&mut api, &exec, "finished").await;
    assert_eq!((&ended["exit_code"], &ended["truncated"]), (&json!(3), &json!(false)));
    assert_eq!(output(&mut api, &exec).await, ["out\n", "err\n"]);
    let on_host =
        |stream: &str| fs::read_to_string(dir_of(&world, "box-1").join(format!("logs/{exec}.{stream}.log")));
    assert_eq!((on_host("stdout").unwrap(), on_host("stderr").unwrap()), ("out\n".into(), "err\n".into()));
    assert_eq!(ended["stdout_path"], format!("sandboxes/box-1/logs/{exec}.stdout.log"));
    // Inside, the output of execs can be read and not written.
    let script = format!("cat /var/log/lodge/{exec}.stdout.log; echo x >> /var/log/lodge/{exec}.stdout.log");
    let looks = run(&mut api, "box-1", &script).await;
    assert_ne!(exec_is(&mut api, &looks, "finished").await["exit_code"], 0);
    assert_eq!(output(&mut api, &looks).await[0], "out\n");
    assert_eq!(on_host("stdout").unwrap(), "out\n");
    // A stop keeps the files.
    api.ok("sandbox/stop", json!({"sandbox": "box-1"})).await;
    sandbox_is(&mut api, "box-1", "stopped").await;
    assert!(!world.lodge.home().join("run/box-1").exists() || world.lodge.keepers().is_empty());
    api.refused("exec/run", json!({"sandbox": "box-1", "command": ["sh"]}), "sandbox.wrong_state").await;
    api.ok("sandbox/stop", json!({"sandbox": "box-1"})).await;
    api.ok("sandbox/resume", json!({"sandbox": "box-1"})).await;
    sandbox_is(&mut api, "box-1", "ready").await;
    let again = run(&mut api, "box-1", "cat file").await;
    assert_eq!(output(&mut api, &again).await[0], "kept\n");
    api.ok("sandbox/remove", json!({"sandbox": "box-1"})).await;
    let deleted = sandbox_is(&mut api, "box-1", "deleted").await;
    assert!(deleted["deleted_at"].is_string(), "{deleted:#}");
    assert_nothing_left(&world, "box-1");
    // Its id and those of its execs are never used again.
    api.refused("sandbox/create", json!({"id": "box-1"}), "sandbox.id_taken").await;
    api.refused("sandbox/remove", json!({"sandbox": "box-1"}), "sandbox.not_found").await;
    let kinds = events(&mut api, "box-1").await;
    let sandbox: Vec<&str> =
        kinds.iter().map(String::as_str).filter(|kind| kind.starts_with("sandbox.")).collect();
    let start = ["sandbox.accepted", "sandbox.preparing", "sandbox.ready"];
    let end = ["sandbox.delete_requested", "sandbox.deleted"];
    assert_eq!(sandbox, [&start[..], &["sandbox.stop_requested", "sandbox.stopped"], &start, &end].concat());
    assert_eq!(kinds.iter().filter(|kind| *kind == "exec.started").count(), 3);
    assert_eq!(kinds.iter().filter(|kind| *kind == "exec.finished").count(), 3);
}

#[tokio::test]
async fn bad_requests_are_refused_before_anything_is_recorded() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let image = json!({"image": "docker.io/library/alpine"});
    let refused = api.refused("sandbox/create", image, "sandbox.no_images").await;
    assert!(refused.to_string().contains("docker") && refused.to_string().contains("--bin"), "{refused}");
    for bad in ["abc", "-abcd", "a b c d", "a/../b", "sbx_0000", "daemon"] {
        api.refused("sandbox/create", json!({"id": bad}), "sandbox.bad_id").await;
    }
    api.refused("sandbox/create", json!({"bins": {"x": "alpine"}}), "sandbox.bad_tool").await;
    api.refused("sandbox/create", json!({"bins": {"x": "host:no-such-program"}}), "bin.not_found").await;
    api.refused("sandbox/create", json!({"bins": {"a/b": "host:sh"}}), "params.invalid").await;
    api.refused("sandbox/create", json!({"network": ["none", "lan"]}), "params.invalid").await;
    api.refused("sandbox/create", json!({"env": {"PATH": "/"}}), "agent.bad_env").await;
    api.refused("sandbox/create", json!({"labels": {"io.lodge.x": "1"}}), "sandbox.bad_label").await;
    api.refused("sandbox/create", json!({"limits": {"memory": "much"}}), "params.invalid").await;
    let mount = json!({"host": world.lodge.home(), "target": "/workspace/x"});
    api.refused("sandbox/create", json!({"mounts": [mount]}), "agent.bad_mount").await;
    assert_eq!(api.ok("sandbox/list", json!({"all": true})).await["sandboxes"], json!([]));
    api.refused("sandbox/get", json!({"sandbox": "nobody"}), "sandbox.not_found").await;
    api.refused("exec/get", json!({"exec": "nobody"}), "exec.not_found").await;
    create(&mut api, "box-1").await;
    api.refused("sandbox/create", json!({"id": "box-1"}), "sandbox.id_taken").await;
    let run = |more: Value| {
        let mut params = json!({"sandbox": "box-1", "command": ["sh", "-c", "true"]});
        params.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        params
    };
    api.refused("exec/run", run(json!({"command": []})), "params.invalid").await;
    api.refused("exec/run", run(json!({"cwd": "relative"})), "params.invalid").await;
    api.refused("exec/run", run(json!({"id": "exe_1"})), "exec.bad_id").await;
    api.ok("exec/run", run(json!({"id": "exec-1"}))).await;
    exec_is(&mut api, "exec-1", "finished").await;
    api.refused("exec/run", run(json!({"id": "exec-1"})), "exec.id_taken").await;
    api.refused("exec/cancel", json!({"exec": "exec-1"}), "exec.not_running").await;
    // A request is decided once.
    let first = api.ok("exec/run", run(json!({"request_id": "r1"}))).await;
    assert_eq!(id(&api.ok("exec/run", run(json!({"request_id": "r1"}))).await), id(&first));
    let head = api.ok("event/list", json!({"sandbox": "box-1"})).await["head"].as_u64().expect("a number");
    api.refused("event/list", json!({"sandbox": "box-1", "since": head + 10}), "cursor.future").await;
    // A program that is not there fails, and its exec says how.
    let nothing = api.ok("exec/run", run(json!({"command": ["no-such-program"]}))).await;
    let failed = exec_is(&mut api, id(&nothing), "failed").await;
    assert_eq!(failed["error_code"], "not_found", "{failed:#}");
}

#[tokio::test]
async fn a_cancel_ends_the_whole_tree_and_keeps_what_was_written() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    create(&mut api, "box-1").await;
    let script = "echo begun; sleep 1000 & (sleep 1000; echo never) & wait";
    let exec = run(&mut api, "box-1", script).await;
    api.until("exec/get", json!({"exec": exec}), |view| view["stdout_bytes"] == 6).await;
    let keeper = until("one keeper", || world.lodge.keepers().first().copied());
    assert!(family(keeper).len() > 2);
    assert_eq!(api.ok("exec/cancel", json!({"exec": exec})).await["cancelling"], true);
    exec_is(&mut api, &exec, "cancelled").await;
    until("the tree is gone", || (family(keeper).len() <= 1).then_some(()));
    assert_eq!(output(&mut api, &exec).await, ["begun\n", ""]);
    // A stop cancels what runs.
    let other = run(&mut api, "box-1", "sleep 1000").await;
    api.ok("sandbox/stop", json!({"sandbox": "box-1"})).await;
    sandbox_is(&mut api, "box-1", "stopped").await;
    let cancelled = api.ok("exec/get", json!({"exec": other})).await;
    assert_eq!(cancelled["status"], "cancelled", "{cancelled:#}");
    assert!(world.lodge.keepers().is_empty());
}

#[tokio::test]
async fn an_exec_goes_on_through_killed_daemons_with_all_of_its_output_and_its_exit_code() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    create(&mut api, "box-1").await;
    let parts = 4;
    let script = format!(
        "part=0; while [ $part -lt {parts} ]; do until test -e go$part; do sleep 0.01; done; \
         seq 1 2000; echo $part >&2; part=$((part + 1)); done; exit 7"
    );
    let exec = run(&mut api, "box-1", &script).await;
    for part in 0..parts {
        world.lodge.kill9();
        fs::write(dir_of(&world, "box-1").join(format!("root/workspace/go{part}")), "").expect("a file");
        world.lodge.start();
        api = api.again(&world.lodge).await;
    }
    let ended = exec_is(&mut api, &exec, "finished").await;
    assert_eq!((&ended["exit_code"], &ended["truncated"]), (&json!(7), &json!(false)));
    let numbers: String = (1..=2000).map(|number| format!("{number}\n")).collect();
    let [stdout, stderr] = output(&mut api, &exec).await;
    assert!(stdout == numbers.repeat(parts), "{} bytes", stdout.len());
    assert_eq!(stderr, "0\n1\n2\n3\n");
    sandbox_is(&mut api, "box-1", "ready").await;
    let kinds = events(&mut api, "box-1").await;
    assert_eq!(kinds.iter().filter(|kind| kind.starts_with("exec.")).count(), 2, "{kinds:?}");
}

#[tokio::test]
async fn a_daemon_that_is_killed_at_any_point_is_continued_by_the_next_one() {
    for (point, then) in [
        ("after_sandbox", "ready"),
        ("during_start", "ready"),
        ("after_exec", "finished"),
        ("before_exec_start", "finished"),
        ("after_exec_start", "finished"),
        ("before_exec_end", "finished"),
        ("after_exec_end", "finished"),
        ("during_stop", "stopped"),
    ] {
        let mut world = ApiWorld::asleep();
        world.lodge.set_env("LODGED_CRASH_AT", point);
        world.lodge.start();
        let mut api = world.checked().await;
        let created = json!({"id": "box-1", "shell": true, "network": ["none"], "request_id": "create"});
        let command = json!({"sandbox": "box-1", "id": "exec-1", "command": ["sh", "-c", "echo once; exit 5"],
            "request_id": "run"});
        if then == "ready" {
            api.last("sandbox/create", created.clone()).await;
        } else {
            api.ok("sandbox/create", created.clone()).await;
            sandbox_is(&mut api, "box-1", "ready").await;
            if then == "stopped" {
                api.last("sandbox/stop", json!({"sandbox": "box-1"})).await;
            } else {
                api.last("exec/run", command.clone()).await;
            }
        }
        let killed = world.lodge.wait_killed(PATIENCE);
        assert_eq!(killed, Some(true), "{point} was not passed:\n{}", world.lodge.log());
        world.lodge.unset_env("LODGED_CRASH_AT");
        world.lodge.start();
        let mut api = api.again(&world.lodge).await;
        // What was answered is there, and what was not is done now, under the same request.
        api.ok("sandbox/create", created).await;
        if then == "stopped" {
            sandbox_is(&mut api, "box-1", "stopped").await;
        } else {
            sandbox_is(&mut api, "box-1", "ready").await;
            api.ok("exec/run", command).await;
            let ended = exec_is(&mut api, "exec-1", "finished").await;
            assert_eq!(ended["exit_code"], 5, "{point}");
            assert_eq!(output(&mut api, "exec-1").await[0], "once\n", "{point}");
        }
        events(&mut api, "box-1").await;
        api.ok("sandbox/remove", json!({"sandbox": "box-1"})).await;
        sandbox_is(&mut api, "box-1", "deleted").await;
        assert_nothing_left(&world, "box-1");
        assert!(world.lodge.keepers().is_empty(), "{point}");
    }
}

#[tokio::test]
async fn a_dead_keeper_fails_its_sandbox_and_its_execs_are_lost() {
    for daemon_lives in [true, false] {
        let mut world = ApiWorld::new();
        let mut api = world.checked().await;
        create(&mut api, "box-1").await;
        let done = run(&mut api, "box-1", "echo done").await;
        exec_is(&mut api, &done, "finished").await;
        let exec = run(&mut api, "box-1", "echo begun; sleep 1000").await;
        api.until("exec/get", json!({"exec": exec}), |view| view["stdout_bytes"] == 6).await;
        let keeper = world.lodge.keepers()[0];
        if !daemon_lives {
            world.lodge.kill9();
        }
        kill(keeper, libc::SIGKILL);
        if !daemon_lives {
            world.lodge.start();
            api = api.again(&world.lodge).await;
        }
        let failed = sandbox_is(&mut api, "box-1", "failed").await;
        assert_eq!(failed["error_code"], "died", "{failed:#}");
        let lost = exec_is(&mut api, &exec, "failed").await;
        assert_eq!(lost["error_code"], "lost", "{lost:#}");
        assert_eq!(output(&mut api, &exec).await[0], "begun\n");
        assert_eq!(api.ok("exec/get", json!({"exec": done})).await["status"], "finished");
        // It can be used again.
        api.ok("sandbox/resume", json!({"sandbox": "box-1"})).await;
        sandbox_is(&mut api, "box-1", "ready").await;
        let again = run(&mut api, "box-1", "echo again").await;
        assert_eq!(output(&mut api, &again).await[0], "again\n");
    }
}

#[tokio::test]
async fn a_sandbox_that_is_ended_while_it_starts_leaves_nothing() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for (chosen, method, status) in
        [("box-1", "sandbox/stop", "stopped"), ("box-2", "sandbox/remove", "deleted")]
    {
        api.ok("sandbox/create", json!({"id": chosen, "shell": true})).await;
        api.ok(method, json!({"sandbox": chosen})).await;
        sandbox_is(&mut api, chosen, status).await;
    }
    assert!(world.lodge.keepers().is_empty());
    assert_nothing_left(&world, "box-2");
    until("what its processes left is removed", || {
        (!world.lodge.home().join("run/box-1").exists()).then_some(())
    });
}

#[tokio::test]
async fn sandboxes_are_listed_by_status_and_label_in_pages() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for chosen in ["box-1", "box-2", "box-3"] {
        create(&mut api, chosen).await;
    }
    api.ok("sandbox/stop", json!({"sandbox": "box-2"})).await;
    sandbox_is(&mut api, "box-2", "stopped").await;
    let ids = |page: &Value| -> Vec<String> {
        page["sandboxes"].as_array().expect("sandboxes").iter().map(|view| id(view).to_owned()).collect()
    };
    assert_eq!(ids(&api.ok("sandbox/list", json!({})).await), ["box-3", "box-1"]);
    assert_eq!(ids(&api.ok("sandbox/list", json!({"status": "stopped"})).await), ["box-2"]);
    let first = api.ok("sandbox/list", json!({"all": true, "limit": 2})).await;
    assert_eq!((ids(&first), &first["next"]), (vec!["box-3".into(), "box-2".into()], &json!("box-2")));
    let rest = api.ok("sandbox/list", json!({"all": true, "before": "box-2"})).await;
    assert_eq!((ids(&rest), &rest["next"]), (vec!["box-1".into()], &Value::Null));
    assert_eq!(ids(&api.ok("sandbox/list", json!({"labels": {"team": "web"}})).await).len(), 2);
    assert_eq!(ids(&api.ok("sandbox/list", json!({"labels": {"team": "ops"}})).await).len(), 0);
    let exec = run(&mut api, "box-1", "true").await;
    exec_is(&mut api, &exec, "finished").await;
    for found in [json!({}), json!({"sandbox": "box-1"}), json!({"status": "finished"})] {
        assert_eq!(id(&api.ok("exec/list", found).await["execs"][0]), exec);
    }
    for nothing in [json!({"sandbox": "box-3"}), json!({"status": "running"}), json!({"before": exec})] {
        assert_eq!(api.ok("exec/list", nothing).await["execs"], json!([]));
    }
    api.refused("sandbox/get", json!({"sandbox": "box"}), "sandbox.ambiguous").await;
}

#[tokio::test]
async fn the_command_line_runs_programs_and_exits_as_they_do() {
    let world = ApiWorld::new();
    let shared = world.lodge.dir().join("shared");
    fs::create_dir(&shared).expect("a directory");
    let mount = format!("{}:/workspace/shared:ro", shared.display());
    let created = ["sandbox", "create", "--id", "box-1", "--shell", "--bin", "say=host:echo", "-v", &mount];
    let created = [&created[..], &["-e", "WHO=box", "--label", "team=web", "--network", "none"]].concat();
    assert_eq!(world.cli(&created), (0, "box-1\n".into(), String::new()));
    let run = |args: &[&str]| world.cli(&[&["exec", "run"], args].concat());
    assert_eq!(run(&["box-1", "--", "say", "hello"]), (0, "hello\n".into(), String::new()));
    let script = "echo $WHO $MORE; pwd >&2; exit 9";
    let told = run(&["box-1", "--cwd", "/tmp", "-e", "MORE=x", "--id", "exec-1", "--", "sh", "-c", script]);
    assert_eq!(told, (9, "box x\n".into(), "/tmp\n".into()));
    assert_eq!(run(&["box-1", "--", "sh", "-c", "kill -9 $$"]).0, 137);
    assert_eq!(run(&["box-1", "--", "nothing"]).0, 127);
    assert_eq!(run(&["nobody", "--", "sh"]).0, 125);
    assert_eq!(run(&["box-1"]).0, 2);
    let view = world.cli_json(&["--json", "exec", "get", "exec-1"]);
    assert_eq!((&view["exit_code"], &view["command"]), (&json!(9), &json!(["sh", "-c", script])));
    assert_eq!(world.lodge.cli_ok(["exec", "logs", "exec-1"]), "box x\n");
    assert_eq!(world.lodge.cli_ok(["exec", "logs", "--stderr", "exec-1"]), "/tmp\n");
    let started = world.lodge.cli_ok(["exec", "run", "-d", "box-1", "--", "sh", "-c", "sleep 1000"]);
    let started = started.trim();
    assert_eq!(world.lodge.cli_ok(["exec", "ls", "box-1", "--status", "running", "-q"]).trim(), started);
    assert_eq!(world.lodge.cli_ok(["exec", "cancel", started]).trim(), started);
    let listed = world.cli_json(&["--json", "sandbox", "ls"]);
    assert_eq!((id(&listed[0]), &listed[0]["status"]), ("box-1", &json!("ready")));
    let text = world.lodge.cli_ok(["sandbox", "get", "box-1"]);
    for said in ["say (host:echo)", "WHO=box", ":/workspace/shared:ro", "team=web", "network     none"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert_eq!(world.cli(&["sandbox", "stop", "box-1"]), (0, "box-1\n".into(), String::new()));
    assert_eq!(world.cli(&["sandbox", "resume", "box-1"]), (0, "box-1\n".into(), String::new()));
    assert_eq!(world.cli(&["sandbox", "rm", "box-1"]), (0, "box-1\n".into(), String::new()));
    assert_eq!(world.lodge.cli_ok(["sandbox", "ls", "-q"]), "");
    let events = world.lodge.cli_ok(["sandbox", "events", "box-1", "--since", "0"]);
    assert!(events.contains("sandbox.deleted") && events.contains("exec.cancelled"), "{events}");
    let (code, _, err) = world.cli(&["sandbox", "create", "--image", "alpine"]);
    assert!(code == 1 && err.contains("docker executor") && err.contains("--bin"), "{err}");
}

#[tokio::test]
async fn a_client_attaches_to_a_sandbox_and_reads_its_events_from_any_point() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    create(&mut api, "box-1").await;
    let exec = run(&mut api, "box-1", "until test -e go; do sleep 0.01; done").await;
    let mut client = world.lodge.client().await;
    let attached =
        client.call_value("client/attach", json!({"sandbox": "box-1", "since": 0})).await.expect("attached");
    assert_eq!(
        (id(&attached["state"]["sandboxes"][0]), id(&attached["state"]["execs"][0])),
        ("box-1", exec.as_str())
    );
    fs::write(dir_of(&world, "box-1").join("root/workspace/go"), "").expect("a file");
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "exec.finished") {
        let note = client.next().await.expect("a notification");
        if note.method == "event" {
            assert_eq!(note.params["stream_seq"], kinds.len() + 1);
            kinds.push(note.params["kind"].as_str().expect("a kind").to_owned());
        }
    }
    assert_eq!(kinds, events(&mut api, "box-1").await);
}
