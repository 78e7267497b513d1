//! Processes that have nothing to do with Lodge and happen to have a pid that it once knew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lodge_testkit::lodge::{is_alive, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::processes::pid;
use crate::world::{ApiWorld, kill};

/// A process that writes down every signal that it survives.
#[derive(Debug)]
struct Stranger {
    child: Child,
    heard: PathBuf,
}

impl Stranger {
    fn new(dir: &Path) -> Stranger {
        let heard = dir.join("signalled");
        let script = "for s in HUP INT QUIT TERM USR1 USR2 CONT; do trap \"echo $s >> '$0'\" $s; done; \
                      echo ready; while read -r line; do :; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&heard).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let mut ready = [0; 6];
        let mut stdout = child.stdout.take().expect("a pipe");
        std::io::Read::read_exact(&mut stdout, &mut ready).expect("its first word");
        Stranger { child, heard }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// As the kernel counts it.
    fn started_at(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a process");
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        rest.split_whitespace().nth(19).expect("a field").parse().expect("a number")
    }

    #[track_caller]
    fn was_left_alone(&self) {
        let heard = fs::read_to_string(&self.heard).unwrap_or_default();
        assert!(is_alive(self.pid()) && heard.is_empty(), "it was signalled: {heard:?}");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // It may have been killed already, which the test checks.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What a note of a dead keeper says of a stranger.
#[derive(Debug, Clone, Copy)]
enum KeeperNote {
    /// Its pid, and when the keeper started: the pid was given out again.
    Recycled,
    /// Everything, as if it were the keeper; but it holds no lock.
    Whole,
}

/// An agent whose sandbox is dead and that is not revived for an hour.
async fn dead(world: &ApiWorld, api: &mut CheckedClient, name: &str) -> (String, PathBuf) {
    let agent = world.agent(api, name).await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    kill(pid(&view), libc::SIGKILL);
    // The first revival does not wait.
    let back = |view: &Value| view["incarnation"] == 2 && view["status"] == "ready";
    let view = api.until("agent/get", json!({"agent": agent}), back).await;
    kill(pid(&view), libc::SIGKILL);
    let lineage = json!({"lineage": view["lineage"]});
    api.until("lineage/get", lineage, |lineage| lineage["status"] == "orphaned").await;
    until("nothing of it lives", || (!is_alive(pid(&view))).then_some(()));
    let sandbox = world.lodge.home().join("run").join(view["sandbox"].as_str().expect("a sandbox"));
    assert!(sandbox.join("pid").exists(), "there is no note to replace");
    (agent, sandbox)
}

fn lonely() -> ApiWorld {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_BACKOFF_BASE", "1h");
    world.lodge.set_env("LODGED_BACKOFF_CAP", "1h");
    world.lodge.start();
    world
}

#[tokio::test]
async fn a_process_with_the_pid_of_a_dead_keeper_is_not_signalled_by_stop_kill_or_remove() {
    let world = lonely();
    let mut api = world.checked().await;
    let stranger = Stranger::new(world.lodge.dir());
    for note in [KeeperNote::Recycled, KeeperNote::Whole] {
        for method in ["stop", "kill", "remove"] {
            let (agent, sandbox) = dead(&world, &mut api, &format!("{method}-{note:?}").to_lowercase()).await;
            stranger.write(&sandbox, note);
            let params = if method == "remove" {
                json!({"agent": agent, "force": true})
            } else {
                json!({"agent": agent})
            };
            let over = if method == "remove" { "removed" } else { "stopped" };
            assert_eq!(api.ok(&format!("agent/{method}"), params).await["status"], over);
            stranger.was_left_alone();
        }
    }
}

#[tokio::test]
async fn a_process_with_the_pid_of_a_dead_keeper_is_not_signalled_by_a_sweep() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let stranger = Stranger::new(world.lodge.dir());
    let stopped = world.agent(&mut api, "stopped").await;
    let view = api.ok("agent/get", json!({"agent": stopped})).await;
    api.ok("agent/stop", json!({"agent": stopped})).await;
    let run = world.lodge.home().join("run");
    for note in [KeeperNote::Recycled, KeeperNote::Whole] {
        // Of an agent that is stopped, and of none.
        for sandbox in [view["sandbox"].as_str().expect("a sandbox"), "sbx_nobodys"] {
            fs::create_dir(run.join(sandbox)).expect("a directory");
            fs::write(run.join(sandbox).join("lock"), "").expect("a lock");
            stranger.write(&run.join(sandbox), note);
        }
        let reaped = api.ok("daemon/reap", json!({})).await;
        assert_eq!(reaped["pruned"].as_array().map(Vec::len), Some(2), "{reaped:#}");
        stranger.was_left_alone();
    }
}

#[tokio::test]
async fn a_process_with_the_pid_of_a_dead_keeper_is_not_taken_for_one_by_a_start() {
    let mut world = lonely();
    let mut api = world.checked().await;
    let stranger = Stranger::new(world.lodge.dir());
    let mut agents = Vec::new();
    for note in [KeeperNote::Recycled, KeeperNote::Whole] {
        let (agent, sandbox) = dead(&world, &mut api, &format!("{note:?}").to_lowercase()).await;
        stranger.write(&sandbox, note);
        agents.push(agent);
    }
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for agent in &agents {
        let view = api.agent_is(agent, "ready").await;
        assert_ne!(pid(&view), stranger.pid());
        assert_eq!(api.answer(agent, agent, "[[reply:fine]]").await, "fine");
    }
    stranger.was_left_alone();
}

#[tokio::test]
async fn a_living_keeper_whose_note_names_another_process_is_ended_and_that_process_is_not() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let stranger = Stranger::new(world.lodge.dir());
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let sandbox = world.lodge.home().join("run").join(view["sandbox"].as_str().expect("a sandbox"));
    stranger.write(&sandbox, KeeperNote::Recycled);
    assert_eq!(api.ok("agent/stop", json!({"agent": agent})).await["status"], "stopped");
    assert!(!is_alive(pid(&view)), "its keeper lives");
    stranger.was_left_alone();
}

impl Stranger {
    /// Writes this process where a sandbox's keeper had written itself.
    fn write(&self, sandbox: &Path, note: KeeperNote) {
        let started = match note {
            KeeperNote::Recycled => self.started_at() - 1,
            KeeperNote::Whole => self.started_at(),
        };
        fs::write(sandbox.join("pid"), format!("{} {started}\n", self.pid())).expect("a note");
    }
}
