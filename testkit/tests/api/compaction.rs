//! Long conversations: what the model reads of them, what people read, and what a crash leaves of it.

use std::sync::{Arc, Mutex};

use lodge_testkit::lodge::until_async;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, KEY, id, sh};

/// How the daemon begins when it asks for a summary.
const SUMMARY_ASKED: &str = "[This is not from the user.";

/// A provider that records its requests and checks them strictly.
#[derive(Debug, Clone)]
struct SummaryProvider {
    bodies: Arc<Mutex<Vec<Value>>>,
    /// What it does about summaries.
    summaries: watch::Sender<SummaryMode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SummaryMode {
    Written,
    Refused,
    /// Not before this is another.
    Held,
}

impl SummaryProvider {
    async fn start() -> (SummaryProvider, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let provider =
            SummaryProvider { bodies: Arc::default(), summaries: watch::channel(SummaryMode::Written).0 };
        let serving = provider.clone();
        // Ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        (provider, url)
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut text = Vec::new();
        let body = loop {
            if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
                return;
            }
            let end = text.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            if let Some(body) = end.and_then(|end| serde_json::from_slice::<Value>(&text[end + 4..]).ok()) {
                break body;
            }
        };
        let of_summary = is_summary(&body);
        let number = {
            let mut bodies = self.bodies.lock().expect("bodies");
            bodies.push(body);
            bodies.iter().filter(|body| is_summary(body)).count()
        };
        let mut summaries = self.summaries.subscribe();
        let how = if of_summary { *summaries.borrow() } else { SummaryMode::Written };
        let answer = match how {
            SummaryMode::Refused => {
                "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}".to_owned()
            }
            SummaryMode::Held | SummaryMode::Written => {
                // A provider that is gone does not answer.
                drop(summaries.wait_for(|how| !of_summary || *how != SummaryMode::Held).await);
                let said = if of_summary { format!("summary {number}") } else { "ok".to_owned() };
                let piece = json!({"choices": [{"index": 0, "delta": {"content": said}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": 1}});
                let text = format!("data: {piece}\n\ndata: [DONE]\n\n");
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\nconnection: \
                     close\r\n\r\n{text}",
                    text.len()
                )
            }
        };
        drop(stream.write_all(answer.as_bytes()).await);
    }

    /// The conversations of its requests, without the system prompt.
    fn asked(&self) -> Vec<Vec<Value>> {
        let bodies = self.bodies.lock().expect("bodies");
        let messages = |body: &Value| body["messages"].as_array().expect("messages").clone();
        let said = |message: &Value| message["role"] != "system";
        bodies.iter().map(|body| messages(body).into_iter().filter(said).collect()).collect()
    }
}

fn is_summary(body: &Value) -> bool {
    let messages = body["messages"].as_array().expect("messages");
    messages.last().is_some_and(|last| words(last).starts_with(SUMMARY_ASKED))
}

fn words(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

/// A world with such a provider, and an agent that remembers four messages.
async fn world(strategy: &str) -> (ApiWorld, SummaryProvider, CheckedClient, String) {
    let mut world = ApiWorld::asleep();
    let (provider, url) = SummaryProvider::start().await;
    let entry = format!("  - name: kept\n    kind: openai\n    base-url: {url}\n    api-key: {KEY}\n");
    world.put_providers(&format!("{}{entry}", world.provider("mock", &world.mock.base_url())));
    world.lodge.start();
    let mut api = world.checked().await;
    let agentfile = format!(
        "{}CONFIG memory-max-messages=4\nCONFIG memory-strategy={strategy}\nCONFIG presence-penalty=0.5\n",
        AGENTFILE.replace("mock/m", "kept/m")
    );
    let created = api.ok("agent/create", json!({"content": agentfile, "name": "rememberer"})).await;
    let agent = id(&created).to_owned();
    api.agent_is(&agent, "ready").await;
    (world, provider, api, agent)
}

async fn compactions(api: &mut CheckedClient) -> Vec<Value> {
    api.log().await.into_iter().filter(|event| event["kind"] == "session.compacted").collect()
}

#[tokio::test]
async fn a_long_conversation_is_read_by_the_model_as_a_summary_and_its_newest_turns_and_by_people_whole() {
    let (_world, provider, mut api, agent) = world("summarize").await;
    for number in 1..=4 {
        assert_eq!(api.answer(&agent, "s", &format!("question {number}")).await, "ok");
    }
    let asked = provider.asked();
    let [one, two, summary, three, four] = &asked[..] else { panic!("{} requests", asked.len()) };
    assert_eq!((one.len(), two.len(), summary.len()), (1, 3, 5));
    assert_eq!(summary[..3], two[..], "a summary is asked for behind the bytes that the provider knows");
    assert!(words(&three[0]).ends_with("summary 1"), "{three:?}");
    assert_eq!((three.len(), words(&three[2])), (3, "question 3"), "nothing older is read");
    assert_eq!(four[..3], three[..], "within an epoch a request begins with the one before it");
    assert_eq!(words(&four[4]), "question 4");

    for body in provider.bodies.lock().expect("bodies").iter() {
        assert_eq!(body["presence_penalty"], 0.5);
        assert!(body.get("temperature").is_none(), "what is not set is not sent: {body}");
    }
    let session = api.ok("session/get", json!({"session": "s"})).await;
    assert_eq!(session["epoch"], 2);
    let all = api.ok("session/messages", json!({"session": "s"})).await;
    let messages = all["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 8, "people read everything: {messages:#?}");
    let [epoch] = &all["epochs"].as_array().expect("epochs")[..] else { panic!("one epoch: {all}") };
    assert_eq!((&epoch["epoch"], &epoch["from_turn"], &epoch["turn"]), (&json!(2), &json!(3), &json!(3)));
    assert_eq!((&epoch["strategy"], &epoch["summary"]), (&json!("summarize"), &json!("summary 1")));
    assert_eq!(epoch["seq"], messages[4]["seq"], "it begins with the third question");
    let older = api.ok("session/messages", json!({"session": "s", "before": 5})).await;
    assert_eq!(older["epochs"], json!([]));

    let turns = api.ok("turn/list", json!({"session": "s"})).await;
    let third = &turns["turns"][2];
    let kinds: Vec<&str> =
        third["steps"].as_array().expect("steps").iter().filter_map(|step| step["kind"].as_str()).collect();
    assert_eq!(kinds, ["model", "model"], "the summary is a step like any other");
    assert_eq!(third["usage"]["input_tokens"], 20);
    let [event] = &compactions(&mut api).await[..] else { panic!("one event") };
    let data = &event["data"];
    assert_eq!(
        (&data["epoch"], &data["from_turn"], &data["kind"]),
        (&json!(2), &json!(3), &json!("summarize"))
    );
    assert!(data.get("text").is_none(), "{data}");
    let shown =
        api.log().await.into_iter().any(|event| event["kind"] == "turn.text" && event["data"]["step"] == 0);
    assert!(!shown, "nobody is shown the text of a summary as if it were an answer");
}

#[tokio::test]
async fn after_a_handoff_the_model_reads_the_document_and_nothing_older_and_sliding_costs_no_call() {
    let (_world, provider, mut api, agent) = world("handoff").await;
    for number in 1..=3 {
        api.answer(&agent, "s", &format!("question {number}")).await;
    }
    let asked = provider.asked();
    assert_eq!(asked.len(), 4);
    assert!(words(asked[2].last().expect("an instruction")).contains("handoff document"));
    assert_eq!(asked[3].len(), 3);
    assert!(words(&asked[3][0]).ends_with("summary 1") && words(&asked[3][2]) == "question 3");

    let (_world, provider, mut api, agent) = world("sliding").await;
    for number in 1..=5 {
        api.answer(&agent, "s", &format!("question {number}")).await;
    }
    let lengths: Vec<usize> = provider.asked().iter().map(Vec::len).collect();
    assert_eq!(lengths, [1, 3, 1, 3, 1], "at most four messages with the answer, and no other requests");
    assert_eq!(api.ok("session/get", json!({"session": "s"})).await["epoch"], 3);
}

#[tokio::test]
async fn a_summary_that_cannot_be_had_is_done_without_and_says_why() {
    let (_world, provider, mut api, agent) = world("summarize").await;
    api.answer(&agent, "s", "question 1").await;
    api.answer(&agent, "s", "question 2").await;
    provider.summaries.send_replace(SummaryMode::Refused);
    assert_eq!(api.answer(&agent, "s", "question 3").await, "ok");
    let last = provider.asked().pop().expect("a request");
    assert_eq!((last.len(), words(&last[0])), (1, "question 3"));
    let [event] = &compactions(&mut api).await[..] else { panic!("one event") };
    let data = &event["data"];
    assert_eq!((&data["kind"], &data["code"]), (&json!("sliding"), &json!("model.status")));
    // The next one may be written again.
    provider.summaries.send_replace(SummaryMode::Written);
    api.answer(&agent, "s", "question 4").await;
    api.answer(&agent, "s", "question 5").await;
    let last = provider.asked().pop().expect("a request");
    assert!(words(&last[0]).ends_with("summary 2"), "{last:?}");
}

#[tokio::test]
async fn a_summary_that_a_crash_cut_is_asked_for_once_more_and_one_that_is_stored_never_again() {
    let (mut world, provider, mut api, agent) = world("summarize").await;
    api.answer(&agent, "s", "question 1").await;
    api.answer(&agent, "s", "question 2").await;
    provider.summaries.send_replace(SummaryMode::Held);
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "question 3"})).await;
    let turn = json!({"turn": id(&sent)});
    let asked_for = |turn: &Value| turn["steps"].as_array().is_some_and(|steps| !steps.is_empty());
    api.until("turn/get", turn.clone(), asked_for).await;
    until_async("the provider is asked", async || (provider.asked().len() == 3).then_some(())).await;
    world.lodge.kill9();
    provider.summaries.send_replace(SummaryMode::Written);
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let ended = api.ended(id(&sent)).await;
    assert_eq!((&ended["status"], &ended["steps"][0]["attempt"]), (&json!("done"), &json!(2)), "{ended:#}");
    let asked = provider.asked();
    assert_eq!(asked[2], asked[3], "the same question");
    assert_eq!(asked.len(), 5);
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.answer(&agent, "s", "question 4").await;
    let asked = provider.asked();
    assert_eq!((asked.len(), &asked[5][..3]), (6, &asked[4][..]), "another daemon reads the same epoch");
}

#[tokio::test]
async fn a_broken_off_turn_leaves_a_conversation_that_the_next_request_can_be_made_of() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    // Half an answer, a tool at work, and a model that says nothing at all.
    for text in ["[[hang-after:3]]", &sh("sleep 60"), "[[hang]]"] {
        let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
        let begun = |turn: &Value| {
            let steps = turn["steps"].as_array().expect("steps");
            let tool = steps.iter().any(|step| step["kind"] == "tool");
            !steps.is_empty() && (tool || text == "[[hang]]" || turn["text"] != "")
        };
        api.until("turn/get", json!({"turn": id(&sent)}), begun).await;
        api.ok("turn/interrupt", json!({"turn": id(&sent)})).await;
    }
    assert_eq!(api.answer(&agent, "s", "[[reply:{{turn}}]]").await, "4");
    let asked = world.mock.requests().expect("requests").pop().expect("a request");
    // system, then: user, half an answer; user, call, result, no answer; user, no answer; user.
    assert_eq!(asked.messages, 10, "{asked:?}");
    let said = api.ok("session/messages", json!({"session": "s"})).await;
    let roles: Vec<(&str, bool)> = said["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .map(|message| (message["role"].as_str().expect("a role"), message["partial"] == true))
        .collect();
    let expected = [
        ("user", false),
        ("assistant", true),
        ("user", false),
        ("assistant", false),
        ("tool", false),
        ("user", false),
        ("user", false),
        ("assistant", false),
    ];
    assert_eq!(roles, expected, "what is recorded is what happened");
}
