//! Quarantine: work that killed the daemon several times in a row.
//!
//! A turn with a quarantined model call or schema check waits. An agent with a quarantined pull has failed and is not
//! retried automatically. A quarantined request is refused when it arrives. An operator retries or drops the work.

use lodge_core::agent::AgentEvent;
use lodge_core::event::{EventBody, WorkQuarantined, WorkReleased};
use lodge_core::quarantine::{QUARANTINED_MAX, QuarantineRow, Suspect, Work, WorkKind};
use lodge_core::record::{AgentRow, FailureRecord, WorkWrite};
use lodge_core::{AgentId, TurnId, WorkId};

use crate::turns::Turn;
use crate::{Answer, AutoRetry, Caller, DAEMON_STREAM, Effect, Engine, Refusal};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkRefusal {
    #[error("no work `{given}` is in quarantine")]
    NotFound { given: String },
}

impl WorkRefusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            WorkRefusal::NotFound { .. } => "work.not_found",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            WorkRefusal::NotFound { .. } => "`lodge quarantine ls` lists all of it".to_owned(),
        }
    }
}

/// Why a turn with quarantined work fails.
#[derive(Debug, thiserror::Error)]
enum WorkFault {
    #[error("{} killed the daemon {deaths} times in a row, and an operator dropped it", computed(*.kind))]
    Dropped { kind: WorkKind, deaths: u32 },
}

impl WorkFault {
    fn record(&self) -> FailureRecord {
        let (code, hint) = match self {
            WorkFault::Dropped { .. } => (
                "work.quarantined",
                "send it again in other words, or look into `logs/lodged.log` for the reason",
            ),
        };
        FailureRecord { code: code.to_owned(), message: self.to_string(), hint: Some(hint.to_owned()) }
    }
}

fn computed(kind: WorkKind) -> &'static str {
    match kind {
        WorkKind::SchemaCheck => "checking its answer against the schema",
        WorkKind::ModelCall | WorkKind::Pull | WorkKind::Request => "its model call",
    }
}

/// How quarantined work is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Compute it again.
    Retry,
    /// Drop it.
    Drop,
}

/// A request about quarantined work.
#[derive(Debug)]
pub enum WorkCommand {
    /// It is computed again, or dropped.
    Release { id: WorkId, how: Release },
}

/// A change of what is computed.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkEffect {
    /// Work is quarantined from now on, or released. Earlier deaths no longer count.
    Decided { work: Work, is_aside: bool },
}

/// The answer to a release.
#[derive(Debug, Clone)]
pub struct ReleasedWork {
    pub row: QuarantineRow,
    pub release: Release,
}

impl Release {
    pub fn word(self) -> &'static str {
        match self {
            Release::Retry => "retried",
            Release::Drop => "dropped",
        }
    }
}

impl Engine {
    /// Quarantines work. Work that ended meanwhile, or is quarantined already, is skipped.
    pub(crate) fn quarantine(&mut self, suspects: Vec<Suspect>) {
        for Suspect { work, detail, deaths } in suspects {
            let effect = Effect::Work(WorkEffect::Decided { work: work.clone(), is_aside: true });
            let known = self.quarantine.values().any(|row| row.work == work);
            let whose = if known { None } else { self.owner(&work, &detail) };
            let Some(agent) = whose.filter(|_| self.quarantine.len() < QUARANTINED_MAX) else {
                // The count is no longer needed. A quarantined request stays quarantined.
                self.step.act(Effect::Work(WorkEffect::Decided { is_aside: known, work }));
                continue;
            };
            let id = WorkId::new(&mut self.ids, self.step.now);
            let row = QuarantineRow { id, work, agent, detail, deaths, since: self.step.now };
            self.step.write(WorkWrite::Quarantined(row.clone()));
            self.work_event(&row, None);
            self.step.act(effect);
            let suspect = Suspect { work: row.work.clone(), detail: row.detail.clone(), deaths };
            self.quarantined.push((self.seq, suspect));
            self.quarantine.insert(row.id.clone(), row);
        }
    }

    /// After a start, parks turns whose work is in quarantine.
    pub(crate) fn park_quarantined(&mut self) {
        let turns: Vec<TurnId> = self.quarantine.values().filter_map(|row| turn_of(&row.work)).collect();
        for turn in turns {
            self.park(&turn);
        }
    }

    /// The agent that owns the work, if the work can still be computed. `Some(None)`: no agent owns it.
    fn owner(&self, work: &Work, detail: &str) -> Option<Option<AgentId>> {
        match work.kind {
            WorkKind::ModelCall | WorkKind::SchemaCheck => {
                let turn = turn_of(work)?;
                self.turns.get(&turn).map(|turn| Some(turn.row.agent.clone()))
            }
            WorkKind::Pull => {
                let agent = work.subject.parse::<AgentId>().ok()?;
                let row = &self.agents.get(&agent)?.row;
                is_same_pull(row, detail).then_some(Some(agent))
            }
            WorkKind::Request => Some(None),
        }
    }

    pub(crate) fn is_quarantined(&self, turn: &TurnId) -> bool {
        self.quarantine.values().any(|row| turn_of(&row.work).as_ref() == Some(turn))
    }

    /// The work that a turn waits for: its own, or that of an earlier turn of its session.
    pub(crate) fn quarantine_before(&self, turn: &Turn) -> Option<&QuarantineRow> {
        let session = self.sessions.get(&turn.row.session).filter(|_| !self.quarantine.is_empty())?;
        let upto = session.live.iter().position(|live| *live == turn.row.id)?;
        session
            .live
            .iter()
            .take(upto + 1)
            .rev()
            .find_map(|live| self.quarantine.values().find(|row| turn_of(&row.work).as_ref() == Some(live)))
    }

    /// The quarantined work of an agent.
    pub(crate) fn quarantine_of(&self, agent: &AgentId) -> Vec<QuarantineRow> {
        let of_agent = self.quarantine.values().filter(|row| row.agent.as_ref() == Some(agent));
        of_agent.cloned().collect()
    }

    /// The quarantined pull of an agent. An updated agent needs another pull.
    pub(crate) fn quarantined_pull(&self, row: &AgentRow) -> Option<&QuarantineRow> {
        self.quarantine.values().find(|aside| {
            aside.work.kind == WorkKind::Pull
                && aside.work.subject == row.id.as_str()
                && is_same_pull(row, &aside.detail)
        })
    }

    /// An agent whose pull is in quarantine has failed until an operator decides.
    pub(crate) fn refuse_pull(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get(id) else { return };
        let Some(aside) = self.quarantined_pull(&agent.row) else { return };
        let detail = format!(
            "the daemon died {} times in a row while it pulled this image (`lodge quarantine retry {}` tries again)",
            aside.deaths, aside.id
        );
        let Ok(next) = agent.row.state.next(AgentEvent::ImageFailed) else { return };
        self.fail(id, next, detail, AutoRetry::Never);
    }

    pub(crate) fn release_work(&mut self, caller: Caller, id: &WorkId, how: Release) -> Result<(), Refusal> {
        let row = self
            .quarantine
            .get(id)
            .cloned()
            .ok_or_else(|| WorkRefusal::NotFound { given: id.to_string() })?;
        self.forget_work(id);
        self.work_event(&row, Some(how));
        match (turn_of(&row.work), row.work.kind, how) {
            (Some(turn), _, Release::Retry) => self.resume_turn(&turn),
            (Some(turn), kind, Release::Drop) => {
                self.fail_turn(&turn, WorkFault::Dropped { kind, deaths: row.deaths }.record());
            }
            (None, WorkKind::Pull, Release::Retry) => {
                if let Ok(agent) = row.work.subject.parse() {
                    self.start_again(&agent);
                }
            }
            (None, _, Release::Retry | Release::Drop) => {}
        }
        self.reply(caller, Answer::Work(Box::new(ReleasedWork { row, release: how })));
        Ok(())
    }

    fn resume_turn(&mut self, turn: &TurnId) {
        if let Some(session) = self.turns.get(turn).map(|turn| turn.row.session.clone()) {
            self.start_next(&session);
        }
    }

    /// Work of a turn is irrelevant after the turn has ended.
    pub(crate) fn forget_turns_work(&mut self, turn: &TurnId) {
        self.forget_matching(|row| turn_of(&row.work).as_ref() == Some(turn));
    }

    /// An agent that is gone, or was updated, does not need that pull.
    pub(crate) fn forget_pull(&mut self, agent: &AgentId) {
        self.forget_matching(|row| row.work.kind == WorkKind::Pull && row.work.subject == agent.as_str());
    }

    fn forget_matching(&mut self, matches: impl Fn(&QuarantineRow) -> bool) {
        if self.quarantine.is_empty() {
            return;
        }
        let ids: Vec<WorkId> =
            self.quarantine.values().filter(|row| matches(row)).map(|row| row.id.clone()).collect();
        ids.iter().for_each(|id| self.forget_work(id));
    }

    fn forget_work(&mut self, id: &WorkId) {
        let Some(row) = self.quarantine.remove(id) else { return };
        self.step.write(WorkWrite::Released { id: id.clone() });
        self.step.act(Effect::Work(WorkEffect::Decided { work: row.work, is_aside: false }));
    }

    /// Appends an event about work, in the stream of its agent.
    fn work_event(&mut self, row: &QuarantineRow, release: Option<Release>) {
        let turn = turn_of(&row.work);
        let session = turn.as_ref().and_then(|turn| self.turns.get(turn));
        let session = session.map(|turn| turn.row.session.to_string());
        let (work, kind, deaths) = (row.id.to_string(), row.work.kind.word().to_owned(), row.deaths);
        let detail = Some(row.detail.clone()).filter(|detail| !detail.is_empty());
        let turn = turn.map(|turn| turn.to_string());
        let body = match release {
            None => {
                let status = "quarantined".to_owned();
                EventBody::from(WorkQuarantined { work, kind, status, deaths, detail, turn, session })
            }
            Some(release) => {
                let status = release.word().to_owned();
                WorkReleased { work, kind, status, deaths, detail, turn, session }.into()
            }
        };
        let stream = row.agent.as_ref().map_or(DAEMON_STREAM, AgentId::as_str).to_owned();
        self.event(&stream, body);
    }
}

/// The turn that waits for this work.
pub fn turn_of(work: &Work) -> Option<TurnId> {
    match work.kind {
        WorkKind::ModelCall | WorkKind::SchemaCheck => work.subject.parse().ok(),
        WorkKind::Pull | WorkKind::Request => None,
    }
}

/// The detail of a pull is the digest of its image, or a prefix of it.
fn is_same_pull(row: &AgentRow, detail: &str) -> bool {
    row.image_digest.starts_with(detail)
}
