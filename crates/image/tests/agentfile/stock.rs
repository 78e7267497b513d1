//! Agentfiles of the kinds people ship: one tool, a web reader, an orchestrator, a house with services.
//!
//! Owns: that the fixtures mean what they look like. Never: covers single rules (see `grammar`).

use std::time::Duration;

use lodge_image::agentfile::{
    BinSource, ContextSource, Limit, McpSource, NetworkAccess, Parent, RevivalPolicy, merge,
};

use crate::{args, good, good_with, unset};

const SEARCHER: &str = include_str!("../fixtures/searcher/Agentfile");
const FORECASTER: &str = include_str!("../fixtures/forecaster/Agentfile");
const ORCHESTRATOR: &str = include_str!("../fixtures/orchestrator/Agentfile");
const HOUSE: &str = include_str!("../fixtures/house/Agentfile");
const CARETAKER: &str = include_str!("../fixtures/caretaker/Agentfile");

pub(crate) const ALL: [&str; 5] = [SEARCHER, FORECASTER, ORCHESTRATOR, HOUSE, CARETAKER];

/// Agentfiles in the forms that others ship theirs in.
pub(crate) const STOCK: [(&str, &str); 17] = [
    ("crane", include_str!("../fixtures/stock/crane.Agentfile")),
    ("fd", include_str!("../fixtures/stock/fd.Agentfile")),
    ("gh", include_str!("../fixtures/stock/gh.Agentfile")),
    ("greeting", include_str!("../fixtures/stock/greeting.Agentfile")),
    ("hass", include_str!("../fixtures/stock/hass.Agentfile")),
    ("helm", include_str!("../fixtures/stock/helm.Agentfile")),
    ("helper", include_str!("../fixtures/stock/helper.Agentfile")),
    ("jq", include_str!("../fixtures/stock/jq.Agentfile")),
    ("kubectl", include_str!("../fixtures/stock/kubectl.Agentfile")),
    ("meteo", include_str!("../fixtures/stock/meteo.Agentfile")),
    ("orchestrator", include_str!("../fixtures/stock/orchestrator.Agentfile")),
    ("pandoc", include_str!("../fixtures/stock/pandoc.Agentfile")),
    ("pinger", include_str!("../fixtures/stock/pinger.Agentfile")),
    ("reader", include_str!("../fixtures/stock/reader.Agentfile")),
    ("rg", include_str!("../fixtures/stock/rg.Agentfile")),
    ("yaegi", include_str!("../fixtures/stock/yaegi.Agentfile")),
    ("yq", include_str!("../fixtures/stock/yq.Agentfile")),
];

#[test]
fn agentfiles_written_for_other_runtimes_are_read_as_they_are() {
    for (name, source) in STOCK {
        let doc = good(source);
        assert_eq!(doc.name.map(|doc| doc.value).as_deref(), Some(name));
        assert_eq!(good(&source.replace('\n', "\r\n")).labels, doc.labels, "{name}");
        assert!(doc.labels.iter().any(|label| label.key == "description"), "{name}");
    }
    let stock = |wanted: &str| {
        good(STOCK.iter().find(|(name, _)| *name == wanted).map(|(_, source)| source).expect("one of them"))
    };
    let hass = stock("hass");
    assert_eq!(unset(&hass), ["room"]);
    assert_eq!((hass.adds[0].name.as_str(), hass.envs[1].value.as_str()), ("rooms.csv", ""));
    assert!(hass.bins[0].usage.as_deref().is_some_and(|usage| usage.contains("${HASS_TOKEN}")));
    assert_eq!(hass.bins[1].source.to_string(), "ghcr.io/openotters/tools/jq:latest");
    assert_eq!(stock("orchestrator").capabilities.len(), 24);
    assert_eq!(stock("greeting").contexts.len(), 2);
    let helper = stock("helper");
    assert_eq!(helper.from.value, Parent::Image("ghcr.io/openotters/agents/reader:latest".to_owned()));
    let names: Vec<_> = helper.adds.iter().map(|add| add.name.as_str()).collect();
    assert_eq!(names, ["guide.md", "spec.md"]);
}

#[test]
fn an_agent_with_one_tool_keeps_its_texts_as_written() {
    let doc = good(SEARCHER);
    let rg = &doc.bins[0];
    assert!(rg.safe);
    assert_eq!(rg.source, BinSource::Image("ghcr.io/lodge/bins/rg:14".to_owned()));
    assert_eq!(rg.usage.as_deref(), Some("rg PATTERN [PATH]\nrg -n --glob '*.rs' PATTERN"));
    assert_eq!(doc.contexts[0].description.as_deref(), Some("who you are"));
    let ContextSource::Inline(soul) = &doc.contexts[0].source else { panic!("not inline") };
    assert!(soul.ends_with(r#"such as ${HOME} and "a\tb" are searched for as they stand."#), "{soul}");
    let ContextSource::Inline(policies) = &doc.contexts[1].source else { panic!("not inline") };
    assert!(policies.ends_with("here:\nEOF"), "{policies}");
    assert_eq!(doc.configs.len(), 3);
}

#[test]
fn an_agent_of_another_registry_needs_only_a_build_argument() {
    let doc = good_with(FORECASTER, &args(&[("registry", "mirror.example:5000/x")]));
    assert_eq!(
        doc.runtime.expect("runtime").value.to_string(),
        "mirror.example:5000/x/runtimes/stock:latest"
    );
    assert_eq!(doc.bins[0].source, BinSource::Host("curl".to_owned()));
    assert!(
        doc.bins[1].safe
            && doc.bins[1].source.to_string().starts_with("mirror.example:5000/x/bins/jq@sha256:")
    );
    assert_eq!(doc.envs[0].value, "https://weather.example/v1/forecast?days=3&units=metric");
    assert_eq!(doc.envs[1].value, "");
    let allowed = ["weather.example:443", "*.tiles.example"].map(str::to_owned).to_vec();
    assert_eq!(doc.network.expect("network").value, NetworkAccess::Allow(allowed));
    let limits: Vec<Limit> = doc.limits.into_iter().map(|limit| limit.value).collect();
    let expected = [
        Limit::MemoryBytes(256 << 20),
        Limit::CpuTime(Duration::from_secs(90)),
        Limit::BudgetMicroUsd(250_000),
    ];
    assert_eq!(limits, expected);
}

#[test]
fn an_orchestrator_has_no_tools_and_two_dozen_capabilities() {
    let doc = good(ORCHESTRATOR);
    assert!(doc.bins.is_empty());
    assert_eq!(doc.capabilities.len(), 24);
    assert_eq!(doc.limits[0].value, Limit::RevivalPolicy(RevivalPolicy::Ask));
    assert_eq!(doc.ons[0].prompt, "A deployment happened. Ask the watcher whether it looks healthy.");
}

#[test]
fn a_house_written_in_lower_case_with_windows_line_ends_is_the_same_house() {
    let doc = good(HOUSE);
    assert_eq!(good(&HOUSE.replace('\n', "\r\n")), doc);
    assert_eq!(unset(&doc), ["room"]);
    assert_eq!(doc.exec.expect("exec").value, ["serve", "--quiet"]);
    let McpSource::Program { args, .. } = &doc.mcps[1].source else { panic!("not a program") };
    assert_eq!(args, &["--root=/data", "--title=My files"]);
    assert_eq!(doc.services[1].envs[1].1, "not a secret");
}

#[test]
fn a_child_of_the_house_inherits_what_it_does_not_say() {
    let child = good(CARETAKER);
    assert_eq!(child.from.value, Parent::Image("house:latest".to_owned()));
    let doc = merge(good(HOUSE), child);
    assert_eq!(doc.name.expect("name").value, "caretaker");
    assert_eq!(doc.model.expect("model").value.to_string(), "work/small");
    assert_eq!((doc.contexts.len(), doc.adds.len(), doc.services.len()), (2, 2, 2));
}
