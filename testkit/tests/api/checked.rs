//! A client that checks every reply, event and refusal against the published schema.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jsonschema::Validator;
use lodge_proto::client::{Client, ClientError};
use lodge_testkit::lodge::{Lodge, PATIENCE};
use serde_json::{Value, json};

/// What `rpc/discover` promises, compiled.
#[derive(Debug)]
pub struct Schemas {
    methods: Vec<(String, Validator)>,
    event: Validator,
    delta: Validator,
    output: Validator,
    gap: Validator,
    progress: Validator,
    error: Validator,
    kinds: BTreeSet<String>,
    codes: BTreeSet<String>,
    pub discovery: Value,
}

impl Schemas {
    fn new(discovery: Value) -> Schemas {
        let compile = |schema: &Value| jsonschema::validator_for(schema).expect("a schema that compiles");
        let methods = discovery["methods"].as_array().expect("methods").iter();
        let word = |value: &Value| value.as_str().expect("a word").to_owned();
        Schemas {
            methods: methods.map(|method| (word(&method["name"]), compile(&method["result"]))).collect(),
            event: compile(&discovery["event"]),
            delta: compile(&discovery["delta"]),
            output: compile(&discovery["output"]),
            gap: compile(&discovery["gap"]),
            progress: compile(&discovery["progress"]),
            error: compile(&discovery["error"]),
            kinds: discovery["event_kinds"].as_array().expect("kinds").iter().map(word).collect(),
            codes: discovery["error_codes"].as_object().expect("codes").keys().cloned().collect(),
            discovery,
        }
    }

    pub fn methods(&self) -> BTreeSet<String> {
        self.methods.iter().map(|(name, _)| name.clone()).collect()
    }

    #[track_caller]
    pub fn result(&self, method: &str, value: &Value) {
        let found = self.methods.iter().find(|(name, _)| name == method);
        fits(&found.unwrap_or_else(|| panic!("{method} is not discoverable")).1, value, method);
    }

    #[track_caller]
    pub fn event(&self, value: &Value) {
        fits(&self.event, value, "event");
        let kind = value["kind"].as_str().expect("a kind");
        assert!(self.kinds.contains(kind), "{kind} is not a documented kind of event");
    }

    /// An error has the published form, a documented code and a message.
    #[track_caller]
    pub fn error(&self, value: &Value) {
        fits(&self.error, value, "error");
        let code = value["data"]["code"].as_str().expect("a code");
        assert!(self.codes.contains(code), "{code} is not a documented code");
        assert!(!value["message"].as_str().expect("a message").is_empty());
    }

    #[track_caller]
    pub fn progress(&self, value: &Value) {
        fits(&self.progress, value, "progress");
    }

    #[track_caller]
    fn notification(&self, method: &str, params: &Value) {
        match method {
            "event" => self.event(params),
            "delta" => fits(&self.delta, params, "delta"),
            "output" => fits(&self.output, params, "output"),
            "gap" => fits(&self.gap, params, "gap"),
            "progress" => self.progress(params),
            other => panic!("`{other}` is no notification"),
        }
    }
}

#[track_caller]
fn fits(schema: &Validator, value: &Value, what: &str) {
    let mistakes: Vec<String> =
        schema.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(mistakes.is_empty(), "{what} does not fit its schema: {mistakes:?}\n{value:#}");
}

/// One connection whose every word is checked.
#[derive(Debug)]
pub struct CheckedClient {
    client: Client,
    pub schemas: Arc<Schemas>,
    pub called: BTreeSet<String>,
}

impl CheckedClient {
    pub async fn new(lodge: &Lodge) -> CheckedClient {
        let mut client = lodge.client().await;
        let discovery = client.call_value("rpc/discover", json!({})).await.expect("a discovery");
        let schemas = Arc::new(Schemas::new(discovery));
        schemas.result("rpc/discover", &schemas.discovery);
        CheckedClient { client, schemas, called: BTreeSet::from(["rpc/discover".to_owned()]) }
    }

    /// Another connection, perhaps to the next daemon, checked against the same schemas.
    pub async fn again(&self, lodge: &Lodge) -> CheckedClient {
        let called = BTreeSet::new();
        CheckedClient { client: lodge.client().await, schemas: self.schemas.clone(), called }
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.called.insert(method.to_owned());
        match self.client.call_value(method, params.clone()).await {
            Ok(result) => {
                self.schemas.result(method, &result);
                Ok(result)
            }
            Err(ClientError::Refused(body)) => {
                let body = serde_json::to_value(body).expect("an error is JSON");
                self.schemas.error(&body);
                Err(body)
            }
            Err(other) => panic!("{method} {params}: {other:?}"),
        }
    }

    /// A call after which the daemon dies, with or without having answered.
    pub async fn last(&mut self, method: &str, params: Value) {
        self.called.insert(method.to_owned());
        match self.client.call_value(method, params.clone()).await {
            Ok(_) | Err(ClientError::Lost) => {}
            Err(other) => panic!("{method} {params}: {other:?}"),
        }
    }

    pub async fn ok(&mut self, method: &str, params: Value) -> Value {
        let shown = params.to_string();
        self.call(method, params).await.unwrap_or_else(|error| panic!("{method} {shown}: {error}"))
    }

    /// Calls what must be refused, with this code and a hint or cause.
    pub async fn refused(&mut self, method: &str, params: Value, code: &str) -> Value {
        let shown = params.to_string();
        match self.call(method, params).await {
            Ok(result) => panic!("{method} {shown} was not refused: {result}"),
            Err(error) => {
                assert_eq!(error["data"]["code"], code, "{method} {shown}: {error}");
                error
            }
        }
    }

    /// The next notification: its method and parameters.
    pub async fn next(&mut self) -> (String, Value) {
        let note = tokio::time::timeout(PATIENCE, self.client.next()).await.expect("a notification in time");
        let note = note.expect("a connection");
        self.schemas.notification(&note.method, &note.params);
        (note.method, note.params)
    }

    /// The next event; previews before it are skipped.
    pub async fn event(&mut self) -> Value {
        loop {
            if let (method, params) = self.next().await
                && method == "event"
            {
                return params;
            }
        }
    }

    /// Events up to and with the first of this kind.
    pub async fn events_to(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event().await;
            let last = event["kind"] == kind;
            events.push(event);
            if last {
                return events;
            }
        }
    }

    /// Asks until the answer is as wanted.
    pub async fn until(&mut self, method: &str, params: Value, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.ok(method, params.clone()).await;
            if wanted(&answer) {
                return answer;
            }
            assert!(Instant::now() < end, "{method} {params} still gives {answer:#}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn agent_is(&mut self, agent: &str, status: &str) -> Value {
        self.until("agent/get", json!({"agent": agent}), |view| view["status"] == status).await
    }

    /// Waits until a turn is over, however it ended.
    pub async fn ended(&mut self, turn: &str) -> Value {
        let over = |turn: &Value| !turn["ended_at"].is_null();
        self.until("turn/get", json!({"turn": turn}), over).await
    }

    /// Sends a message in a session and returns the turn when it is over.
    pub async fn say(&mut self, agent: &str, session: &str, text: &str) -> Value {
        let sent = self.ok("turn/send", json!({"agent": agent, "session": session, "text": text})).await;
        self.ended(sent["id"].as_str().expect("an id")).await
    }

    /// As [`CheckedClient::say`], for turns that must succeed; returns the answer.
    pub async fn answer(&mut self, agent: &str, session: &str, text: &str) -> String {
        let turn = self.say(agent, session, text).await;
        assert_eq!(turn["status"], "done", "{turn:#}");
        turn["text"].as_str().expect("a text").to_owned()
    }

    /// The whole log, page by page.
    pub async fn log(&mut self) -> Vec<Value> {
        let mut events: Vec<Value> = Vec::new();
        loop {
            let since = events.last().map_or(0, |event| event["seq"].as_u64().expect("a sequence"));
            let page = self.ok("event/list", json!({"since": since, "limit": 500})).await;
            let page = page["events"].as_array().expect("events").clone();
            if page.is_empty() {
                return events;
            }
            page.iter().for_each(|event| self.schemas.event(event));
            events.extend(page);
        }
    }
}
