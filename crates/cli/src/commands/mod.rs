//! The commands: each calls the daemon, waits if necessary, and prints.
//!
//! Owns: the dispatch of commands, and what several of them need. Never: transport or formatting.

mod agent_waits;
mod agents;
mod bins;
mod code;
mod completion;
mod daemon;
mod document;
mod events;
mod execs;
mod images;
mod images_archive;
mod images_diff;
mod init;
pub(crate) mod jobs;
pub(crate) mod jobs_output;
mod jobs_stop;
mod lineages;
mod logs;
mod models;
mod names;
pub(crate) mod prompt;
mod providers;
mod quarantine;
mod results;
mod run;
mod sandboxes;
mod selftest;
mod sessions;
pub(crate) mod sessions_change;
mod sessions_find;
mod sessions_repeat;
mod source;
pub(crate) mod stdin;
mod templates;
mod tokens;
mod transfers;
pub(crate) mod turns;
mod turns_show;
mod update;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal};

use lodge_proto::{AgentRemoveParams, RemoveAgent};

use crate::args::{AgentCommand, AgentVerb, CliCommand};
use crate::connect::DaemonAddress;
use crate::failure::{CommandExit, CommandFailure};
use crate::follow::DaemonClient;
use crate::render::{fitted, table};
use crate::words::{Words, put};

pub(crate) use self::completion::completions;
pub(crate) use self::selftest::{selftest, selftest_role};

/// What every command gets.
#[derive(Debug)]
pub(crate) struct CommandContext {
    pub address: DaemonAddress,
    pub words: Words,
    on_interrupt: RefCell<InterruptNote>,
}

/// What Ctrl-C leaves behind.
#[derive(Debug, Default)]
struct InterruptNote {
    say: Option<String>,
    remove: Option<String>,
    /// The exec that is cancelled.
    cancel: Option<String>,
}

impl CommandContext {
    pub(crate) fn new(address: DaemonAddress, words: Words) -> Self {
        CommandContext { address, words, on_interrupt: RefCell::default() }
    }

    pub(crate) async fn daemon(&self) -> Result<DaemonClient<'_>, CommandFailure> {
        DaemonClient::open(&self.address, &self.words).await
    }

    /// Prints a listing; a terminal that is too narrow gets a narrower one.
    pub(crate) fn put_table(&self, header: &[&str], rows: &[Vec<String>]) -> Result<(), CommandFailure> {
        put(&match self.words.columns() {
            Some(columns) => fitted(header, rows, columns, self.words.status_colours()),
            None => table(header, rows),
        })
    }

    /// What Ctrl-C says from now on.
    fn set_interrupt_note(&self, line: String) {
        self.on_interrupt.borrow_mut().say = Some(line);
    }

    /// Clears the note that Ctrl-C would print.
    fn forget_interrupt(&self) {
        self.on_interrupt.borrow_mut().say = None;
    }

    /// Whether an agent is still there after the command.
    pub(crate) fn keeps_agents(&self) -> bool {
        self.on_interrupt.borrow().remove.is_none()
    }

    /// The exec that Ctrl-C cancels from now on.
    fn cancel_exec_on_interrupt(&self, exec: &str) {
        self.on_interrupt.borrow_mut().cancel = Some(exec.to_owned());
    }

    /// The agent that Ctrl-C removes from now on.
    fn remove_on_interrupt(&self, agent: &str) {
        self.on_interrupt.borrow_mut().remove = Some(agent.to_owned());
    }
}

pub(crate) async fn dispatch(context: &CommandContext, command: CliCommand) -> Result<(), CommandFailure> {
    match command {
        CliCommand::Run(args) => run::run(context, args).await,
        CliCommand::Code(args) => code::code(context, args).await,
        CliCommand::Init(args) => init::init(context, args).await,
        CliCommand::Ps(args) | CliCommand::Agent { command: AgentCommand::Ls(args) } => {
            agents::list(context, args).await
        }
        CliCommand::OfAgents(verb) | CliCommand::Agent { command: AgentCommand::Verb(verb) } => {
            dispatch_agents(context, verb).await
        }
        CliCommand::Prompt(args) => prompt::prompt(context, args).await,
        CliCommand::Chat(args) => crate::chat::chat(context, args).await,
        CliCommand::Turn { command } => turns::turn(context, command).await,
        CliCommand::Session { command } => sessions::session(context, command).await,
        CliCommand::Jobs { command } => jobs::jobs(context, command).await,
        CliCommand::Sandbox { command } => sandboxes::sandbox(context, command).await,
        CliCommand::Exec { command } => execs::exec(context, command).await,
        CliCommand::Lineage { command } => lineages::lineage(context, command).await,
        CliCommand::Image { command } => images::image(context, command).await,
        CliCommand::Bin { command } => bins::bin(context, command).await,
        CliCommand::Provider { command } => providers::provider(context, command).await,
        CliCommand::Token { command } => tokens::token(context, command).await,
        CliCommand::Quarantine { command } => quarantine::quarantine(context, command).await,
        CliCommand::Info => daemon::info(context).await,
        CliCommand::Events(args) => events::events(context, args).await,
        CliCommand::Shutdown { agents } => daemon::shutdown(context, agents).await,
        CliCommand::Reap => daemon::reap(context).await,
        CliCommand::Reload => daemon::reload(context).await,
        CliCommand::Completions { shell } => completions(shell),
        CliCommand::CompleteNames { kind } => completion::names(context, kind).await,
        CliCommand::Selftest(args) => selftest(&context.words, args).await,
    }
}

async fn dispatch_agents(context: &CommandContext, verb: AgentVerb) -> Result<(), CommandFailure> {
    match verb {
        AgentVerb::Inspect(refs) => agents::inspect(context, refs).await,
        AgentVerb::Start(refs) => agents::each(context, refs, agents::AgentAction::Start).await,
        AgentVerb::Stop(args) => {
            agents::each(context, args.refs, agents::AgentAction::Stop { jobs: args.jobs }).await
        }
        AgentVerb::Restart(args) => {
            agents::each(context, args.refs, agents::AgentAction::Restart { jobs: args.jobs }).await
        }
        AgentVerb::Update(args) => update::update(context, args).await,
        AgentVerb::Kill(refs) => agents::each(context, refs, agents::AgentAction::Kill).await,
        AgentVerb::Rm(args) => {
            agents::each(context, args.refs, agents::AgentAction::Remove { force: args.force }).await
        }
        AgentVerb::Logs(args) => logs::logs(context, args).await,
    }
}

/// The last words after Ctrl-C. A second one ends the clearing up.
pub(crate) async fn interrupted(context: &CommandContext) -> CommandFailure {
    let InterruptNote { say, remove, cancel } = context.on_interrupt.take();
    if let Some(exec) = cancel {
        context.words.print_note(&format!("interrupted; cancelling {exec}"));
        tokio::select! {
            cancelled = cancel_exec(context, exec) => {
                if let Err(CommandFailure::Told(report)) = cancelled {
                    crate::render::error(&report);
                }
            }
            _ = tokio::signal::ctrl_c() => {}
        }
        return CommandFailure::Silent(CommandExit::Interrupted);
    }
    match remove {
        Some(agent) => {
            context.words.print_note(&format!("interrupted; removing {agent}"));
            tokio::select! {
                removed = remove_agent(context, &agent) => {
                    if let Err(CommandFailure::Told(report)) = removed {
                        crate::render::error(&report);
                    }
                }
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        None => context.words.print_message(say.as_deref().unwrap_or("interrupted")),
    }
    CommandFailure::Silent(CommandExit::Interrupted)
}

async fn cancel_exec(context: &CommandContext, exec: String) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    execs::cancel_one(context, &mut daemon, exec).await.map(drop)
}

async fn remove_agent(context: &CommandContext, agent: &str) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let params = AgentRemoveParams { agent: agent.to_owned(), force: true, request_id: Some(request_id()?) };
    daemon.call::<RemoveAgent>(params).await.map(drop)
}

/// A fresh id for one change, so that sending it again is still one change.
pub(crate) fn request_id() -> Result<String, CommandFailure> {
    let bytes = lodge_proto::random_bytes::<16>()
        .map_err(|cause| CommandFailure::refused("could not read /dev/urandom").because(cause))?;
    Ok(lodge_proto::hex::encode(&bytes))
}

fn map(pairs: Vec<(String, String)>) -> BTreeMap<String, String> {
    pairs.into_iter().collect()
}

/// Whether a user can be asked.
fn can_ask(words: &Words) -> bool {
    words.watched() && !words.json && std::io::stdin().is_terminal()
}

/// A line of input; none at the end. On its own thread, so that Ctrl-C works.
async fn read_line() -> Result<Option<String>, CommandFailure> {
    let could_not = |cause: String| CommandFailure::refused("could not read your answer").because(cause);
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|read| (read > 0).then_some(line))
    });
    read.await.map_err(|cause| could_not(cause.to_string()))?.map_err(|cause| could_not(cause.to_string()))
}
