//! Jobs that clients submit: sent, sent again, acknowledged, looked at while they run, and waited for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{
    Event, EventBody, GetJob, JobListParams, JobOutput, JobOutputParams, JobRef, JobSubmitParams, JobView,
    ListJobs, ReadJobOutput, SubmitJob, base64,
};

use super::CrashSetup;
use super::job_plan::JobKind;
use super::report::{BrokenPromise, CrashReport};
use super::talk::is_absence;
use super::world::{CrashWorld, LOOK, through};
use crate::lodge::PATIENCE;
use crate::trouble::{Trouble, refused};

/// With more open jobs than this, no new ones are submitted. Some wait for a slot even so.
const OPEN_JOBS_MAX: usize = 6;
/// The most and the fewest bytes per read.
const READ_MAX: u64 = 90_000;
const READ_MIN: u64 = 5_000;
/// Jobs that are looked at after a daemon has started.
const LOOKS: u64 = 2;
/// Half of the jobs belong to one of this many conversations of their agent, as messages do.
const SESSIONS: u64 = 2;
/// Kills of jobs alone wait about as long.
const KILL_US: u64 = 400_000;

/// One job, from the first attempt to submit it.
#[derive(Debug)]
pub struct SubmittedJob {
    pub kind: JobKind,
    pub token: String,
    pub agent: usize,
    pub session: Option<String>,
    /// Once it was acknowledged.
    pub id: Option<String>,
}

/// Kills processes that may die while jobs run and are archived, and no other work runs.
pub async fn jobs_alone(setup: &CrashSetup, kills: u64) -> CrashReport {
    through(setup, 2, async |world| {
        while world.report.kills < kills && world.report.is_clean() {
            world.submit_some();
            world.gather().await;
            world.delay(KILL_US).await;
            let victim = *world.rng.pick(world.setup.victims);
            world.strike(victim, "with jobs at work").await?;
            if world.lodge.pid().is_none() {
                world.start_again().await?;
            } else {
                // A turn now and then, so that the lineage is not given up.
                world.check_adoption().await?;
                world.send_new();
            }
        }
        Ok(())
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

impl CrashWorld {
    pub fn submit_some(&mut self) {
        if self.open_jobs() < OPEN_JOBS_MAX {
            for _ in 0..self.rng.below(3) {
                self.submit_new();
            }
        }
    }

    pub fn submit_new(&mut self) {
        let agent = usize::try_from(self.rng.below(self.agents.len() as u64)).unwrap_or(0);
        let kind = *self.rng.pick(&JobKind::ALL);
        self.submit_to(agent, kind);
    }

    pub fn submit_to(&mut self, agent: usize, kind: JobKind) {
        let talk = format!("talk-{agent}-{}", self.rng.below(SESSIONS));
        let session = self.rng.percent(50).then_some(talk);
        let token = format!("J{}x{:06x}", self.jobs.len(), self.rng.next() & 0xff_ffff);
        self.jobs.push(SubmittedJob { kind, token, agent, session, id: None });
        self.submit(self.jobs.len() - 1);
    }

    /// Submits again what was never answered and, now and then, what was.
    pub fn submit_again(&mut self) {
        for at in 0..self.jobs.len() {
            if self.jobs[at].id.is_none() || self.rng.percent(3) {
                self.submit(at);
            }
        }
    }

    pub fn submit_unanswered(&mut self) {
        for at in 0..self.jobs.len() {
            if self.jobs[at].id.is_none() {
                self.submit(at);
            }
        }
    }

    fn submit(&mut self, at: usize) {
        let job = &self.jobs[at];
        let params = JobSubmitParams {
            agent: self.agents[job.agent].id.clone(),
            session: job.session.clone(),
            bin: "bash".to_owned(),
            args: job.kind.args(&self.effects.job_line(), &job.token),
            output: job.kind.output(),
            request_id: Some(format!("submit-{}", job.token)),
            ..JobSubmitParams::default()
        };
        let (target, token) = (self.lodge.target(), self.lodge.bearer());
        self.submitting.spawn(async move {
            let answer = async { Client::connect(&target, &token).await?.call::<SubmitJob>(&params).await };
            (at, answer.await)
        });
    }

    /// Waits until every open submission was answered, or lost its connection.
    pub async fn gather_jobs(&mut self) {
        while let Some(joined) = self.submitting.join_next().await {
            match joined {
                Ok((at, Ok(view))) => self.record_view(at, view),
                Ok((_, Err(error))) if is_absence(&error) => {}
                Ok((at, Err(error))) => {
                    let what = format!("job {} was refused: {error:?}", self.jobs[at].token);
                    self.report.add(BrokenPromise::Wrong, what);
                }
                Err(error) => {
                    self.report.add(BrokenPromise::Wrong, format!("a submission was interrupted: {error}"))
                }
            }
        }
    }

    fn record_view(&mut self, at: usize, view: JobView) {
        let job = &mut self.jobs[at];
        match &job.id {
            None => {
                self.report.jobs += 1;
                job.id = Some(view.id);
            }
            Some(known) if *known == view.id => {}
            Some(known) => {
                let what = format!("the submission {} is job {known} and {}", job.token, view.id);
                self.report.add(BrokenPromise::Duplicated, what);
            }
        }
    }

    /// Acknowledged jobs of which no end was seen.
    fn open_jobs(&self) -> usize {
        let ended: BTreeSet<String> = self.follower.with(|events| {
            let ended = |event: &Event| match event.body()? {
                EventBody::JobFinished(job) => Some(job.job),
                EventBody::JobCancelled(job) => Some(job.job),
                _ => None,
            };
            events.iter().filter_map(ended).collect()
        });
        self.jobs.iter().filter_map(|job| job.id.as_ref()).filter(|id| !ended.contains(*id)).count()
    }

    /// Waits until no job is pending or running.
    pub async fn settle_jobs(&mut self) -> Result<(), Trouble> {
        let until = Instant::now() + self.setup.patience;
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        for status in ["pending", "running"] {
            loop {
                let params = JobListParams { status: Some(status.to_owned()), ..JobListParams::default() };
                let open = client.call::<ListJobs>(&params).await;
                match open {
                    Ok(open) if open.jobs.is_empty() => break,
                    Ok(open) if Instant::now() >= until => {
                        self.report
                            .add(BrokenPromise::Wrong, format!("jobs that do not end: {:?}", open.jobs));
                        return Ok(());
                    }
                    Ok(_) => tokio::time::sleep(LOOK).await,
                    Err(error) => {
                        self.report.add(BrokenPromise::Lost, format!("the jobs that are {status}: {error}"));
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks at some of the jobs so far: they are there, and what can be read of them is what they wrote.
    pub async fn check_some_jobs(&mut self) -> Result<(), Trouble> {
        let known: Vec<usize> = (0..self.jobs.len()).filter(|at| self.jobs[*at].id.is_some()).collect();
        for _ in 0..LOOKS.min(known.len() as u64) {
            let at = *self.rng.pick(&known);
            let (kind, token) = (self.jobs[at].kind, self.jobs[at].token.clone());
            let id = self.jobs[at].id.clone().unwrap_or_default();
            let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
            if let Err(error) = client.call::<GetJob>(&JobRef { job: id.clone() }).await {
                self.report.add(BrokenPromise::Lost, format!("job {id} ({token}): {error}"));
                continue;
            }
            for (stream, whole) in ["stdout", "stderr"].into_iter().zip(kind.written(&token)) {
                let len = 1 + self.rng.below(READ_MAX);
                match read(&mut client, &id, stream, 0, len).await {
                    Ok(OutputPage { dropped: 0, bytes, .. }) if whole.as_bytes().starts_with(&bytes) => {}
                    // Which part of the end is kept moves on while one looks.
                    Ok(_) if kind == JobKind::Cut => {}
                    Ok(read) => {
                        let what =
                            format!("{stream} of {id} ({token}) begins with {:?}", excerpt(&read.bytes));
                        self.report.add(BrokenPromise::Lost, what);
                    }
                    Err(error) => {
                        self.report.add(BrokenPromise::Lost, format!("{stream} of {id} ({token}): {error}"))
                    }
                }
            }
        }
        Ok(())
    }

    /// All that is kept of a stream, in pieces of a length of their own, and how much was passed over.
    pub async fn whole(
        &mut self,
        client: &mut Client,
        job: &str,
        stream: &str,
    ) -> Result<(Vec<u8>, u64), ClientError> {
        let len = READ_MIN + self.rng.below(READ_MAX - READ_MIN);
        let (mut bytes, mut dropped, mut offset) = (Vec::new(), 0, 0);
        let until = Instant::now() + PATIENCE;
        loop {
            let piece = read(client, job, stream, offset, len).await?;
            bytes.extend_from_slice(&piece.bytes);
            (dropped, offset) = (dropped + piece.dropped, piece.next);
            if piece.end || Instant::now() >= until {
                return Ok((bytes, dropped));
            }
            if piece.bytes.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

struct OutputPage {
    bytes: Vec<u8>,
    dropped: u64,
    next: u64,
    end: bool,
}

async fn read(
    client: &mut Client,
    job: &str,
    stream: &str,
    offset: u64,
    limit: u64,
) -> Result<OutputPage, ClientError> {
    let params = JobOutputParams {
        job: job.to_owned(),
        stream: Some(stream.to_owned()),
        offset: Some(offset),
        limit: Some(limit),
        wait_ms: None,
    };
    let JobOutput { data, encoding, dropped, next, end, .. } = client.call::<ReadJobOutput>(&params).await?;
    let bytes = match encoding.as_str() {
        "base64" => base64::decode(&data).unwrap_or_default(),
        _utf8 => data.into_bytes(),
    };
    Ok(OutputPage { bytes, dropped, next, end })
}

/// The beginning, for people.
pub fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()
}
