//! The laws of valid writes: every lifecycle follows its table, and messages are in order.

use std::collections::HashSet;
use std::sync::OnceLock;

use lodge_core::agent::{AgentEvent, AgentState, FailReason};
use lodge_core::limits::{MISFITS_MAX, REVIVALS_MAX};
use lodge_core::lineage::{LineageEvent, LineageState};
use lodge_core::park::ParkReason;
use lodge_core::record::{AgentRow, LineageRow, MessageRow, Role, StartRetry, StepKind, StepRow, TurnRow};
use lodge_core::turn::{StepEvent, StepState, TurnEvent, TurnState};

use crate::disk::StoredTurn;
use crate::images::HOPELESS;

/// The description of a violated law.
pub type LawViolation = String;

pub fn agent_moves(
    row: &AgentRow,
    next: AgentState,
    incarnation: u32,
    runs: u32,
) -> Result<(), LawViolation> {
    if !agent_table().contains(&(row.state, next)) {
        return Err(format!("{} moved from {} to {next}", row.id, row.state));
    }
    if incarnation != row.incarnation && incarnation != row.incarnation + 1 {
        return Err(format!("{} went from incarnation {} to {incarnation}", row.id, row.incarnation));
    }
    if runs != row.runs && runs != row.runs + 1 {
        return Err(format!("{} went from run {} to {runs}", row.id, row.runs));
    }
    Ok(())
}

/// An automatic retry is counted and needs a transient failure. All other agents have no retry.
pub fn retry_fits(
    row: &AgentRow,
    next: AgentState,
    detail: Option<&str>,
    retry: StartRetry,
) -> Result<(), LawViolation> {
    let passes =
        matches!(next, AgentState::Failed(reason) if reason.passes_by_itself()) && detail != Some(HOPELESS);
    let counted = match next {
        AgentState::Failed(_) if passes => retry.failures == row.retry.failures + 1,
        AgentState::Pulling | AgentState::Starting => retry.failures <= row.retry.failures,
        AgentState::Failed(_)
        | AgentState::Ready
        | AgentState::Stopped
        | AgentState::Removing
        | AgentState::Removed => retry.failures == 0,
    };
    if retry.at.is_some() == passes && counted {
        return Ok(());
    }
    Err(format!("{} goes from {} to {next} with {retry:?} after {:?}", row.id, row.state, row.retry))
}

/// Every transition by one event, and forced removal, which is a stop and a removal at once.
fn agent_table() -> &'static HashSet<(AgentState, AgentState)> {
    static TABLE: OnceLock<HashSet<(AgentState, AgentState)>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut states = vec![
            AgentState::Pulling,
            AgentState::Starting,
            AgentState::Ready,
            AgentState::Stopped,
            AgentState::Removing,
            AgentState::Removed,
        ];
        states.extend(FailReason::ALL.map(AgentState::Failed));
        let events = [
            AgentEvent::StartAsked,
            AgentEvent::RestartAsked,
            AgentEvent::RetryDue,
            AgentEvent::ImageReady,
            AgentEvent::ImageFailed,
            AgentEvent::ModelUnknown,
            AgentEvent::ConfigUnset,
            AgentEvent::SpawnFailed,
            AgentEvent::ProbeAnswered,
            AgentEvent::ProbeTimedOut,
            AgentEvent::Died,
            AgentEvent::Exited { clean: true },
            AgentEvent::Exited { clean: false },
            AgentEvent::OutOfMemory,
            AgentEvent::StopAsked,
            AgentEvent::RemoveAsked,
            AgentEvent::Cleared,
        ];
        let mut table = HashSet::new();
        for state in states {
            table.extend(events.iter().filter_map(|event| Some((state, state.next(*event).ok()?))));
            if state.next(AgentEvent::StopAsked).is_ok() {
                table.insert((state, AgentState::Removing));
            }
        }
        table
    })
}

/// A lineage follows its table, is revived a bounded number of times in a row, and never changes after its end.
pub fn lineage_moves(before: Option<&LineageRow>, row: &LineageRow) -> Result<(), LawViolation> {
    let id = &row.id;
    let Some(before) = before else {
        let fresh = row.state == LineageState::Active && row.revivals == 0 && row.deaths == 0;
        return if fresh { Ok(()) } else { Err(format!("lineage {id} begins as {row:?}")) };
    };
    let events = [
        LineageEvent::Died,
        LineageEvent::Revived,
        LineageEvent::Asked,
        LineageEvent::Reaped,
        LineageEvent::Stopped,
        LineageEvent::Exhausted,
        LineageEvent::Killed,
        LineageEvent::Removed,
    ];
    let same = before.state == row.state && !before.state.is_over();
    if !same && !events.iter().any(|event| before.state.next(*event) == Ok(row.state)) {
        return Err(format!("lineage {id} moved from {} to {}", before.state, row.state));
    }
    let revived = before.state != LineageState::Active && row.state == LineageState::Active;
    if row.revivals != before.revivals && !(revived && row.revivals == before.revivals + 1) {
        return Err(format!("lineage {id} counts {} revivals after {}", row.revivals, before.revivals));
    }
    if row.deaths > REVIVALS_MAX + 1 {
        return Err(format!("lineage {id} died {} times in a row", row.deaths));
    }
    Ok(())
}

pub fn turn_moves(kept: &StoredTurn, next: TurnState) -> Result<(), LawViolation> {
    let events = [
        TurnEvent::Started,
        TurnEvent::Parked,
        TurnEvent::Resumed,
        TurnEvent::Answered,
        TurnEvent::Failed,
        TurnEvent::InterruptAsked,
    ];
    let from = kept.row.state;
    // The cost of an answer is written to the turn, even if it was parked meanwhile.
    let moves = (from == next && matches!(from, TurnState::Running | TurnState::Waiting))
        || events.iter().any(|event| from.next(*event) == Ok(next));
    if !moves {
        return Err(format!("{} moved from {} to {}", kept.row.id, from.word(), next.word()));
    }
    if !next.is_live() {
        if let Some(call) = open_calls(kept).first() {
            return Err(format!("{} ended, and its call {call} has no result", kept.row.id));
        }
        if let Some(step) = kept.steps.iter().find(|step| step.state == StepState::Intent) {
            return Err(format!("{} ended, and step {}.{} did not", kept.row.id, step.step, step.ordinal));
        }
    }
    Ok(())
}

/// A turn that waits for its provider keeps its first failure until its call is answered. The provider may be tried next
/// after the turn's own time: the turn ends before, and others wait longer.
pub fn wait_moves(row: &TurnRow, next: Option<&ParkReason>) -> Result<(), LawViolation> {
    let (Some(ParkReason::Provider(before)), Some(ParkReason::Provider(after))) = (&row.park, next) else {
        return Ok(());
    };
    if after.first_ms > before.first_ms {
        return Err(format!("{} forgot its first failure: {before:?} became {after:?}", row.id));
    }
    Ok(())
}

pub fn step_moves(row: &StepRow, next: StepState, attempt: u32) -> Result<(), LawViolation> {
    let events = [
        StepEvent::Succeeded,
        StepEvent::Failed,
        StepEvent::Interrupted,
        StepEvent::Lost,
        StepEvent::Fenced,
        StepEvent::Restarted,
    ];
    if !events.iter().any(|event| row.state.next(*event) == Ok(next)) {
        let (turn, step, ordinal) = (&row.turn, row.step, row.ordinal);
        return Err(format!(
            "{turn} step {step}.{ordinal} moved from {} to {}",
            row.state.word(),
            next.word()
        ));
    }
    // Attempts that were lost to a full disk are missing.
    if next == StepState::Intent && attempt <= row.attempt || attempt < row.attempt {
        return Err(format!("{} step {} went from attempt {} to {attempt}", row.turn, row.step, row.attempt));
    }
    Ok(())
}

pub fn step_begins(kept: &StoredTurn, row: &StepRow) -> Result<(), LawViolation> {
    let id = &row.turn;
    if kept.row.state != TurnState::Running {
        return Err(format!("{id} is {} and begins step {}", kept.row.state.word(), row.step));
    }
    if kept.steps.iter().any(|known| (known.step, known.ordinal) == (row.step, row.ordinal)) {
        return Err(format!("{id} begins step {}.{} twice", row.step, row.ordinal));
    }
    let models = kept.steps.iter().filter(|step| step.kind() == StepKind::Model);
    match row.kind() {
        StepKind::Model => {
            let answered = kept.messages.iter().any(|message| message.role == Role::Assistant);
            let newest = models.map(|step| step.step).max().unwrap_or(0);
            // A summary call may precede the first call.
            let follows = row.step == newest + 1 || row.step == 0 && !answered;
            if !follows || row.ordinal != 0 || !open_calls(kept).is_empty() {
                return Err(format!("{id} begins model step {} after {newest}", row.step));
            }
        }
        StepKind::Tool => {
            let asked =
                models.rev().take(1).any(|step| step.step == row.step && step.state == StepState::Done);
            let open = open_calls(kept);
            if !asked || row.call.as_ref().is_none_or(|call| !open.contains(&call.as_str())) {
                return Err(format!("{id} begins tool step {row:?}, which nobody asked for"));
            }
        }
    }
    Ok(())
}

/// Calls and results are paired: an answer follows when every earlier call has its result, and every result has a call.
pub fn message_fits(kept: &StoredTurn, row: &MessageRow) -> Result<(), LawViolation> {
    let id = &row.turn;
    let fits = match row.role {
        // Later user messages only tell the model why its answer does not match.
        Role::User => kept.messages.is_empty() || kept.row.state.is_live() && misfitted_last(kept),
        Role::Assistant => {
            let again = |message: &MessageRow| message.role == Role::Assistant && message.step == row.step;
            if kept.messages.iter().any(again) {
                return Err(format!("{id} has two answers for step {}", row.step));
            }
            // A parked turn may get the answer of an earlier call.
            let may = matches!(kept.row.state, TurnState::Running | TurnState::Waiting);
            may && open_calls(kept).is_empty()
        }
        Role::Tool => {
            let call = row.body.call.as_deref().unwrap_or_default();
            kept.row.state.is_live() && open_calls(kept).contains(&call)
        }
    };
    if fits { Ok(()) } else { Err(format!("message {row:?} does not fit into {id}")) }
}

/// A turn takes over only steps that ended in the one that it replaces, with their outcomes. A call that was cut keeps its
/// result, and its outcome becomes interrupted.
pub fn takes_over_step(old: &StoredTurn, row: &StepRow) -> Result<(), LawViolation> {
    let id = &row.turn;
    let is_it = |known: &&StepRow| (known.step, known.ordinal) == (row.step, row.ordinal);
    let known = old.steps.iter().find(is_it);
    let same = match known {
        Some(known) => {
            let cut = row.state == StepState::Interrupted && known.state == StepState::Failed;
            (known.state == row.state || cut) && known.call == row.call && known.exit_code == row.exit_code
        }
        // The original of a copy may be deleted: only its answers are known then.
        None => old.steps.is_empty() && row.kind() == StepKind::Model && row.state == StepState::Done,
    };
    if same && row.state != StepState::Intent {
        return Ok(());
    }
    Err(format!("{id} takes over step {row:?} of {}, which had {known:?}", old.row.id))
}

/// A turn takes over only messages of the one that it replaces. The result of a call that was cut is replaced.
pub fn takes_over_message(old: &StoredTurn, row: &MessageRow) -> Result<(), LawViolation> {
    let same = old.messages.iter().any(|known| {
        let is_it = (known.role, known.step, &known.body.call) == (row.role, row.step, &row.body.call);
        is_it && (known.body.text == row.body.text || row.role == Role::Tool)
    });
    if same { Ok(()) } else { Err(format!("{} takes over {row:?}, which {} has not", row.turn, old.row.id)) }
}

/// Whether the newest message is an answer that does not match the schema of its turn.
fn misfitted_last(kept: &StoredTurn) -> bool {
    let Some(last) = kept.messages.last() else { return false };
    let failed = misfits(kept).any(|step| step.step == last.step);
    last.role == Role::Assistant && last.body.calls.is_empty() && failed && wants_schema(kept)
}

/// Whether the answer of a turn needs to match a schema.
pub fn wants_schema(kept: &StoredTurn) -> bool {
    kept.messages.first().is_some_and(|first| first.body.schema.is_some())
}

/// Model calls with a stored answer that does not match its schema.
pub fn misfits(kept: &StoredTurn) -> impl Iterator<Item = &StepRow> {
    let answered = |step: u32| {
        let is_answer = |message: &MessageRow| message.role == Role::Assistant && !message.body.partial;
        kept.messages.iter().any(|message| is_answer(message) && message.step == step)
    };
    let failed = |step: &&StepRow| step.kind() == StepKind::Model && step.state == StepState::Failed;
    kept.steps.iter().filter(failed).filter(move |step| answered(step.step))
}

/// A turn with mismatched answers has a bounded number of attempts, and its failure names the mismatch.
pub fn tries_are_bounded(kept: &StoredTurn) -> Result<(), LawViolation> {
    let (id, count) = (&kept.row.id, misfits(kept).count());
    let mismatch = kept.row.failure.as_ref().is_some_and(|failure| failure.code == "turn.schema_mismatch");
    let over = count >= MISFITS_MAX;
    if count > MISFITS_MAX || over && kept.row.state.is_live() || mismatch != over {
        return Err(format!("{id} is {} after {count} answers that do not fit", kept.row.state.word()));
    }
    if count > 0 && !wants_schema(kept) {
        return Err(format!("{id} asked for nothing in particular, and {count} answers do not fit"));
    }
    Ok(())
}

/// The calls of the newest answer that have no result message.
pub fn open_calls(kept: &StoredTurn) -> Vec<&str> {
    let Some(at) = kept.messages.iter().rposition(|message| message.role == Role::Assistant) else {
        return Vec::new();
    };
    let mut open: Vec<&str> = kept.messages[at].body.calls.iter().map(|call| call.id.as_str()).collect();
    for message in &kept.messages[at + 1..] {
        let result = message.body.call.as_deref();
        if let Some(found) = open.iter().position(|call| Some(*call) == result) {
            open.remove(found);
        }
    }
    open
}
