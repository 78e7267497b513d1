//! The scripted model: replies from a YAML file, and from nothing else.
//!
//! It keeps no state. Which reply comes is decided by the request alone, so a call repeated after a crash is
//! answered as it was the first time.

mod compose;
mod file;
mod template;

use std::path::PathBuf;
use std::time::Duration;

use self::compose::{ComposedStep, ScriptPosition, ScriptReply};
use self::file::{Script, ScriptFailure, ScriptFailureKind, ScriptStep};
use crate::context::CallContext;
use crate::error::{AnswerLimit, CallError, SilentPhase, TokenLimitCut, UnreadableAnswer};
use crate::provider::Provider;
use crate::reach::UnreachableWhy;
use crate::request::{CallAnswer, CallUsage, ModelMessage, ModelRequest, StopReason, ToolCall};
use crate::yaml::YamlProblem;

/// Pieces in which one reply is spoken.
const PIECES_MAX: usize = 100_000;

#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("could not read the script {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("the script {} is not a regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("the script {} is larger than {} bytes", path.display(), file::SCRIPT_BYTES_MAX)]
    TooLarge { path: PathBuf },
    #[error("{}:{line}:{column}: {problem}", path.display())]
    Invalid { path: PathBuf, line: u64, column: u64, problem: YamlProblem },
    #[error("`{model}` cannot be the name of a script")]
    BadName { model: String },
    #[error("the script {} was called without a user message", path.display())]
    NoUserMessage { path: PathBuf },
    #[error("the script {} has no turn for what the user said", path.display())]
    NoTurn { path: PathBuf },
    #[error("{}:{line}: the turn has {steps} steps, and step {asked} was requested", path.display())]
    PastEnd { path: PathBuf, line: u64, steps: usize, asked: usize },
    #[error(
        "finding the turn of the script {} for this message would compare more than {} bytes",
        path.display(),
        compose::COMPARED_BYTES_MAX
    )]
    TooMuchToCompare { path: PathBuf },
}

impl ScriptError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "script.unreadable",
            Self::NotRegular { .. } => "script.not_regular",
            Self::TooLarge { .. } => "script.too_large",
            Self::Invalid { .. } => "script.invalid",
            Self::BadName { .. } => "script.bad_name",
            Self::NoUserMessage { .. } => "script.no_user_message",
            Self::NoTurn { .. } => "script.no_turn",
            Self::PastEnd { .. } => "script.past_end",
            Self::TooMuchToCompare { .. } => "script.too_much_to_compare",
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => Some("the model's name is the file's name without `.yaml`".to_owned()),
            Self::NoTurn { .. } => Some("a turn without `when` at the end matches everything".to_owned()),
            Self::PastEnd { .. } => {
                Some("each step answers one model call; the last one must make no tool calls".to_owned())
            }
            Self::TooMuchToCompare { .. } => {
                Some("use fewer turns with `when`, or send a shorter message".to_owned())
            }
            Self::NotRegular { .. }
            | Self::TooLarge { .. }
            | Self::Invalid { .. }
            | Self::BadName { .. }
            | Self::NoUserMessage { .. } => None,
        }
    }
}

pub(crate) async fn call(
    provider: &Provider,
    request: &ModelRequest,
    context: &CallContext,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<CallAnswer, CallError> {
    let place = file::place(provider.base_url.as_deref(), &context.data_dir, &request.model)?;
    let script = file::load(place).await?;
    let moment = ScriptPosition::of(&script, &request.messages)?;
    let play = ScriptRun { provider, request, context };
    let ComposedStep { step, reply } = play.compose(script, moment).await?;
    if let Some(delay) = step.delay {
        tokio::time::sleep(delay.0).await;
    }
    let cut_after = match &step.fail {
        None => None,
        Some(ScriptFailure::CutAfter(chunks)) => Some(*chunks),
        Some(ScriptFailure::Status { status, retry_after }) => {
            return Err(play.refused(*status, retry_after.map(|pause| pause.0)));
        }
        Some(ScriptFailure::Kind(ScriptFailureKind::Length)) => None,
        Some(ScriptFailure::Kind(kind)) => return Err(play.failed(*kind).await),
    };
    let ScriptReply { text, calls } = reply.map_err(|what| play.too_large(what))?;
    play.stream_reply(&step, &text, cut_after, on_text).await?;
    let usage = step.usage.map_or_else(|| estimate(request, &text, &calls), |usage| usage.counted());
    let stop = match (&step.fail, calls.is_empty()) {
        (Some(ScriptFailure::Kind(ScriptFailureKind::Length)), _) => StopReason::Length,
        (_, true) => StopReason::End,
        (_, false) => StopReason::ToolCalls,
    };
    Ok(CallAnswer { text, calls, usage, stop, reasoning: None })
}

/// The scripts a provider has, as far as its configuration names a place; each of them must be readable.
pub(crate) fn probe(provider: &Provider) -> Result<Vec<String>, CallError> {
    match provider.base_url.as_deref() {
        None => Ok(provider.models.clone()),
        Some(url) => Ok(file::scripts_at(url)?),
    }
}

/// A reply being given.
struct ScriptRun<'a> {
    provider: &'a Provider,
    request: &'a ModelRequest,
    context: &'a CallContext,
}

impl ScriptRun<'_> {
    async fn stream_reply(
        &self,
        step: &ScriptStep,
        text: &str,
        cut_after: Option<usize>,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), CallError> {
        let mut received = 0;
        for (place, piece) in pieces(step, text, cut_after.is_some()).into_iter().enumerate() {
            if cut_after == Some(place) {
                break;
            }
            if let (Some(pause), true) = (step.chunk_delay, place > 0) {
                tokio::time::sleep(pause.0).await;
            }
            received += piece.len();
            on_text(piece);
        }
        match cut_after {
            Some(_) => Err(CallError::Cut { provider: self.name(), received, cause: None }),
            None => Ok(()),
        }
    }

    fn name(&self) -> String {
        self.provider.name.clone()
    }

    fn refused(&self, status: u16, retry_after: Option<Duration>) -> CallError {
        let body = "as the script says".to_owned();
        match status {
            401 | 403 => CallError::RefusedAuth { provider: self.name(), status, body },
            _ => CallError::Status {
                provider: self.name(),
                kind: self.provider.kind,
                status,
                error_code: None,
                body,
                retry_after,
            },
        }
    }

    async fn failed(&self, kind: ScriptFailureKind) -> CallError {
        let (provider, model) = (self.name(), self.request.model.clone());
        let limits = self.context.limits;
        match kind {
            ScriptFailureKind::Unreachable => {
                let (origin, why) = ("the script".to_owned(), UnreachableWhy::Other);
                CallError::Unreachable { provider, origin, why, cause: None }
            }
            ScriptFailureKind::Garbage => CallError::Garbage {
                provider,
                what: UnreadableAnswer::NotJson,
                excerpt: "as the script says".to_owned(),
            },
            ScriptFailureKind::TooLarge => {
                CallError::TooLarge { provider, what: AnswerLimit::Answer, limit: limits.answer_bytes_max }
            }
            ScriptFailureKind::UnknownModel => CallError::UnknownModel { provider, model },
            ScriptFailureKind::ContextTooLong => CallError::ContextTooLong { provider, model },
            ScriptFailureKind::Hang => {
                tokio::time::sleep(limits.idle).await;
                CallError::Idle { provider, waited: limits.idle, when: SilentPhase::BeforeTheFirstByte }
            }
            ScriptFailureKind::Refused => {
                CallError::Refused { provider, words: "as the script says".to_owned() }
            }
            // Its answer is given, and judged like any other.
            ScriptFailureKind::Length => CallError::Length { model, place: TokenLimitCut::BeforeText },
        }
    }

    /// Off the async workers: a script of a mebibyte and a long message take a while.
    async fn compose(&self, script: Script, moment: ScriptPosition) -> Result<ComposedStep, ScriptError> {
        let (path, limits) = (script.path.clone(), self.context.limits);
        match tokio::task::spawn_blocking(move || moment.compose(script, &limits)).await {
            Ok(composed) => composed,
            Err(cause) => Err(ScriptError::Read { path, cause: std::io::Error::other(cause) }),
        }
    }

    fn too_large(&self, what: AnswerLimit) -> CallError {
        let limits = self.context.limits;
        let limit = match what {
            AnswerLimit::Calls => limits.calls_max,
            AnswerLimit::Line | AnswerLimit::Received | AnswerLimit::Answer | AnswerLimit::Call => {
                limits.answer_bytes_max
            }
        };
        CallError::TooLarge { provider: self.name(), what, limit }
    }
}

/// The text in pieces: the number that the step sets, else words if the text is slow or cut. The last piece has the
/// remainder.
fn pieces<'a>(step: &ScriptStep, text: &'a str, is_cut: bool) -> Vec<&'a str> {
    match step.chunks {
        Some(count) => {
            let count = count.get().min(PIECES_MAX);
            let each = text.chars().count().div_ceil(count).max(1);
            let starts: Vec<usize> = text.char_indices().map(|(start, _)| start).step_by(each).collect();
            let ends = starts.iter().skip(1).copied().chain([text.len()]);
            starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
        }
        None if is_cut || step.chunk_delay.is_some() => {
            let mut words: Vec<&str> = text.split_inclusive(' ').take(PIECES_MAX).collect();
            let spoken: usize = words.iter().map(|word| word.len()).sum();
            if spoken < text.len() {
                words.push(&text[spoken..]);
            }
            words
        }
        None => Some(text).filter(|text| !text.is_empty()).into_iter().collect(),
    }
}

/// Four bytes to a token: near enough for tests of budgets, and the same every time.
fn estimate(request: &ModelRequest, text: &str, calls: &[ToolCall]) -> CallUsage {
    let of_calls = |calls: &[ToolCall]| calls.iter().map(|call| call.arguments.len()).sum::<usize>();
    let input: usize = request
        .messages
        .iter()
        .map(|message| match message {
            ModelMessage::User { text } | ModelMessage::ToolResult { text, .. } => text.len(),
            ModelMessage::Assistant { text, calls, .. } => text.len() + of_calls(calls),
        })
        .sum();
    let tokens = |bytes: usize| bytes.div_ceil(4) as u64;
    CallUsage {
        input_tokens: tokens(input + request.system.len()),
        output_tokens: tokens(text.len() + of_calls(calls)),
        ..CallUsage::default()
    }
}
