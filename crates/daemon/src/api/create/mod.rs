//! Creating an agent: everything that can be wrong is found before anything is recorded.

mod build;
mod env;
mod mount_owner;
mod mounts;
mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use lodge_core::lineage::Policy;
use lodge_core::record::{
    AgentSpec, ImageContents, ImageKind, ImageRecord, ImageRow, ImageState, NetworkRecord,
};
use lodge_image::agentfile::CAPABILITIES;
use lodge_image::registry::TransferWatch;
use lodge_image::{Pins, RemoteImage};
use lodge_model::ProvidersError;
use lodge_proto::{AgentCreateParams, ErrorBody};
use tokio::runtime::Handle;

pub(in crate::api) use self::build::{AgentfileSource, BuildPurpose, BuiltImage, ImageResolver, build};
pub(in crate::api) use self::env::check_env;
pub(in crate::api) use self::mounts::mounts;
use self::tools::{find_runtime, find_tools, runtime_named};
pub(in crate::api) use self::tools::{find_tool, host_runtime, image_runtime};
use super::methods::{PreparedChange, ask_prepared, internal};
use super::{images, update};
use crate::images::UnrecordedImages;
use crate::shell::Shell;
use crate::view::no_image;
use lodge_engine::{AgentCommand, Answer, Command, NameChoice, NewAgent, NewImage, RequestKey};

/// The name of an image, and of an agent, that has none from anywhere.
pub(in crate::api) const NAME_DEFAULT: &str = "agent";

pub(super) async fn create(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: AgentCreateParams,
    watch: Arc<dyn TransferWatch>,
) -> Result<Answer, ErrorBody> {
    ask_prepared(shell, key, move |shell| prepare(shell, given, watch)).await
}

/// The image of a request, named in one of three ways.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct ImageSource<'a> {
    pub path: Option<&'a str>,
    pub content: Option<&'a str>,
    pub image: Option<&'a str>,
    pub build_args: &'a BTreeMap<String, String>,
}

/// An image that an agent is made of.
#[derive(Debug)]
pub(in crate::api) struct AgentImage {
    pub record: ImageRecord,
    pub image: NewImage,
    /// What the agent's image is called.
    pub named: String,
    /// What is in the store for it, until it is recorded.
    pub pins: Option<Pins>,
    /// The default name of the agent.
    name: String,
}

/// Builds an image, which is then called `<name>:latest` by its own NAME or its directory's; finds one that was built; or
/// has one announced by its registry.
pub(in crate::api) fn choose(
    shell: &Shell,
    named: ImageSource<'_>,
    watch: Arc<dyn TransferWatch>,
) -> Result<AgentImage, ErrorBody> {
    let source = match (named.path, named.content, named.image) {
        (Some(path), None, None) => AgentfileSource::Path(path),
        (None, Some(content), None) => AgentfileSource::Content(content),
        (None, None, Some(image)) if named.build_args.is_empty() => return found_or_announced(shell, image),
        (None, None, Some(image)) => {
            return Err(ErrorBody::new("params.invalid", format!("`{image}` is built already"))
                .hint("build arguments belong to `lodge image build`, or to the run of a directory"));
        }
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) | (None, None, None) => {
            return Err(ErrorBody::new("params.invalid", "name exactly one of `path`, `content` and `image`")
                .hint("`path` is a directory or an Agentfile of this host, `content` an Agentfile's text, `image` the name of an image"));
        }
    };
    let BuiltImage { mut row, record, with, pins, called } =
        build(shell, &source, named.build_args, BuildPurpose::Agent, watch)?;
    let called = called.unwrap_or_else(|| NAME_DEFAULT.to_owned());
    let named = format!("{called}:latest");
    row.name.clone_from(&named);
    let name = record.name.clone().unwrap_or(called);
    let image = NewImage { row, with, tags: vec![named.clone()] };
    Ok(AgentImage { record, image, named, pins: Some(pins), name })
}

fn found_or_announced(shell: &Shell, given: &str) -> Result<AgentImage, ErrorBody> {
    match shell.read_here(|at| images::find(at, given)) {
        Err(error @ images::LookupError::NoImage { .. }) => {
            let remote = RemoteImage::read(given).map_err(images::LookupError::from)?;
            announced(shell, given, &remote.ok_or(error)?)
        }
        found => {
            let images::StoredAgentImage { digest, named, record } = found?;
            let summary = shell.reader.here(|store| store.image_summary(&digest)).map_err(internal)?;
            let summary = summary.ok_or_else(|| no_image(given))?;
            let row = ImageRow {
                digest,
                name: summary.name,
                bytes: summary.bytes,
                // If the image is removed before this is recorded, its contents are not pinned: they must be pulled
                // again.
                state: ImageState::Announced,
                contents: ImageContents::Agent(record.clone()),
            };
            let name = record.name.clone().unwrap_or_else(|| NAME_DEFAULT.to_owned());
            let image = NewImage { row, with: Vec::new(), tags: Vec::new() };
            Ok(AgentImage { record, image, named, pins: None, name })
        }
    }
}

/// Of an image in a registry what it says of itself: the rest comes when the agent is started.
fn announced(shell: &Shell, given: &str, remote: &RemoteImage) -> Result<AgentImage, ErrorBody> {
    let UnrecordedImages { row, with, pins } = Handle::current().block_on(shell.images.announce(remote))?;
    let record = match &row.contents {
        ImageContents::Agent(record) => record.clone(),
        ImageContents::Bin(_) => return Err(images::wrong_kind(ImageKind::Agent, given).into()),
    };
    let named = images::name_of(given, remote)?;
    let name = record.name.clone().unwrap_or_else(|| NAME_DEFAULT.to_owned());
    let image = NewImage { row, with, tags: vec![named.clone()] };
    Ok(AgentImage { record, image, named, pins: Some(pins), name })
}

/// What an image alone makes of an agent on this host. Without a MODEL its model is empty.
pub(in crate::api) fn spec_of(shell: &Shell, record: &ImageRecord) -> Result<AgentSpec, ErrorBody> {
    let runtime = match (&record.runtime_image, &record.runtime) {
        (Some(image), _) => Some(image_runtime(image)),
        (None, Some(program)) => Some(find_runtime(program)?),
        (None, None) => None,
    };
    Ok(AgentSpec {
        model: record.model.clone().unwrap_or_default(),
        labels: record.labels.clone(),
        tools: find_tools(shell, record)?,
        revival_policy: record.revival_policy,
        limits: record.limits,
        network: Some(record.network.clone().unwrap_or_else(NetworkRecord::by_default)),
        runtime,
        capabilities: record.capabilities.clone(),
        ..AgentSpec::default()
    })
}

fn prepare(
    shell: &Shell,
    given: AgentCreateParams,
    watch: Arc<dyn TransferWatch>,
) -> Result<PreparedChange, ErrorBody> {
    let named = ImageSource {
        path: given.path.as_deref(),
        content: given.content.as_deref(),
        image: given.image.as_deref(),
        build_args: &given.build_args,
    };
    let AgentImage { record, mut image, named, pins, name } = choose(shell, named, watch.clone())?;
    let mut spec = spec_of(shell, &record)?;
    if let Some(model) = given.model {
        spec.model = model;
    }
    if spec.model.is_empty() {
        return Err(ErrorBody::new("agentfile.no_model", "the Agentfile names no model")
            .hint("add `MODEL provider/model` to it, or give `--model provider/model`"));
    }
    check_model(shell, &spec.model)?;
    check_env(given.env.iter())?;
    spec.env = given.env;
    spec.configs = given.configs;
    spec.labels.extend(given.labels);
    spec.mounts = mounts(shell, &given.mounts, &[])?;
    let (limits, limit_policy) = update::limits(&given.limits)?;
    if let Some(limits) = limits {
        spec.limits = Some(spec.limits.unwrap_or_default().changed_by(limits));
    }
    spec.revival_policy = limit_policy.map(Policy::code).or(spec.revival_policy);
    if let Some(word) = &given.revival_policy {
        spec.revival_policy = Some(policy(word)?.code());
    }
    let mut held = vec![pins];
    if let Some(runtime) = &given.runtime {
        let (runtime, with, pins) = runtime_named(shell, runtime, watch)?;
        spec.runtime = Some(runtime);
        image.with.extend(with);
        held.push(pins);
    }
    add_capabilities(&mut spec.capabilities, given.capabilities)?;
    let name = given.name.map_or(NameChoice::Like(name), NameChoice::Exactly);
    let command =
        Command::Agent(AgentCommand::Create(Box::new(NewAgent { name, called: named, image, spec })));
    Ok(PreparedChange { command, pins: held.into_iter().flatten().collect() })
}

/// Refuses a text that can never name a model. Whether a provider offers the model is checked when the agent starts.
pub(in crate::api) fn check_model(shell: &Shell, model: &str) -> Result<(), ErrorBody> {
    match shell.providers().resolve(model) {
        Err(error @ ProvidersError::BadModelName { .. }) => {
            let body = ErrorBody::new(error.code(), error.to_string());
            Err(match error.hint() {
                Some(hint) => body.hint(hint),
                None => body,
            })
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

pub(in crate::api) fn policy(word: &str) -> Result<Policy, ErrorBody> {
    Policy::from_word(word).ok_or_else(|| {
        ErrorBody::new("params.invalid", format!("`{word}` is no revival policy"))
            .hint("`revive` continues the work of a process that died, `reap` drops it, `ask` waits for your decision")
    })
}

fn add_capabilities(known: &mut Vec<String>, given: Vec<String>) -> Result<(), ErrorBody> {
    for name in given {
        if !CAPABILITIES.contains(&name.as_str()) {
            return Err(ErrorBody::new("params.invalid", format!("there is no capability `{name}`"))
                .hint(format!("capabilities are {}", CAPABILITIES.join(", "))));
        }
        if !known.contains(&name) {
            known.push(name);
        }
    }
    Ok(())
}
