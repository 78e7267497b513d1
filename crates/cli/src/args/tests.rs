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
    let CliCommand::Run(run) = cli.command else { panic!("not run") };
    assert!(cli.global.json);
    assert_eq!((run.source.as_str(), run.prompt.join(" ").as_str()), ("./hello", "what time"));
    assert_eq!(run.env, [("A".to_owned(), "1=2".to_owned())]);
    assert_eq!(run.label, [("k".to_owned(), "v".to_owned())]);
    assert_eq!(run.build_arg, [("X".to_owned(), String::new())]);
    assert!(run.mounts[0].read_only);
}

#[test]
fn a_dash_is_a_source_and_a_prompt() {
    let CliCommand::Run(run) = parse("lodge run - hello").unwrap().command else { panic!("not run") };
    assert_eq!(run.source, "-");
    let CliCommand::Prompt(prompt) = parse("lodge prompt a -").unwrap().command else { panic!("not prompt") };
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
        "lodge image inspect",
        "lodge image diff a",
        "lodge image diff a b c",
        "lodge image tag a",
        "lodge image push",
        "lodge image push a b c",
        "lodge image pull",
        "lodge image pull a b",
        "lodge image export",
        "lodge image export a -o",
        "lodge image import a b",
        "lodge bin",
        "lodge bin build",
        "lodge bin build rg",
        "lodge bin build rg /usr/bin/rg",
        "lodge bin build rg linux:/usr/bin/rg",
        "lodge bin build rg linux/amd64:",
        "lodge bin inspect",
        "lodge bin push",
        "lodge bin pull",
        "lodge bin rm",
        "lodge kill",
        "lodge restart",
        "lodge agent update --model p/m",
        "lodge agent update a --build-arg X=1",
        "lodge agent update a --revival-policy never",
        "lodge session rewind s",
        "lodge session rm",
        "lodge session search",
        "lodge session ls --limit 0",
        "lodge jobs",
        "lodge jobs run",
        "lodge jobs run a --priority 101 -- x",
        "lodge jobs run a --label noequals -- x",
        "lodge jobs run a --made-up -- x",
        "lodge jobs ls --status orphaned",
        "lodge jobs ls --label noequals",
        "lodge jobs ls -n 0",
        "lodge jobs inspect",
        "lodge jobs logs",
        "lodge jobs logs j --stderr --merged",
        "lodge jobs logs j --offset 1 --tail 1",
        "lodge jobs logs j --offset -1",
        "lodge jobs wait",
        "lodge jobs wait j --timeout soon",
        "lodge jobs wait j --timeout 18446744073709551615s",
        "lodge jobs cancel",
        "lodge stop a --jobs keep",
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

#[test]
fn what_stands_behind_a_bin_is_the_bins_own() {
    let command = |line: &str| match parse(line).expect(line) {
        Cli { command: CliCommand::Jobs { command: JobsCommand::Run(run) }, global } => {
            (run.command.join(" "), run.wait, global.json)
        }
        other => panic!("not jobs run: {other:?}"),
    };
    let told = |words: &str, wait, json| (words.to_owned(), wait, json);
    assert_eq!(command("lodge jobs run a --wait -- sh -c --json"), told("sh -c --json", true, false));
    assert_eq!(command("lodge job run a --json -- sh -- --wait"), told("sh -- --wait", false, true));
    assert_eq!(command("lodge jobs run a make --wait -j2"), told("make --wait -j2", false, false));
    assert_eq!(command("lodge jobs run a -- --odd"), told("--odd", false, false));
    assert_eq!(command("lodge jobs run a"), told("", false, false));
}

#[test]
fn a_tool_has_a_program_for_each_platform_and_paths_keep_their_colons() {
    let line = "lodge bin build rg linux/amd64:a:b/rg linux/arm/v7:rg -t x -t y:v1 --usage - --label k=v";
    let Ok(Cli { command: CliCommand::Bin { command: BinCommand::Build(build) }, .. }) = parse(line) else {
        panic!("not bin build")
    };
    let programs: Vec<(&str, &str)> =
        build.programs.iter().map(|one| (one.platform.as_str(), one.path.to_str().unwrap())).collect();
    assert_eq!(programs, [("linux/amd64", "a:b/rg"), ("linux/arm/v7", "rg")]);
    assert_eq!((build.tag.join(" ").as_str(), build.usage.as_deref()), ("x y:v1", Some("-")));
}

#[test]
fn an_archive_is_read_from_stdin_when_no_file_is_named() {
    for line in ["lodge image import", "lodge image import -"] {
        let Ok(Cli { command: CliCommand::Image { command: ImageCommand::Import(import) }, .. }) =
            parse(line)
        else {
            panic!("not image import")
        };
        assert_eq!((import.path.to_str(), import.moves, import.yes), (Some("-"), false, false), "{line}");
    }
}

#[test]
fn a_value_that_does_not_fit_says_which_would() {
    let words = |line: &str| parse(line).expect_err(line).to_string();
    assert!(words("lodge jobs ls --label noequals").contains("expected key=value"));
    assert!(words("lodge jobs ls --status x").contains("pending, running, done, error, cancelled"));
    assert!(words("lodge stop a --jobs x").contains("cancel, wait, refuse"));
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
fn commands_that_are_needed_in_a_hurry_have_examples() {
    for path in ["info", "quarantine ls", "quarantine retry", "quarantine drop", "image import"] {
        let mut command = Cli::command();
        for word in path.split(' ') {
            command = command.find_subcommand(word).unwrap_or_else(|| panic!("no `{path}`")).clone();
        }
        let help = command.render_long_help().to_string();
        assert!(help.contains("Example") && help.contains(&format!("lodge {path}")), "{path}: {help}");
    }
    let help = Cli::command().render_long_help().to_string();
    for variable in ["LODGE_DAEMON", "LODGE_DAEMON_ADDR", "LODGE_CA_FILE", "LODGE_TOKEN"] {
        assert!(help.contains(variable), "{variable}: {help}");
    }
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

#[test]
fn a_command_of_jobs_means_the_same_whichever_way_it_is_read() {
    let lines = [
        "jobs run coder -- grep -r x --json",
        "job run coder --wait --label a=b --label c=d --priority -3 --stdin - -- true",
        "jobs --json run --socket /s coder -q -- true",
        "jobs ls --status done -n 3 --json",
        "jobs inspect job_1 job_2",
        "jobs wait --timeout 3s job_1",
        "jobs cancel job_1",
        "jobs logs -f job_1",
        "jobs",
        "jobs run",
        "jobs --help",
        "jobs run coder --priority 101 -- true",
        "--json jobs ls",
        "ps",
    ];
    for line in lines {
        let words: Vec<OsString> = std::iter::once("lodge").chain(line.split(' ')).map(Into::into).collect();
        let told = |read: Result<Cli, clap::Error>| match read {
            Ok(cli) => format!("{cli:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(told(Cli::read(&words)), told(Cli::try_parse_from(&words)), "{line}");
    }
}
