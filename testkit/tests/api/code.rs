//! From a repository to an agent: SHELL, the file tools of the daemon, `lodge init` and `lodge code`.

use std::fs;

use serde_json::{Value, json};

use crate::world::{ApiWorld, sh};

/// An agent with the host's utilities and all file tools.
const CODER: &str = "FROM scratch\nNAME coder\nMODEL mock/m\nSHELL host\nBIN read builtin:read\nBIN write builtin:write\n\
    BIN replace builtin:replace\nBIN list builtin:list\nBIN search builtin:search\nBIN look builtin:read \"looks\"\n";

/// A daemon with this agent, `coder`.
async fn with_coder(agentfile: &str) -> ApiWorld {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let created = api.ok("agent/create", json!({"content": agentfile, "name": "coder"})).await;
    api.agent_is(created["id"].as_str().expect("an id"), "ready").await;
    world
}

/// Runs one program of the agent: its exit code, stdout and stderr.
fn tool(world: &ApiWorld, args: &[&str]) -> (i32, String, String) {
    world.cli(&[&["jobs", "run", "coder", "-w", "--"], args].concat())
}

fn tool_ok(world: &ApiWorld, args: &[&str]) -> String {
    let (code, out, err) = tool(world, args);
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    out
}

#[tokio::test]
async fn a_shell_of_the_host_finds_the_ordinary_utilities_and_the_agents_tools_first() {
    let world = with_coder("FROM scratch\nMODEL mock/m\nSHELL host\nBIN wc builtin:list\n").await;
    let script = "mkdir d && cd d && touch a b c && ls | sort -r | head -n 1 && printf x | tr x y && uname -s";
    assert_eq!(tool_ok(&world, &["sh", "-c", script]), "c\nyLinux\n");
    // The agent's own tool comes before the program of the host, also in a shell that this one starts.
    assert_eq!(tool_ok(&world, &["sh", "-c", "cd d && sh -c 'wc'"]), "a (0 bytes)\nb (0 bytes)\nc (0 bytes)\n");
    let path = tool_ok(&world, &["sh", "-c", "sh -c 'echo $PATH'"]);
    assert_eq!(path, "/opt/bins:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n");
    // The exit code is that of the command line, and arguments stay as they are.
    assert_eq!(tool(&world, &["sh", "-c", "printf '%s|' \"$@\"; exit 7", "x", "a b", ""]).1, "a b||");
    assert_eq!(tool(&world, &["sh", "-c", "exit 7"]).0, 7);
    // A model calls it in the same way.
    let (code, out, err) = world.cli(&["prompt", "coder", &sh("seq 1 40 | grep -c 3")]);
    assert!(code == 0 && out.contains("13"), "{out}{err}");
}

#[tokio::test]
async fn the_environment_stays_as_documented_with_a_shell_of_the_host() {
    let world = with_coder("FROM scratch\nMODEL mock/m\nSHELL host\nBIN env host:env\n").await;
    let env = tool_ok(&world, &["env"]);
    assert!(env.lines().any(|line| line == "PATH=/opt/bins"), "{env}");
}

#[tokio::test]
async fn what_a_shell_opens_is_shown_before_and_after_it_runs() {
    let world = with_coder(CODER).await;
    let inspected = world.lodge.cli_ok(["inspect", "coder"]);
    let opens = "sh runs every program of the host in /usr/local/sbin, /usr/local/bin, /usr/sbin, /usr/bin, /sbin, /bin";
    assert!(inspected.contains(opens), "{inspected}");
    assert!(inspected.contains("read from builtin:read: -, safe to repeat"), "{inspected}");
    let detail = world.cli_json(&["--json", "inspect", "coder"]);
    let tools = detail["tools"].as_array().expect("tools");
    let named = |name: &str| tools.iter().find(|tool| tool["name"] == name).expect("a tool").clone();
    assert_eq!((&named("sh")["source"], &named("sh")["portable"]), (&json!("host:sh"), &json!(false)));
    assert_eq!((&named("write")["portable"], &named("write")["safe"]), (&json!(true), &json!(false)));
    assert_eq!(named("look")["description"], "looks");
    // What a model reads says how to call it.
    let offered = |name: &str| -> Value {
        let requests = world.mock.requests().expect("requests");
        let tools = requests.last().expect("a request")["tools"].clone();
        let found = tools.as_array().expect("tools").iter().find(|tool| tool["function"]["name"] == name);
        found.expect("a tool")["function"]["description"].clone()
    };
    world.lodge.cli_ok(["prompt", "coder", "hello"]);
    assert!(offered("sh").as_str().expect("text").contains(r#"{"args": ["-c", "#), "{}", offered("sh"));
    assert!(offered("replace").as_str().expect("text").contains("exactly once"), "{}", offered("replace"));
    // Before it runs: what an image needs of its host, and what a new version opens.
    let old = world.lodge.agent_dir("old", "FROM scratch\nNAME old\nMODEL mock/m\nBIN read builtin:read\n", &[]);
    let new = world.lodge.agent_dir("new", "FROM scratch\nNAME new\nMODEL mock/m\nSHELL host\n", &[]);
    for dir in [&old, &new] {
        world.lodge.cli_ok(["image", "build", dir.to_str().expect("UTF-8")]);
    }
    let image = world.lodge.cli_ok(["image", "inspect", "new"]);
    assert!(image.contains("no: sh is a program of this host") && image.contains("SHELL host"), "{image}");
    assert!(world.lodge.cli_ok(["image", "inspect", "old"]).contains("portable    yes"));
    let diff = world.lodge.cli_ok(["image", "diff", "old", "new"]);
    assert!(diff.contains("SHELL host: every program of the host's /usr and /bin"), "{diff}");
}

#[tokio::test]
async fn file_tools_read_write_replace_list_and_search_and_refuse_what_is_wrong() {
    let world = with_coder(CODER).await;
    let out = tool_ok(&world, &["write", "src/a.txt", "one\ntwo\none\n"]);
    assert_eq!(out, "wrote src/a.txt: 3 lines, 12 bytes (a new file)\n");
    assert_eq!(tool_ok(&world, &["list", "--depth", "2"]), "src/\nsrc/a.txt (12 bytes)\n");
    assert_eq!(tool_ok(&world, &["replace", "src/a.txt", "two\none", "2\n1"]), "replaced 1 occurrence in src/a.txt (line 2)\n");
    assert_eq!(tool_ok(&world, &["look", "src/a.txt", "--offset", "2"]), "     2\t2\n     3\t1\n");
    assert_eq!(tool_ok(&world, &["search", "^o", "src"]), "src/a.txt:1:one\n");
    let wrong: [(&[&str], &str); 6] = [
        (&["read", "none"], "error: could not read `none`"),
        (&["read"], "hint: usage: "),
        (&["replace", "src/a.txt", "nothing", "x"], "does not occur in `src/a.txt`; nothing was changed"),
        (&["search", "a("], "hint: use `--literal`"),
        (&["list", "src/a.txt"], "is a file, not a directory"),
        (&["write", "src"], "there is no text to write"),
    ];
    for (args, words) in wrong {
        let (code, out, err) = tool(&world, args);
        assert!(code != 0 && out.is_empty() && err.contains(words), "{args:?}: {code} {out}{err}");
    }
    // Stdin carries text that has many lines.
    let blocks = "<<<<<<< SEARCH\none\n=======\n1\n>>>>>>> REPLACE\n";
    world.lodge.cli_ok(["jobs", "run", "coder", "-w", "--stdin", blocks, "--", "replace", "src/a.txt"]);
    // A script calls them as programs, too.
    assert_eq!(tool_ok(&world, &["sh", "-c", "list src | wc -l; look src/a.txt | head -n 1"]), "1\n     1\t1\n");
}

#[tokio::test]
async fn file_tools_reach_what_the_agent_reaches_and_nothing_else() {
    let world = with_coder(CODER).await;
    let secret = world.lodge.dir().join("secret.txt");
    fs::write(&secret, "canary").expect("a file");
    let path = secret.to_str().expect("UTF-8");
    for args in [&["read", path][..], &["read", "/../../../../../../../etc/shadow"], &["search", "canary", path]] {
        let (code, out, _) = tool(&world, args);
        assert!(code != 0 && !out.contains("canary"), "{args:?}: {out}");
    }
    let (code, _, err) = tool(&world, &["write", "/etc/passwd", "x"]);
    assert!(code != 0 && err.contains("could not write"), "{err}");
    assert!(tool(&world, &["write", "/opt/bins/more", "x"]).0 != 0);
    assert_eq!(fs::read_to_string(&secret).expect("a file"), "canary");
}

#[tokio::test]
async fn mistakes_about_shells_and_file_tools_have_a_place_and_a_fix() {
    let world = ApiWorld::new();
    let refused = |lines: &str, words: &[&str]| {
        let dir = world.lodge.agent_dir("bad", &format!("FROM scratch\nMODEL mock/m\n{lines}\n"), &[]);
        let (code, out, err) = world.cli(&["run", dir.to_str().expect("UTF-8")]);
        assert!(code == 1 && out.is_empty(), "{code} {out}");
        for word in words {
            assert!(err.contains(word), "{lines}: {word} is missing: {err}");
        }
    };
    refused("SHELL host\nSHELL host", &["Agentfile:4:7", "SHELL was already given on line 3"]);
    refused("SHELL host\nBIN sh host:sh", &["Agentfile:4:5", "given by SHELL on line 3", "remove this line or line 3"]);
    refused("BIN sh host:sh\nSHELL host", &["Agentfile:4:7", "given by BIN on line 3"]);
    refused("SHELL bash", &["Agentfile:3:7", "`SHELL host` or `SHELL stock`", "BIN bash host:bash"]);
    refused("BIN x builtin:raed", &["Agentfile:3:7", "no program `builtin:raed`", "did you mean `builtin:read`?"]);
    refused("SHELL stock", &["Agentfile:3:", "stock/busybox:latest", "make stock"]);
}
