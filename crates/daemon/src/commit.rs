//! The writer's loop: takes everything that waits when it becomes free, commits it with one fsync, then lets go
//! what waited for it. Without room it refuses what it has, and waits.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lodge_core::job::JobWrite;
use lodge_core::record::{EventRow, Role, SessionWrite, StepKind, TurnWrite, Write};
use lodge_core::sandbox::SandboxWrite;
use lodge_core::turn::StepState;
use lodge_store::{Committed, FailedBatch, WriteError, Writer};

use crate::crash::{self, Mutation};
use crate::decide::{EngineStart, Halt, WriterMessage};
use crate::shell::{Shell, now};
use lodge_engine::{Batch, BatchOutput, Effect, Refusal, RequestName, SandboxEffect, Ticket};

/// Batches that may wait for the disk; then the engine waits too.
pub const BATCHES_MAX: usize = 64;
/// How long writes without a waiting caller may stay in memory.
const LAZY_MAX: Duration = Duration::from_millis(250);
/// With nothing to commit for this long, memory that only saves time is given back: once, until there is work again.
const REST_AFTER: Duration = Duration::from_secs(1);
/// When the engine has let go of its part, the heap's free pages go back to the kernel.
const TRIM_AFTER: Duration = Duration::from_millis(100);
/// How often a daemon that can record nothing sees whether it can again.
const ROOM_EVERY: Duration = Duration::from_secs(1);
/// How often a store that cannot be reached is tried again.
const AWAY_EVERY: Duration = Duration::from_millis(250);
/// How often in a row it may believe at once that it can.
const IN_VAIN_MAX: u32 = 3;

/// The number of requests after which the engine gets a report that they are on disk.
const TELL_EVERY: u64 = 128;

/// How far the daemon has given back memory since its last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemoryRelease {
    Busy,
    LettingGo,
    Asleep,
}

/// Runs until the engine is gone. A storage error that nothing can be done about ends the process: what was acknowledged
/// is on disk, and memory is ahead of it.
pub fn run(
    writer: Writer,
    decided: &Receiver<WriterMessage>,
    halts: &tokio::sync::mpsc::Sender<Halt>,
    shell: &Arc<Shell>,
) {
    match write_until_over(writer, decided, halts, shell) {
        Ok(()) | Err(WriterStop::Ending) => {}
        Err(WriterStop::Failed(error)) => end(&error),
    }
}

/// Why the writer stops before the engine does.
#[derive(Debug)]
enum WriterStop {
    /// The daemon ends while the store cannot be reached. The outcome of the last batch stays unknown.
    Ending,
    Failed(WriteError),
}

fn write_until_over(
    mut writer: Writer,
    decided: &Receiver<WriterMessage>,
    halts: &tokio::sync::mpsc::Sender<Halt>,
    shell: &Arc<Shell>,
) -> Result<(), WriterStop> {
    let mutation = crash::mutation();
    let mut waiting: Vec<Batch> = Vec::new();
    let mut oldest: Option<Instant> = None;
    let mut rest = MemoryRelease::Busy;
    let (mut requests, mut told) = (0, 0);
    loop {
        let next = match (oldest, rest) {
            (Some(since), _) => decided.recv_timeout(LAZY_MAX.saturating_sub(since.elapsed())),
            (None, MemoryRelease::Busy) => decided.recv_timeout(REST_AFTER),
            (None, MemoryRelease::LettingGo) => decided.recv_timeout(TRIM_AFTER),
            // Nothing wakes an idle daemon.
            (None, MemoryRelease::Asleep) => decided.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let due = match next {
            Ok(WriterMessage::Batch(batch)) => {
                let urgent = batch.urgent;
                waiting.push(mutate(batch, mutation, shell));
                urgent
            }
            // Sent only in answer to a halt, and awaited there.
            Ok(WriterMessage::Halted(_)) => continue,
            Err(RecvTimeoutError::Timeout) if oldest.is_none() => {
                rest = go_to_rest(rest, &writer, requests, shell);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        if !due {
            oldest.get_or_insert_with(Instant::now);
            continue;
        }
        while waiting.len() < BATCHES_MAX
            && let Ok(WriterMessage::Batch(batch)) = decided.try_recv()
        {
            waiting.push(mutate(batch, mutation, shell));
        }
        oldest = None;
        rest = MemoryRelease::Busy;
        requests += waiting.iter().map(|batch| batch.requests() as u64).sum::<u64>();
        if let Err(lost) = commit(&mut writer, std::mem::take(&mut waiting), shell)? {
            let Some(more) = go_without_room(&mut writer, lost, decided, halts, shell)? else {
                return Ok(());
            };
            // They are as settled as those on disk: no memory of them is left.
            requests += more;
        }
        if requests - told >= TELL_EVERY {
            told = requests;
            shell.report_settled(requests, false);
        }
    }
}

/// One step further into rest; `requests` were committed since the daemon started.
fn go_to_rest(rest: MemoryRelease, writer: &Writer, requests: u64, shell: &Arc<Shell>) -> MemoryRelease {
    match rest {
        MemoryRelease::Busy => {
            writer.rest();
            shell.free_caches(requests);
            MemoryRelease::LettingGo
        }
        MemoryRelease::LettingGo | MemoryRelease::Asleep => {
            trim_heap();
            MemoryRelease::Asleep
        }
    }
}

/// Gives the heap's free pages back to the kernel.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes a plain integer and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Writes batches with one fsync and lets go what waited for it. Those for which there is no room come back.
fn commit(
    writer: &mut Writer,
    batches: Vec<Batch>,
    shell: &Arc<Shell>,
) -> Result<Result<(), UnrecordedDecisions>, WriterStop> {
    if batches.iter().all(|batch| batch.writes.is_empty()) {
        release(batches.into_iter().flat_map(|batch| batch.after).collect(), shell);
        return Ok(Ok(()));
    }
    crash::point("before_commit");
    let points = points(&batches);
    let mut events: Vec<EventRow> = Vec::new();
    let mut writes: Vec<Write> = Vec::new();
    let mut after: Vec<BatchOutput> = Vec::new();
    for batch in batches {
        events.extend(batch.events().cloned());
        writes.extend(batch.writes);
        after.extend(batch.after);
    }
    let written = match reach(writer, &writes, (events, after), shell)? {
        // Rolled back, and there is a little more room than the file system says.
        Err(FailedBatch { error: WriteError::Full { .. }, carried }) if shell.room.give_back() => {
            reach(writer, &writes, carried, shell)?
        }
        done => done,
    };
    match written {
        Ok(committed) => {
            for point in points {
                crash::point(point);
            }
            let (events, after) = committed.into_inner();
            shell.jobs.recorded(&events);
            shell.hub.publish(events);
            release(after, shell);
            shell.room.tend(now());
            Ok(Ok(()))
        }
        Err(FailedBatch { error: WriteError::Full { .. }, carried: (_, after) }) => {
            let mut lost = UnrecordedDecisions::default();
            lost.take(&writes, after);
            Ok(Err(lost))
        }
        Err(FailedBatch { error, .. }) => Err(WriterStop::Failed(error)),
    }
}

/// Commits a batch, and retries while the store cannot be reached: the outcome is unknown until the store reports it,
/// and no caller is answered before. Changes are refused meanwhile, and reads may fail.
fn reach<T>(
    writer: &mut Writer,
    writes: &[Write],
    mut carried: T,
    shell: &Arc<Shell>,
) -> Result<Result<Committed<T>, FailedBatch<T>>, WriterStop> {
    let mut is_away = false;
    loop {
        let written = writer.commit(writes, carried);
        match written {
            Err(FailedBatch { error: error @ WriteError::Away { .. }, carried: unsaid }) => {
                if !std::mem::replace(&mut is_away, true) {
                    tracing::error!(event = "store.away", error = crate::chain(&error));
                    shell.room.lose_store(now());
                }
                if shell.end.is_cancelled() {
                    return Err(WriterStop::Ending);
                }
                carried = unsaid;
                std::thread::sleep(AWAY_EVERY);
            }
            written => {
                if is_away {
                    shell.room.reopen(now());
                }
                return Ok(written);
            }
        }
    }
}

/// Decisions that were not recorded: their callers are refused, and their effects are dropped.
#[derive(Debug, Default)]
struct UnrecordedDecisions {
    tickets: Vec<Ticket>,
    requests: HashSet<RequestName>,
}

impl UnrecordedDecisions {
    fn take(&mut self, writes: &[Write], after: Vec<BatchOutput>) {
        self.requests.extend(
            writes.iter().filter_map(Write::request).map(|row| (row.caller.clone(), row.request_id.clone())),
        );
        self.tickets.extend(after.into_iter().filter_map(|out| match out {
            BatchOutput::Reply { ticket, .. } => Some(ticket),
            BatchOutput::Act(_) => None,
        }));
    }
}

/// Halts the engine, refuses what is not recorded, waits until there is room, and lets the engine go on from what is.
///
/// Returns how many more requests were lost; none if the daemon ends.
fn go_without_room(
    writer: &mut Writer,
    mut lost: UnrecordedDecisions,
    decided: &Receiver<WriterMessage>,
    halts: &tokio::sync::mpsc::Sender<Halt>,
    shell: &Arc<Shell>,
) -> Result<Option<u64>, WriterStop> {
    let in_vain = shell.room.close(ROOM_EVERY, now());
    let (go_on, halt) = tokio::sync::oneshot::channel();
    if halts.blocking_send(halt).is_err() {
        return Ok(None);
    }
    let mut more = 0;
    let remembered = loop {
        match decided.recv() {
            Err(_) => return Ok(None),
            // Decided on memory that will never be on disk.
            Ok(WriterMessage::Batch(batch)) => {
                more += batch.requests() as u64;
                lost.take(&batch.writes, batch.after);
            }
            Ok(WriterMessage::Halted(remembered)) => break remembered,
        }
    };
    for ticket in lost.tickets {
        shell.answer(ticket, Err(Refusal::NotRecorded.into()));
    }
    // Room that is gone as soon as it is there is not looked for in haste.
    let mut wait = in_vain >= IN_VAIN_MAX;
    let loaded = loop {
        if !std::mem::take(&mut wait) && shell.room.has_room_again() {
            match writer.reload(shell.epoch, &remembered) {
                Ok(loaded) => break loaded,
                Err(WriteError::Full { .. } | WriteError::Away { .. }) => {}
                Err(error @ (WriteError::Fenced { .. } | WriteError::Failed { .. })) => {
                    return Err(WriterStop::Failed(error));
                }
            }
        }
        match decided.recv_timeout(ROOM_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            // A halted engine decides nothing.
            Ok(WriterMessage::Batch(_) | WriterMessage::Halted(_)) => {}
        }
    };
    if go_on.send(EngineStart { loaded, unrecorded: lost.requests }).is_err() {
        return Ok(None);
    }
    shell.room.reopen(now());
    Ok(Some(more))
}

/// Ends the daemon: a flush or the database failed, and trying again could pass without what was lost; or the store is
/// another daemon's, and nothing that this one decides may have any effect.
fn end(error: &WriteError) -> ! {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    tracing::error!(event = "store.failed", %error, %cause, "nothing unacknowledged was kept; stopping");
    std::process::exit(74);
}

fn release(after: Vec<BatchOutput>, shell: &Arc<Shell>) {
    for out in after {
        match out {
            BatchOutput::Reply { ticket, reply } => {
                shell.answer(ticket, reply.map_err(Into::into));
            }
            BatchOutput::Act(effect) => shell.act(effect),
        }
    }
}

/// Which named points lie behind this commit.
fn points(batches: &[Batch]) -> Vec<&'static str> {
    let writes = batches.iter().flat_map(|batch| &batch.writes);
    let mut points: Vec<&'static str> = writes
        .filter_map(|write| match write {
            Write::Turn(TurnWrite::New(_)) => Some("after_accept"),
            Write::Turn(TurnWrite::Step(step))
                if step.kind() == StepKind::Tool && step.state == StepState::Intent =>
            {
                Some("after_intent")
            }
            Write::Turn(TurnWrite::StepState { ordinal, .. }) if *ordinal > 0 => Some("after_outcome"),
            Write::Turn(TurnWrite::Message(message)) if message.role == Role::Assistant => {
                Some("after_answer")
            }
            Write::Session(SessionWrite::Epoch(_)) => Some("after_compaction"),
            Write::Session(SessionWrite::Path(_) | SessionWrite::Fork(_) | SessionWrite::Deleted { .. })
            | Write::Token(_) => Some("after_change"),
            Write::Job(JobWrite::New { .. }) => Some("after_job_submit"),
            Write::Job(JobWrite::Progress { progress, .. }) if !progress.state.is_open() => {
                Some("after_job_end")
            }
            Write::Sandbox(SandboxWrite::New(_)) => Some("after_sandbox"),
            Write::Sandbox(SandboxWrite::NewExec { .. }) => Some("after_exec"),
            Write::Sandbox(SandboxWrite::ExecProgress { progress, .. }) if !progress.state.is_open() => {
                Some("after_exec_end")
            }
            Write::Agent(_)
            | Write::Sandbox(_)
            | Write::Session(SessionWrite::New(_))
            | Write::Turn(_)
            | Write::Image(_)
            | Write::Job(_)
            | Write::Work(_)
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
        // The last two are in the acting, not in what is written.
        Mutation::None | Mutation::RepeatUnsafe | Mutation::ForgetBeforeArchive => {}
        // Without its own token the daemon would not start.
        Mutation::ReplyBeforeCommit if batch.writes.iter().any(|write| matches!(write, Write::Token(_))) => {}
        Mutation::ReplyBeforeCommit => {
            let (early, late): (Vec<BatchOutput>, Vec<BatchOutput>) =
                batch.after.into_iter().partition(|out| matches!(out, BatchOutput::Reply { .. }));
            batch.after = late;
            if !early.is_empty() {
                release(early, shell);
                // As a slow disk would, so that the answer has left before the commit.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Mutation::DropIntent => {
            let is_start = |out: &BatchOutput| {
                matches!(out, BatchOutput::Act(Effect::Sandbox { what: SandboxEffect::StartExec { .. }, .. }))
            };
            if batch.after.iter().any(is_start) {
                let (early, late) = batch.after.into_iter().partition(is_start);
                batch.after = late;
                batch
                    .writes
                    .retain(|write| !matches!(write, Write::Turn(TurnWrite::Step(step)) if step.kind() == StepKind::Tool));
                batch.urgent = false;
                release(early, shell);
            }
        }
    }
    batch
}
