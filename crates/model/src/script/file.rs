//! Script files: where they are, how they are opened, what may stand in them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ScriptError;
use super::template::{Allowance, Overflow, Template};
use crate::pause::Pause;
use crate::request::Usage;
use crate::yaml::{self, YamlFault};

pub(crate) const SCRIPT_BYTES_MAX: u64 = 1 << 20;
const SCRIPTS_LISTED_MAX: usize = 1000;

/// A script that was read.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) path: PathBuf,
    pub(crate) turns: Vec<Turn>,
}

#[derive(Debug)]
pub(crate) struct Turn {
    /// Part of the user's text; absent matches any.
    pub(crate) when: Option<String>,
    pub(crate) steps: Vec<Step>,
    pub(crate) line: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScript {
    turns: Vec<Spanned<RawTurn>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTurn {
    when: Option<String>,
    steps: Vec<Step>,
}

/// One reply.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Step {
    #[serde(default)]
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) calls: Vec<Call>,
    /// Before the first piece.
    pub(crate) delay: Option<Pause>,
    /// Between pieces.
    pub(crate) chunk_delay: Option<Pause>,
    pub(crate) chunks: Option<NonZeroUsize>,
    pub(crate) fail: Option<Fail>,
    pub(crate) usage: Option<ScriptUsage>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "RawCall")]
pub(crate) struct Call {
    pub(crate) name: String,
    arguments: Arguments,
}

#[derive(Debug)]
enum Arguments {
    /// Of a program: what it gets on its command line and on its standard input.
    Program { args: Vec<String>, stdin: Option<String> },
    /// Of a tool with a shape of its own.
    Shaped(serde_json::Value),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCall {
    name: String,
    args: Option<Vec<String>>,
    stdin: Option<String>,
    arguments: Option<serde_json::Value>,
}

impl TryFrom<RawCall> for Call {
    type Error = &'static str;

    fn try_from(raw: RawCall) -> Result<Self, Self::Error> {
        let arguments = match (raw.arguments, raw.args, raw.stdin) {
            (Some(arguments), None, None) => Arguments::Shaped(arguments),
            (Some(_), _, _) => return Err("`arguments` stands alone, without `args` and `stdin`"),
            (None, args, stdin) => Arguments::Program { args: args.unwrap_or_default(), stdin },
        };
        Ok(Self { name: raw.name, arguments })
    }
}

impl Call {
    /// The arguments as a model would write them.
    pub(crate) fn arguments(
        &self,
        template: &Template<'_>,
        allowance: &mut Allowance,
    ) -> Result<String, Overflow> {
        match &self.arguments {
            Arguments::Shaped(value) => Ok(template.fill_json(value, allowance)?.to_string()),
            Arguments::Program { args, stdin } => {
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
#[serde(try_from = "RawFail")]
pub(crate) enum Fail {
    Status { status: u16, retry_after: Option<Pause> },
    CutAfter(usize),
    Kind(FailKind),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFail {
    status: Option<u16>,
    retry_after: Option<Pause>,
    cut_after: Option<usize>,
    kind: Option<FailKind>,
}

impl TryFrom<RawFail> for Fail {
    type Error = &'static str;

    fn try_from(raw: RawFail) -> Result<Self, Self::Error> {
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
pub(crate) enum FailKind {
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
    pub(crate) fn counted(self) -> Usage {
        Usage {
            input_tokens: self.input,
            output_tokens: self.output,
            cached_tokens: self.cached,
            ..Usage::default()
        }
    }
}

/// Where a script is, and whose place that is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Named by the person who wrote `providers.yaml`.
    Configured(PathBuf),
    /// In a directory that an agent may be able to write.
    Data(PathBuf),
}

pub(crate) fn place(base_url: Option<&str>, data_dir: &Path, model: &str) -> Result<Place, ScriptError> {
    let in_dir = |dir: &Path| match is_script_name(model) {
        true => Ok(dir.join(format!("{model}.yaml"))),
        false => Err(ScriptError::BadName { model: model.to_owned() }),
    };
    match base_url.map(path_of) {
        None => in_dir(data_dir).map(Place::Data),
        Some(path) if path.is_dir() => in_dir(path).map(Place::Configured),
        Some(path) => Ok(Place::Configured(path.to_owned())),
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

pub(crate) async fn load(place: Place) -> Result<Script, ScriptError> {
    let path = match &place {
        Place::Configured(path) | Place::Data(path) => path.clone(),
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
        read(&Place::Configured(path.to_owned()))?;
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
        read(&Place::Configured(path.join(format!("{name}.yaml"))))?;
    }
    Ok(names)
}

fn read(place: &Place) -> Result<Script, ScriptError> {
    let (path, flags) = match place {
        Place::Configured(path) => (path, OFlags::empty()),
        Place::Data(path) => (path, OFlags::NOFOLLOW),
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
    let foreign = matches!(place, Place::Data(_)) && metadata.nlink() != 1;
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
    let turn = |turn: Spanned<RawTurn>| Turn {
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
        assert_eq!(place(None, Path::new("/d"), "m").unwrap(), Place::Data("/d/m.yaml".into()));
        assert_eq!(
            place(Some("file:///no/x.yaml"), Path::new("/d"), "a/b").unwrap(),
            Place::Configured("/no/x.yaml".into())
        );
    }
}
