//! The config of an agent's image: the flattened Agentfile as JSON.
//!
//! Owns: how each instruction is written down, in one way only. Never: holds texts of contexts or bytes of files, which
//! are layers; nor places in a source, which mean nothing without it.

mod parts;

use serde::{Deserialize, Serialize};

use self::parts::{
    StoredAdd, StoredArg, StoredBin, StoredContext, StoredMcp, StoredOn, StoredPair, StoredSchedule,
    StoredService, StoredSetting, is_false, model, pair, source,
};
use super::{BadImage, json};
use crate::Reference;
use crate::agentfile::{
    Agentfile, BinSource, LoadedAgentfile, Located, NetworkAccess, PARENTS_MAX, check, names, shown,
};

const WHAT: &str = "the config";
const SCRATCH: &str = "scratch";

/// What a config says. Readers ignore what they do not know.
#[derive(Debug, Serialize, Deserialize)]
struct StoredAgentConfig {
    from: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// NAME comes from a parent.
    #[serde(default, skip_serializing_if = "is_false")]
    name_inherited: bool,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    contexts: Vec<StoredContext>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    configs: Vec<StoredSetting>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    bins: Vec<StoredBin>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    adds: Vec<StoredAdd>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exec: Option<Vec<String>>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    labels: Vec<StoredPair>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    args: Vec<StoredArg>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    envs: Vec<StoredPair>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    capabilities: Vec<String>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    limits: Vec<StoredPair>,
    /// The words after NETWORK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<Vec<String>>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    mcps: Vec<StoredMcp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skills: Vec<String>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    services: Vec<StoredService>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    schedules: Vec<StoredSchedule>,
    #[serde(default, deserialize_with = "json::objects", skip_serializing_if = "Vec::is_empty")]
    ons: Vec<StoredOn>,
    /// How many parents were flattened into it.
    #[serde(default, skip_serializing_if = "is_zero")]
    parents: usize,
}

/// The bytes of the config of an agent that [`check_loaded`] has nothing against.
pub(super) fn write(loaded: &LoadedAgentfile) -> Result<Vec<u8>, BadImage> {
    let agentfile = &loaded.agentfile;
    let written = StoredAgentConfig {
        from: loaded.from.clone().unwrap_or_else(|| SCRATCH.to_owned()),
        runtime: agentfile.runtime.as_ref().map(|runtime| runtime.value.to_string()),
        model: agentfile.model.as_ref().map(|model| model.value.to_string()),
        name: agentfile.name.as_ref().map(|name| name.value.clone()),
        name_inherited: agentfile.name.is_some() && loaded.own_name.is_none(),
        contexts: agentfile.contexts.iter().map(StoredContext::of).collect(),
        configs: agentfile.configs.iter().map(StoredSetting::of).collect(),
        bins: agentfile.bins.iter().map(StoredBin::of).collect(),
        adds: agentfile.adds.iter().map(StoredAdd::of).collect(),
        exec: agentfile.exec.as_ref().map(|exec| exec.value.clone()),
        labels: agentfile.labels.iter().map(|label| pair(&label.key, &label.value, None)).collect(),
        args: agentfile.args.iter().map(StoredArg::of).collect(),
        envs: agentfile
            .envs
            .iter()
            .map(|env| pair(&env.key, &env.value, env.description.as_deref()))
            .collect(),
        capabilities: agentfile.capabilities.iter().map(|name| name.value.clone()).collect(),
        limits: agentfile
            .limits
            .iter()
            .map(|limit| pair(limit.value.key().word(), &limit.value.to_string(), None))
            .collect(),
        network: agentfile.network.as_ref().map(|network| network.value.words()),
        mcps: agentfile.mcps.iter().map(StoredMcp::of).collect(),
        skills: agentfile.skills.iter().map(|skill| skill.value.clone()).collect(),
        services: agentfile.services.iter().map(StoredService::of).collect(),
        schedules: agentfile.schedules.iter().map(StoredSchedule::of).collect(),
        ons: agentfile.ons.iter().map(StoredOn::of).collect(),
        parents: loaded.parents,
    };
    json::write_pretty(WHAT, &written)
}

/// Reads a config: everything of an agent but its source, the texts of its contexts and the bytes of its files.
pub(super) fn read(bytes: &[u8]) -> Result<LoadedAgentfile, BadImage> {
    let written: StoredAgentConfig = json::read(WHAT, bytes)?;
    let from = (written.from != SCRATCH).then(|| written.from.clone());
    let parents = written.parents;
    let name_inherited = written.name_inherited;
    let agentfile = written.into_agentfile()?;
    let own_name = agentfile.name.as_ref().filter(|_| !name_inherited).map(|name| name.value.clone());
    let loaded = LoadedAgentfile { agentfile, from, own_name, parents, ..LoadedAgentfile::default() };
    check_loaded(&loaded)?;
    Ok(loaded)
}

/// Refuses a config that no build could produce, for writing and for reading.
pub(super) fn check_loaded(loaded: &LoadedAgentfile) -> Result<(), BadImage> {
    check(&loaded.agentfile).map_err(|unfit| BadImage::new(unfit.to_string()))?;
    if let Some(from) = loaded.from.as_deref()
        && !names::dotted_path(from)
        && Reference::read(from).is_err()
    {
        return Err(BadImage::new(format!("its FROM is refused: `{}` is no image", shown(from))));
    }
    if loaded.parents > PARENTS_MAX {
        return Err(BadImage::new(format!(
            "it has {} parents, and at most {PARENTS_MAX} are",
            loaded.parents
        )));
    }
    let bins = loaded.agentfile.bins.iter().map(|bin| &bin.source);
    let runtime = loaded.agentfile.runtime.iter().map(|runtime| &runtime.value);
    for source in runtime.chain(bins) {
        match source {
            BinSource::Image(image) if !matches!(Reference::pinned(image), Ok(Some(_))) => {
                return Err(BadImage::new(format!("`{}` could be any tool: it has no digest", shown(image))));
            }
            BinSource::Image(_) | BinSource::Host(_) | BinSource::Builtin(_) => {}
        }
    }
    Ok(())
}

impl StoredAgentConfig {
    fn into_agentfile(self) -> Result<Agentfile, BadImage> {
        Ok(Agentfile {
            from: Located::default(),
            runtime: self.runtime.map(source).map(without_position),
            model: self.model.map(|text| model(&text)).transpose()?.map(without_position),
            name: self.name.map(without_position),
            contexts: self.contexts.into_iter().map(StoredContext::into_context).collect(),
            configs: self.configs.into_iter().map(StoredSetting::into_config).collect::<Result<_, _>>()?,
            envs: self.envs.into_iter().map(StoredPair::into_env).collect(),
            bins: self.bins.into_iter().map(StoredBin::into_bin).collect(),
            exec: self.exec.map(without_position),
            adds: self.adds.into_iter().map(StoredAdd::into_add).collect(),
            labels: self.labels.into_iter().map(StoredPair::into_label).collect(),
            args: self.args.into_iter().map(StoredArg::into_arg).collect(),
            capabilities: self.capabilities.into_iter().map(without_position).collect(),
            limits: self.limits.into_iter().map(StoredPair::into_limit).collect::<Result<_, _>>()?,
            network: self.network.map(network).map(without_position),
            mcps: self.mcps.into_iter().map(StoredMcp::into_mcp).collect::<Result<_, _>>()?,
            skills: self.skills.into_iter().map(without_position).collect(),
            services: self.services.into_iter().map(StoredService::into_service).collect(),
            schedules: self.schedules.into_iter().map(StoredSchedule::into_schedule).collect(),
            ons: self.ons.into_iter().map(StoredOn::into_on).collect(),
        })
    }
}

/// Words such as `none` mean what they do only when they stand alone.
fn network(words: Vec<String>) -> NetworkAccess {
    match words.as_slice() {
        [only] if let Some(network) = NetworkAccess::from_word(only) => network,
        _hosts => NetworkAccess::Allow(words),
    }
}

/// A value whose place is not known, because the text that it stood in is not there.
fn without_position<T>(value: T) -> Located<T> {
    Located { line: 0, column: 0, value }
}

fn is_zero(value: &usize) -> bool {
    *value == 0
}
