//! Converts a loaded Agentfile to its record, and back, so that an image can be a parent.

use std::time::Duration;

use lodge_core::lineage::Policy;
use lodge_core::record::{
    BinImageRecord, BinPlatformRecord, BinRecord, ConfigRecord, ContextRecord, EnvRecord, FileRecord,
    ImageRecord, LimitsRecord, NetworkMode, NetworkRecord,
};
use lodge_image::Digest;
use lodge_image::agentfile::{
    Add, AddedFile, Agentfile, Bin, BinSource, Config, ConfigValue, ContextSection, ContextSource,
    ContextText, Env, Label, Limit, LoadedAgentfile, Located, ModelName, NetworkAccess, RevivalPolicy,
};
use lodge_image::oci::{AgentImageHead, BinImage};

/// The record of an image whose layers are not in the store: texts are empty, and files have only names.
pub(crate) fn announced_record(head: AgentImageHead) -> ImageRecord {
    let AgentImageHead { loaded, files, .. } = head;
    let mut record = record_of(loaded);
    for (file, part) in record.files.iter_mut().zip(files) {
        (file.digest, file.size) = (Some(part.digest.to_string()), part.size);
    }
    record
}

/// The record of a tool.
pub(crate) fn bin_record(bin: BinImage) -> BinImageRecord {
    let platforms = bin.platforms.into_iter().map(|found| BinPlatformRecord {
        platform: found.platform.to_string(),
        manifest: found.digest.to_string(),
        path: found.path,
        size: found.layers.iter().map(|layer| layer.size).sum(),
    });
    BinImageRecord {
        name: bin.name,
        description: bin.description.unwrap_or_default(),
        usage: bin.usage,
        platforms: platforms.collect(),
        labels: bin.labels,
    }
}

/// The record of an image, without the instructions that the builder refuses. It names the contents of files by digest.
pub(crate) fn record_of(loaded: LoadedAgentfile) -> ImageRecord {
    let LoadedAgentfile { agentfile: file, source, from, own_name: _, parents, contexts, files } = loaded;
    let describe =
        |name: &str| file.adds.iter().find(|add| add.name == name).and_then(|add| add.description.clone());
    let files = files.into_iter().map(|AddedFile { name, bytes }| FileRecord {
        description: describe(&name),
        name,
        digest: Some(Digest::of(&bytes).to_string()),
        size: bytes.len() as u64,
        bytes: Vec::new(),
    });
    let files = files.collect();
    let contexts = contexts.into_iter().map(|ContextText { name, description, text }| ContextRecord {
        name,
        description,
        text,
    });
    let (limits, policy) = limits(&file);
    let runtime = file.runtime.map(|runtime| Sources::of(runtime.value)).unwrap_or_default();
    let (runtime, runtime_image) = (runtime.host, runtime.image);
    let values = file
        .configs
        .iter()
        .filter_map(|config| Some((config.key.clone(), config.value.as_ref()?.to_string())));
    ImageRecord {
        agentfile: source,
        contexts: contexts.collect(),
        files,
        configs: values.collect(),
        env: file
            .envs
            .into_iter()
            .map(|Env { key, value, description, .. }| EnvRecord { key, value, description })
            .collect(),
        bins: file.bins.into_iter().map(bin).collect(),
        labels: file.labels.into_iter().map(|label| (label.key, label.value)).collect(),
        exec: file.exec.map(|exec| exec.value).unwrap_or_default(),
        model: file.model.map(|model| model.value.to_string()),
        name: file.name.map(|name| name.value),
        runtime,
        limits,
        network: file.network.map(|network| network_record(network.value)),
        capabilities: file.capabilities.into_iter().map(|capability| capability.value).collect(),
        revival_policy: policy.map(Policy::code),
        declared: file
            .configs
            .into_iter()
            .map(|Config { key, required, description, .. }| ConfigRecord { key, required, description })
            .collect(),
        from,
        parents: u32::try_from(parents).unwrap_or(u32::MAX),
        runtime_image,
    }
}

/// Where a tool or a runtime comes from: one of these.
#[derive(Default)]
struct Sources {
    host: Option<String>,
    image: Option<String>,
    builtin: Option<String>,
}

impl Sources {
    fn of(source: BinSource) -> Sources {
        match source {
            BinSource::Host(program) => Sources { host: Some(program), ..Sources::default() },
            BinSource::Image(reference) => Sources { image: Some(reference), ..Sources::default() },
            BinSource::Builtin(program) => Sources { builtin: Some(program), ..Sources::default() },
        }
    }
}

fn bin(bin: Bin) -> BinRecord {
    let Sources { host, image, builtin } = Sources::of(bin.source);
    BinRecord {
        name: bin.name,
        host: host.unwrap_or_default(),
        safe: bin.safe,
        description: bin.description.unwrap_or_default(),
        usage: bin.usage,
        image,
        shell: bin.shell,
        builtin,
    }
}

/// The limits of the Agentfile, and its policy for work whose process died.
fn limits(file: &Agentfile) -> (Option<LimitsRecord>, Option<Policy>) {
    limits_record(file.limits.iter().map(|limit| &limit.value))
}

/// The record of the limits, and the policy, which an Agentfile writes as a limit.
pub(crate) fn limits_record<'l>(
    given: impl Iterator<Item = &'l Limit>,
) -> (Option<LimitsRecord>, Option<Policy>) {
    let (mut limits, mut policy) = (LimitsRecord::default(), None);
    for limit in given {
        match *limit {
            Limit::MemoryBytes(bytes) => limits.memory_bytes = Some(bytes),
            Limit::Pids(pids) => limits.pids = Some(pids.into()),
            Limit::CpuTime(time) => {
                limits.cpu_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            }
            Limit::DiskBytes(bytes) => limits.disk_bytes = Some(bytes),
            Limit::OutputBytes(bytes) => limits.output_bytes = Some(bytes),
            Limit::BudgetMicroUsd(micros) => limits.budget_micro_usd = Some(micros),
            Limit::BudgetTokens(tokens) => limits.budget_tokens = Some(tokens),
            Limit::ContextTokens(tokens) => limits.context_tokens = Some(tokens),
            Limit::RevivalPolicy(RevivalPolicy::Revive) => policy = Some(Policy::Revive),
            Limit::RevivalPolicy(RevivalPolicy::Reap) => policy = Some(Policy::Reap),
            Limit::RevivalPolicy(RevivalPolicy::Ask) => policy = Some(Policy::Ask),
        }
    }
    ((limits != LimitsRecord::default()).then_some(limits), policy)
}

pub(crate) fn network_record(network: NetworkAccess) -> NetworkRecord {
    let (mode, allow) = match network {
        NetworkAccess::None => (NetworkMode::None, Vec::new()),
        NetworkAccess::Public => (NetworkMode::Public, Vec::new()),
        NetworkAccess::Lan => (NetworkMode::Lan, Vec::new()),
        NetworkAccess::Host => (NetworkMode::Host, Vec::new()),
        NetworkAccess::Allow(hosts) => (NetworkMode::List, hosts),
    };
    NetworkRecord { mode: mode.code(), allow, by_default: false }
}

/// Converts a record to a parent. Line numbers are 0, because no error refers to a valid parent. `contents` reads its files.
pub(crate) fn loaded_of<E>(
    record: ImageRecord,
    contents: &mut dyn FnMut(&FileRecord) -> Result<Vec<u8>, E>,
) -> Result<LoadedAgentfile, E> {
    let declared_limits = limits_of(&record);
    let runtime = record.runtime_image.map(BinSource::Image).or(record.runtime.map(BinSource::Host));
    let read = |file: &FileRecord| Ok(AddedFile { name: file.name.clone(), bytes: contents(file)? });
    let files = record.files.iter().map(read).collect::<Result<_, E>>()?;
    let agentfile = Agentfile {
        runtime: runtime.map(without_line),
        model: record.model.as_deref().and_then(model_of).map(without_line),
        name: record.name.map(without_line),
        contexts: record.contexts.iter().map(context_of).collect(),
        configs: configs_of(record.declared, record.configs),
        envs: record
            .env
            .into_iter()
            .map(|EnvRecord { key, value, description }| Env { line: 0, key, value, description })
            .collect(),
        bins: record.bins.into_iter().map(bin_of).collect(),
        exec: Some(record.exec).filter(|exec| !exec.is_empty()).map(without_line),
        adds: record.files.iter().map(add_of).collect(),
        labels: record.labels.into_iter().map(|(key, value)| Label { line: 0, key, value }).collect(),
        capabilities: record.capabilities.into_iter().map(without_line).collect(),
        limits: declared_limits,
        network: record.network.map(|network| without_line(network_of(network))),
        ..Agentfile::default()
    };
    let contexts = record.contexts.into_iter().map(|ContextRecord { name, description, text }| ContextText {
        name,
        description,
        text,
    });
    Ok(LoadedAgentfile {
        agentfile,
        source: record.agentfile,
        from: record.from,
        own_name: None,
        parents: record.parents as usize,
        contexts: contexts.collect(),
        files,
    })
}

fn without_line<T>(value: T) -> Located<T> {
    Located { line: 0, column: 0, value }
}

fn model_of(text: &str) -> Option<ModelName> {
    let (provider, name) = text.split_once('/')?;
    Some(ModelName { provider: provider.to_owned(), name: name.to_owned() })
}

/// The text is separate, in [`LoadedAgentfile::contexts`].
fn context_of(context: &ContextRecord) -> ContextSection {
    ContextSection {
        line: 0,
        name: context.name.clone(),
        description: context.description.clone(),
        source: ContextSource::Inline(String::new()),
    }
}

fn add_of(file: &FileRecord) -> Add {
    Add {
        line: 0,
        src: without_line(file.name.clone()),
        name: file.name.clone(),
        description: file.description.clone(),
    }
}

fn bin_of(bin: BinRecord) -> Bin {
    Bin {
        line: 0,
        name: bin.name,
        source: match (bin.image, bin.builtin) {
            (Some(image), _) => BinSource::Image(image),
            (None, Some(program)) => BinSource::Builtin(program),
            (None, None) => BinSource::Host(bin.host),
        },
        safe: bin.safe,
        description: Some(bin.description).filter(|text| !text.is_empty()),
        usage: bin.usage,
        shell: bin.shell,
    }
}

fn configs_of(
    declared: Vec<ConfigRecord>,
    mut values: std::collections::BTreeMap<String, String>,
) -> Vec<Config> {
    let mut configs: Vec<Config> = declared
        .into_iter()
        .map(|ConfigRecord { key, required, description }| {
            let value = values.remove(&key).map(ConfigValue::String);
            Config { line: 0, key, value, required, description }
        })
        .collect();
    // Images of earlier releases record only values.
    configs.extend(values.into_iter().map(|(key, value)| Config {
        line: 0,
        key,
        value: Some(ConfigValue::String(value)),
        required: false,
        description: None,
    }));
    configs
}

fn network_of(record: NetworkRecord) -> NetworkAccess {
    match record.reach() {
        NetworkMode::None => NetworkAccess::None,
        NetworkMode::Host => NetworkAccess::Host,
        NetworkMode::Public => NetworkAccess::Public,
        NetworkMode::Lan => NetworkAccess::Lan,
        NetworkMode::List => NetworkAccess::Allow(record.allow),
    }
}

fn limits_of(record: &ImageRecord) -> Vec<Located<Limit>> {
    let limits = record.limits.unwrap_or_default();
    let policy = record.revival_policy.and_then(Policy::from_code).map(|policy| match policy {
        Policy::Revive => RevivalPolicy::Revive,
        Policy::Reap => RevivalPolicy::Reap,
        Policy::Ask => RevivalPolicy::Ask,
    });
    let all = [
        limits.memory_bytes.map(Limit::MemoryBytes),
        limits.pids.map(|pids| Limit::Pids(u32::try_from(pids).unwrap_or(u32::MAX))),
        limits.cpu_ms.map(|ms| Limit::CpuTime(Duration::from_millis(ms))),
        limits.disk_bytes.map(Limit::DiskBytes),
        limits.output_bytes.map(Limit::OutputBytes),
        limits.budget_micro_usd.map(Limit::BudgetMicroUsd),
        limits.budget_tokens.map(Limit::BudgetTokens),
        limits.context_tokens.map(Limit::ContextTokens),
        policy.map(Limit::RevivalPolicy),
    ];
    all.into_iter().flatten().map(without_line).collect()
}

#[cfg(test)]
mod tests {
    use lodge_image::agentfile::{Builder, load_inline};

    use super::*;

    struct NoParents;

    impl Builder for NoParents {
        fn image(
            &self,
            _: &str,
        ) -> Result<Option<LoadedAgentfile>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(None)
        }

        fn pin(&self, name: &str) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(Some(name.to_owned()))
        }

        fn refuses(&self, _: &Agentfile) -> Vec<(u32, &'static str)> {
            Vec::new()
        }
    }

    #[test]
    fn loading_a_record_as_a_parent_and_recording_it_again_changes_nothing() {
        let source = "FROM scratch\nRUNTIME host:/usr/bin/loop\nMODEL p/m/x\nNAME whole\nEXEC [\"serve\", \"-v\"]\n\
            CONTEXT SOUL \"who\" <<E\n  kept \nE\nCONFIG a=1 \"one\"\nCONFIG b\nCONFIG c! \"needed\"\n\
            ENV K=v \"d\"\nBIN t host:cat safe \"reads\" <<U\nusage\nU\nBIN u host:ls\nLABEL l=1\n\
            CAPABILITY note_save job_wait\nLIMIT memory 1g\nLIMIT pids 9\nLIMIT cpu-time 1s\nLIMIT disk 2g\n\
            LIMIT output 1m\nLIMIT budget-usd 1.5\nLIMIT budget-tokens 5\nLIMIT context-tokens 6\n\
            LIMIT revival-policy ask\nNETWORK a.example:443 10.0.0.0/8\nBIN rg rg:latest\nSHELL host safe \"runs\"\nBIN see builtin:read\n";
        let record = record_of(load_inline(source.as_bytes(), &Default::default(), &NoParents).unwrap());
        assert_eq!(record.parents, 0);
        let again = loaded_of::<std::convert::Infallible>(record.clone(), &mut |_| Ok(Vec::new())).unwrap();
        assert_eq!(record_of(again), record);
    }
}
