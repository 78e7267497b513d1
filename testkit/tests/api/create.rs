//! Invalid agents: every mistake is reported with its position, and nothing is created.

use serde_json::{Value, json};

use crate::world::{AGENTFILE, ApiWorld};

/// Creating is refused with this code, and leaves nothing behind.
async fn refused(world: &ApiWorld, params: Value, code: &str) -> Value {
    let mut api = world.checked().await;
    let before = (api.ok("agent/list", json!({"all": true})).await, api.log().await.len());
    let error = api.refused("agent/create", params, code).await;
    assert!(error["data"]["hint"].is_string(), "{error}");
    let after = (api.ok("agent/list", json!({"all": true})).await, api.log().await.len());
    assert_eq!(after, before, "something was made");
    let roots = std::fs::read_dir(world.lodge.home().join("agents")).expect("a directory").count();
    assert_eq!(roots, before.0["agents"].as_array().expect("agents").len());
    error
}

#[tokio::test]
async fn all_mistakes_of_an_agentfile_are_reported_with_file_line_and_column() {
    let world = ApiWorld::new();
    let text = "FROM scratch\nMODEL gpt\nBINN sh host:sh\nENV PATH=/x\nBIN ok host:sh\nLIMIT memroy 1g\n";
    let dir = world.lodge.agent_dir("bad", text, &[]);
    let error = refused(&world, json!({"path": dir}), "agentfile.invalid").await;
    let told = error.to_string();
    for place in ["Agentfile:2:7", "Agentfile:3:1", "Agentfile:4:", "Agentfile:6:7"] {
        assert!(told.contains(place), "{place} is missing: {told}");
    }
    let (code, out, err) = world.cli(&["run", dir.to_str().expect("UTF-8")]);
    assert!(code == 1 && out.is_empty(), "{code} {out}");
    assert!(err.starts_with("error: ") && err.contains("hint: ") && err.contains("Agentfile:3:1"), "{err}");
    refused(&world, json!({"content": text}), "agentfile.invalid").await;
}

#[tokio::test]
async fn what_an_agentfile_or_a_call_names_and_is_not_there_is_refused() {
    let world = ApiWorld::new();
    let with = |line: &str| json!({"content": format!("{AGENTFILE}{line}\n")});
    let model = |model: &str| json!({"content": AGENTFILE, "model": model});
    refused(&world, model("nonsense"), "model.bad_name").await;
    let error = refused(&world, with("BIN gone host:no-such-program"), "bin.not_found").await;
    assert!(error.to_string().contains("no-such-program"), "{error}");
    refused(&world, with("BIN gone host:/usr/bin/no-such-program"), "bin.not_found").await;
    refused(&world, with("BIN dir host:/usr/bin"), "bin.not_found").await;
    refused(&world, with("BIN passwd host:/etc/passwd"), "bin.not_found").await;
    refused(&world, json!({"content": "FROM scratch\nNAME x\n"}), "agentfile.no_model").await;
    refused(&world, with("RUNTIME some/image:1"), "agentfile.invalid").await;
    refused(&world, json!({"path": "/no/such/dir"}), "agentfile.unreadable").await;
    let dir = world.lodge.agent_dir("half", "FROM scratch\nMODEL mock/m\nADD missing.txt\n", &[]);
    refused(&world, json!({"path": dir}), "agentfile.invalid").await;
}

#[tokio::test]
async fn variables_mounts_and_names_that_cannot_be_are_refused() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "taken").await;
    let with = |key: &str, value: Value| {
        let mut params = json!({"content": AGENTFILE});
        params[key] = value;
        params
    };
    for key in [
        "PATH",
        "HOME",
        "LANG",
        "TMPDIR",
        "XDG_ANYTHING",
        "LODGE_X",
        "MY_API_KEY",
        "X_API_BASE",
        "",
        "A=B",
        "1A",
    ] {
        refused(&world, with("env", json!({key: "x"})), "agent.bad_env").await;
    }
    let mount = |host: &str, target: &str| with("mounts", json!([{"host": host, "target": target}]));
    for (host, target) in [
        ("/no/such/path", "/data"),
        ("relative", "/data"),
        ("/usr", "data"),
        ("/usr", "/"),
        ("/usr", "/../x"),
        ("/usr", "/etc/x"),
        ("/usr", "/usr"),
    ] {
        refused(&world, mount(host, target), "agent.bad_mount").await;
    }
    let twice = json!([{"host": "/usr", "target": "/data"}, {"host": "/bin", "target": "/data"}]);
    refused(&world, with("mounts", twice), "agent.bad_mount").await;
    let error = refused(&world, with("name", json!("taken")), "agent.name_taken").await;
    assert!(error["data"]["hint"].as_str().expect("a hint").contains("lodge rm taken"), "{error}");
    let long = "x".repeat(64);
    for name in ["", " ", "a b", "../x", "-x", "ü", "agt_x", long.as_str()] {
        refused(&world, with("name", json!(name)), "agent.bad_name").await;
    }
    refused(&world, json!({}), "params.invalid").await;
    refused(&world, json!({"content": AGENTFILE, "path": "/x"}), "params.invalid").await;
    // The command line says the same, with exit code 1, and spots what it can by itself, with 2.
    let dir = world.lodge.agent_dir("good", AGENTFILE, &[]);
    let dir = dir.to_str().expect("UTF-8");
    assert_eq!(world.cli(&["run", dir, "-e", "PATH=/x"]).0, 1);
    assert_eq!(world.cli(&["run", dir, "--name", "taken"]).0, 1);
    assert_eq!(world.cli(&["run", dir, "-v", "/usr:relative"]).0, 2);
    assert_eq!(world.cli(&["run", dir, "-e", "NOVALUE"]).0, 2);
    // A name that was only suggested gives way.
    let second = api.ok("agent/create", with("labels", json!({}))).await;
    let third = api.ok("agent/create", with("labels", json!({}))).await;
    assert_eq!((&second["name"], &third["name"]), (&json!("tester"), &json!("tester-2")));
}
