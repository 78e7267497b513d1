//! `run`: from an Agentfile to an agent, and perhaps to an answer.

use std::path::Path;

use lodge_proto::{AgentCreateParams, AgentView, Mount};

use super::agents::{Goal, settle};
use super::prompt::{ask, print_sent, prompt_from_stdin, send};
use super::{Context, map, read_stdin, remove_agent, request_id};
use crate::answer::Asked;
use crate::args::{RunArgs, Voice};
use crate::failure::{Failure, io_words};
use crate::follow::{Daemon, Scope};
use crate::parse::MountArg;
use crate::render;
use crate::words::put;

const AGENTFILE_NAME: &str = "Agentfile";

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<(), Failure> {
    let prompt = prompt_of(&args).await?;
    let params = create_params(context, &args).await?;
    let mut daemon = context.daemon().await?;
    let agent: AgentView = daemon.call("agent/create", params).await?;
    if args.name.is_none()
        && let Some(wanted) = other_name(&agent)
    {
        context.words.say(&format!("`{wanted}` is taken: this one is `{}`", agent.name));
    }
    if args.detach {
        return match prompt {
            Some(text) => print_sent(context, &send(&mut daemon, &agent.id, args.voice, text).await?),
            None => print_agent(context, &agent),
        };
    }
    let keeps = args.rm.then(|| context.remove_on_interrupt(&agent.id)).is_none();
    if keeps {
        let line = format!("interrupted; the agent stays: lodge inspect {}", agent.name);
        context.say_on_interrupt(line);
    }
    let id = agent.id.clone();
    let asked = prompt.map(|text| (args.voice, text));
    let ended = attend(context, &mut daemon, agent, keeps, asked).await;
    if keeps {
        return ended;
    }
    match (ended, remove_agent(context, &id).await) {
        (Ok(()), removed) => removed,
        (Err(failure), Err(Failure::Told(report))) => {
            render::error(&report);
            Err(failure)
        }
        (Err(failure), _) => Err(failure),
    }
}

/// The name that its Agentfile asks for, if the agent has another. Its image is called by that name.
fn other_name(agent: &AgentView) -> Option<&str> {
    let (wanted, _) = agent.image.rsplit_once(':')?;
    (wanted != agent.name).then_some(wanted)
}

/// Waits until the agent is ready, then asks it or tells its name.
async fn attend(
    context: &Context,
    daemon: &mut Daemon<'_>,
    agent: AgentView,
    stays: bool,
    prompt: Option<(Voice, String)>,
) -> Result<(), Failure> {
    let state = daemon.watch(Scope::Agent(agent.id.clone()), None).await?;
    let current = state.agents.into_iter().find(|view| view.id == agent.id).unwrap_or(agent);
    let agent = settle(daemon, current, Goal::Ready, &context.words).await?;
    match prompt {
        Some((voice, text)) => {
            let asked = Asked { id: agent.id, name: agent.name, stays };
            ask(context, daemon, &asked, voice, text).await
        }
        None => print_agent(context, &agent),
    }
}

fn print_agent(context: &Context, agent: &AgentView) -> Result<(), Failure> {
    if context.words.json {
        context.words.json(agent)
    } else if context.words.quiet {
        put(&format!("{}\n", agent.id))
    } else {
        put(&format!("{} {}\n", agent.name, agent.id))
    }
}

async fn prompt_of(args: &RunArgs) -> Result<Option<String>, Failure> {
    match args.prompt.as_slice() {
        [] => Ok(None),
        [dash] if dash == "-" && args.source == "-" => {
            Err(Failure::usage("stdin cannot be both the Agentfile and the prompt"))
        }
        [dash] if dash == "-" => prompt_from_stdin().await.map(Some),
        words => Ok(Some(words.join(" "))),
    }
}

async fn create_params(context: &Context, args: &RunArgs) -> Result<AgentCreateParams, Failure> {
    let (path, content) = match args.source.as_str() {
        "-" => (None, Some(read_stdin("the Agentfile").await?)),
        source if context.address.is_this_machine() => (Some(local_path(source)?), None),
        // Paths of this machine mean nothing to a daemon on another one, so the text travels.
        source => (None, Some(agentfile_text(Path::new(source))?)),
    };
    Ok(AgentCreateParams {
        path,
        content,
        name: args.name.clone(),
        model: args.model.clone(),
        env: map(args.env.clone()),
        labels: map(args.label.clone()),
        mounts: args.mounts.iter().map(|mount| mount_of(context, mount)).collect::<Result<_, _>>()?,
        build_args: map(args.build_arg.clone()),
        revival_policy: args.revival_policy.clone(),
        request_id: Some(request_id()?),
    })
}

fn local_path(source: &str) -> Result<String, Failure> {
    let path = std::fs::canonicalize(source).map_err(|cause| {
        Failure::refused(format!("there is no Agentfile at `{source}`"))
            .because(io_words(&cause))
            .hint("give a directory with an Agentfile, an Agentfile, or `-` to read one from stdin")
    })?;
    utf8(&path)
}

fn agentfile_text(source: &Path) -> Result<String, Failure> {
    let file = if source.is_dir() { source.join(AGENTFILE_NAME) } else { source.to_owned() };
    std::fs::read_to_string(&file).map_err(|cause| {
        Failure::refused(format!("could not read `{}`", file.display())).because(io_words(&cause))
    })
}

fn mount_of(context: &Context, mount: &MountArg) -> Result<Mount, Failure> {
    let host = if context.address.is_this_machine() {
        std::path::absolute(&mount.host).map_err(|cause| {
            Failure::usage(format!("`{}` cannot be mounted", mount.host.display())).because(io_words(&cause))
        })?
    } else {
        mount.host.clone()
    };
    Ok(Mount { host: utf8(&host)?, target: mount.target.clone(), read_only: mount.read_only })
}

fn utf8(path: &Path) -> Result<String, Failure> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Failure::usage(format!("`{}` is not written in UTF-8", path.display())))
}
