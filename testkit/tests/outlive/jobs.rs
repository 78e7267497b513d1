//! A job, and one that waits behind it, after each kind of death: every row of the table of deaths.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use lodge_testkit::lodge::{is_alive, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::processes::{lines, pid, runtime_of, workspace};
use crate::world::{ApiWorld, id, kill};

/// Records its start, writes to both streams, ticks until it may end, and exits with a code.
const SCRIPT: &str = "echo begun >> begun; echo said; echo more >&2; \
    until test -e go; do echo tick >> ticks; sleep 0.05; done; echo finished; exit 5";

/// An agent with a job that runs and one that waits for its turn.
struct JobScene {
    world: ApiWorld,
    api: CheckedClient,
    agent: String,
    running: String,
    pending: String,
}

impl JobScene {
    async fn new() -> JobScene {
        let mut world = ApiWorld::asleep();
        world.lodge.set_env("LODGED_MAX_JOBS", "1");
        world.lodge.start();
        let mut api = world.checked().await;
        let agent = world.agent(&mut api, "one").await;
        let running = submit(&mut api, &agent, SCRIPT).await;
        let said = |view: &Value| view["stdout_bytes"] == 5 && view["stderr_bytes"] == 5;
        api.until("job/get", json!({"job": running}), said).await;
        let pending = submit(&mut api, &agent, "echo second >> second; echo later").await;
        let view = api.ok("job/get", json!({"job": pending})).await;
        assert_eq!(view["status"], "pending");
        JobScene { world, api, agent, running, pending }
    }

    async fn view(&mut self) -> Value {
        self.api.ok("agent/get", json!({"agent": self.agent})).await
    }

    async fn start_again(&mut self) {
        self.world.lodge.start();
        self.api = self.api.again(&self.world.lodge).await;
    }

    /// The job itself works, whether or not other processes do.
    fn goes_on(&self) {
        let ticks = workspace(&self.world, &self.agent).join("ticks");
        let from = lines(&ticks);
        until("the job goes on", || (lines(&ticks) >= from + 3).then_some(()));
    }

    /// Lets the job end: it is the same one, ran once, and all that it wrote is there. Then the other one has its turn.
    async fn ends_well(&mut self) {
        self.goes_on();
        fs::write(workspace(&self.world, &self.agent).join("go"), "").expect("a file");
        let done = over(&mut self.api, &self.running).await;
        assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(5)), "{done:#}");
        self.is_settled(&self.running.clone(), ["said\nfinished\n", "more\n"], "said\nmore\nfinished\n")
            .await;
        self.pending_runs().await;
    }

    /// The job died with its keeper: it is not run again, its earlier output is present, and its session is notified.
    async fn is_lost(&mut self, written: [&str; 2]) {
        let lost = over(&mut self.api, &self.running).await;
        assert_eq!((&lost["status"], &lost["exit_code"]), (&json!("error"), &Value::Null), "{lost:#}");
        assert!(lost["error"].as_str().is_some_and(|error| error.starts_with("lost: ")), "{lost:#}");
        self.is_settled(&self.running.clone(), written, &written.concat()).await;
        self.pending_runs().await;
    }

    /// Byte for byte, before and after its files are gone.
    async fn is_settled(&mut self, job: &str, written: [&str; 2], merged: &str) {
        for archived in [false, true] {
            if archived {
                until("its files are gone", || exec_dir(&self.world, job).is_none().then_some(()));
            }
            for (stream, expected) in [("stdout", written[0]), ("stderr", written[1]), ("merged", merged)] {
                let output = self.api.ok("job/output", json!({"job": job, "stream": stream})).await;
                assert_eq!((&output["data"], &output["end"]), (&json!(expected), &json!(true)), "{stream}");
            }
        }
        assert_eq!(lines(&workspace(&self.world, &self.agent).join("begun")), 1, "the job ran twice");
    }

    async fn pending_runs(&mut self) {
        let done = over(&mut self.api, &self.pending).await;
        assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(0)), "{done:#}");
        assert_eq!(lines(&workspace(&self.world, &self.agent).join("second")), 1, "it ran twice");
        self.api.agent_is(&self.agent, "ready").await;
        let events = self.api.log().await;
        for job in [&self.running, &self.pending] {
            let of = |kind: &str| {
                events.iter().filter(|event| event["kind"] == kind && event["data"]["job"] == **job).count()
            };
            let counts = ["job.submitted", "job.started", "job.finished", "job.cancelled"].map(of);
            assert_eq!(counts, [1, 1, 1, 0], "{job}");
        }
    }
}

async fn submit(api: &mut CheckedClient, agent: &str, script: &str) -> String {
    let asked = json!({"agent": agent, "bin": "sh", "args": ["-c", script]});
    id(&api.ok("job/submit", asked).await).to_owned()
}

async fn over(api: &mut CheckedClient, job: &str) -> Value {
    api.until("job/get", json!({"job": job}), |view| !view["finished_at"].is_null()).await
}

fn exec_dir(world: &ApiWorld, job: &str) -> Option<std::path::PathBuf> {
    let sandboxes = fs::read_dir(world.lodge.home().join("run")).ok()?;
    sandboxes.flatten().map(|sandbox| sandbox.path().join("exec").join(job)).find(|dir| dir.is_dir())
}

fn kill9(pid: i32) {
    kill(pid, libc::SIGKILL);
    until("it is dead", || (!is_alive(pid)).then_some(()));
}

#[tokio::test]
async fn a_job_outlives_the_client_that_waits_for_it_and_the_one_that_follows_it() {
    let mut scene = JobScene::new().await;
    let running = scene.running.clone();
    for words in [["jobs", "wait", &running].as_slice(), &["jobs", "logs", "-f", &running]] {
        let mut client = scene.world.lodge.cli_command(words);
        let mut client = client.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("lodge runs");
        if words.contains(&"-f") {
            let mut first = [0; 5];
            let stdout = client.stdout.as_mut().expect("a pipe");
            stdout.read_exact(&mut first).expect("the beginning of its output");
        }
        client.kill().expect("our child can be killed");
        client.wait().expect("our child can be waited for");
    }
    scene.ends_well().await;
}

#[tokio::test]
async fn a_job_outlives_the_daemon_and_goes_on_without_one() {
    let mut scene = JobScene::new().await;
    for _ in 0..2 {
        scene.world.lodge.kill9();
        scene.goes_on();
        scene.start_again().await;
    }
    scene.ends_well().await;
}

#[tokio::test]
async fn a_job_that_ended_while_no_daemon_was_there_is_done_with_its_code() {
    let mut scene = JobScene::new().await;
    scene.world.lodge.kill9();
    fs::write(workspace(&scene.world, &scene.agent).join("go"), "").expect("a file");
    let exit = exec_dir(&scene.world, &scene.running).expect("its directory").join("exit");
    until("its end is recorded", || exit.exists().then_some(()));
    scene.start_again().await;
    let done = over(&mut scene.api, &scene.running.clone()).await;
    assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(5)), "{done:#}");
    let running = scene.running.clone();
    scene.is_settled(&running, ["said\nfinished\n", "more\n"], "said\nmore\nfinished\n").await;
    scene.pending_runs().await;
}

#[tokio::test]
async fn a_job_outlives_the_runtime_with_and_without_the_daemon() {
    for daemon in ["lives", "dies too"] {
        let mut scene = JobScene::new().await;
        let view = scene.view().await;
        if daemon == "dies too" {
            scene.world.lodge.kill9();
        }
        kill9(runtime_of(pid(&view)));
        scene.goes_on();
        if daemon == "dies too" {
            scene.start_again().await;
        }
        let back = |now: &Value| now["runs"] == 2 && now["status"] == "working";
        let after = scene.api.until("agent/get", json!({"agent": scene.agent}), back).await;
        assert_eq!(pid(&after), pid(&view), "its sandbox was replaced");
        scene.ends_well().await;
    }
}

#[tokio::test]
async fn a_job_dies_with_its_keeper_and_the_one_behind_it_runs_in_the_next_sandbox() {
    for daemon in ["lives", "dies too"] {
        let mut scene = JobScene::new().await;
        let view = scene.view().await;
        if daemon == "dies too" {
            scene.world.lodge.kill9();
        }
        kill9(pid(&view));
        if daemon == "dies too" {
            scene.start_again().await;
        }
        scene.is_lost(["said\n", "more\n"]).await;
        assert_eq!(scene.view().await["incarnation"], 2, "{daemon}");
    }
}

/// What a machine that went out leaves of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobRemains {
    /// All that a keeper had written.
    Files,
    /// Its claim was not on disk yet.
    Nothing,
    /// The keeper's last words as well.
    Record,
}

#[tokio::test]
async fn a_job_of_another_boot_is_what_its_files_say_and_never_run_again() {
    for left in [JobRemains::Files, JobRemains::Nothing, JobRemains::Record] {
        let mut scene = JobScene::new().await;
        let view = scene.view().await;
        let dir = exec_dir(&scene.world, &scene.running).expect("its directory");
        scene.world.lodge.kill9();
        if left == JobRemains::Record {
            fs::write(workspace(&scene.world, &scene.agent).join("go"), "").expect("a file");
            until("its end is recorded", || dir.join("exit").exists().then_some(()));
        }
        kill9(pid(&view));
        until("nothing is left", || scene.world.lodge.keepers().is_empty().then_some(()));
        if left == JobRemains::Nothing {
            fs::remove_dir_all(&dir).expect("its files can be removed");
        }
        let database =
            rusqlite::Connection::open(scene.world.lodge.home().join("daemon.db")).expect("a database");
        let changed = database.execute("UPDATE jobs SET boot = 'another' WHERE boot IS NOT NULL", []);
        assert_eq!(changed.expect("a change"), 1);
        drop(database);
        scene.start_again().await;
        match left {
            JobRemains::Files => scene.is_lost(["said\n", "more\n"]).await,
            JobRemains::Nothing => scene.is_lost(["", ""]).await,
            JobRemains::Record => {
                let done = over(&mut scene.api, &scene.running.clone()).await;
                assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(5)), "{done:#}");
                let running = scene.running.clone();
                scene.is_settled(&running, ["said\nfinished\n", "more\n"], "said\nmore\nfinished\n").await;
                scene.pending_runs().await;
            }
        }
    }
}

#[tokio::test]
async fn a_job_dies_with_the_stop_of_its_agent_and_so_does_the_one_behind_it_and_both_say_why() {
    let mut scene = JobScene::new().await;
    scene.api.ok("agent/stop", json!({"agent": scene.agent})).await;
    for job in [scene.running.clone(), scene.pending.clone()] {
        let view = over(&mut scene.api, &job).await;
        assert_eq!((&view["status"], &view["error"]), (&json!("cancelled"), &json!("its agent was stopped")));
    }
    assert!(scene.world.lodge.keepers().is_empty());
    assert_eq!(lines(&workspace(&scene.world, &scene.agent).join("second")), 0, "it ran all the same");
}
