//! More agents than the daemon's limit of open files would allow.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lodge_testkit::lodge::{Lodge, bin};
use serde_json::json;

use crate::world::{AGENTFILE, ApiWorld, sh};

const ORDINARY: u64 = 96;
const AGENTS: u64 = 60;

#[tokio::test]
async fn a_daemon_has_more_files_open_than_it_was_started_with_and_its_tools_do_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let lodged = dir.path().join("lodged");
    let script = format!("#!/bin/sh\nulimit -S -n {ORDINARY}\nexec {} \"$@\"\n", bin("lodged").display());
    fs::write(&lodged, script).expect("a script");
    fs::set_permissions(&lodged, fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut world = ApiWorld::with(Lodge::of(lodged));
    world.lodge.start();
    let mut api = world.checked().await;
    for number in 0..AGENTS {
        let name = format!("a{number}");
        api.ok("agent/create", json!({"content": AGENTFILE, "name": name})).await;
        api.agent_is(&name, "ready").await;
    }
    let said = api.answer("a0", "s", &format!("{} [[reply:{{{{tool}}}}]]", sh("ulimit -S -n"))).await;
    assert_eq!(said.trim(), ORDINARY.to_string());
    // All of them are there after a crash, too.
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for number in 0..AGENTS {
        api.agent_is(&format!("a{number}"), "ready").await;
    }
}
