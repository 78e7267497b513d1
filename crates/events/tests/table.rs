//! What the table of events promises: names and codes of their own, stored records that stay readable, and a page of
//! documentation that says what is there.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use lodge_events::{AgentFailed, EventBody, EventKind, Timestamp, TurnFinished, TurnToolResult};
use serde_json::{Value, json};

#[test]
fn every_kind_has_its_own_code_and_name() {
    let codes: BTreeSet<i64> = EventKind::ALL.iter().map(|kind| kind.code()).collect();
    let names: BTreeSet<&str> = EventKind::ALL.iter().map(|kind| kind.word()).collect();
    assert_eq!((codes.len(), names.len()), (EventKind::ALL.len(), EventKind::ALL.len()));
    for kind in EventKind::ALL {
        assert_eq!(EventKind::from_code(kind.code()), Some(*kind));
        assert_eq!(EventKind::from_word(kind.word()), Some(*kind));
    }
}

#[test]
fn every_stored_or_shown_form_of_an_event_can_be_read_again() {
    for kind in EventKind::ALL {
        let empty = EventBody::decode(*kind, &[]).expect("an event without values");
        assert_eq!(EventBody::from_data(kind.word(), &empty.data()), Some(empty), "{}", kind.word());
    }
    let failed = EventBody::from(AgentFailed {
        name: "coder".into(),
        attempt: Some(2),
        reason: "model".into(),
        detail: None,
        retry_at_ms: Some(1_794_729_437_005),
    });
    assert_eq!(EventBody::decode(EventKind::AgentFailed, &failed.encode()), Ok(failed.clone()));
    assert_eq!(
        Value::from(failed.data()),
        json!({"name": "coder", "attempt": 2, "reason": "model", "retry_at": "2026-11-15T07:57:17.005Z"})
    );
    assert_eq!(EventBody::from_data("agent.failed", &failed.data()), Some(failed));
    let finished = EventBody::from(TurnFinished { micro_usd: Some(1_250_000), ..TurnFinished::default() });
    assert_eq!(finished.data()["cost_usd"], json!(1.25));
    assert_eq!(EventBody::from_data("turn.finished", &finished.data()), Some(finished));
}

#[test]
fn a_record_of_the_first_release_is_read() {
    // As protobuf: turn (2), step (3), name (5), call (7), status (9), exit_code (10, zigzag), bytes (12), preview (13).
    let stored = b"\x12\x05trn_1\x18\x02\x2a\x02ls\x3a\x02c1\x4a\x04done\x50\x01\x60\x07\x6a\x02ok";
    let read = EventBody::decode(EventKind::TurnToolResult, stored).unwrap();
    let expected = TurnToolResult {
        turn: "trn_1".into(),
        step: 2,
        name: "ls".into(),
        call: "c1".into(),
        status: "done".into(),
        exit_code: Some(-1),
        bytes: 7,
        preview: "ok".into(),
        ..TurnToolResult::default()
    };
    assert_eq!(read, EventBody::from(expected));
}

#[test]
fn an_event_that_this_release_does_not_know_is_passed_over() {
    let data = json!({"name": "coder"}).as_object().cloned().unwrap();
    assert_eq!(EventBody::from_data("agent.dreaming", &data), None);
    assert!(EventBody::from_data("agent.ready", &data).is_some());
    assert_eq!(EventBody::from_data("agent.ready", &serde_json::Map::new()), None);
}

#[test]
fn sessions_and_jobs_are_found_in_every_kind_that_has_them() {
    for kind in EventKind::ALL {
        let fields = kind.doc().schema.to_value();
        let properties = &fields["properties"];
        let mut data = EventBody::decode(*kind, &[]).unwrap().data();
        for (field, value) in [("session", "s1"), ("job", "job_1")] {
            if !properties[field].is_null() {
                data.insert(field.to_owned(), json!(value));
            }
        }
        let body = EventBody::from_data(kind.word(), &data).unwrap();
        assert_eq!(body.session(), data.get("session").map(|_| "s1"), "{}", kind.word());
        assert_eq!(body.job(), data.get("job").map(|_| "job_1"), "{}", kind.word());
    }
}

/// `docs/events.md`, from the table.
fn page() -> String {
    let mut page = String::from(
        "# Events\n\nEvery event has `seq` (the cursor), `stream` (the id of an agent or of a standalone sandbox, or `daemon`), `stream_seq` (gap-free within its \
         stream), `at`, `kind` and `data`. `data` of an event in an agent's stream also has `agent`, its id. Fields without a value are \
         absent. New kinds and fields may be added; skip what you do not know. `rpc/discover` has this list with a JSON schema of each `data`.\n",
    );
    for kind in EventKind::ALL {
        let doc = kind.doc();
        write!(page, "\n## `{}`\n{}\n\n| field | type | |\n|---|---|---|\n", doc.name, doc.summary).unwrap();
        let schema = doc.schema.to_value();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let types = match &field["type"] {
                Value::Array(types) => types.iter().filter_map(Value::as_str).find(|one| *one != "null"),
                one => one.as_str(),
            };
            let presence = if required.contains(&name.as_str()) { "" } else { ", optional" };
            let words = field["description"].as_str().unwrap_or_default();
            writeln!(page, "| `{name}` | {}{presence} | {words} |", types.unwrap_or("object")).unwrap();
        }
    }
    page
}

#[test]
fn the_page_about_events_says_what_is_in_the_table() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
    if std::env::var_os("LODGE_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page(), "run this test with LODGE_WRITE_DOCS=1 and commit docs/events.md");
}

#[test]
fn times_are_read_as_they_are_shown_and_nothing_else_is() {
    for text in ["2026-11-15T07:57:17.005Z", "1969-12-31T23:59:59.999Z", "2000-02-29T00:00:00.000Z"] {
        assert_eq!(text.parse::<Timestamp>().map(|time| time.to_string()), Ok(text.to_owned()));
    }
    for text in
        ["", "2026-11-15", "2026-11-15T07:57:17Z", "2026-11-15 07:57:17.005Z", "2026-11-15T07:57:17.00ÄZ"]
    {
        assert!(text.parse::<Timestamp>().is_err(), "{text}");
    }
}
