//! Jobs over the API: their shape, their refusals, and that a repeated request creates one job.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use lodge_testkit::lodge::PATIENCE;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, id};

/// A shell that runs until the file `go` appears in its workspace.
pub const UNTIL_GO: &str = "until test -e go; do sleep 0.02; done";

/// Submits a script for the shell of an agent.
pub async fn submit(api: &mut CheckedClient, agent: &str, script: &str) -> String {
    let job = json!({"agent": agent, "bin": "sh", "args": ["-c", script]});
    id(&api.ok("job/submit", job).await).to_owned()
}

/// The job when it is over.
pub async fn over(api: &mut CheckedClient, job: &str) -> Value {
    let is_over = |job: &Value| !job["finished_at"].is_null();
    api.until("job/wait", json!({"job": job, "timeout_ms": 60_000}), is_over).await
}

pub async fn is(api: &mut CheckedClient, job: &str, status: &str) -> Value {
    api.until("job/get", json!({"job": job}), |view| view["status"] == status).await
}

pub fn go(world: &ApiWorld, agent: &str) {
    touch(world, agent, "go");
}

pub fn touch(world: &ApiWorld, agent: &str, file: &str) {
    let workspace = world.lodge.home().join("agents").join(agent).join("workspace");
    std::fs::write(workspace.join(file), "").expect("a file");
}

pub fn ids(page: &Value) -> Vec<&str> {
    page["jobs"].as_array().expect("jobs").iter().map(id).collect()
}

#[tokio::test]
async fn a_job_tells_what_it_is_from_its_beginning_to_its_end() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "[[reply:hi]]").await;
    let script = format!("cat; echo out; printf err >&2; {UNTIL_GO}; exit 3");
    let asked = json!({
        "agent": "one", "session": "s", "bin": "sh", "args": ["-c", script], "stdin": "in\n", "timeout": "1h30m",
        "priority": -7, "output": "64k", "labels": {"team": "a/b", "empty": ""},
    });
    let submitted = api.ok("job/submit", asked).await;
    let job = id(&submitted).to_owned();
    assert!(job.starts_with("job_"), "{job}");
    let labels = json!({"team": "a/b", "empty": "", "io.lodge.session-id": "s"});
    let told = |view: &Value| {
        assert_eq!(
            (&view["agent"], &view["agent_name"], &view["session"]),
            (&json!(agent), &json!("one"), &json!("s"))
        );
        assert_eq!((&view["bin"], &view["args"]), (&json!("sh"), &json!(["-c", script])));
        assert_eq!((&view["priority"], &view["timeout_ms"]), (&json!(-7), &json!(5_400_000)));
        assert_eq!(view["labels"], labels);
    };
    told(&submitted);
    let at = json!({"job": job});
    let running =
        api.until("job/get", at.clone(), |job| job["stdout_bytes"] == 7 && job["stderr_bytes"] == 3).await;
    told(&running);
    assert_eq!((&running["status"], &running["finished_at"]), (&json!("running"), &Value::Null));
    assert!(running["started_at"].is_string() && running["exit_code"].is_null());
    let detail = api.ok("agent/get", json!({"agent": agent})).await;
    assert_eq!(detail["jobs"], json!({"pending": 0, "running": 1}));
    assert_eq!(api.ok("session/get", json!({"session": "s"})).await["open_jobs"], 1);
    go(&world, &agent);
    let done = over(&mut api, &job).await;
    told(&done);
    assert_eq!(
        (&done["status"], &done["exit_code"], &done["signal"]),
        (&json!("done"), &json!(3), &Value::Null)
    );
    assert_eq!((&done["stdout_bytes"], &done["stderr_bytes"]), (&json!(7), &json!(3)));
    assert_eq!((&done["truncated"], &done["dropped_bytes"]), (&json!(false), &json!(0)));
    assert_eq!(api.ok("job/get", at.clone()).await, done);
    assert_eq!(api.ok("job/list", json!({})).await["jobs"], json!([done]));
    let detail = api.ok("agent/get", json!({"agent": agent})).await;
    assert_eq!(detail["jobs"], json!({"pending": 0, "running": 0}));
    assert_eq!(api.ok("session/get", json!({"session": "s"})).await["open_jobs"], 0);
    let output = api.ok("job/output", at).await;
    assert_eq!(
        (&output["data"], &output["end"], &output["next"]),
        (&json!("in\nout\n"), &json!(true), &json!(7))
    );
    // A unique beginning of the id is enough.
    let most = &job[..job.len() - 1];
    assert_eq!(id(&api.ok("job/get", json!({"job": most})).await), job);
    let kinds: Vec<Value> = api
        .log()
        .await
        .into_iter()
        .filter(|event| event["data"]["job"] == json!(job))
        .map(|event| event["kind"].clone())
        .filter(|kind| kind != "job.output")
        .collect();
    assert_eq!(kinds, ["job.submitted", "job.started", "job.finished"]);
}

#[tokio::test]
async fn what_cannot_be_a_job_is_refused_with_words_and_leaves_nothing() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    world.agent(&mut api, "two").await;
    api.ok("agent/stop", json!({"agent": "two"})).await;
    api.answer("one", "ones", "[[reply:hi]]").await;
    let before = api.log().await.len();
    let with = |more: Value| {
        let mut job = json!({"agent": "one", "bin": "sh"});
        for (key, value) in more.as_object().expect("an object") {
            job[key] = value.clone();
        }
        job
    };
    let many: Vec<String> = vec![String::new(); 4_097];
    let labels: serde_json::Map<String, Value> = (0..33).map(|n| (format!("k{n}"), json!(""))).collect();
    for (given, code, words) in [
        (json!({}), "params.invalid", "`agent` is empty"),
        (json!({"bin": "sh"}), "params.invalid", "`agent` is empty"),
        (json!({"agent": "six"}), "agent.not_found", "no agent `six`"),
        (json!({"agent": "one"}), "params.invalid", "`bin` is empty"),
        (json!({"agent": "two"}), "params.invalid", "`bin` is empty"),
        (json!({"agent": "two", "bin": "sh"}), "agent.not_running", ""),
        (json!({"agent": "two", "bin": "make"}), "agent.not_running", ""),
        (with(json!({"bin": "make"})), "bin.not_declared", "cat, env, id, ls, sh, sleep, touch"),
        (with(json!({"bin": "/bin/sh"})), "bin.not_declared", "cat, env, id, ls, sh, sleep, touch"),
        // Invalid parameters of a job are reported after the checks of agent and bin.
        (json!({"agent": "two", "bin": "sh", "args": many}), "agent.not_running", ""),
        (json!({"agent": "two", "bin": "sh", "stdin": "x".repeat(1_048_577)}), "agent.not_running", ""),
        (json!({"agent": "two", "bin": "sh", "labels": {"a b": ""}}), "agent.not_running", ""),
        (json!({"agent": "two", "bin": "sh", "timeout": "366d"}), "agent.not_running", ""),
        (with(json!({"bin": "make", "priority": 101})), "bin.not_declared", "cat, env, id"),
        (with(json!({"bin": "make", "labels": {"io.lodge.x": ""}})), "bin.not_declared", "cat, env, id"),
        (json!({"agent": "two", "bin": "sh", "session": "ones"}), "session.other_agent", "`ones`"),
        (with(json!({"session": "a b"})), "session.bad_id", "a b"),
        (with(json!({"args": many})), "job.too_large", "4097 arguments"),
        (with(json!({"args": ["x".repeat(65_537)]})), "job.too_large", "65537 bytes"),
        (with(json!({"args": ["a", "b\u{0}"]})), "params.invalid", "argument 2 has a NUL byte"),
        (with(json!({"stdin": "x".repeat(1_048_577)})), "job.too_large", "1048577 bytes"),
        (with(json!({"stdin": "x", "stdin_base64": "eA=="})), "params.invalid", "not both"),
        (with(json!({"stdin_base64": "eA"})), "params.invalid", "base64"),
        (with(json!({"timeout": "soon"})), "params.invalid", "`soon` is no timeout"),
        (with(json!({"timeout": "0s"})), "params.invalid", "`0s` is no timeout"),
        (with(json!({"timeout": "90"})), "params.invalid", "`90` is no timeout"),
        (with(json!({"timeout": "366d"})), "params.invalid", "31622400000 ms is too long"),
        (with(json!({"priority": 101})), "params.invalid", "101 is no priority"),
        (with(json!({"priority": "high"})), "params.invalid", "job/submit"),
        (with(json!({"output": "4095"})), "params.invalid", "`4095` is no amount"),
        (with(json!({"output": "17g"})), "params.invalid", "`17g` is no amount"),
        (with(json!({"labels": {"a b": "x"}})), "job.bad_label", "`a b`"),
        (with(json!({"labels": {"": "x"}})), "job.bad_label", "``"),
        (with(json!({"labels": {"k": "x".repeat(257)}})), "job.bad_label", "`k`"),
        (with(json!({"labels": labels})), "job.bad_label", "33 labels"),
        (with(json!({"labels": {"io.lodge.session-id": "s"}})), "job.label_reserved", "io.lodge.session-id"),
        (with(json!({"labels": {"io.lodge.x": ""}})), "job.label_reserved", "io.lodge.x"),
    ] {
        let error = api.refused("job/submit", given.clone(), code).await;
        let told = format!("{} {}", error["message"], error["data"]["hint"]);
        assert!(told.contains(words), "{given}: {error}");
        assert!(error["data"]["hint"].is_string() || code == "session.bad_id", "{given}: {error}");
    }
    assert_eq!(api.ok("job/list", json!({})).await, json!({"jobs": []}));
    assert_eq!(api.log().await.len(), before, "something was recorded");
}

#[tokio::test]
async fn a_job_that_is_not_there_or_over_is_refused_in_the_words_that_people_look_for() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submit(&mut api, &agent, "exit 0").await;
    over(&mut api, &job).await;
    for method in ["job/get", "job/wait", "job/cancel", "job/output"] {
        for nobody in ["job_does_not_exist", "job_0", "job_", "job", "", "one"] {
            let error = api.refused(method, json!({"job": nobody}), "job.not_found").await;
            assert_eq!(error["message"], format!("async job not found: {nobody}"), "{method}");
        }
    }
    let error = api.refused("job/cancel", json!({"job": job}), "job.not_running").await;
    assert_eq!(error["message"], "async job not currently running");
    let many: serde_json::Map<String, Value> = (0..65).map(|n| (format!("k{n}"), json!(""))).collect();
    for (method, given) in [
        ("job/list", json!({"status": "orphaned"})),
        ("job/list", json!({"before": "yesterday"})),
        ("job/list", json!({"labels": many})),
        ("job/output", json!({"job": job, "stream": "stdin"})),
        ("agent/stop", json!({"agent": agent, "jobs": "wait"})),
        ("agent/restart", json!({"agent": agent, "jobs": ""})),
    ] {
        api.refused(method, given, "params.invalid").await;
    }
    api.refused("job/list", json!({"agent": "six"}), "agent.not_found").await;
    api.refused("job/list", json!({"session": "a b"}), "session.bad_id").await;
    api.refused("client/attach", json!({"job": "job_0"}), "job.not_found").await;
    api.refused("client/attach", json!({"job": job, "all": true}), "attach.bad_target").await;
    let second = submit(&mut api, &agent, "exit 0").await;
    let shared: String =
        job.chars().zip(second.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    let error = api.refused("job/get", json!({"job": shared}), "job.ambiguous").await;
    let hint = error["data"]["hint"].as_str().expect("a hint");
    assert!(hint.contains(&job) && hint.contains(&second), "{hint}");
}

#[tokio::test]
async fn the_same_submission_is_one_job_that_runs_once_also_when_the_daemon_is_killed_in_between() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let script = format!("echo ran >> runs; {UNTIL_GO}; cat runs");
    let asked = json!({"agent": agent, "bin": "sh", "args": ["-c", script], "request_id": "once"});
    let first = api.ok("job/submit", asked.clone()).await;
    let mut other = asked.clone();
    other["args"] = json!([]);
    for round in 0..3 {
        assert_eq!(api.ok("job/submit", asked.clone()).await, first, "{round}");
        api.refused("job/submit", other.clone(), "request.reused").await;
        world.lodge.kill9();
        world.lodge.start();
        api = api.again(&world.lodge).await;
    }
    let jobs = api.ok("job/list", json!({})).await;
    assert_eq!(ids(&jobs), [id(&first)]);
    go(&world, &agent);
    let done = over(&mut api, id(&first)).await;
    assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(0)));
    let output = api.ok("job/output", json!({"job": id(&first)})).await;
    assert_eq!(output["data"], "ran\n");
    assert_eq!(api.ok("job/submit", asked).await, first);
}

#[tokio::test]
async fn jobs_are_listed_newest_first_by_agent_status_session_and_labels_in_pages() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for name in ["one", "two"] {
        world.agent(&mut api, name).await;
    }
    let mut all = Vec::new();
    for n in 0..6 {
        let agent = if n % 2 == 0 { "one" } else { "two" };
        let labels = json!({"third": (n % 3).to_string(), "all": "yes"});
        let job = json!({
            "agent": agent, "bin": "sh", "args": ["-c", "exit 0"], "labels": labels, "session": format!("s{}", n / 3),
        });
        // A session belongs to one agent once it is there, and these are not: a job needs none.
        all.push(id(&api.ok("job/submit", job).await).to_owned());
    }
    for job in &all {
        over(&mut api, job).await;
    }
    let slow = api.ok("job/submit", json!({"agent": "one", "bin": "sleep", "args": ["600"]})).await;
    is(&mut api, id(&slow), "running").await;
    all.push(id(&slow).to_owned());
    api.ok("agent/remove", json!({"agent": "two", "force": true})).await;
    for (given, places) in [
        (json!({}), vec![6, 5, 4, 3, 2, 1, 0]),
        (json!({"agent": "one"}), vec![6, 4, 2, 0]),
        (json!({"agent": "two"}), vec![5, 3, 1]),
        (json!({"status": "running"}), vec![6]),
        (json!({"status": "pending"}), vec![]),
        (json!({"status": "done"}), vec![5, 4, 3, 2, 1, 0]),
        (json!({"agent": "one", "status": "done"}), vec![4, 2, 0]),
        (json!({"session": "s1"}), vec![5, 4, 3]),
        (json!({"session": "s1", "agent": "one"}), vec![4]),
        (json!({"session": "does-not-exist"}), vec![]),
        (json!({"labels": {"third": "1"}}), vec![4, 1]),
        (json!({"labels": {"third": "1", "all": "yes"}, "agent": "two"}), vec![1]),
        (json!({"labels": {"third": "1", "all": "no"}}), vec![]),
        (json!({"labels": {"io.lodge.session-id": "s0"}}), vec![2, 1, 0]),
        (json!({"labels": {"io.lodge.session-id": "does-not-exist"}}), vec![]),
        (json!({"before": all[3]}), vec![2, 1, 0]),
    ] {
        let wanted: Vec<&str> = places.iter().map(|place: &usize| all[*place].as_str()).collect();
        assert_eq!(ids(&api.ok("job/list", given.clone()).await), wanted, "{given}");
        // The same, two at a time.
        let (mut paged, mut before) = (Vec::new(), given["before"].clone());
        loop {
            let mut page = given.clone();
            page["limit"] = json!(2);
            page["before"] = before;
            let page = api.ok("job/list", page).await;
            assert!(ids(&page).len() <= 2);
            paged.extend(ids(&page).iter().map(|id| (*id).to_owned()));
            before = page["next"].clone();
            if before.is_null() {
                break;
            }
        }
        assert_eq!(paged, wanted, "{given} in pages");
    }
}

#[tokio::test]
async fn a_wait_ends_with_the_job_or_with_its_time_whichever_comes_first() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submit(&mut api, &agent, UNTIL_GO).await;
    is(&mut api, &job, "running").await;
    let early = api.ok("job/wait", json!({"job": job, "timeout_ms": 1})).await;
    assert_eq!(early["status"], "running");
    let none = api.ok("job/output", json!({"job": job, "wait_ms": 1})).await;
    assert_eq!((&none["data"], &none["end"], &none["next"]), (&json!(""), &json!(false), &json!(0)));
    // Many wait at once, also for output that never comes; one of them leaves.
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let mut other = api.again(&world.lodge).await;
        let job = job.clone();
        waiting.push(tokio::spawn(async move {
            let output = other.ok("job/output", json!({"job": job, "wait_ms": 30_000})).await;
            assert_eq!((&output["data"], &output["end"]), (&json!(""), &json!(true)));
            other.ok("job/wait", json!({"job": job})).await
        }));
    }
    waiting.pop().expect("one that waits").abort();
    go(&world, &agent);
    for other in waiting {
        let done = tokio::time::timeout(PATIENCE, other).await.expect("in time").expect("an answer");
        assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(0)));
    }
    // And one that is over is not waited for.
    assert_eq!(api.ok("job/wait", json!({"job": job, "timeout_ms": 60_000})).await["status"], "done");
}

#[tokio::test]
async fn a_wait_does_not_hold_up_the_end_of_the_daemon() {
    let mut world = ApiWorld::asleep();
    // A wait that blocks would be longer than the time limit of this test.
    world.lodge.set_env("LODGED_SHUTDOWN_TIMEOUT", "10m");
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submit(&mut api, &agent, UNTIL_GO).await;
    is(&mut api, &job, "running").await;
    let mut waits = world.lodge.client().await;
    for (method, params) in [
        ("job/wait", json!({"job": job, "timeout_ms": 60_000})),
        ("job/output", json!({"job": job, "wait_ms": 30_000})),
    ] {
        // Sent, and not waited for.
        let mut call = pin!(waits.call_value(method, params));
        let sent = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        assert!(sent.is_pending(), "{sent:?}");
    }
    // The calls of a connection are taken in their order.
    waits.call_value("rpc/discover", json!({})).await.expect("an answer");
    api.ok("daemon/shutdown", json!({})).await;
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false));
    go(&world, &agent);
}

#[tokio::test]
async fn a_cancelled_job_is_over_when_that_is_answered_and_keeps_what_it_wrote() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submit(&mut api, &agent, "echo before; sleep 600 & sleep 600").await;
    api.until("job/get", json!({"job": job}), |job| job["stdout_bytes"] == 7).await;
    let asked = json!({"job": job, "request_id": "r"});
    let cancelled = api.ok("job/cancel", asked.clone()).await;
    assert_eq!((&cancelled["status"], &cancelled["cancelling"]), (&json!("cancelled"), &json!(false)));
    assert!(cancelled["finished_at"].is_string() && cancelled["error"].is_string(), "{cancelled:#}");
    assert_eq!(api.ok("job/cancel", asked).await, cancelled);
    let output = api.ok("job/output", json!({"job": job})).await;
    assert_eq!((&output["data"], &output["end"]), (&json!("before\n"), &json!(true)));
}

#[tokio::test]
async fn an_agent_with_running_jobs_is_not_stopped_by_those_who_do_not_want_that() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submit(&mut api, &agent, UNTIL_GO).await;
    is(&mut api, &job, "running").await;
    for method in ["agent/stop", "agent/restart"] {
        let given = json!({"agent": agent, "jobs": "refuse"});
        let error = api.refused(method, given, "agent.jobs_running").await;
        assert!(error["message"].as_str().expect("a message").contains('1'), "{error}");
    }
    assert_eq!(api.ok("job/get", json!({"job": job})).await["status"], "running");
    api.ok("agent/stop", json!({"agent": agent, "jobs": "cancel"})).await;
    let job = over(&mut api, &job).await;
    assert_eq!(job["status"], "cancelled");
    // Without jobs there is nothing to refuse for.
    api.ok("agent/start", json!({"agent": agent})).await;
    api.agent_is(&agent, "ready").await;
    api.ok("agent/restart", json!({"agent": agent, "jobs": "refuse"})).await;
    api.agent_is(&agent, "ready").await;
    api.ok("agent/stop", json!({"agent": agent, "jobs": "refuse"})).await;
}

#[tokio::test]
async fn output_comes_in_pieces_that_add_up_as_text_or_as_bytes() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let text = "grün und blau\n".repeat(9);
    let job = json!({"agent": agent, "bin": "cat", "stdin": text});
    let job = id(&api.ok("job/submit", job).await).to_owned();
    over(&mut api, &job).await;
    let (mut got, mut offset) = (String::new(), 0);
    loop {
        let piece = api.ok("job/output", json!({"job": job, "offset": offset, "limit": 7})).await;
        assert_eq!((&piece["encoding"], &piece["dropped"]), (&json!("utf8"), &json!(0)));
        assert_eq!((&piece["offset"], &piece["stream"]), (&json!(offset), &json!("stdout")));
        got.push_str(piece["data"].as_str().expect("data"));
        offset = piece["next"].as_u64().expect("an offset");
        if piece["end"] == true {
            break;
        }
    }
    assert_eq!(got, text);
    let behind = api.ok("job/output", json!({"job": job, "offset": 1_000, "wait_ms": 30_000})).await;
    assert_eq!((&behind["data"], &behind["end"]), (&json!(""), &json!(true)));
    let bytes: Vec<u8> = (0..=255).collect();
    let encoded = lodge_proto::base64::encode(&bytes);
    let job = json!({"agent": agent, "bin": "cat", "stdin_base64": encoded});
    let job = id(&api.ok("job/submit", job).await).to_owned();
    over(&mut api, &job).await;
    let piece = api.ok("job/output", json!({"job": job})).await;
    assert_eq!((&piece["encoding"], &piece["data"]), (&json!("base64"), &json!(encoded)));
    assert_eq!((&piece["next"], &piece["end"]), (&json!(256), &json!(true)));
    // Each waits until the one before it was seen, so that the order is fixed.
    let wait = |file: &str| format!("until test -e {file}; do sleep 0.02; done");
    let order = format!(
        "printf a; {}; printf b >&2; {}; printf c; {}; printf d >&2",
        wait("1"),
        wait("2"),
        wait("3")
    );
    let job = submit(&mut api, &agent, &order).await;
    for (file, written) in [("1", (1, 0)), ("2", (1, 1)), ("3", (2, 1))] {
        let seen = |job: &Value| (job["stdout_bytes"] == written.0) && (job["stderr_bytes"] == written.1);
        api.until("job/get", json!({"job": job}), seen).await;
        touch(&world, &agent, file);
    }
    over(&mut api, &job).await;
    for (stream, data) in [("stdout", "ac"), ("stderr", "bd"), ("merged", "abcd")] {
        assert_eq!(api.ok("job/output", json!({"job": job, "stream": stream})).await["data"], data);
    }
    let middle = api.ok("job/output", json!({"job": job, "stream": "merged", "offset": 1, "limit": 2})).await;
    assert_eq!((&middle["data"], &middle["next"], &middle["end"]), (&json!("bc"), &json!(3), &json!(false)));
}
