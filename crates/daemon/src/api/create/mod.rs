//! Creating an agent: everything that can be wrong is found before anything is recorded.

mod build;
mod env;
mod mounts;
mod record;
mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use lodge_core::lineage::Policy;
use lodge_core::record::{AgentSpec, ImageRecord};
use lodge_image::agentfile::CAPABILITIES;
use lodge_model::ProvidersError;
use lodge_proto::{AgentCreateParams, ErrorBody};
use serde_json::Value;

pub(in crate::api) use self::build::{Built, Source, build};
pub(in crate::api) use self::env::check_env;
pub(in crate::api) use self::mounts::mounts;
pub(in crate::api) use self::record::limits_record;
pub(in crate::api) use self::tools::named_runtime;
use self::tools::{find_runtime, find_tool};
use super::images;
use super::methods::ask_prepared;
use crate::engine::{Command, NameChoice, NewAgent, RequestKey};
use crate::shell::Shell;

/// The name of an image, and of an agent, that has none from anywhere.
const NAME_DEFAULT: &str = "agent";

pub(super) async fn create(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: AgentCreateParams,
) -> Result<Value, ErrorBody> {
    let prepare = |shell: &Shell| Ok(Command::CreateAgent(Box::new(prepare(shell, given)?)));
    ask_prepared(shell, key, prepare).await
}

/// An image that an agent is made of.
#[derive(Debug, Clone)]
pub(in crate::api) struct Chosen {
    pub record: ImageRecord,
    pub digest: String,
    /// What the agent's image is called.
    pub named: String,
    /// Names that mean it from now on.
    pub tags: Vec<String>,
    /// What an agent is called that nobody names.
    name: String,
}

/// Builds an image, which is then called `<name>:latest` by its own NAME or its directory's, or finds one that was built.
pub(in crate::api) fn choose(
    shell: &Shell,
    path: Option<&str>,
    content: Option<&str>,
    image: Option<&str>,
    build_args: &BTreeMap<String, String>,
) -> Result<Chosen, ErrorBody> {
    let source = match (path, content, image) {
        (Some(path), None, None) => Source::Path(path),
        (None, Some(content), None) => Source::Content(content),
        (None, None, Some(image)) if build_args.is_empty() => {
            let images::Found { digest, named, record } = images::find(shell, image)?;
            let name = record.name.clone().unwrap_or_else(|| NAME_DEFAULT.to_owned());
            return Ok(Chosen { record, digest, named, tags: Vec::new(), name });
        }
        (None, None, Some(image)) => {
            return Err(ErrorBody::new("params.invalid", format!("`{image}` is built already"))
                .hint("build arguments belong to `lodge image build`, or to the run of a directory"));
        }
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) | (None, None, None) => {
            return Err(ErrorBody::new("params.invalid", "name exactly one of `path`, `content` and `image`")
                .hint("`path` is a directory or an Agentfile of this host, `content` an Agentfile's text, `image` the name of a local image"));
        }
    };
    let Built { record, digest, called } = build(shell, &source, build_args)?;
    let called = called.unwrap_or_else(|| NAME_DEFAULT.to_owned());
    let named = format!("{called}:latest");
    let name = record.name.clone().unwrap_or(called);
    Ok(Chosen { record, digest, tags: vec![named.clone()], named, name })
}

/// What an image alone makes of an agent on this host. Without a MODEL its model is empty.
pub(in crate::api) fn spec_of(record: &ImageRecord) -> Result<AgentSpec, ErrorBody> {
    Ok(AgentSpec {
        model: record.model.clone().unwrap_or_default(),
        labels: record.labels.clone(),
        tools: record.bins.iter().map(find_tool).collect::<Result<_, _>>()?,
        revival_policy: record.revival_policy,
        limits: record.limits,
        network: record.network.clone(),
        runtime: record.runtime.as_deref().map(find_runtime).transpose()?,
        capabilities: record.capabilities.clone(),
        ..AgentSpec::default()
    })
}

fn prepare(shell: &Shell, given: AgentCreateParams) -> Result<NewAgent, ErrorBody> {
    let AgentCreateParams { path, content, image, build_args, .. } = &given;
    let Chosen { record, digest, named, tags, name } =
        choose(shell, path.as_deref(), content.as_deref(), image.as_deref(), build_args)?;
    let mut spec = spec_of(&record)?;
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
    if let Some(word) = &given.revival_policy {
        spec.revival_policy = Some(policy(word)?.code());
    }
    if let Some(runtime) = &given.runtime {
        spec.runtime = Some(find_runtime(host_program(runtime)?)?);
    }
    add_capabilities(&mut spec.capabilities, given.capabilities)?;
    Ok(NewAgent {
        name: given.name.map_or(NameChoice::Like(name), NameChoice::Exactly),
        image: named,
        image_digest: digest,
        record,
        tags,
        spec,
    })
}

/// Refuses what can never name a model. Whether somebody offers it is found out when the agent starts.
pub(in crate::api) fn check_model(shell: &Shell, model: &str) -> Result<(), ErrorBody> {
    match shell.providers.resolve(model) {
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
            .hint("revive goes on with the work of a process that died, reap drops it, ask waits for you")
    })
}

/// The program of a runtime that was named beside the image.
fn host_program(runtime: &str) -> Result<&str, ErrorBody> {
    runtime.strip_prefix("host:").ok_or_else(|| {
        ErrorBody::new(
            "params.invalid",
            format!("`{runtime}` is no program of this host: a runtime from an image is not supported by this release"),
        )
        .hint("write it as `host:/path/program`")
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
