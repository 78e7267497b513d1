//! Images of agents: their contents, names and descriptions.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::bins::{platform, tool};
use crate::world::{AGENTFILE, ApiWorld};

#[tokio::test]
async fn the_same_input_is_the_same_digest_from_anywhere_and_writes_nothing_twice() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let source =
        "FROM scratch\nNAME same\nMODEL mock/m\nCONTEXT SOUL file://soul.md\nADD data.bin\nLABEL a=b\n";
    let files = [("soul.md", "who I am"), ("data.bin", "\u{1}\u{2}")];
    let first = world.lodge.agent_dir("first", source, &files);
    let second = world.lodge.agent_dir("another-place", source, &files);
    for name in ["Agentfile", "soul.md", "data.bin"] {
        let path = second.join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        fs::File::options().write(true).open(&path).and_then(|file| file.set_modified(old)).expect("a time");
    }
    let built = api.ok("image/build", json!({"path": first, "tags": ["same"]})).await;
    let before = blobs(&world);
    let again = api.ok("image/build", json!({"path": second, "tags": ["same:v2"]})).await;
    assert_eq!((&again["digest"], blobs(&world)), (&built["digest"], before));
    assert_eq!(again["refs"], json!(["same:latest", "same:v2"]));
    fs::write(second.join("data.bin"), "\u{1}\u{3}").expect("a file");
    assert_ne!(
        api.ok("image/build", json!({"path": second, "tags": ["same:v3"]})).await["digest"],
        built["digest"]
    );
}

/// The files of the store with when they were written.
fn blobs(world: &ApiWorld) -> BTreeMap<String, std::time::SystemTime> {
    let dir = world.lodge.home().join("registry/blobs/sha256");
    let found = fs::read_dir(dir).expect("a store").flatten();
    found
        .map(|entry| {
            let written = entry.metadata().and_then(|meta| meta.modified()).expect("a time");
            (entry.file_name().to_string_lossy().into_owned(), written)
        })
        .collect()
}

#[tokio::test]
async fn an_image_tells_its_blobs_as_they_lie_in_the_store() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let source =
        "FROM scratch\nNAME parts\nMODEL mock/m\nCONTEXT SOUL <<E\nwho\nE\nADD data.txt\nBIN sh host:sh\n";
    let dir = world.lodge.agent_dir("parts", source, &[("data.txt", "facts")]);
    let built = api.ok("image/build", json!({"path": dir})).await;
    let detail = api.ok("image/inspect", json!({"image": "parts"})).await;
    let parts = detail["blobs"].as_array().expect("blobs");
    assert_eq!(parts[0]["digest"], built["digest"]);
    let titles: Vec<&Value> = parts.iter().map(|part| &part["title"]).collect();
    assert_eq!(
        titles,
        [&json!(null), &json!(null), &json!("Agentfile"), &json!("SOUL.md"), &json!("data.txt")]
    );
    let sum: u64 = parts.iter().filter_map(|part| part["size_bytes"].as_u64()).sum();
    assert_eq!(built["size_bytes"], sum);
    for part in parts {
        let hex =
            part["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:")).expect("a digest");
        let meta = fs::metadata(world.lodge.home().join("registry/blobs/sha256").join(hex)).expect("a blob");
        assert_eq!(
            (meta.len(), meta.permissions().mode() & 0o077),
            (part["size_bytes"].as_u64().expect("a size"), 0)
        );
    }
    assert_eq!((&detail["complete"], &detail["portable"]), (&json!(true), &json!(false)), "sh is the host's");
    // A file that was changed behind the daemon's back is not believed.
    let hex = built["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:")).expect("a digest");
    let path = world.lodge.home().join("registry/blobs/sha256").join(hex);
    let mut bytes = fs::read(&path).expect("a manifest");
    bytes[0] = b' ';
    fs::remove_file(&path).and_then(|()| fs::write(&path, bytes)).expect("a file");
    let error = api.refused("image/inspect", json!({"image": "parts"}), "image.damaged").await;
    assert!(error["data"]["hint"].is_string(), "{error}");
}

#[tokio::test]
async fn names_are_added_moved_and_kept_apart_by_kind() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = api.ok("image/build", json!({"content": AGENTFILE, "tags": ["a"]})).await;
    let bin = tool(&mut api, "cat", "/bin/cat", &["t"]).await;
    let tagged = api.ok("image/tag", json!({"image": "a", "tags": ["a:v1", "team/a", "a:v1"]})).await;
    assert_eq!(tagged["refs"], json!(["a:latest", "a:v1", "team/a:latest"]));
    api.ok("image/tag", json!({"image": "t", "tags": ["team/t"]})).await;
    assert_eq!(
        api.ok("bin/inspect", json!({"bin": "t"})).await["refs"],
        json!(["t:latest", "team/t:latest"])
    );
    // Each kind is removed, shown and sent by its own methods.
    for method in ["image/inspect", "image/remove", "image/push"] {
        let error = api.refused(method, json!({"image": "t"}), "image.not_an_agent").await;
        assert!(error["data"]["hint"].as_str().expect("a hint").contains("lodge bin rm"), "{error}");
    }
    for method in ["bin/inspect", "bin/remove", "bin/push"] {
        let error = api.refused(method, json!({"bin": "a"}), "bin.not_a_bin").await;
        assert!(error["data"]["hint"].as_str().expect("a hint").contains("lodge image rm"), "{error}");
    }
    api.refused("image/diff", json!({"from": "a", "to": "t"}), "image.not_an_agent").await;
    api.refused("agent/create", json!({"image": "t"}), "image.not_an_agent").await;
    let error = api
        .refused(
            "image/build",
            json!({"content": "FROM scratch\nNAME x\nMODEL mock/m\nBIN a a\n"}),
            "agentfile.invalid",
        )
        .await;
    assert!(error["message"].as_str().expect("words").contains(":4:1: the tool `a`"), "{error}");
    // A name that is taken moves, and never from an agent to a tool or back: it has to be removed first.
    for (image, tag) in [("t", "team/a"), ("a", "team/t")] {
        api.refused("image/tag", json!({"image": image, "tags": [tag]}), "image.name_taken").await;
    }
    let programs = json!([{"platform": platform(), "path": "/bin/cat"}]);
    let build = json!({"name": "cat", "programs": programs, "tags": ["team/a"]});
    api.refused("bin/build", build, "image.name_taken").await;
    let build = json!({"content": AGENTFILE, "tags": ["team/t"]});
    api.refused("image/build", build, "image.name_taken").await;
    api.ok("image/remove", json!({"image": "team/a"})).await;
    api.ok("image/tag", json!({"image": "t", "tags": ["team/a"]})).await;
    assert_eq!(api.ok("image/inspect", json!({"image": "a"})).await["refs"], json!(["a:latest", "a:v1"]));
    assert_eq!(api.ok("bin/inspect", json!({"bin": "team/a"})).await["digest"], bin["digest"]);
    assert_eq!(api.ok("image/list", json!({})).await["images"].as_array().expect("images").len(), 1);
    assert_eq!(api.ok("bin/list", json!({})).await["bins"].as_array().expect("bins").len(), 1);
    let removed = api.ok("bin/remove", json!({"bin": bin["digest"]})).await;
    assert_eq!((&removed["removed"], removed["untagged"].as_array().map(Vec::len)), (&json!(true), Some(3)));
    assert_eq!(api.ok("image/remove", json!({"image": agent["digest"]})).await["removed"], true);
    assert_eq!(fs::read_dir(world.lodge.home().join("agents")).map(Iterator::count).unwrap_or(0), 0);
}

#[tokio::test]
async fn a_difference_tells_permissions_and_tools_first_and_no_secret() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let before = "FROM scratch\nNAME d\nMODEL mock/a\nBIN sh host:sh\nENV API_KEY=hunter2-before\nENV COLOR=red\n\
        CONTEXT SOUL <<E\none\nE\n";
    let after = "FROM scratch\nNAME d\nMODEL mock/b\nBIN cat host:cat\nENV API_KEY=hunter2-after\nENV COLOR=blue\n\
        NETWORK none\nLIMIT memory 1g\nCONTEXT SOUL <<E\ntwo\nE\n";
    api.ok("image/build", json!({"content": before, "tags": ["d:1"]})).await;
    api.ok("image/build", json!({"content": after, "tags": ["d:2"]})).await;
    let found = api.ok("image/diff", json!({"from": "d:1", "to": "d:2"})).await;
    let changes = found["changes"].as_array().expect("changes");
    let sections: Vec<&str> = changes.iter().filter_map(|change| change["section"].as_str()).collect();
    let place = |section: &str| {
        sections.iter().position(|one| *one == section).unwrap_or_else(|| panic!("{section}: {found:#}"))
    };
    assert!(place("network") < place("bins") && place("limits") < place("bins"), "{found:#}");
    assert!(
        place("bins") < place("env") && place("env") < place("model") && place("model") < place("contexts"),
        "{found:#}"
    );
    let of = |section: &str, key: &str| {
        changes
            .iter()
            .find(|change| change["section"] == section && change["key"] == key)
            .unwrap_or_else(|| panic!("{key}: {found:#}"))
    };
    assert_eq!(
        (&of("env", "COLOR")["before"], &of("env", "COLOR")["after"]),
        (&json!("red"), &json!("blue"))
    );
    assert!(of("bins", "sh")["after"].is_null() && of("bins", "cat")["before"].is_null(), "{found:#}");
    assert!(!found.to_string().contains("hunter2"), "{found:#}");
    // Back again, what was forbidden is open, and reads so.
    let back = api.ok("image/diff", json!({"from": "d:2", "to": "d:1"})).await;
    assert_eq!(
        back["changes"][0],
        json!({"section": "network", "key": "network", "before": "none", "after": "public"})
    );
    let memory =
        json!({"section": "limits", "key": "memory", "before": "1g", "after": "half of the host's memory"});
    assert_eq!(back["changes"][1], memory);
    assert_eq!(api.ok("image/diff", json!({"from": "d:1", "to": "d:1"})).await["changes"], json!([]));
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_by_every_method_with_a_way_out() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    api.ok("image/build", json!({"content": AGENTFILE, "tags": ["a"]})).await;
    let many: Vec<String> = (0..65).map(|number| format!("t{number}")).collect();
    let nowhere = "127.0.0.1:1/a/b:v1";
    let digest = format!("127.0.0.1:1/a@sha256:{}", "0".repeat(64));
    for (method, asked, code) in [
        ("image/tag", json!({"image": "a"}), "params.invalid"),
        ("image/tag", json!({"image": "a", "tags": many}), "params.invalid"),
        ("image/tag", json!({"image": "a", "tags": ["b c"]}), "image.bad_ref"),
        ("image/tag", json!({"image": "a", "tags": [digest]}), "image.bad_ref"),
        ("image/tag", json!({"image": "nobody", "tags": ["b"]}), "image.not_found"),
        ("image/tag", json!({"image": "../a", "tags": ["b"]}), "image.bad_ref"),
        ("image/diff", json!({"from": "a", "to": "nobody"}), "image.not_found"),
        ("image/diff", json!({"from": "", "to": "a"}), "image.bad_ref"),
        ("image/pull", json!({}), "image.bad_ref"),
        ("image/pull", json!({"image": "a"}), "image.bad_ref"),
        ("image/pull", json!({"image": "a/b"}), "image.bad_ref"),
        ("image/pull", json!({"image": "http://x/y"}), "image.bad_ref"),
        ("image/pull", json!({"image": nowhere, "tags": ["b c"]}), "image.bad_ref"),
        ("image/pull", json!({"image": nowhere, "tags": many}), "params.invalid"),
        ("image/push", json!({"image": "nobody"}), "image.not_found"),
        ("image/push", json!({"image": "a"}), "image.bad_ref"),
        ("image/push", json!({"image": "a", "to": "b"}), "image.bad_ref"),
        ("image/push", json!({"image": "a", "to": digest}), "image.bad_ref"),
        ("agent/create", json!({"content": AGENTFILE, "runtime": "nobody"}), "bin.not_found"),
        ("agent/create", json!({"content": AGENTFILE, "runtime": "a"}), "bin.not_a_bin"),
        ("image/build", json!({"content": format!("{AGENTFILE}BIN x nobody\n")}), "agentfile.invalid"),
        ("image/build", json!({"content": format!("{AGENTFILE}RUNTIME nobody\n")}), "agentfile.invalid"),
        ("image/build", json!({"content": AGENTFILE, "tags": many}), "params.invalid"),
    ] {
        let error = api.refused(method, asked.clone(), code).await;
        assert!(error["data"]["hint"].is_string(), "{method} {asked}: {error}");
    }
    let by_digest = api.ok("image/inspect", json!({"image": "a"})).await["digest"].clone();
    api.refused("image/push", json!({"image": by_digest}), "params.invalid").await;
    assert_eq!(
        api.ok("agent/list", json!({"all": true})).await["agents"],
        json!([]),
        "no agent without its image"
    );
    let images = api.ok("image/list", json!({})).await;
    assert_eq!(images["images"].as_array().expect("images").len(), 1, "{images:#}");
}

#[tokio::test]
async fn what_is_not_here_or_misspelled_is_reported_with_the_very_next_step() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    api.ok("image/build", json!({"content": AGENTFILE, "tags": ["a"]})).await;
    let nowhere = "127.0.0.1:1/a/b:v1";
    for (asked, code, hint) in [
        (nowhere, "image.not_found", "pull it first: `lodge image pull 127.0.0.1:1/a/b:v1`"),
        ("a:v9", "image.not_found", "there is `a:latest`"),
        ("https://r.example/a:v1", "image.bad_ref", "leave out the part before the host"),
    ] {
        let error = api.refused("image/inspect", json!({"image": asked}), code).await;
        assert!(error["data"]["hint"].as_str().expect("a hint").starts_with(hint), "{error:#}");
    }
    let error = api.refused("image/pull", json!({"image": nowhere}), "registry.unreachable").await;
    assert_eq!(error["data"]["cause"], "Connection refused", "{error:#}");
    let error = api.refused("bin/push", json!({"bin": "a", "to": nowhere}), "bin.not_a_bin").await;
    assert!(error["data"]["hint"].as_str().expect("a hint").contains("`lodge image push`"), "{error:#}");
    let stock = json!({"content": format!("{AGENTFILE}BIN rg stock/rg:latest\n")});
    let error = api.refused("image/build", stock, "agentfile.invalid").await;
    assert!(
        error.to_string().contains("`lodge image import --yes target/stock/stock.tar` imports them"),
        "{error:#}"
    );
}

#[tokio::test]
async fn a_registry_that_nobody_can_reach_is_reported_and_leaves_nothing() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    api.ok("image/build", json!({"content": AGENTFILE, "tags": ["a"]})).await;
    let nowhere = "127.0.0.1:1/a/b:v1";
    let digest = format!("127.0.0.1:1/a@sha256:{}", "0".repeat(64));
    let calls = [
        ("image/pull", json!({"image": nowhere}), "registry.unreachable"),
        ("image/pull", json!({"image": digest}), "registry.unreachable"),
        ("image/push", json!({"image": "a", "to": nowhere}), "registry.unreachable"),
        ("bin/pull", json!({"bin": nowhere}), "registry.unreachable"),
        ("agent/create", json!({"image": nowhere}), "registry.unreachable"),
        ("agent/create", json!({"content": AGENTFILE, "runtime": nowhere}), "registry.unreachable"),
        ("image/build", json!({"content": format!("FROM {nowhere}\n")}), "agentfile.invalid"),
        ("image/build", json!({"content": format!("{AGENTFILE}BIN x {nowhere}\n")}), "agentfile.invalid"),
    ];
    // Each is tried for a while.
    let calls = calls.into_iter().map(|(method, asked, code)| {
        let (lodge, api) = (&world.lodge, &api);
        async move {
            let mut one = api.again(lodge).await;
            let error = one.refused(method, asked.clone(), code).await;
            assert!(error["data"]["hint"].is_string(), "{method} {asked}: {error}");
        }
    });
    futures_util::future::join_all(calls).await;
    assert_eq!(
        api.ok("agent/list", json!({"all": true})).await["agents"],
        json!([]),
        "no agent without its image"
    );
    let images = api.ok("image/list", json!({})).await;
    assert_eq!(images["images"].as_array().expect("images").len(), 1, "{images:#}");
}

#[tokio::test]
async fn the_same_request_twice_is_one_image_with_one_answer_also_after_a_kill() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let programs = json!([{"platform": crate::bins::platform(), "path": "/bin/cat"}]);
    let changes = [
        ("image/build", json!({"content": AGENTFILE, "tags": ["a"], "request_id": "i1"})),
        ("image/tag", json!({"image": "a", "tags": ["b"], "request_id": "i2"})),
        ("bin/build", json!({"name": "cat", "programs": programs, "request_id": "i3"})),
        ("bin/remove", json!({"bin": "cat", "request_id": "i4"})),
        ("image/remove", json!({"image": "b", "request_id": "i5"})),
    ];
    let mut answers = Vec::new();
    for (method, params) in &changes {
        answers.push(api.ok(method, params.clone()).await);
    }
    for ((method, params), first) in changes.iter().zip(&answers) {
        assert_eq!(api.ok(method, params.clone()).await, *first, "{method}");
    }
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for ((method, params), first) in changes.iter().zip(&answers) {
        assert_eq!(api.ok(method, params.clone()).await, *first, "{method} after a kill");
    }
    assert_eq!(api.ok("bin/list", json!({})).await["bins"], json!([]));
    assert_eq!(api.ok("image/inspect", json!({"image": "a"})).await["refs"], json!(["a:latest"]));
    api.refused("image/tag", json!({"image": "a", "tags": ["c"], "request_id": "i1"}), "request.reused")
        .await;
}
