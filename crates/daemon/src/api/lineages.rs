//! `lineage/…`: which there are, and the decisions that operators make about them.

use std::sync::Arc;

use lodge_core::LineageId;
use lodge_core::event::EventKind;
use lodge_core::lineage::{LineageState, Policy};
use lodge_proto::{
    ApiMethod, ErrorBody, GetLineage, LineageDetail, LineageList, LineageListParams, LineageRef,
    LineageResolveParams, LineageView, ListLineageMessages, ListLineages, ResolveLineage, SnapshotLineage,
    error_code,
};
use lodge_store::{LineageFilter, LineageSummary};
use serde_json::Value;

use super::methods::{
    Reply, changed, find_agent_ever, internal, no_method, one_agent, page, reply, unique_id,
};
use super::{params, snapshots};
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;
use lodge_engine::{AgentCommand, Answer, Command, LineageResolution, RequestKey};

/// Agents that a warning names.
const WAITING_SHOWN: u32 = 5;

/// Open turns that are shown with a lineage.
const OPEN_TURNS_MAX: u32 = 256;

/// Every state a listing can be narrowed to; the reason of an ended one does not matter.
const STATES: [LineageState; 5] = [
    LineageState::Active,
    LineageState::Orphaned,
    LineageState::AskPending,
    LineageState::Reaped,
    LineageState::Ended(lodge_core::lineage::EndReason::Killed),
];

pub(super) async fn call(shell: &Arc<Shell>, key: Option<RequestKey>, method: &str, given: Value) -> Reply {
    match method {
        ListLineages::NAME => {
            let given = params::<ListLineages>(given)?;
            shell.read(move |at| reply::<ListLineages>(list(at, &given))).await
        }
        GetLineage::NAME => {
            let given = params::<GetLineage>(given)?;
            shell.read(move |at| reply::<GetLineage>(get(at, &given))).await
        }
        ResolveLineage::NAME => {
            changed::<ResolveLineage>(&resolve(shell, key, params::<ResolveLineage>(given)?).await?)
        }
        SnapshotLineage::NAME => {
            let given = params::<SnapshotLineage>(given)?;
            shell.read(move |at| reply::<SnapshotLineage>(snapshots::snapshot(at, &given))).await
        }
        ListLineageMessages::NAME => {
            let given = params::<ListLineageMessages>(given)?;
            shell.read(move |at| reply::<ListLineageMessages>(snapshots::messages(at, &given))).await
        }
        _other => Err(no_method(method)),
    }
}

fn list(at: &ReadView<'_>, given: &LineageListParams) -> Result<LineageList, ErrorBody> {
    let agent = given.agent.as_deref().map(|agent| find_agent_ever(at, agent)).transpose()?;
    let state = given.status.as_deref().map(state_code).transpose()?;
    let limit = page(given.limit);
    let filter = LineageFilter { agent: agent.as_ref(), state, after: given.after.as_deref() };
    let found = at.store.lineages(filter, limit).map_err(internal)?;
    let next =
        (found.len() == limit as usize).then(|| found.last().map(|last| last.row.id.to_string())).flatten();
    Ok(LineageList { lineages: found.into_iter().map(|one| shown(at, one)).collect(), next })
}

fn get(at: &ReadView<'_>, given: &LineageRef) -> Result<LineageDetail, ErrorBody> {
    let found = one(at, &given.lineage)?;
    let (agent, state) = (found.row.agent.clone(), found.row.state);
    let stuck = match state {
        LineageState::Orphaned => Some(EventKind::LineageOrphaned),
        LineageState::AskPending => Some(EventKind::LineageAsk),
        LineageState::Active | LineageState::Reaped | LineageState::Ended(_) => None,
    };
    let since = stuck.map(|kind| at.store.last_at(&agent, kind)).transpose().map_err(internal)?.flatten();
    // Of the agent's several lineages only the one that is not over has open work.
    let open = match state {
        LineageState::Active | LineageState::Orphaned | LineageState::AskPending => {
            at.store.live_turns(Some(&agent), None, OPEN_TURNS_MAX).map_err(internal)?
        }
        LineageState::Reaped | LineageState::Ended(_) => Vec::new(),
    };
    Ok(LineageDetail {
        lineage: shown(at, found),
        since: since.map(|at| at.to_string()),
        open_turns: open.into_iter().map(view::full_turn).collect(),
    })
}

async fn resolve(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: LineageResolveParams,
) -> Result<Answer, ErrorBody> {
    let policy = match Policy::from_word(&given.decision) {
        Some(policy @ (Policy::Revive | Policy::Reap)) => policy,
        Some(Policy::Ask) | None => {
            return Err(ErrorBody::new(
                "params.invalid",
                format!("`{}` is no decision about a lineage", given.decision),
            )
            .hint("`revive` continues its work, `reap` drops it"));
        }
    };
    let found = shell.read(move |at| one(at, &given.lineage)).await?;
    let settlement = LineageResolution {
        agent: found.row.agent,
        lineage: found.row.id,
        policy,
        last_turn: found.last_turn,
    };
    Ok(shell.ask(key, Command::Agent(AgentCommand::SettleLineage(Box::new(settlement)))).await?)
}

/// What an operator should know about lineages that wait for a decision.
pub(super) fn waiting(at: &ReadView<'_>) -> Result<Option<String>, ErrorBody> {
    let state = Some(LineageState::AskPending.codes().0);
    let found = at.store.lineages(LineageFilter { state, ..LineageFilter::default() }, WAITING_SHOWN);
    let names: Vec<String> =
        found.map_err(internal)?.into_iter().map(|found| format!("`{}`", found.agent.name)).collect();
    Ok((!names.is_empty()).then(|| {
        format!("the work of {} waits for your decision: `lodge lineage ls` shows it", names.join(", "))
    }))
}

fn shown(shell: &Shell, found: LineageSummary) -> LineageView {
    let policy = found.agent.spec.policy(shell.config.settings().revival_policy);
    view::lineage(&found.row, &found.agent.name, policy, found.last_turn)
}

/// A lineage by id or unique id prefix, or the present one of an agent, with what is derived about it.
pub(super) fn one(at: &ReadView<'_>, given: &str) -> Result<LineageSummary, ErrorBody> {
    let id = find(at, given)?;
    at.store.lineage(&id).map_err(internal)?.ok_or_else(|| no_lineage(given))
}

pub(super) fn find(at: &ReadView<'_>, given: &str) -> Result<LineageId, ErrorBody> {
    if !given.starts_with("lin_") {
        return Ok(one_agent(at, given)?.row.lineage);
    }
    let found = at.store.find_lineages(given).map_err(internal)?;
    unique_id(found, given, error_code!("lineage.ambiguous"), "lineages")?.ok_or_else(|| no_lineage(given))
}

pub(super) fn no_lineage(given: &str) -> ErrorBody {
    ErrorBody::new("lineage.not_found", format!("no lineage `{given}`"))
        .hint("`lodge lineage ls` lists all lineages")
}

fn state_code(word: &str) -> Result<i64, ErrorBody> {
    STATES.into_iter().find(|state| state.word() == word).map(|state| state.codes().0).ok_or_else(|| {
        ErrorBody::new("params.invalid", format!("`{word}` is no state of a lineage"))
            .hint("active, orphaned, ask_pending, reaped or ended")
    })
}
