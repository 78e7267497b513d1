//! Compares two agents.

use std::collections::{BTreeMap, BTreeSet};

use crate::Digest;
use crate::agentfile::{
    BinSource, ConfigValue, ContextSource, LimitKey, LoadedAgentfile, McpSource, NetworkAccess, ServiceNeed,
};

/// In the order in which people should read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiffSection {
    Network,
    Limits,
    Capabilities,
    Runtime,
    Bins,
    Services,
    Env,
    Model,
    Config,
    Contexts,
    Files,
    Labels,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffChange {
    pub section: DiffSection,
    /// Which of its kind: the name of a tool, a key.
    pub key: String,
    /// Absent: it was not there before.
    pub before: Option<String>,
    /// Absent: it is there no longer.
    pub after: Option<String>,
}

/// All differences, permissions and tools first.
///
/// Values are as they are in the images: the caller masks values of `Env` that look like secrets. Unset permissions
/// are reported with their defaults: a removed restriction must not look like a smaller permission. `default_limit` returns
/// the default of a limit.
pub fn diff(
    before: &LoadedAgentfile,
    after: &LoadedAgentfile,
    default_limit: fn(LimitKey) -> String,
) -> Vec<DiffChange> {
    let (mut before, mut after) = (facts(before), facts(after));
    open_limits(&mut before, &after, default_limit);
    open_limits(&mut after, &before, default_limit);
    let keys: BTreeSet<(DiffSection, String)> = before.keys().chain(after.keys()).cloned().collect();
    let changes = keys.into_iter().filter_map(|at| {
        let (before, after) = (before.remove(&at), after.remove(&at));
        let (section, key) = at;
        (before != after).then_some(DiffChange { section, key, before, after })
    });
    changes.collect()
}

type ImageFacts = BTreeMap<(DiffSection, String), String>;

/// Everything that an agent is, each under a key that people know it by.
fn facts(loaded: &LoadedAgentfile) -> ImageFacts {
    let mut facts = ImageFacts::new();
    permissions(&mut facts, loaded);
    programs(&mut facts, loaded);
    services(&mut facts, loaded);
    settings(&mut facts, loaded);
    contents(&mut facts, loaded);
    add_other_facts(&mut facts, loaded);
    facts
}

fn permissions(facts: &mut ImageFacts, loaded: &LoadedAgentfile) {
    let agentfile = &loaded.agentfile;
    let network = agentfile.network.as_ref().map_or(&NetworkAccess::Public, |network| &network.value);
    let network = network.words().join(" ");
    put(facts, DiffSection::Network, "network", network);
    for limit in &agentfile.limits {
        put(facts, DiffSection::Limits, limit.value.key().word(), limit.value.to_string());
    }
    for capability in &agentfile.capabilities {
        put(facts, DiffSection::Capabilities, &capability.value, "asked for".to_owned());
    }
}

/// What holds for the limits that only the other one has.
fn open_limits(facts: &mut ImageFacts, other: &ImageFacts, default_limit: fn(LimitKey) -> String) {
    for key in LimitKey::ALL {
        let at = (DiffSection::Limits, key.word().to_owned());
        if other.contains_key(&at) {
            facts.entry(at).or_insert_with(|| default_limit(*key));
        }
    }
}

fn programs(facts: &mut ImageFacts, loaded: &LoadedAgentfile) {
    let agentfile = &loaded.agentfile;
    if let Some(runtime) = &agentfile.runtime {
        put(facts, DiffSection::Runtime, "runtime", runtime.value.to_string());
    }
    if let Some(exec) = &agentfile.exec {
        put(facts, DiffSection::Runtime, "exec", format!("{:?}", exec.value));
    }
    for bin in &agentfile.bins {
        let safe = if bin.safe { " safe" } else { "" };
        // What a shell can start is a permission of its own.
        let shell = match &bin.source {
            BinSource::Host(_) if bin.shell => " (SHELL host: every program of the host's /usr and /bin)",
            BinSource::Image(_) if bin.shell => " (SHELL stock: its built-in utilities)",
            BinSource::Host(_) | BinSource::Image(_) | BinSource::Builtin(_) => "",
        };
        put(facts, DiffSection::Bins, &bin.name, format!("{}{safe}{shell}", bin.source));
        put_text(facts, DiffSection::Bins, &bin.name, "description", bin.description.as_deref());
        put_text(facts, DiffSection::Bins, &bin.name, "usage", bin.usage.as_deref());
    }
}

fn services(facts: &mut ImageFacts, loaded: &LoadedAgentfile) {
    let agentfile = &loaded.agentfile;
    for service in &agentfile.services {
        let need = match service.need {
            ServiceNeed::Required => "",
            ServiceNeed::Optional => " optional",
        };
        let key = format!("service {}", service.name);
        put(facts, DiffSection::Services, &key, format!("{}{need}", service.image));
        put_text(facts, DiffSection::Services, &key, "healthcheck", service.healthcheck.as_deref());
        for (env, value) in &service.envs {
            put(facts, DiffSection::Env, &format!("{}:{env}", service.name), value.clone());
        }
    }
    for mcp in &agentfile.mcps {
        let target = match &mcp.source {
            McpSource::Url(url) => url.clone(),
            McpSource::Program { program, args } if args.is_empty() => program.to_string(),
            McpSource::Program { program, args } => format!("{program} {args:?}"),
        };
        put(facts, DiffSection::Services, &format!("mcp {}", mcp.name), target);
    }
    for skill in &agentfile.skills {
        put(facts, DiffSection::Services, &format!("skill {}", skill.value), "asked for".to_owned());
    }
    let mut counted = RepeatedKeys::default();
    for schedule in &agentfile.schedules {
        counted.put(facts, format!("schedule {}", schedule.cron), &schedule.prompt);
    }
    for on in &agentfile.ons {
        counted.put(facts, format!("on {}", on.pattern), &on.prompt);
    }
}

fn settings(facts: &mut ImageFacts, loaded: &LoadedAgentfile) {
    let agentfile = &loaded.agentfile;
    for env in &agentfile.envs {
        put(facts, DiffSection::Env, &env.key, env.value.clone());
        put_text(
            facts,
            DiffSection::Other,
            &format!("env {}", env.key),
            "description",
            env.description.as_deref(),
        );
    }
    if let Some(model) = &agentfile.model {
        put(facts, DiffSection::Model, "model", model.value.to_string());
    }
    for config in &agentfile.configs {
        let value = match &config.value {
            // In quotes, so that the text `1` is not taken for the number.
            Some(ConfigValue::String(text)) => format!("{text:?}"),
            Some(value @ (ConfigValue::Bool(_) | ConfigValue::Int(_) | ConfigValue::Float(_))) => {
                value.to_string()
            }
            None if config.required => "required".to_owned(),
            None => "not set".to_owned(),
        };
        put(facts, DiffSection::Config, &config.key, value);
        put_text(facts, DiffSection::Config, &config.key, "description", config.description.as_deref());
    }
}

fn contents(facts: &mut ImageFacts, loaded: &LoadedAgentfile) {
    for context in &loaded.contexts {
        put(facts, DiffSection::Contexts, &context.name, context.text.clone());
        put_text(facts, DiffSection::Contexts, &context.name, "description", context.description.as_deref());
    }
    let order: Vec<&str> = loaded.contexts.iter().map(|context| context.name.as_str()).collect();
    if order.len() > 1 {
        put(facts, DiffSection::Contexts, "order of the contexts", order.join(", "));
    }
    for file in &loaded.files {
        let value = format!("{} {} bytes", Digest::of(&file.bytes), file.bytes.len());
        put(facts, DiffSection::Files, &file.name, value);
    }
    for label in &loaded.agentfile.labels {
        put(facts, DiffSection::Labels, &label.key, label.value.clone());
    }
}

fn add_other_facts(facts: &mut ImageFacts, loaded: &LoadedAgentfile) {
    let agentfile = &loaded.agentfile;
    let other = DiffSection::Other;
    if let Some(name) = &agentfile.name {
        put(facts, other, "name", name.value.clone());
    }
    if let Some(from) = &loaded.from {
        put(facts, other, "from", from.clone());
    }
    put(facts, other, "parents", loaded.parents.to_string());
    put(facts, other, "Agentfile", Digest::of(&loaded.source).to_string());
    for arg in &agentfile.args {
        let value = arg.value.as_ref().or(arg.default.as_ref());
        put(
            facts,
            other,
            &format!("arg {}", arg.key),
            value.cloned().unwrap_or_else(|| "not set".to_owned()),
        );
    }
    for context in &agentfile.contexts {
        if let ContextSource::File(path) = &context.source {
            put(facts, other, &format!("path of the context {}", context.name), path.value.clone());
        }
    }
    for add in &agentfile.adds {
        put(facts, other, &format!("path of the file {}", add.name), add.src.value.clone());
        put_text(facts, other, &format!("file {}", add.name), "description", add.description.as_deref());
    }
}

fn put(facts: &mut ImageFacts, section: DiffSection, key: &str, value: String) {
    facts.insert((section, key.to_owned()), value);
}

fn put_text(facts: &mut ImageFacts, section: DiffSection, key: &str, what: &str, text: Option<&str>) {
    if let Some(text) = text {
        put(facts, section, &format!("{key} {what}"), text.to_owned());
    }
}

/// Several of these can have the same key and are distinguished by their position.
#[derive(Default)]
struct RepeatedKeys(BTreeMap<String, usize>);

impl RepeatedKeys {
    fn put(&mut self, facts: &mut ImageFacts, key: String, value: &str) {
        let nth = self.0.entry(key.clone()).or_default();
        *nth += 1;
        let key = if *nth == 1 { key } else { format!("{key} ({nth})") };
        put(facts, DiffSection::Services, &key, value.to_owned());
    }
}
