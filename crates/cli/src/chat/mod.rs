//! `chat`: a conversation, line by line.
//!
//! Owns: whose turn it is to speak. Never: how an answer is shown (see `answer`), or keys and lines (see `keys`, `editor`).

mod editor;
mod jobs;
mod keys;
mod meanwhile;
mod slash;
mod terminal;

use std::collections::VecDeque;

use lodge_proto::{
    AgentRef, AgentView, GetAgent, GetSession, GetTurn, InterruptTurn, ListMessages, SessionMessagesParams,
    SessionRef, TurnInterruptParams, TurnRef, TurnView,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::editor::{Editor, Outcome};
use self::keys::Key;
use self::meanwhile::{Meanwhile, meanwhile};
use self::slash::Slash;
use self::terminal::Terminal;
use crate::answer::{self, Asked, Ending, Show};
use crate::args::{ChatArgs, Voice};
use crate::commands::prompt::{Question, send};
use crate::commands::{Context, request_id};
use crate::failure::{Exit, Failure};
use crate::follow::{Daemon, Scope};
use crate::render;
use crate::words::put;

/// How much of an earlier conversation is shown when it is taken up again.
const RECALLED_MESSAGES: u32 = 6;
/// Lines of a pipe that wait for their turn.
const LINES_MAX: usize = 16;
/// Lines that were typed during a turn and wait for its end.
const QUEUED_MAX: usize = 16;
const BEGINS: &str = "a new session begins with your next line";

pub(crate) async fn chat(context: &Context, args: ChatArgs) -> Result<(), Failure> {
    let mut daemon = context.daemon().await?;
    let given = AgentRef { agent: args.agent, request_id: None };
    let agent = daemon.call::<GetAgent>(given).await?.agent;
    let mut chat = Chat {
        context,
        agent: Asked { id: agent.id.clone(), name: agent.name.clone(), stays: context.keeps_agents() },
        session: args.session,
        queued: VecDeque::new(),
        all_went_well: true,
    };
    drop(daemon);
    // Whoever wants JSON types whole lines: the terminal stays as it is, and its keys are not taken.
    let terminal = if context.words.json { None } else { Terminal::open() };
    match terminal {
        Some(terminal) => {
            chat.greet(&agent).await?;
            chat.at_terminal(terminal).await
        }
        None => chat.over_pipe().await,
    }
}

/// Where a line came from.
enum Typed<'t> {
    /// Keys that are pressed while it is answered are looked at, too.
    Keys(&'t mut Terminal, &'t mut Editor),
    Whole,
}

/// Whether the conversation goes on.
#[derive(Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    Leave,
    /// While a turn runs.
    LeaveTurn,
}

struct Chat<'a> {
    context: &'a Context,
    agent: Asked,
    /// None until the first turn of a new one has been sent.
    session: Option<String>,
    /// At most `QUEUED_MAX`, in the order they were typed.
    queued: VecDeque<String>,
    all_went_well: bool,
}

impl Chat<'_> {
    async fn greet(&mut self, agent: &AgentView) -> Result<(), Failure> {
        let (name, model, words) = (&agent.name, &agent.model, &self.context.words);
        words.murmur(&format!("{name} · {model} · /help lists commands, Esc interrupts, Ctrl-D leaves"));
        if matches!(agent.status.as_str(), "stopped" | "failed") {
            words.tell(&format!("{name} does not run ({}): `lodge start {name}` starts it", agent.status));
        }
        match self.session.clone() {
            Some(session) => self.recall(&session).await,
            None => Ok(()),
        }
    }

    /// Shows the end of a conversation that is taken up again. One that does not exist yet is begun by the first line.
    async fn recall(&mut self, session: &str) -> Result<(), Failure> {
        let words = &self.context.words;
        let mut daemon = self.context.daemon().await?;
        let given = SessionRef { session: session.to_owned() };
        let view = match daemon.call::<GetSession>(given).await {
            Ok(detail) => detail.session,
            Err(failure) if failure.is("session.not_found") => {
                words.murmur(&format!("session {session} begins with your first line"));
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        if view.agent != self.agent.id {
            return Err(Failure::refused(format!("session `{session}` belongs to another agent"))
                .hint(format!("`lodge session ls --agent {}` lists its own", self.agent.name)));
        }
        let params = SessionMessagesParams {
            session: session.to_owned(),
            limit: Some(RECALLED_MESSAGES),
            ..SessionMessagesParams::default()
        };
        let messages = daemon.call::<ListMessages>(params).await?;
        let turns = render::counted(usize::try_from(view.turns).unwrap_or(usize::MAX), "turn");
        words.murmur(&format!("session {session}, {turns} so far"));
        for message in &messages.messages {
            let text = message.text.trim_end();
            match message.role.as_str() {
                "user" => put(&format!("{} {}\n", words.bold("›"), text))?,
                "assistant" if !text.is_empty() => put(&format!("{}\n", text))?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn at_terminal(&mut self, mut terminal: Terminal) -> Result<(), Failure> {
        let mut editor = Editor::default();
        let (sender, mut ended) = mpsc::channel(jobs::ENDS_MAX);
        let (context, agent) = (self.context, self.agent.id.clone());
        // Looked at while a line is typed; what ends during a turn is told behind it.
        let watching = jobs::ends(context, &agent, sender.clone());
        tokio::pin!(watching);
        let mut is_watched = true;
        let mut continued = signal(SignalKind::from_raw(libc::SIGCONT))
            .map_err(|cause| Failure::refused("could not listen for signals").because(cause))?;
        let mut resized = signal(SignalKind::window_change())
            .map_err(|cause| Failure::refused("could not listen for signals").because(cause))?;
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
                        self.context.words.murmur(&jobs::line(&job));
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
            match editor.press(key) {
                Outcome::Edited => {}
                Outcome::ClearScreen => terminal.clear(),
                Outcome::Cancelled => {
                    terminal.erase();
                    self.context.words.murmur("Ctrl-D or /quit leaves");
                }
                Outcome::Ended => {
                    terminal.erase();
                    self.farewell();
                    return Ok(());
                }
                Outcome::Sent(line) => match self.lines(line, &mut terminal, &mut editor).await? {
                    Then::GoOn if is_watched => {}
                    // There is a daemon again, if there was none.
                    Then::GoOn => {
                        watching.set(jobs::ends(context, &agent, sender.clone()));
                        is_watched = true;
                    }
                    Then::Leave => {
                        self.farewell();
                        return Ok(());
                    }
                    Then::LeaveTurn => {
                        self.leave_turn();
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
    ) -> Result<Then, Failure> {
        let mut next = Some(line);
        while let Some(line) = next {
            match self.line(&line, Typed::Keys(terminal, editor)).await? {
                Then::GoOn => {}
                left @ (Then::Leave | Then::LeaveTurn) => return Ok(left),
            }
            next = self.queued.pop_front();
            if let Some(line) = &next {
                terminal.leave_line(line);
            }
        }
        Ok(Then::GoOn)
    }

    /// One turn a line.
    async fn over_pipe(&mut self) -> Result<(), Failure> {
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
            let line = line.map_err(|cause| Failure::refused("could not read stdin").because(cause))?;
            match self.line(&line, Typed::Whole).await? {
                Then::GoOn => {}
                Then::Leave | Then::LeaveTurn => break,
            }
        }
        if self.all_went_well { Ok(()) } else { Err(Failure::Silent(Exit::Refused)) }
    }

    fn farewell(&self) {
        if let (Some(session), true) = (&self.session, self.agent.stays) {
            let name = &self.agent.name;
            self.context.words.say(&format!("go on with: lodge chat {name} -s {session}"));
        }
    }

    /// The last words of somebody who does not wait for the answer.
    fn leave_turn(&self) {
        let words = &self.context.words;
        if !self.queued.is_empty() {
            words.say(&format!("not sent: {}", render::counted(self.queued.len(), "queued line")));
        }
        if let (Some(session), true) = (&self.session, self.agent.stays) {
            words.say(&format!("the turn goes on: lodge chat {} -s {session}", self.agent.name));
        }
    }

    async fn line(&mut self, line: &str, typed: Typed<'_>) -> Result<Then, Failure> {
        let ended = match slash::read(line) {
            Slash::Nothing => Ok(Then::GoOn),
            Slash::Text(text) => self.turn(text, typed).await,
            Slash::Command(command) => {
                if let (slash::Command::Clear, Typed::Keys(terminal, _)) = (&command, typed) {
                    terminal.clear();
                    return Ok(Then::GoOn);
                }
                self.command(command).await
            }
        };
        match ended {
            Err(failure) => self.refused(failure).map(|()| Then::GoOn),
            ended => ended,
        }
    }

    /// Tells of a refusal, after which the conversation goes on; anything else ends it.
    fn refused(&mut self, failure: Failure) -> Result<(), Failure> {
        match failure {
            Failure::Told(report) if report.exit == Exit::Refused => {
                self.all_went_well = false;
                self.context.words.end_line()?;
                render::error(&report);
                Ok(())
            }
            failure => Err(failure),
        }
    }

    /// Sends a turn and shows it, while keys can interrupt it or leave it.
    async fn turn(&mut self, text: &str, typed: Typed<'_>) -> Result<Then, Failure> {
        let mut daemon = self.context.daemon().await?;
        daemon.watch(Scope::Agent(self.agent.id.clone()), None).await?;
        let voice = Voice { session: self.session.clone(), sender: None };
        let turn = send(&mut daemon, &self.agent.id, voice, Question::plain(text)).await?;
        self.session = Some(turn.session.clone());
        let words = &self.context.words;
        let mut interrupted = false;
        let ending = {
            let follow = answer::follow(&mut daemon, &self.agent, &turn, words, Show::All);
            match typed {
                Typed::Whole => follow.await?,
                Typed::Keys(terminal, editor) => {
                    tokio::pin!(follow);
                    loop {
                        tokio::select! {
                            ending = &mut follow => break ending?,
                            Some(key) = terminal.key() => match meanwhile(key, editor, &mut self.queued, words) {
                                Meanwhile::Interrupt if !interrupted => {
                                    interrupted = true;
                                    words.murmur("interrupting");
                                    interrupt(self.context, &turn).await?;
                                }
                                Meanwhile::Interrupt | Meanwhile::Typed => {}
                                Meanwhile::Look(look) => {
                                    words.end_line()?;
                                    self.all_went_well &= look.at(self.context, &turn.session).await?;
                                }
                                Meanwhile::Leave => {
                                    words.end_line()?;
                                    return Ok(Then::LeaveTurn);
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
            Ending::Done => Ok(Then::GoOn),
            Ending::Broken(_) if interrupted => {
                words.murmur("[interrupted]");
                Ok(Then::GoOn)
            }
            Ending::Broken(failure) => Err(failure),
        }
    }

    async fn command(&mut self, command: slash::Command) -> Result<Then, Failure> {
        let words = &self.context.words;
        match command {
            slash::Command::Help => words.tell(&slash::help()),
            slash::Command::Quit => return Ok(Then::Leave),
            slash::Command::Clear => {}
            slash::Command::Session(None) => match &self.session {
                Some(session) => words.tell(session),
                None => words.tell(BEGINS),
            },
            slash::Command::Session(Some(name)) if name == "new" => {
                self.session = None;
                words.murmur(BEGINS);
            }
            slash::Command::Session(Some(session)) => match self.recall(&session).await {
                Ok(()) => self.session = Some(session),
                Err(failure) => self.stay(failure)?,
            },
            slash::Command::NoSession(given) => {
                let failure = Failure::refused(format!("`{given}` cannot be a session: an id is one word"));
                self.stay(failure.hint("`/sessions` lists this agent's sessions"))?;
            }
            slash::Command::Sessions => {
                let mut daemon = self.context.daemon().await?;
                slash::sessions(self.context, &mut daemon, &self.agent.id).await?;
            }
            slash::Command::Jobs(status) => jobs::list(self.context, self.session.as_deref(), status).await?,
            slash::Command::Job(id) => jobs::show(self.context, self.session.as_deref(), &id).await?,
            slash::Command::Cancel(id) => jobs::cancel(self.context, self.session.as_deref(), &id).await?,
            slash::Command::Lacking(form) => words.tell(&format!("write it as `{form}`")),
            slash::Command::Unknown(word) => {
                words.tell(&format!(
                    "there is no command `/{word}`; /help lists them, //{word} says it to the agent"
                ));
            }
        }
        Ok(Then::GoOn)
    }

    /// After a session that one cannot go to: why, and where one is.
    fn stay(&mut self, failure: Failure) -> Result<(), Failure> {
        self.refused(failure)?;
        match &self.session {
            Some(session) => self.context.words.say(&format!("this is still session {session}")),
            None => self.context.words.say(BEGINS),
        }
        Ok(())
    }
}

/// On a connection of its own: the one that follows the turn is busy with it.
async fn interrupt(context: &Context, turn: &TurnView) -> Result<(), Failure> {
    let mut daemon: Daemon<'_> = context.daemon().await?;
    let params = TurnInterruptParams { turn: turn.id.clone(), request_id: Some(request_id()?) };
    match daemon.call::<InterruptTurn>(params).await {
        Ok(_) => Ok(()),
        // It was over before we said so.
        Err(failure) if failure.exit() == Exit::Refused => Ok(()),
        Err(failure) => Err(failure),
    }
}
