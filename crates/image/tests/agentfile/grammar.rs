//! What well-formed Agentfiles mean.
//!
//! Owns: one test per rule of the language. Never: tests refusals.

use std::time::Duration;

use lodge_image::agentfile::{
    BinSource, ConfigValue, ContextSource, Limit, McpSource, NetworkAccess, Parent, RevivalPolicy,
    ServiceNeed,
};

use crate::{args, good, good_with, unset};

fn config_values(lines: &str) -> Vec<(String, Option<ConfigValue>)> {
    let doc = good(&format!("FROM scratch\n{lines}"));
    doc.configs.into_iter().map(|config| (config.key, config.value)).collect()
}

#[test]
fn from_scratch_alone_is_an_agentfile() {
    let doc = good("FROM scratch");
    assert_eq!((doc.from.line, doc.from.value), (1, Parent::Scratch));
    assert!(doc.contexts.is_empty() && doc.exec.is_none() && doc.network.is_none());
}

#[test]
fn keywords_are_read_in_any_case_and_lines_may_be_indented() {
    let doc = good("\n  # a comment\n\tfrom scratch\n  Name  otter \n");
    assert_eq!(doc.name.map(|name| (name.line, name.value)), Some((4, "otter".to_owned())));
}

#[test]
fn both_syntax_lines_are_accepted_and_other_comments_mean_nothing() {
    good("# syntax=lodge/agentfile:1\nFROM scratch\n");
    good("#syntax = openotters/agentfile:1\r\nFROM scratch\r\n");
    good("# the syntax is old\nFROM scratch\n# syntax: none\n");
}

#[test]
fn every_accepted_image_reference_is_kept_as_written() {
    for reference in [
        "otter",
        "otter:v1",
        "agents/otter:v1.2_x-y",
        "ghcr.io/a/b__c/d-e:latest",
        "localhost/otter",
        "localhost:5000/otter:v1",
        "[::1]:5000/otter",
        "Otter:Latest",
        // No registry would take these, but NAME does.
        "otter-",
        "ot..ter:v1",
        "otter@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ] {
        let doc = good(&format!("FROM {reference}"));
        assert_eq!(doc.from.value, Parent::Image(reference.to_owned()));
    }
}

#[test]
fn only_the_first_slash_splits_a_model() {
    let model = good("FROM scratch\nMODEL work/org/model:7b@q4").model.expect("a model").value;
    assert_eq!((model.provider.as_str(), model.name.as_str()), ("work", "org/model:7b@q4"));
    assert_eq!(model.to_string(), "work/org/model:7b@q4");
}

#[test]
fn unquoted_config_literals_are_typed_and_quoted_ones_are_strings() {
    use ConfigValue::{Bool, Float, Int, String};
    let text = |text: &str| String(text.to_owned());
    for (literal, expected) in [
        ("true", Bool(true)),
        ("false", Bool(false)),
        ("0", Int(0)),
        ("-12", Int(-12)),
        ("9223372036854775807", Int(i64::MAX)),
        ("9223372036854775808", text("9223372036854775808")),
        ("1.5", Float(1.5)),
        ("-0.25", Float(-0.25)),
        ("1e3", Float(1000.0)),
        ("1e999", text("1e999")),
        ("007", text("007")),
        ("+1", text("+1")),
        ("1.", text("1.")),
        (".5", text(".5")),
        ("nan", text("nan")),
        ("inf", text("inf")),
        ("True", text("True")),
        ("a=b!c", text("a=b!c")),
        ("", text("")),
        ("\"\"", text("")),
        ("\"true\"", text("true")),
        ("\"5\"", text("5")),
    ] {
        assert_eq!(
            config_values(&format!("CONFIG key={literal}")),
            [("key".to_owned(), Some(expected))],
            "{literal}"
        );
    }
}

#[test]
fn a_config_can_be_declared_unset_or_required() {
    let doc = good("FROM scratch\nCONFIG a\nCONFIG b! \"needed\"\nCONFIG c= \"empty\"\nCONFIG d=1 \"one\"");
    let seen: Vec<_> = doc
        .configs
        .iter()
        .map(|c| (c.key.as_str(), c.value.is_some(), c.required, c.description.as_deref()))
        .collect();
    let expected = [
        ("a", false, false, None),
        ("b", false, true, Some("needed")),
        ("c", true, false, Some("empty")),
        ("d", true, false, Some("one")),
    ];
    assert_eq!(seen, expected);
    assert_eq!(unset(&doc), ["b"]);
}

#[test]
fn runtime_clears_the_configs_above_it_and_not_those_below() {
    let doc = good("FROM scratch\nCONFIG a=1\nRUNTIME stock\nCONFIG b=2\n");
    assert_eq!(doc.configs.iter().map(|c| c.key.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn the_last_of_a_name_wins_and_keeps_the_first_place() {
    let doc = good(concat!(
        "FROM scratch\nMODEL a/b\nMODEL c/d\nNAME x\nNAME y\nEXEC [\"a\"]\nEXEC []\n",
        "CONTEXT A <<E\n1\nE\nCONTEXT B <<E\n2\nE\nCONTEXT A <<E\n3\nE\n",
        "ENV K=1\nENV K=2\nLABEL l=1\nLABEL l=2\nBIN t one\nBIN t host:two\n",
        "CONFIG c!\nCONFIG c=5\nADD d/f.txt\nADD e/f.txt\nCAPABILITY note_save note_list note_save\nCAPABILITY note_list\nSKILL s\nSKILL s\n",
    ));
    assert_eq!(doc.model.expect("model").value.to_string(), "c/d");
    assert_eq!(doc.name.expect("name").value, "y");
    assert_eq!(doc.exec.expect("exec").value, Vec::<String>::new());
    let contexts: Vec<_> = doc.contexts.iter().map(|c| (c.name.as_str(), c.line, &c.source)).collect();
    let inline = |text: &str| ContextSource::Inline(text.to_owned());
    assert_eq!(contexts, [("A", 14, &inline("3")), ("B", 11, &inline("2"))]);
    assert_eq!((doc.envs.len(), doc.envs[0].value.as_str()), (1, "2"));
    assert_eq!((doc.labels.len(), doc.labels[0].value.as_str()), (1, "2"));
    assert_eq!((doc.bins.len(), &doc.bins[0].source), (1, &BinSource::Host("two".to_owned())));
    assert_eq!((doc.configs.len(), &doc.configs[0].value), (1, &Some(ConfigValue::Int(5))));
    assert_eq!((doc.adds.len(), doc.adds[0].src.value.as_str()), (1, "e/f.txt"));
    assert_eq!(
        doc.capabilities.iter().map(|c| c.value.as_str()).collect::<Vec<_>>(),
        ["note_save", "note_list"]
    );
    assert_eq!(doc.skills.len(), 1);
}

#[test]
fn heredoc_bodies_are_kept_byte_for_byte_but_for_trailing_newlines() {
    for (body, expected) in [
        ("a\n", "a"),
        ("", ""),
        ("\n\n", ""),
        ("\n a \n\n\n", "\n a "),
        ("a\r\nb\r\n\r\n", "a\r\nb"),
        ("${x} \\n \"q\" # no comment\nFROM here\n", "${x} \\n \"q\" # no comment\nFROM here"),
        ("\u{feff}\u{1}\tEOFX\nEOF.\n", "\u{feff}\u{1}\tEOFX\nEOF."),
    ] {
        let doc = good(&format!("FROM scratch\nARG x=y\nCONTEXT SOUL <<EOF\n{body}  EOF \t\nNAME after\n"));
        assert_eq!(doc.contexts[0].source, ContextSource::Inline(expected.to_owned()), "{body:?}");
        assert!(doc.name.is_some());
    }
}

#[test]
fn a_heredoc_may_end_with_the_file() {
    assert_eq!(good("FROM scratch\nCONTEXT A <<x-1!\nt\nx-1!").contexts.len(), 1);
}

#[test]
fn strings_resolve_their_escapes() {
    for (quoted, expected) in [
        (r#""""#, ""),
        (r#""a b = ! # <<x file://y""#, "a b = ! # <<x file://y"),
        (r#""\"\\\'\/\a\b\f\n\r\t\v""#, "\"\\'/\u{7}\u{8}\u{c}\n\r\t\u{b}"),
        (r#""\x41\101\u00e9\U0001F9A6""#, "AAé🦦"),
        (r#""\ud83e\udda6 pair""#, "🦦 pair"),
        ("\"tab\there ü\"", "tab\there ü"),
    ] {
        assert_eq!(good(&format!("FROM scratch\nLABEL k={quoted}")).labels[0].value, expected, "{quoted}");
    }
}

#[test]
fn args_are_replaced_in_later_lines_only_and_build_arguments_beat_defaults() {
    let source = concat!(
        "FROM scratch\nLABEL early=${who}\nARG who=otter\nARG other\nARG both=\"${who} and ${other}\"\n",
        "NAME ${who}-1\nLABEL l=\"${both} $who ${no such} ${} ${\"\nARG who=seal\nLABEL late=${who}${who}\n",
    );
    let labels = |pairs: &[(&str, &str)]| {
        let doc = good_with(source, &args(pairs));
        let name = doc.name.expect("name").value;
        (name, doc.labels.into_iter().map(|label| label.value).collect::<Vec<_>>())
    };
    let (name, values) = labels(&[]);
    assert_eq!(name, "otter-1");
    assert_eq!(values, ["${who}", "otter and ${other} $who ${no such} ${} ${", "sealseal"]);
    let (name, values) = labels(&[("who", "crab"), ("other", "x y"), ("unused", "")]);
    assert_eq!(name, "crab-1");
    assert_eq!(values, ["${who}", "crab and x y $who ${no such} ${} ${", "crabcrab"]);
}

#[test]
fn an_arg_can_hold_a_keyword_or_a_whole_instruction() {
    let doc = good("FROM scratch\nARG line=\"NAME otter\"\nARG nothing=\n${line}\n${nothing}\n");
    assert_eq!(doc.name.map(|name| name.line), Some(4));
    let arg = &doc.args[0];
    assert_eq!((arg.default.as_deref(), arg.value.as_deref()), (Some("NAME otter"), Some("NAME otter")));
}

#[test]
fn add_takes_its_name_from_the_second_word_or_the_file() {
    for (line, src, name, description) in [
        ("ADD data.csv", "data.csv", "data.csv", None),
        ("ADD a/b/data.csv \"rows\"", "a/b/data.csv", "data.csv", Some("rows")),
        ("ADD data.csv rows.csv", "data.csv", "rows.csv", None),
        ("ADD data.csv /etc/x/rows.csv \"d\"", "data.csv", "rows.csv", Some("d")),
        ("ADD data.csv /etc/x/", "data.csv", "data.csv", None),
        ("ADD file://./data.csv", "./data.csv", "data.csv", None),
        ("ADD \"my data.csv\" rows", "my data.csv", "rows", None),
    ] {
        let add = good(&format!("FROM scratch\n{line}")).adds.remove(0);
        assert_eq!(
            (add.src.value.as_str(), add.name.as_str(), add.description.as_deref()),
            (src, name, description)
        );
    }
}

#[test]
fn every_limit_is_read_in_its_smallest_unit() {
    for (line, expected) in [
        ("memory 512m", Limit::MemoryBytes(512 << 20)),
        ("memory 2GiB", Limit::MemoryBytes(2 << 30)),
        ("disk 2g", Limit::DiskBytes(2 << 30)),
        ("output 4096", Limit::OutputBytes(4096)),
        ("pids 64", Limit::Pids(64)),
        ("cpu-time 1h30m", Limit::CpuTime(Duration::from_secs(5400))),
        ("cpu_time 250ms", Limit::CpuTime(Duration::from_millis(250))),
        ("budget-usd 2.5", Limit::BudgetMicroUsd(2_500_000)),
        ("budget_usd $0", Limit::BudgetMicroUsd(0)),
        ("budget-tokens 3m", Limit::BudgetTokens(3_000_000)),
        ("context-tokens \"200k\"", Limit::ContextTokens(200_000)),
        ("revival-policy revive", Limit::RevivalPolicy(RevivalPolicy::Revive)),
        ("revival_policy reap", Limit::RevivalPolicy(RevivalPolicy::Reap)),
    ] {
        let limit = good(&format!("FROM scratch\nLIMIT {line}")).limits.remove(0);
        assert_eq!((limit.line, limit.value), (2, expected), "{line}");
    }
}

#[test]
fn network_is_a_word_or_a_list() {
    let network = |line: &str| good(&format!("FROM scratch\nNETWORK {line}")).network.expect("network").value;
    assert_eq!(network("none"), NetworkAccess::None);
    assert_eq!(network("host"), NetworkAccess::Host);
    assert_eq!(network("public"), NetworkAccess::Public);
    assert_eq!(network("lan"), NetworkAccess::Lan);
    let hosts = [
        "a.example",
        "*.b.example:8443",
        "10.0.0.0/8",
        "[2001:db8::1]:80",
        "fd00::1",
        "fd00::/8",
        "10.1.2.3:22",
        "loopback:5432",
    ];
    let allowed = NetworkAccess::Allow(hosts.map(str::to_owned).to_vec());
    assert_eq!(network(&hosts.join(" ")), allowed);
    assert_eq!(network(&hosts.join(", ")), allowed);
    assert_eq!(network(&hosts.join(",")), allowed);
}

#[test]
fn mcp_arguments_join_as_in_a_shell() {
    let doc = good(
        "FROM scratch\nMCP files host:/usr/bin/mcp -v --root=\"/my data\" \"a b\"c\nMCP web http://[::1]:80/x?y=z\n",
    );
    let McpSource::Program { program, args } = &doc.mcps[0].source else { panic!("not a program") };
    assert_eq!(program, &BinSource::Host("/usr/bin/mcp".to_owned()));
    assert_eq!(args, &["-v", "--root=/my data", "a bc"]);
    assert_eq!(doc.mcps[1].source, McpSource::Url("http://[::1]:80/x?y=z".to_owned()));
}

#[test]
fn services_schedules_and_events_are_read() {
    let doc = good(concat!(
        "FROM scratch\nSERVICE db postgres:16 A=1 B=\"2 3\" A=4 healthcheck=\"pg_isready\"\nSERVICE c redis optional\n",
        "SCHEDULE @daily \"Tidy up.\"\nSCHEDULE \"0 0 7 * * MON-FRI\" <<P\nGood\nmorning.\nP\nON build.failed \"Look.\"\n",
    ));
    let db = &doc.services[0];
    assert_eq!((db.need, db.healthcheck.as_deref()), (ServiceNeed::Required, Some("pg_isready")));
    assert_eq!(db.envs, [("A".to_owned(), "4".to_owned()), ("B".to_owned(), "2 3".to_owned())]);
    assert_eq!(doc.services[1].need, ServiceNeed::Optional);
    let schedules: Vec<_> =
        doc.schedules.iter().map(|s| (s.line, s.cron.as_str(), s.prompt.as_str())).collect();
    assert_eq!(schedules, [(4, "@daily", "Tidy up."), (5, "0 0 7 * * MON-FRI", "Good\nmorning.")]);
    assert_eq!((doc.ons[0].pattern.as_str(), doc.ons[0].prompt.as_str()), ("build.failed", "Look."));
}
