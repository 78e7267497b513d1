//! Who is who among an agent's processes, and an agent that is busy with a tool.

use std::fs;
use std::path::{Path, PathBuf};

use lodge_testkit::lodge::{Lodge, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, family, id, sh};

pub fn pid(view: &Value) -> i32 {
    i32::try_from(view["pid"].as_u64().expect("a pid")).expect("a pid")
}

pub fn daemon(lodge: &Lodge) -> i32 {
    lodge.pid().expect("a daemon").cast_signed()
}

/// A process's command line, as far as there is one.
pub fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Whether a process was stopped by a signal, all of it.
pub fn stands_still(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// The runtime of an agent's sandbox.
pub fn runtime_of(keeper: i32) -> i32 {
    let is_runtime = |pid: &i32| command_line(*pid).contains("opt/lodge/runtime ");
    family(keeper).into_iter().find(is_runtime).expect("a runtime")
}

pub fn workspace(world: &ApiWorld, agent: &str) -> PathBuf {
    world.lodge.home().join("agents").join(agent).join("workspace")
}

/// How many lines a file has; none when it is not there.
pub fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// A turn whose tool records its start, then prints `tick` ten times a second until the file `go` exists.
pub async fn at_work(world: &ApiWorld, api: &mut CheckedClient, agent: &str) -> Value {
    let script =
        "echo begun >> begun; until test -e go; do echo tick >> ticks; sleep 0.1; done; echo finished";
    let text = format!("{} [[reply:{{{{tool}}}}]]", sh(script));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": agent, "text": text})).await;
    let begun = workspace(world, agent).join("begun");
    until("the tool runs", || (lines(&begun) == 1).then_some(()));
    sent
}

/// Lets the tool of [`at_work`] end, and checks that it ran once and that its turn has its result.
pub async fn let_go(world: &ApiWorld, api: &mut CheckedClient, sent: &Value) {
    let workspace = workspace(world, sent["agent"].as_str().expect("an agent"));
    fs::write(workspace.join("go"), "").expect("a file");
    let turn = api.ended(id(sent)).await;
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("finished\n")), "{turn:#}");
    assert_eq!(lines(&workspace.join("begun")), 1, "the tool ran twice");
}

/// Events of one kind, in order.
pub async fn events(api: &mut CheckedClient, kind: &str) -> Vec<Value> {
    let log = api.log().await;
    log.into_iter().filter(|event| event["kind"] == kind).collect()
}
