//! `chat`: an interactive conversation.
//!
//! Owns: when input is read and when a turn runs. Never: how an answer is shown (see `answer`), or keys and lines
//! (see `keys`, `editor`).

mod editor;
mod jobs;
mod keys;
mod meanwhile;
mod rejoin;
mod slash;
mod terminal;

use std::collections::VecDeque;

use lodge_proto::{
    AgentRef, AgentView, GetAgent, GetSession, GetTurn, InterruptTurn, ListMessages, SessionMessagesParams,
    SessionRef, TurnInterruptParams, TurnRef, TurnView, error_code,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::editor::{Editor, EditorOutcome};
use self::keys::Key;
use self::meanwhile::{InputDuringTurn, apply_key_during_turn};
use self::slash::ChatLine;
use self::terminal::Terminal;
use crate::answer::{self, PromptedAgent, ShownSteps, TurnEnding};
use crate::args::{ChatArgs, ConversationArgs};
use crate::commands::prompt::{PromptText, send};
use crate::commands::sessions_change::generated_id;
use crate::commands::{CommandContext, request_id};
use crate::failure::{CommandExit, CommandFailure};
use crate::follow::{DaemonClient, FollowScope};
use crate::render;
use crate::words::put;

/// How much of an earlier conversation is shown when it is taken up again.
const RECALLED_MESSAGES: u32 = 6;
/// Lines of a pipe that wait for their turn.
const LINES_MAX: usize = 16;
/// Lines that were typed during a turn and wait for its end.
const QUEUED_MAX: usize = 16;
const BEGINS: &str = "your next line starts a new session";

pub(crate) async fn chat(context: &CommandContext, args: ChatArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let given = AgentRef { agent: args.agent, request_id: None };
    let agent = daemon.call::<GetAgent>(given).await?.agent;
    let session = match args.session {
        Some(session) => Some(generated_id(&mut daemon, session).await?),
        None => None,
    };
    let mut chat = Chat {
        context,
        agent: PromptedAgent {
            id: agent.id.clone(),
            name: agent.name.clone(),
            stays: context.keeps_agents(),
        },
        session,
        queued: VecDeque::new(),
        in_flight: None,
        all_went_well: true,
    };
    drop(daemon);
    // With JSON, input is read line by line: the terminal keeps its mode.
    let terminal = if context.words.json { None } else { Terminal::open() };
    match terminal {
        Some(terminal) => {
            chat.print_greeting(&agent).await?;
            chat.at_terminal(terminal).await
        }
        None => chat.run_piped().await,
    }
}

/// Where a line came from.
enum ChatInput<'t> {
    /// Keys that are pressed while it is answered are looked at, too.
    Keys(&'t mut Terminal, &'t mut Editor),
    Whole,
}

/// When a turn that is shown began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnBegin {
    Now,
    /// Before the chat joined it.
    Earlier,
}

/// Whether the conversation continues.
#[derive(Debug, PartialEq, Eq)]
enum ChatNext {
    GoOn,
    Leave,
    /// While a turn runs.
    LeaveTurn,
}

struct Chat<'a> {
    context: &'a CommandContext,
    agent: PromptedAgent,
    /// None until the first turn of a new one has been sent.
    session: Option<String>,
    /// At most `QUEUED_MAX`, in the order they were typed.
    queued: VecDeque<String>,
    /// The turn of the session that was in flight when its history was shown.
    in_flight: Option<String>,
    all_went_well: bool,
}

impl Chat<'_> {
    async fn print_greeting(&mut self, agent: &AgentView) -> Result<(), CommandFailure> {
        let (name, model, words) = (&agent.name, &agent.model, &self.context.words);
        words.print_dimmed_note(&format!(
            "{name} · {model} · /help lists commands, Esc interrupts, Ctrl-D leaves"
        ));
        if matches!(agent.status.as_str(), "stopped" | "failed") {
            words.print_message(&format!(
                "{name} is not running ({}): `lodge start {name}` starts it",
                agent.status
            ));
            let why = render::why_failed(agent.failure_reason.as_deref(), agent.failure_detail.as_deref());
            if let Some(why) = why {
                words.print_message(&format!("  because: {}", render::one_line(&why)));
            }
            if let Some(at) = &agent.retry_at {
                words.print_message(&format!("  it is tried again at {at}, and answers when it is ready"));
            }
        }
        match self.session.clone() {
            Some(session) => self.show_history(&session).await,
            None => Ok(()),
        }
    }

    /// Shows the end of a conversation that is taken up again. One that does not exist yet is begun by the first line.
    async fn show_history(&mut self, session: &str) -> Result<(), CommandFailure> {
        let words = &self.context.words;
        let mut daemon = self.context.daemon().await?;
        let given = SessionRef { session: session.to_owned() };
        let view = match daemon.call::<GetSession>(given).await {
            Ok(detail) => detail.session,
            Err(failure) if failure.is(error_code!("session.not_found")) => {
                words.print_dimmed_note(&format!("session {session} starts with your first line"));
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        if view.agent != self.agent.id {
            let owner = &view.agent_name;
            let what = format!("session `{session}` belongs to the agent `{owner}`");
            return Err(CommandFailure::refused(what).hint(format!(
                "`lodge chat {owner} -s {session}` continues it; `lodge session ls --agent {name}` lists the sessions \
                 of {name}",
                name = self.agent.name
            )));
        }
        let params = SessionMessagesParams {
            session: session.to_owned(),
            limit: Some(RECALLED_MESSAGES),
            ..SessionMessagesParams::default()
        };
        let messages = daemon.call::<ListMessages>(params).await?;
        let turns = render::counted(usize::try_from(view.turns).unwrap_or(usize::MAX), "turn");
        words.print_dimmed_note(&format!("session {session}, {turns} so far"));
        self.in_flight = view.running.or_else(|| view.queued.first().cloned());
        for message in &messages.messages {
            // What a turn in flight said is shown when it is joined.
            if message.role != "user" && Some(&message.turn) == self.in_flight.as_ref() {
                continue;
            }
            let text = message.text.trim_end();
            match message.role.as_str() {
                "user" => put(&format!("{} {}\n", words.bold("›"), text))?,
                "assistant" if !text.is_empty() => put(&format!("{}\n", text))?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn at_terminal(&mut self, mut terminal: Terminal) -> Result<(), CommandFailure> {
        let mut editor = Editor::default();
        let (sender, mut ended) = mpsc::channel(jobs::ENDS_MAX);
        let (context, agent) = (self.context, self.agent.id.clone());
        // Checked while a line is typed; jobs that end during a turn are reported after it.
        let watching = jobs::ends(context, &agent, sender.clone());
        tokio::pin!(watching);
        let mut is_watched = true;
        let mut continued = signal(SignalKind::from_raw(libc::SIGCONT))
            .map_err(|cause| CommandFailure::refused("could not listen for signals").because(cause))?;
        let mut resized = signal(SignalKind::window_change())
            .map_err(|cause| CommandFailure::refused("could not listen for signals").because(cause))?;
        if let left @ (ChatNext::Leave | ChatNext::LeaveTurn) = self.join(&mut terminal, &mut editor).await? {
            self.print_farewell(&left);
            return Ok(());
        }
        loop {
            terminal.draw(&editor);
            let key = tokio::select! {
                key = terminal.key() => key,
                () = &mut watching, if is_watched => {
                    is_watched = false;
                    continue;
                }
                Some(job) = ended.recv() => {
                    if job.session.is_some() && job.session == self.session {
                        terminal.erase();
                        self.context.words.print_dimmed_note(&jobs::line(&job));
                    }
                    continue;
                }
                _ = continued.recv() => {
                    terminal.enter();
                    continue;
                }
                _ = resized.recv() => continue,
            };
            // The terminal is gone, as after a hang-up.
            let Some(key) = key else { return Ok(()) };
            if key == Key::Enter {
                terminal.leave_line(&editor.text());
            }
            match editor.apply_key(key) {
                EditorOutcome::Edited => {}
                EditorOutcome::ClearScreen => terminal.clear(),
                EditorOutcome::Cancelled => {
                    terminal.erase();
                    self.context.words.print_dimmed_note("Ctrl-D or /quit leaves");
                }
                EditorOutcome::Ended => {
                    terminal.erase();
                    self.print_goodbye();
                    return Ok(());
                }
                EditorOutcome::Sent(line) => match self.lines(line, &mut terminal, &mut editor).await? {
                    ChatNext::GoOn if is_watched => {}
                    // There is a daemon again, if there was none.
                    ChatNext::GoOn => {
                        watching.set(jobs::ends(context, &agent, sender.clone()));
                        is_watched = true;
                    }
                    left @ (ChatNext::Leave | ChatNext::LeaveTurn) => {
                        self.print_farewell(&left);
                        return Ok(());
                    }
                },
            }
        }
    }

    /// A line, and those that were typed while it was answered.
    async fn lines(
        &mut self,
        line: String,
        terminal: &mut Terminal,
        editor: &mut Editor,
    ) -> Result<ChatNext, CommandFailure> {
        let mut next = Some(line);
        while let Some(line) = next {
            match self.line(&line, ChatInput::Keys(terminal, editor)).await? {
                ChatNext::GoOn => {}
                left @ (ChatNext::Leave | ChatNext::LeaveTurn) => return Ok(left),
            }
            // The line may have changed to a session with a turn in flight.
            match self.follow_in_flight(terminal, editor).await? {
                ChatNext::GoOn => {}
                left @ (ChatNext::Leave | ChatNext::LeaveTurn) => return Ok(left),
            }
            next = self.queued.pop_front();
            if let Some(line) = &next {
                terminal.leave_line(line);
            }
        }
        Ok(ChatNext::GoOn)
    }

    /// One turn a line.
    async fn run_piped(&mut self) -> Result<(), CommandFailure> {
        let (sender, mut lines) = mpsc::channel(LINES_MAX);
        // A thread, because reading a pipe cannot be called off. It ends with the program.
        std::thread::spawn(move || {
            for line in std::io::stdin().lines() {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        while let Some(line) = lines.recv().await {
            let line =
                line.map_err(|cause| CommandFailure::refused("could not read stdin").because(cause))?;
            match self.line(&line, ChatInput::Whole).await? {
                ChatNext::GoOn => {}
                ChatNext::Leave | ChatNext::LeaveTurn => break,
            }
        }
        if self.all_went_well { Ok(()) } else { Err(CommandFailure::Silent(CommandExit::Refused)) }
    }

    fn print_farewell(&self, left: &ChatNext) {
        match left {
            ChatNext::GoOn => {}
            ChatNext::Leave => self.print_goodbye(),
            ChatNext::LeaveTurn => self.print_detached(),
        }
    }

    fn print_goodbye(&self) {
        if let (Some(session), true) = (&self.session, self.agent.stays) {
            let name = &self.agent.name;
            self.context.words.print_note(&format!("to continue: lodge chat {name} -s {session}"));
        }
    }

    /// The message for a user who detaches from a running turn.
    fn print_detached(&self) {
        let words = &self.context.words;
        if !self.queued.is_empty() {
            words.print_note(&format!("not sent: {}", render::counted(self.queued.len(), "queued line")));
        }
        if let (Some(session), true) = (&self.session, self.agent.stays) {
            words.print_note(&format!(
                "the turn is still running: lodge chat {} -s {session}",
                self.agent.name
            ));
        }
    }

    async fn line(&mut self, line: &str, typed: ChatInput<'_>) -> Result<ChatNext, CommandFailure> {
        let ended = match slash::read(line) {
            ChatLine::Nothing => Ok(ChatNext::GoOn),
            ChatLine::Text(text) => self.turn(text, typed).await,
            ChatLine::Command(command) => match (&command, typed) {
                (slash::SlashCommand::Clear, ChatInput::Keys(terminal, _)) => {
                    terminal.clear();
                    return Ok(ChatNext::GoOn);
                }
                (slash::SlashCommand::Retry, typed) => self.retry(typed).await,
                (_, _) => self.command(command).await,
            },
        };
        match ended {
            Err(failure) => self.refused(failure).map(|()| ChatNext::GoOn),
            ended => ended,
        }
    }

    /// Shows a refusal, after which the conversation continues. Any other failure ends it.
    fn refused(&mut self, failure: CommandFailure) -> Result<(), CommandFailure> {
        match failure {
            CommandFailure::Told(report) if report.exit == CommandExit::Refused => {
                self.all_went_well = false;
                self.context.words.end_line()?;
                render::error(&report);
                Ok(())
            }
            failure => Err(failure),
        }
    }

    /// Sends a turn and shows it, while keys can interrupt it or leave it.
    async fn turn(&mut self, text: &str, typed: ChatInput<'_>) -> Result<ChatNext, CommandFailure> {
        let mut daemon = self.context.daemon().await?;
        daemon.watch(FollowScope::Agent(self.agent.id.clone()), None).await?;
        let voice = ConversationArgs { session: self.session.clone(), sender: None };
        let turn = send(&mut daemon, &self.agent.id, voice, PromptText::plain(text)).await?;
        self.session = Some(turn.session.clone());
        self.show_turn(&mut daemon, turn, typed, TurnBegin::Now).await
    }

    /// Shows a turn, while keys can interrupt it or leave it.
    async fn show_turn(
        &mut self,
        daemon: &mut DaemonClient<'_>,
        turn: TurnView,
        typed: ChatInput<'_>,
        begin: TurnBegin,
    ) -> Result<ChatNext, CommandFailure> {
        let words = &self.context.words;
        let mut interrupted = false;
        let ending = {
            let agent = &self.agent;
            let follow = async {
                match begin {
                    TurnBegin::Now => answer::follow(daemon, agent, &turn, words, ShownSteps::All).await,
                    TurnBegin::Earlier => answer::rejoin(daemon, agent, &turn, words, ShownSteps::All).await,
                }
            };
            match typed {
                ChatInput::Whole => follow.await?,
                ChatInput::Keys(terminal, editor) => {
                    tokio::pin!(follow);
                    loop {
                        tokio::select! {
                            ending = &mut follow => break ending?,
                            Some(key) = terminal.key() => match apply_key_during_turn(key, editor, &mut self.queued, words) {
                                InputDuringTurn::Interrupt if !interrupted => {
                                    interrupted = true;
                                    words.print_dimmed_note("interrupting");
                                    interrupt(self.context, &turn).await?;
                                }
                                InputDuringTurn::Interrupt | InputDuringTurn::Typed => {}
                                InputDuringTurn::Look(look) => {
                                    words.end_line()?;
                                    self.all_went_well &= look.at(self.context, &turn.session).await?;
                                }
                                InputDuringTurn::Leave => {
                                    words.end_line()?;
                                    return Ok(ChatNext::LeaveTurn);
                                }
                            },
                        }
                    }
                }
            }
        };
        if words.json {
            let turn = daemon.call::<GetTurn>(TurnRef { turn: turn.id }).await?;
            words.json_line(&turn)?;
        }
        match ending {
            TurnEnding::Done => Ok(ChatNext::GoOn),
            TurnEnding::Broken(_) if interrupted => {
                words.print_dimmed_note("[interrupted] /retry continues it");
                Ok(ChatNext::GoOn)
            }
            TurnEnding::Broken(failure) => Err(failure),
        }
    }

    async fn command(&mut self, command: slash::SlashCommand) -> Result<ChatNext, CommandFailure> {
        let words = &self.context.words;
        match command {
            slash::SlashCommand::Help => words.print_message(&slash::help()),
            slash::SlashCommand::Quit => return Ok(ChatNext::Leave),
            // Both need the keys: see `line`.
            slash::SlashCommand::Clear | slash::SlashCommand::Retry => {}
            slash::SlashCommand::Session(None) => match &self.session {
                Some(session) => words.print_message(session),
                None => words.print_message(BEGINS),
            },
            slash::SlashCommand::Session(Some(name)) if name == "new" => {
                self.session = None;
                words.print_dimmed_note(BEGINS);
            }
            slash::SlashCommand::Session(Some(session)) => match self.show_history(&session).await {
                Ok(()) => self.session = Some(session),
                Err(failure) => self.report_unknown_session(failure)?,
            },
            slash::SlashCommand::NoSession(given) => {
                let failure =
                    CommandFailure::refused(format!("`{given}` cannot be a session: an id is one word"));
                self.report_unknown_session(failure.hint("`/sessions` lists this agent's sessions"))?;
            }
            slash::SlashCommand::Sessions => {
                let mut daemon = self.context.daemon().await?;
                slash::sessions(self.context, &mut daemon, &self.agent.id).await?;
            }
            slash::SlashCommand::Jobs(status) => {
                jobs::list(self.context, self.session.as_deref(), status).await?
            }
            slash::SlashCommand::Job(id) => jobs::show(self.context, self.session.as_deref(), &id).await?,
            slash::SlashCommand::Cancel(id) => {
                jobs::cancel(self.context, self.session.as_deref(), &id).await?
            }
            slash::SlashCommand::Lacking(form) => words.print_message(&format!("write it as `{form}`")),
            slash::SlashCommand::Unknown(word) => {
                words.print_message(&format!(
                    "there is no command `/{word}`; /help lists commands, //{word} sends it to the agent"
                ));
            }
        }
        Ok(ChatNext::GoOn)
    }

    /// After a session that one cannot go to: why, and where one is.
    fn report_unknown_session(&mut self, failure: CommandFailure) -> Result<(), CommandFailure> {
        self.refused(failure)?;
        match &self.session {
            Some(session) => self.context.words.print_note(&format!("still in session {session}")),
            None => self.context.words.print_note(BEGINS),
        }
        Ok(())
    }
}

/// On a connection of its own: the one that follows the turn is busy with it.
async fn interrupt(context: &CommandContext, turn: &TurnView) -> Result<(), CommandFailure> {
    let mut daemon: DaemonClient<'_> = context.daemon().await?;
    let params = TurnInterruptParams { turn: turn.id.clone(), request_id: Some(request_id()?) };
    match daemon.call::<InterruptTurn>(params).await {
        Ok(_) => Ok(()),
        // The turn had ended already.
        Err(failure) if failure.exit() == CommandExit::Refused => Ok(()),
        Err(failure) => Err(failure),
    }
}
