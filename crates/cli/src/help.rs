//! Help beyond single commands: the commands by topic, pages about concepts, and what an unknown command may have meant.
//!
//! Owns: the groups of `lodge --help`, the pages. Never: the help of one command (see `args`).

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::failure::CommandFailure;

/// The commands of `lodge --help`, by topic. Each command that is not hidden is in exactly one group.
const GROUPS: &[(&str, &[&str])] = &[
    ("First hour", &["code", "init", "run", "chat", "prompt"]),
    ("Agents", &["ps", "agent", "inspect", "logs", "start", "stop", "restart", "update", "kill", "rm"]),
    ("Conversations", &["turn", "session"]),
    ("Background work", &["jobs", "lineage", "quarantine", "events"]),
    ("Sandboxes", &["sandbox", "exec"]),
    ("Images and tools", &["image", "bin"]),
    ("Models and access", &["provider", "token"]),
    ("The daemon", &["info", "reload", "reap", "shutdown", "selftest", "completions", "help"]),
];

/// Pages about concepts: `lodge help TOPIC`.
const PAGES: &[(&str, &str)] = &[
    ("agentfile", include_str!("help/agentfile.txt")),
    ("models", include_str!("help/models.txt")),
    ("jobs", include_str!("help/jobs.txt")),
    ("security", include_str!("help/security.txt")),
];

/// Commands that people know from other tools, and what they are here.
const KNOWN_ELSEWHERE: &[(&str, &str)] = &[
    ("version", "`lodge --version` prints the version, `lodge info` that of the daemon"),
    (
        "list",
        "`lodge ps` lists agents; `lodge session ls`, `lodge jobs ls` and `lodge image ls` list other things",
    ),
    (
        "ls",
        "`lodge ps` lists agents; `lodge session ls`, `lodge jobs ls` and `lodge image ls` list other things",
    ),
    ("agents", "`lodge ps` lists agents"),
    ("sessions", "`lodge session ls` lists conversations"),
    ("providers", "`lodge provider ls` lists providers"),
    ("shell", "`lodge jobs run AGENT --wait -- PROGRAM ARGS…` runs a program of the agent"),
    (
        "top",
        "`lodge ps` lists agents, `lodge jobs ls` lists jobs, and `lodge events -f` follows what happens",
    ),
    (
        "attach",
        "`lodge turn attach --agent AGENT` joins the running turn, `lodge chat AGENT` opens a conversation",
    ),
    ("sh", "`lodge jobs run AGENT --wait -- PROGRAM ARGS…` runs a program of the agent"),
    ("completion", "`lodge completions bash` (or zsh, fish) prints a completion script"),
    ("stats", "`lodge ps --wide` shows what agents used, and what that cost"),
    ("status", "`lodge info` shows the daemon, `lodge ps` its agents"),
    ("build", "`lodge image build DIR -t NAME`; `lodge run DIR` builds and runs"),
    ("images", "`lodge image ls`"),
    ("pull", "`lodge image pull REGISTRY/NAME`"),
    ("push", "`lodge image push IMAGE REGISTRY/NAME`"),
    ("tag", "`lodge image tag IMAGE NAME`"),
    ("create", "`lodge run DIR` creates and starts an agent"),
    ("delete", "`lodge rm AGENT` removes an agent"),
    ("remove", "`lodge rm AGENT` removes an agent"),
    ("show", "`lodge inspect AGENT` shows an agent"),
    ("ask", "`lodge prompt AGENT TEXT` asks an agent"),
    ("send", "`lodge prompt AGENT TEXT` asks an agent"),
    ("history", "`lodge session ls` lists conversations, `lodge session show SESSION` prints one"),
    ("models", "`lodge provider test NAME` lists the models of a provider; see `lodge help models`"),
    ("login", "`lodge provider add` stores an API key; `docker login` is used for registries"),
    ("config", "`lodge info` shows the settings in effect, `lodge reload` reads them again"),
    ("serve", "`lodged serve` starts the daemon; a command starts it by itself when none runs"),
    ("daemon", "`lodged serve` starts the daemon; a command starts it by itself when none runs"),
    ("down", "`lodge stop AGENT` stops an agent, `lodge shutdown --agents` everything"),
    ("up", "`lodge start AGENT` starts an agent; the daemon starts by itself"),
];

/// Within a group of commands, such as `session`.
const KNOWN_WITHIN: &[(&str, &str)] = &[
    ("list", "ls"),
    ("remove", "rm"),
    ("delete", "rm"),
    ("get", "show"),
    ("inspect", "show"),
    ("show", "inspect"),
];

/// The page that `lodge help TOPIC` asks for, if it is about a concept.
pub(crate) fn page(words: &[OsString]) -> Option<&'static str> {
    let [_, help, topic] = words else { return None };
    let (_, text) = PAGES.iter().find(|(name, _)| help == "help" && topic == name)?;
    Some(text)
}

/// The names of the pages.
pub(crate) fn topics() -> Vec<&'static str> {
    PAGES.iter().map(|(name, _)| *name).collect()
}

/// The help of the whole program: its commands by topic.
pub(crate) fn help_template(command: &Command) -> String {
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or_default();
    for (title, names) in GROUPS {
        text.push_str(&format!("\n\x1b[1m\x1b[4m{title}:\x1b[0m\n"));
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            let about =
                about.or_else(|| (*name == "help").then(|| "Explain a command or a concept".to_owned()));
            text.push_str(&format!("  \x1b[1m{name:<width$}\x1b[0m  {}\n", about.unwrap_or_default()));
        }
    }
    text.push_str("\n\x1b[1m\x1b[4mGlobal options:\x1b[0m\n{options}{after-help}");
    text
}

/// What an unknown command may have meant.
pub(crate) fn unknown_command(error: &Error, words: &[OsString]) -> Option<CommandFailure> {
    let ErrorKind::InvalidSubcommand = error.kind() else { return None };
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let before = words.iter().skip(1).take_while(|word| *word != given.as_str());
    let group = before.filter(|word| !word.to_string_lossy().starts_with('-')).last();
    let group = group.map(|group| group.to_string_lossy().into_owned());
    if group.as_deref() == Some("help") {
        let topics: Vec<String> = topics().into_iter().map(|name| format!("`{name}`")).collect();
        return Some(
            CommandFailure::usage(format!("there is no command and no topic `{given}`"))
                .hint(format!("topics are {}; `lodge help` lists the commands", topics.join(", "))),
        );
    }
    let known = match &group {
        None => KNOWN_ELSEWHERE.iter().find(|(name, _)| name == given).map(|(_, hint)| (*hint).to_owned()),
        Some(group) => known_within(group, given).map(|known| format!("`lodge {group} {known}`")),
    };
    let group = group.map(|group| format!("{group} ")).unwrap_or_default();
    let hint = known.unwrap_or_else(|| {
        let meant = similar_command(error).map(|name| format!("did you mean `lodge {group}{name}`? "));
        format!("{}`lodge {group}--help` lists the commands", meant.unwrap_or_default())
    });
    Some(CommandFailure::usage(format!("there is no command `lodge {group}{given}`")).hint(hint))
}

/// Our name of a command that a group does not have.
fn known_within(group: &str, given: &str) -> Option<&'static str> {
    let command = crate::args::Cli::grouped();
    let within = command.find_subcommand(group)?;
    let mut names = KNOWN_WITHIN.iter().filter(|(name, _)| *name == given).map(|(_, ours)| *ours);
    names.find(|ours| within.find_subcommand(ours).is_some())
}

/// The command that is most like the one that was given: clap's suggestions end with it.
fn similar_command(error: &Error) -> Option<&str> {
    let suggested = error.get(ContextKind::SuggestedSubcommand)?;
    if let ContextValue::String(name) = suggested {
        return Some(name);
    }
    let ContextValue::Strings(names) = suggested else { return None };
    names.last().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn every_command_is_in_exactly_one_group_and_every_group_names_commands() {
        let command = Cli::command();
        let mut grouped: BTreeMap<&str, usize> = BTreeMap::new();
        for name in GROUPS.iter().flat_map(|(_, names)| *names) {
            *grouped.entry(name).or_default() += 1;
            assert!(
                *name == "help" || command.find_subcommand(name).is_some(),
                "there is no command `{name}`"
            );
        }
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            let name = subcommand.get_name();
            assert_eq!(grouped.get(name), Some(&1), "add `{name}` to one group of GROUPS");
        }
        assert_eq!(GROUPS[0].1.len(), 5, "the commands of the first hour");
    }

    #[test]
    fn a_page_has_no_line_that_wraps_and_names_only_commands_that_exist() {
        let command = Cli::command();
        for (topic, text) in PAGES {
            assert_eq!(page(&words(&format!("lodge help {topic}"))), Some(*text));
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{topic}: {line}");
                for (at, _) in line.match_indices("lodge ") {
                    let mut named = line[at..].split_whitespace().skip(1);
                    let name = named.next().unwrap_or_default().trim_end_matches(['`', ',', '.', ';', ')']);
                    if name.starts_with(|first: char| first.is_ascii_lowercase()) {
                        assert!(name == "help" || command.find_subcommand(name).is_some(), "{topic}: {line}");
                    }
                }
            }
        }
        assert_eq!(page(&words("lodge help prompt")), None);
        assert_eq!(page(&words("lodge jobs")), None);
    }

    #[test]
    fn a_command_from_elsewhere_is_answered_with_ours() {
        let hint = |line: &str| {
            let words = words(line);
            let error = Cli::grouped().try_get_matches_from(&words).unwrap_err();
            match unknown_command(&error, &words) {
                Some(CommandFailure::Told(report)) => report.hint,
                _ => None,
            }
        };
        for name in ["version", "list", "top", "attach", "sh", "completion", "stats"] {
            assert!(hint(&format!("lodge {name}")).is_some_and(|hint| hint.contains("`lodge ")), "{name}");
        }
        assert_eq!(hint("lodge --json session list").as_deref(), Some("`lodge session ls`"));
        assert_eq!(hint("lodge session delete x").as_deref(), Some("`lodge session rm`"));
        assert_eq!(hint("lodge image show x").as_deref(), Some("`lodge image inspect`"));
        assert_eq!(hint("lodge agents").as_deref(), Some("`lodge ps` lists agents"));
        assert_eq!(
            hint("lodge inspct x").as_deref(),
            Some("did you mean `lodge inspect`? `lodge --help` lists the commands")
        );
        assert_eq!(
            hint("lodge session exprot x").as_deref(),
            Some("did you mean `lodge session export`? `lodge session --help` lists the commands")
        );
        assert_eq!(hint("lodge xyzzy").as_deref(), Some("`lodge --help` lists the commands"));
        assert!(hint("lodge help dance").is_some_and(|hint| hint.starts_with("topics are `agentfile`, ")));
    }
}
