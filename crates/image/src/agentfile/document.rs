//! What an Agentfile says, as plain data.
//!
//! Owns: the shape. Never: reads text or files; a value of these types built by `parse` has been checked.

use std::collections::HashMap;
use std::fmt;

use super::limit::Limit;

/// A value and the place that gave it. After a merge the place is in the file the value came from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Located<T> {
    pub line: u32,
    pub column: u32,
    pub value: T,
}

/// One Agentfile, or several flattened by `merge`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Agentfile {
    pub from: Located<Parent>,
    pub runtime: Option<Located<BinSource>>,
    pub model: Option<Located<ModelName>>,
    pub name: Option<Located<String>>,
    pub contexts: Vec<ContextSection>,
    pub configs: Vec<Config>,
    pub envs: Vec<Env>,
    pub bins: Vec<Bin>,
    /// Argument prefix of the runtime; `None` when the file has no EXEC.
    pub exec: Option<Located<Vec<String>>>,
    pub adds: Vec<Add>,
    pub labels: Vec<Label>,
    pub args: Vec<Arg>,
    pub capabilities: Vec<Located<String>>,
    pub limits: Vec<Located<Limit>>,
    pub network: Option<Located<NetworkAccess>>,
    pub mcps: Vec<Mcp>,
    pub skills: Vec<Located<String>>,
    pub services: Vec<Service>,
    pub schedules: Vec<Schedule>,
    pub ons: Vec<On>,
}

/// What FROM names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Parent {
    #[default]
    Scratch,
    /// `./…` or `../…`: another Agentfile, or the directory of one.
    Path(String),
    Image(String),
}

/// `provider/model`; only the first `/` splits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    pub provider: String,
    pub name: String,
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.name)
    }
}

/// One section of the system prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextSection {
    pub line: u32,
    pub name: String,
    pub description: Option<String>,
    pub source: ContextSource,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextSource {
    /// The heredoc's body, byte for byte, without its trailing newlines.
    Inline(String),
    /// A path below the Agentfile's directory.
    File(Located<String>),
}

/// One setting of the runtime. `value` is `None` when the key is declared and not set.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub line: u32,
    pub key: String,
    pub value: Option<ConfigValue>,
    pub required: bool,
    pub description: Option<String>,
}

/// A CONFIG value. Quoted values are always strings, and so is a number that would not survive a round trip.
#[derive(Debug, Clone, PartialEq)]
pub enum ConfigValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    String(String),
}

impl fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigValue::Bool(value) => value.fmt(f),
            ConfigValue::Int(value) => value.fmt(f),
            ConfigValue::Float(value) => value.fmt(f),
            ConfigValue::String(value) => f.write_str(value),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Env {
    pub line: u32,
    pub key: String,
    pub value: String,
    pub description: Option<String>,
}

/// One tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bin {
    pub line: u32,
    pub name: String,
    pub source: BinSource,
    /// The author says that running it twice does no harm.
    pub safe: bool,
    pub description: Option<String>,
    pub usage: Option<String>,
    /// It was given by SHELL: its command lines find the ordinary utilities.
    pub shell: bool,
}

/// Where a program comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BinSource {
    /// `host:program`: a bare name to look up on the host, or an absolute path.
    Host(String),
    Image(String),
    /// `builtin:program`: a program that ships with the daemon.
    Builtin(String),
}

impl fmt::Display for BinSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BinSource::Host(program) => write!(f, "host:{program}"),
            BinSource::Image(reference) => f.write_str(reference),
            BinSource::Builtin(program) => write!(f, "builtin:{program}"),
        }
    }
}

/// The tool that SHELL gives.
pub const SHELL_NAME: &str = "sh";
/// The image of `SHELL stock`.
const STOCK_SHELL: &str = "stock/busybox:latest";

/// Which shell SHELL gives, and with it which utilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellKind {
    /// `/bin/sh` and the programs of the host.
    Host,
    /// Busybox of the stock tools, which has its utilities built in.
    Stock,
}

impl ShellKind {
    pub const ALL: [ShellKind; 2] = [ShellKind::Host, ShellKind::Stock];

    pub fn word(self) -> &'static str {
        match self {
            ShellKind::Host => "host",
            ShellKind::Stock => "stock",
        }
    }

    pub(super) fn from_word(word: &str) -> Option<ShellKind> {
        ShellKind::ALL.into_iter().find(|kind| kind.word() == word)
    }

    pub(super) fn source(self) -> BinSource {
        match self {
            ShellKind::Host => BinSource::Host(SHELL_NAME.to_owned()),
            ShellKind::Stock => BinSource::Image(STOCK_SHELL.to_owned()),
        }
    }
}

/// One file baked into the image under `name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    pub line: u32,
    /// A path below the Agentfile's directory.
    pub src: Located<String>,
    pub name: String,
    pub description: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub line: u32,
    pub key: String,
    pub value: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arg {
    pub line: u32,
    pub key: String,
    pub default: Option<String>,
    /// The build argument if one was given, else the default.
    pub value: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkAccess {
    None,
    /// Every publicly routed address; the default.
    Public,
    /// The same, and private ranges.
    Lan,
    Host,
    /// What may be reached: a name, `*.name`, an address or a range, each with an optional port, or `loopback:PORT`.
    Allow(Vec<String>),
}

impl NetworkAccess {
    /// The meaning of a single word.
    pub fn from_word(word: &str) -> Option<NetworkAccess> {
        match word {
            "none" => Some(NetworkAccess::None),
            "public" => Some(NetworkAccess::Public),
            "lan" => Some(NetworkAccess::Lan),
            "host" => Some(NetworkAccess::Host),
            _host => None,
        }
    }

    /// The words after NETWORK.
    pub fn words(&self) -> Vec<String> {
        let word = match self {
            NetworkAccess::None => "none",
            NetworkAccess::Public => "public",
            NetworkAccess::Lan => "lan",
            NetworkAccess::Host => "host",
            NetworkAccess::Allow(hosts) => return hosts.clone(),
        };
        vec![word.to_owned()]
    }
}

/// One MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mcp {
    pub line: u32,
    pub name: String,
    pub source: McpSource,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpSource {
    Url(String),
    Program { program: BinSource, args: Vec<String> },
}

/// One container beside the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub line: u32,
    pub name: String,
    pub image: String,
    pub need: ServiceNeed,
    pub envs: Vec<(String, String)>,
    pub healthcheck: Option<String>,
}

/// Whether the sandbox can do without a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceNeed {
    Required,
    Optional,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    pub line: u32,
    pub cron: String,
    pub prompt: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct On {
    pub line: u32,
    pub pattern: String,
    pub prompt: String,
}

/// Items of which a list holds one per key.
pub(super) trait Keyed {
    fn key(&self) -> &str;
}

macro_rules! keyed {
    ($($item:ty: $field:ident,)*) => {$(
        impl Keyed for $item {
            fn key(&self) -> &str { &self.$field }
        }
    )*};
}

keyed!(ContextSection: name, Config: key, Env: key, Bin: name, Add: name, Label: key, Arg: key,
    Mcp: name, Service: name, Located<String>: value,);

impl Keyed for Located<Limit> {
    fn key(&self) -> &str {
        self.value.key().word()
    }
}

/// Items that a file may name once.
pub(super) trait OncePerFile: Keyed {
    fn line(&self) -> u32;
}

macro_rules! once {
    ($($item:ty,)*) => {$(
        impl OncePerFile for $item {
            fn line(&self) -> u32 { self.line }
        }
    )*};
}

once!(Mcp, Service, Located<Limit>,);

/// Replaces the item with the same key in its position, so that an override keeps its position in the prompt.
pub(super) fn put<T: Keyed>(list: &mut Vec<T>, item: T) {
    match list.iter_mut().find(|old| old.key() == item.key()) {
        Some(old) => *old = item,
        None => list.push(item),
    }
}

/// Puts many, at a cost that grows with their number alone.
pub(super) fn put_all<T: Keyed>(list: &mut Vec<T>, items: Vec<T>) {
    let mut places: HashMap<String, usize> =
        list.iter().enumerate().map(|(place, old)| (old.key().to_owned(), place)).collect();
    for item in items {
        match places.get(item.key()) {
            Some(place) => list[*place] = item,
            None => {
                places.insert(item.key().to_owned(), list.len());
                list.push(item);
            }
        }
    }
}

/// Adds an item unless its key is there; returns the line of the one that was there first.
pub(super) fn put_once<T: OncePerFile>(list: &mut Vec<T>, item: T) -> Result<(), u32> {
    match list.iter().find(|old| old.key() == item.key()) {
        Some(first) => Err(first.line()),
        None => {
            list.push(item);
            Ok(())
        }
    }
}
