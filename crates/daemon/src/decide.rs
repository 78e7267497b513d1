//! The engine's loop: decides all waiting inputs in one step, and hands the batch to the writer.
//!
//! When the disk is too full for a batch, the engine halts: requests are refused, observations wait, and once space is
//! free it continues from the recorded state.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

use lodge_core::quarantine::WorkKind;
use lodge_core::record::{ResidentIds, StoredState};
use tokio::sync::{mpsc, oneshot};

use crate::shell::{ENGINE_QUEUE_MAX, Shell, now};
use crate::suspects::{Mark, SuspectWatch};
use lodge_engine::{Batch, Engine, Input, Observation, Refusal, RequestName, TurnObservation};

/// Inputs decided in one step.
const STEP_MAX: usize = 128;
/// Observations a halted engine takes out of its queue, looking for requests to refuse. Further observations wait.
const HELD_MAX: usize = ENGINE_QUEUE_MAX;

/// From the engine to the writer, in the order of deciding.
#[derive(Debug)]
pub enum WriterMessage {
    Batch(Batch),
    /// Nothing follows this until the engine gets the recorded state.
    Halted(ResidentIds),
}

/// The writer's word that what was decided is not recorded; in it comes, when there is room, what is.
pub type Halt = oneshot::Receiver<EngineStart>;

/// The state from which an engine continues.
#[derive(Debug)]
pub struct EngineStart {
    pub loaded: StoredState,
    /// Requests that were decided and are not recorded.
    pub unrecorded: HashSet<RequestName>,
}

/// The work whose result an input is.
fn suspect(input: &Input) -> Option<(WorkKind, &str)> {
    match input {
        Input::Seen(Observation::Turn(TurnObservation::ModelAnswered { turn, .. })) => {
            Some((WorkKind::ModelCall, turn.as_str()))
        }
        Input::Seen(_) | Input::Api { .. } => None,
    }
}

#[derive(Debug)]
pub struct Decider {
    pub inputs: mpsc::Receiver<Input>,
    pub halts: mpsc::Receiver<Halt>,
    pub writer: SyncSender<WriterMessage>,
    pub shell: Arc<Shell>,
}

impl Decider {
    /// Runs until the daemon ends.
    pub async fn run(mut self, mut engine: Engine) {
        let mut waiting = Vec::with_capacity(STEP_MAX);
        loop {
            tokio::select! {
                biased;
                halt = self.halts.recv() => {
                    let Some(halt) = halt else { return };
                    let Some(rebuilt) = self.halt(engine, halt).await else { return };
                    engine = rebuilt;
                }
                count = self.inputs.recv_many(&mut waiting, STEP_MAX) => {
                    let batch = self.step(&mut engine, &mut waiting);
                    if count == 0 || self.pass_on(batch).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Decides. Answers of models and registries are computed here as well, and may be what ends the daemon.
    fn step(&self, engine: &mut Engine, waiting: &mut Vec<Input>) -> Batch {
        let said = waiting.iter().filter_map(suspect);
        let watched: Vec<SuspectWatch> =
            said.map(|(kind, subject)| self.shell.suspects.begin(kind, subject, "")).collect();
        let _marks: Vec<Mark> = watched.iter().map(SuspectWatch::mark).collect();
        engine.step(waiting.drain(..), now())
    }

    /// Decides nothing until space is free, then continues from the recorded state. None: the daemon ends.
    async fn halt(&mut self, engine: Engine, mut halt: Halt) -> Option<Engine> {
        self.send(WriterMessage::Halted(engine.resident_ids())).await?;
        let mut held: Vec<Observation> = Vec::new();
        let recorded = loop {
            tokio::select! {
                biased;
                recorded = &mut halt => break recorded.ok()?,
                input = self.inputs.recv(), if held.len() < HELD_MAX => match input? {
                    Input::Api { ticket, .. } => self.shell.answer(ticket, Err(Refusal::NotRecorded.into())),
                    Input::Seen(seen) => held.push(seen),
                },
            }
        };
        self.shell.actors.cancel_calls();
        let (mut engine, batch) = engine.rebuild(recorded.loaded, &recorded.unrecorded, now());
        self.pass_on(batch).await?;
        let mut held = held.into_iter().map(Input::Seen).peekable();
        while held.peek().is_some() {
            let batch = engine.step(held.by_ref().take(STEP_MAX), now());
            self.pass_on(batch).await?;
        }
        Some(engine)
    }

    /// Does at once what may be done at once, and hands the rest to the writer.
    async fn pass_on(&self, mut batch: Batch) -> Option<()> {
        for effect in std::mem::take(&mut batch.early) {
            self.shell.act(effect);
        }
        if batch.writes.is_empty() && batch.after.is_empty() {
            return Some(());
        }
        self.send(WriterMessage::Batch(batch)).await
    }

    async fn send(&self, word: WriterMessage) -> Option<()> {
        match self.writer.try_send(word) {
            Ok(()) => Some(()),
            Err(TrySendError::Disconnected(_)) => None,
            Err(TrySendError::Full(word)) => {
                // The disk is behind: wait for it off the runtime's workers, and take no inputs meanwhile.
                let writer = self.writer.clone();
                let sent = tokio::task::spawn_blocking(move || writer.send(word).is_ok()).await;
                matches!(sent, Ok(true)).then_some(())
            }
        }
    }
}
