//! Which model `lodge init` and `lodge code` choose: one that the provider has.

use std::fs;
use std::path::PathBuf;

use lodge_testkit::mock::MockLlm;
use serde_json::json;

use crate::terminal::TerminalSession;
use crate::world::{ApiWorld, KEY};

/// A provider `work` whose server has these models.
struct ModelWorld {
    world: ApiWorld,
    _server: MockLlm,
    _logs: tempfile::TempDir,
}

impl ModelWorld {
    fn new(models: &str) -> ModelWorld {
        let world = ApiWorld::new();
        let logs = tempfile::tempdir().expect("a directory");
        let server =
            MockLlm::spawn_with(logs.path(), &["--key", KEY, "--models", models]).expect("a provider");
        world.put_providers(&world.provider("work", &server.base_url()));
        ModelWorld { world, _server: server, _logs: logs }
    }

    /// An agent's directory, as text, and its Agentfile.
    fn place(&self, name: &str) -> (String, PathBuf) {
        let dir = self.world.lodge.dir().join(name);
        (dir.to_str().expect("UTF-8").to_owned(), dir.join("Agentfile"))
    }
}

#[tokio::test]
async fn a_model_that_the_provider_lists_is_taken_and_one_that_it_does_not_list_is_not() {
    let with_best = ModelWorld::new("tiny,gpt-5,huge");
    let (dir, agentfile) = with_best.place("best");
    with_best.world.lodge.cli_ok(["init", &dir, "--template", "blank"]);
    assert!(fs::read_to_string(agentfile).expect("a file").contains("MODEL work/gpt-5\n"));
    let without = ModelWorld::new("tiny,huge");
    let (dir, agentfile) = without.place("several");
    for command in [&["init", &dir][..], &["code", "-p", "hello"]] {
        let (code, out, err) = without.world.cli(command);
        assert!(code == 1 && out.is_empty(), "{command:?}: {code} {out}");
        assert!(err.contains("choose one with `--model`: work/tiny, work/huge"), "{command:?}: {err}");
    }
    assert!(!agentfile.exists());
}

#[tokio::test]
async fn a_user_at_a_terminal_chooses_among_several_models() {
    let models = ModelWorld::new("tiny,huge");
    let (dir, agentfile) = models.place("asked");
    let mut init = TerminalSession::at(models.world.lodge.cli_command(["init", &dir, "--template", "blank"]));
    init.see("2  huge");
    init.see("Which model? (a number or a name) ");
    init.type_in("3\n");
    init.see("`3` is none of these. Which model? (a number or a name) ");
    init.type_in("work/huge\n");
    assert_eq!(init.end(), 0);
    assert!(fs::read_to_string(agentfile).expect("a file").contains("MODEL work/huge\n"));
    // The end of the input chooses nothing.
    let (dir, agentfile) = models.place("left");
    let mut init = TerminalSession::at(models.world.lodge.cli_command(["init", &dir, "--template", "blank"]));
    init.see("Which model? ");
    init.type_in("\u{4}");
    init.see("hint: name one: `--model work/MODEL`");
    assert_eq!((init.end(), agentfile.exists()), (2, false));
}

#[tokio::test]
async fn an_agentfile_is_written_while_the_provider_cannot_be_asked_and_says_what_to_edit() {
    let models = ModelWorld::new("tiny");
    models.world.put_providers(&models.world.provider("work", "http://127.0.0.1:1/v1"));
    let (dir, agentfile) = models.place("offline");
    let (code, next, err) = models.world.cli(&["init", &dir, "--template", "blank"]);
    assert!(code == 0 && next.starts_with("lodge provider test work\nlodge run "), "{code} {next}{err}");
    assert!(err.contains("could not reach provider `work`"), "{err}");
    assert!(err.contains("replace work/MODEL in the line MODEL of its Agentfile"), "{err}");
    assert!(fs::read_to_string(agentfile).expect("a file").contains("MODEL work/MODEL\n"));
    let report = models.world.cli_json(&["--json", "init", &dir, "--force"]);
    assert!(report["model_problem"].as_str().is_some_and(|why| why.contains("could not reach")), "{report}");
    assert_eq!(report["model"], json!("work/MODEL"));
    // A coding agent needs its model now.
    let (code, out, err) = models.world.cli(&["code", "-p", "hello"]);
    assert!(
        code == 1 && out.is_empty() && err.contains("`--model work/MODEL` names a model"),
        "{code} {err}"
    );
}

#[tokio::test]
async fn a_key_is_stored_only_after_a_clear_answer() {
    let models = ModelWorld::new("tiny");
    let (dir, agentfile) = models.place("keys");
    let mut command = models.world.lodge.cli_command(["init", &dir, "--template", "coder"]);
    command.env("ANTHROPIC_API_KEY", "sk-canary-1");
    let mut init = TerminalSession::at(command);
    init.see("Store it as the provider `anthropic`?");
    init.type_in("maybe\n");
    init.see("`maybe` is neither `y` nor `n`. ANTHROPIC_API_KEY is set.");
    init.type_in("no\n");
    init.see("next, in the directory of the project:");
    assert_eq!(init.end(), 0);
    assert!(fs::read_to_string(agentfile).expect("a file").contains("MODEL work/tiny\n"));
    assert!(!models.world.lodge.cli_ok(["provider", "ls", "-q"]).contains("anthropic"));
}
