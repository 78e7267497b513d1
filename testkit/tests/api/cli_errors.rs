//! Errors for names that do not exist, are ambiguous or are taken: one form, always with the next step.

use serde_json::json;

use crate::world::{AGENTFILE, ApiWorld, id};

const NO_AGENT: &str = "error: no agent `nosuch`\n\nhint: `lodge ps -a` lists all agents\n";
const NO_SESSION: &str = "error: no session `nosuch`\n\nhint: `lodge session ls` lists all sessions\n";
const NO_IMAGE: &str = "error: no image `nosuch`\n\n\
    hint: `lodge image ls` lists all images; `lodge image build DIR -t NAME` makes one\n";
const NO_PROVIDER: &str = "error: no provider `nosuch`\n\n\
    hint: `lodge provider ls` lists all providers, `lodge provider add` adds one\n";
const NO_LINEAGE: &str = "error: no lineage `lin_zzz`\n\nhint: `lodge lineage ls` lists all lineages\n";
const NO_TOKEN: &str = "error: no token `tok_zzz`\n\n\
    hint: `lodge token ls -a` lists all tokens; give an id, not a value\n";

#[test]
fn everything_unknown_is_reported_in_one_form_with_the_way_to_find_it() {
    let world = ApiWorld::new();
    let lines = [
        ("inspect nosuch", NO_AGENT),
        ("start nosuch", NO_AGENT),
        ("stop nosuch", NO_AGENT),
        ("restart nosuch", NO_AGENT),
        ("update nosuch --model mock/m", NO_AGENT),
        ("kill nosuch", NO_AGENT),
        ("rm nosuch", NO_AGENT),
        ("logs nosuch", NO_AGENT),
        ("prompt nosuch hi", NO_AGENT),
        ("prompt nosuch --detach hi", NO_AGENT),
        ("chat nosuch", NO_AGENT),
        ("session ls --agent nosuch", NO_AGENT),
        ("session search --agent nosuch x", NO_AGENT),
        ("lineage ls --agent nosuch", NO_AGENT),
        ("lineage show nosuch", NO_AGENT),
        ("events --agent nosuch", NO_AGENT),
        ("events -n 1 --agent nosuch", NO_AGENT),
        ("events -f --agent nosuch", NO_AGENT),
        ("token issue --agent nosuch", NO_AGENT),
        ("session show nosuch", NO_SESSION),
        ("session export nosuch", NO_SESSION),
        ("session fork nosuch", NO_SESSION),
        ("session rewind nosuch 1", NO_SESSION),
        ("session regenerate nosuch", NO_SESSION),
        ("session activate nosuch trn_x", NO_SESSION),
        ("session search -s nosuch x", NO_SESSION),
        ("image inspect nosuch", NO_IMAGE),
        ("image rm nosuch", NO_IMAGE),
        ("provider rm nosuch", NO_PROVIDER),
        ("provider test nosuch", NO_PROVIDER),
        ("lineage show lin_zzz", NO_LINEAGE),
        ("lineage resolve lin_zzz --reap", NO_LINEAGE),
        ("token revoke tok_zzz", NO_TOKEN),
    ];
    for (line, expected) in lines {
        let args: Vec<&str> = line.split(' ').collect();
        let (code, out, err) = world.cli(&args);
        assert_eq!((code, out.as_str(), err.as_str()), (1, "", expected), "{line}");
    }
}

#[tokio::test]
async fn a_beginning_that_several_have_is_reported_with_all_of_them() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    let shared = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let check = |args: &[&str], given: &str, what: &str, ids: [&str; 2]| {
        let (code, out, err) = world.cli(args);
        let expected = format!("error: several {what} start with `{given}`\n\nhint: give more of the id: ");
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}");
        let told = err.strip_prefix(&expected).unwrap_or_else(|| panic!("{args:?}: {err}"));
        assert!(ids.iter().all(|id| told.contains(id)), "{args:?}: {err}");
    };
    let given = &one[..shared(&one, &two)];
    for verb in ["inspect", "stop", "logs", "rm"] {
        check(&[verb, given], given, "agents", [&one, &two]);
    }
    check(&["events", "--agent", given], given, "agents", [&one, &two]);
    let lineages = world.cli_json(&["--json", "lineage", "ls"]);
    let (first, second) = (id(&lineages[0]), id(&lineages[1]));
    let given = &first[..shared(first, second)];
    check(&["lineage", "show", given], given, "lineages", [first, second]);
    let token = |name: &str| world.cli_json(&["--json", "token", "issue", "--name", name]);
    let (first, second) = (token("a"), token("b"));
    let given = &id(&first)[..shared(id(&first), id(&second))];
    check(&["token", "revoke", given], given, "tokens", [id(&first), id(&second)]);
}

#[tokio::test]
async fn names_that_are_taken_or_cannot_be_are_reported_with_what_to_do() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let dir = world.lodge.agent_dir("one", AGENTFILE, &[]);
    let dir = dir.to_str().expect("UTF-8");
    world.agent(&mut api, "one").await;
    api.answer("one", "s", "[[reply:x]]").await;
    let other = api.say("one", "t", "[[reply:x]]").await;
    let other = id(&other);
    let no_branch = format!(
        "error: session `s` has no turn `{other}`\n\n\
         hint: `lodge session show s --all` lists the turns of all branches by id\n"
    );
    let taken = format!(
        "error: another agent is named `one`\n\nhint: choose another name, or remove that one with `lodge rm one`; \
         to change `one` itself: lodge agent update one --image {dir}\n"
    );
    let lines: [(&[&str], &str); 6] = [
        (&["run", dir, "--name", "one"], &taken),
        (
            &["run", dir, "--name", "a b"],
            "error: `a b` cannot be an agent's name\n\n\
             hint: 1 to 63 letters, digits, `.`, `_` or `-`, starting with a letter or digit, and not with `agt_`\n",
        ),
        (
            &["run", "nosuch"],
            "error: there is no directory or Agentfile `nosuch`, and no image of that name\n\n\
             hint: give a directory with an Agentfile, an Agentfile, `-` to read one from stdin, or an image: one of `lodge image ls`, or `registry.example/name:tag`\n",
        ),
        (
            &["session", "rewind", "s", "7"],
            "error: session `s` has no turn `7`\n\nhint: `lodge session show s` lists its turns\n",
        ),
        (
            &["session", "activate", "s", "7"],
            "error: session `s` has no turn `7`\n\n\
             hint: `lodge session show s --all` lists the turns of all branches by id\n",
        ),
        (&["session", "activate", "s", other], &no_branch),
    ];
    for (args, expected) in lines {
        let (code, out, err) = world.cli(args);
        assert_eq!((code, out.as_str(), err.as_str()), (1, "", expected), "{args:?}");
    }
    for (args, code) in [
        (&["provider", "add", "mock", "--kind", "script"][..], "a provider"),
        (&["session", "fork", "s", "--as", "s"], "session"),
    ] {
        let (exit, out, err) = world.cli(args);
        assert!(
            exit == 1 && out.is_empty() && err.contains(code) && err.contains("\nhint: "),
            "{args:?}: {err}"
        );
    }
    let (code, _, err) = world.cli(&["agent", "update", "one"]);
    assert_eq!((code, err.lines().next()), (2, Some("error: there is nothing to change")));
    let (code, _, err) = world.cli(&["prompt", "one", "-s", "s", "[[status:400]]"]);
    assert!(code == 1 && err.contains("\nhint: "), "{err}");
    let (code, _, err) = world.cli(&["prompt", "one"]);
    assert_eq!((code, err.lines().next()), (2, Some("error: there is nothing to ask: stdin is empty")));
    assert_eq!(
        api.ok("agent/list", json!({"all": true})).await["agents"].as_array().expect("agents").len(),
        1
    );
}
