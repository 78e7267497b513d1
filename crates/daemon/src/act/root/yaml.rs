//! `etc/agent.yaml`: the documented description of an agent, for people and for runtimes. No value of its environment and
//! no path of the host's mounts stands in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lodge_core::record::ImageRecord;
use lodge_engine::SandboxPlan;
use serde::Serialize;

use super::contexts::Section;
use super::{configs, configured_env};
use crate::act::layout::Layout;

/// What the stock runtime is called.
const STOCK: &str = "lodge:runtime";

#[derive(Serialize)]
struct AgentYaml<'a> {
    id: &'a str,
    name: &'a str,
    model: &'a str,
    workspace: PathBuf,
    image: Provenance<'a>,
    runtime: Runtime,
    configs: BTreeMap<&'a str, &'a str>,
    capabilities: Vec<Described<'a>>,
    envs: Vec<Env<'a>>,
    mounts: Vec<Mount<'a>>,
    context: Vec<Context<'a>>,
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    exec: &'a [String],
}

#[derive(Serialize)]
struct Provenance<'a> {
    r#ref: &'a str,
    digest: &'a str,
}

#[derive(Serialize)]
struct Runtime {
    r#ref: String,
    digest: String,
    binary: PathBuf,
}

#[derive(Serialize)]
struct Described<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
}

#[derive(Serialize)]
struct Env<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
}

#[derive(Serialize)]
struct Mount<'a> {
    target: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    read_only: bool,
}

#[derive(Serialize)]
struct Context<'a> {
    name: &'a str,
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    binary: PathBuf,
    r#ref: &'a str,
    digest: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a str>,
}

pub(super) fn agent_yaml(
    layout: &Layout,
    plan: &SandboxPlan,
    image: &ImageRecord,
    sections: &[Section],
    stock: &Path,
) -> Result<String, serde_saphyr::SerializeError> {
    let env = configured_env(plan, image);
    let configs = configs(plan, image);
    let yaml = AgentYaml {
        id: plan.agent.as_str(),
        name: &plan.name,
        model: &plan.spec.model,
        workspace: layout.workspace(),
        image: Provenance { r#ref: &plan.image, digest: &plan.image_digest },
        runtime: runtime(layout, plan, stock),
        configs: configs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        capabilities: plan
            .spec
            .capabilities
            .iter()
            .map(|name| Described { name, description: None })
            .collect(),
        envs: env.iter().map(|var| Env { key: &var.key, description: var.description.as_deref() }).collect(),
        mounts: plan
            .spec
            .mounts
            .iter()
            .map(|mount| Mount {
                target: layout.path(&mount.target),
                description: mount.description.as_deref(),
                read_only: mount.read_only,
            })
            .collect(),
        context: sections
            .iter()
            .map(|section| Context {
                name: &section.name,
                file: layout.path("etc/context").join(section.file()),
                description: section.description.as_deref(),
            })
            .collect(),
        tools: plan
            .spec
            .tools
            .iter()
            .map(|tool| Tool {
                name: &tool.name,
                description: &tool.description,
                binary: layout.tool(&tool.name),
                r#ref: &tool.source,
                digest: &tool.digest,
                usage: tool.usage.as_deref(),
            })
            .collect(),
        exec: &image.exec,
    };
    serde_saphyr::to_string(&yaml)
}

/// The stock one is stored under its digest.
fn runtime(layout: &Layout, plan: &SandboxPlan, stock: &Path) -> Runtime {
    let binary = layout.runtime();
    match &plan.spec.runtime {
        Some(own) => Runtime { r#ref: own.source.clone(), digest: own.digest.clone(), binary },
        None => {
            let name = stock.file_name().unwrap_or_default().to_string_lossy();
            let hex = name.rsplit('-').next().unwrap_or_default();
            Runtime { r#ref: STOCK.to_owned(), digest: format!("sha256:{hex}"), binary }
        }
    }
}
