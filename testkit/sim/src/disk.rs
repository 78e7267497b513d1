//! The simulated store: the committed state, and what a restart loads from it.
//!
//! Owns: the committed tables. A group of writes is applied atomically. A test compares its loads with the real store
//! (`tests/fidelity.rs`); `laws.rs` decides which writes are valid.

mod agents;
mod images;
mod jobs;
mod paths;
mod quarantine;
mod reads;
mod sandboxes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use lodge_core::epoch::{Epoch, EpochRow};
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{
    AgentRow, AgentWrite, ImageRefRow, ImageWrite, LineageRow, LiveTurn, MessageRow, RequestRow, ResidentIds,
    Role, SessionFact, SessionRow, SessionWrite, StepRow, StoredState, TurnRow, TurnWrite, WorkWrite, Write,
};
use lodge_core::token::TokenRow;
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, ExecId, LineageId, SessionId, TokenId, TurnId, WorkId};

pub use self::jobs::jobs_in;
use crate::laws::{self, LawViolation};

#[derive(Debug, Default)]
pub struct SimDisk {
    epoch: u64,
    seq: u64,
    streams: BTreeMap<String, u64>,
    /// In the order of creation.
    agents: Vec<AgentRow>,
    agent_at: HashMap<AgentId, usize>,
    images: images::ImageTable,
    jobs: jobs::JobTable,
    standalones: sandboxes::SandboxTable,
    image_refs: BTreeMap<String, ImageRefRow>,
    lineages: HashMap<LineageId, LineageRow>,
    sessions: HashMap<SessionId, SessionFact>,
    /// With the cut that took them off the path, or 0.
    epochs: HashMap<SessionId, Vec<(EpochRow, u32)>>,
    turns: HashMap<TurnId, StoredTurn>,
    /// All turns of a session, on its path or off it.
    turns_of: HashMap<SessionId, Vec<TurnId>>,
    /// Turns that were deleted with their session.
    deleted: HashSet<TurnId>,
    /// How often a session of this name was created.
    begun: HashMap<SessionId, u32>,
    live: BTreeSet<(SessionId, u32, TurnId)>,
    execs: HashMap<ExecId, (TurnId, u32, u32)>,
    requests: HashMap<(String, String), RequestRow>,
    tokens: BTreeMap<TokenId, TokenRow>,
    quarantine: BTreeMap<WorkId, QuarantineRow>,
    /// How often each text was accepted as a turn, and each image became an agent.
    accepted: HashMap<String, u32>,
    /// A fingerprint of every event, by its position in the log.
    prints: Vec<EventPrint>,
}

/// A turn with its steps and messages.
#[derive(Debug, Clone)]
pub struct StoredTurn {
    pub row: TurnRow,
    pub steps: Vec<StepRow>,
    pub messages: Vec<MessageRow>,
}

/// A fingerprint of an event, to detect changes.
pub type EventPrint = (u64, i64, i64);

impl SimDisk {
    /// Applies one group as one transaction. If a write breaks a law, the group is invalid and the law is returned.
    pub fn commit<'w>(&mut self, writes: impl IntoIterator<Item = &'w Write>) -> Result<(), LawViolation> {
        for write in writes {
            self.apply(write)?;
        }
        Ok(())
    }

    fn apply(&mut self, write: &Write) -> Result<(), LawViolation> {
        match write {
            Write::Image(write) => self.apply_image(write)?,
            Write::Agent(write) => self.apply_agent(write)?,
            Write::Session(write) => self.apply_session(write)?,
            Write::Turn(write) => self.apply_turn(write)?,
            Write::Event(row) => {
                let head = self.streams.entry(row.stream.clone()).or_insert(0);
                if row.seq != self.seq + 1 || row.stream_seq != *head + 1 {
                    let (seq, at) = (self.seq, *head);
                    return Err(format!("event {row:?} does not follow {seq}, nor {at} of its stream"));
                }
                (self.seq, *head) = (row.seq, row.stream_seq);
                self.prints.push((row.stream_seq, row.body.kind().code(), row.at.ms()));
            }
            Write::Token(row) => {
                let before = self.tokens.insert(row.id.clone(), row.clone());
                if before.is_some_and(|before| before.revoked_at.is_some() && row.revoked_at.is_none()) {
                    return Err(format!("token {} is no longer revoked", row.id));
                }
            }
            Write::Job(write) => self.apply_job(write)?,
            Write::Sandbox(write) => self.standalones.apply(write)?,
            Write::Work(write) => self.apply_work(write)?,
            Write::Request(row) => {
                let key = (row.caller.clone(), row.request_id.clone());
                if let Some(known) = self.requests.get(&key)
                    && known.digest != row.digest
                {
                    return Err(format!("request {} has two meanings", row.request_id));
                }
                self.requests.insert(key, row.clone());
            }
        }
        Ok(())
    }

    fn apply_image(&mut self, write: &ImageWrite) -> Result<(), LawViolation> {
        match write {
            ImageWrite::Here(row) => {
                self.images.put(row);
            }
            ImageWrite::Named(row) => {
                if !self.has_image(&row.digest) {
                    return Err(format!("{} names an image that is not there", row.reference));
                }
                self.image_refs.insert(row.reference.clone(), row.clone());
            }
            ImageWrite::Unnamed { reference } => {
                self.image_refs.remove(reference).ok_or_else(|| format!("{reference} was gone already"))?;
            }
            ImageWrite::Gone { digest } => self.remove_image(digest)?,
        }
        Ok(())
    }

    fn apply_agent(&mut self, write: &AgentWrite) -> Result<(), LawViolation> {
        match write {
            AgentWrite::New(row) => self.insert_agent(row)?,
            AgentWrite::State { id, state, detail, lineage, incarnation, runs, started_at, retry } => {
                self.lineage_may_follow(id, lineage)?;
                let row = self.agent_row(id)?;
                laws::agent_moves(row, *state, *incarnation, *runs)?;
                laws::retry_fits(row, *state, detail.as_deref(), *retry)?;
                row.state = *state;
                row.failure_detail.clone_from(detail);
                row.lineage = lineage.clone();
                (row.incarnation, row.runs) = (*incarnation, *runs);
                (row.started_at, row.retry) = (*started_at, *retry);
            }
            AgentWrite::Spec { id, image, image_digest, spec, next } => {
                let next_digest = next.as_ref().map(|next| &next.image_digest);
                if !self.has_image(image_digest) || next_digest.is_some_and(|next| !self.has_image(next)) {
                    return Err(format!("{id} is to have an image that is not there"));
                }
                let row = self.agent_row(id)?;
                (row.image, row.image_digest) = (image.clone(), image_digest.clone());
                (row.spec, row.next) = (spec.as_ref().clone(), next.as_deref().cloned());
            }
            AgentWrite::Lineage(row) => {
                laws::lineage_moves(self.lineages.get(&row.id), row)?;
                self.lineages.insert(row.id.clone(), row.clone());
            }
        }
        Ok(())
    }

    fn apply_session(&mut self, write: &SessionWrite) -> Result<(), LawViolation> {
        match write {
            SessionWrite::New(row) => self.insert_session(row)?,
            SessionWrite::Path(change) => self.change_path(change)?,
            SessionWrite::Fork(fork) => self.copy_session(fork)?,
            SessionWrite::Deleted { id } => self.delete_session(id)?,
            SessionWrite::Epoch(row) => self.insert_epoch(row)?,
        }
        Ok(())
    }

    fn apply_turn(&mut self, write: &TurnWrite) -> Result<(), LawViolation> {
        match write {
            TurnWrite::New(row) => self.insert_turn(row)?,
            TurnWrite::State { id, state, ended_at, usage, failure } => {
                self.check_order(id, *state)?;
                let kept = self.turns.get_mut(id).ok_or_else(|| format!("{id} is not stored"))?;
                laws::turn_moves(kept, *state)?;
                let begins = kept.row.state == TurnState::Queued && *state == TurnState::Running;
                kept.row.state = *state;
                kept.row.ended_at = *ended_at;
                kept.row.usage = *usage;
                kept.row.failure.clone_from(failure);
                laws::tries_are_bounded(kept)?;
                if !state.is_live() {
                    self.live.remove(&(kept.row.session.clone(), kept.row.number, id.clone()));
                }
                if begins {
                    self.check_all_reported(id)?;
                }
            }
            TurnWrite::Park { turn, park } => {
                let kept = self.turns.get_mut(turn).ok_or_else(|| format!("{turn} is not stored"))?;
                laws::wait_moves(&kept.row, park.as_ref())?;
                kept.row.park.clone_from(park);
            }
            TurnWrite::Step(row) => self.insert_step(row)?,
            TurnWrite::StepState {
                turn,
                step,
                ordinal,
                state,
                attempt,
                exit_code,
                signal,
                cause,
                ended_at,
            } => {
                let kept = self.turns.get_mut(turn).ok_or_else(|| format!("{turn} is not stored"))?;
                let row = kept.steps.iter_mut().find(|row| row.step == *step && row.ordinal == *ordinal);
                let row = row.ok_or_else(|| format!("{turn} has no step {step}.{ordinal}"))?;
                laws::step_moves(row, *state, *attempt)?;
                (row.state, row.attempt, row.exit_code) = (*state, *attempt, *exit_code);
                (row.signal, row.cause, row.ended_at) = (*signal, *cause, *ended_at);
            }
            TurnWrite::Message(row) => self.insert_message(row)?,
            TurnWrite::Note { turn, note } => self.note_turn(turn, note)?,
        }
        Ok(())
    }

    fn apply_work(&mut self, write: &WorkWrite) -> Result<(), LawViolation> {
        match write {
            WorkWrite::Quarantined(row) => self.set_aside(row)?,
            WorkWrite::Released { id } => self.released(id)?,
        }
        Ok(())
    }

    fn insert_agent(&mut self, row: &AgentRow) -> Result<(), LawViolation> {
        let taken = self.agents.iter().any(|known| known.name == row.name && known.state.codes().0 < 7);
        if taken || self.agent_at.contains_key(&row.id) || !self.has_image(&row.image_digest) {
            return Err(format!("agent {row:?} cannot be inserted"));
        }
        self.agent_at.insert(row.id.clone(), self.agents.len());
        self.agents.push(row.clone());
        *self.accepted.entry(row.image.clone()).or_insert(0) += 1;
        Ok(())
    }

    fn insert_session(&mut self, row: &SessionRow) -> Result<(), LawViolation> {
        let fact = SessionFact {
            row: row.clone(),
            turns: 0,
            messages: 0,
            cuts: 0,
            tip: None,
            epoch: Epoch::default(),
        };
        *self.begun.entry(row.id.clone()).or_insert(0) += 1;
        match self.sessions.insert(row.id.clone(), fact) {
            Some(_) => Err(format!("session {} was stored before", row.id)),
            None if self.agent_at.contains_key(&row.agent) => Ok(()),
            None => Err(format!("session {} has no agent", row.id)),
        }
    }

    fn insert_turn(&mut self, row: &TurnRow) -> Result<(), LawViolation> {
        let session = self.sessions.get_mut(&row.session);
        let session = session.ok_or_else(|| format!("{} has no session", row.id))?;
        if row.number != session.turns + 1 || session.row.agent != row.agent {
            return Err(format!("{} is not the next turn of {}", row.id, row.session));
        }
        if row.place.parent != session.tip {
            return Err(format!("{} does not follow {:?}", row.id, session.tip));
        }
        (session.turns, session.tip) = (row.number, Some(row.id.clone()));
        self.live.insert((row.session.clone(), row.number, row.id.clone()));
        self.keep_turn(StoredTurn { row: row.clone(), steps: Vec::new(), messages: Vec::new() })
    }

    /// Turn ids are unique, including those of deleted turns.
    fn keep_turn(&mut self, kept: StoredTurn) -> Result<(), LawViolation> {
        let (id, session) = (kept.row.id.clone(), kept.row.session.clone());
        self.turns_of.entry(session).or_default().push(id.clone());
        if self.deleted.contains(&id) || self.turns.insert(id.clone(), kept).is_some() {
            return Err(format!("{id} was stored before"));
        }
        Ok(())
    }

    fn insert_step(&mut self, row: &StepRow) -> Result<(), LawViolation> {
        let old = self.replaced(&row.turn);
        let kept = self.turns.get_mut(&row.turn).ok_or_else(|| format!("{} is not stored", row.turn))?;
        match old.filter(|_| kept.row.state == TurnState::Queued) {
            Some(old) => laws::takes_over_step(&old, row)?,
            None => laws::step_begins(kept, row)?,
        }
        let at = kept.steps.partition_point(|known| (known.step, known.ordinal) < (row.step, row.ordinal));
        kept.steps.insert(at, row.clone());
        match row.target.exec() {
            Some(exec) => match self.execs.insert(exec.clone(), (row.turn.clone(), row.step, row.ordinal)) {
                Some(_) => Err(format!("{exec} is the exec of two calls")),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// The turn that another one replaces, with the steps of its original, if it is a copy.
    fn replaced(&self, turn: &TurnId) -> Option<StoredTurn> {
        let old = self.turns.get(turn)?.row.place.replaces.as_ref()?;
        let mut old = self.turns.get(old)?.clone();
        if let Some(origin) = &old.row.place.origin {
            old.steps = self.turns.get(origin).map(|origin| origin.steps.clone()).unwrap_or_default();
        }
        Some(old)
    }

    /// For a deliberate bug: turns wait, and nobody knows why.
    pub fn forget_waits(&mut self) {
        for (_, _, id) in &self.live {
            if let Some(kept) = self.turns.get_mut(id) {
                kept.row.park = None;
            }
        }
    }

    fn note_turn(&mut self, turn: &TurnId, note: &str) -> Result<(), LawViolation> {
        let kept = self.turns.get_mut(turn).ok_or_else(|| format!("{turn} is not stored"))?;
        let (session, number, state) = (kept.row.session.clone(), kept.row.number, kept.row.state);
        let message = kept.messages.first_mut().filter(|_| state == TurnState::Queued);
        let message = message.ok_or_else(|| format!("{turn} has begun, and is told {note}"))?;
        let before = message.body.weight();
        message.body.note = Some(note.to_owned());
        let more = message.body.weight() - before;
        let session = self.sessions.get_mut(&session).ok_or_else(|| format!("{turn} has no session"))?;
        session.epoch.add(number, more);
        Ok(())
    }

    fn insert_message(&mut self, row: &MessageRow) -> Result<(), LawViolation> {
        let session = self.sessions.get_mut(&row.session);
        let session = session.ok_or_else(|| format!("a message without a session: {row:?}"))?;
        if row.seq != session.messages + 1 {
            return Err(format!("message {row:?} does not follow {}", session.messages));
        }
        session.messages = row.seq;
        session.epoch.add(row.number, row.body.weight());
        let old = self.replaced(&row.turn);
        let kept = self.turns.get_mut(&row.turn).ok_or_else(|| format!("{} is not stored", row.turn))?;
        match old.filter(|_| kept.row.state == TurnState::Queued) {
            Some(old) => laws::takes_over_message(&old, row)?,
            None => laws::message_fits(kept, row)?,
        }
        kept.messages.push(row.clone());
        // A regenerated turn is not a duplicate request.
        if row.role == Role::User && kept.row.place.replaces.is_none() {
            *self.accepted.entry(row.body.text.clone()).or_insert(0) += 1;
        }
        Ok(())
    }

    /// Epochs are consecutive, and none begins before its predecessor.
    fn insert_epoch(&mut self, row: &EpochRow) -> Result<(), LawViolation> {
        let session = self.sessions.get_mut(&row.session);
        let session = session.ok_or_else(|| format!("an epoch without a session: {row:?}"))?;
        let follows = row.number == session.epoch.newest + 1 && row.from_turn > session.epoch.from_turn;
        if !follows || row.from_turn > row.turn || row.turn > session.turns {
            return Err(format!("{row:?} does not follow {:?}", session.epoch));
        }
        session.epoch.begin(row);
        self.keep_epoch(row);
        Ok(())
    }

    /// Turns of one session never interleave and stay in order.
    fn check_order(&self, id: &TurnId, next: lodge_core::turn::TurnState) -> Result<(), LawViolation> {
        let Some(kept) = self.turns.get(id) else { return Ok(()) };
        if next != lodge_core::turn::TurnState::Running {
            return Ok(());
        }
        let first = self.live.range((kept.row.session.clone(), 0, id.clone())..).next();
        match first {
            Some((session, number, _)) if *session == kept.row.session && *number < kept.row.number => {
                Err(format!("{id} runs before turn {number} of {session} ended"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Loads the state at a boot. Raises the epoch, as opening the real store does.
    pub fn load(&mut self) -> StoredState {
        self.epoch += 1;
        self.peek()
    }

    /// The state that a boot would load now.
    pub fn peek(&self) -> StoredState {
        self.reload(&ResidentIds::default())
    }

    /// The recorded state for an engine that is rebuilt in the same daemon and remembers these agents and sessions.
    pub fn reload(&self, remembered: &ResidentIds) -> StoredState {
        let mut sessions: BTreeMap<String, SessionFact> = BTreeMap::new();
        let mut turns = Vec::new();
        for (session, _, id) in &self.live {
            if let Some(fact) = self.sessions.get(session) {
                sessions.insert(session.to_string(), fact.clone());
            }
            turns.extend(self.turns.get(id).map(live_turn));
        }
        let mut sessions: Vec<SessionFact> = sessions.into_values().collect();
        for id in &remembered.sessions {
            if !sessions.iter().any(|fact| fact.row.id == *id) {
                sessions.extend(self.sessions.get(id).cloned());
            }
        }
        let (standalone_rows, open_execs) = self.standalones.load(&remembered.sandboxes);
        StoredState {
            sandboxes: standalone_rows,
            execs: open_execs,
            epoch: self.epoch,
            seq: self.seq,
            last_uid: self.agents.iter().filter_map(|row| row.uid).chain(self.standalones.uids()).max(),
            sessions,
            turns,
            tokens: self.tokens.values().filter(|row| row.revoked_at.is_none()).cloned().collect(),
            image_refs: self.image_refs.values().cloned().collect(),
            images: self.images().cloned().collect(),
            jobs: self.unsettled_jobs(),
            quarantine: self.quarantine.values().cloned().collect(),
            ..self.load_agents(&remembered.agents)
        }
    }

    /// A start begins a new lineage only after the last one ended.
    fn lineage_may_follow(&self, agent: &AgentId, lineage: &LineageId) -> Result<(), LawViolation> {
        let before = self.agent(agent).and_then(|row| self.lineages.get(&row.lineage));
        match before {
            Some(before) if before.id != *lineage && !before.state.is_over() => {
                Err(format!("{agent} has lineage {lineage}, and {} is {}", before.id, before.state))
            }
            Some(_) | None => Ok(()),
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn agents(&self) -> &[AgentRow] {
        &self.agents
    }

    pub fn agent(&self, id: &AgentId) -> Option<&AgentRow> {
        self.agent_at.get(id).map(|at| &self.agents[*at])
    }

    fn agent_row(&mut self, id: &AgentId) -> Result<&mut AgentRow, LawViolation> {
        let at = self.agent_at.get(id).ok_or_else(|| format!("{id} is not stored"))?;
        Ok(&mut self.agents[*at])
    }

    pub fn session(&self, id: &SessionId) -> Option<&SessionFact> {
        self.sessions.get(id)
    }

    pub fn turn(&self, id: &TurnId) -> Option<&StoredTurn> {
        self.turns.get(id)
    }

    pub fn was_deleted(&self, id: &TurnId) -> bool {
        self.deleted.contains(id)
    }

    /// How often a session of this name was created; a deleted one may be created again.
    pub fn begun(&self, id: &SessionId) -> u32 {
        self.begun.get(id).copied().unwrap_or(0)
    }

    pub fn token(&self, id: &TokenId) -> Option<&TokenRow> {
        self.tokens.get(id)
    }

    pub fn tokens(&self) -> impl Iterator<Item = &TokenRow> {
        self.tokens.values()
    }

    pub fn request(&self, caller: &str, request_id: &str) -> Option<&RequestRow> {
        self.requests.get(&(caller.to_owned(), request_id.to_owned()))
    }

    /// The intent of an exec: turn, step and ordinal.
    pub fn intent(&self, exec: &ExecId) -> Option<&(TurnId, u32, u32)> {
        self.execs.get(exec)
    }

    pub fn live_turns(&self) -> impl Iterator<Item = &StoredTurn> {
        self.live.iter().filter_map(|(_, _, id)| self.turns.get(id))
    }

    pub fn accepted(&self, text: &str) -> u32 {
        self.accepted.get(text).copied().unwrap_or(0)
    }

    pub fn print(&self, seq: u64) -> Option<EventPrint> {
        self.prints.get(usize::try_from(seq).ok()?.checked_sub(1)?).copied()
    }

    pub fn head(&self) -> u64 {
        self.seq
    }
}

fn live_turn(kept: &StoredTurn) -> LiveTurn {
    let newest = kept.messages.iter().rposition(|message| message.role == Role::Assistant);
    let calls = newest.map(|at| kept.messages[at].body.calls.clone()).unwrap_or_default();
    let after = newest.map_or(&kept.messages[..], |at| &kept.messages[at..]);
    LiveTurn {
        row: kept.row.clone(),
        steps: kept.steps.clone(),
        calls,
        answered: after.iter().filter_map(|message| message.body.call.clone()).collect(),
        note: kept.messages.first().and_then(|message| message.body.note.clone()),
    }
}
