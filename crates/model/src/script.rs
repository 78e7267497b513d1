//! The scripted model: replies from a YAML file, and from nothing else.
//!
//! It keeps no state. Which reply comes is decided by the request alone, so a call repeated after a crash is
//! answered as it was the first time.

mod file;
mod template;

use std::path::PathBuf;
use std::time::Duration;

use self::file::{Fail, FailKind, Script, Step};
use self::template::Template;
use crate::context::CallContext;
use crate::error::{CallError, Cut, Nonsense, Oversize, Silence};
use crate::provider::Provider;
use crate::reach::Unreached;
use crate::request::{Answer, Message, Request, Stop, ToolCall, Usage};
use crate::yaml::YamlProblem;

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
    #[error("the script {} was asked without a user's message", path.display())]
    NoUserMessage { path: PathBuf },
    #[error("the script {} has no turn for what the user said", path.display())]
    NoTurn { path: PathBuf },
    #[error("{}:{line}: the turn has {steps} steps, and step {asked} was asked for", path.display())]
    PastEnd { path: PathBuf, line: u64, steps: usize, asked: usize },
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
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => Some("the model's name is the file's name without `.yaml`".to_owned()),
            Self::NoTurn { .. } => Some("a turn without `when` at the end matches everything".to_owned()),
            Self::PastEnd { .. } => {
                Some("each step answers one model call; the last one must make no tool calls".to_owned())
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
    request: &Request,
    context: &CallContext,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<Answer, CallError> {
    let place = file::place(provider.base_url.as_deref(), &context.data_dir, &request.model)?;
    let script = file::load(place).await?;
    let moment = Moment::of(&script, &request.messages)?;
    let step = moment.step(&script)?;
    if let Some(delay) = step.delay {
        tokio::time::sleep(delay.0).await;
    }
    let play = Play { provider, request, context };
    let template = moment.template();
    let text = template.fill(&step.text);
    let cut_after = match &step.fail {
        None => None,
        Some(Fail::CutAfter(chunks)) => Some(*chunks),
        Some(Fail::Status { status, retry_after }) => {
            return Err(play.refused(*status, retry_after.map(|pause| pause.0)));
        }
        Some(Fail::Kind(FailKind::Length)) => None,
        Some(Fail::Kind(kind)) => return Err(play.failed(*kind).await),
    };
    let calls: Vec<ToolCall> = step
        .calls
        .iter()
        .enumerate()
        .map(|(place, call)| ToolCall {
            id: format!("call_{}_{}_{place}", moment.user_messages, moment.step),
            name: call.name.clone(),
            arguments: call.arguments(&template),
        })
        .collect();
    play.check_size(&text, &calls)?;
    play.speak(step, &text, cut_after, on_text).await?;
    let usage = step.usage.map_or_else(|| estimate(request, &text, &calls), |usage| usage.counted());
    let stop = match (&step.fail, calls.is_empty()) {
        (Some(Fail::Kind(FailKind::Length)), _) => Stop::Length,
        (_, true) => Stop::End,
        (_, false) => Stop::ToolCalls,
    };
    Ok(Answer { text, calls, usage, stop, reasoning: None })
}

/// The scripts a provider has, as far as its configuration names a place; each of them must be readable.
pub(crate) fn probe(provider: &Provider) -> Result<Vec<String>, CallError> {
    match provider.base_url.as_deref() {
        None => Ok(provider.models.clone()),
        Some(url) => Ok(file::scripts_at(url)?),
    }
}

/// Where in the conversation, and so in the script, a request stands.
struct Moment<'a> {
    /// The latest.
    user_text: &'a str,
    user_messages: usize,
    /// Assistant messages since the user's latest.
    step: usize,
    /// Texts since the user's latest.
    tool_results: Vec<&'a str>,
}

impl<'a> Moment<'a> {
    fn of(script: &Script, messages: &'a [Message]) -> Result<Self, ScriptError> {
        let mut moment: Option<Self> = None;
        for message in messages {
            match (message, &mut moment) {
                (Message::User { text }, before) => {
                    let user_messages = 1 + before.as_ref().map_or(0, |before| before.user_messages);
                    moment = Some(Self { user_text: text, user_messages, step: 0, tool_results: Vec::new() });
                }
                (Message::Assistant { .. }, Some(moment)) => moment.step += 1,
                (Message::ToolResult { text, .. }, Some(moment)) => moment.tool_results.push(text),
                (Message::Assistant { .. } | Message::ToolResult { .. }, None) => {}
            }
        }
        moment.ok_or_else(|| ScriptError::NoUserMessage { path: script.path.clone() })
    }

    fn step<'s>(&self, script: &'s Script) -> Result<&'s Step, ScriptError> {
        let turn = script
            .turns
            .iter()
            .find(|turn| turn.when.as_ref().is_none_or(|when| self.user_text.contains(when.as_str())))
            .ok_or_else(|| ScriptError::NoTurn { path: script.path.clone() })?;
        turn.steps.get(self.step).ok_or_else(|| ScriptError::PastEnd {
            path: script.path.clone(),
            line: turn.line,
            steps: turn.steps.len(),
            asked: self.step + 1,
        })
    }

    fn template(&self) -> Template<'_> {
        Template { input: self.user_text, turn: self.user_messages, tool_results: &self.tool_results }
    }
}

/// A reply being given.
struct Play<'a> {
    provider: &'a Provider,
    request: &'a Request,
    context: &'a CallContext,
}

impl Play<'_> {
    async fn speak(
        &self,
        step: &Step,
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

    async fn failed(&self, kind: FailKind) -> CallError {
        let (provider, model) = (self.name(), self.request.model.clone());
        let limits = self.context.limits;
        match kind {
            FailKind::Unreachable => {
                let (origin, why) = ("the script".to_owned(), Unreached::Other);
                CallError::Unreachable { provider, origin, why, cause: None }
            }
            FailKind::Garbage => CallError::Garbage {
                provider,
                what: Nonsense::NotJson,
                excerpt: "as the script says".to_owned(),
            },
            FailKind::TooLarge => {
                CallError::TooLarge { provider, what: Oversize::Answer, limit: limits.answer_bytes_max }
            }
            FailKind::UnknownModel => CallError::UnknownModel { provider, model },
            FailKind::ContextTooLong => CallError::ContextTooLong { provider, model },
            FailKind::Hang => {
                tokio::time::sleep(limits.idle).await;
                CallError::Idle { provider, waited: limits.idle, when: Silence::BeforeTheFirstByte }
            }
            FailKind::Refused => CallError::Refused { provider, words: "as the script says".to_owned() },
            // Its answer is given, and judged like any other.
            FailKind::Length => CallError::Length { model, place: Cut::BeforeText },
        }
    }

    /// A template can repeat a large input many times.
    fn check_size(&self, text: &str, calls: &[ToolCall]) -> Result<(), CallError> {
        let limit = self.context.limits.answer_bytes_max;
        let size = text.len() + calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        if size > limit {
            return Err(CallError::TooLarge { provider: self.name(), what: Oversize::Answer, limit });
        }
        Ok(())
    }
}

/// The text in the pieces it is spoken in: as many as asked for, else words if it is to be slow or cut.
fn pieces<'a>(step: &Step, text: &'a str, is_cut: bool) -> Vec<&'a str> {
    match step.chunks {
        Some(count) => {
            let starts: Vec<usize> = text.char_indices().map(|(start, _)| start).collect();
            let each = starts.len().div_ceil(count.get()).max(1);
            let starts: Vec<usize> = starts.into_iter().step_by(each).collect();
            let ends = starts.iter().skip(1).copied().chain([text.len()]);
            starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
        }
        None if is_cut || step.chunk_delay.is_some() => text.split_inclusive(' ').collect(),
        None => Some(text).filter(|text| !text.is_empty()).into_iter().collect(),
    }
}

/// Four bytes to a token: near enough for tests of budgets, and the same every time.
fn estimate(request: &Request, text: &str, calls: &[ToolCall]) -> Usage {
    let of_calls = |calls: &[ToolCall]| calls.iter().map(|call| call.arguments.len()).sum::<usize>();
    let input: usize = request
        .messages
        .iter()
        .map(|message| match message {
            Message::User { text } | Message::ToolResult { text, .. } => text.len(),
            Message::Assistant { text, calls, .. } => text.len() + of_calls(calls),
        })
        .sum();
    let tokens = |bytes: usize| bytes.div_ceil(4) as u64;
    Usage {
        input_tokens: tokens(input + request.system.len()),
        output_tokens: tokens(text.len() + of_calls(calls)),
        ..Usage::default()
    }
}
