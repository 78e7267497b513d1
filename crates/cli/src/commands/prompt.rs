//! `prompt`: one turn.

use std::io::IsTerminal;

use lodge_proto::{TurnRef, TurnSendParams, TurnView};

use super::{Context, read_stdin, request_id};
use crate::answer::{self, Asked, Ending};
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
    let (id, name) = match state.agents.into_iter().next() {
        Some(agent) => (agent.id, agent.name),
        None => (args.agent.clone(), args.agent),
    };
    let agent = Asked { id, name, stays: true };
    ask(context, &mut daemon, &agent, args.voice, text).await
}

/// Sends a turn to a watched agent and shows it to its end.
pub(super) async fn ask(
    context: &Context,
    daemon: &mut Daemon<'_>,
    agent: &Asked,
    voice: Voice,
    text: String,
) -> Result<(), Failure> {
    let turn = send(daemon, &agent.id, voice, text).await?;
    context.say_on_interrupt(format!("interrupted; the turn goes on: lodge session show {}", turn.session));
    let ending = answer::follow(daemon, agent, &turn, &context.words).await?;
    if context.words.json {
        match daemon.call::<_, TurnView>("turn/get", TurnRef { turn: turn.id }).await {
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
