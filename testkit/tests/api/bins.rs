//! Tools as images: built from files of the host, listed, pinned by agents, and removed when they are not needed.

use std::fs;

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::ApiWorld;

/// This host, as images call it.
pub fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{architecture}")
}

/// Builds a tool of a program of this host.
pub async fn tool(api: &mut CheckedClient, name: &str, path: &str, tags: &[&str]) -> Value {
    let programs = json!([{"platform": platform(), "path": path}]);
    let asked =
        json!({"name": name, "programs": programs, "description": format!("the tool {name}"), "tags": tags});
    api.ok("bin/build", asked).await
}

#[tokio::test]
async fn a_tool_is_built_for_several_platforms_and_the_same_input_is_the_same_tool() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let other = if platform() == "linux/arm64" { "linux/amd64" } else { "linux/arm64" };
    let asked = json!({
        "name": "cat", "description": "shows files", "usage": "cat FILE", "labels": {"a": "b"},
        "programs": [{"platform": other, "path": "/bin/ls"}, {"platform": platform(), "path": "/bin/cat"}],
        "tags": ["my/cat:v1", "cat"],
    });
    let built = api.ok("bin/build", asked.clone()).await;
    assert_eq!(built["refs"], json!(["cat:latest", "my/cat:v1"]));
    assert_eq!(
        (&built["name"], &built["runs_here"], &built["used"]),
        (&json!("cat"), &json!(true), &json!(0))
    );
    let copy = world.lodge.dir().join("copy of cat");
    fs::copy("/bin/cat", &copy).expect("a copy");
    let mut again = asked;
    again["programs"][1]["path"] = json!(copy);
    again["programs"].as_array_mut().expect("programs").reverse();
    assert_eq!(
        api.ok("bin/build", again).await["digest"],
        built["digest"],
        "from another file, in another order"
    );
    let detail = api.ok("bin/inspect", json!({"bin": "my/cat:v1"})).await;
    assert_eq!((&detail["usage"], &detail["labels"]["a"]), (&json!("cat FILE"), &json!("b")));
    let platforms: Vec<&str> = detail["programs"]
        .as_array()
        .expect("programs")
        .iter()
        .filter_map(|one| one["platform"].as_str())
        .collect();
    assert_eq!(platforms.len(), 2, "{detail:#}");
    assert!(platforms.contains(&other) && platforms.contains(&platform().as_str()), "{detail:#}");
    let only =
        json!({"name": "cat", "programs": [{"platform": other, "path": "/bin/ls"}], "tags": ["foreign"]});
    assert_eq!(api.ok("bin/build", only).await["runs_here"], false);
    let digests: Vec<Value> = listed(&mut api).await;
    assert_eq!(digests.len(), 2);
    assert_eq!(api.ok("image/list", json!({})).await["images"], json!([]), "tools are no agents");
    let short = built["digest"].as_str().expect("a digest")[7..19].to_owned();
    assert_eq!(api.ok("bin/inspect", json!({"bin": short})).await["digest"], built["digest"]);
}

async fn listed(api: &mut CheckedClient) -> Vec<Value> {
    let mut all = Vec::new();
    let mut after = Value::Null;
    loop {
        let page = api.ok("bin/list", json!({"limit": 1, "after": after})).await;
        all.extend(page["bins"].as_array().expect("bins").iter().map(|bin| bin["digest"].clone()));
        after = page["next"].clone();
        if after.is_null() {
            return all;
        }
    }
}

#[tokio::test]
async fn an_agent_runs_the_tool_that_its_image_pins_whatever_the_name_means_later() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let first = tool(&mut api, "show", "/bin/cat", &["show"]).await;
    let agentfile = "FROM scratch\nNAME reader\nMODEL mock/m\nBIN show show\n";
    let image = api.ok("image/build", json!({"content": agentfile})).await;
    let detail = api.ok("image/inspect", json!({"image": "reader"})).await;
    let pinned = format!("show:latest@{}", first["digest"].as_str().expect("a digest"));
    assert_eq!(
        (&detail["bins"][0]["source"], &detail["bins"][0]["portable"]),
        (&json!(pinned), &json!(true))
    );
    assert_eq!((&detail["portable"], &detail["complete"]), (&json!(true), &json!(true)));
    // The name means another tool from here on, and the image the one that it was built with.
    tool(&mut api, "show", "/bin/ls", &["show"]).await;
    assert_ne!(
        api.ok("image/build", json!({"content": agentfile, "tags": ["other"]})).await["digest"],
        image["digest"]
    );
    api.ok("agent/create", json!({"image": image["digest"], "name": "one"})).await;
    let agent = api.agent_is("one", "ready").await;
    let tool = &agent["tools"][0];
    assert_eq!(
        (&tool["source"], &tool["portable"], &tool["description"]),
        (&json!(pinned), &json!(true), &json!("the tool show"))
    );
    let turn =
        api.say("one", "s", &format!("[[tool:show|{}]] [[reply:done]]", json!(["etc/agent.yaml"]))).await;
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("done")), "{turn:#}");
    let used = api.ok("bin/inspect", json!({"bin": first["digest"]})).await;
    assert_eq!((&used["used"], &used["refs"]), (&json!(2), &json!([])), "an image and an agent need it");
    let error = api.refused("bin/remove", json!({"bin": first["digest"]}), "image.in_use").await;
    assert!(error["message"].as_str().expect("words").contains("`one`"), "{error}");
    api.ok("agent/remove", json!({"agent": "one", "force": true})).await;
    api.refused("bin/remove", json!({"bin": first["digest"]}), "image.in_use").await;
    api.ok("image/remove", json!({"image": "reader"})).await;
    api.refused("bin/inspect", json!({"bin": first["digest"]}), "bin.not_found").await;
}

#[tokio::test]
async fn a_runtime_may_be_a_tool_of_an_image() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "stock").await;
    let programs = fs::read_dir(world.lodge.home().join("bin")).expect("a directory").flatten();
    let mut runtimes =
        programs.filter(|one| one.file_name().to_str().is_some_and(|name| name.starts_with("runtime-")));
    let runtime = runtimes.next().expect("a runtime").path();
    let built = tool(&mut api, "my-loop", runtime.to_str().expect("UTF-8"), &["my/loop:v1"]).await;
    let agentfile = "FROM scratch\nNAME own\nMODEL mock/m\nRUNTIME my/loop:v1\n";
    api.ok("agent/create", json!({"content": agentfile, "name": "by-image"})).await;
    api.agent_is("by-image", "ready").await;
    assert_eq!(api.answer("by-image", "s", "[[reply:from an image]]").await, "from an image");
    let pinned = format!("my/loop:v1@{}", built["digest"].as_str().expect("a digest"));
    assert_eq!(api.ok("image/inspect", json!({"image": "own"})).await["runtime"], pinned);
    let plain =
        json!({"content": "FROM scratch\nMODEL mock/m\n", "name": "by-flag", "runtime": "my/loop:v1"});
    api.ok("agent/create", plain).await;
    api.agent_is("by-flag", "ready").await;
    assert_eq!(api.answer("by-flag", "t", "[[reply:by a flag]]").await, "by a flag");
    let error = api.refused("bin/remove", json!({"bin": "my/loop:v1"}), "image.in_use").await;
    let told = error["message"].as_str().expect("words");
    assert!(["`by-flag`", "`by-image`", "`own:latest`"].iter().all(|user| told.contains(user)), "{error}");
    assert_eq!(api.ok("bin/list", json!({})).await["bins"][0]["used"], 3, "by each of these");
    assert_eq!(api.ok("bin/inspect", json!({"bin": "my/loop:v1"})).await["used"], 3);
}

#[tokio::test]
async fn what_cannot_be_a_tool_is_refused_and_nothing_is_recorded() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let here = platform();
    let good = json!([{"platform": here, "path": "/bin/cat"}]);
    let long = "x".repeat(300);
    let many: Vec<String> = (0..65).map(|number| format!("t{number}")).collect();
    for (asked, code) in [
        (json!({}), "params.invalid"),
        (json!({"name": "cat"}), "params.invalid"),
        (json!({"programs": good}), "image.bad_ref"),
        (json!({"name": "../x", "programs": good}), "image.bad_ref"),
        (json!({"name": "a/b", "programs": good, "tags": ["x"]}), "params.invalid"),
        (json!({"name": long, "programs": good, "tags": ["x"]}), "params.invalid"),
        (json!({"name": "cat", "programs": good, "tags": ["a b"]}), "image.bad_ref"),
        (json!({"name": "cat", "programs": good, "tags": many}), "params.invalid"),
        (json!({"name": "host", "programs": good}), "image.bad_ref"),
        (json!({"name": "cat", "programs": good, "tags": ["cat", "host:v1"]}), "image.bad_ref"),
        (json!({"name": "cat", "programs": [{"platform": "x", "path": "/bin/cat"}]}), "params.invalid"),
        (json!({"name": "cat", "programs": [good[0], good[0]]}), "params.invalid"),
        (json!({"name": "cat", "programs": [{"platform": here, "path": "/no/such"}]}), "bin.unreadable"),
        (json!({"name": "cat", "programs": [{"platform": here, "path": "/bin"}]}), "bin.unreadable"),
        (json!({"name": "cat", "programs": [{"platform": here, "path": "/dev/zero"}]}), "bin.unreadable"),
        (json!({"name": "cat", "programs": [{"platform": here}]}), "bin.unreadable"),
        (json!({"name": "cat", "programs": "x"}), "params.invalid"),
    ] {
        let error = api.refused("bin/build", asked.clone(), code).await;
        assert!(error["message"].as_str().expect("words").len() < 600, "{error}");
        assert!(error["data"]["hint"].is_string(), "{asked}: {error}");
    }
    assert_eq!(api.ok("bin/list", json!({})).await["bins"], json!([]));
    for given in ["nobody", "nobody:v1", "abcdef012345"] {
        for method in ["bin/inspect", "bin/remove", "bin/push"] {
            let error = api.refused(method, json!({"bin": given}), "bin.not_found").await;
            assert!(error["data"]["hint"].as_str().expect("a hint").contains("lodge bin ls"), "{error}");
        }
    }
    for given in ["", "../x", "a b", "a:b:c", "\u{fc}"] {
        for method in ["bin/inspect", "bin/remove", "bin/push", "bin/pull"] {
            api.refused(method, json!({"bin": given}), "image.bad_ref").await;
        }
    }
    api.refused("bin/pull", json!({"bin": "no-registry"}), "image.bad_ref").await;
    api.refused("bin/pull", json!({"bin": "127.0.0.1:1/x", "tags": ["a b"]}), "image.bad_ref").await;
    tool(&mut api, "cat", "/bin/cat", &["cat"]).await;
    // As a tool's name `host:…` would be read as a program of the host; what is called so elsewhere is none.
    for (method, asked) in [
        ("bin/pull", json!({"bin": "127.0.0.1:1/x", "tags": ["host"]})),
        ("bin/pull", json!({"bin": "host:1/x"})),
        ("image/tag", json!({"image": "cat", "tags": ["host"]})),
    ] {
        let error = api.refused(method, asked, "image.bad_ref").await;
        let words = error["message"].as_str().expect("words");
        assert!(words.contains("cannot be the name of a tool: `host:`"), "{error}");
    }
    tool(&mut api, "host", "/bin/cat", &["my/host"]).await;
    api.refused("bin/push", json!({"bin": "cat"}), "image.bad_ref").await;
}
