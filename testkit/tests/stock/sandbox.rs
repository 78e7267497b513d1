//! The set as the tools of an agent.

use crate::set::{ASKS, stocked};

/// Every tool by its own name, and two of busybox by theirs.
const AGENTFILE: &str = "FROM scratch\nNAME all\nMODEL script/none\n\
    BIN busybox stock/busybox:latest\nBIN sh stock/busybox:latest\nBIN wc stock/busybox:latest \"counts\"\n\
    BIN rg stock/rg:latest\nBIN fd stock/fd:latest\nBIN jaq stock/jaq:latest\nBIN jq stock/jq:latest\nBIN xh stock/xh:latest\n\
    LIMIT memory 256m\nNETWORK none\n";

#[test]
fn every_tool_runs_in_the_sandbox_of_an_agent_without_a_network() {
    let lodge = stocked();
    let dir = lodge.agent_dir("all", AGENTFILE, &[]);
    lodge.cli_ok(["run".as_ref(), dir.as_os_str(), "-d".as_ref()]);
    let run = |stdin: &str, words: &[&str]| {
        let before = ["jobs", "run", "all", "--wait", "--stdin", stdin, "--"];
        lodge.cli_ok(before.iter().chain(words))
    };
    for ask in &ASKS {
        let words: Vec<&str> = std::iter::once(ask.tool).chain(ask.args.iter().copied()).collect();
        let out = run(ask.stdin, &words);
        assert!(out.contains(ask.answer), "{}: {out}", ask.tool);
    }
    // The name of the BIN is the utility that busybox is.
    assert_eq!(run("one two", &["wc", "-w"]).trim(), "2");
    assert_eq!(run("[1]", &["jq", ".[0]"]).trim(), "1");
    // Nothing of the host is there, and a script finds the agent's own shell.
    let script = "ls /; printf '#!/bin/sh\\necho ran\\n' > script; chmod +x script; ./script";
    let seen = run("", &["sh", "-c", script]);
    let first = lodge.dir().canonicalize().expect("a path");
    let first = first.components().nth(1).expect("a directory").as_os_str().to_string_lossy().into_owned();
    let own = ["bin", "dev", "etc", "home", "opt", "proc", "ran", "sys", "tmp", "var", "workspace"];
    assert!(seen.lines().all(|name| own.contains(&name) || name == first) && seen.contains("ran"), "{seen}");
    // Tools find each other by PATH, and a server of the sandbox's own loopback: nothing else is there to be reached.
    let script = "echo '{\"n\": 7}' > n.json; httpd -p 127.0.0.1:8088 -h . \
                  && xh --ignore-stdin -b GET http://127.0.0.1:8088/n.json | jaq .n; killall httpd";
    assert_eq!(run("", &["sh", "-c", script]).trim(), "7");
    let refused = lodge.cli([
        "jobs",
        "run",
        "all",
        "--wait",
        "--",
        "xh",
        "--ignore-stdin",
        "--timeout",
        "5",
        "http://192.0.2.1/",
    ]);
    assert!(!refused.status.success(), "{}", String::from_utf8_lossy(&refused.stdout));
}

#[test]
fn the_usage_of_a_tool_reaches_the_agent_with_it() {
    let lodge = stocked();
    let dir = lodge.agent_dir("all", AGENTFILE, &[]);
    lodge.cli_ok(["run".as_ref(), dir.as_os_str(), "-d".as_ref()]);
    let told = lodge.cli_ok(["jobs", "run", "all", "--wait", "--", "sh", "-c", "cat ../etc/agent.yaml"]);
    assert!(told.contains("filters JSON, like jq") && told.contains("Exit code 0: found"), "{told}");
    // What the Agentfile says of a tool goes before what its image says.
    assert!(told.contains("counts"), "{told}");
}
