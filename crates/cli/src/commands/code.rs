//! `code`: a coding agent on a directory, created once and continued afterwards.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use lodge_proto::{
    AgentCreateParams, AgentListParams, AgentRef, AgentStopParams, AgentUpdateParams, AgentView, CreateAgent,
    ListAgents, ListSessions, Mount, RestartAgent, SessionListParams, StartAgent, UpdateAgent, error_code,
};

use super::agents::{AgentGoal, settle};
use super::models;
use super::prompt::{PromptText, ask};
use super::run::print_mounts;
use super::source::utf8;
use super::stdin::prompt_text;
use super::templates::{self, ChosenModel, SCRIPT_FILE};
use super::{CommandContext, request_id};
use crate::answer::PromptedAgent;
use crate::args::{ChatArgs, CodeArgs, ConversationArgs, TemplateArg};
use crate::failure::{CommandFailure, io_words};
use crate::follow::{DaemonClient, FollowScope};

/// The label with the directory of a coding agent.
const LABEL: &str = "lodge.code";
/// Where the agent sees the directory. Its tools start there.
const WORKSPACE: &str = "/workspace";
/// The name of the image, and of the agent in its Agentfile.
const IMAGE_NAME: &str = "lodge-code";
/// Names that are tried for an agent.
const NAMES_MAX: usize = 100;

pub(super) async fn code(context: &CommandContext, args: CodeArgs) -> Result<(), CommandFailure> {
    let dir = directory(context, &args)?;
    let prompt = prompt_of(context, &args).await?;
    let mut daemon = context.daemon().await?;
    let agent = match existing(&mut daemon, &dir).await? {
        Some(agent) => adjusted(context, &mut daemon, agent, &dir, &args).await?,
        None => created(context, &mut daemon, &dir, &args).await?,
    };
    let state = daemon.watch(FollowScope::Agent(agent.id.clone()), None).await?;
    let current = state.agents.into_iter().find(|view| view.id == agent.id).unwrap_or(agent);
    let agent = settle(&mut daemon, current, AgentGoal::Ready, &context.words).await?;
    let session = if args.new { None } else { last_session(&mut daemon, &agent).await? };
    match prompt {
        Some(text) => {
            let asked = PromptedAgent { id: agent.id, name: agent.name, stays: true };
            let voice = ConversationArgs { session, sender: None };
            ask(context, &mut daemon, &asked, voice, PromptText::plain(text)).await
        }
        None => {
            drop(daemon);
            crate::chat::chat(context, ChatArgs { agent: agent.id, session }).await
        }
    }
}

/// The directory that the agent works on, by its real path.
fn directory(context: &CommandContext, args: &CodeArgs) -> Result<String, CommandFailure> {
    if !context.address.is_this_machine() {
        return Err(CommandFailure::usage(
            "`lodge code` works on directories of this machine, and the daemon is on another one",
        )
        .hint("run it there, or leave out `--daemon`"));
    }
    let shown = args.dir.display();
    let dir = fs::canonicalize(&args.dir).map_err(|cause| {
        CommandFailure::usage(format!("there is no directory `{shown}`"))
            .because(io_words(&cause))
            .hint("write the directory before the prompt, as in `lodge code . \"What is this?\"`, or use `-p PROMPT`")
    })?;
    if !dir.is_dir() {
        return Err(CommandFailure::usage(format!("`{shown}` is not a directory")));
    }
    utf8(&dir)
}

async fn prompt_of(context: &CommandContext, args: &CodeArgs) -> Result<Option<String>, CommandFailure> {
    match (&args.text, args.prompt.as_slice()) {
        (Some(text), _) => prompt_text(&context.words, std::slice::from_ref(text)).await.map(Some),
        (None, []) => Ok(None),
        (None, words) => prompt_text(&context.words, words).await.map(Some),
    }
}

/// The agent that works on this directory already.
async fn existing(daemon: &mut DaemonClient<'_>, dir: &str) -> Result<Option<AgentView>, CommandFailure> {
    let labels = [(LABEL.to_owned(), dir.to_owned())].into();
    let params = AgentListParams { all: true, labels, ..AgentListParams::default() };
    Ok(daemon.call::<ListAgents>(params).await?.agents.into_iter().next())
}

/// Starts an agent that is stopped, and gives it the model that was asked for. An agent with a scripted model gets a real one as
/// soon as there is a provider.
async fn adjusted(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    agent: AgentView,
    dir: &str,
    args: &CodeArgs,
) -> Result<AgentView, CommandFailure> {
    let is_scripted = agent.model == templates::SCRIPT_MODEL;
    let model = match &args.model {
        Some(model) => Some(model.clone()),
        None if is_scripted => match choose(context, daemon).await? {
            ChosenModel::Real(model) => Some(model),
            ChosenModel::Scripted => None,
        },
        None => None,
    };
    let mut agent = agent;
    if let Some(model) = model.filter(|model| *model != agent.model) {
        let params = AgentUpdateParams {
            agent: agent.id.clone(),
            model: Some(model.clone()),
            request_id: Some(request_id()?),
            ..AgentUpdateParams::default()
        };
        agent = daemon.call::<UpdateAgent>(params).await?.agent;
        context.words.print_note(&format!("{} has the model {model} now", agent.name));
    } else if is_scripted {
        print_scripted(context);
    }
    if args.map_root && !agent.mounts.iter().any(|mount| mount.target == WORKSPACE && mount.map_root) {
        let params = AgentUpdateParams {
            agent: agent.id.clone(),
            mounts: vec![project(dir, args)],
            request_id: Some(request_id()?),
            ..AgentUpdateParams::default()
        };
        agent = daemon.call::<UpdateAgent>(params).await?.agent;
        let params = AgentStopParams {
            agent: agent.id.clone(),
            request_id: Some(request_id()?),
            ..AgentStopParams::default()
        };
        agent = daemon.call::<RestartAgent>(params).await?;
    }
    if matches!(agent.status.as_str(), "stopped" | "failed") {
        let params = AgentRef { agent: agent.id.clone(), request_id: Some(request_id()?) };
        agent = daemon.call::<StartAgent>(params).await?;
    }
    Ok(agent)
}

async fn choose(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
) -> Result<ChosenModel, CommandFailure> {
    let providers = models::configured(daemon).await?;
    let offer = models::find_model(context, daemon, &providers).await;
    models::take_model(context, offer).await
}

/// The mount of the directory that the agent works on.
fn project(dir: &str, args: &CodeArgs) -> Mount {
    Mount {
        host: dir.to_owned(),
        target: WORKSPACE.to_owned(),
        read_only: false,
        description: Some("the project that you work on".to_owned()),
        map_root: args.map_root,
        owner: None,
    }
}

/// Creates the agent of a directory.
async fn created(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    dir: &str,
    args: &CodeArgs,
) -> Result<AgentView, CommandFailure> {
    let model = match &args.model {
        Some(model) => ChosenModel::Real(model.clone()),
        None => choose(context, daemon).await?,
    };
    let rendered = templates::render(TemplateArg::Coder, IMAGE_NAME, &model, "lodge code");
    let mut params = AgentCreateParams {
        labels: [(LABEL.to_owned(), dir.to_owned())].into(),
        mounts: vec![project(dir, args)],
        ..AgentCreateParams::default()
    };
    // A script is a file of the image, so it needs a directory while the image is built.
    let build = rendered
        .script
        .as_deref()
        .map(|script| BuildDirectory::new(&rendered.agentfile, script))
        .transpose()?;
    match &build {
        Some(build) => params.path = Some(utf8(&build.path)?),
        None => params.content = Some(rendered.agentfile),
    }
    let agent = create_with_free_name(daemon, params, &name_of(dir)).await?;
    let what = match &model {
        ChosenModel::Real(model) => format!("{} works on {dir} with the model {model}", agent.name),
        ChosenModel::Scripted => format!("{} works on {dir}", agent.name),
    };
    context.words.print_note(&what);
    print_mounts(context, daemon, &agent, "run `lodge code --map-root`").await?;
    if model == ChosenModel::Scripted {
        print_scripted(context);
    }
    Ok(agent)
}

fn print_scripted(context: &CommandContext) {
    context.words.print_note(
        "there is no provider, so its model is a script, which cannot think: `lodge provider add work --kind anthropic --api-key -` adds one",
    );
}

/// Other directories may have the same name.
async fn create_with_free_name(
    daemon: &mut DaemonClient<'_>,
    params: AgentCreateParams,
    name: &str,
) -> Result<AgentView, CommandFailure> {
    for number in 1..=NAMES_MAX {
        let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        let params =
            AgentCreateParams { name: Some(name), request_id: Some(request_id()?), ..params.clone() };
        match daemon.call::<CreateAgent>(params).await {
            Err(failure) if failure.is(error_code!("agent.name_taken")) => {}
            ended => return ended,
        }
    }
    Err(CommandFailure::refused(format!("every name like `{name}` is taken"))
        .hint("`lodge ps -a` lists agents, `lodge rm` removes one"))
}

fn name_of(dir: &str) -> String {
    let name = Path::new(dir).file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.and_then(|name| templates::agent_name(&name));
    format!("code-{}", name.as_deref().unwrap_or("project"))
}

/// The conversation that is continued.
async fn last_session(
    daemon: &mut DaemonClient<'_>,
    agent: &AgentView,
) -> Result<Option<String>, CommandFailure> {
    let params =
        SessionListParams { agent: Some(agent.id.clone()), limit: Some(1), ..SessionListParams::default() };
    let sessions = daemon.call::<ListSessions>(params).await?.sessions;
    Ok(sessions.into_iter().next().map(|session| session.id))
}

/// An Agentfile and its script, while an image is built of them.
struct BuildDirectory {
    path: PathBuf,
}

impl BuildDirectory {
    fn new(agentfile: &str, script: &str) -> Result<BuildDirectory, CommandFailure> {
        let path = std::env::temp_dir().join(format!("lodge-code-{}", request_id()?));
        let failed = |cause: std::io::Error| {
            CommandFailure::refused(format!("could not write below `{}`", path.display()))
                .because(io_words(&cause))
        };
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let build = BuildDirectory { path: path.clone() };
        fs::write(path.join("Agentfile"), agentfile).map_err(failed)?;
        fs::write(path.join(SCRIPT_FILE), script).map_err(failed)?;
        Ok(build)
    }
}

impl Drop for BuildDirectory {
    fn drop(&mut self) {
        // What is left is small, and in a directory for temporary files.
        drop(fs::remove_dir_all(&self.path));
    }
}
