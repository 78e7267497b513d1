//! Rules for the values of an Agentfile, for all sources.
//!
//! Owns: the rules for lines of an Agentfile and configs of images, so that an image cannot contain what no Agentfile
//! could say. Never: reads text or JSON.

use std::collections::HashSet;

use super::bounds::{HEREDOC_MAX, INSTRUCTIONS_MAX, LINE_MAX, WORDS_MAX};
use super::builtin::builtin;
use super::capability::{CAPABILITIES, JOB_TOOLS};
use super::document::{
    Agentfile, Bin, BinSource, Config, ConfigValue, ContextSource, Keyed, Mcp, McpSource, ModelName,
    NetworkAccess, SHELL_NAME, Service,
};
use super::env_key::{self, check_env_key};
use super::error::shown;
use super::keyword::Keyword;
use super::lex::invisible;
use super::mistake::{BoundMistake, Mistake, NameOf, TextMistake, ValueMistake};
use super::names;
use crate::reference::Reference;

type RuleResult = Result<(), ValueMistake>;

fn rule(holds: bool, mistake: impl FnOnce() -> ValueMistake) -> RuleResult {
    if holds { Ok(()) } else { Err(mistake()) }
}

pub(super) fn name(of: NameOf, name: &str) -> RuleResult {
    rule(names::path_name(name), || ValueMistake::Name { of, found: name.to_owned() })?;
    match of {
        NameOf::Context => {
            let is_free = !names::reserved_context(name);
            rule(is_free, || ValueMistake::ReservedContext { found: name.to_owned() })
        }
        NameOf::Tool => {
            rule(!JOB_TOOLS.contains(&name), || ValueMistake::ReservedTool { found: name.to_owned() })
        }
        NameOf::Agent | NameOf::AddedFile | NameOf::McpServer => Ok(()),
    }
}

pub(super) fn image(reference: &str) -> RuleResult {
    rule(names::image_ref(reference), || ValueMistake::ImageRef { found: reference.to_owned() })
}

pub(super) fn bin_source(source: &BinSource) -> RuleResult {
    match source {
        BinSource::Host(program) => rule(names::host_program(program), || ValueMistake::HostProgram {
            found: format!("host:{program}"),
        }),
        BinSource::Builtin(program) => {
            rule(builtin(program).is_some(), || ValueMistake::Builtin { found: program.clone() })
        }
        // With its tag, an image called `host` would read as a program of the host.
        BinSource::Image(reference) => {
            rule(!names::reads_as_program(reference), || ValueMistake::ImageRef {
                found: reference.clone(),
            })?;
            image(reference)
        }
    }
}

/// What FROM takes beside paths and `scratch`: NAME allows more than registries do.
pub(super) fn parent_image(reference: &str) -> RuleResult {
    rule(Reference::read(reference).is_ok(), || ValueMistake::ImageRef { found: reference.to_owned() })
}

pub(super) fn model(text: &str) -> Result<ModelName, ValueMistake> {
    match text.split_once('/') {
        Some((provider, name)) if !provider.is_empty() && !name.is_empty() && !text.contains("${") => {
            Ok(ModelName { provider: provider.to_owned(), name: name.to_owned() })
        }
        Some(_) | None => Err(ValueMistake::Model { found: text.to_owned() }),
    }
}

pub(super) fn path(path: &str) -> RuleResult {
    names::relative_path(path).map_err(|fault| ValueMistake::Path { found: path.to_owned(), fault })
}

pub(super) fn config_key(key: &str) -> RuleResult {
    rule(names::dns_label(key), || ValueMistake::ConfigKey { found: key.to_owned() })
}

/// A required value has no default.
pub(super) fn config_default<T>(key: &str, required: bool, value: Option<&T>) -> RuleResult {
    rule(!required || value.is_none(), || ValueMistake::RequiredWithDefault { key: key.to_owned() })
}

pub(super) fn label_key(key: &str) -> RuleResult {
    rule(names::label_key(key), || ValueMistake::LabelKey { found: key.to_owned() })
}

pub(super) fn arg_key(key: &str) -> RuleResult {
    rule(names::arg_key(key), || ValueMistake::ArgKey { found: key.to_owned() })
}

pub(super) fn capability(name: &str) -> RuleResult {
    rule(names::capability(name), || ValueMistake::Capability { found: name.to_owned() })?;
    rule(CAPABILITIES.contains(&name), || ValueMistake::UnknownCapability { found: name.to_owned() })
}

/// Reads the words after NETWORK. The error is the word that is wrong.
pub fn read_network(words: &[String]) -> Result<NetworkAccess, String> {
    match words {
        [only] if let Some(network) = NetworkAccess::from_word(only) => Ok(network),
        hosts => match hosts.iter().find(|host| network_host(host).is_err()) {
            Some(wrong) => Err(wrong.clone()),
            None => Ok(NetworkAccess::Allow(hosts.to_vec())),
        },
    }
}

/// One of several words after NETWORK.
pub(super) fn network_host(host: &str) -> RuleResult {
    let found = || host.to_owned();
    rule(NetworkAccess::from_word(host).is_none(), || ValueMistake::NetworkMixed { found: found() })?;
    if names::is_loopback_port(host) {
        return Ok(());
    }
    rule(names::network_host(host), || ValueMistake::NetworkHost { found: found() })?;
    rule(!names::never_opened(host), || ValueMistake::NetworkClosed { found: found() })
}

pub(super) fn mcp_url(url: &str) -> RuleResult {
    rule(names::http_url(url), || ValueMistake::McpUrl { found: url.to_owned() })
}

pub(super) fn service_name(name: &str) -> RuleResult {
    rule(names::dns_label(name), || ValueMistake::ServiceName { found: name.to_owned() })
}

pub(super) fn service_env_key(key: &str) -> RuleResult {
    rule(env_key::well_formed(key), || ValueMistake::ServiceOption { found: key.to_owned() })
}

pub(super) fn cron(text: &str) -> RuleResult {
    rule(names::cron(text), || ValueMistake::Cron { found: text.to_owned() })
}

pub(super) fn not_empty(what: &'static str, text: &str) -> RuleResult {
    rule(!text.trim().is_empty(), || ValueMistake::Empty { what })
}

/// Entries that no Agentfile could produce.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitEntry {
    #[error("its {keyword} is refused: {mistake}")]
    Value { keyword: Keyword, mistake: Mistake },
    #[error("its {keyword} `{}` occurs twice", shown(key))]
    Twice { keyword: Keyword, key: String },
    #[error("it has more than {max} of {keyword}")]
    TooMany { keyword: Keyword, max: usize },
}

/// Holds a whole Agentfile that was not parsed to all of the rules.
pub(crate) fn check(agentfile: &Agentfile) -> Result<(), UnfitEntry> {
    programs(agentfile)?;
    texts(agentfile)?;
    permissions(agentfile)?;
    one_each(Keyword::Mcp, &agentfile.mcps)?;
    for each in &agentfile.mcps {
        mcp(each).map_err(of(Keyword::Mcp))?;
    }
    one_each(Keyword::Skill, &agentfile.skills)?;
    for skill in &agentfile.skills {
        image(&skill.value).map_err(of(Keyword::Skill))?;
    }
    one_each(Keyword::Service, &agentfile.services)?;
    for each in &agentfile.services {
        service(each).map_err(of(Keyword::Service))?;
    }
    few(Keyword::Schedule, agentfile.schedules.len())?;
    for schedule in &agentfile.schedules {
        cron(&schedule.cron).map_err(of(Keyword::Schedule))?;
        prompt(&schedule.prompt).map_err(of(Keyword::Schedule))?;
    }
    few(Keyword::On, agentfile.ons.len())?;
    for on in &agentfile.ons {
        not_empty("pattern", &on.pattern).map_err(of(Keyword::On))?;
        line(&on.pattern).map_err(of(Keyword::On))?;
        prompt(&on.prompt).map_err(of(Keyword::On))?;
    }
    Ok(())
}

/// What is run, and by which name.
fn programs(agentfile: &Agentfile) -> Result<(), UnfitEntry> {
    if let Some(runtime) = &agentfile.runtime {
        bin_source(&runtime.value).map_err(of(Keyword::Runtime))?;
        word(&runtime.value.to_string()).map_err(of(Keyword::Runtime))?;
    }
    if let Some(given) = &agentfile.model {
        let text = given.value.to_string();
        model(&text).map_err(of(Keyword::Model))?;
        word(&text).map_err(of(Keyword::Model))?;
    }
    if let Some(given) = &agentfile.name {
        name(NameOf::Agent, &given.value).map_err(of(Keyword::Name))?;
    }
    if let Some(exec) = &agentfile.exec {
        lines(&exec.value).map_err(of(Keyword::Exec))?;
    }
    one_each(Keyword::Bin, &agentfile.bins)?;
    for bin in &agentfile.bins {
        name(NameOf::Tool, &bin.name).map_err(of(Keyword::Bin))?;
        bin_source(&bin.source).map_err(of(Keyword::Bin))?;
        word(&bin.source.to_string()).map_err(of(Keyword::Bin))?;
        line_if_any(bin.description.as_deref()).map_err(of(Keyword::Bin))?;
        body(bin.usage.as_deref().unwrap_or_default()).map_err(of(Keyword::Bin))?;
        if bin.shell {
            shell(bin).map_err(of(Keyword::Shell))?;
        }
    }
    Ok(())
}

/// What SHELL gives has its name and its kind of source, whatever image that is.
fn shell(bin: &Bin) -> RuleResult {
    let fits = match &bin.source {
        BinSource::Host(program) => program == SHELL_NAME,
        BinSource::Image(_) => true,
        BinSource::Builtin(_) => false,
    };
    let found = || format!("{} {}", bin.name, bin.source);
    rule(fits && bin.name == SHELL_NAME, || ValueMistake::Shell { found: found() })
}

/// The texts of an agent: contexts, descriptions and settings.
fn texts(agentfile: &Agentfile) -> Result<(), UnfitEntry> {
    one_each(Keyword::Context, &agentfile.contexts)?;
    for context in &agentfile.contexts {
        name(NameOf::Context, &context.name).map_err(of(Keyword::Context))?;
        line_if_any(context.description.as_deref()).map_err(of(Keyword::Context))?;
        match &context.source {
            ContextSource::Inline(text) => body(text).map_err(of(Keyword::Context))?,
            ContextSource::File(file) => {
                path(&file.value).map_err(of(Keyword::Context))?;
                line(&file.value).map_err(of(Keyword::Context))?;
            }
        }
    }
    one_each(Keyword::Config, &agentfile.configs)?;
    for each in &agentfile.configs {
        config(each).map_err(of(Keyword::Config))?;
    }
    one_each(Keyword::Add, &agentfile.adds)?;
    for add in &agentfile.adds {
        name(NameOf::AddedFile, &add.name).map_err(of(Keyword::Add))?;
        path(&add.src.value).map_err(of(Keyword::Add))?;
        line(&add.src.value).map_err(of(Keyword::Add))?;
        line_if_any(add.description.as_deref()).map_err(of(Keyword::Add))?;
    }
    one_each(Keyword::Label, &agentfile.labels)?;
    for label in &agentfile.labels {
        label_key(&label.key).map_err(of(Keyword::Label))?;
        line(&label.value).map_err(of(Keyword::Label))?;
    }
    one_each(Keyword::Arg, &agentfile.args)?;
    for arg in &agentfile.args {
        arg_key(&arg.key).map_err(of(Keyword::Arg))?;
        line_if_any(arg.default.as_deref()).map_err(of(Keyword::Arg))?;
        line_if_any(arg.value.as_deref()).map_err(of(Keyword::Arg))?;
    }
    Ok(())
}

/// What the agent may do.
fn permissions(agentfile: &Agentfile) -> Result<(), UnfitEntry> {
    one_each(Keyword::Env, &agentfile.envs)?;
    for env in &agentfile.envs {
        check_env_key(&env.key).map_err(of(Keyword::Env))?;
        line(&env.value).map_err(of(Keyword::Env))?;
        line_if_any(env.description.as_deref()).map_err(of(Keyword::Env))?;
    }
    one_each(Keyword::Capability, &agentfile.capabilities)?;
    for each in &agentfile.capabilities {
        capability(&each.value).map_err(of(Keyword::Capability))?;
    }
    // The values of limits can be nothing else by their type.
    one_each(Keyword::Limit, &agentfile.limits)?;
    match agentfile.network.as_ref().map(|network| &network.value) {
        Some(NetworkAccess::Allow(hosts)) => {
            let bytes: usize = hosts.iter().map(|host| host.len() + 1).sum();
            let holds = rule(!hosts.is_empty(), || ValueMistake::Empty { what: "list of hosts" });
            holds.map_err(of(Keyword::Network))?;
            bound(bytes, LINE_MAX).map_err(of(Keyword::Network))?;
            hosts.iter().try_for_each(|host| network_host(host)).map_err(of(Keyword::Network))
        }
        Some(NetworkAccess::None | NetworkAccess::Public | NetworkAccess::Lan | NetworkAccess::Host)
        | None => Ok(()),
    }
}

fn config(config: &Config) -> Result<(), Mistake> {
    config_key(&config.key)?;
    config_default(&config.key, config.required, config.value.as_ref())?;
    line_if_any(config.description.as_deref())?;
    match &config.value {
        Some(ConfigValue::String(text)) => line(text),
        Some(ConfigValue::Bool(_) | ConfigValue::Int(_) | ConfigValue::Float(_)) | None => Ok(()),
    }
}

fn mcp(mcp: &Mcp) -> Result<(), Mistake> {
    name(NameOf::McpServer, &mcp.name)?;
    match &mcp.source {
        McpSource::Url(url) => {
            mcp_url(url)?;
            word(url)
        }
        McpSource::Program { program, args } => {
            bin_source(program)?;
            word(&program.to_string())?;
            lines(args)
        }
    }
}

fn service(service: &Service) -> Result<(), Mistake> {
    service_name(&service.name)?;
    image(&service.image)?;
    if let Some(command) = &service.healthcheck {
        not_empty("healthcheck command", command)?;
        line(command)?;
    }
    few_words(service.envs.len())?;
    let mut seen = HashSet::new();
    for (key, value) in &service.envs {
        service_env_key(key)?;
        rule(seen.insert(key), || ValueMistake::ServiceOption { found: key.clone() })?;
        line(value)?;
    }
    Ok(())
}

fn prompt(text: &str) -> Result<(), Mistake> {
    not_empty("prompt", text)?;
    body(text)
}

/// What stood without quotes.
fn word(text: &str) -> Result<(), Mistake> {
    line(text)?;
    match text.chars().find(|c| invisible(*c) || *c == '"') {
        Some(character) => Err(TextMistake::BadCharacter { character }.into()),
        None => Ok(()),
    }
}

/// What stood on one line: quotes may hold line breaks, and nothing can hold NUL.
fn line(text: &str) -> Result<(), Mistake> {
    bound(text.len(), LINE_MAX)?;
    if text.contains('\0') { Err(TextMistake::BadCharacter { character: '\0' }.into()) } else { Ok(()) }
}

fn line_if_any(text: Option<&str>) -> Result<(), Mistake> {
    line(text.unwrap_or_default())
}

fn lines(words: &[String]) -> Result<(), Mistake> {
    few_words(words.len())?;
    words.iter().try_for_each(|word| line(word))
}

fn few_words(words: usize) -> Result<(), Mistake> {
    let max = WORDS_MAX;
    if words <= max { Ok(()) } else { Err(BoundMistake::Words { words, max }.into()) }
}

fn body(text: &str) -> Result<(), Mistake> {
    if text.len() <= HEREDOC_MAX {
        return Ok(());
    }
    Err(BoundMistake::Heredoc { bytes: text.len(), max: HEREDOC_MAX }.into())
}

fn bound(bytes: usize, max: usize) -> Result<(), Mistake> {
    if bytes <= max { Ok(()) } else { Err(BoundMistake::Line { bytes, max }.into()) }
}

fn one_each<T: Keyed>(keyword: Keyword, items: &[T]) -> Result<(), UnfitEntry> {
    few(keyword, items.len())?;
    let mut seen = HashSet::new();
    match items.iter().find(|item| !seen.insert(item.key())) {
        Some(item) => Err(UnfitEntry::Twice { keyword, key: item.key().to_owned() }),
        None => Ok(()),
    }
}

fn few(keyword: Keyword, count: usize) -> Result<(), UnfitEntry> {
    let max = INSTRUCTIONS_MAX;
    if count <= max { Ok(()) } else { Err(UnfitEntry::TooMany { keyword, max }) }
}

fn of<M: Into<Mistake>>(keyword: Keyword) -> impl Fn(M) -> UnfitEntry {
    move |mistake| UnfitEntry::Value { keyword, mistake: mistake.into() }
}
