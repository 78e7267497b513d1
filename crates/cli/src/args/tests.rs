use super::*;
use clap::CommandFactory;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_definition_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn run_takes_flags_on_both_sides_of_the_prompt() {
    let line = "lodge run ./hello --name h -e A=1=2 -v src:/w:ro what time --label k=v --build-arg X= --json";
    let cli = parse(line).unwrap();
    let Command::Run(run) = cli.command else { panic!("not run") };
    assert!(cli.global.json);
    assert_eq!((run.source.as_str(), run.prompt.join(" ").as_str()), ("./hello", "what time"));
    assert_eq!(run.env, [("A".to_owned(), "1=2".to_owned())]);
    assert_eq!(run.label, [("k".to_owned(), "v".to_owned())]);
    assert_eq!(run.build_arg, [("X".to_owned(), String::new())]);
    assert!(run.mounts[0].read_only);
}

#[test]
fn a_dash_is_a_source_and_a_prompt() {
    let Command::Run(run) = parse("lodge run - hello").unwrap().command else { panic!("not run") };
    assert_eq!(run.source, "-");
    let Command::Prompt(prompt) = parse("lodge prompt a -").unwrap().command else { panic!("not prompt") };
    assert_eq!(prompt.text, ["-"]);
}

#[test]
fn agent_verbs_work_with_and_without_the_word_agent() {
    for verb in ["inspect", "start", "stop", "restart", "update --model p/m", "kill", "rm", "logs"] {
        assert!(parse(&format!("lodge {verb} a")).is_ok(), "{verb}");
        assert!(parse(&format!("lodge agent {verb} a")).is_ok(), "agent {verb}");
    }
    assert!(parse("lodge ps -a -q --label k=v").is_ok() && parse("lodge agent ls -aq").is_ok());
}

#[test]
fn contradictions_and_bad_values_are_bad_usage() {
    let bad = [
        "lodge",
        "lodge run",
        "lodge start",
        "lodge run . -e X",
        "lodge run . -v x",
        "lodge run . --label =v",
        "lodge run . --rm",
        "lodge run . hi --rm --detach",
        "lodge prompt a hi -s x --sender y",
        "lodge --socket x --daemon http://h:1 info",
        "lodge provider add p",
        "lodge image",
        "lodge image build",
        "lodge image rm",
        "lodge image build . --build-arg x",
        "lodge kill",
        "lodge restart",
        "lodge agent update --model p/m",
        "lodge agent update a --build-arg X=1",
        "lodge agent update a --revival-policy never",
        "lodge session rewind s",
        "lodge session rm",
        "lodge session search",
        "lodge session ls --limit 0",
        "lodge lineage show",
        "lodge lineage show x --file f",
        "lodge lineage ls --status lost",
        "lodge lineage resolve x",
        "lodge lineage resolve x --revive --reap",
        "lodge provider add p --kind none",
        "lodge token",
        "lodge token issue --expires soon",
        "lodge token revoke",
        "lodge events --since -1",
        "lodge events -n 0",
        "lodge selftest",
        "lodge selftest --crash 0",
        "lodge selftest --crash some",
        "lodge selftest --crash 1 --seed -1",
    ];
    for line in bad {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

/// Every command without subcommands, as one types it.
fn leaves(command: &clap::Command, path: &str, found: &mut Vec<String>) {
    for sub in command.get_subcommands() {
        let path = format!("{path} {}", sub.get_name()).trim().to_owned();
        if sub.has_subcommands() {
            leaves(sub, &path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn every_command_has_help_and_every_flag_and_argument_says_what_it_is() {
    fn check(command: &clap::Command) {
        let name = command.get_name();
        assert!(command.get_about().is_some(), "{name} says nothing");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{} of {name} says nothing", argument.get_id());
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn every_command_stands_in_the_documentation() {
    let docs = include_str!("../../../../docs/cli.md");
    let mut found = Vec::new();
    leaves(&Cli::command(), "", &mut found);
    for path in &found {
        let words: Vec<&str> = path.split(' ').collect();
        let told = match words.as_slice() {
            // The verbs of agents stand there without the word.
            ["agent", "ls"] => docs.contains("`agent ls`"),
            ["agent", verb] | [verb] => docs.contains(&format!("`{verb}")),
            [group, verb] => {
                let row = docs.lines().find(|line| line.contains(&format!("`{group} {verb}")));
                let after =
                    |line: &&str| line.contains(&format!("`{group} ")) && line.contains(&format!("`{verb}"));
                row.is_some() || docs.lines().any(|line| after(&line))
            }
            _ => false,
        };
        assert!(told, "`lodge {path}` is not in docs/cli.md");
    }
}
