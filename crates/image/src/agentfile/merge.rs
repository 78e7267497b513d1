//! Merges a child Agentfile into its parent.
//!
//! Owns: what is replaced, kept and added. Never: fetches a parent or counts how many there are.

use super::document::{Agentfile, put_all};

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
    put_all(&mut merged.contexts, child.contexts);
    put_all(&mut merged.configs, child.configs);
    put_all(&mut merged.envs, child.envs);
    put_all(&mut merged.bins, child.bins);
    put_all(&mut merged.adds, child.adds);
    put_all(&mut merged.labels, child.labels);
    put_all(&mut merged.args, child.args);
    put_all(&mut merged.capabilities, child.capabilities);
    put_all(&mut merged.limits, child.limits);
    put_all(&mut merged.mcps, child.mcps);
    put_all(&mut merged.skills, child.skills);
    put_all(&mut merged.services, child.services);
    merged.schedules.extend(child.schedules);
    merged.ons.extend(child.ons);
    merged
}
