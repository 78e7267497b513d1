//! The instructions of an Agentfile in the config.

use serde::{Deserialize, Serialize};

use super::without_position;
use crate::agentfile::{
    Add, Arg, BUILTIN_PREFIX, Bin, BinSource, Config, ConfigValue, ContextSection, ContextSource, Env, Label,
    Limit, Located, Mcp, McpSource, ModelName, On, Schedule, Service, ServiceNeed, read_limit, shown,
};
use crate::oci::{BadImage, json};

const HOST: &str = "host:";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredContext {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The path of the text's file, if the text was not in the Agentfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredSetting {
    key: String,
    /// Always as text, so that no number changes on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, rename = "type", skip_serializing_if = "SettingKind::is_text")]
    kind: SettingKind,
    #[serde(default, skip_serializing_if = "is_false")]
    required: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SettingKind {
    #[default]
    String,
    Bool,
    Int,
    Float,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredBin {
    name: String,
    source: String,
    #[serde(default, skip_serializing_if = "is_false")]
    safe: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    shell: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredAdd {
    name: String,
    src: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredPair {
    key: String,
    value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredArg {
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredMcp {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredService {
    name: String,
    image: String,
    #[serde(default, skip_serializing_if = "is_false")]
    optional: bool,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    envs: Vec<StoredPair>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    healthcheck: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredSchedule {
    cron: String,
    prompt: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredOn {
    pattern: String,
    prompt: String,
}

impl StoredContext {
    pub(super) fn of(context: &ContextSection) -> Self {
        let file = match &context.source {
            ContextSource::Inline(_) => None,
            ContextSource::File(path) => Some(path.value.clone()),
        };
        StoredContext { name: context.name.clone(), description: context.description.clone(), file }
    }

    pub(super) fn into_context(self) -> ContextSection {
        let source = match self.file {
            Some(path) => ContextSource::File(without_position(path)),
            None => ContextSource::Inline(String::new()),
        };
        ContextSection { line: 0, name: self.name, description: self.description, source }
    }
}

impl StoredSetting {
    pub(super) fn of(config: &Config) -> Self {
        let kind = match &config.value {
            Some(ConfigValue::Bool(_)) => SettingKind::Bool,
            Some(ConfigValue::Int(_)) => SettingKind::Int,
            Some(ConfigValue::Float(_)) => SettingKind::Float,
            Some(ConfigValue::String(_)) | None => SettingKind::String,
        };
        StoredSetting {
            key: config.key.clone(),
            value: config.value.as_ref().map(ConfigValue::to_string),
            kind,
            required: config.required,
            description: config.description.clone(),
        }
    }

    pub(super) fn into_config(self) -> Result<Config, BadImage> {
        let kind = self.kind;
        let value = self.value.map(|text| kind.read(text)).transpose()?;
        let StoredSetting { key, required, description, .. } = self;
        Ok(Config { line: 0, key, value, required, description })
    }
}

impl SettingKind {
    fn is_text(&self) -> bool {
        *self == SettingKind::String
    }

    /// A value that would be written otherwise is refused: it would be another image when it is packed again.
    fn read(self, text: String) -> Result<ConfigValue, BadImage> {
        let value = match self {
            SettingKind::String => return Ok(ConfigValue::String(text)),
            SettingKind::Bool => text.parse().ok().map(ConfigValue::Bool),
            SettingKind::Int => text.parse().ok().map(ConfigValue::Int),
            SettingKind::Float => {
                text.parse().ok().filter(|value: &f64| value.is_finite()).map(ConfigValue::Float)
            }
        };
        value.filter(|value| value.to_string() == text).ok_or_else(|| {
            BadImage::new(format!("its CONFIG is refused: `{}` is not of its type", shown(&text)))
        })
    }
}

impl StoredBin {
    pub(super) fn of(bin: &Bin) -> Self {
        StoredBin {
            name: bin.name.clone(),
            source: bin.source.to_string(),
            safe: bin.safe,
            description: bin.description.clone(),
            usage: bin.usage.clone(),
            shell: bin.shell,
        }
    }

    pub(super) fn into_bin(self) -> Bin {
        let StoredBin { name, source: text, safe, description, usage, shell } = self;
        Bin { line: 0, name, source: tool_source(text), safe, description, usage, shell }
    }
}

impl StoredAdd {
    pub(super) fn of(add: &Add) -> Self {
        let (name, src) = (add.name.clone(), add.src.value.clone());
        StoredAdd { name, src, description: add.description.clone() }
    }

    pub(super) fn into_add(self) -> Add {
        Add { line: 0, src: without_position(self.src), name: self.name, description: self.description }
    }
}

impl StoredPair {
    pub(super) fn into_env(self) -> Env {
        Env { line: 0, key: self.key, value: self.value, description: self.description }
    }

    pub(super) fn into_label(self) -> Label {
        Label { line: 0, key: self.key, value: self.value }
    }

    pub(super) fn into_limit(self) -> Result<Located<Limit>, BadImage> {
        let limit = read_limit(&self.key, &self.value);
        limit
            .map(without_position)
            .map_err(|mistake| BadImage::new(format!("its LIMIT is refused: {mistake}")))
    }
}

impl StoredArg {
    pub(super) fn of(arg: &Arg) -> Self {
        StoredArg { key: arg.key.clone(), default: arg.default.clone(), value: arg.value.clone() }
    }

    pub(super) fn into_arg(self) -> Arg {
        Arg { line: 0, key: self.key, default: self.default, value: self.value }
    }
}

impl StoredMcp {
    pub(super) fn of(mcp: &Mcp) -> Self {
        let name = mcp.name.clone();
        match &mcp.source {
            McpSource::Url(url) => {
                StoredMcp { name, url: Some(url.clone()), program: None, args: Vec::new() }
            }
            McpSource::Program { program, args } => {
                StoredMcp { name, url: None, program: Some(program.to_string()), args: args.clone() }
            }
        }
    }

    pub(super) fn into_mcp(self) -> Result<Mcp, BadImage> {
        let source = match (self.url, self.program) {
            (Some(url), None) if self.args.is_empty() => McpSource::Url(url),
            (None, Some(program)) => McpSource::Program { program: source(program), args: self.args },
            (Some(_), Some(_) | None) | (None, None) => {
                let name = shown(&self.name);
                return Err(BadImage::new(format!("its MCP `{name}` is neither a URL nor a program")));
            }
        };
        Ok(Mcp { line: 0, name: self.name, source })
    }
}

impl StoredService {
    pub(super) fn of(service: &Service) -> Self {
        StoredService {
            name: service.name.clone(),
            image: service.image.clone(),
            optional: service.need == ServiceNeed::Optional,
            envs: service.envs.iter().map(|(key, value)| pair(key, value, None)).collect(),
            healthcheck: service.healthcheck.clone(),
        }
    }

    pub(super) fn into_service(self) -> Service {
        let need = if self.optional { ServiceNeed::Optional } else { ServiceNeed::Required };
        let envs = self.envs.into_iter().map(|env| (env.key, env.value)).collect();
        let StoredService { name, image, healthcheck, .. } = self;
        Service { line: 0, name, image, need, envs, healthcheck }
    }
}

impl StoredSchedule {
    pub(super) fn of(schedule: &Schedule) -> Self {
        StoredSchedule { cron: schedule.cron.clone(), prompt: schedule.prompt.clone() }
    }

    pub(super) fn into_schedule(self) -> Schedule {
        Schedule { line: 0, cron: self.cron, prompt: self.prompt }
    }
}

impl StoredOn {
    pub(super) fn of(on: &On) -> Self {
        StoredOn { pattern: on.pattern.clone(), prompt: on.prompt.clone() }
    }

    pub(super) fn into_on(self) -> On {
        On { line: 0, pattern: self.pattern, prompt: self.prompt }
    }
}

pub(super) fn pair(key: &str, value: &str, description: Option<&str>) -> StoredPair {
    let description = description.map(str::to_owned);
    StoredPair { key: key.to_owned(), value: value.to_owned(), description }
}

/// The source of a BIN, which may be a program of the daemon.
fn tool_source(text: String) -> BinSource {
    match text.strip_prefix(BUILTIN_PREFIX) {
        Some(program) => BinSource::Builtin(program.to_owned()),
        None => source(text),
    }
}

pub(super) fn source(text: String) -> BinSource {
    match text.strip_prefix(HOST) {
        Some(program) => BinSource::Host(program.to_owned()),
        None => BinSource::Image(text),
    }
}

pub(super) fn model(text: &str) -> Result<ModelName, BadImage> {
    let refused = || BadImage::new(format!("its MODEL is refused: `{}` is not a model", shown(text)));
    let (provider, name) = text.split_once('/').ok_or_else(refused)?;
    Ok(ModelName { provider: provider.to_owned(), name: name.to_owned() })
}

pub(super) fn is_false(value: &bool) -> bool {
    !*value
}
