//! `prompt`: one turn.

use std::io::IsTerminal;

use lodge_proto::{TurnRef, TurnSendParams, TurnView};

use super::{Context, read_stdin, request_id};
use crate::answer::{self, Ending};
use crate::args::{PromptArgs, Voice};
use crate::failure::Failure;
use crate::follow::{Daemon, Scope};
use crate::words::put;

pub(super) async fn prompt(context: &Context, args: PromptArgs) -> Result<(), Failure> {
    let text = prompt_text(&args.text).await?;
    let mut daemon = context.daemon().await?;
    if args.detach {
        let turn = send(&mut daemon, &args.agent, args.voice, text).await?;
        return print_sent(context, &turn);
    }
    // Attached before sending, so that the turn's first event cannot be missed. By id, for a name may go to another.
    let state = daemon.watch(Scope::Agent(args.agent.clone()), None).await?;
    let agent = state.agents.first().map_or(args.agent, |agent| agent.id.clone());
    ask(context, &mut daemon, &agent, args.voice, text).await
}

/// Sends a turn to a watched agent and shows it to its end.
pub(super) async fn ask(
    context: &Context,
    daemon: &mut Daemon<'_>,
    agent: &str,
    voice: Voice,
    text: String,
) -> Result<(), Failure> {
    let turn = send(daemon, agent, voice, text).await?;
    context.say_on_interrupt(format!("interrupted; the turn goes on: lodge session show {}", turn.session));
    let ending = answer::follow(daemon, &turn, &context.words).await?;
    if context.words.json {
        let turn: TurnView = daemon.call("turn/get", TurnRef { turn: turn.id }).await?;
        context.words.json(&turn)?;
    }
    match ending {
        Ending::Done => Ok(()),
        Ending::Broken(failure) => Err(failure),
    }
}

/// Sends a turn. A resend after a lost connection is still one turn.
pub(super) async fn send(
    daemon: &mut Daemon<'_>,
    agent: &str,
    voice: Voice,
    text: String,
) -> Result<TurnView, Failure> {
    let params = TurnSendParams {
        agent: agent.to_owned(),
        session: voice.session,
        sender: voice.sender,
        text,
        request_id: Some(request_id()?),
    };
    daemon.call("turn/send", params).await
}

pub(super) fn print_sent(context: &Context, turn: &TurnView) -> Result<(), Failure> {
    if context.words.json { context.words.json(turn) } else { put(&format!("{}\n", turn.id)) }
}

async fn prompt_text(words: &[String]) -> Result<String, Failure> {
    match words {
        [] if std::io::stdin().is_terminal() => Err(Failure::usage("there is nothing to ask")
            .hint("write the text after the agent, or pipe it in: `echo hello | lodge prompt AGENT`")),
        [] => prompt_from_stdin().await,
        [dash] if dash == "-" => prompt_from_stdin().await,
        words => Ok(words.join(" ")),
    }
}

/// What was piped in, without the line end that `echo` and editors add.
pub(super) async fn prompt_from_stdin() -> Result<String, Failure> {
    let mut text = read_stdin("the prompt").await?;
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}
