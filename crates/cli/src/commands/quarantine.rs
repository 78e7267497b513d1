//! `quarantine ls`, `retry` and `drop`.

use lodge_proto::{
    ApiMethod, DropQuarantined, ListQuarantine, QuarantineListParams, QuarantineRef, QuarantineView,
    RetryQuarantined,
};

use super::names::AgentNames;
use super::results::ResultList;
use super::{CommandContext, request_id};
use crate::args::QuarantineCommand;
use crate::failure::CommandFailure;
use crate::render::{ago, now_s, or_dash};
use crate::words::put;

pub(super) async fn quarantine(
    context: &CommandContext,
    command: QuarantineCommand,
) -> Result<(), CommandFailure> {
    match command {
        QuarantineCommand::Ls => list(context).await,
        QuarantineCommand::Retry(refs) => release::<RetryQuarantined>(context, refs.work).await,
        QuarantineCommand::Drop(refs) => release::<DropQuarantined>(context, refs.work).await,
    }
}

async fn list(context: &CommandContext) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut all: Vec<QuarantineView> = Vec::new();
    let mut after = None;
    loop {
        let params = QuarantineListParams { after, limit: None };
        let page = daemon.call::<ListQuarantine>(params).await?;
        all.extend(page.work);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&all);
    }
    if context.words.quiet {
        return put(&all.iter().map(|work| format!("{}\n", work.id)).collect::<String>());
    }
    let (now, mut names) = (now_s(), AgentNames::default());
    let mut rows: Vec<Vec<String>> = Vec::new();
    for work in &all {
        let whose = match &work.agent {
            Some(agent) => names.of(&mut daemon, agent).await?,
            None => "-".to_owned(),
        };
        rows.push(vec![
            work.id.clone(),
            work.kind.clone(),
            whose,
            or_dash(work.turn.as_deref().or(work.detail.as_deref())),
            work.deaths.to_string(),
            ago(&work.since, now),
        ]);
    }
    context.put_table(&["ID", "KIND", "AGENT", "WHAT", "DEATHS", "SINCE"], &rows)
}

async fn release<M>(context: &CommandContext, ids: Vec<String>) -> Result<(), CommandFailure>
where
    M: ApiMethod<Params = QuarantineRef, Reply = QuarantineView>,
{
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, ids.len());
    for work in ids {
        let params = QuarantineRef { work, request_id: Some(request_id()?) };
        match daemon.call::<M>(params).await {
            Ok(view) => batch.done(&view, || format!("{}\n", view.id))?,
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}
