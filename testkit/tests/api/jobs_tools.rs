//! The six tools for jobs, as a model uses them: through its runtime, in its own session.

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::jobs_api::{go, is, over, submit};
use crate::world::{ApiWorld, id};

const UNTIL_GO: &str = "echo begun; echo oops >&2; until test -e go; do sleep 0.02; done; echo over; exit 3";

/// One turn that calls a tool, and the result that the model got.
pub async fn call(
    api: &mut CheckedClient,
    agent: &str,
    session: &str,
    tool: &str,
    arguments: Value,
) -> String {
    api.answer(agent, session, &asking(tool, &arguments)).await;
    result(api, session).await
}

fn asking(tool: &str, arguments: &Value) -> String {
    format!("[[tool:{tool}|{arguments}]] [[reply:ok]]")
}

/// The newest tool result of a session.
async fn result(api: &mut CheckedClient, session: &str) -> String {
    let page = api.ok("session/messages", json!({"session": session, "limit": 50})).await;
    let messages = page["messages"].as_array().expect("messages");
    let result = messages.iter().rev().find(|message| message["role"] == "tool").expect("a result");
    result["text"].as_str().expect("a text").to_owned()
}

/// A job that a model submitted, by the id in its tool result.
async fn submitted(api: &mut CheckedClient, agent: &str, session: &str) -> String {
    let told = call(api, agent, session, "job_submit", json!({"bin": "sh", "args": ["-c", UNTIL_GO]})).await;
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"));
    told["job_id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn an_agent_that_waits_for_its_job_leaves_its_slot_to_another() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_MAX_CONCURRENT", "1");
    world.lodge.start();
    let mut api = world.checked().await;
    let (waiting, other) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    let job = submitted(&mut api, &waiting, "s").await;
    let text = asking("job_wait", &json!({"job_id": job}));
    let sent = api.ok("turn/send", json!({"agent": waiting, "session": "s", "text": text})).await;
    let waits = |turn: &Value| {
        turn["steps"].as_array().is_some_and(|steps| steps.iter().any(|step| step["name"] == "job_wait"))
    };
    api.until("turn/get", json!({"turn": id(&sent)}), waits).await;
    for word in ["first", "second"] {
        assert_eq!(api.answer(&other, "t", &format!("[[reply:{word}]]")).await, word);
    }
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.answer(&other, "t", "[[reply:third]]").await, "third");
    go(&world, &waiting);
    assert_eq!(api.ended(id(&sent)).await["status"], "done");
    assert!(result(&mut api, "s").await.contains(r#""exit_code":3"#));
}

#[tokio::test]
async fn a_model_starts_a_job_talks_on_peeks_and_waits_for_its_end() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submitted(&mut api, &agent, "s").await;
    let of_job = json!({"job_id": job});
    let view = api.until("job/get", json!({"job": job}), |job| job["stdout_bytes"] == 6).await;
    assert_eq!((&view["status"], &view["session"]), (&json!("running"), &json!("s")));
    // Neither status nor listing waits for a running job.
    let status = call(&mut api, &agent, "s", "job_status", of_job.clone()).await;
    assert!(status.contains("running") && status.contains("begun") && status.contains("oops"), "{status}");
    let list = call(&mut api, &agent, "s", "job_list", json!({})).await;
    assert!(list.contains(&job) && list.contains("running") && !list.contains("begun\\n"), "{list}");
    assert!(list.contains(r#""stdout_bytes":6"#), "how much it wrote so far: {list}");
    let none = call(&mut api, &agent, "s", "job_list", json!({"status": "done"})).await;
    assert!(!none.contains(&job), "{none}");
    let sent = api
        .ok("turn/send", json!({"agent": agent, "session": "s", "text": asking("job_wait", &of_job)}))
        .await;
    let waits = |turn: &Value| {
        turn["steps"].as_array().is_some_and(|steps| steps.iter().any(|step| step["name"] == "job_wait"))
    };
    api.until("turn/get", json!({"turn": id(&sent)}), waits).await;
    go(&world, &agent);
    assert_eq!(api.ended(id(&sent)).await["status"], "done");
    let waited = result(&mut api, "s").await;
    for words in ["done", "3", "begun\\nover\\n", "oops"] {
        assert!(waited.contains(words), "{waited}");
    }
    let watched = call(&mut api, &agent, "s", "job_watch", of_job).await;
    assert!(watched.contains("begun\nover\n") && !watched.contains("oops"), "{watched}");
    // The end was already reported.
    let page = api.ok("session/messages", json!({"session": "s", "limit": 50})).await;
    assert!(page["messages"].as_array().expect("messages").iter().all(|message| message["note"].is_null()));
}

#[tokio::test]
async fn an_interrupt_cancels_the_job_that_a_turn_waits_for_and_leaves_one_that_it_watches() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for (tool, outcome) in [("job_watch", "running"), ("job_wait", "cancelled")] {
        let job = submitted(&mut api, &agent, "s").await;
        is(&mut api, &job, "running").await;
        let text = asking(tool, &json!({"job_id": job}));
        let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
        let waits = |turn: &Value| {
            turn["steps"].as_array().is_some_and(|steps| steps.iter().any(|step| step["name"] == tool))
        };
        api.until("turn/get", json!({"turn": id(&sent)}), waits).await;
        api.ok("turn/interrupt", json!({"turn": id(&sent)})).await;
        assert_eq!(api.ended(id(&sent)).await["status"], "interrupted");
        is(&mut api, &job, outcome).await;
    }
}

#[tokio::test]
async fn a_wait_gets_its_result_from_whichever_daemon_sees_the_end() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submitted(&mut api, &agent, "s").await;
    let text = asking("job_wait", &json!({"job_id": job}));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let waits = |turn: &Value| {
        turn["steps"].as_array().is_some_and(|steps| steps.iter().any(|step| step["name"] == "job_wait"))
    };
    api.until("turn/get", json!({"turn": id(&sent)}), waits).await;
    for _ in 0..2 {
        world.lodge.kill9();
        world.lodge.start();
        api = api.again(&world.lodge).await;
        assert_eq!(is(&mut api, &job, "running").await["finished_at"], Value::Null);
    }
    go(&world, &agent);
    assert_eq!(api.ended(id(&sent)).await["status"], "done");
    assert!(result(&mut api, "s").await.contains("begun\\nover\\n"));
}

#[tokio::test]
async fn a_model_can_end_its_own_jobs_and_those_of_others_are_not_there_for_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let own = submitted(&mut api, &agent, "s").await;
    let (other, nobodys) = (submitted(&mut api, &agent, "t").await, submit(&mut api, &agent, UNTIL_GO).await);
    let list = call(&mut api, &agent, "s", "job_list", json!({})).await;
    assert!(list.contains(&own) && !list.contains(&other) && !list.contains(&nobodys), "{list}");
    for job in [other.as_str(), nobodys.as_str(), "job_0", "job_does_not_exist", "own"] {
        for tool in ["job_status", "job_wait", "job_watch", "job_cancel"] {
            let told = call(&mut api, &agent, "s", tool, json!({"job_id": job})).await;
            assert!(told.contains(&format!("async job not found: {job}")), "{tool} {job}: {told}");
        }
    }
    let told = call(&mut api, &agent, "s", "job_cancel", json!({"job_id": own})).await;
    assert!(told.contains("cancelled"), "{told}");
    assert_eq!(over(&mut api, &own).await["status"], "cancelled");
    for job in [other, nobodys] {
        assert_eq!(api.ok("job/get", json!({"job": job})).await["status"], "running");
    }
}

#[tokio::test]
async fn what_a_model_asks_of_jobs_in_the_wrong_way_is_reported_to_it_and_starts_nothing() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for (tool, arguments, words) in [
        ("job_submit", json!({"bin": "rm"}), "`bin` is one of:"),
        ("job_submit", json!({"args": ["a"]}), "{\"bin\": \"make\""),
        ("job_submit", json!({"bin": "sh", "labels": {"io.lodge.team": "x"}}), "io.lodge.team"),
        ("job_wait", json!({}), "job_id"),
        ("job_list", json!({"all_sessions": true}), "all_sessions"),
    ] {
        let told = call(&mut api, &agent, "s", tool, arguments).await;
        assert!(told.contains(words), "{tool}: {told}");
    }
    assert_eq!(api.ok("job/list", json!({})).await["jobs"], json!([]));
}

#[tokio::test]
async fn a_job_that_ended_is_reported_before_the_next_turn_of_its_session_and_once() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let job = submitted(&mut api, &agent, "s").await;
    go(&world, &agent);
    over(&mut api, &job).await;
    for text in ["[[reply:one]]", "[[reply:two]]"] {
        api.answer(&agent, "s", text).await;
    }
    let page = api.ok("session/messages", json!({"session": "s", "limit": 50})).await;
    let messages = page["messages"].as_array().expect("messages");
    let noted: Vec<&Value> = messages.iter().filter(|message| !message["note"].is_null()).collect();
    assert_eq!(noted.len(), 1, "{page:#}");
    assert_eq!((&noted[0]["role"], &noted[0]["text"]), (&json!("user"), &json!("[[reply:one]]")));
    assert!(noted[0]["note"].as_str().expect("a note").contains(&job), "{}", noted[0]);
}

#[tokio::test]
async fn on_a_full_disk_the_model_gets_the_reason_and_its_turn_goes_on() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_JOB_KEEP_FREE", "8000t");
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let told = call(&mut api, &agent, "s", "job_submit", json!({"bin": "sh"})).await;
    assert!(told.contains("too little room on the disk"), "{told}");
    assert_eq!(api.ok("job/list", json!({})).await["jobs"], json!([]));
}
