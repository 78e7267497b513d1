//! The sweep over sandboxes: what is dead and not needed goes, and nothing is signalled.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use lodge_testkit::lodge::{PATIENCE, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, family, id, kill, sh};

fn pid(view: &Value) -> i32 {
    i32::try_from(view["pid"].as_u64().expect("a pid")).expect("a pid")
}

fn run_of(world: &ApiWorld, view: &Value) -> PathBuf {
    world.lodge.home().join("run").join(view["sandbox"].as_str().expect("an id"))
}

/// The kernel's letter for the state of a process.
fn state(pid: i32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("a state")
}

async fn reap(api: &mut CheckedClient) -> Value {
    api.ok("daemon/reap", json!({})).await
}

/// Begins a turn whose tool waits, without starting anything, until something is written to the pipe that is returned.
async fn at_work(world: &ApiWorld, api: &mut CheckedClient, agent: &str) -> (Value, PathBuf) {
    let script = "/usr/bin/mkfifo go; echo begun > begun; read line < go; echo finished";
    let text = format!("{} [[reply:{{{{tool}}}}]]", sh(script));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let workspace = world.lodge.home().join("agents").join(agent).join("workspace");
    until("the tool runs", || workspace.join("begun").exists().then_some(()));
    (sent, workspace.join("go"))
}

#[tokio::test]
async fn a_live_sandbox_and_one_that_stands_still_are_counted_and_left_as_they_are() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "still").await;
    let busy = world.agent(&mut api, "busy").await;
    let still = api.ok("agent/get", json!({"agent": "still"})).await;
    let view = api.ok("agent/get", json!({"agent": busy})).await;
    let (sent, go) = at_work(&world, &mut api, &busy).await;
    // An unknown keeper that lives: it has its lock.
    let stranger = world.lodge.home().join("run/sbx_stranger");
    fs::create_dir(&stranger).expect("a directory");
    let lock = held(File::create(stranger.join("lock")).expect("a file"));
    kill(pid(&still), libc::SIGSTOP);
    until("it stands still", || (state(pid(&still)) == 'T').then_some(()));
    let before = (family(pid(&still)), family(pid(&view)));
    for _ in 0..3 {
        let reaped = reap(&mut api).await;
        assert_eq!((&reaped["probed"], &reaped["alive"]), (&json!(3), &json!(3)), "{reaped}");
        assert_eq!((&reaped["pruned"], &reaped["forgotten"]), (&json!([]), &json!(0)), "{reaped}");
    }
    assert_eq!(state(pid(&still)), 'T', "it was woken or ended");
    assert_eq!((family(pid(&still)), family(pid(&view))), before);
    assert!(stranger.exists());
    kill(pid(&still), libc::SIGCONT);
    fs::write(go, "\n").expect("a file");
    assert_eq!(api.ended(id(&sent)).await["text"], "finished\n");
    assert_eq!(api.answer("still", "other", "[[reply:fine]]").await, "fine");
    // It is dead now, and unneeded.
    drop(lock);
    let reaped = reap(&mut api).await;
    let pruned = json!([{"sandbox": "sbx_stranger", "agent": null, "why": "no agent has it"}]);
    assert_eq!((&reaped["alive"], &reaped["pruned"]), (&json!(2), &pruned), "{reaped}");
    assert!(!stranger.exists());
}

/// The lock on a file, as a keeper holds it.
struct LockedFile(File);

impl Drop for LockedFile {
    /// By its own call: a process that another test begins has the file open, too, until it is another program.
    fn drop(&mut self) {
        set_lock(&self.0, libc::F_UNLCK);
    }
}

fn held(file: File) -> LockedFile {
    set_lock(&file, libc::F_WRLCK);
    LockedFile(file)
}

fn set_lock(file: &File, kind: libc::c_int) {
    // SAFETY: `flock` is plain data, and the call only reads it.
    let set = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = kind as libc::c_short;
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock)
    };
    assert_eq!(set, 0, "the lock is as it should be");
}

#[tokio::test]
async fn what_a_stop_that_was_cut_short_left_is_pruned_and_the_agent_starts_again() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_CRASH_AT", "during_stop");
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let mut client = world.lodge.client().await;
    let stopped = client.call_value("agent/stop", json!({"agent": agent})).await;
    assert!(stopped.is_err(), "the daemon lives: {stopped:?}");
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(true));
    until("the sandbox ended", || world.lodge.keepers().is_empty().then_some(()));
    world.lodge.unset_env("LODGED_CRASH_AT");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.ok("agent/get", json!({"agent": agent})).await["status"], "stopped");
    assert!(run_of(&world, &view).exists(), "there is nothing to prune");
    let reaped = reap(&mut api).await;
    let pruned = json!([{"sandbox": view["sandbox"], "agent": agent, "why": "its agent is stopped"}]);
    assert_eq!(reaped["pruned"], pruned, "{reaped}");
    assert!(!run_of(&world, &view).exists());
    assert_eq!(reap(&mut api).await["probed"], 0);
    api.ok("agent/start", json!({"agent": agent})).await;
    api.agent_is(&agent, "ready").await;
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
}

#[tokio::test]
async fn a_removal_that_was_cut_short_leaves_nothing_after_a_restart_and_a_sweep() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_CRASH_AT", "during_stop");
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let mut client = world.lodge.client().await;
    let removed = client.call_value("agent/remove", json!({"agent": agent, "force": true})).await;
    assert!(removed.is_err(), "the daemon lives: {removed:?}");
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(true));
    world.lodge.unset_env("LODGED_CRASH_AT");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let gone = |agents: &Value| agents["agents"] == json!([]);
    api.until("agent/list", json!({"all": true}), gone).await;
    // A directory that reappears, as from a backup, belongs to no agent.
    fs::create_dir_all(run_of(&world, &view).join("exec/exe_old")).expect("a directory");
    let reaped = reap(&mut api).await;
    assert_eq!(reaped["pruned"][0]["sandbox"], view["sandbox"], "{reaped}");
    assert!(fs::read_dir(world.lodge.home().join("run")).expect("a directory").next().is_none());
}

#[tokio::test]
async fn what_open_work_needs_is_kept_until_it_is_decided_about() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let create = json!({"content": AGENTFILE, "name": "one", "revival_policy": "ask"});
    let agent = id(&api.ok("agent/create", create).await).to_owned();
    let view = api.agent_is(&agent, "ready").await;
    let (sent, _) = at_work(&world, &mut api, &agent).await;
    kill(pid(&view), libc::SIGKILL);
    api.agent_is(&agent, "failed").await;
    let exec = || fs::read_dir(run_of(&world, &view).join("exec")).expect("a directory").count();
    let records = exec();
    assert!(records > 0);
    let reaped = reap(&mut api).await;
    assert_eq!((&reaped["kept"], &reaped["pruned"]), (&json!(1), &json!([])), "{reaped}");
    assert_eq!(exec(), records);
    api.ok("lineage/resolve", json!({"lineage": view["lineage"], "decision": "reap"})).await;
    assert_eq!(api.ended(id(&sent)).await["status"], "interrupted");
    let reaped = reap(&mut api).await;
    assert_eq!(reaped["pruned"][0]["why"], "its agent has failed", "{reaped}");
    assert!(!run_of(&world, &view).exists());
}

#[tokio::test]
async fn sweeps_beside_a_death_revive_it_once() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let (sent, _) = at_work(&world, &mut api, &agent).await;
    kill(pid(&view), libc::SIGKILL);
    let mut sweeps = 0;
    loop {
        reap(&mut api).await;
        sweeps += 1;
        if !api.ok("turn/get", json!({"turn": id(&sent)})).await["ended_at"].is_null() {
            break;
        }
        assert!(sweeps < 100_000, "the turn does not end");
    }
    assert!(api.ended(id(&sent)).await["text"].as_str().expect("a text").contains("outcome unknown"));
    let lineage = api.ok("lineage/get", json!({"lineage": agent})).await;
    assert_eq!((&lineage["status"], &lineage["revivals"]), (&json!("active"), &json!(1)));
    let after = api.ok("agent/get", json!({"agent": agent})).await;
    assert_eq!((&after["incarnation"], &after["runs"]), (&json!(2), &json!(2)));
}

#[tokio::test]
async fn a_sweep_with_a_request_id_is_one_sweep_with_one_answer() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let stray = world.lodge.home().join("run/sbx_stray");
    fs::create_dir(&stray).expect("a directory");
    let first = api.ok("daemon/reap", json!({"request_id": "r"})).await;
    assert_eq!(first["pruned"].as_array().expect("a list").len(), 1, "{first}");
    fs::create_dir(&stray).expect("a directory");
    assert_eq!(api.ok("daemon/reap", json!({"request_id": "r"})).await, first);
    assert!(stray.exists());
}
