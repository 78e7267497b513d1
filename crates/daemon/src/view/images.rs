//! Images as clients see them.

use lodge_core::lineage::Policy;
use lodge_core::record::{
    BinRecord, ContextRecord, EnvRecord, ImageRecord, ImageState, LimitsRecord, NetworkMode, NetworkRecord,
};
use lodge_engine::{ImageAnswer, ImageSnapshot};
use lodge_image::agentfile::nearest;
use lodge_proto::{
    BlobView, CapabilityView, ImageBin, ImageConfig, ImageContext, ImageDetail, ImageEnv, ImageFile,
    ImageRemoved, ImageView, LimitsView, NetworkView,
};
use lodge_runtime_messages::CONFIG_KEYS;
use lodge_store::ImageSummary;

use super::answers::AnswerView;
use super::bins::new_bin;
use crate::act::mask;

pub(super) fn answer(answer: &ImageAnswer) -> AnswerView {
    match answer {
        ImageAnswer::Image(found) => {
            let shown = snapshot(found);
            match &found.bin {
                None => AnswerView::Image(Box::new(shown)),
                Some(bin) => AnswerView::Bin(Box::new(new_bin(shown, &bin.record, bin.users))),
            }
        }
        ImageAnswer::Removed(gone) => AnswerView::ImageRemoved(Box::new(ImageRemoved {
            digest: gone.digest.clone(),
            untagged: gone.untagged.clone(),
            removed: gone.removed,
        })),
    }
}

fn snapshot(image: &ImageSnapshot) -> ImageView {
    ImageView {
        digest: image.digest.clone(),
        refs: image.refs.clone(),
        named: image.named.clone(),
        size_bytes: image.bytes,
        agents: image.agents,
        created_at: image.named_at.to_string(),
        complete: image.complete,
    }
}

/// The runtime has none of these tools yet.
pub fn capability(name: &str) -> CapabilityView {
    CapabilityView { name: name.to_owned(), granted: false }
}

pub fn image(found: ImageSummary) -> ImageView {
    ImageView {
        digest: found.digest,
        refs: found.refs.into_iter().map(|row| row.reference).collect(),
        named: Vec::new(),
        size_bytes: found.bytes,
        agents: found.agents,
        created_at: found.at.to_string(),
        complete: found.state == ImageState::Complete,
    }
}

pub fn limits(limits: Option<LimitsRecord>) -> LimitsView {
    let limits = limits.unwrap_or_default();
    LimitsView {
        memory_bytes: limits.memory_bytes,
        pids: limits.pids,
        cpu_ms: limits.cpu_ms,
        disk_bytes: limits.disk_bytes,
        output_bytes: limits.output_bytes,
        budget_micro_usd: limits.budget_micro_usd,
        budget_tokens: limits.budget_tokens,
        context_tokens: limits.context_tokens,
    }
}

/// Of an image, which means the default where it says nothing.
fn image_network(network: Option<NetworkRecord>) -> NetworkView {
    self::network(Some(network.unwrap_or_else(NetworkRecord::by_default)))
}

/// Of an agent. One of whom nothing is recorded was made when all had the host's.
pub fn network(network: Option<NetworkRecord>) -> NetworkView {
    let mode = network.as_ref().map_or(NetworkMode::Host, NetworkRecord::reach);
    NetworkView {
        mode: mode.word().to_owned(),
        allow: network.map(|network| network.allow).unwrap_or_default(),
    }
}

/// Keywords may be written in any case.
fn is_variable(word: &str) -> bool {
    ["ENV", "ARG"].iter().any(|keyword| word.eq_ignore_ascii_case(keyword))
}

/// The Agentfile, without the secrets that its ENV and ARG lines give to variables.
pub fn agentfile(text: &[u8], env: &[EnvRecord]) -> String {
    let secrets: Vec<(&str, &str)> = env
        .iter()
        .map(|var| (var.value.as_str(), mask::shown(&var.key, &var.value)))
        .filter(|(value, shown)| !value.is_empty() && value != shown)
        .collect();
    let line = |line: &str| match (line.split_whitespace().next(), line.split_once('=')) {
        (Some(word), Some((key, given))) if is_variable(word) => {
            let cut =
                secrets.iter().fold(given.to_owned(), |given, (value, shown)| given.replace(value, shown));
            let name = key.split_whitespace().next_back().unwrap_or_default();
            let whole = given.trim_end();
            let end = &given[whole.len()..];
            let shown = mask::shown(name, whole);
            // What is written with escapes does not stand there as it is meant: all of it goes.
            if shown != whole { format!("{key}={shown}{end}") } else { format!("{key}={cut}") }
        }
        (_, _) => line.to_owned(),
    };
    String::from_utf8_lossy(text).split_inclusive('\n').map(line).collect()
}

fn image_bin(bin: BinRecord) -> ImageBin {
    let portable = !bin.is_of_host();
    let BinRecord { name, host, safe, description, usage, image, shell, builtin } = bin;
    let builtin = builtin.map(|program| format!("builtin:{program}"));
    let source = image.or(builtin).unwrap_or_else(|| format!("host:{host}"));
    ImageBin { name, source, portable, safe, description, usage, shell }
}

/// CONFIG keys that the stock runtime does not read, and that look like those it does.
fn misspelt_configs(record: &ImageRecord) -> Vec<String> {
    if record.runtime.is_some() || record.runtime_image.is_some() {
        return Vec::new();
    }
    let declared = record.declared.iter().map(|config| config.key.as_str());
    let unknown = declared.filter(|key| !CONFIG_KEYS.contains(key));
    let misspelt = unknown.filter_map(|key| Some((key, nearest(key, CONFIG_KEYS.into_iter())?)));
    let warning = |(key, near)| {
        format!("CONFIG {key}: the stock runtime has no such key and ignores it; did you mean `{near}`?")
    };
    misspelt.map(warning).collect()
}

/// Everything about an image but the contents of its files and the secrets among its variables.
pub fn image_detail(
    summary: ImageSummary,
    record: ImageRecord,
    used_by: Vec<String>,
    blobs: Vec<BlobView>,
) -> ImageDetail {
    let agentfile = agentfile(&record.agentfile, &record.env);
    let warnings = misspelt_configs(&record);
    let configs = record.configs;
    let declared = record.declared.into_iter().map(|config| ImageConfig {
        value: configs.get(&config.key).cloned(),
        key: config.key,
        required: config.required,
        description: config.description,
    });
    ImageDetail {
        blobs,
        portable: record.runtime.is_none() && record.bins.iter().all(|bin| !bin.is_of_host()),
        image: image(summary),
        name: record.name,
        model: record.model,
        runtime: record.runtime_image.or(record.runtime.map(|program| format!("host:{program}"))),
        exec: record.exec,
        from: record.from,
        parents: record.parents,
        contexts: record
            .contexts
            .into_iter()
            .map(|ContextRecord { name, description, text }| ImageContext { name, description, text })
            .collect(),
        configs: declared.collect(),
        envs: record
            .env
            .into_iter()
            .map(|EnvRecord { key, value, description }| {
                let value = mask::shown(&key, &value).to_owned();
                ImageEnv { key, value, description }
            })
            .collect(),
        bins: record.bins.into_iter().map(image_bin).collect(),
        files: record
            .files
            .into_iter()
            .map(|file| ImageFile {
                bytes: if file.digest.is_some() { file.size } else { file.bytes.len() as u64 },
                name: file.name,
                description: file.description,
            })
            .collect(),
        labels: record.labels,
        limits: limits(record.limits),
        network: image_network(record.network),
        capabilities: record.capabilities.iter().map(|name| capability(name)).collect(),
        revival_policy: record
            .revival_policy
            .and_then(Policy::from_code)
            .map(|policy| policy.word().to_owned()),
        agentfile,
        used_by,
        warnings,
    }
}
