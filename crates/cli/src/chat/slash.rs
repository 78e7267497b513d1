//! What a line of a chat means, and the commands that look around.

use lodge_proto::{ListSessions, SessionListParams, SessionView};

use crate::commands::Context;
use crate::failure::Failure;
use crate::follow::Daemon;
use crate::render::{ago, now_s, or_dash};

/// How many sessions are listed.
const SESSIONS_SHOWN: u32 = 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slash<'a> {
    Nothing,
    /// For the agent.
    Text(&'a str),
    Command(Command),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Quit,
    Clear,
    /// Shows the session, or goes to another.
    Session(Option<String>),
    /// More words than a session has.
    NoSession(String),
    Sessions,
    /// Of this session, perhaps only with one status.
    Jobs(Option<String>),
    Job(String),
    Cancel(String),
    /// Needs one word behind it, as this says.
    Lacking(&'static str),
    Unknown(String),
}

/// A line that begins with `/` is a command; with `//` it is text that begins with one.
pub(super) fn read(line: &str) -> Slash<'_> {
    let trimmed = line.trim();
    let Some(rest) = trimmed.strip_prefix('/') else {
        return if trimmed.is_empty() { Slash::Nothing } else { Slash::Text(line) };
    };
    if rest.starts_with('/') {
        return Slash::Text(rest);
    }
    let mut words = rest.split_whitespace();
    let name = words.next().unwrap_or("");
    let arguments: Vec<&str> = words.collect();
    Slash::Command(match name {
        "help" | "h" | "?" => Command::Help,
        "quit" | "q" | "exit" => Command::Quit,
        "clear" => Command::Clear,
        "session" => match arguments.as_slice() {
            [] => Command::Session(None),
            [session] => Command::Session(Some((*session).to_owned())),
            [..] => Command::NoSession(arguments.join(" ")),
        },
        "sessions" => Command::Sessions,
        "jobs" => match arguments.as_slice() {
            [] => Command::Jobs(None),
            [status] => Command::Jobs(Some((*status).to_owned())),
            [..] => Command::Lacking("/jobs [STATUS]"),
        },
        "job" => one_word(&arguments).map_or(Command::Lacking("/job ID"), Command::Job),
        "cancel" => one_word(&arguments).map_or(Command::Lacking("/cancel ID"), Command::Cancel),
        other => Command::Unknown(other.to_owned()),
    })
}

fn one_word(arguments: &[&str]) -> Option<String> {
    match arguments {
        [word] => Some((*word).to_owned()),
        [] | [..] => None,
    }
}

pub(super) fn help() -> String {
    let commands = [
        ("/session", "show which session this is"),
        ("/session ID", "go to another session"),
        ("/session new", "begin a new one"),
        ("/sessions", "list this agent's sessions"),
        ("/jobs [STATUS]", "list the jobs of this session"),
        ("/job ID", "show how a job stands and what it wrote last"),
        ("/cancel ID", "cancel a job"),
        ("/clear", "clear the screen; nothing is forgotten"),
        ("/quit", "leave, also during an answer: the turn goes on"),
        ("//text", "say something that begins with a slash"),
        ("Esc, Ctrl-C", "interrupt the answer"),
        ("Enter", "send; during an answer, queue the line"),
        ("Alt-Enter", "begin another line"),
        ("Up, Down", "earlier lines"),
        ("Ctrl-D", "leave, also during an answer"),
    ];
    let lines: Vec<String> = commands.iter().map(|(name, what)| format!("{name:<16}{what}")).collect();
    lines.join("\n")
}

/// The newest sessions of an agent.
pub(super) async fn sessions(context: &Context, daemon: &mut Daemon<'_>, agent: &str) -> Result<(), Failure> {
    let params = SessionListParams {
        agent: Some(agent.to_owned()),
        limit: Some(SESSIONS_SHOWN),
        ..SessionListParams::default()
    };
    let page = daemon.call::<ListSessions>(params).await?;
    let now = now_s();
    let row = |session: &SessionView| {
        vec![
            session.id.clone(),
            session.turns.to_string(),
            ago(&session.last_active, now),
            or_dash(session.title.as_deref()),
        ]
    };
    let rows: Vec<Vec<String>> = page.sessions.iter().map(row).collect();
    context.put_table(&["SESSION", "TURNS", "LAST ACTIVE", "BEGINS"], &rows)?;
    if page.next.is_some() {
        context.words.murmur("`lodge session ls` lists all of them");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_makes_a_command_and_two_make_text() {
        let check = |line: &str, expected: Slash<'_>| assert_eq!(read(line), expected, "{line}");
        check("  ", Slash::Nothing);
        check(" hello / there", Slash::Text(" hello / there"));
        check("//etc/passwd?", Slash::Text("/etc/passwd?"));
        check("/quit ", Slash::Command(Command::Quit));
        check("/session ses_1", Slash::Command(Command::Session(Some("ses_1".into()))));
        check("/session", Slash::Command(Command::Session(None)));
        check("/session has  space", Slash::Command(Command::NoSession("has space".into())));
        check("/jobs", Slash::Command(Command::Jobs(None)));
        check("/jobs running", Slash::Command(Command::Jobs(Some("running".into()))));
        check("/jobs a b", Slash::Command(Command::Lacking("/jobs [STATUS]")));
        check("/job job_1", Slash::Command(Command::Job("job_1".into())));
        check("/job", Slash::Command(Command::Lacking("/job ID")));
        check("/cancel job_1 now", Slash::Command(Command::Lacking("/cancel ID")));
        check("/nope x", Slash::Command(Command::Unknown("nope".into())));
        check("/", Slash::Command(Command::Unknown(String::new())));
    }
}
