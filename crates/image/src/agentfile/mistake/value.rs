//! Mistakes in values: names, references, paths and limits that break their rule.
//!
//! Owns: their words. Never: the rules themselves (see `names` and `limit`).

use super::codes;
use crate::agentfile::builtin::BUILTINS;
use crate::agentfile::capability::{CAPABILITIES, JOB_TOOLS};
use crate::agentfile::error::shown;
use crate::agentfile::keyword::nearest;
use crate::agentfile::limit::LimitKey;
use crate::agentfile::names;

/// An instruction's value is not one it takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueMistake {
    #[error("`{}` cannot be the name of {of}", shown(found))]
    Name { of: NameOf, found: String },
    #[error("the context name `{}` is reserved", shown(found))]
    ReservedContext { found: String },
    #[error("`{}` is a tool that every agent has", shown(found))]
    ReservedTool { found: String },
    #[error("`{}` is not a CONFIG key", shown(found))]
    ConfigKey { found: String },
    #[error("CONFIG `{}` is required and has a default", shown(key))]
    RequiredWithDefault { key: String },
    #[error("`{}` is not an ARG key", shown(found))]
    ArgKey { found: String },
    #[error("the value of build argument `{}` is not one line of text", shown(key))]
    BuildArg { key: String },
    #[error("`{}` is not a LABEL key", shown(found))]
    LabelKey { found: String },
    #[error("`{}` is not a capability name", shown(found))]
    Capability { found: String },
    #[error("there is no capability `{}`", shown(found))]
    UnknownCapability { found: String },
    #[error("`{}` is not a model", shown(found))]
    Model { found: String },
    #[error("`{}` is not an image reference", shown(found))]
    ImageRef { found: String },
    #[error("`{}` is not a path from the Agentfile's directory", shown(found))]
    ParentPath { found: String },
    #[error("`{}` is not a program of the host", shown(found))]
    HostProgram { found: String },
    #[error("there is no program `builtin:{}`", shown(found))]
    Builtin { found: String },
    #[error("`{}` is not a shell that Lodge gives", shown(found))]
    Shell { found: String },
    #[error("the path `{}` {fault}", shown(found))]
    Path { found: String, fault: PathFault },
    #[error("EXEC is not an array of strings")]
    Exec,
    #[error("unknown limit `{}`", shown(found))]
    UnknownLimit { found: String },
    #[error("`{}` is not a value for the limit {key}", shown(found))]
    LimitValue { key: LimitKey, found: String },
    #[error("`{}` is not a host to allow", shown(found))]
    NetworkHost { found: String },
    #[error("no list opens `{}`", shown(found))]
    NetworkClosed { found: String },
    #[error("NETWORK mixes `{}` with other words", shown(found))]
    NetworkMixed { found: String },
    #[error("`{}` is not a URL of an MCP server", shown(found))]
    McpUrl { found: String },
    #[error("`{}` cannot be the name of a service", shown(found))]
    ServiceName { found: String },
    #[error("unknown SERVICE option `{}`", shown(found))]
    ServiceOption { found: String },
    #[error("`{}` is not a cron expression", shown(found))]
    Cron { found: String },
    #[error("the {what} is empty")]
    Empty { what: &'static str },
}

codes! { ValueMistake:
    Name => "agentfile.bad_name",
    ReservedContext => "agentfile.reserved_context",
    ReservedTool => "agentfile.reserved_tool",
    ConfigKey => "agentfile.bad_config_key",
    RequiredWithDefault => "agentfile.required_with_default",
    ArgKey => "agentfile.bad_arg_key",
    BuildArg => "agentfile.bad_build_arg",
    LabelKey => "agentfile.bad_label_key",
    Capability => "agentfile.bad_capability",
    UnknownCapability => "agentfile.unknown_capability",
    Model => "agentfile.bad_model",
    ImageRef => "agentfile.bad_image_ref",
    ParentPath => "agentfile.bad_parent_path",
    HostProgram => "agentfile.bad_host_program",
    Builtin => "agentfile.unknown_builtin",
    Shell => "agentfile.bad_shell",
    Path => "agentfile.bad_path",
    Exec => "agentfile.bad_exec",
    UnknownLimit => "agentfile.unknown_limit",
    LimitValue => "agentfile.bad_limit",
    NetworkHost => "agentfile.bad_network_host",
    NetworkClosed => "agentfile.network_closed",
    NetworkMixed => "agentfile.network_mixed",
    McpUrl => "agentfile.bad_mcp_url",
    ServiceName => "agentfile.bad_service_name",
    ServiceOption => "agentfile.unknown_service_option",
    Cron => "agentfile.bad_cron",
    Empty => "agentfile.empty",
}

/// What a name becomes a file name of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameOf {
    #[error("an agent")]
    Agent,
    #[error("a context")]
    Context,
    #[error("a tool")]
    Tool,
    #[error("an added file")]
    AddedFile,
    #[error("an MCP server")]
    McpServer,
}

/// Why a path in an Agentfile is refused before anything is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathFault {
    #[error("is empty")]
    Empty,
    #[error("is absolute")]
    Absolute,
    #[error("leaves the directory with `..`")]
    Parent,
    #[error("is a URL")]
    Url,
    #[error("is too long")]
    TooLong,
}

impl ValueMistake {
    pub fn expected(&self) -> String {
        match self {
            ValueMistake::Name { .. } => {
                "a letter or digit, then at most 62 letters, digits, `.`, `_` or `-`".to_owned()
            }
            ValueMistake::ReservedContext { .. } => "any name but AGENT, WORKSPACE and MOUNTS".to_owned(),
            ValueMistake::ReservedTool { .. } => format!("any name but {}", JOB_TOOLS.join(", ")),
            ValueMistake::ConfigKey { .. } | ValueMistake::ServiceName { .. } => {
                "lower-case letters, digits and inner `-`, at most 63".to_owned()
            }
            ValueMistake::RequiredWithDefault { .. } => "either `key!` or `key=value`".to_owned(),
            ValueMistake::ArgKey { .. } => {
                "a letter or `_`, then at most 62 letters, digits, `_`, `.` or `-`".to_owned()
            }
            ValueMistake::BuildArg { .. } => "text without line breaks or control characters".to_owned(),
            ValueMistake::LabelKey { .. } => {
                "a letter or digit, then at most 254 letters, digits, `.`, `_`, `/` or `-`".to_owned()
            }
            ValueMistake::Capability { .. } => {
                "lower-case letters, digits and inner `_` or `-`, at most 63".to_owned()
            }
            ValueMistake::UnknownCapability { .. } => format!("one of {}", CAPABILITIES.join(", ")),
            ValueMistake::Model { .. } => "`provider/model`, such as `openai/gpt-4o`".to_owned(),
            ValueMistake::ImageRef { .. } => "`[host[:port]/]name[:tag][@sha256:…]`".to_owned(),
            ValueMistake::ParentPath { .. } => "`./directory`, `../directory` or an image".to_owned(),
            ValueMistake::HostProgram { .. } => "`host:name` or `host:/absolute/path`".to_owned(),
            ValueMistake::Builtin { .. } => {
                let names: Vec<String> =
                    BUILTINS.iter().map(|builtin| format!("`builtin:{}`", builtin.name)).collect();
                format!("one of {}", names.join(", "))
            }
            ValueMistake::Shell { .. } => "`SHELL host` or `SHELL stock`".to_owned(),
            ValueMistake::Path { .. } => "a path below the Agentfile's directory".to_owned(),
            ValueMistake::Exec => "`EXEC [\"word\", \"word\"]`".to_owned(),
            ValueMistake::UnknownLimit { .. } => {
                let words: Vec<&str> = LimitKey::ALL.iter().map(|key| key.word()).collect();
                format!("one of {}", words.join(", "))
            }
            ValueMistake::LimitValue { key, .. } => key.expected().to_owned(),
            ValueMistake::NetworkHost { .. } => {
                "a host name, `*.name`, an address or a range, with an optional port, or `loopback:PORT`"
                    .to_owned()
            }
            ValueMistake::NetworkClosed { .. } => "a host of another machine".to_owned(),
            ValueMistake::NetworkMixed { .. } => {
                "`none`, `public`, `lan` or `host` alone, or a list of hosts".to_owned()
            }
            ValueMistake::McpUrl { .. } => "`https://host/path` or `http://host/path`".to_owned(),
            ValueMistake::ServiceOption { .. } => {
                "`optional`, `KEY=value` or `healthcheck=\"command\"`".to_owned()
            }
            ValueMistake::Cron { .. } => "five to seven fields, or a name such as `@daily`".to_owned(),
            ValueMistake::Empty { what } => format!("a {what}"),
        }
    }

    pub fn hint(&self) -> String {
        if let Some(key) = self.found().and_then(unreplaced) {
            return format!(
                "`${{{key}}}` has no value: declare `ARG {key}=…` above, or pass `--build-arg {key}=…`"
            );
        }
        match self {
            ValueMistake::Name { of: NameOf::AddedFile, .. } => {
                "give it a name of its own: `ADD path name`".to_owned()
            }
            ValueMistake::Name { .. } => "the name becomes a file name: choose a plain one".to_owned(),
            ValueMistake::ReservedContext { .. } => {
                "Lodge writes that section itself: choose another name, such as SOUL".to_owned()
            }
            ValueMistake::ReservedTool { found } => {
                format!(
                    "remove the line to use Lodge's own, or call this one `my-{}`",
                    shown(found).replace('_', "-")
                )
            }
            ValueMistake::ConfigKey { found } | ValueMistake::ServiceName { found } => {
                rewrite(found, '-', names::dns_label)
            }
            ValueMistake::RequiredWithDefault { key } => {
                format!("write `CONFIG {}!` to ask for it, or remove the `!` to keep the default", shown(key))
            }
            ValueMistake::ArgKey { .. } => "use letters, digits and `_`".to_owned(),
            ValueMistake::BuildArg { key } => format!("pass `--build-arg {key}=…` with a value on one line"),
            ValueMistake::LabelKey { .. } => {
                "write `LABEL key=value`, such as `LABEL description=\"…\"`".to_owned()
            }
            ValueMistake::UnknownCapability { found } => {
                let folded = found.to_ascii_lowercase().replace('-', "_");
                match nearest(&folded, CAPABILITIES.into_iter()) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => "remove it, or use one of these".to_owned(),
                }
            }
            ValueMistake::ParentPath { .. } => {
                "write where the parent is from here, as in `FROM ../base`".to_owned()
            }
            ValueMistake::Capability { found } => rewrite(found, '_', names::capability),
            ValueMistake::Model { .. } => "put the provider's name in front, as in `work/model`".to_owned(),
            ValueMistake::ImageRef { found } if found.starts_with('/') => {
                format!("a program of this host is `host:{}`; an image is `name:tag`", shown(found))
            }
            ValueMistake::ImageRef { .. } => {
                "write it as `name:tag` or `registry.example/name:tag`; a path starts with `./` or `../`"
                    .to_owned()
            }
            ValueMistake::HostProgram { .. } => {
                "name a program on the host's PATH, as in `host:git`".to_owned()
            }
            ValueMistake::Builtin { found } => {
                match nearest(found, BUILTINS.iter().map(|builtin| builtin.name)) {
                    Some(name) => format!("did you mean `builtin:{name}`?"),
                    None => "a program of this host is `host:program`; an image is `name:tag`".to_owned(),
                }
            }
            ValueMistake::Shell { found } if names::path_name(found) => {
                let found = shown(found);
                format!("write `SHELL host` for the tool `sh`, or `BIN {found} host:{found}` for this program alone")
            }
            ValueMistake::Shell { .. } => "write `SHELL host` for the host's `sh` and its utilities".to_owned(),
            ValueMistake::Path { fault: PathFault::Url, .. } => {
                "nothing is downloaded while building: fetch it first and name the file".to_owned()
            }
            ValueMistake::Path { .. } => {
                "copy the file next to the Agentfile and name it from there".to_owned()
            }
            ValueMistake::Exec => "put every word into double quotes, with commas between them".to_owned(),
            ValueMistake::UnknownLimit { found } => limit_hint(found),
            ValueMistake::LimitValue { key, .. } => format!("write `LIMIT {key} {}`", key.example()),
            ValueMistake::NetworkHost { found } => network_hint(found).to_owned(),
            ValueMistake::NetworkClosed { found } if names::is_own_loopback(found) => {
                "a sandbox has a loopback of its own; write `loopback:PORT` for a port of the host's, or `NETWORK host`"
                    .to_owned()
            }
            ValueMistake::NetworkClosed { .. } => {
                "addresses of a link, metadata services among them, stay closed; `NETWORK host` reaches them"
                    .to_owned()
            }
            ValueMistake::NetworkMixed { .. } => "keep one of them".to_owned(),
            ValueMistake::McpUrl { .. } => "start it with `https://`".to_owned(),
            ValueMistake::ServiceOption { .. } => "environment keys are in capitals: `KEY=value`".to_owned(),
            ValueMistake::Cron { .. } => "quote the whole expression, as in `\"0 7 * * 1-5\"`".to_owned(),
            ValueMistake::Empty { what } => format!("write the {what}, or remove the instruction"),
        }
    }

    fn found(&self) -> Option<&str> {
        match self {
            ValueMistake::Name { found, .. }
            | ValueMistake::ReservedContext { found }
            | ValueMistake::ReservedTool { found }
            | ValueMistake::ConfigKey { found }
            | ValueMistake::ArgKey { found }
            | ValueMistake::LabelKey { found }
            | ValueMistake::Capability { found }
            | ValueMistake::UnknownCapability { found }
            | ValueMistake::ParentPath { found }
            | ValueMistake::Model { found }
            | ValueMistake::ImageRef { found }
            | ValueMistake::HostProgram { found }
            | ValueMistake::Builtin { found }
            | ValueMistake::Shell { found }
            | ValueMistake::Path { found, .. }
            | ValueMistake::UnknownLimit { found }
            | ValueMistake::LimitValue { found, .. }
            | ValueMistake::NetworkHost { found }
            | ValueMistake::NetworkClosed { found }
            | ValueMistake::NetworkMixed { found }
            | ValueMistake::McpUrl { found }
            | ValueMistake::ServiceName { found }
            | ValueMistake::ServiceOption { found }
            | ValueMistake::Cron { found } => Some(found),
            ValueMistake::RequiredWithDefault { .. }
            | ValueMistake::BuildArg { .. }
            | ValueMistake::Exec
            | ValueMistake::Empty { .. } => None,
        }
    }
}

fn limit_hint(found: &str) -> String {
    if let Some((key, value)) = found.split_once('=') {
        return format!("write `LIMIT {} {}`, without `=`", shown(key), shown(value));
    }
    match nearest(&found.to_ascii_lowercase().replace('_', "-"), LimitKey::ALL.iter().map(|key| key.word())) {
        Some(key) => format!("did you mean `{key}`?"),
        None => "remove it, or use one of these".to_owned(),
    }
}

/// What people write there who know other lists of hosts.
fn network_hint(found: &str) -> &'static str {
    let has_ports = found.rsplit_once(':').is_some_and(|(_, port)| port.contains(['-', '*']));
    if found.contains("://") {
        "name the host alone: `example.com` or `example.com:443`"
    } else if found == "*" {
        "`NETWORK public` opens every address of the internet; `*.example.com` opens the names below one"
    } else if found.starts_with("loopback") {
        "name one port of the host's own loopback, as in `loopback:5432`"
    } else if has_ports {
        "write each port separately, as in `example.com:80 example.com:443`, or none for all of them"
    } else if found.contains('/') {
        "write a range as `203.0.113.0/24`"
    } else {
        "write it as `example.com` or `example.com:443`"
    }
}

/// The word as the rule would have it, when that is near what was written.
fn rewrite(found: &str, joint: char, rule: fn(&str) -> bool) -> String {
    let fixed: String = found
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { joint })
        .collect();
    if rule(&fixed) { format!("write `{fixed}`") } else { "use lower-case letters and digits".to_owned() }
}

/// The key of the first `${key}` that was left in a text because nothing defines it.
fn unreplaced(text: &str) -> Option<&str> {
    let (_, after) = text.split_once("${")?;
    let (key, _) = after.split_once('}')?;
    names::arg_key(key).then_some(key)
}
