//! A state directory and the processes it names rebuild everything.

use lodge_testkit::lodge::until;
use rusqlite::Connection;
use serde_json::{Map, Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, id, sh};

/// Everything that the API shows, except what a restart is documented to change.
async fn everything(api: &mut CheckedClient) -> Map<String, Value> {
    let mut all = Map::new();
    let mut info = api.ok("info", json!({})).await;
    for changed in ["epoch", "pid", "started_at", "http_addr", "http", "storage"] {
        info.as_object_mut().expect("an object").remove(changed);
    }
    all.insert("info".to_owned(), info);
    let mut agents = api.ok("agent/list", json!({"all": true})).await;
    for agent in agents["agents"].as_array_mut().expect("agents") {
        let params = json!({"agent": id(agent)});
        let mut detail = api.ok("agent/get", params.clone()).await;
        for view in [&mut detail, agent] {
            view.as_object_mut().expect("an object").remove("last_heartbeat_at");
        }
        all.insert(format!("agent {}", id(&detail)), detail);
        all.insert(format!("log {}", params["agent"]), api.ok("agent/logs", params).await["path"].clone());
    }
    all.insert("agents".to_owned(), agents);
    all.insert("lineages".to_owned(), api.ok("lineage/list", json!({})).await);
    let sessions = api.ok("session/list", json!({})).await;
    for session in sessions["sessions"].as_array().expect("sessions") {
        let params = json!({"session": id(session)});
        let turns = api.ok("turn/list", params.clone()).await;
        for turn in turns["turns"].as_array().expect("turns") {
            all.insert(format!("turn {}", id(turn)), api.ok("turn/get", json!({"turn": id(turn)})).await);
        }
        all.insert(format!("turns {}", id(session)), turns);
        all.insert(format!("session {}", id(session)), api.ok("session/get", params.clone()).await);
        all.insert(format!("messages {}", id(session)), api.ok("session/messages", params).await);
    }
    all.insert("sessions".to_owned(), sessions);
    let jobs = api.ok("job/list", json!({})).await;
    for job in jobs["jobs"].as_array().expect("jobs") {
        for stream in ["stdout", "stderr", "merged"] {
            let params = json!({"job": id(job), "stream": stream});
            all.insert(format!("{stream} {}", id(job)), api.ok("job/output", params).await);
        }
    }
    all.insert("jobs".to_owned(), jobs);
    let sandboxes = api.ok("sandbox/list", json!({"all": true})).await;
    for sandbox in sandboxes["sandboxes"].as_array().expect("sandboxes") {
        let of = json!({"sandbox": id(sandbox)});
        all.insert(format!("events {}", id(sandbox)), api.ok("event/list", of).await["events"].clone());
    }
    all.insert("sandboxes".to_owned(), sandboxes);
    let execs = api.ok("exec/list", json!({})).await;
    for exec in execs["execs"].as_array().expect("execs") {
        let of = json!({"exec": id(exec), "stdout_from": 0, "stderr_from": 0});
        all.insert(format!("output {}", id(exec)), api.ok("exec/output", of).await);
    }
    all.insert("execs".to_owned(), execs);
    all.insert("providers".to_owned(), api.ok("provider/list", json!({"reveal": true})).await);
    all
}

/// Two agents at work or ready, one stopped, one failed, one removed; turns done, failed, interrupted, running
/// and queued; a job that runs, and one of an agent that is gone.
async fn furnish(world: &ApiWorld, api: &mut CheckedClient) {
    let busy = world.agent(api, "busy").await;
    let calm = world.agent(api, "calm").await;
    world.agent(api, "asleep").await;
    world.agent(api, "gone").await;
    furnish_sandboxes(api).await;
    let failing = format!("{AGENTFILE}EXEC [\"no-such-command\"]\n");
    api.ok("agent/create", json!({"content": failing, "name": "broken", "labels": {"k": "v"}})).await;
    for n in 0..3 {
        let text = format!(
            "{} [[and:ls|[\"-a\"]]] [[usage:7:3]] [[reply:r{n}]]",
            sh("echo one; echo two >&2; exit 3")
        );
        api.answer(&calm, "tools", &text).await;
    }
    let sender = api.ok("turn/send", json!({"agent": calm, "sender": "ann", "text": "hi"})).await;
    api.ended(id(&sender)).await;
    assert_eq!(api.say(&calm, "bad", "[[status:400]]").await["status"], "failed");
    let cut = api.ok("turn/send", json!({"agent": calm, "session": "cut", "text": "[[hang]]"})).await;
    api.until("turn/get", json!({"turn": id(&cut)}), |turn| turn["status"] == "running").await;
    api.ok("turn/interrupt", json!({"turn": id(&cut)})).await;
    api.answer("asleep", "old", "[[reply:before]]").await;
    api.ok("agent/stop", json!({"agent": "asleep"})).await;
    api.answer("gone", "ghost", "[[reply:boo]]").await;
    let last =
        json!({"agent": "gone", "session": "ghost", "bin": "sh", "args": ["-c", "echo boo; kill -9 $$"]});
    let last = api.ok("job/submit", last).await;
    api.ok("job/wait", json!({"job": id(&last)})).await;
    api.ok("agent/remove", json!({"agent": "gone", "force": true})).await;
    api.agent_is("broken", "failed").await;
    let wait = format!("{} [[reply:released]]", sh("echo begun; until test -e go; do sleep 0.02; done"));
    let waits = "echo begun >&2; echo; until test -e go; do sleep 0.02; done";
    let job =
        json!({"agent": busy, "bin": "sh", "args": ["-c", waits], "labels": {"k": "v"}, "timeout": "1h"});
    let job = api.ok("job/submit", job).await;
    api.until("job/get", json!({"job": id(&job)}), |job| {
        job["stdout_bytes"] == 1 && job["stderr_bytes"] == 6
    })
    .await;
    let running = api.ok("turn/send", json!({"agent": busy, "session": "busy", "text": wait})).await;
    api.ok("turn/send", json!({"agent": busy, "session": "busy", "text": "[[reply:after]]"})).await;
    let at_work = |turn: &Value| turn["steps"].as_array().is_some_and(|steps| steps.len() == 2);
    api.until("turn/get", json!({"turn": id(&running)}), at_work).await;
    api.until("session/messages", json!({"session": "busy"}), |page| {
        page["messages"].as_array().expect("messages").len() == 3
    })
    .await;
}

/// A sandbox with an exec that runs and one that ended, one that is stopped, and one that was deleted.
async fn furnish_sandboxes(api: &mut CheckedClient) {
    for (sandbox, change, status) in
        [("box-1", None, "ready"), ("box-2", Some("stop"), "stopped"), ("box-3", Some("remove"), "deleted")]
    {
        api.ok("sandbox/create", json!({"id": sandbox, "shell": true, "labels": {"k": "v"}})).await;
        let of = json!({"sandbox": sandbox});
        api.until("sandbox/get", of.clone(), |view| view["status"] == "ready").await;
        let ends = json!({"sandbox": sandbox, "command": ["sh", "-c", "echo out; echo err >&2; exit 3"]});
        let ended = api.ok("exec/run", ends).await;
        api.until("exec/get", json!({"exec": id(&ended)}), |exec| exec["status"] == "finished").await;
        if let Some(change) = change {
            api.ok(&format!("sandbox/{change}"), of.clone()).await;
            api.until("sandbox/get", of, |view| view["status"] == status).await;
        }
    }
    let runs = json!({"sandbox": "box-1", "command": ["sh", "-c", "echo begun; until test -e go; do sleep 0.02; done"]});
    let runs = api.ok("exec/run", runs).await;
    api.until("exec/get", json!({"exec": id(&runs)}), |exec| exec["stdout_bytes"] == 6).await;
}

/// Deletes derived state, as the documentation allows.
fn delete_derived(world: &ApiWorld) {
    let database = Connection::open(world.lodge.home().join("daemon.db")).expect("a database");
    database.execute("DELETE FROM streams", []).expect("a table");
    database.execute("DELETE FROM agent_images", []).expect("a table");
    let indexes = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL";
    let mut found = database.prepare(indexes).expect("a query");
    let names: Vec<String> =
        found.query_map([], |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("names");
    drop(found);
    assert_eq!(names.len(), include_str!("../../../crates/store/src/sqlite/indexes.sql").lines().count());
    for name in names {
        database.execute(&format!("DROP INDEX {name}"), []).expect("an index");
    }
}

#[tokio::test]
async fn a_killed_daemon_that_lost_all_derived_state_tells_everything_as_before() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    furnish(&world, &mut api).await;
    let busy = api.ok("agent/get", json!({"agent": "busy"})).await;
    let mut keepers =
        until("only those live that should", || Some(world.lodge.keepers()).filter(|all| all.len() == 3));
    keepers.sort_unstable();
    let (before, events) = (everything(&mut api).await, api.log().await);
    world.lodge.kill9();
    delete_derived(&world);
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for agent in ["busy", "calm"] {
        api.until("agent/get", json!({"agent": agent}), |view| !view["pid"].is_null()).await;
    }
    api.until("sandbox/get", json!({"sandbox": "box-1"}), |view| !view["pid"].is_null()).await;
    let after = everything(&mut api).await;
    for (what, value) in &before {
        assert_eq!(after.get(what), Some(value), "{what} changed");
    }
    assert_eq!(after.len(), before.len());
    let log = api.log().await;
    assert_eq!(log[..events.len()], events[..], "the log changed");
    let mut still = world.lodge.keepers();
    still.sort_unstable();
    assert_eq!(still, keepers, "keepers were not adopted");
    // The work continues, in order.
    let root = busy["root"].as_str().expect("a path");
    std::fs::write(std::path::Path::new(root).join("workspace/go"), "").expect("a file");
    let over = |page: &Value| {
        page["turns"].as_array().is_some_and(|turns| turns.iter().all(|turn| turn["status"] == "done"))
    };
    let turns = api.until("turn/list", json!({"session": "busy"}), over).await;
    assert_eq!(
        (&turns["turns"][0]["text"], &turns["turns"][1]["text"]),
        (&json!("released"), &json!("after"))
    );
    assert_eq!(turns["turns"][0]["steps"].as_array().expect("steps").len(), 3, "a step was repeated");
    let done = json!({"agent": "busy", "status": "done"});
    let jobs = api.until("job/list", done, |page| page["jobs"] != json!([])).await;
    assert_eq!(jobs["jobs"][0]["exit_code"], 0, "{jobs:#}");
}

#[tokio::test]
async fn a_stream_goes_on_counting_where_it_stood() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "hi").await;
    for _ in 0..3 {
        world.lodge.kill9();
        delete_derived(&world);
        world.lodge.start();
        api = api.again(&world.lodge).await;
        api.answer(&agent, "s", "hi").await;
    }
    api.agent_is(&agent, "ready").await;
    let log = api.log().await;
    let numbers: Vec<u64> = log
        .iter()
        .filter(|event| event["stream"] == json!(agent))
        .map(|event| event["stream_seq"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let started = log.iter().filter(|event| event["kind"] == "daemon.started").count();
    assert_eq!(started, 4);
    assert_eq!(api.ok("info", json!({})).await["epoch"], 4);
}

#[tokio::test]
async fn an_agent_whose_sandbox_died_with_the_daemon_comes_back_and_goes_on_with_its_work() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let text = format!("{} [[reply:done]]", sh("echo begun > begun; sleep 600"));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let begun = world.lodge.home().join("agents").join(&agent).join("workspace/begun");
    until("the tool runs", || begun.exists().then_some(()));
    let keepers = world.lodge.keepers();
    world.lodge.kill9();
    keepers.iter().for_each(|pid| crate::world::kill(*pid, libc::SIGKILL));
    until("the keeper is gone", || world.lodge.keepers().is_empty().then_some(()));
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    // The agent is started again and continues the turn: the interrupted call is reported and not repeated.
    let turn = api.ended(id(&sent)).await;
    assert_eq!(
        (&turn["status"], &turn["steps"][1]["status"]),
        (&json!("done"), &json!("unknown")),
        "{turn:#}"
    );
}
