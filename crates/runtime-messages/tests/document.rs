//! `docs/runtime-protocol.md` and the types say the same.

use std::collections::{BTreeMap, BTreeSet};

use lodge_runtime_messages::{
    CompactReply, DaemonMethod, EmptyReply, ExecReply, InitializeReply, InitializeRequest, LINE_BYTES_MAX,
    ModelStreamReply, PingRequest, RuntimeMessage, RuntimeRequest, TurnInterruptRequest, TurnRunRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const DAEMON_METHODS: [&str; 4] =
    [InitializeRequest::METHOD, TurnRunRequest::METHOD, TurnInterruptRequest::METHOD, PingRequest::METHOD];

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runtime-protocol.md");
    std::fs::read_to_string(path).unwrap()
}

/// The text under a heading, up to the next one of the same rank.
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let start = document.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no `{heading}`"));
    let text = &document[start + heading.len() + 2..];
    let rank = heading.split(' ').next().unwrap();
    text.find(&format!("\n{rank} ")).map_or(text, |end| &text[..end])
}

/// The top-level names in `{a, b: [..], c?}`, and the same without the mark of those that may be left out.
fn names(shape: &str) -> BTreeSet<String> {
    let inner = shape.trim().strip_prefix('{').unwrap_or_else(|| panic!("`{shape}`"));
    let inner = inner.strip_suffix('}').unwrap_or_else(|| panic!("`{shape}`"));
    let (mut depth, mut found, mut name) = (0, BTreeSet::new(), String::new());
    for letter in inner.chars().chain([',']) {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                let word = name.split(':').next().unwrap().trim().trim_end_matches('?');
                if !word.is_empty() {
                    found.insert(word.to_owned());
                }
                name.clear();
                continue;
            }
            _ => {}
        }
        if depth == 0 {
            name.push(letter);
        }
    }
    found
}

/// The params and the reply in a line such as `` `{a, b}` → `{c}` ``, which may be folded.
fn signature(text: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let text = text.trim_start();
    let mut shapes = text.split('`').skip(1).step_by(2).map(|shape| shape.replace('\n', " "));
    (names(&shapes.next().unwrap()), names(&shapes.next().unwrap()))
}

/// The first column of a table whose head is `| title | |`.
fn rows(text: &str, title: &str) -> BTreeSet<String> {
    let (_, table) = text.split_once(&format!("| {title} | |\n|---|---|\n")).unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
}

fn keys(value: &impl Serialize) -> BTreeSet<String> {
    serde_json::to_value(value).unwrap().as_object().unwrap().keys().cloned().collect()
}

/// Every field of a type: `sample` sets those that may be left out.
fn fields<T: Serialize + DeserializeOwned>(sample: Value) -> BTreeSet<String> {
    keys(&serde_json::from_value::<T>(sample).unwrap())
}

/// One request of each method, with every field.
fn requests() -> BTreeMap<&'static str, RuntimeRequest> {
    let common = json!({
        "turn": "trn_5", "step": 1, "call": "c1", "context": "x", "from_turn": 1, "bin": "cat", "job": "job_1",
        "status": "failed", "limit": 5, "strategy": "sliding", "text": "x", "error": true, "code": "x", "message": "x",
    });
    let parse = |method| (method, RuntimeRequest::parse(method, common.clone()).unwrap());
    RuntimeRequest::METHODS.iter().copied().map(parse).collect()
}

fn params_of(request: &RuntimeRequest) -> BTreeSet<String> {
    keys(&serde_json::to_value(request).unwrap()["params"])
}

#[test]
fn every_method_has_its_place_and_no_other_is_described() {
    let document = document();
    let methods = |heading: &str| -> BTreeSet<String> {
        let headings = section(&document, heading).lines().filter_map(|line| line.strip_prefix("### `"));
        headings.map(|line| line.trim_end_matches('`').to_owned()).collect()
    };
    assert_eq!(methods("## From the daemon"), DAEMON_METHODS.map(str::to_owned).into());
    let described = |method: &str| if method.starts_with("job/") { "job/…" } else { method }.to_owned();
    assert_eq!(
        methods("## From the runtime"),
        RuntimeRequest::METHODS.iter().map(|method| described(method)).collect()
    );
}

#[test]
fn the_fields_of_every_request_and_reply_are_those_of_the_document() {
    let document = document();
    let initialize = section(&document, "### `initialize`");
    let agent = json!({"protocol": 1, "epoch": 1, "agent": {"id": "agt_1"}, "root": "/"});
    assert_eq!(rows(initialize, "param"), fields::<InitializeRequest>(agent));
    let ready = json!({"context": {"id": "x", "system": "x"}});
    assert_eq!(rows(initialize, "result"), fields::<InitializeReply>(ready));

    let empty = keys(&EmptyReply {});
    let exec = json!({
        "status": "done", "exit_code": 0, "signal": 9, "cause": "oom", "digest": "x", "stdout_bytes": 1, "stderr_bytes": 1,
    });
    let exec = fields::<ExecReply>(exec);
    let check = |method: &str, params: &BTreeSet<String>, reply: &BTreeSet<String>| {
        let (described, replied) = signature(section(&document, &format!("### `{method}`")));
        assert_eq!((&described, &replied), (params, reply), "{method}");
    };
    check("turn/run", &fields::<TurnRunRequest>(json!({"turn": "x", "number": 1, "step": 1})), &empty);
    check("turn/interrupt", &fields::<TurnInterruptRequest>(json!({"turn": "x"})), &empty);
    check("ping", &keys(&PingRequest {}), &empty);
    let requests = requests();
    let model = fields::<ModelStreamReply>(json!({"finished": true}));
    check("model/stream", &params_of(&requests["model/stream"]), &model);
    let compact = fields::<CompactReply>(json!({"from_turn": 1}));
    check("context/compact", &params_of(&requests["context/compact"]), &compact);
    check("exec/run", &params_of(&requests["exec/run"]), &exec);
    check("tool/answer", &params_of(&requests["tool/answer"]), &empty);
    check("turn/finish", &params_of(&requests["turn/finish"]), &empty);
}

#[test]
fn the_fields_of_every_request_about_jobs_are_those_of_the_document() {
    let document = document();
    let requests = requests();
    let mut seen = BTreeSet::new();
    for row in section(&document, "### `job/…`").lines().filter(|line| line.starts_with("| `job_")) {
        let quoted: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let (method, shape) = (quoted[2], quoted[3]);
        assert_eq!(params_of(&requests[method]), names(shape), "{method}");
        seen.insert(method);
    }
    assert_eq!(
        seen.len(),
        RuntimeRequest::METHODS.iter().filter(|method| method.starts_with("job/")).count()
    );
}

/// The messages of the transcript that are written out in full, with the side that sends each.
fn transcript() -> Vec<(char, Value)> {
    let document = document();
    let text = section(&document, "## Transcript");
    let mut lines: Vec<String> = Vec::new();
    for line in text.split("```").skip(1).step_by(2).flat_map(str::lines) {
        match line.strip_prefix("   ") {
            Some(rest) => lines.last_mut().unwrap().push_str(rest),
            None => lines.push(line.to_owned()),
        }
    }
    let message = |line: String| {
        let sender = line.chars().next()?;
        Some((sender, serde_json::from_str(line[sender.len_utf8()..].trim()).ok()?))
    };
    lines.into_iter().filter_map(message).collect()
}

/// What the type makes of a message must be the message: no field of the document is unknown, and none is missing.
fn same<T: Serialize + DeserializeOwned>(value: &Value) {
    let read: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"));
    assert_eq!(&serde_json::to_value(read).unwrap(), value);
}

#[test]
fn the_transcript_is_what_the_types_read_and_write() {
    let mut compared = BTreeSet::new();
    for (sender, value) in transcript() {
        let message: RuntimeMessage = serde_json::from_value(value.clone()).unwrap();
        match (sender, message.method.as_deref()) {
            ('→', Some("initialize")) => same::<InitializeRequest>(&value["params"]),
            ('→', Some("turn/run")) => same::<TurnRunRequest>(&value["params"]),
            ('→', Some("ping")) => same::<PingRequest>(&value["params"]),
            ('←', Some(method)) => {
                let request = RuntimeRequest::parse(method, message.params).unwrap();
                assert_eq!(request.id(), value["id"], "{value}");
                let mut written = serde_json::to_value(&request).unwrap();
                written["id"] = value["id"].clone();
                assert_eq!(written, value);
            }
            ('→', None) if value["id"].as_str().is_some_and(|id| id.contains(":m")) => {
                same::<ModelStreamReply>(&value["result"]);
            }
            ('→', None) if value["result"].get("digest").is_some() => {
                let reply: ExecReply = serde_json::from_value(value["result"].clone()).unwrap();
                assert_eq!((reply.exit_code, reply.stdout_bytes), (Some(0), Some(120)));
            }
            ('→' | '←', None) => same::<EmptyReply>(&value["result"]),
            (other, method) => panic!("{other} {method:?}"),
        }
        compared.insert(format!("{sender} {}", message.method.unwrap_or_else(|| "reply".to_owned())));
    }
    let expected = [
        "→ initialize",
        "→ turn/run",
        "→ ping",
        "→ reply",
        "← reply",
        "← model/stream",
        "← exec/run",
        "← tool/answer",
    ];
    assert_eq!(compared, expected.map(str::to_owned).into());
}

#[test]
fn the_limit_of_a_line_is_that_of_the_document() {
    assert!(document().contains("16,777,216 bytes") && LINE_BYTES_MAX == 16_777_216);
}
