//! Who sees a job: clients attached to it, its session, its agent or all; and one of the agents' tokens.

use lodge_proto::client::{Client, ClientError};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::jobs_api::{UNTIL_GO, go, ids, over, submit, touch};
use crate::tokens::issue;
use crate::world::{ApiWorld, id};

/// What a follower received about a job.
#[derive(Debug, Default)]
struct JobUpdates {
    events: Vec<Value>,
    /// The last count of both streams.
    written: (u64, u64),
}

impl JobUpdates {
    /// Takes the next notification. A client that is attached to the job gets no others.
    async fn next(&mut self, other: &mut CheckedClient, target: &Value, agent: &str, job: &str) {
        let (method, params) = other.next().await;
        match method.as_str() {
            "event" if params["data"]["job"] == json!(job) => self.events.push(params),
            "output" if params["job"] == json!(job) => {
                assert_eq!((&params["agent"], &params["session"]), (&json!(agent), &json!("s")));
                let number = |key: &str| params[key].as_u64().expect("a number");
                let now = (number("stdout_bytes"), number("stderr_bytes"));
                assert!(now.0 >= self.written.0 && now.1 >= self.written.1, "{now:?} after {self:?}");
                self.written = now;
            }
            "event" | "output" => assert!(target["job"].is_null(), "{target}: {params}"),
            other => panic!("{other}: {params}"),
        }
    }
}

#[tokio::test]
async fn a_client_attached_to_a_job_gets_its_events_alone_from_any_cursor() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let script = format!("until test -e begin; do sleep 0.02; done; echo one; {UNTIL_GO}; echo two >&2");
    let job = json!({"agent": agent, "bin": "sh", "args": ["-c", script], "session": "s"});
    let job = id(&api.ok("job/submit", job).await).to_owned();
    let mut followers = Vec::new();
    for target in
        [json!({"job": job}), json!({"session": "s"}), json!({"agent": agent}), json!({"all": true})]
    {
        let mut other = api.again(&world.lodge).await;
        let mut given = target.clone();
        given["since"] = json!(0);
        let attached = other.ok("client/attach", given).await;
        assert_eq!(attached["state"]["jobs"][0]["id"], json!(job), "{target}");
        followers.push((target, other));
    }
    let mut strangers = Vec::new();
    for target in [json!({"session": "t"}), json!({"job": submit(&mut api, &agent, "exit 0").await})] {
        let mut other = api.again(&world.lodge).await;
        other.ok("client/attach", target).await;
        strangers.push(other);
    }
    // Live notifications are not repeated: the job writes when all clients are attached, and each is notified before
    // the end.
    touch(&world, &agent, "begin");
    let mut heard = Vec::new();
    for (target, other) in &mut followers {
        let mut told = JobUpdates::default();
        while told.written.0 < 4 {
            told.next(other, target, &agent, &job).await;
        }
        heard.push(told);
    }
    go(&world, &agent);
    over(&mut api, &job).await;
    let known: Vec<Value> =
        api.log().await.into_iter().filter(|event| event["data"]["job"] == json!(job)).collect();
    for ((target, other), told) in followers.iter_mut().zip(&mut heard) {
        while told.events.last() != known.last() {
            told.next(other, target, &agent, &job).await;
        }
        assert_eq!(told.events, known, "{target}");
    }
    // Clients attached to something else received nothing about this job.
    let end = submit(&mut api, &agent, "exit 0").await;
    over(&mut api, &end).await;
    for other in &mut strangers {
        while let Ok(note) = tokio::time::timeout(std::time::Duration::from_millis(1), other.next()).await {
            assert!(note.1["job"] != json!(job) && note.1["data"]["job"] != json!(job), "{note:?}");
        }
    }
    // From a cursor in the middle there is the rest, and the state of the job.
    let mut late = api.again(&world.lodge).await;
    let attached = late.ok("client/attach", json!({"job": job, "since": known[1]["seq"]})).await;
    assert_eq!(attached["state"]["jobs"][0]["status"], "done");
    for event in &known[2..] {
        assert_eq!(late.event().await, *event);
    }
}

#[tokio::test]
async fn to_an_agents_token_the_jobs_of_others_are_not_there() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    let theirs = submit(&mut api, &two, "echo secret; sleep 600").await;
    api.until("job/get", json!({"job": theirs}), |job| job["stdout_bytes"] == 7).await;
    let (_, token) = issue(&mut api, json!({"agent": one})).await;
    let mut own = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
    for method in ["job/get", "job/wait", "job/cancel", "job/output", "client/attach"] {
        for job in [theirs.as_str(), &theirs[..theirs.len() - 1], "job_0"] {
            match own.call_value(method, json!({"job": job})).await {
                Err(ClientError::Refused(body)) => {
                    assert_eq!(
                        (body.data.code.as_str(), body.message),
                        ("job.not_found", format!("async job not found: {job}")),
                        "{method}"
                    );
                }
                got => panic!("{method} {job}: {got:?}"),
            }
        }
    }
    let submit = |given: Value| {
        let mut job = json!({"bin": "sh", "args": ["-c", "echo mine"]});
        job.as_object_mut().expect("an object").extend(given.as_object().expect("an object").clone());
        job
    };
    for (given, code) in [
        (json!({"agent": "two"}), "agent.not_found"),
        (json!({"agent": two}), "agent.not_found"),
        (json!({"output": "65m"}), "params.invalid"),
    ] {
        match own.call_value("job/submit", submit(given.clone())).await {
            Err(ClientError::Refused(body)) => assert_eq!(body.data.code, code, "{given}"),
            got => panic!("{given}: {got:?}"),
        }
    }
    // Its own agent need not be named, and is all that it lists.
    let mine = own.call_value("job/submit", submit(json!({"output": "64m"}))).await.expect("a job");
    assert_eq!(mine["agent"], json!(one));
    let mine = id(&mine).to_owned();
    let done = own.call_value("job/wait", json!({"job": mine})).await.expect("a job");
    assert_eq!(done["status"], "done");
    let output = own.call_value("job/output", json!({"job": mine})).await.expect("output");
    assert_eq!(output["data"], "mine\n");
    // The beginning of every id means the only one that is there.
    assert_eq!(id(&own.call_value("job/get", json!({"job": &mine[..5]})).await.expect("a job")), mine);
    for given in [json!({}), json!({"agent": "one"}), json!({"status": "done"})] {
        assert_eq!(ids(&own.call_value("job/list", given).await.expect("a list")), [mine.as_str()]);
    }
    assert_eq!(
        ids(&own.call_value("job/list", json!({"status": "running"})).await.expect("a list")).len(),
        0
    );
    match own.call_value("job/list", json!({"agent": "two"})).await {
        Err(ClientError::Refused(body)) => assert_eq!(body.data.code, "agent.not_found"),
        got => panic!("{got:?}"),
    }
    assert_eq!(api.ok("job/get", json!({"job": theirs})).await["status"], "running");
    api.ok("job/cancel", json!({"job": theirs})).await;
}
