//! `providers.yaml`: what is read, what is refused, what is kept and what is written back.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lodge_model::{
    CallContext, CallUsage, FileError, ModelMessage, ModelRequest, NewProvider, ProviderKind, Providers,
    ProvidersError, Secret, Timeouts,
};
use tempfile::TempDir;

use crate::common::{AfterLastByte, RawServer, limits, stream_head};

const GOOD: &str = "# my providers
providers:
  - name: work
    kind: openai
    base-url: http://127.0.0.1:1/v1
    api-key: ${WORK_KEY}      # from the environment
    models: [small, vendor/large]
  - name: other
    kind: anthropic
    api-key: sk-literal-0123456789abcdef
";

struct ProviderHome {
    _dir: TempDir,
    path: PathBuf,
    providers: Providers,
}

fn home(text: &str) -> ProviderHome {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("providers.yaml");
    let providers =
        Providers::with_variables(&path, |name| (name == "WORK_KEY").then(|| "sk-expanded".to_owned()));
    write(&path, text, 0o600);
    ProviderHome { _dir: dir, path, providers }
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("a written file");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

fn names(providers: &Providers) -> Vec<String> {
    providers.list().expect("a list").into_iter().map(|view| view.name).collect()
}

fn new(name: &str) -> NewProvider {
    let api_key = Some(Secret::new("${LATER}"));
    NewProvider {
        name: name.into(),
        kind: ProviderKind::Openai,
        base_url: None,
        api_key,
        models: vec!["a: b".into()],
        retry_for: None,
    }
}

#[test]
fn only_the_first_slash_splits_and_lists_of_models_are_kept_to() {
    let home = home(GOOD);
    let found = home.providers.resolve("work/vendor/large").expect("a model");
    assert_eq!((found.provider.name.as_str(), found.model.as_str()), ("work", "vendor/large"));
    assert!(home.providers.resolve("other/any/thing").is_ok());
    for (model, code) in [
        ("work/medium", "model.not_listed"),
        ("nobody/small", "provider.not_found"),
        ("work", "model.bad_name"),
        ("work/", "model.bad_name"),
        ("/small", "model.bad_name"),
    ] {
        assert_eq!(home.providers.resolve(model).expect_err(model).code(), code, "{model}");
    }
    let hint = home.providers.resolve("nobody/x").expect_err("nobody").hint().expect("a hint");
    assert_eq!(hint, "known providers: work, other, script");
}

#[tokio::test]
async fn a_call_is_redacted_with_the_key_that_it_was_made_with_even_if_the_file_changes_meanwhile() {
    // A provider that repeats the key that it was called with.
    let echo = |request: &str| {
        let key = request.split_once("Bearer ").map_or("", |(_, rest)| rest.lines().next().unwrap_or(""));
        let text = format!(r#"{{"choices":[{{"delta":{{"content":"{key}"}},"finish_reason":"stop"}}]}}"#);
        vec![format!("{}data: {text}\n\ndata: [DONE]\n\n", stream_head()).into_bytes()]
    };
    let server = RawServer::answering(echo, AfterLastByte::Close).await;
    let (old, new) = ("sk-older-0123456789abcdef", "sk-newer-0123456789abcdef");
    let file = |key: &str| {
        format!(
            "providers:\n  - name: work\n    kind: openai\n    base-url: {}\n    api-key: {key}\n",
            server.url
        )
    };
    let home = home(&file(old));
    let before = home.providers.resolve("work/m").expect("a model");
    write(&home.path, &file(new), 0o600);
    let after = home.providers.resolve("work/m").expect("a model");
    for (found, key) in [(before, old), (after, new)] {
        let request = ModelRequest::new(&found.model, vec![ModelMessage::user("hi")]);
        let context = CallContext::with_limits("/nonexistent", limits());
        let answer = lodge_model::call(&found.provider, &request, &context, &mut |_| ()).await;
        let text = answer.expect("an answer").text;
        assert_eq!(text, key, "the provider got the key of its own version");
        assert_eq!(found.redactor.redact(text), "[secret]");
    }
}

#[test]
fn a_script_provider_is_there_unless_the_file_has_one_of_that_name() {
    let home = home(GOOD);
    assert_eq!(home.providers.get("script").expect("implicit").kind, ProviderKind::Script);
    fs::remove_file(&home.path).expect("removed");
    assert_eq!(names(&home.providers), ["script"]);
    write(&home.path, "providers:\n  - {name: script, kind: openai}\n", 0o600);
    assert_eq!(home.providers.get("script").expect("listed").kind, ProviderKind::Openai);
    assert_eq!(names(&home.providers), ["script"]);
}

#[test]
fn keys_are_masked_in_lists_and_absent_from_debug() {
    let home = home(GOOD);
    let list = home.providers.list().expect("a list");
    assert_eq!(list[0].key.as_deref(), Some("${WORK_KEY}"));
    assert_eq!(list[1].key.as_deref(), Some("…cdef"));
    let provider = home.providers.get("work").expect("a provider");
    let told = format!("{list:?} {provider:?} {:?} {:?}", home.providers, new("x"));
    assert!(!told.contains("sk-") && !told.contains("LATER"), "{told}");
}

#[test]
fn mistakes_name_the_line_and_never_repeat_a_value() {
    let item = "providers:\n  - name: a\n    kind: openai\n";
    for (text, line, part) in [
        (format!("{item}    api_key: sk-x\n"), 4, "unknown key `api_key`"),
        (format!("{item}    models: sk-x\n"), 4, "expected"),
        (format!("{item}    api-key: [sk-x]\n"), 4, "expected"),
        (format!("{item}    name: sk-x\n"), 4, "twice"),
        (format!("{item}    api-key: \"sk-x\n"), 0, "not valid YAML"),
        (
            "providers:\n  - name: a\n    kind: sk-x\n".to_owned(),
            3,
            "openai, anthropic, gemini, ollama, script",
        ),
        ("providers:\n  - name: a/b\n    kind: openai\n".to_owned(), 2, "cannot be the name"),
        ("providers:\n  - kind: openai\n".to_owned(), 2, "`name` is missing"),
        (format!("{item}  - name: a\n    kind: script\n"), 4, "two providers `a`"),
        ("provider: []\n".to_owned(), 1, "unknown key `provider`"),
        (format!("{item}    sk-x12: 1\n"), 4, "unknown key `…`"),
    ] {
        let home = home(&text);
        let error = home.providers.resolve("a/m").expect_err("a mistake");
        let told = format!("{error} {error:?}");
        assert_eq!(error.code(), "providers.invalid", "{told}");
        assert!(told.contains(part) && !told.contains("sk-x"), "{told}");
        let ProvidersError::File(file) = error else { panic!("{told}") };
        let FileError::Invalid { line: seen, .. } = *file else { panic!("{told}") };
        assert!(seen == line || line == 0 && seen > 0, "line {seen}: {told}");
    }
}

#[test]
fn a_file_that_others_can_read_is_refused_with_the_way_out() {
    let home = home(GOOD);
    for mode in [0o644, 0o640, 0o604, 0o660] {
        write(&home.path, GOOD, mode);
        let error = home.providers.last_error().expect("an error");
        assert_eq!(error.code(), "providers.mode");
        assert_eq!(error.hint(), Some(format!("run `chmod 600 {}`", home.path.display())));
    }
    fs::set_permissions(&home.path, fs::Permissions::from_mode(0o400)).expect("a mode");
    assert!(home.providers.last_error().is_none(), "repairing the mode is noticed");
}

#[test]
fn a_broken_edit_keeps_the_last_good_copy_until_it_is_fixed() {
    let home = home(GOOD);
    assert!(home.providers.resolve("work/small").is_ok());
    for broken in ["providers: [", "nonsense: 1\n"] {
        write(&home.path, broken, 0o600);
        assert!(home.providers.resolve("work/small").is_ok(), "the last good copy serves");
        assert!(home.providers.last_error().is_some(), "and the mistake is known");
        assert_eq!(
            home.providers.add(&new("late")).expect_err("not on a broken file").code(),
            "providers.invalid"
        );
        assert_eq!(fs::read_to_string(&home.path).expect("a file"), broken);
    }
    write(&home.path, &GOOD.replace("name: work", "name: play"), 0o600);
    assert!(home.providers.last_error().is_none());
    assert!(home.providers.resolve("play/small").is_ok());
    assert_eq!(home.providers.resolve("work/small").expect_err("gone").code(), "provider.not_found");
}

#[test]
fn what_was_added_and_removed_is_in_the_last_good_copy_when_the_next_edit_breaks_the_file() {
    let home = home(GOOD);
    home.providers.add(&new("late")).expect("an added provider");
    home.providers.remove("other").expect("a removed provider");
    write(&home.path, "providers: [", 0o600);
    assert_eq!(names(&home.providers), ["work", "late", "script"]);
    assert!(home.providers.last_error().is_some());
}

#[test]
fn quick_successive_edits_of_the_same_length_are_all_seen() {
    let home = home("");
    for round in 0..50 {
        let name = format!("p{:02}", round);
        // Overwritten in place: same inode, same size, perhaps the same tick of the clock.
        fs::write(&home.path, format!("providers: [{{name: {name}, kind: openai}}]\n"))
            .expect("a written file");
        assert_eq!(names(&home.providers), [name.as_str(), "script"]);
    }
}

#[test]
fn an_unset_variable_concerns_its_provider_only() {
    let home =
        home("providers:\n- {name: a, kind: openai, api-key: \"${NOPE}\"}\n- {name: b, kind: openai}\n");
    let error = home.providers.get("a").expect_err("unset");
    assert_eq!(error.code(), "provider.variable_unset");
    assert!(home.providers.get("b").is_ok());
    let list = home.providers.list().expect("a list");
    assert!(list[0].problem.is_some() && list[1].problem.is_none());
}

#[test]
fn adding_and_removing_rewrites_privately_and_unexpanded() {
    let home = home(GOOD);
    home.providers.add(&new("third")).expect("added");
    let text = fs::read_to_string(&home.path).expect("a file");
    assert!(text.starts_with(GOOD) && text.contains("\"${LATER}\""), "{text}");
    assert_eq!(fs::metadata(&home.path).expect("a file").permissions().mode() & 0o7777, 0o600);
    assert_eq!(names(&home.providers), ["work", "other", "third", "script"]);
    let twice = home.providers.add(&new("third")).expect_err("twice");
    assert_eq!(twice.code(), "provider.exists");
    assert_eq!(twice.hint().as_deref(), Some("run `lodge provider rm third` first"));
    home.providers.remove("other").expect("removed");
    assert_eq!(names(&home.providers), ["work", "third", "script"]);
    let text = fs::read_to_string(&home.path).expect("a file");
    assert!(text.contains("${WORK_KEY}      # from the environment") && !text.contains("sk-"), "{text}");
    assert_eq!(home.providers.remove("script").expect_err("implicit").code(), "provider.not_found");
    assert_eq!(fs::read_dir(home.path.parent().expect("a parent")).expect("a directory").count(), 1);
}

#[test]
fn bad_providers_are_not_added() {
    let home = home("");
    let with_url = NewProvider { base_url: Some("http://u:p@h/".into()), ..new("a") };
    for (provider, code) in [
        (new("a/b"), "provider.bad_name"),
        (new(""), "provider.bad_name"),
        (with_url, "provider.bad_url"),
        (NewProvider { api_key: Some(Secret::new("a\nb")), ..new("a") }, "provider.bad_key"),
        (NewProvider { models: vec!["m".repeat(2 << 20)], ..new("a") }, "providers.too_large"),
    ] {
        assert_eq!(home.providers.add(&provider).expect_err(code).code(), code);
    }
    assert_eq!(fs::read_to_string(&home.path).expect("a file"), "");
}

#[test]
fn the_first_provider_makes_the_file() {
    let home = home("");
    fs::remove_file(&home.path).expect("removed");
    home.providers.add(&new("a")).expect("added");
    assert_eq!(fs::metadata(&home.path).expect("a file").permissions().mode() & 0o7777, 0o600);
    assert_eq!(names(&home.providers), ["a", "script"]);
}

#[test]
fn time_limits_prices_and_windows_are_read() {
    let home = home(
        "providers:\n- name: a\n  kind: openai\n  base-url: http://127.0.0.1:1/v1\n  connect-timeout: 3s\n  first-byte-timeout: 10m\n  \
         idle-timeout: 500ms\n  prices: {m: {input: 1.25, output: 10, cached: 0.125}, gpt-5: {input: 0, output: 0}}\n  \
         context-windows: {m: 1000}\n",
    );
    let provider = home.providers.get("a").expect("a provider");
    let limit = |ms| Some(Duration::from_millis(ms));
    let expected = Timeouts { connect: limit(3000), first_byte: limit(600_000), idle: limit(500) };
    assert_eq!(provider.timeouts, expected);
    let usage =
        CallUsage { input_tokens: 1000, output_tokens: 100, cached_tokens: 800, cache_write_tokens: 0 };
    assert_eq!(provider.cost("m", &usage), Some(250 + 100 + 1000));
    assert_eq!(provider.cost("gpt-5", &usage), Some(0), "what is written counts");
    assert_eq!(provider.cost("gpt-5-mini", &usage), None, "it is not at its maker's, whose prices are known");
    assert_eq!((provider.context_window("m"), provider.context_window("x")), (Some(1000), None));
    assert_eq!(provider.context_window("gpt-5-mini"), Some(400_000));
}

#[test]
fn known_prices_hold_at_the_makers_own_address_alone() {
    let usage = CallUsage { input_tokens: 1_000_000, ..CallUsage::default() };
    let cost = |kind, url, model: &str| {
        lodge_model::Provider::new("p", kind, url, None).expect("a provider").cost(model, &usage)
    };
    assert_eq!(cost(ProviderKind::Openai, None, "gpt-5-mini"), Some(250_000));
    assert_eq!(cost(ProviderKind::Openai, Some("https://api.openai.com/v1"), "gpt-5-mini"), Some(250_000));
    assert_eq!(cost(ProviderKind::Openai, Some("https://gateway.example/v1"), "gpt-5-mini"), None);
    assert_eq!(cost(ProviderKind::Anthropic, None, "claude-opus-4-5-20251101"), Some(5_000_000));
    assert_eq!(cost(ProviderKind::Gemini, None, "gemini-2.5-pro"), Some(2_500_000), "a long prompt");
    assert_eq!(cost(ProviderKind::Anthropic, None, "claude-unheard-of"), None);
    assert_eq!(cost(ProviderKind::Ollama, None, "anything"), Some(0));
}

#[test]
fn settings_that_cannot_be_meant_are_refused_with_their_line() {
    for (setting, part) in [
        ("idle-timeout: 0s", "lets nothing through"),
        ("idle-timeout: 5", "expected a time such as"),
        ("first-byte-timeout: 2h", "expected a time such as"),
        ("idle_timeout: 5s", "unknown key `idle_timeout`"),
        ("prices: {m: {input: -1, output: 1}}", "expected amounts"),
        ("prices: {m: {input: .nan, output: 1}}", "expected amounts"),
        ("prices: {m: {input: 1}}", "`output` is missing"),
        ("prices: {m: {input: 1, output: 1, out: 1}}", "unknown key `out`"),
        ("prices: [1]", "expected"),
        ("context-windows: {m: 0}", "windows of at least one token"),
        ("context-windows: {m: many}", "expected"),
    ] {
        let home = home(&format!("providers:\n- name: a\n  kind: openai\n  {setting}\n"));
        let error = home.providers.get("a").expect_err(setting);
        let told = error.to_string();
        assert!(told.contains(":4:") && told.contains(part), "{setting}: {told}");
    }
}
