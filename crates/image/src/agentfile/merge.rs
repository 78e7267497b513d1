//! A child Agentfile over its parent.
//!
//! Owns: what is replaced, kept and added. Never: fetches a parent or counts how many there are.

use super::document::{Agentfile, put};

/// Flattens a child over its parent.
///
/// The result's `from` is the parent's, so a chain is flattened from the child upwards: as long as `from`
/// names an image, merge that image's Agentfile (as parent) with what there is. The caller bounds the chain
/// by `PARENTS_MAX`. Replaced items keep the parent's place, so an overridden CONTEXT stays where it was.
pub fn merge(parent: Agentfile, child: Agentfile) -> Agentfile {
    let mut merged = parent;
    if child.runtime.is_some() {
        // Settings belong to the runtime they were written for.
        merged.configs.clear();
        merged.runtime = child.runtime;
    }
    merged.model = child.model.or(merged.model);
    merged.name = child.name.or(merged.name);
    merged.exec = child.exec.or(merged.exec);
    merged.network = child.network.or(merged.network);
    child.contexts.into_iter().for_each(|item| put(&mut merged.contexts, item));
    child.configs.into_iter().for_each(|item| put(&mut merged.configs, item));
    child.envs.into_iter().for_each(|item| put(&mut merged.envs, item));
    child.bins.into_iter().for_each(|item| put(&mut merged.bins, item));
    child.adds.into_iter().for_each(|item| put(&mut merged.adds, item));
    child.labels.into_iter().for_each(|item| put(&mut merged.labels, item));
    child.args.into_iter().for_each(|item| put(&mut merged.args, item));
    child.capabilities.into_iter().for_each(|item| put(&mut merged.capabilities, item));
    child.limits.into_iter().for_each(|item| put(&mut merged.limits, item));
    child.mcps.into_iter().for_each(|item| put(&mut merged.mcps, item));
    child.skills.into_iter().for_each(|item| put(&mut merged.skills, item));
    child.services.into_iter().for_each(|item| put(&mut merged.services, item));
    merged.schedules.extend(child.schedules);
    merged.ons.extend(child.ons);
    merged
}
