//! Instructions, one by one, as a config has them.

use serde::{Deserialize, Serialize};

use super::somewhere;
use crate::agentfile::{
    Add, Arg, At, Bin, BinSource, Config, ConfigValue, Context, ContextSource, Env, Label, Limit, Mcp,
    McpSource, Model, On, Schedule, Service, ServiceNeed, read_limit, shown,
};
use crate::oci::{BadImage, json};

const HOST: &str = "host:";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenContext {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The path that the text was read from, when it did not stand in the Agentfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenConfig {
    key: String,
    /// Always as text, so that no number changes on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, rename = "type", skip_serializing_if = "Kind::is_text")]
    kind: Kind,
    #[serde(default, skip_serializing_if = "is_false")]
    required: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    #[default]
    String,
    Bool,
    Int,
    Float,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenBin {
    name: String,
    source: String,
    #[serde(default, skip_serializing_if = "is_false")]
    safe: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenAdd {
    name: String,
    src: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenPair {
    key: String,
    value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenArg {
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenMcp {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenService {
    name: String,
    image: String,
    #[serde(default, skip_serializing_if = "is_false")]
    optional: bool,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    envs: Vec<WrittenPair>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    healthcheck: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenSchedule {
    cron: String,
    prompt: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WrittenOn {
    pattern: String,
    prompt: String,
}

impl WrittenContext {
    pub(super) fn of(context: &Context) -> Self {
        let file = match &context.source {
            ContextSource::Inline(_) => None,
            ContextSource::File(path) => Some(path.value.clone()),
        };
        WrittenContext { name: context.name.clone(), description: context.description.clone(), file }
    }

    pub(super) fn into_context(self) -> Context {
        let source = match self.file {
            Some(path) => ContextSource::File(somewhere(path)),
            None => ContextSource::Inline(String::new()),
        };
        Context { line: 0, name: self.name, description: self.description, source }
    }
}

impl WrittenConfig {
    pub(super) fn of(config: &Config) -> Self {
        let kind = match &config.value {
            Some(ConfigValue::Bool(_)) => Kind::Bool,
            Some(ConfigValue::Int(_)) => Kind::Int,
            Some(ConfigValue::Float(_)) => Kind::Float,
            Some(ConfigValue::String(_)) | None => Kind::String,
        };
        WrittenConfig {
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
        let WrittenConfig { key, required, description, .. } = self;
        Ok(Config { line: 0, key, value, required, description })
    }
}

impl Kind {
    fn is_text(&self) -> bool {
        *self == Kind::String
    }

    /// A value that would be written otherwise is refused: it would be another image when it is packed again.
    fn read(self, text: String) -> Result<ConfigValue, BadImage> {
        let value = match self {
            Kind::String => return Ok(ConfigValue::String(text)),
            Kind::Bool => text.parse().ok().map(ConfigValue::Bool),
            Kind::Int => text.parse().ok().map(ConfigValue::Int),
            Kind::Float => text.parse().ok().filter(|value: &f64| value.is_finite()).map(ConfigValue::Float),
        };
        value.filter(|value| value.to_string() == text).ok_or_else(|| {
            BadImage::new(format!("its CONFIG is refused: `{}` is not of its type", shown(&text)))
        })
    }
}

impl WrittenBin {
    pub(super) fn of(bin: &Bin) -> Self {
        WrittenBin {
            name: bin.name.clone(),
            source: bin.source.to_string(),
            safe: bin.safe,
            description: bin.description.clone(),
            usage: bin.usage.clone(),
        }
    }

    pub(super) fn into_bin(self) -> Bin {
        let WrittenBin { name, source: text, safe, description, usage } = self;
        Bin { line: 0, name, source: source(text), safe, description, usage }
    }
}

impl WrittenAdd {
    pub(super) fn of(add: &Add) -> Self {
        let (name, src) = (add.name.clone(), add.src.value.clone());
        WrittenAdd { name, src, description: add.description.clone() }
    }

    pub(super) fn into_add(self) -> Add {
        Add { line: 0, src: somewhere(self.src), name: self.name, description: self.description }
    }
}

impl WrittenPair {
    pub(super) fn into_env(self) -> Env {
        Env { line: 0, key: self.key, value: self.value, description: self.description }
    }

    pub(super) fn into_label(self) -> Label {
        Label { line: 0, key: self.key, value: self.value }
    }

    pub(super) fn into_limit(self) -> Result<At<Limit>, BadImage> {
        let limit = read_limit(&self.key, &self.value);
        limit.map(somewhere).map_err(|mistake| BadImage::new(format!("its LIMIT is refused: {mistake}")))
    }
}

impl WrittenArg {
    pub(super) fn of(arg: &Arg) -> Self {
        WrittenArg { key: arg.key.clone(), default: arg.default.clone(), value: arg.value.clone() }
    }

    pub(super) fn into_arg(self) -> Arg {
        Arg { line: 0, key: self.key, default: self.default, value: self.value }
    }
}

impl WrittenMcp {
    pub(super) fn of(mcp: &Mcp) -> Self {
        let name = mcp.name.clone();
        match &mcp.source {
            McpSource::Url(url) => {
                WrittenMcp { name, url: Some(url.clone()), program: None, args: Vec::new() }
            }
            McpSource::Program { program, args } => {
                WrittenMcp { name, url: None, program: Some(program.to_string()), args: args.clone() }
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

impl WrittenService {
    pub(super) fn of(service: &Service) -> Self {
        WrittenService {
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
        let WrittenService { name, image, healthcheck, .. } = self;
        Service { line: 0, name, image, need, envs, healthcheck }
    }
}

impl WrittenSchedule {
    pub(super) fn of(schedule: &Schedule) -> Self {
        WrittenSchedule { cron: schedule.cron.clone(), prompt: schedule.prompt.clone() }
    }

    pub(super) fn into_schedule(self) -> Schedule {
        Schedule { line: 0, cron: self.cron, prompt: self.prompt }
    }
}

impl WrittenOn {
    pub(super) fn of(on: &On) -> Self {
        WrittenOn { pattern: on.pattern.clone(), prompt: on.prompt.clone() }
    }

    pub(super) fn into_on(self) -> On {
        On { line: 0, pattern: self.pattern, prompt: self.prompt }
    }
}

pub(super) fn pair(key: &str, value: &str, description: Option<&str>) -> WrittenPair {
    let description = description.map(str::to_owned);
    WrittenPair { key: key.to_owned(), value: value.to_owned(), description }
}

pub(super) fn source(text: String) -> BinSource {
    match text.strip_prefix(HOST) {
        Some(program) => BinSource::Host(program.to_owned()),
        None => BinSource::Image(text),
    }
}

pub(super) fn model(text: &str) -> Result<Model, BadImage> {
    let refused = || BadImage::new(format!("its MODEL is refused: `{}` is not a model", shown(text)));
    let (provider, name) = text.split_once('/').ok_or_else(refused)?;
    Ok(Model { provider: provider.to_owned(), name: name.to_owned() })
}

pub(super) fn is_false(value: &bool) -> bool {
    !*value
}
