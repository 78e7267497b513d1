//! Lodge's side: a daemon with agents that have the tools these jobs need.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lodge_proto::client::Client;
use lodge_testkit::lodge::PATIENCE;
use serde_json::{Value, json};

use crate::world::{BenchWorld, wait_ready};

/// Longer than any job of a measurement, also on a machine that does other things.
const ENDS_WITHIN: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(crate) struct LodgeJobs {
    pub(crate) world: BenchWorld,
    pub(crate) agent: String,
    pub(crate) client: Client,
}

impl LodgeJobs {
    /// A daemon with these settings and one agent that is ready.
    pub(crate) async fn start(settings: &[(&str, &str)]) -> LodgeJobs {
        let world = BenchWorld::start_with(settings).await;
        let mut client = world.lodge.client().await;
        let agent = agent(&world, &mut client, "jobs").await;
        LodgeJobs { world, agent, client }
    }

    pub(crate) async fn submit(&mut self, bin: &str, args: &[&str]) -> String {
        submit(&mut self.client, json!({"agent": self.agent, "bin": bin, "args": args})).await
    }

    /// Through the command line, as a script does it.
    pub(crate) fn submit_cli(&self) {
        let mut command = self.world.lodge.cli_command(["jobs", "run", &self.agent, "--", "true"]);
        let status = command.stdout(Stdio::null()).status().expect("lodge runs");
        assert!(status.success(), "a job through the command line: {status}\n{}", self.world.lodge.log());
    }

    /// A connection that gets all events of the agent's jobs from now on.
    pub(crate) async fn watcher(&self) -> JobWatcher {
        let mut client = self.world.lodge.client().await;
        client.call_value("client/attach", json!({"agent": self.agent})).await.expect("an attachment");
        JobWatcher { client }
    }

    /// Where the keeper writes what a job prints; gone as soon as all of it is archived.
    pub(crate) fn files_of(&self, job: &str) -> Option<PathBuf> {
        let boxes = std::fs::read_dir(self.world.lodge.home().join("run")).ok()?;
        boxes.flatten().map(|entry| entry.path().join("exec").join(job)).find(|path| path.exists())
    }
}

pub(crate) async fn agent(world: &BenchWorld, client: &mut Client, name: &str) -> String {
    let perl = if super::printing::has_perl() { "BIN perl host:perl \"prints at a pace\"\n" } else { "" };
    let text = format!(
        "# syntax=lodge/agentfile:1\nFROM scratch\nNAME {name}\nMODEL mock/instant\n\
         BIN true host:true safe \"does nothing\"\nBIN head host:head \"prints much\"\n{perl}LIMIT output 4g\n"
    );
    let dir = world.lodge.agent_dir(name, &text, &[]);
    let made = client.call_value("agent/create", json!({"path": dir})).await;
    let made = made.unwrap_or_else(|error| panic!("{error:?}\n{}", world.lodge.log()));
    let id = made["id"].as_str().expect("an agent has an id").to_owned();
    wait_ready(client, &id).await;
    id
}

/// Submits a job and returns its id, once it is recorded.
pub(crate) async fn submit(client: &mut Client, params: Value) -> String {
    let job = client.call_value("job/submit", params).await;
    let job = job.unwrap_or_else(|error| panic!("a job was refused: {error:?}"));
    job["id"].as_str().expect("a job has an id").to_owned()
}

/// One who waits for ends.
#[derive(Debug)]
pub(crate) struct JobWatcher {
    client: Client,
}

impl JobWatcher {
    /// Waits until this many jobs have ended, all successfully: a job that cannot run ends soon.
    pub(crate) async fn ended(&mut self, count: usize) {
        let end = Instant::now() + ENDS_WITHIN;
        for done in 0..count {
            loop {
                let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                let note = tokio::time::timeout(left, self.client.next()).await;
                let note = note.unwrap_or_else(|_| panic!("{done} of {count} jobs ended in time"));
                let note = note.expect("a connection that lives");
                if note.params["kind"] == "job.finished" {
                    assert_eq!(note.params["data"]["exit_code"], 0, "{}", note.params);
                    break;
                }
            }
        }
    }
}

/// Waits until a job's output has left the keeper's files.
pub(crate) async fn archived(ours: &LodgeJobs, job: &str) {
    let end = Instant::now() + ENDS_WITHIN;
    while ours.files_of(job).is_some() {
        assert!(Instant::now() < end, "{job} was not archived in time\n{}", ours.world.lodge.log());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Cancels a job that may just have ended.
pub(crate) async fn cancel(client: &mut Client, job: &str) {
    let cancelled =
        tokio::time::timeout(PATIENCE, client.call_value("job/cancel", json!({"job": job}))).await;
    match cancelled.expect("an answer in time") {
        Ok(_) => {}
        Err(error) => assert_eq!(error.code(), Some("job.not_running"), "{error:?}"),
    }
}
