//! `prompt`: one turn.

use std::path::Path;

use lodge_proto::{GetTurn, SendTurn, TurnRef, TurnSendParams, TurnView};
use serde_json::Value;

use super::sessions_change::generated_id;
use super::stdin::{check_message, prompt_text};
use super::{CommandContext, request_id};
use crate::answer::{self, PromptedAgent, ShownSteps, TurnEnding};
use crate::args::{ConversationArgs, PromptArgs};
use crate::failure::{CommandFailure, io_words};
use crate::follow::{DaemonClient, FollowScope};
use crate::words::put;

pub(super) async fn prompt(context: &CommandContext, args: PromptArgs) -> Result<(), CommandFailure> {
    let schema = args.schema.as_deref().map(read_schema).transpose()?;
    let question = PromptText { text: prompt_text(&context.words, &args.text).await?, schema };
    let mut daemon = context.daemon().await?;
    if args.detach {
        let turn = send(&mut daemon, &args.agent, args.voice, question).await?;
        return print_detached_turn(context, &turn);
    }
    // Attached before sending, so that the turn's first event cannot be missed. By id, for a name may go to another.
    let state = daemon.watch(FollowScope::Agent(args.agent.clone()), None).await?;
    let (id, name) = match state.agents.into_iter().next() {
        Some(agent) => (agent.id, agent.name),
        None => (args.agent.clone(), args.agent),
    };
    let agent = PromptedAgent { id, name, stays: true };
    ask(context, &mut daemon, &agent, args.voice, question).await
}

/// The prompt, and the schema of the answer.
#[derive(Debug)]
pub(crate) struct PromptText {
    pub text: String,
    pub schema: Option<Value>,
}

impl PromptText {
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        PromptText { text: text.into(), schema: None }
    }
}

fn read_schema(path: &Path) -> Result<Value, CommandFailure> {
    let text = std::fs::read_to_string(path).map_err(|cause| {
        CommandFailure::usage(format!("could not read the schema `{}`", path.display()))
            .because(io_words(&cause))
    })?;
    serde_json::from_str(&text).map_err(|cause| {
        CommandFailure::usage(format!("`{}` is not JSON", path.display()))
            .because(cause)
            .hint("a schema is a JSON object such as {\"type\": \"object\", \"properties\": …}")
    })
}

/// Sends a turn to a watched agent and shows it to its end.
pub(super) async fn ask(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    voice: ConversationArgs,
    question: PromptText,
) -> Result<(), CommandFailure> {
    // Of several answers only the last one fits a schema: it is printed whole when it is there.
    let show = if question.schema.is_some() { ShownSteps::Steps } else { ShownSteps::All };
    let turn = send(daemon, &agent.id, voice, question).await?;
    show_turn(context, daemon, agent, turn, show).await
}

/// Shows a turn of a watched agent to its end.
pub(super) async fn show_turn(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: TurnView,
    show: ShownSteps,
) -> Result<(), CommandFailure> {
    note_detach(context, &turn);
    let ending = answer::follow(daemon, agent, &turn, &context.words, show).await?;
    finish_turn(context, daemon, turn, show, ending).await
}

/// Shows a turn that began before, from its beginning to its end.
pub(super) async fn rejoin_turn(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: TurnView,
    show: ShownSteps,
) -> Result<(), CommandFailure> {
    note_detach(context, &turn);
    let ending = answer::rejoin(daemon, agent, &turn, &context.words, show).await?;
    finish_turn(context, daemon, turn, show, ending).await
}

fn note_detach(context: &CommandContext, turn: &TurnView) {
    context.set_interrupt_note(format!("detached; the turn is still running: lodge turn attach {}", turn.id));
}

/// Prints what is printed only at the end, and exits as the turn ended.
async fn finish_turn(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    turn: TurnView,
    show: ShownSteps,
    ending: TurnEnding,
) -> Result<(), CommandFailure> {
    if let (ShownSteps::Steps, TurnEnding::Done, false) = (show, &ending, context.words.json) {
        let turn: TurnView = daemon.call::<GetTurn>(TurnRef { turn: turn.id }).await?;
        return put(&format!("{}\n", turn.text.trim()));
    }
    if context.words.json {
        match daemon.call::<GetTurn>(TurnRef { turn: turn.id }).await {
            Ok(turn) => context.words.json(&turn)?,
            // A turn that was removed with its agent cannot be shown; the reason for its end is shown instead.
            Err(failure) => {
                return Err(match ending {
                    TurnEnding::Done => failure,
                    TurnEnding::Broken(broken) => broken,
                });
            }
        }
    }
    match ending {
        TurnEnding::Done => Ok(()),
        TurnEnding::Broken(failure) => Err(failure),
    }
}

/// Sends a turn. A resend after a lost connection is still one turn.
pub(crate) async fn send(
    daemon: &mut DaemonClient<'_>,
    agent: &str,
    voice: ConversationArgs,
    question: PromptText,
) -> Result<TurnView, CommandFailure> {
    check_message(&question.text)?;
    let session = match voice.session {
        Some(session) => Some(generated_id(daemon, session).await?),
        None => None,
    };
    let params = TurnSendParams {
        agent: agent.to_owned(),
        session,
        sender: voice.sender,
        text: question.text,
        schema: question.schema,
        request_id: Some(request_id()?),
    };
    daemon.call::<SendTurn>(params).await
}

/// The id of a turn that is not waited for, and how to rejoin it.
pub(super) fn print_detached_turn(context: &CommandContext, turn: &TurnView) -> Result<(), CommandFailure> {
    if context.words.json {
        return context.words.json(turn);
    }
    put(&format!("{}\n", turn.id))?;
    context.words.print_note(&format!("to rejoin it: lodge turn attach {}", turn.id));
    Ok(())
}
