//! Completion scripts: clap's own, and names of agents, sessions, jobs and turns that the daemon is asked for.

use clap_complete::Shell;
use lodge_proto::{
    AgentListParams, ExecListParams, JobListParams, ListAgents, ListExecs, ListJobs, ListSandboxes,
    ListSessions, ListTurns, PAGE_MAX, SandboxListParams, SessionListParams, TurnListParams,
};

use super::CommandContext;
use crate::args::{Cli, CompletedName};
use crate::connect::Autostart;
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::words::put;

/// Most sessions, jobs and turns that are offered, the newest first.
const OFFERED_MAX: u32 = 200;

pub(crate) fn completions(shell: Shell) -> Result<(), CommandFailure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::grouped(), "lodge", &mut script);
    let script = String::from_utf8_lossy(&script);
    put(&match shell {
        // clap offers hidden commands after `help`.
        Shell::Bash => {
            let names = BASH_NAMES.replace("@TOPICS@", &crate::help::topics().join(" "));
            format!("{}{names}", script.replace(" complete-names ", " "))
        }
        Shell::Zsh => with_zsh_names(&script),
        Shell::Fish => format!("{script}{FISH_NAMES}"),
        _ => script.into_owned(),
    })
}

/// The names of one kind, a line each. It starts no daemon, and a failure offers nothing.
pub(super) async fn names(context: &CommandContext, kind: CompletedName) -> Result<(), CommandFailure> {
    let mut address = context.address.clone();
    address.autostart = Autostart::Forbidden;
    let Ok(mut daemon) = DaemonClient::open(&address, &context.words).await else { return Ok(()) };
    let found = match kind {
        CompletedName::Agents => {
            let params = AgentListParams { all: true, limit: Some(PAGE_MAX), ..AgentListParams::default() };
            let page = daemon.call_once::<ListAgents>(params).await;
            page.map(|page| page.agents.into_iter().map(|agent| agent.name).collect::<Vec<_>>())
        }
        CompletedName::Sessions => {
            let params = SessionListParams { limit: Some(OFFERED_MAX), ..SessionListParams::default() };
            let page = daemon.call_once::<ListSessions>(params).await;
            page.map(|page| page.sessions.into_iter().map(|session| session.id).collect())
        }
        CompletedName::Jobs => {
            let params = JobListParams { limit: Some(OFFERED_MAX), ..JobListParams::default() };
            let page = daemon.call_once::<ListJobs>(params).await;
            page.map(|page| page.jobs.into_iter().map(|job| job.id).collect())
        }
        CompletedName::Turns => {
            let params = TurnListParams { limit: Some(OFFERED_MAX), ..TurnListParams::default() };
            let page = daemon.call_once::<ListTurns>(params).await;
            page.map(|page| page.turns.into_iter().map(|turn| turn.id).collect())
        }
        CompletedName::Sandboxes => {
            let limit = Some(OFFERED_MAX);
            let params = SandboxListParams { all: true, limit, ..SandboxListParams::default() };
            let page = daemon.call_once::<ListSandboxes>(params).await;
            let offered = |page: lodge_proto::SandboxList| {
                let there = page.sandboxes.into_iter().filter(|sandbox| sandbox.status != "deleted");
                there.map(|sandbox| sandbox.id).collect()
            };
            page.map(offered)
        }
        CompletedName::Execs => {
            let params = ExecListParams { limit: Some(OFFERED_MAX), ..ExecListParams::default() };
            let page = daemon.call_once::<ListExecs>(params).await;
            page.map(|page| page.execs.into_iter().map(|exec| exec.id).collect())
        }
    };
    put(&found.unwrap_or_default().iter().map(|name| format!("{name}\n")).collect::<String>())
}

/// Asks for names where a name is expected, after clap's own completion.
const BASH_NAMES: &str = r#"
_lodge_names() {
    COMPREPLY=()
    _lodge "$@"
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" kind=""
    local words=() word
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word == -* ]] || words+=("$word")
    done
    [[ ${words[0]} == agent ]] && words=("${words[@]:1}")
    # In place of the names of files that clap offers for a value.
    case "$prev" in
        --agent) kind=agents; COMPREPLY=() ;;
        -s|--session) kind=sessions; COMPREPLY=() ;;
    esac
    if [[ -z $kind && $cur != -* ]]; then
        case "${words[0]} ${words[1]}" in
            "inspect "*|"start "*|"stop "*|"restart "*|"kill "*|"rm "*) kind=agents ;;
            "prompt "|"chat "|"update "|"logs "|"jobs run") kind=agents ;;
            "session show"|"session export"|"session fork"|"session rewind") kind=sessions ;;
            "session regenerate"|"session activate"|"session rm") kind=sessions ;;
            "jobs inspect"|"jobs logs"|"jobs wait"|"jobs cancel") kind=jobs ;;
            "turn show"|"turn wait"|"turn attach"|"turn interrupt"|"turn retry") kind=turns ;;
            "help ") COMPREPLY+=($(compgen -W "@TOPICS@" -- "$cur")) ;;
            "sandbox get"|"sandbox stop"|"sandbox resume"|"sandbox rm"|"sandbox events") kind=sandboxes ;;
            "exec run"|"exec ls") kind=sandboxes ;;
            "exec get"|"exec logs"|"exec cancel") kind=execs ;;
        esac
    fi
    if [[ -n $kind ]]; then
        COMPREPLY+=($(compgen -W "$(lodge complete-names "$kind" 2>/dev/null)" -- "$cur"))
    fi
}
complete -F _lodge_names -o nosort -o bashdefault -o default lodge
"#;

const FISH_NAMES: &str = r#"
complete -c lodge -n "__fish_seen_subcommand_from inspect start stop restart kill rm prompt chat update logs; and not __fish_seen_subcommand_from session image bin provider jobs job" -f -a "(lodge complete-names agents 2>/dev/null)"
complete -c lodge -n "__fish_seen_subcommand_from jobs job; and __fish_seen_subcommand_from run" -f -a "(lodge complete-names agents 2>/dev/null)"
complete -c lodge -n "__fish_seen_subcommand_from session; and __fish_seen_subcommand_from show export fork rewind regenerate activate rm" -f -a "(lodge complete-names sessions 2>/dev/null)"
complete -c lodge -n "__fish_seen_subcommand_from jobs job; and __fish_seen_subcommand_from inspect logs wait cancel" -f -a "(lodge complete-names jobs 2>/dev/null)"
complete -c lodge -n "__fish_seen_subcommand_from turn; and __fish_seen_subcommand_from show wait attach interrupt retry" -f -a "(lodge complete-names turns 2>/dev/null)"
complete -c lodge -n "__fish_seen_subcommand_from sandbox; and __fish_seen_subcommand_from get stop resume rm events" -f -a "(lodge complete-names sandboxes 2>/dev/null)"
complete -c lodge -n "__fish_seen_subcommand_from exec; and __fish_seen_subcommand_from run ls" -f -a "(lodge complete-names sandboxes 2>/dev/null)"
complete -c lodge -n "__fish_seen_subcommand_from exec; and __fish_seen_subcommand_from get logs cancel" -f -a "(lodge complete-names execs 2>/dev/null)"
complete -c lodge -l agent -x -a "(lodge complete-names agents 2>/dev/null)"
complete -c lodge -l session -x -a "(lodge complete-names sessions 2>/dev/null)"
"#;

const ZSH_NAMES: &str = r#"
_lodge_agents() { local -a names; names=(${(f)"$(lodge complete-names agents 2>/dev/null)"}); compadd -a names }
_lodge_sessions() { local -a names; names=(${(f)"$(lodge complete-names sessions 2>/dev/null)"}); compadd -a names }
_lodge_sandboxes() { local -a names; names=(${(f)"$(lodge complete-names sandboxes 2>/dev/null)"}); compadd -a names }
_lodge_execs() { local -a names; names=(${(f)"$(lodge complete-names execs 2>/dev/null)"}); compadd -a names }
_lodge_jobs() { local -a names; names=(${(f)"$(lodge complete-names jobs 2>/dev/null)"}); compadd -a names }
_lodge_turns() { local -a names; names=(${(f)"$(lodge complete-names turns 2>/dev/null)"}); compadd -a names }
"#;

/// clap's script completes file names for arguments that have a name of ours; here they complete ours.
fn with_zsh_names(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        let argument = line.trim_start().trim_start_matches(['\'', '"', '*', ':']);
        let names = |kinds: &[&str]| kinds.iter().any(|kind| argument.starts_with(kind));
        let action = if names(&["agent -- ", "agents -- ", "--agent="]) {
            ":_lodge_agents"
        } else if names(&["session -- ", "sessions -- ", "--session="]) {
            ":_lodge_sessions"
        } else if names(&["job -- ", "jobs -- "]) {
            ":_lodge_jobs"
        } else if names(&["turn -- "]) {
            ":_lodge_turns"
        } else if names(&["sandbox -- ", "sandboxes -- "]) {
            ":_lodge_sandboxes"
        } else if names(&["exec -- ", "execs -- "]) {
            ":_lodge_execs"
        } else {
            ":_default"
        };
        text.push_str(&line.replace(":_default", action));
        text.push('\n');
        // The functions follow the line that says what the script completes.
        if line.starts_with("#compdef") {
            text.push_str(ZSH_NAMES);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_with_names_are_completed_with_names() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Zsh, &mut Cli::grouped(), "lodge", &mut script);
        let script = with_zsh_names(&String::from_utf8(script).unwrap());
        for (argument, action) in [
            ("':agent -- ", ":_lodge_agents'"),
            ("'*::agents -- ", ":_lodge_agents'"),
            ("':session -- ", ":_lodge_sessions'"),
            ("'::turn -- ", ":_lodge_turns'"),
        ] {
            let lines: Vec<&str> =
                script.lines().filter(|line| line.trim_start().starts_with(argument)).collect();
            assert!(
                !lines.is_empty() && lines.iter().all(|line| line.contains(action)),
                "{argument}: {lines:?}"
            );
        }
    }
}
