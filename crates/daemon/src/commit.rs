//! The writer's loop: takes everything that waits when it becomes free, commits it with one fsync, then lets go
//! what waited for it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lodge_core::record::{EventRow, Role, StepKind, Write};
use lodge_core::turn::StepState;
use lodge_store::Writer;

use crate::crash::{self, Mutation};
use crate::engine::{Batch, Effect, Out};
use crate::shell::Shell;

/// Batches that may wait for the disk; then the engine waits too.
pub const BATCHES_MAX: usize = 64;
/// How long writes that nobody waits for may stay in memory.
const LAZY_MAX: Duration = Duration::from_millis(250);
/// With nothing to commit for this long, memory that only saves time is given back: once, until there is work again.
const REST_AFTER: Duration = Duration::from_secs(1);
/// When the engine has let go of its part, the heap's free pages go back to the kernel.
const TRIM_AFTER: Duration = Duration::from_millis(100);

/// Requests after which the engine hears that they are on disk.
const TELL_EVERY: u64 = 128;

/// How far the daemon has given back memory since its last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Busy,
    LettingGo,
    Asleep,
}

/// Runs until the engine is gone. A storage error ends the process: what was acknowledged is on disk, and memory
/// is ahead of it.
pub fn run(mut writer: Writer, batches: &Receiver<Batch>, shell: &Arc<Shell>) {
    let mutation = crash::mutation();
    let mut waiting: Vec<Batch> = Vec::new();
    let mut oldest: Option<Instant> = None;
    let mut rest = Rest::Busy;
    let (mut requests, mut told) = (0, 0);
    loop {
        let next = match (oldest, rest) {
            (Some(since), _) => batches.recv_timeout(LAZY_MAX.saturating_sub(since.elapsed())),
            (None, Rest::Busy) => batches.recv_timeout(REST_AFTER),
            (None, Rest::LettingGo) => batches.recv_timeout(TRIM_AFTER),
            // Nothing wakes an idle daemon.
            (None, Rest::Asleep) => batches.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let due = match next {
            Ok(batch) => {
                let urgent = batch.urgent;
                waiting.push(mutate(batch, mutation, shell));
                urgent
            }
            Err(RecvTimeoutError::Timeout) if oldest.is_none() => {
                rest = go_to_rest(rest, &writer, requests, shell);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if !due {
            oldest.get_or_insert_with(Instant::now);
            continue;
        }
        while let Ok(batch) = batches.try_recv() {
            waiting.push(mutate(batch, mutation, shell));
            if waiting.len() >= BATCHES_MAX {
                break;
            }
        }
        oldest = None;
        rest = Rest::Busy;
        requests += waiting.iter().map(|batch| batch.requests() as u64).sum::<u64>();
        commit(&mut writer, std::mem::take(&mut waiting), shell);
        if requests - told >= TELL_EVERY {
            told = requests;
            shell.settled(requests, false);
        }
    }
}

/// One step further into rest; `requests` were committed since the daemon started.
fn go_to_rest(rest: Rest, writer: &Writer, requests: u64, shell: &Arc<Shell>) -> Rest {
    match rest {
        Rest::Busy => {
            writer.rest();
            shell.rest(requests);
            Rest::LettingGo
        }
        Rest::LettingGo | Rest::Asleep => {
            trim_heap();
            Rest::Asleep
        }
    }
}

fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes a plain integer and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn commit(writer: &mut Writer, batches: Vec<Batch>, shell: &Arc<Shell>) {
    if batches.iter().all(|batch| batch.writes.is_empty()) {
        release(batches.into_iter().flat_map(|batch| batch.after).collect(), shell);
        return;
    }
    crash::point("before_commit");
    let points = points(&batches);
    let mut events: Vec<EventRow> = Vec::new();
    let mut writes: Vec<Write> = Vec::new();
    let mut after: Vec<Out> = Vec::new();
    for batch in batches {
        events.extend(batch.events().cloned());
        writes.extend(batch.writes);
        after.extend(batch.after);
    }
    match writer.commit(&writes, (events, after)) {
        Ok(committed) => {
            for point in points {
                crash::point(point);
            }
            let (events, after) = committed.into_inner();
            shell.hub.publish(events);
            release(after, shell);
        }
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::error!(event = "store.failed", %error, %cause, "nothing unacknowledged was kept; stopping");
            std::process::exit(74);
        }
    }
}

fn release(after: Vec<Out>, shell: &Arc<Shell>) {
    for out in after {
        match out {
            Out::Reply { ticket, reply } => shell.answer(ticket, reply),
            Out::Act(effect) => shell.act(effect),
        }
    }
}

/// Which named points lie behind this commit.
fn points(batches: &[Batch]) -> Vec<&'static str> {
    let writes = batches.iter().flat_map(|batch| &batch.writes);
    let mut points: Vec<&'static str> = writes
        .filter_map(|write| match write {
            Write::Turn(_) => Some("after_accept"),
            Write::Step(step) if step.kind == StepKind::Tool && step.state == StepState::Intent => {
                Some("after_intent")
            }
            Write::StepState { ordinal, .. } if *ordinal > 0 => Some("after_outcome"),
            Write::Message(message) if message.role == Role::Assistant => Some("after_answer"),
            Write::Image { .. }
            | Write::Agent(_)
            | Write::AgentState { .. }
            | Write::Session(_)
            | Write::TurnState { .. }
            | Write::Step(_)
            | Write::StepState { .. }
            | Write::Message(_)
            | Write::Event(_)
            | Write::Request(_) => None,
        })
        .collect();
    points.dedup();
    points
}

/// Puts a deliberate bug in, when a test asks a debug build for one.
fn mutate(mut batch: Batch, mutation: Mutation, shell: &Arc<Shell>) -> Batch {
    match mutation {
        Mutation::None => {}
        Mutation::ReplyBeforeCommit => {
            let (early, late): (Vec<Out>, Vec<Out>) =
                batch.after.into_iter().partition(|out| matches!(out, Out::Reply { .. }));
            batch.after = late;
            if !early.is_empty() {
                release(early, shell);
                // As a slow disk would, so that the answer has left before the commit.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Mutation::DropIntent => {
            let is_start = |out: &Out| matches!(out, Out::Act(Effect::StartExec { .. }));
            if batch.after.iter().any(is_start) {
                let (early, late) = batch.after.into_iter().partition(is_start);
                batch.after = late;
                batch
                    .writes
                    .retain(|write| !matches!(write, Write::Step(step) if step.kind == StepKind::Tool));
                batch.urgent = false;
                release(early, shell);
            }
        }
    }
    batch
}
