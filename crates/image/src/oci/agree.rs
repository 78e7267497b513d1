//! Whether the config of an image says what its Agentfile says.
//!
//! Owns: the comparison. People read the Agentfile, and the config is what runs: an image in which the two differ is refused.
//!
//! A config is flattened, so what an image has from its parents is in the config alone. Everything that the Agentfile itself says
//! must be in force; without a parent nothing else may be.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{BadImage, config, json};
use crate::agentfile::{
    Agentfile, Arg, BinSource, ContextSource, LoadedAgentfile, Parent, merge, parse, shown,
};
use crate::{Reference, TaggedName};

/// How messages call the source.
const NAME: &str = "Agentfile";

/// Refuses an image whose config is not what its Agentfile was built into.
pub(super) fn check(loaded: &LoadedAgentfile) -> Result<(), BadImage> {
    // What a build was given is in the config, so the same build can be repeated. Where a value is the default it may have been
    // given or not, which makes a difference when an ARG is written twice.
    let given = |is_given: &dyn Fn(&Arg) -> bool| -> BTreeMap<String, String> {
        let given = loaded.agentfile.args.iter().filter(|arg| is_given(arg));
        given.filter_map(|arg| Some((arg.key.clone(), arg.value.clone()?))).collect()
    };
    let differing = check_built(loaded, &given(&|arg| arg.value != arg.default));
    differing.or_else(|bad| check_built(loaded, &given(&|_| true)).map_err(|_| bad))
}

/// The same for a build that was given these arguments.
fn check_built(loaded: &LoadedAgentfile, args: &BTreeMap<String, String>) -> Result<(), BadImage> {
    let own = parse(NAME, &loaded.source, args)
        .map_err(|errors| BadImage::mismatch(format!("its Agentfile cannot be read: {}", errors.first())))?;
    let from = match &own.from.value {
        Parent::Scratch => None,
        Parent::Path(from) | Parent::Image(from) => Some(from.clone()),
    };
    if from != loaded.from || from.is_some() != (loaded.parents > 0) {
        return Err(differs("from"));
    }
    texts(loaded, &own)?;
    let own_name = own.name.as_ref().map(|name| name.value.clone());
    let own = pinned(own, &loaded.agentfile);
    let agentfile = if from.is_none() { own } else { over(&loaded.agentfile, own) };
    let expected = LoadedAgentfile {
        agentfile,
        from,
        own_name,
        parents: loaded.parents,
        source: Vec::new(),
        contexts: Vec::new(),
        files: Vec::new(),
    };
    compare(&config::write(loaded)?, &config::write(&expected)?)
}

/// The config's document with everything that the Agentfile says put into it once more, which changes nothing where it is
/// in force.
fn over(flat: &Agentfile, own: Agentfile) -> Agentfile {
    let (schedules, ons) = (flat.schedules.len(), flat.ons.len());
    let mut merged = merge(flat.clone(), own);
    // These accumulate: the values of the Agentfile are at the end of the config's list.
    let is_end = |all: &[String], since: usize| {
        let (before, own) = all.split_at(since);
        before.ends_with(own)
    };
    let written: Vec<String> =
        merged.schedules.iter().map(|schedule| format!("{}\n{}", schedule.cron, schedule.prompt)).collect();
    if is_end(&written, schedules) {
        merged.schedules.truncate(schedules);
    }
    let written: Vec<String> = merged.ons.iter().map(|on| format!("{}\n{}", on.pattern, on.prompt)).collect();
    if is_end(&written, ons) {
        merged.ons.truncate(ons);
    }
    merged
}

/// The texts of contexts that are in the Agentfile.
fn texts(loaded: &LoadedAgentfile, own: &Agentfile) -> Result<(), BadImage> {
    for context in &own.contexts {
        let ContextSource::Inline(text) = &context.source else { continue };
        let packed = loaded.contexts.iter().find(|packed| packed.name == context.name);
        if packed.is_none_or(|packed| packed.text != *text) {
            let name = shown(&context.name);
            return Err(BadImage::mismatch(format!(
                "the text of its CONTEXT `{name}` is not the one in its Agentfile"
            )));
        }
    }
    Ok(())
}

/// The document with its tools pinned as they are in `flat`, where those have the same names.
fn pinned(mut own: Agentfile, flat: &Agentfile) -> Agentfile {
    for bin in &mut own.bins {
        if let Some(there) = flat.bins.iter().find(|there| there.name == bin.name) {
            pin(&mut bin.source, &there.source);
        }
    }
    if let (Some(runtime), Some(there)) = (&mut own.runtime, &flat.runtime) {
        pin(&mut runtime.value, &there.value);
    }
    own
}

fn pin(source: &mut BinSource, there: &BinSource) {
    let (BinSource::Image(name), BinSource::Image(pinned)) = (&*source, there) else { return };
    let Ok(Some((to, digest))) = Reference::pinned(pinned) else { return };
    let is_same = match Reference::pinned(name) {
        Ok(Some((own, own_digest))) => own == to && own_digest == digest,
        Ok(None) => TaggedName::read(name).is_ok_and(|own| own == to),
        Err(_) => false,
    };
    if is_same {
        *source = there.clone();
    }
}

fn compare(config: &[u8], expected: &[u8]) -> Result<(), BadImage> {
    let (config, expected): (Value, Value) =
        (json::read("the config", config)?, json::read("the config", expected)?);
    if config == expected {
        return Ok(());
    }
    let empty = serde_json::Map::new();
    let (config, expected) = (config.as_object().unwrap_or(&empty), expected.as_object().unwrap_or(&empty));
    let mut keys = config.keys().chain(expected.keys());
    Err(differs(keys.find(|key| config.get(*key) != expected.get(*key)).map_or("", String::as_str)))
}

/// The difference, by its keyword in an Agentfile.
fn differs(key: &str) -> BadImage {
    let word = match key {
        "name_inherited" => "NAME".to_owned(),
        plural @ ("contexts" | "configs" | "bins" | "adds" | "labels" | "args" | "envs" | "limits"
        | "mcps" | "skills" | "services" | "schedules" | "ons") => {
            plural.trim_end_matches('s').to_ascii_uppercase()
        }
        "capabilities" => "CAPABILITY".to_owned(),
        other => other.to_ascii_uppercase(),
    };
    BadImage::mismatch(format!("its config says something else about {word} than its Agentfile"))
}
