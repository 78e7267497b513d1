//! Changing an agent in place: everything that can be wrong is found before anything is recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use lodge_core::lineage::Policy;
use lodge_core::record::{AgentSpec, ImageRecord, LimitsRecord, MountRecord};
use lodge_image::agentfile;
use lodge_image::registry::TransferWatch;
use lodge_proto::{AgentUpdateParams, ErrorBody};

use super::create::{
    AgentImage, ImageSource, check_env, check_model, choose, host_runtime, image_runtime, mounts, policy,
    spec_of,
};
use super::methods::{PreparedChange, ask_prepared, internal, one_agent};
use crate::images::record::limits_record;
use crate::shell::Shell;
use lodge_engine::{AgentCommand, AgentImageChange, Answer, Change, Command, RequestKey, Update};

pub(super) async fn update(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: AgentUpdateParams,
    watch: Arc<dyn TransferWatch>,
) -> Result<Answer, ErrorBody> {
    ask_prepared(shell, key, move |shell| prepare(shell, &given, watch)).await
}

fn prepare(
    shell: &Shell,
    given: &AgentUpdateParams,
    watch: Arc<dyn TransferWatch>,
) -> Result<PreparedChange, ErrorBody> {
    if (AgentUpdateParams { agent: String::new(), request_id: None, ..given.clone() })
        == AgentUpdateParams::default()
    {
        return Err(ErrorBody::new("params.invalid", "there is nothing to change").hint(
            "name at least one of model, env, configs, labels, mounts, limits, revival_policy and an image",
        ));
    }
    let (row, record) = shell.read_here(|at| {
        let row = one_agent(at, &given.agent)?.row;
        let now = row.next.as_ref().map_or(&row.image_digest, |next| &next.image_digest);
        let record = at.store.image(now).map_err(internal)?.unwrap_or_default();
        Ok::<_, ErrorBody>((row, record))
    })?;
    let (limits, limit_policy) = limits(&given.limits)?;
    let named = given.revival_policy.as_deref().map(policy).transpose()?;
    check_env(given.env.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))))?;
    if let Some(model) = &given.model {
        check_model(shell, model)?;
    }
    let before = row.next.as_ref().map_or(&row.spec.mounts, |next| &next.spec.mounts);
    let staying: Vec<MountRecord> =
        before.iter().filter(|mount| !given.unmounts.contains(&mount.target)).cloned().collect();
    let mut change = Change {
        image: None,
        model: given.model.clone(),
        env: given.env.clone(),
        configs: given.configs.clone(),
        labels: given.labels.clone(),
        mounts: mounts(shell, &given.mounts, &staying)?,
        unmounts: given.unmounts.clone(),
        limits,
        revival_policy: named.or(limit_policy),
    };
    let spec = row.next.map_or(row.spec, |next| next.spec);
    let chosen = new_image(shell, given, &record, &mut change, watch)?;
    let after = chosen.as_ref().map_or(&record, |chosen| &chosen.record);
    check_configs((&record, after), &spec, &given.configs)?;
    let (image, pins) = chosen.map_or((None, None), |chosen| (Some(chosen.image), chosen.pins));
    let command = Command::Agent(AgentCommand::Update(Box::new(Update { agent: row.id, change, image })));
    Ok(PreparedChange { command, pins: pins.into_iter().collect() })
}

/// The named image, and the default settings of an agent of the old and of the new image.
fn new_image(
    shell: &Shell,
    given: &AgentUpdateParams,
    record: &ImageRecord,
    change: &mut Change,
    watch: Arc<dyn TransferWatch>,
) -> Result<Option<AgentImage>, ErrorBody> {
    let AgentUpdateParams { path, content, image, build_args, .. } = given;
    if path.is_none() && content.is_none() && image.is_none() {
        return match build_args.is_empty() {
            true => Ok(None),
            false => Err(ErrorBody::new("params.invalid", "build arguments need an image to build")
                .hint("name a directory or an Agentfile with them")),
        };
    }
    let (path, content, image) = (path.as_deref(), content.as_deref(), image.as_deref());
    let chosen = choose(shell, ImageSource { path, content, image, build_args }, watch)?;
    change.image = Some(AgentImageChange {
        name: chosen.named.clone(),
        digest: chosen.image.row.digest.clone(),
        old: Box::new(by_itself(record)),
        new: Box::new(spec_of(shell, &chosen.record)?),
    });
    Ok(Some(chosen))
}

/// What of an agent came with its image. Its programs may be gone by now: they go with the image in any case.
fn by_itself(record: &ImageRecord) -> AgentSpec {
    AgentSpec {
        model: record.model.clone().unwrap_or_default(),
        labels: record.labels.clone(),
        revival_policy: record.revival_policy,
        limits: record.limits,
        capabilities: record.capabilities.clone(),
        runtime: match (&record.runtime_image, &record.runtime) {
            (Some(image), _) => Some(image_runtime(image)),
            (None, program) => program.as_deref().map(host_runtime),
        },
        ..AgentSpec::default()
    }
}

/// No value is missing afterwards that the image asks for and that was not missing before.
fn check_configs(
    (before, after): (&ImageRecord, &ImageRecord),
    spec: &AgentSpec,
    given: &BTreeMap<String, Option<String>>,
) -> Result<(), ErrorBody> {
    let mut configs = spec.configs.clone();
    for (key, value) in given {
        match value {
            Some(value) => drop(configs.insert(key.clone(), value.clone())),
            None => drop(configs.remove(key)),
        }
    }
    let lacked: Vec<&str> = before.unset(&spec.configs).collect();
    match after.unset(&configs).find(|key| !lacked.contains(key)) {
        None => Ok(()),
        Some(key) => {
            Err(ErrorBody::new("params.invalid", format!("CONFIG {key} is required and has no value"))
                .hint(format!("set it with `--config {key}=value`")))
        }
    }
}

pub(super) fn limits(
    given: &BTreeMap<String, String>,
) -> Result<(Option<LimitsRecord>, Option<Policy>), ErrorBody> {
    let read = given.iter().map(|(key, value)| {
        agentfile::read_limit(key, value).map_err(|mistake| {
            ErrorBody::new("params.invalid", mistake.to_string())
                .hint(format!("expected {}", mistake.expected()))
        })
    });
    let read = read.collect::<Result<Vec<_>, _>>()?;
    Ok(limits_record(read.iter()))
}
