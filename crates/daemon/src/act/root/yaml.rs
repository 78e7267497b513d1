//! `etc/agent.yaml`: the documented description of an agent, for people and for runtimes. It contains no value of the
//! environment and no host path of a mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lodge_core::record::ImageRecord;
use lodge_engine::SandboxPlan;
use serde::Serialize;

use super::contexts::Section;
use super::{configs, configured_env};
use crate::act::layout::Layout;

/// The reference of the stock runtime.
const STOCK: &str = "lodge:runtime";

#[derive(Serialize)]
struct AgentYaml<'a> {
    id: &'a str,
    name: &'a str,
    model: &'a str,
    workspace: PathBuf,
    image: Provenance<'a>,
    runtime: YamlRuntime,
    configs: BTreeMap<&'a str, &'a str>,
    capabilities: Vec<YamlCapability<'a>>,
    envs: Vec<YamlEnv<'a>>,
    mounts: Vec<YamlMount<'a>>,
    context: Vec<YamlContext<'a>>,
    tools: Vec<YamlTool<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    exec: &'a [String],
}

#[derive(Serialize)]
struct Provenance<'a> {
    r#ref: &'a str,
    digest: &'a str,
}

#[derive(Serialize)]
struct YamlRuntime {
    r#ref: String,
    digest: String,
    binary: PathBuf,
}

#[derive(Serialize)]
struct YamlCapability<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
}

#[derive(Serialize)]
struct YamlEnv<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
}

#[derive(Serialize)]
struct YamlMount<'a> {
    target: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    read_only: bool,
}

#[derive(Serialize)]
struct YamlContext<'a> {
    name: &'a str,
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
}

#[derive(Serialize)]
struct YamlTool<'a> {
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
        model: &plan.settings.model,
        workspace: layout.workspace(),
        image: Provenance { r#ref: &plan.image, digest: &plan.image_digest },
        runtime: runtime(layout, plan, stock),
        configs: configs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        capabilities: plan
            .settings
            .capabilities
            .iter()
            .map(|name| YamlCapability { name, description: None })
            .collect(),
        envs: env
            .iter()
            .map(|var| YamlEnv { key: &var.key, description: var.description.as_deref() })
            .collect(),
        mounts: plan
            .settings
            .mounts
            .iter()
            .map(|mount| YamlMount {
                target: layout.path(&mount.target),
                description: mount.description.as_deref(),
                read_only: mount.read_only,
            })
            .collect(),
        context: sections
            .iter()
            .map(|section| YamlContext {
                name: &section.name,
                file: layout.path("etc/context").join(section.file()),
                description: section.description.as_deref(),
            })
            .collect(),
        tools: plan
            .settings
            .tools
            .iter()
            .map(|tool| YamlTool {
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

/// The file name of the stock runtime contains its digest.
fn runtime(layout: &Layout, plan: &SandboxPlan, stock: &Path) -> YamlRuntime {
    let binary = layout.runtime();
    match &plan.settings.runtime {
        Some(own) => YamlRuntime { r#ref: own.source.clone(), digest: own.digest.clone(), binary },
        None => {
            let name = stock.file_name().unwrap_or_default().to_string_lossy();
            let hex = name.rsplit('-').next().unwrap_or_default();
            YamlRuntime { r#ref: STOCK.to_owned(), digest: format!("sha256:{hex}"), binary }
        }
    }
}
