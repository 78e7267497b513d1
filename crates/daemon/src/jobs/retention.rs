//! Removes old jobs and output according to the retention settings, for all agents, or by the `LIMIT disk` of one.
//! Without settings, nothing is removed.
//!
//! What goes is recorded first, and removed from the archive after. What a daemon that died in between left in the archive
//! is found by the sweep at the next start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::{AgentId, JobId};
use lodge_store::{OutputFate, OutputReads};

use crate::chain;
use crate::limits;
use crate::shell::{Shell, now};
use lodge_engine::Observation;
use lodge_engine::jobs::{Expiry, JobObservation};

/// Jobs per page.
const PAGE: u32 = 256;
/// How often jobs may become too old: a fraction of the age, within these.
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(10 * 60);
const LOOKS_AN_AGE: u32 = 8;
/// The part of the kept bytes by which the archive may grow before the next check: one in this many.
const GROWTH_SHARE: u64 = 16;

/// Between two looks at what agents have in the archive.
const AGENTS_PAUSE: Duration = Duration::from_secs(1);

/// Runs until the daemon ends. With nothing set it sleeps until the settings change, or a job is archived.
pub async fn run(shell: Arc<Shell>) {
    let swept = blocking(&shell, sweep).await;
    tracing::debug!(event = "archive.swept", outputs = swept.len());
    shell.jobs.queue.remove(swept);
    // An earlier daemon may not have come to it.
    let mut agents = blocking(&shell, every_agent).await;
    loop {
        agents.append(&mut shell.jobs.take_settled());
        for agent in std::mem::take(&mut agents) {
            let jobs = blocking(&shell, move |shell| beyond_of(shell, &agent)).await;
            expire(&shell, jobs, Expiry::Output).await;
        }
        let age = shell.config.settings().job_retention_age;
        if let Some(age) = age {
            expire_old(&shell, age).await;
        }
        if let Some(bytes_max) = shell.config.settings().job_retention_bytes {
            let jobs = blocking(&shell, move |shell| beyond(shell, bytes_max)).await;
            expire(&shell, jobs, Expiry::Output).await;
        }
        let look = async {
            match age {
                Some(age) => tokio::time::sleep((age / LOOKS_AN_AGE).clamp(LOOK_MIN, LOOK_MAX)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = look => {}
            () = shell.jobs.look.notified() => {}
            () = shell.jobs.settled.notified() => tokio::time::sleep(AGENTS_PAUSE).await,
        }
    }
}

fn every_agent(shell: &Shell) -> BTreeSet<AgentId> {
    let mut all = BTreeSet::new();
    let mut after: Option<AgentId> = None;
    loop {
        let page = shell.reader.here(|store| store.agents(after.as_ref().map(AgentId::as_str), PAGE));
        let page = page.unwrap_or_else(|error| {
            tracing::warn!(event = "agents.not_listed", error = chain(&error));
            Vec::new()
        });
        let Some(newest) = page.last().map(|found| found.row.id.clone()) else { return all };
        after = Some(newest);
        all.extend(page.into_iter().map(|found| found.row.id));
    }
}

/// The oldest outputs of an agent without which no more than its `LIMIT disk` is left of them.
fn beyond_of(shell: &Shell, agent: &AgentId) -> Vec<JobId> {
    let found = shell.reader.here(|store| {
        let bytes_max = store
            .agent(agent)?
            .and_then(|found| limits::archive_max(found.row.spec.limits.unwrap_or_default()));
        bytes_max.map_or(Ok(Vec::new()), |bytes_max| store.outputs_beyond(agent, bytes_max))
    });
    found.unwrap_or_else(|error| {
        tracing::warn!(event = "jobs.not_listed", error = chain(&error));
        Vec::new()
    })
}

/// The archive has so much more.
pub fn archive_grew(shell: &Shell, bytes: usize) {
    let Some(bytes_max) = shell.config.settings().job_retention_bytes else { return };
    if shell.jobs.grew(bytes as u64) >= bytes_max / GROWTH_SHARE {
        shell.jobs.look_now();
    }
}

/// A job is recorded as archived: only from now on may its output be too much.
pub fn settled(shell: &Shell, agent: &AgentId) {
    shell.jobs.settled_of(agent);
    if shell.config.settings().job_retention_bytes.is_some() {
        shell.jobs.look_now();
    }
}

async fn expire_old(shell: &Arc<Shell>, age: Duration) {
    let before = now().plus_ms(-i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    let mut after: Option<JobId> = None;
    loop {
        let last = after.take();
        let page = blocking(shell, move |shell| {
            let page = shell.reader.here(|store| store.jobs_ended_before(before, last.as_ref(), PAGE));
            page.unwrap_or_else(|error| {
                tracing::warn!(event = "jobs.not_listed", error = chain(&error));
                Vec::new()
            })
        });
        let page = page.await;
        let Some(newest) = page.last().cloned() else { return };
        after = Some(newest);
        expire(shell, page, Expiry::All).await;
    }
}

async fn expire(shell: &Shell, jobs: Vec<JobId>, what: Expiry) {
    for page in jobs.chunks(PAGE as usize) {
        shell.report(Observation::Job(JobObservation::Expired { jobs: page.to_vec(), what })).await;
    }
}

async fn blocking<T: Default + Send + 'static>(
    shell: &Arc<Shell>,
    work: impl FnOnce(&Shell) -> T + Send + 'static,
) -> T {
    let worker = shell.clone();
    tokio::task::spawn_blocking(move || work(&worker)).await.unwrap_or_default()
}

/// Every archived job, the oldest first, until `look` says that it is enough. Ids are in the order of time.
fn each_archived(reader: &dyn OutputReads, mut look: impl FnMut(JobId) -> std::ops::ControlFlow<()>) {
    let mut after: Option<JobId> = None;
    loop {
        let page = reader.jobs(after.as_ref(), PAGE).unwrap_or_else(|error| {
            tracing::warn!(event = "archive.not_listed", error = chain(&error));
            Vec::new()
        });
        let Some(newest) = page.last().cloned() else { return };
        after = Some(newest);
        for job in page {
            if look(job).is_break() {
                return;
            }
        }
    }
}

/// Outputs that belong to no job, or to one whose output is recorded as removed.
fn sweep(shell: &Shell) -> Vec<JobId> {
    let mut gone = Vec::new();
    let Ok(Some(reader)) = shell.jobs.db.reader() else { return gone };
    each_archived(&*reader, |job| {
        // What cannot be looked up is kept.
        if matches!(shell.reader.here(|store| store.output_fate(&job)), Ok(OutputFate::Gone)) {
            gone.push(job);
        }
        std::ops::ControlFlow::Continue(())
    });
    gone
}

/// The oldest outputs without which no more than `bytes_max` are left. Jobs that are not done with are passed over.
fn beyond(shell: &Shell, bytes_max: u64) -> Vec<JobId> {
    let mut over = Vec::new();
    let Ok(Some(reader)) = shell.jobs.db.reader() else { return over };
    let Ok(mut total) = reader.total_bytes() else { return over };
    if total <= bytes_max {
        return over;
    }
    each_archived(&*reader, |job| {
        let kept = matches!(shell.reader.here(|store| store.output_fate(&job)), Ok(OutputFate::Kept));
        let ended = matches!(shell.reader.here(|store| store.is_archived(&job)), Ok(true));
        // One that is about to be removed counts as gone.
        if !kept || ended {
            total = total.saturating_sub(reader.bytes(&job).unwrap_or(0));
        }
        if kept && ended {
            over.push(job);
        }
        if total <= bytes_max {
            std::ops::ControlFlow::Break(())
        } else {
            std::ops::ControlFlow::Continue(())
        }
    });
    over
}
