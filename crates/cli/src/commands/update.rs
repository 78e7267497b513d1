//! `update`: changes an agent in place.

use std::collections::BTreeMap;

use lodge_proto::{AgentUpdateParams, AgentUpdated, UpdateAgent};

use super::agents::{AgentGoal, settle};
use super::run::{MAP_ROOT, mount_of, print_mounts};
use super::source::{AgentSource, source, source_not_found};
use super::transfers::pull_if_missing;
use super::{CommandContext, map, request_id};
use crate::args::UpdateArgs;
use crate::failure::CommandFailure;
use crate::follow::FollowScope;
use crate::words::put;

pub(super) async fn update(context: &CommandContext, args: UpdateArgs) -> Result<(), CommandFailure> {
    if args.is_empty() {
        return Err(CommandFailure::usage("there is nothing to change")
            .hint("choose changes with `--model`, `-e`, `--config`, `--label`, `--image`, `-v`, `--unmount`, `--limit` or `--revival-policy`"));
    }
    let params = params(context, &args).await?;
    let mut daemon = context.daemon().await?;
    // Attached before the change, so that its events cannot be missed.
    daemon.watch(FollowScope::Agent(args.agent.clone()), None).await?;
    let image = params.image.clone();
    if let Some(image) = &image {
        pull_if_missing(context, &mut daemon, image)
            .await
            .map_err(|failure| source_not_found(image, failure))?;
        context.forget_interrupt();
    }
    let updated = daemon.call::<UpdateAgent>(params).await;
    let mut updated: AgentUpdated = match image {
        Some(image) => updated.map_err(|failure| source_not_found(&image, failure))?,
        None => updated?,
    };
    if updated.in_force == "now" {
        updated.agent = settle(&mut daemon, updated.agent, AgentGoal::Updated, &context.words).await?;
    }
    if context.words.json {
        return context.words.json(&updated);
    }
    put(&format!("{}\n", updated.agent.name))?;
    if !args.mounts.is_empty() {
        print_mounts(context, &mut daemon, &updated.agent, MAP_ROOT).await?;
    }
    context.words.print_note(&update_text(&updated));
    Ok(())
}

fn update_text(updated: &AgentUpdated) -> String {
    let name = &updated.agent.name;
    match updated.in_force.as_str() {
        "after_turns" => {
            let runs: Vec<&str> =
                updated.after_turns.iter().chain(&updated.after_jobs).map(String::as_str).collect();
            format!("{name} is updated when these have ended: {}", runs.join(", "))
        }
        "next_start" => format!("{name} is updated at its next start: lodge start {name}"),
        _ => format!("{name} is updated"),
    }
}

async fn params(context: &CommandContext, args: &UpdateArgs) -> Result<AgentUpdateParams, CommandFailure> {
    let mut params = AgentUpdateParams {
        agent: args.agent.clone(),
        model: args.model.clone(),
        env: changes(&args.env),
        configs: changes(&args.config),
        labels: changes(&args.label),
        mounts: args.mounts.iter().map(|mount| mount_of(context, mount)).collect::<Result<_, _>>()?,
        unmounts: args.unmount.clone(),
        limits: map(args.limit.clone()),
        revival_policy: args.revival_policy.clone(),
        build_args: map(args.build_arg.clone()),
        request_id: Some(request_id()?),
        ..AgentUpdateParams::default()
    };
    if let Some(image) = &args.image {
        match source(context, image).await? {
            AgentSource::Path(path) => params.path = Some(path),
            AgentSource::Content(content) => params.content = Some(content),
            AgentSource::Image(image) => params.image = Some(image),
        }
    }
    Ok(params)
}

/// `KEY=` takes a key away.
fn changes(pairs: &[(String, String)]) -> BTreeMap<String, Option<String>> {
    pairs
        .iter()
        .map(|(key, value)| (key.clone(), Some(value.clone()).filter(|value| !value.is_empty())))
        .collect()
}
