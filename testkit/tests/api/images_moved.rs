//! Images from and to registries, as the API does it.

use lodge_proto::{ImagePullParams, Progress, PullImage};
use lodge_testkit::lodge::until;
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryFault};
use serde_json::{Value, json};

use crate::bins::tool;
use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld};

/// An agent with a tool of its own, in a registry and nowhere else.
pub async fn pushed(registry: &MockRegistry) -> String {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    tool(&mut api, "show", "/bin/cat", &["show"]).await;
    let source = "FROM scratch\nNAME reader\nMODEL mock/m\nBIN show show\nCONTEXT SOUL <<E\nwho\nE\n";
    let built = api.ok("image/build", json!({"content": source})).await;
    let to = format!("{}/team/reader:v1", registry.host());
    let sent = api.ok("image/push", json!({"image": "reader", "to": to, "request_id": "p"})).await;
    assert_eq!((&sent["digest"], &sent["reference"]), (&built["digest"], &json!(to)));
    assert!(sent["sent_bytes"].as_u64().is_some_and(|bytes| bytes > 10_000), "{sent}");
    let asked = registry.seen().len();
    let again = api.ok("image/push", json!({"image": "reader", "to": to, "request_id": "p"})).await;
    assert_eq!((again, registry.seen().len()), (sent, asked), "one request is one push");
    let anew = api.ok("image/push", json!({"image": "reader", "to": to})).await;
    assert!(anew["sent_bytes"].as_u64() < Some(1_000), "the blobs are there: {anew}");
    built["digest"].as_str().expect("a digest").to_owned()
}

#[tokio::test]
async fn a_pull_brings_the_agent_with_its_tools_once_and_tells_how_far_it_is() {
    let registry = MockRegistry::start().expect("a registry");
    let digest = pushed(&registry).await;
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let name = format!("{}/team/reader:v1", registry.host());
    let asked = ImagePullParams {
        image: name.clone(),
        tags: vec!["mine".to_owned()],
        request_id: Some("one".to_owned()),
    };
    let mut told: Vec<Progress> = Vec::new();
    let mut client = world.lodge.client().await;
    let pulled = client
        .call_with_progress::<PullImage>(&asked, |progress| told.push(progress.clone()))
        .await
        .expect("a pull");
    assert_eq!((&pulled.digest, &pulled.refs), (&digest, &vec![name.clone(), "mine:latest".to_owned()]));
    let asked = serde_json::to_value(asked).expect("JSON");
    assert!(!told.is_empty());
    for progress in &told {
        api.schemas.progress(&serde_json::to_value(progress).expect("JSON"));
    }
    let parts = told.iter().flat_map(|progress| &progress.parts);
    let last: std::collections::BTreeMap<_, _> = parts.map(|part| (&part.digest, part)).collect();
    assert!(last.values().all(|part| part.done_bytes == part.total_bytes), "{last:#?}");
    let requests = registry.seen().len();
    let again = api.ok("image/pull", asked.clone()).await;
    assert_eq!(
        (again["digest"].as_str(), registry.seen().len()),
        (Some(digest.as_str()), requests),
        "one request"
    );
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.ok("image/pull", asked).await["refs"], json!([name, "mine:latest"]));
    assert_eq!(registry.seen().len(), requests, "one request, also after a kill");
    let bins = api.ok("bin/list", json!({})).await;
    assert_eq!((&bins["bins"][0]["name"], &bins["bins"][0]["used"]), (&json!("show"), &json!(1)), "{bins:#}");
    let image = api.ok("image/inspect", json!({"image": "mine"})).await;
    assert_eq!(bins["bins"][0]["created_at"], image["created_at"], "it came with the image, and has no name");
    // Everything is here: the registry is needed no more.
    drop(registry);
    api.ok("agent/create", json!({"image": "mine", "name": "one"})).await;
    api.agent_is("one", "ready").await;
    let turn =
        api.say("one", "s", &format!("[[tool:show|{}]] [[reply:done]]", json!(["etc/agent.yaml"]))).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
}

#[tokio::test]
async fn an_agent_of_an_image_that_is_not_here_is_pulling_until_it_is() {
    let registry = MockRegistry::start().expect("a registry");
    let digest = pushed(&registry).await;
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let name = format!("{}/team/reader:v1", registry.host());
    let config = layer(&registry, &digest, "SOUL.md");
    registry.fault(
        "GET",
        &config,
        FaultCount::Always,
        RegistryFault::Answer { status: 503, headers: Vec::new(), body: Vec::new() },
    );
    let created = api.ok("agent/create", json!({"image": name, "name": "far"})).await;
    assert_eq!((&created["image"], &created["image_digest"]), (&json!(name), &json!(digest)));
    let detail = api.ok("image/inspect", json!({"image": name})).await;
    assert_eq!((&detail["complete"], &detail["name"]), (&json!(false), &json!("reader")));
    let listed = api.ok("image/list", json!({})).await;
    assert_eq!(listed["images"][0]["complete"], false, "{listed:#}");
    let shown = world.lodge.cli_ok(["image", "ls"]);
    assert!(shown.contains(" KiB, incomplete "), "{shown}");
    api.refused("image/diff", json!({"from": name, "to": name}), "image.not_found").await;
    registry.forget_faults();
    api.until("agent/get", json!({"agent": "far"}), |agent| agent["status"] == "ready").await;
    assert_eq!(api.ok("image/inspect", json!({"image": name})).await["complete"], true);
    assert_eq!(api.ok("image/list", json!({})).await["images"][0]["complete"], true);
    for (reference, code) in [
        (format!("{}/team/reader:nobody", registry.host()), "registry.not_found"),
        (format!("{}/nobody", registry.host()), "registry.not_found"),
    ] {
        for method in ["agent/create", "image/pull"] {
            api.refused(method, json!({"image": reference}), code).await;
        }
    }
    let agents = api.ok("agent/list", json!({"all": true})).await;
    assert_eq!(
        agents["agents"].as_array().expect("agents").len(),
        1,
        "no agent of what is not there: {agents:#}"
    );
}

/// The digest of a layer, by its title.
pub fn layer(registry: &MockRegistry, digest: &str, title: &str) -> String {
    let (_, manifest) = registry.manifest("team/reader", digest).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let layers = manifest["layers"].as_array().expect("layers");
    let found = layers.iter().find(|layer| layer["annotations"]["org.opencontainers.image.title"] == title);
    found.and_then(|layer| layer["digest"].as_str()).expect("a layer").to_owned()
}

#[tokio::test]
async fn an_agent_is_updated_to_an_image_that_is_not_here_and_has_its_tools_then() {
    let registry = MockRegistry::start().expect("a registry");
    let digest = pushed(&registry).await;
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let nobody = format!("{}/team/nobody:v1", registry.host());
    api.refused("agent/update", json!({"agent": "one", "image": nobody}), "registry.not_found").await;
    let name = format!("{}/team/reader:v1", registry.host());
    api.ok("agent/update", json!({"agent": "one", "image": name})).await;
    let updated = |agent: &Value| agent["status"] == "ready" && agent["image_digest"] == digest.as_str();
    let agent = api.until("agent/get", json!({"agent": "one"}), updated).await;
    let tools: Vec<&Value> =
        agent["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!((tools, &agent["image"]), (vec![&json!("show")], &json!(name)));
    assert_eq!(agent["tools"][0]["portable"], true);
    assert!(agent["tools"][0]["path"].is_string() && agent["tools"][0]["digest"].is_string(), "{agent:#}");
    let turn =
        api.say("one", "s", &format!("[[tool:show|{}]] [[reply:done]]", json!(["etc/agent.yaml"]))).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
}

#[tokio::test]
async fn parents_and_tools_of_a_build_are_brought_and_named_like_what_was_pulled() {
    let registry = MockRegistry::start().expect("a registry");
    let parent = pushed(&registry).await;
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let name = format!("{}/team/reader:v1", registry.host());
    let child = format!("FROM {name}\nNAME child\nLABEL a=b\n");
    let built = api.ok("image/build", json!({"content": child})).await;
    assert_eq!(api.ok("image/inspect", json!({"image": name})).await["digest"], parent.as_str());
    let detail = api.ok("image/inspect", json!({"image": built["digest"]})).await;
    assert_eq!(
        (&detail["from"], &detail["parents"], &detail["bins"][0]["name"]),
        (&json!(name), &json!(1), &json!("show"))
    );
    // A tool by itself, in a registry.
    let tool_name = format!("{}/tools/show:v1", registry.host());
    let bin = api.ok("bin/list", json!({})).await["bins"][0]["digest"].clone();
    api.ok("bin/push", json!({"bin": bin, "to": tool_name})).await;
    let other = ApiWorld::new();
    let mut api: CheckedClient = other.checked().await;
    let source = format!("{AGENTFILE}BIN show {tool_name}\n");
    api.ok("image/build", json!({"content": source, "tags": ["x"]})).await;
    let detail = api.ok("image/inspect", json!({"image": "x"})).await;
    let pinned = format!("{tool_name}@{}", bin.as_str().expect("a digest"));
    assert!(detail["bins"].as_array().expect("bins").iter().any(|one| one["source"] == pinned), "{detail:#}");
    assert_eq!(api.ok("bin/inspect", json!({"bin": tool_name})).await["refs"], json!([tool_name]));
    let requests = registry.seen().len();
    api.ok("image/build", json!({"content": source, "tags": ["y"]})).await;
    assert_eq!(registry.seen().len(), requests, "what is here is not asked for again");
    // A reference of the other kind is reported and gets no name.
    api.refused("bin/pull", json!({"bin": name}), "bin.not_a_bin").await;
    api.refused("image/pull", json!({"image": tool_name, "tags": ["z"]}), "image.not_an_agent").await;
    api.refused("image/inspect", json!({"image": "z"}), "image.not_found").await;
}

#[tokio::test]
async fn nothing_is_left_of_a_pull_that_brought_what_was_not_meant() {
    let registry = MockRegistry::start().expect("a registry");
    pushed(&registry).await;
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let name = format!("{}/team/reader:v1", registry.host());
    api.refused("bin/pull", json!({"bin": name}), "bin.not_a_bin").await;
    assert!(registry.count("GET", "/blobs/") > 0, "it was here");
    let blobs = world.lodge.home().join("registry/blobs/sha256");
    until("its blobs are gone", || {
        let left = std::fs::read_dir(&blobs).expect("a store").count();
        (left == 0).then_some(())
    });
}

#[tokio::test]
async fn an_agent_with_a_tool_that_has_no_program_for_this_host_fails_and_is_not_tried_again() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let programs = json!([{"platform": "windows/amd64", "path": "/bin/cat"}]);
    api.ok("bin/build", json!({"name": "show", "programs": programs, "tags": ["show"]})).await;
    let source = format!("{AGENTFILE}BIN show show\n");
    api.ok("agent/create", json!({"content": source, "name": "one"})).await;
    let failed = api.until("agent/get", json!({"agent": "one"}), |agent| agent["status"] == "failed").await;
    assert_eq!(
        (&failed["failure_reason"], &failed["retry_at"]),
        (&json!("pull"), &Value::Null),
        "{failed:#}"
    );
    let (code, _, told) = world.cli(&["start", "one"]);
    assert!(
        code != 0 && told.contains("not retried automatically") && !told.contains("the agent starts"),
        "{told}"
    );
}
