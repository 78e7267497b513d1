//! Parses a line of a chat, and implements the commands that only show something.

use lodge_proto::{ListSessions, SessionListParams, SessionView};

use crate::commands::CommandContext;
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::render::{ago, now_s, or_dash};

/// How many sessions are listed.
const SESSIONS_SHOWN: u32 = 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChatLine<'a> {
    Nothing,
    /// For the agent.
    Text(&'a str),
    Command(SlashCommand),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum SlashCommand {
    Help,
    Quit,
    Clear,
    /// Shows the session, or goes to another.
    Session(Option<String>),
    /// More words than a session has.
    NoSession(String),
    Sessions,
    /// Continues the last turn of this session.
    Retry,
    /// Of this session, perhaps only with one status.
    Jobs(Option<String>),
    Job(String),
    Cancel(String),
    /// Needs one word behind it, as this says.
    Lacking(&'static str),
    Unknown(String),
}

/// A line that begins with `/` is a command; with `//` it is text that begins with one.
pub(super) fn read(line: &str) -> ChatLine<'_> {
    let trimmed = line.trim();
    let Some(rest) = trimmed.strip_prefix('/') else {
        return if trimmed.is_empty() { ChatLine::Nothing } else { ChatLine::Text(line) };
    };
    if rest.starts_with('/') {
        return ChatLine::Text(rest);
    }
    let mut words = rest.split_whitespace();
    let name = words.next().unwrap_or("");
    let arguments: Vec<&str> = words.collect();
    ChatLine::Command(match name {
        "help" | "h" | "?" => SlashCommand::Help,
        "quit" | "q" | "exit" => SlashCommand::Quit,
        "clear" => SlashCommand::Clear,
        "session" => match arguments.as_slice() {
            [] => SlashCommand::Session(None),
            [session] => SlashCommand::Session(Some((*session).to_owned())),
            [..] => SlashCommand::NoSession(arguments.join(" ")),
        },
        "sessions" => SlashCommand::Sessions,
        "retry" => SlashCommand::Retry,
        "jobs" => match arguments.as_slice() {
            [] => SlashCommand::Jobs(None),
            [status] => SlashCommand::Jobs(Some((*status).to_owned())),
            [..] => SlashCommand::Lacking("/jobs [STATUS]"),
        },
        "job" => one_word(&arguments).map_or(SlashCommand::Lacking("/job ID"), SlashCommand::Job),
        "cancel" => one_word(&arguments).map_or(SlashCommand::Lacking("/cancel ID"), SlashCommand::Cancel),
        other => SlashCommand::Unknown(other.to_owned()),
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
        ("/session", "show the current session"),
        ("/session ID", "switch to another session"),
        ("/session new", "start a new session"),
        ("/sessions", "list this agent's sessions"),
        ("/retry", "continue the last turn, if it failed or was interrupted"),
        ("/jobs [STATUS]", "list the jobs of this session"),
        ("/job ID", "show a job's status and its last output"),
        ("/cancel ID", "cancel a job"),
        ("/clear", "clear the screen; the conversation is kept"),
        ("/quit", "leave; a running turn continues"),
        ("//text", "send text that starts with a slash"),
        ("Esc, Ctrl-C", "interrupt the answer"),
        ("Enter", "send; during an answer, queue the line"),
        ("Alt-Enter", "start a new line"),
        ("Up, Down", "earlier lines"),
        ("Ctrl-D", "leave; a running turn continues"),
    ];
    let lines: Vec<String> = commands.iter().map(|(name, what)| format!("{name:<16}{what}")).collect();
    lines.join("\n")
}

/// The newest sessions of an agent.
pub(super) async fn sessions(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    agent: &str,
) -> Result<(), CommandFailure> {
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
        context.words.print_dimmed_note("`lodge session ls` lists all of them");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_makes_a_command_and_two_make_text() {
        let check = |line: &str, expected: ChatLine<'_>| assert_eq!(read(line), expected, "{line}");
        check("  ", ChatLine::Nothing);
        check(" hello / there", ChatLine::Text(" hello / there"));
        check("//etc/passwd?", ChatLine::Text("/etc/passwd?"));
        check("/quit ", ChatLine::Command(SlashCommand::Quit));
        check("/session ses_1", ChatLine::Command(SlashCommand::Session(Some("ses_1".into()))));
        check("/session", ChatLine::Command(SlashCommand::Session(None)));
        check("/session has  space", ChatLine::Command(SlashCommand::NoSession("has space".into())));
        check("/jobs", ChatLine::Command(SlashCommand::Jobs(None)));
        check("/jobs running", ChatLine::Command(SlashCommand::Jobs(Some("running".into()))));
        check("/jobs a b", ChatLine::Command(SlashCommand::Lacking("/jobs [STATUS]")));
        check("/job job_1", ChatLine::Command(SlashCommand::Job("job_1".into())));
        check("/job", ChatLine::Command(SlashCommand::Lacking("/job ID")));
        check("/cancel job_1 now", ChatLine::Command(SlashCommand::Lacking("/cancel ID")));
        check("/nope x", ChatLine::Command(SlashCommand::Unknown("nope".into())));
        check("/", ChatLine::Command(SlashCommand::Unknown(String::new())));
    }
}
