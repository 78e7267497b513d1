//! `prompt`: one turn.

use std::io::IsTerminal;
use std::path::Path;

use lodge_proto::{GetTurn, SendTurn, TurnRef, TurnSendParams, TurnView};
use serde_json::Value;

use super::{Context, read_stdin, request_id};
use crate::answer::{self, Asked, Ending, Show};
use crate::args::{PromptArgs, Voice};
use crate::failure::{Failure, io_words};
use crate::follow::{Daemon, Scope};
use crate::words::put;

const HOW_TO_ASK: &str = "write the text after the agent, or pipe it in: `echo hello | lodge prompt AGENT`";

pub(super) async fn prompt(context: &Context, args: PromptArgs) -> Result<(), Failure> {
    let schema = args.schema.as_deref().map(read_schema).transpose()?;
    let question = Question { text: prompt_text(&args.text).await?, schema };
    let mut daemon = context.daemon().await?;
    if args.detach {
        let turn = send(&mut daemon, &args.agent, args.voice, question).await?;
        return print_sent(context, &turn);
    }
    // Attached before sending, so that the turn's first event cannot be missed. By id, for a name may go to another.
    let state = daemon.watch(Scope::Agent(args.agent.clone()), None).await?;
    let (id, name) = match state.agents.into_iter().next() {
        Some(agent) => (agent.id, agent.name),
        None => (args.agent.clone(), args.agent),
    };
    let agent = Asked { id, name, stays: true };
    ask(context, &mut daemon, &agent, args.voice, question).await
}

/// What is asked, and what the answer must look like.
#[derive(Debug)]
pub(crate) struct Question {
    pub text: String,
    pub schema: Option<Value>,
}

impl Question {
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Question { text: text.into(), schema: None }
    }
}

fn read_schema(path: &Path) -> Result<Value, Failure> {
    let text = std::fs::read_to_string(path).map_err(|cause| {
        Failure::usage(format!("could not read the schema `{}`", path.display())).because(io_words(&cause))
    })?;
    serde_json::from_str(&text).map_err(|cause| {
        Failure::usage(format!("`{}` is not JSON", path.display()))
            .because(cause)
            .hint("a schema is a JSON object such as {\"type\": \"object\", \"properties\": …}")
    })
}

/// Sends a turn to a watched agent and shows it to its end.
pub(super) async fn ask(
    context: &Context,
    daemon: &mut Daemon<'_>,
    agent: &Asked,
    voice: Voice,
    question: Question,
) -> Result<(), Failure> {
    // Of several answers only the last one fits a schema: it is printed whole when it is there.
    let show = if question.schema.is_some() { Show::Steps } else { Show::All };
    let turn = send(daemon, &agent.id, voice, question).await?;
    see(context, daemon, agent, turn, show).await
}

/// Shows a turn of a watched agent to its end.
pub(super) async fn see(
    context: &Context,
    daemon: &mut Daemon<'_>,
    agent: &Asked,
    turn: TurnView,
    show: Show,
) -> Result<(), Failure> {
    context.say_on_interrupt(format!("interrupted; the turn goes on: lodge session show {}", turn.session));
    let ending = answer::follow(daemon, agent, &turn, &context.words, show).await?;
    if let (Show::Steps, Ending::Done, false) = (show, &ending, context.words.json) {
        let turn = daemon.call::<GetTurn>(TurnRef { turn: turn.id }).await?;
        return put(&format!("{}\n", turn.text.trim()));
    }
    if context.words.json {
        match daemon.call::<GetTurn>(TurnRef { turn: turn.id }).await {
            Ok(turn) => context.words.json(&turn)?,
            // A turn that went with its agent cannot be shown; why it ended is told instead.
            Err(failure) => {
                return Err(match ending {
                    Ending::Done => failure,
                    Ending::Broken(broken) => broken,
                });
            }
        }
    }
    match ending {
        Ending::Done => Ok(()),
        Ending::Broken(failure) => Err(failure),
    }
}

/// Sends a turn. A resend after a lost connection is still one turn.
pub(crate) async fn send(
    daemon: &mut Daemon<'_>,
    agent: &str,
    voice: Voice,
    question: Question,
) -> Result<TurnView, Failure> {
    let params = TurnSendParams {
        agent: agent.to_owned(),
        session: voice.session,
        sender: voice.sender,
        text: question.text,
        schema: question.schema,
        request_id: Some(request_id()?),
    };
    daemon.call::<SendTurn>(params).await
}

pub(super) fn print_sent(context: &Context, turn: &TurnView) -> Result<(), Failure> {
    if context.words.json { context.words.json(turn) } else { put(&format!("{}\n", turn.id)) }
}

async fn prompt_text(words: &[String]) -> Result<String, Failure> {
    match words {
        [] if std::io::stdin().is_terminal() => {
            Err(Failure::usage("there is nothing to ask").hint(HOW_TO_ASK))
        }
        [] => prompt_from_stdin().await,
        [dash] if dash == "-" => prompt_from_stdin().await,
        words => Ok(words.join(" ")),
    }
}

/// What was piped in, without the line end that `echo` and editors add.
pub(super) async fn prompt_from_stdin() -> Result<String, Failure> {
    let mut text = read_stdin("the prompt").await?;
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    if text.is_empty() {
        return Err(Failure::usage("there is nothing to ask: stdin is empty").hint(HOW_TO_ASK));
    }
    Ok(text)
}
