//! Script files: their location, how they are opened, and their format.

use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ScriptError;
use super::template::{Template, TemplateBudget, TemplateOverflow};
use crate::pause::ScriptPause;
use crate::request::CallUsage;
use crate::yaml::{self, YamlFault};

pub(crate) const SCRIPT_BYTES_MAX: u64 = 1 << 20;
const SCRIPTS_LISTED_MAX: usize = 1000;

/// A script that was read.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) path: PathBuf,
    pub(crate) turns: Vec<ScriptTurn>,
}

#[derive(Debug)]
pub(crate) struct ScriptTurn {
    /// Part of the user's text; absent matches any.
    pub(crate) when: Option<String>,
    pub(crate) steps: Vec<ScriptStep>,
    pub(crate) line: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScript {
    turns: Vec<Spanned<RawScriptTurn>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScriptTurn {
    when: Option<String>,
    steps: Vec<ScriptStep>,
}

/// One reply.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ScriptStep {
    #[serde(default)]
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) calls: Vec<ScriptCall>,
    /// Before the first piece.
    pub(crate) delay: Option<ScriptPause>,
    /// Between pieces.
    pub(crate) chunk_delay: Option<ScriptPause>,
    pub(crate) chunks: Option<NonZeroUsize>,
    pub(crate) fail: Option<ScriptFailure>,
    pub(crate) usage: Option<ScriptUsage>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "RawScriptCall")]
pub(crate) struct ScriptCall {
    pub(crate) name: String,
    arguments: ScriptArguments,
}

#[derive(Debug)]
enum ScriptArguments {
    /// Of a program: what it gets on its command line and on its standard input.
    Program { args: Vec<String>, stdin: Option<String> },
    /// Of a tool with a shape of its own.
    Shaped(serde_json::Value),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScriptCall {
    name: String,
    args: Option<Vec<String>>,
    stdin: Option<String>,
    arguments: Option<serde_json::Value>,
}

impl TryFrom<RawScriptCall> for ScriptCall {
    type Error = &'static str;

    fn try_from(raw: RawScriptCall) -> Result<Self, Self::Error> {
        let arguments = match (raw.arguments, raw.args, raw.stdin) {
            (Some(arguments), None, None) => ScriptArguments::Shaped(arguments),
            (Some(_), _, _) => return Err("`arguments` cannot be combined with `args` or `stdin`"),
            (None, args, stdin) => ScriptArguments::Program { args: args.unwrap_or_default(), stdin },
        };
        Ok(Self { name: raw.name, arguments })
    }
}

impl ScriptCall {
    /// The arguments as a model would write them.
    pub(crate) fn arguments(
        &self,
        template: &Template<'_>,
        allowance: &mut TemplateBudget,
    ) -> Result<String, TemplateOverflow> {
        match &self.arguments {
            ScriptArguments::Shaped(value) => Ok(template.fill_json(value, allowance)?.to_string()),
            ScriptArguments::Program { args, stdin } => {
                let args = args.iter().map(|arg| template.fill(arg, allowance));
                let mut value = serde_json::json!({ "args": args.collect::<Result<Vec<String>, _>>()? });
                if let Some(stdin) = stdin {
                    value["stdin"] = template.fill(stdin, allowance)?.into();
                }
                Ok(value.to_string())
            }
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "RawScriptFailure")]
pub(crate) enum ScriptFailure {
    Status { status: u16, retry_after: Option<ScriptPause> },
    CutAfter(usize),
    Kind(ScriptFailureKind),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawScriptFailure {
    status: Option<u16>,
    retry_after: Option<ScriptPause>,
    cut_after: Option<usize>,
    kind: Option<ScriptFailureKind>,
}

impl TryFrom<RawScriptFailure> for ScriptFailure {
    type Error = &'static str;

    fn try_from(raw: RawScriptFailure) -> Result<Self, Self::Error> {
        match (raw.status, raw.cut_after, raw.kind, raw.retry_after) {
            (Some(400..=599), None, None, retry_after) => {
                Ok(Self::Status { status: raw.status.unwrap_or_default(), retry_after })
            }
            (Some(_), None, None, _) => Err("a status of failure is between 400 and 599"),
            (None, Some(chunks), None, None) => Ok(Self::CutAfter(chunks)),
            (None, None, Some(kind), None) => Ok(Self::Kind(kind)),
            (_, _, _, _) => Err("one of `status` (with or without `retry-after`), `cut-after` and `kind`"),
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScriptFailureKind {
    Unreachable,
    Garbage,
    TooLarge,
    UnknownModel,
    ContextTooLong,
    /// Silent until the idle timeout.
    Hang,
    Refused,
    /// The answer is as written, but ran out of tokens.
    Length,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptUsage {
    #[serde(default)]
    input: u64,
    #[serde(default)]
    output: u64,
    #[serde(default)]
    cached: u64,
}

impl ScriptUsage {
    pub(crate) fn counted(self) -> CallUsage {
        CallUsage {
            input_tokens: self.input,
            output_tokens: self.output,
            cached_tokens: self.cached,
            ..CallUsage::default()
        }
    }
}

/// Where a script is, and whose place that is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ScriptLocation {
    /// Named by the person who wrote `providers.yaml`.
    Configured(PathBuf),
    /// In a directory that an agent may be able to write.
    Data(PathBuf),
}

pub(crate) fn place(
    base_url: Option<&str>,
    data_dir: &Path,
    model: &str,
) -> Result<ScriptLocation, ScriptError> {
    let in_dir = |dir: &Path| match is_script_name(model) {
        true => Ok(dir.join(format!("{model}.yaml"))),
        false => Err(ScriptError::BadName { model: model.to_owned() }),
    };
    match base_url.map(path_of) {
        None => in_dir(data_dir).map(ScriptLocation::Data),
        Some(path) if path.is_dir() => in_dir(path).map(ScriptLocation::Configured),
        Some(path) => Ok(ScriptLocation::Configured(path.to_owned())),
    }
}

fn path_of(base_url: &str) -> &Path {
    Path::new(base_url.strip_prefix("file://").unwrap_or(base_url))
}

/// One component of a path, and not a hidden one.
fn is_script_name(model: &str) -> bool {
    (1..=200).contains(&model.len())
        && !model.starts_with('.')
        && model.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte))
}

pub(crate) async fn load(place: ScriptLocation) -> Result<Script, ScriptError> {
    let path = match &place {
        ScriptLocation::Configured(path) | ScriptLocation::Data(path) => path.clone(),
    };
    // A file of a mebibyte takes long enough to parse that the other tasks would notice.
    match tokio::task::spawn_blocking(move || read(&place)).await {
        Ok(script) => script,
        Err(cause) => Err(ScriptError::Read { path, cause: io::Error::other(cause) }),
    }
}

/// The names of the scripts a configured place offers.
pub(crate) fn scripts_at(base_url: &str) -> Result<Vec<String>, ScriptError> {
    let path = path_of(base_url);
    if !path.is_dir() {
        read(&ScriptLocation::Configured(path.to_owned()))?;
        return Ok(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).into_iter().collect());
    }
    let failed = |cause| ScriptError::Read { path: path.to_owned(), cause };
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)?.take(SCRIPTS_LISTED_MAX) {
        let file_name = entry.map_err(failed)?.file_name();
        let name = file_name.to_str().and_then(|name| name.strip_suffix(".yaml"));
        names.extend(name.filter(|name| is_script_name(name)).map(str::to_owned));
    }
    names.sort();
    for name in &names {
        read(&ScriptLocation::Configured(path.join(format!("{name}.yaml"))))?;
    }
    Ok(names)
}

fn read(place: &ScriptLocation) -> Result<Script, ScriptError> {
    let (path, flags) = match place {
        ScriptLocation::Configured(path) => (path, OFlags::empty()),
        ScriptLocation::Data(path) => (path, OFlags::NOFOLLOW),
    };
    let failed = |cause| ScriptError::Read { path: path.clone(), cause };
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(descriptor) => File::from(descriptor),
        // This is what opening a link without following it gives.
        Err(rustix::io::Errno::LOOP) => return Err(ScriptError::NotRegular { path: path.clone() }),
        Err(errno) => return Err(failed(errno.into())),
    };
    let metadata = file.metadata().map_err(failed)?;
    // A second name would let an agent point at a file that is not its own.
    let foreign = matches!(place, ScriptLocation::Data(_)) && metadata.nlink() != 1;
    if !metadata.is_file() || foreign {
        return Err(ScriptError::NotRegular { path: path.clone() });
    }
    let mut bytes = Vec::new();
    file.by_ref().take(SCRIPT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > SCRIPT_BYTES_MAX {
        return Err(ScriptError::TooLarge { path: path.clone() });
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text")))?;
    let raw: RawScript = yaml::parse(&text).map_err(|YamlFault { line, column, problem }| {
        ScriptError::Invalid { path: path.clone(), line, column, problem }
    })?;
    let turn = |turn: Spanned<RawScriptTurn>| ScriptTurn {
        line: turn.referenced.line(),
        when: turn.value.when,
        steps: turn.value.steps,
    };
    Ok(Script { path: path.clone(), turns: raw.turns.into_iter().map(turn).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_cannot_name_a_file_elsewhere() {
        for model in ["../x", "a/b", "", ".", "..", ".hidden", "a\0b", "/etc/x"] {
            let error = place(None, Path::new("/data"), model).unwrap_err();
            assert_eq!(error.code(), "script.bad_name", "{model}");
        }
        assert_eq!(place(None, Path::new("/d"), "m").unwrap(), ScriptLocation::Data("/d/m.yaml".into()));
        assert_eq!(
            place(Some("file:///no/x.yaml"), Path::new("/d"), "a/b").unwrap(),
            ScriptLocation::Configured("/no/x.yaml".into())
        );
    }
}
