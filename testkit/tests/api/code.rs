//! From a repository to an agent: SHELL, the file tools of the daemon, `lodge init` and `lodge code`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::world::{ApiWorld, sh, told};

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
    let script =
        "mkdir d && cd d && touch a b c && ls | sort -r | head -n 1 && printf x | tr x y && uname -s";
    assert_eq!(tool_ok(&world, &["sh", "-c", script]), "c\nyLinux\n");
    // The agent's own tool comes before the program of the host, also in a shell that this one starts.
    assert_eq!(
        tool_ok(&world, &["sh", "-c", "cd d && sh -c 'wc'"]),
        "a (0 bytes)\nb (0 bytes)\nc (0 bytes)\n"
    );
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
    assert!(inspected.contains("read from builtin:read, safe to repeat"), "{inspected}");
    let detail = world.cli_json(&["--json", "inspect", "coder"]);
    let tools = detail["tools"].as_array().expect("tools");
    let named = |name: &str| tools.iter().find(|tool| tool["name"] == name).expect("a tool").clone();
    assert_eq!((&named("sh")["source"], &named("sh")["portable"]), (&json!("host:sh"), &json!(false)));
    assert_eq!((&named("write")["portable"], &named("write")["safe"]), (&json!(true), &json!(false)));
    assert_eq!(named("look")["description"], "looks");
    // What a model reads says how to call it.
    let yaml =
        world.lodge.home().join("agents").join(detail["id"].as_str().expect("an id")).join("etc/agent.yaml");
    let told = fs::read_to_string(yaml).expect("agent.yaml");
    for words in [
        "runs one command line, with pipes",
        "It must occur exactly once",
        r#"{"args": ["PATH", "OLD", "NEW"]}"#,
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // Before it runs: what an image needs of its host, and what a new version opens.
    let old =
        world.lodge.agent_dir("old", "FROM scratch\nNAME old\nMODEL mock/m\nBIN read builtin:read\n", &[]);
    let new = world.lodge.agent_dir("new", "FROM scratch\nNAME new\nMODEL mock/m\nSHELL host\n", &[]);
    for dir in [&old, &new] {
        world.lodge.cli_ok(["image", "build", dir.to_str().expect("UTF-8")]);
    }
    let image = world.lodge.cli_ok(["image", "inspect", "new"]);
    assert!(image.contains("no: sh is a program of this host") && image.contains("SHELL host"), "{image}");
    assert_eq!(world.cli_json(&["--json", "image", "inspect", "old"])["portable"], true);
    let diff = world.lodge.cli_ok(["image", "diff", "old", "new"]);
    assert!(diff.contains("SHELL host: every program of the host's /usr and /bin"), "{diff}");
}

#[tokio::test]
async fn file_tools_read_write_replace_list_and_search_and_refuse_what_is_wrong() {
    let world = with_coder(CODER).await;
    let out = tool_ok(&world, &["write", "src/a.txt", "one\ntwo\none\n"]);
    assert_eq!(out, "wrote src/a.txt: 3 lines, 12 bytes (a new file)\n");
    assert_eq!(tool_ok(&world, &["list", "--depth", "2"]), "src/\nsrc/a.txt (12 bytes)\n");
    assert_eq!(
        tool_ok(&world, &["replace", "src/a.txt", "two\none", "2\n1"]),
        "replaced 1 occurrence in src/a.txt (line 2)\n"
    );
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
    assert_eq!(
        tool_ok(&world, &["sh", "-c", "list src | wc -l; look src/a.txt | head -n 1"]),
        "1\n     1\t1\n"
    );
}

#[tokio::test]
async fn file_tools_reach_what_the_agent_reaches_and_nothing_else() {
    let world = with_coder(CODER).await;
    let secret = world.lodge.dir().join("secret.txt");
    fs::write(&secret, "canary").expect("a file");
    let path = secret.to_str().expect("UTF-8");
    for args in
        [&["read", path][..], &["read", "/../../../../../../../etc/shadow"], &["search", "canary", path]]
    {
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
    refused(
        "SHELL host\nBIN sh host:sh",
        &["Agentfile:4:5", "given by SHELL on line 3", "remove this line or line 3"],
    );
    refused("BIN sh host:sh\nSHELL host", &["Agentfile:4:7", "given by BIN on line 3"]);
    refused("SHELL bash", &["Agentfile:3:7", "`SHELL host` or `SHELL stock`", "BIN bash host:bash"]);
    refused(
        "BIN x builtin:raed",
        &["Agentfile:3:7", "no program `builtin:raed`", "did you mean `builtin:read`?"],
    );
    refused("SHELL stock", &["Agentfile:3:", "stock/busybox:latest", "make stock"]);
}

/// A project that every agent may write to, as a mount of a daemon that is root needs.
fn project(world: &ApiWorld, name: &str) -> String {
    let dir = world.lodge.dir().join(name);
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("README.md"), "# Otter\n\nFinds fish.\n").expect("a file");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("a mode");
    dir.to_str().expect("UTF-8").to_owned()
}

/// A daemon that knows no provider but the scripted one.
fn without_provider() -> ApiWorld {
    let world = ApiWorld::new();
    world.put_providers("  []\n");
    world
}

#[tokio::test]
async fn every_template_builds_and_runs_without_a_provider() {
    let world = without_provider();
    for template in ["coder", "reviewer", "ops", "blank"] {
        let dir = format!("{}/{template}", world.lodge.dir().display());
        let next =
            world.lodge.cli_ok(["init", &dir, "--template", template, "--name", &format!("my-{template}")]);
        assert!(next.starts_with(&format!("lodge run {dir} ")) && next.lines().count() == 1, "{next}");
        let (code, out, err) = world.cli(&["run", &dir, "what is this?"]);
        assert!(code == 0 && out.contains("You said “what is this?”"), "{template}: {out}{err}");
        assert!(out.contains("lodge provider add work"), "{template}: {out}");
        assert_eq!(world.cli_json(&["--json", "inspect", &format!("my-{template}")])["status"], "ready");
    }
}

#[tokio::test]
async fn init_overwrites_nothing_and_takes_the_model_that_there_is() {
    let world = without_provider();
    let dir = world.lodge.dir().join("My Agent");
    let (place, agentfile) = (dir.to_str().expect("UTF-8"), dir.join("Agentfile"));
    world.lodge.cli_ok(["init", place, "--template", "blank"]);
    let written = fs::read_to_string(&agentfile).expect("a file");
    assert!(written.contains("NAME my-agent\nMODEL script/lodge-demo\n"), "{written}");
    let (code, out, err) = world.cli(&["init", place, "--template", "coder", "--model", "a/b"]);
    assert!(
        code == 1 && out.is_empty() && err.contains("exists already") && err.contains("--force"),
        "{err}"
    );
    // A script that is somebody's own is not overwritten either, and then nothing is written.
    fs::remove_file(&agentfile).expect("a file");
    assert_eq!(world.cli(&["init", place]).0, 1);
    assert!(!agentfile.exists());
    let report =
        world.cli_json(&["--json", "init", place, "--force", "--template", "coder", "--model", "a/b"]);
    assert_eq!((&report["model"], &report["template"]), (&json!("a/b"), &json!("coder")));
    assert!(fs::read_to_string(&agentfile).expect("a file").contains("MODEL a/b\n"));
    // A provider that is configured gives the model.
    world.put_providers(&format!(
        "{}    models: [big, small]\n",
        world.provider("mock", &world.mock.base_url())
    ));
    let second = world.lodge.dir().join("second");
    let report = world.cli_json(&["--json", "init", second.to_str().expect("UTF-8")]);
    assert_eq!(report["model"], "mock/big");
    assert!(!second.join("lodge-demo.yaml").exists());
    assert_eq!(world.cli(&["init", place, "--force", "--name", "a b"]).0, 2);
    for model in ["", "m", "mock/", "mock/m\nSHELL host"] {
        assert_eq!(world.cli(&["init", place, "--force", "--model", model]).0, 2, "{model:?}");
    }
}

#[tokio::test]
async fn init_finds_keys_in_the_environment_and_stores_them_only_when_asked() {
    let world = without_provider();
    let init = |dir: &str, more: &[&str]| {
        let dir = world.lodge.dir().join(dir);
        let mut command = world.lodge.cli_command([&["init", dir.to_str().expect("UTF-8")], more].concat());
        let output =
            command.env("ANTHROPIC_API_KEY", "sk-canary-1").env("OLLAMA_HOST", "127.0.0.1:1").output();
        let (code, out, err) = told(&output.expect("lodge runs"));
        assert!(code == 0 && !out.contains("sk-canary") && !err.contains("sk-canary"), "{code} {out}{err}");
        (out, err)
    };
    let providers = || world.lodge.cli_ok(["provider", "ls", "-q"]);
    let before = providers();
    let (next, _) = init("one", &[]);
    let commands: Vec<&str> = next.lines().collect();
    assert_eq!(
        commands[0],
        "printenv ANTHROPIC_API_KEY | lodge provider add anthropic --kind anthropic --api-key -"
    );
    assert_eq!(commands[1], "lodge provider add ollama --kind ollama --base-url http://127.0.0.1:1");
    assert!(commands[2].starts_with("lodge run ") && commands.len() == 3, "{next}");
    assert_eq!(providers(), before);
    let agentfile = fs::read_to_string(world.lodge.dir().join("one/Agentfile")).expect("a file");
    assert!(agentfile.contains("MODEL anthropic/claude-"), "{agentfile}");
    // With a model of the test's own, no provider is asked for its list.
    let (next, err) = init("two", &["--add-providers", "--model", "a/b"]);
    assert!(
        next.starts_with("lodge run ") && err.contains("stored the key of ANTHROPIC_API_KEY"),
        "{next}{err}"
    );
    assert!(providers().contains("anthropic\n") && providers().contains("ollama\n"), "{}", providers());
    let shown = world.lodge.cli_ok(["provider", "ls", "--reveal"]);
    assert!(shown.contains("sk-canary-1"), "{shown}");
    // Stored once: nothing is left to do.
    assert!(init("three", &["--model", "a/b"]).0.starts_with("lodge run "));
}

#[tokio::test]
async fn code_answers_without_a_provider_and_continues_with_the_same_agent_and_session() {
    let world = without_provider();
    let dir = project(&world, "otter");
    let (code, out, err) = world.cli(&["code", &dir, "-p", "what is this?"]);
    assert!(
        code == 0 && out.contains("README.md begins:\n# Otter") && out.contains("You said “what is this?”"),
        "{out}{err}"
    );
    assert!(
        err.contains(&format!("code-otter works on {dir}")) && err.contains("lodge provider add"),
        "{err}"
    );
    world.lodge.cli_ok(["stop", "code-otter"]);
    let (code, out, err) = world.cli(&["code", &dir, "and", "now?"]);
    assert!(code == 0 && out.contains("You said “and now?”"), "{out}{err}");
    let agents = world.cli_json(&["--json", "ps", "-a"]);
    assert_eq!(agents.as_array().map(Vec::len), Some(1), "{agents}");
    let turns = |sessions: &Value| {
        sessions.as_array().expect("sessions").iter().map(|one| one["turns"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(turns(&world.cli_json(&["--json", "session", "ls"])), [json!(2)]);
    world.lodge.cli_ok(["code", &dir, "--new", "-p", "from the beginning"]);
    assert_eq!(turns(&world.cli_json(&["--json", "session", "ls"])), [json!(1), json!(2)]);
    // Another directory of the same name is another agent.
    fs::create_dir(world.lodge.dir().join("other")).expect("a directory");
    let other = project(&world, "other/otter");
    world.lodge.cli_ok(["code", &other, "-p", "hello"]);
    assert_eq!(
        world.cli_json(&["--json", "inspect", "code-otter-2"])["labels"]["lodge.code"],
        other.as_str()
    );
    assert_eq!(world.cli(&["code", "/no/such/place", "-p", "x"]).0, 2);
    assert_eq!(world.cli(&["code", &dir, "-p", " "]).0, 2);
}

#[tokio::test]
async fn a_coding_agent_changes_the_project_and_takes_a_real_model_when_there_is_one() {
    let world = without_provider();
    let dir = project(&world, "otter");
    world.lodge.cli_ok(["code", &dir, "-p", "hello"]);
    world.put_providers(&format!("{}    models: [big]\n", world.provider("mock", &world.mock.base_url())));
    let change = format!(
        "[[tool:write|{}]] {}",
        json!(["src/main.txt", "fish\n"]),
        sh("sed -i s/fish/otters/ src/main.txt && ls src | wc -l")
    );
    let (code, out, err) = world.cli(&["code", &dir, "-p", &change]);
    assert!(code == 0 && err.contains("code-otter has the model mock/big now"), "{out}{err}");
    let made = fs::read_to_string(format!("{dir}/src/main.txt")).expect("a file");
    assert!(["fish\n", "otters\n"].contains(&made.as_str()), "{made}");
    // A chat that is piped in continues the conversation.
    let mut chat = world.lodge.cli_command(["code", &dir]);
    let mut chat =
        chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lodge runs");
    chat.stdin.take().expect("a pipe").write_all(b"and more\n").expect("a line");
    let (code, _, err) = told(&chat.wait_with_output().expect("it ends"));
    assert_eq!(code, 0, "{err}");
    let sessions = world.cli_json(&["--json", "session", "ls"]);
    assert_eq!((sessions.as_array().map(Vec::len), &sessions[0]["turns"]), (Some(1), &json!(3)));
}
