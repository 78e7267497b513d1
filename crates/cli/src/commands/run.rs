//! `run`: creates an agent from a source and, with a prompt, prints its answer.

use std::io::IsTerminal;

use lodge_proto::{AgentCreateParams, AgentRef, AgentView, CreateAgent, GetAgent, Mount, error_code};

use super::agents::{AgentGoal, settle};
use super::images::print_warnings;
use super::prompt::{PromptText, ask, print_detached_turn, send};
use super::source::{AgentSource, source, source_not_found, utf8};
use super::stdin::{check_message, prompt_text};
use super::transfers::pull_if_missing;
use super::{CommandContext, map, remove_agent, request_id};
use crate::answer::PromptedAgent;
use crate::args::{ChatArgs, ConversationArgs, RunArgs};
use crate::failure::{CommandFailure, io_words};
use crate::follow::{DaemonClient, FollowScope};
use crate::parse::{MountArg, expand_home};
use crate::render;
use crate::words::put;

pub(super) async fn run(context: &CommandContext, args: RunArgs) -> Result<(), CommandFailure> {
    let prompt = prompt_of(context, &args).await?;
    let params = create_params(context, &args).await?;
    let mut daemon = context.daemon().await?;
    let image = params.image.clone();
    // Who does not wait does not look on either: the agent is `pulling` until its image is here.
    if let Some(image) = image.as_deref().filter(|_| !args.detach) {
        pull_if_missing(context, &mut daemon, image)
            .await
            .map_err(|failure| source_not_found(image, failure))?;
        context.forget_interrupt();
    }
    let created = daemon.call::<CreateAgent>(params).await;
    let created = created.map_err(|failure| match &image {
        Some(image) => source_not_found(image, failure),
        None => failure,
    });
    let agent: AgentView = created.map_err(|failure| match &args.name {
        Some(name) if failure.is(error_code!("agent.name_taken")) => {
            failure.and_hint(&name_taken_hint(name, &args.source))
        }
        Some(_) | None => failure,
    })?;
    print_warnings(context, &mut daemon, &agent.image_digest).await?;
    print_network(context, &agent);
    print_mounts(context, &mut daemon, &agent, MAP_ROOT).await?;
    print_unenforced(context, &agent);
    if args.name.is_none()
        && let Some(wanted) = requested_name(&agent)
    {
        context.words.print_note(&format!("`{wanted}` is taken: this one is `{}`", agent.name));
        context.words.print_note(&name_taken_hint(wanted, &args.source));
    }
    if args.detach {
        return match prompt {
            Some(text) => print_detached_turn(
                context,
                &send(&mut daemon, &agent.id, args.voice, PromptText::plain(text)).await?,
            ),
            None => print_agent(context, &agent),
        };
    }
    let keeps = args.rm.then(|| context.remove_on_interrupt(&agent.id)).is_none();
    if keeps {
        let line = format!("detached; the agent is still there: lodge inspect {}", agent.name);
        context.set_interrupt_note(line);
    }
    let id = agent.id.clone();
    let asked = prompt.map(|text| (args.voice, text));
    let ended = prompt_when_ready(context, &mut daemon, agent, keeps, asked).await;
    if keeps {
        return ended;
    }
    match (ended, remove_agent(context, &id).await) {
        (Ok(()), removed) => removed,
        (Err(failure), Err(CommandFailure::Told(report))) => {
            render::error(&report);
            Err(failure)
        }
        (Err(failure), _) => Err(failure),
    }
}

/// The requested name, if it was taken and the agent got a number instead.
fn requested_name(agent: &AgentView) -> Option<&str> {
    let (wanted, number) = agent.name.rsplit_once('-')?;
    let numbered = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    let image = agent.image.rsplit_once(':').map_or("", |(name, _)| name);
    (numbered && image == wanted).then_some(wanted)
}

/// A hint about the likely intention behind a name that is taken.
fn name_taken_hint(name: &str, source: &str) -> String {
    format!("to change `{name}` itself: lodge agent update {name} --image {}", render::quoted(source))
}

/// An agent with the host's network reaches everything that the host's own users reach, and one whose mode was
/// misspelt reaches a host of that name alone.
fn print_network(context: &CommandContext, agent: &AgentView) {
    let network = &agent.network;
    if network.mode == "host" {
        context.words.print_note("NETWORK host: its tools have this host's network, loopback included");
    }
    if let [word] = network.allow.as_slice()
        && !word.contains(['.', ':', '/'])
    {
        context.words.print_note(&format!(
            "NETWORK {word}: its tools reach the host `{word}` alone; the modes are none, public, lan and host"
        ));
    }
}

/// How a mount of a directory of root gives the agent root's rights.
pub(super) const MAP_ROOT: &str = "add `map-root` to its -v";

/// Mounts in which an agent of root's daemon may find that it can do little. `remedy` gives it root's rights.
pub(super) async fn print_mounts(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    agent: &AgentView,
    remedy: &str,
) -> Result<(), CommandFailure> {
    let plain: Vec<&Mount> = agent.mounts.iter().filter(|mount| mount.owner.is_none()).collect();
    if plain.is_empty() {
        return Ok(());
    }
    let detail = daemon.call::<GetAgent>(AgentRef { agent: agent.id.clone(), request_id: None }).await?;
    // Without a user of its own, an agent is the daemon's user.
    for mount in plain.into_iter().filter(|_| detail.uid.is_some()) {
        let (host, target) = (&mount.host, &mount.target);
        context.words.print_note(&format!(
            "the agent has only the rights of others in {host}, at {target}; for root's rights, {remedy}"
        ));
    }
    Ok(())
}

/// What was declared and does nothing yet.
fn print_unenforced(context: &CommandContext, agent: &AgentView) {
    let idle = agent.capabilities.iter().filter(|capability| !capability.granted);
    let idle: Vec<String> = idle.map(|capability| format!("`{}`", capability.name)).collect();
    if !idle.is_empty() {
        context
            .words
            .print_note(&format!("these capabilities grant nothing in this release: {}", idle.join(", ")));
    }
    let idle: Vec<String> = agent.limits_not_enforced.iter().map(|name| format!("`{name}`")).collect();
    if !idle.is_empty() {
        context
            .words
            .print_note(&format!("these limits are not enforced in this release: {}", idle.join(", ")));
    }
}

/// Waits until the agent is ready, then sends the prompt or prints its name.
async fn prompt_when_ready(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    agent: AgentView,
    stays: bool,
    prompt: Option<(ConversationArgs, String)>,
) -> Result<(), CommandFailure> {
    let state = daemon.watch(FollowScope::Agent(agent.id.clone()), None).await?;
    let current = state.agents.into_iter().find(|view| view.id == agent.id).unwrap_or(agent);
    let agent = settle(daemon, current, AgentGoal::Ready, &context.words).await?;
    match prompt {
        Some((voice, text)) => {
            let asked = PromptedAgent { id: agent.id, name: agent.name, stays };
            ask(context, daemon, &asked, voice, PromptText::plain(text)).await
        }
        None if is_conversation(context) => {
            let args = ChatArgs { agent: agent.id, session: None };
            crate::chat::chat(context, args).await
        }
        None => print_agent(context, &agent),
    }
}

/// Whether a person sits at both ends.
fn is_conversation(context: &CommandContext) -> bool {
    let words = &context.words;
    words.stdout_is_terminal() && std::io::stdin().is_terminal() && !words.json && !words.quiet
}

fn print_agent(context: &CommandContext, agent: &AgentView) -> Result<(), CommandFailure> {
    if context.words.json {
        context.words.json(agent)
    } else if context.words.quiet {
        put(&format!("{}\n", agent.id))
    } else {
        put(&format!("{} {}\n", agent.name, agent.id))
    }
}

async fn prompt_of(context: &CommandContext, args: &RunArgs) -> Result<Option<String>, CommandFailure> {
    match args.prompt.as_slice() {
        [] => Ok(None),
        words if args.source == "-" => {
            if words.first().is_some_and(|word| word == "-") || words.last().is_some_and(|word| word == "-") {
                return Err(CommandFailure::usage("stdin cannot be both the Agentfile and the prompt"));
            }
            let text = words.join(" ");
            check_message(&text).map(|()| Some(text))
        }
        words => prompt_text(&context.words, words).await.map(Some),
    }
}

async fn create_params(
    context: &CommandContext,
    args: &RunArgs,
) -> Result<AgentCreateParams, CommandFailure> {
    let mut params = AgentCreateParams {
        name: args.name.clone(),
        model: args.model.clone(),
        env: map(args.env.clone()),
        labels: map(args.label.clone()),
        mounts: args.mounts.iter().map(|mount| mount_of(context, mount)).collect::<Result<_, _>>()?,
        build_args: map(args.build_arg.clone()),
        configs: map(args.config.clone()),
        runtime: args.runtime.clone(),
        capabilities: args.caps.clone(),
        limits: map(args.limit.clone()),
        revival_policy: args.revival_policy.clone(),
        request_id: Some(request_id()?),
        ..AgentCreateParams::default()
    };
    match source(context, &args.source).await? {
        AgentSource::Path(path) => params.path = Some(path),
        AgentSource::Content(content) => params.content = Some(content),
        AgentSource::Image(image) => params.image = Some(image),
    }
    Ok(params)
}

pub(super) fn mount_of(context: &CommandContext, mount: &MountArg) -> Result<Mount, CommandFailure> {
    let cannot = || CommandFailure::usage(format!("`{}` cannot be mounted", mount.host.display()));
    let host = if context.address.is_this_machine() {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(std::path::PathBuf::from);
        let host = expand_home(&mount.host, home).map_err(|cause| cannot().because(cause))?;
        std::path::absolute(&host).map_err(|cause| cannot().because(io_words(&cause)))?
    } else {
        mount.host.clone()
    };
    Ok(Mount {
        host: utf8(&host)?,
        target: mount.target.clone(),
        read_only: mount.read_only,
        description: mount.description.clone(),
        map_root: mount.map_root,
        owner: None,
    })
}
