//! What is published of the API stays: the schema only grows, and the pages have every method.

use std::collections::{BTreeMap, BTreeSet};

use lodge_proto::{METHODS, Rights, discover};
use serde_json::Value;

/// Set it to write `published.txt` again, after a field or a method was added.
const WRITE: &str = "LODGE_WRITE_PUBLISHED";

fn page(name: &str) -> String {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// A type as one word: `string`, `integer|null`, `[TurnView]`, `{string}`.
fn type_word(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.trim_start_matches("#/$defs/").to_owned();
    }
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().map(type_word).collect::<Vec<_>>().join("|");
    }
    let one = |word: &str| match word {
        "array" => format!("[{}]", type_word(&schema["items"])),
        "object" if schema.get("additionalProperties").is_some_and(Value::is_object) => {
            format!("{{{}}}", type_word(&schema["additionalProperties"]))
        }
        other => other.to_owned(),
    };
    match &schema["type"] {
        Value::String(word) => one(word),
        Value::Array(words) => words.iter().filter_map(Value::as_str).map(one).collect::<Vec<_>>().join("|"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => "any".to_owned(),
    }
}

/// One line for every field of an object: whose it is, its type, and whether it is always there.
fn fields(whose: &str, schema: &Value, lines: &mut BTreeSet<String>) {
    let required: BTreeSet<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (field, of) in schema["properties"].as_object().into_iter().flatten() {
        let always = if required.contains(field.as_str()) { "" } else { "?" };
        lines.insert(format!("{whose}.{field}{always}: {}", type_word(of)));
    }
    for (name, of) in schema["$defs"].as_object().into_iter().flatten() {
        fields(name, of, lines);
    }
}

fn published() -> BTreeSet<String> {
    let api = discover("0");
    let mut lines = BTreeSet::new();
    for method in &api.methods {
        let title = |schema: &Value| schema["title"].as_str().unwrap_or("any").to_owned();
        let (params, result) = (title(&method.params), title(&method.result));
        let mutates = if method.mutates { "write" } else { "read" };
        lines.insert(format!("{} {mutates}({params}) -> {result}", method.name));
        fields(&params, &method.params, &mut lines);
        fields(&result, &method.result, &mut lines);
    }
    for (name, schema) in [
        ("event", &api.event),
        ("delta", &api.delta),
        ("output", &api.output),
        ("gap", &api.gap),
        ("progress", &api.progress),
        ("error", &api.error),
    ] {
        fields(name, schema, &mut lines);
    }
    lines.extend(api.event_kinds.iter().map(|kind| format!("event kind {kind}")));
    lines.extend(api.error_codes.keys().map(|code| format!("error code {code}")));
    lines
}

#[test]
fn what_was_published_is_still_there_and_what_is_new_is_written_down() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/published.txt");
    let now = published();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(path, now.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
    let before: BTreeSet<String> =
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    let gone: Vec<&String> = before.difference(&now).collect();
    assert!(gone.is_empty(), "clients rely on these, which are gone or changed: {gone:#?}");
    let new: Vec<&String> = now.difference(&before).collect();
    assert!(new.is_empty(), "run this test with {WRITE}=1 to add these to {path}: {new:#?}");
}

#[test]
fn the_page_about_the_api_has_every_method() {
    let page = page("api.md");
    let (_, table) = page.split_once("| method | |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let described: BTreeSet<&str> =
        rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
    assert_eq!(described, METHODS.iter().map(|method| method.name).collect());
}

#[test]
fn the_page_about_access_has_what_an_agents_token_may_call() {
    let page = page("access.md");
    let row = page.lines().find(|line| line.starts_with("| `lodge:agent` |")).unwrap();
    let described: BTreeSet<&str> = row
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| METHODS.iter().any(|method| method.name == *word))
        .collect();
    let agents = METHODS.iter().filter(|method| matches!(method.rights, Rights::Agent(_)));
    assert_eq!(described, agents.map(|method| method.name).collect());
}

#[test]
fn every_method_has_a_summary_and_a_name_of_its_own() {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for method in METHODS {
        assert!(method.summary.ends_with('.') && !method.summary.starts_with(' '), "{method:?}");
        assert_eq!(names.insert(method.name, method.summary), None, "{method:?}");
    }
    assert!(METHODS.iter().any(|method| method.rights == Rights::Operator));
}
