//! An agent's root on disk: made anew from its image at every start, except what is the agent's own.
//!
//! The sandbox is down while this runs, but it wrote here before: links are never followed, and directories of
//! ours are replaced, not merged.

mod contexts;
mod etc;
pub(crate) mod mask;
mod tree;
mod yaml;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lodge_core::AgentId;
use lodge_core::record::{EnvRecord, FileRecord, ImageRecord, MountRecord};
use lodge_engine::SandboxPlan;
use lodge_exec::Bind;

pub(super) use self::contexts::contexts;
pub(super) use self::etc::hostname;
use self::tree::{clear, link, own_dir, put};
use super::layout::{BIN_IMAGES, Layout, RUNTIME};
use crate::host_trees::{HostTrees, link_target};
use crate::images::CheckedPrograms;

/// Parts of the root that are Lodge's: made again at every start. The last ones are places to mount something at, or
/// links to it.
const OURS: [&str; 13] =
    ["etc", "usr", "tmp", "opt", "proc", "dev", "sys", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Directories that the agent's programs may write to, and those that are made in them.
pub(super) const THEIRS: [&str; 4] = ["workspace", "tmp", "home", "var"];
const IN_THEIRS: [&str; 5] = ["home/.config", "home/.cache", "home/.local", "home/.local/share", "var/lib"];
/// Places that something else covers, so that no link from the root's path on the host can be there.
const COVERED: [&str; 10] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "proc", "dev", "sys"];

#[derive(Debug, thiserror::Error)]
pub(super) enum RootError {
    #[error("could not make or remove {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("could not write agent.yaml")]
    Yaml {
        #[source]
        cause: serde_saphyr::SerializeError,
    },
    #[error("cannot mount {host} at {target}")]
    Mount {
        host: String,
        target: String,
        #[source]
        cause: io::Error,
    },
    #[error("cannot mount {host} at {target}: a link leads to {} now", leads_to.display())]
    Moved { host: String, target: String, leads_to: PathBuf },
    #[error("the file `{file}` that came with it cannot be had: {why}")]
    Contents { file: String, why: String },
    #[error("there is too little room on the disk for the {bytes} bytes of files that came with it")]
    NoRoom { bytes: u64 },
}

/// Where the files that came with an image are had from.
pub(super) struct Files<'f> {
    /// Reads the contents of one, checked; or says why not.
    pub contents: &'f dyn Fn(&FileRecord) -> Result<Vec<u8>, String>,
    /// Whether the disk has room for so many bytes.
    pub room: &'f dyn Fn(u64) -> bool,
}

pub(super) fn root_of(data_dir: &Path, agent: &AgentId) -> PathBuf {
    data_dir.join("agents").join(agent.as_str())
}

pub(super) fn log_of(data_dir: &Path, agent: &AgentId) -> PathBuf {
    data_dir.join("logs").join(format!("{agent}.log"))
}

/// What an agent's root is made of.
pub(super) struct Making<'m> {
    pub plan: &'m SandboxPlan,
    pub image: &'m ImageRecord,
    /// The stock runtime, as it is stored.
    pub runtime: &'m Path,
    pub host: &'m HostTrees,
}

/// Makes the root. Doing it twice gives the same.
pub(super) fn make(root: &Path, making: &Making<'_>, files: &Files<'_>) -> Result<(), RootError> {
    let Making { plan, image, host, .. } = *making;
    plan.spec.mounts.iter().try_for_each(check_mount)?;
    own_dir(root, None)?;
    for ours in OURS {
        clear(&root.join(ours))?;
    }
    for ours in ["etc", "etc/context", "etc/data", "opt", "opt/bins", "opt/lodge"] {
        own_dir(&root.join(ours), None)?;
    }
    for theirs in THEIRS.iter().chain(&IN_THEIRS) {
        own_dir(&root.join(theirs), plan.uid)?;
    }
    // Wiped like that, and one file system with it.
    link(Path::new("../tmp"), &root.join("var/tmp"))?;
    put(&root.join("etc/Agentfile"), &image.agentfile)?;
    put(&root.join(RUNTIME), b"")?;
    put_files(&root.join("etc/data"), image, files)?;
    etc::make(&root.join("etc"), plan)?;
    put_tools(root, plan)?;
    put_links(root, plan, host)?;
    put_places(root, plan, host)?;
    for mount in &plan.spec.mounts {
        make_target(root, plan, mount)?;
    }
    describe(root, &Layout::private(), making)
}

/// Writes the files that describe the agent to its model and its runtime, for programs that see its root as `layout` says.
pub(super) fn describe(root: &Path, layout: &Layout, making: &Making<'_>) -> Result<(), RootError> {
    let Making { plan, image, runtime, .. } = *making;
    let sections = contexts(layout, plan, image);
    // A sandbox without a root of its own may run already. Links that it left there are not followed.
    for dir in ["etc", "etc/context"] {
        own_dir(&root.join(dir), None)?;
    }
    for section in &sections {
        put(&root.join("etc/context").join(section.file()), section.text.as_bytes())?;
    }
    let yaml = yaml::agent_yaml(layout, plan, image, &sections, runtime);
    let yaml = yaml.map_err(|cause| RootError::Yaml { cause })?;
    put(&root.join("etc/agent.yaml"), yaml.as_bytes())
}

/// Every tool by its name in one directory: a link to a program of the host, or to where one of an image is bound.
fn put_tools(root: &Path, plan: &SandboxPlan) -> Result<(), RootError> {
    if plan.spec.tools.iter().any(|tool| tool.image.is_some()) {
        own_dir(&root.join(BIN_IMAGES), None)?;
    }
    for tool in &plan.spec.tools {
        let place = root.join("opt/bins").join(&tool.name);
        match tool.image {
            Some(_) => {
                let program = Path::new(&tool.name).join(&tool.name);
                own_dir(&root.join(BIN_IMAGES).join(&tool.name), None)?;
                // The program is bound over it: no path of the store leads into a sandbox.
                put(&root.join(BIN_IMAGES).join(&program), b"")?;
                link(&Path::new("../bin-images").join(program), &place)?;
            }
            None => link(&link_target(Path::new(&tool.path)), &place)?,
        }
    }
    Ok(())
}

/// Links that programs expect: to system directories of the host, to a shell, and from the root's path on the host.
fn put_links(root: &Path, plan: &SandboxPlan, host: &HostTrees) -> Result<(), RootError> {
    for (place, to) in &host.links {
        let place = root.join(place.strip_prefix("/").unwrap_or(place));
        make_way(root, plan, &place)?;
        link(to, &place)?;
    }
    if host.trees.is_empty() {
        for (tool, dir) in [("sh", "bin"), ("env", "usr/bin")] {
            if plan.spec.tools.iter().any(|known| known.name == tool) {
                own_dir(&root.join(dir), None)?;
                link(&Path::new("/opt/bins").join(tool), &root.join(dir).join(tool))?;
            }
        }
    }
    let Ok(former) = root.strip_prefix("/") else { return Ok(()) };
    if COVERED.iter().any(|place| former.starts_with(place)) {
        return Ok(());
    }
    let former = root.join(former);
    let is_theirs = |dir: &Path| THEIRS.iter().chain(&IN_THEIRS).any(|theirs| dir == root.join(theirs));
    let mut way = above(root, &former).into_iter().filter(|dir| !is_theirs(dir));
    way.try_for_each(|dir| own_dir(dir, None))?;
    link(Path::new("/"), &former)
}

/// Where the keeper mounts parts of the system: it finds every place, and needs no room on the disk to make one.
fn put_places(root: &Path, plan: &SandboxPlan, host: &HostTrees) -> Result<(), RootError> {
    for place in ["proc", "dev", "sys"] {
        own_dir(&root.join(place), None)?;
    }
    for tree in &host.trees {
        let place = root.join(tree.strip_prefix("/").unwrap_or(tree));
        make_way(root, plan, &place)?;
        if tree.is_dir() {
            own_dir(&place, owner(root, plan, &place))?;
        } else if fs::symlink_metadata(&place).map_or(true, |found| !found.is_file()) {
            clear(&place)?;
            put(&place, b"")?;
        }
    }
    Ok(())
}

/// The directories above a place of the root, each a real one.
fn make_way(root: &Path, plan: &SandboxPlan, place: &Path) -> Result<(), RootError> {
    above(root, place).into_iter().try_for_each(|dir| own_dir(dir, owner(root, plan, dir)))
}

/// Who owns a directory: the agent's user, if his programs may write to it.
fn owner(root: &Path, plan: &SandboxPlan, dir: &Path) -> Option<u32> {
    let is_theirs = THEIRS.iter().any(|theirs| dir.starts_with(root.join(theirs)));
    if is_theirs { plan.uid } else { None }
}

/// The directories between the root and `target`, the highest first.
fn above<'t>(root: &Path, target: &'t Path) -> Vec<&'t Path> {
    let above = target.ancestors().skip(1).take_while(|dir| *dir != root && dir.starts_with(root));
    let mut above: Vec<&Path> = above.collect();
    above.reverse();
    above
}

/// Writes the files that came with an image: all of them, or none that would take the room of others.
fn put_files(dir: &Path, image: &ImageRecord, files: &Files<'_>) -> Result<(), RootError> {
    let bytes = image.files.iter().map(|file| file.size.max(file.bytes.len() as u64)).sum();
    if bytes > 0 && !(files.room)(bytes) {
        return Err(RootError::NoRoom { bytes });
    }
    let put_one = |file: &FileRecord| {
        let contents = (files.contents)(file);
        let contents = contents.map_err(|why| RootError::Contents { file: file.name.clone(), why })?;
        put(&dir.join(&file.name), &contents)
    };
    let done = image.files.iter().try_for_each(put_one);
    if done.is_err() && clear(dir).is_err() {
        // The next attempt begins with that; why this one failed is what is to be told.
    }
    done
}

/// What was there when the agent was created may be gone since, or have been replaced by a way to somewhere else.
fn check_mount(mount: &MountRecord) -> Result<(), RootError> {
    let (host, target) = (mount.host.clone(), mount.target.clone());
    match fs::canonicalize(&mount.host) {
        Ok(real) if real.as_os_str() == mount.host.as_str() => Ok(()),
        Ok(leads_to) => Err(RootError::Moved { host, target, leads_to }),
        Err(cause) => Err(RootError::Mount { host, target, cause }),
    }
}

/// The place that a mount will cover.
fn make_target(root: &Path, plan: &SandboxPlan, mount: &MountRecord) -> Result<(), RootError> {
    let target = mount_target(root, &mount.target);
    above(root, &target).into_iter().try_for_each(|dir| own_dir(dir, plan.uid))?;
    if Path::new(&mount.host).is_dir() {
        own_dir(&target, plan.uid)?;
    } else if fs::symlink_metadata(&target).is_ok_and(|found| !found.is_file()) {
        clear(&target)?;
        put(&target, b"")?;
    } else if !target.exists() {
        put(&target, b"")?;
    }
    Ok(())
}

/// An image without the contents that are on disk already: what is left names them.
pub(super) fn without_contents(mut image: ImageRecord) -> ImageRecord {
    image.agentfile = Vec::new();
    for file in &mut image.files {
        file.bytes = Vec::new();
    }
    for context in &mut image.contexts {
        context.text = String::new();
    }
    image
}

/// What is bound into the sandbox beside its root: `/opt`, so that it cannot change it, the runtime, programs from
/// images, and the operator's mounts. A program that was checked is bound only if it is that file.
pub(super) fn binds(root: &Path, plan: &SandboxPlan, runtime: &Path, checked: &CheckedPrograms) -> Vec<Bind> {
    let read_only = |source: PathBuf, target: PathBuf| {
        let checked = checked.get(&source).copied();
        Bind { source, target, read_only: true, checked }
    };
    let runtime = plan.spec.runtime.as_ref().map_or(runtime, |own| Path::new(&own.path));
    let mut binds = vec![
        read_only(root.join("opt"), root.join("opt")),
        read_only(runtime.to_owned(), root.join(RUNTIME)),
    ];
    let tools = plan.spec.tools.iter().filter(|tool| tool.image.is_some());
    binds.extend(tools.map(|tool| {
        let place = root.join(BIN_IMAGES).join(&tool.name).join(&tool.name);
        read_only(PathBuf::from(&tool.path), place)
    }));
    binds.extend(plan.spec.mounts.iter().map(|mount| Bind {
        source: PathBuf::from(&mount.host),
        target: mount_target(root, &mount.target),
        read_only: mount.read_only,
        checked: None,
    }));
    binds
}

fn mount_target(root: &Path, target: &str) -> PathBuf {
    root.join(target.trim_start_matches('/'))
}

/// The whole environment of everything in the sandbox.
pub(super) fn environment(
    layout: &Layout,
    plan: &SandboxPlan,
    image: &ImageRecord,
) -> Vec<(OsString, OsString)> {
    let mut env = layout.variables();
    env.push(("LANG".into(), "C.UTF-8".into()));
    env.extend(configured_env(plan, image).into_iter().map(|var| (var.key.into(), var.value.into())));
    env
}

/// The variables that people set, by key: those of the image, and before them those of the agent.
fn configured_env(plan: &SandboxPlan, image: &ImageRecord) -> Vec<EnvRecord> {
    let mut all: BTreeMap<&str, EnvRecord> = BTreeMap::new();
    for var in &image.env {
        all.insert(&var.key, var.clone());
    }
    for (key, value) in &plan.spec.env {
        let description = all.get(key.as_str()).and_then(|var| var.description.clone());
        all.insert(key, EnvRecord { key: key.clone(), value: value.clone(), description });
    }
    // What is reserved was refused when it was written; an older release may have known of less.
    all.into_values().filter(|var| lodge_image::agentfile::check_env_key(&var.key).is_ok()).collect()
}

/// The settings in force: those of the image, and before them those of the agent.
pub(super) fn configs(plan: &SandboxPlan, image: &ImageRecord) -> BTreeMap<String, String> {
    let mut configs = image.configs.clone();
    configs.extend(plan.spec.configs.clone());
    configs
}

/// Removes everything of an agent that is gone.
pub(super) fn remove(data_dir: &Path, agent: &AgentId) -> Result<(), RootError> {
    clear(&root_of(data_dir, agent))?;
    clear(&log_of(data_dir, agent))
}

#[cfg(test)]
mod tests;
