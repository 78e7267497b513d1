//! An agent's root on disk. Every start creates it again from the image, except for the agent's own files.
//!
//! The sandbox is down meanwhile, but its programs wrote here before: links are never followed, and Lodge's directories are
//! replaced, not merged.

mod contexts;
mod etc;
pub(crate) mod mask;
mod tree;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lodge_core::AgentId;
use lodge_core::record::{EnvRecord, FileRecord, ImageRecord, MountRecord};
use lodge_engine::{SandboxPlan, SandboxSettings};
use lodge_exec::{Bind, BindOwner};

pub(super) use self::contexts::contexts;
pub(super) use self::etc::hostname;
use self::tree::{clear, link, own_dir, put, put_script};
use super::layout::{BIN_IMAGES, BUILTIN, Layout, RUNTIME, SHELL};
use crate::host_trees::{HOST_PATH, HostTrees, link_target};
use crate::images::CheckedPrograms;

/// Lodge's directories of the root, created again at every start. From `proc` on they are mount points, or links to those.
const OURS: [&str; 13] =
    ["etc", "usr", "tmp", "opt", "proc", "dev", "sys", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Directories that the agent's programs may write to, and their subdirectories that every start creates.
pub(super) const THEIRS: [&str; 4] = ["workspace", "tmp", "home", "var"];
const IN_THEIRS: [&str; 5] = ["home/.config", "home/.cache", "home/.local", "home/.local/share", "var/lib"];
/// Directories that a mount covers. A link from the root's path on the host cannot be in them.
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

/// Where the contents of an image's files come from.
pub(super) struct FileSource<'f> {
    /// Reads and verifies the contents of a file.
    pub contents: &'f dyn Fn(&FileRecord) -> Result<Vec<u8>, String>,
    /// Whether the disk has space for this many bytes.
    pub room: &'f dyn Fn(u64) -> bool,
}

pub(super) fn root_of(data_dir: &Path, agent: &AgentId) -> PathBuf {
    data_dir.join("agents").join(agent.as_str())
}

pub(super) fn log_of(data_dir: &Path, agent: &AgentId) -> PathBuf {
    data_dir.join("logs").join(format!("{agent}.log"))
}

/// What the root of any sandbox is created from.
pub(super) struct RootPlan<'p> {
    /// The name of the sandbox's host, before it is made one that Linux accepts.
    pub name: &'p str,
    pub uid: Option<u32>,
    /// Mounts, tools and network.
    pub settings: &'p SandboxSettings,
}

impl<'p> RootPlan<'p> {
    fn of(plan: &'p SandboxPlan) -> RootPlan<'p> {
        RootPlan { name: &plan.name, uid: plan.uid, settings: &plan.settings }
    }
}

/// What an agent's root is created from.
pub(super) struct RootInputs<'m> {
    pub plan: &'m SandboxPlan,
    pub image: &'m ImageRecord,
    /// The path of the stock runtime in the state directory.
    pub runtime: &'m Path,
    pub host: &'m HostTrees,
}

/// Creates the root. Idempotent.
pub(super) fn make(root: &Path, inputs: &RootInputs<'_>, files: &FileSource<'_>) -> Result<(), RootError> {
    let RootInputs { plan, image, host, .. } = *inputs;
    make_tree(root, &RootPlan::of(plan), host)?;
    for ours in ["etc/context", "etc/data"] {
        own_dir(&root.join(ours), None)?;
    }
    put(&root.join("etc/Agentfile"), &image.agentfile)?;
    put(&root.join(RUNTIME), b"")?;
    put_files(&root.join("etc/data"), image, files)?;
    describe(root, &Layout::private(), inputs)
}

/// Creates the root of a standalone sandbox, and the directory of its logs, which is bound at `inside`. Idempotent.
pub(super) fn make_standalone(
    root: &Path,
    logs: &Path,
    inside: &str,
    plan: &RootPlan<'_>,
    host: &HostTrees,
) -> Result<(), RootError> {
    make_tree(root, plan, host)?;
    own_dir(logs, None)?;
    // Programs of the sandbox can write to `var`: links that they left there are replaced.
    let place = root.join(inside);
    above(root, &place).into_iter().try_for_each(|dir| own_dir(dir, plan.uid))?;
    own_dir(&place, None)
}

/// Creates what the roots of agents and of standalone sandboxes have in common.
fn make_tree(root: &Path, plan: &RootPlan<'_>, host: &HostTrees) -> Result<(), RootError> {
    plan.settings.mounts.iter().try_for_each(check_mount)?;
    own_dir(root, None)?;
    for ours in OURS {
        clear(&root.join(ours))?;
    }
    for ours in ["etc", "opt", "opt/bins", "opt/lodge"] {
        own_dir(&root.join(ours), None)?;
    }
    for theirs in THEIRS.iter().chain(&IN_THEIRS) {
        own_dir(&root.join(theirs), plan.uid)?;
    }
    // `var/tmp` is cleared like `tmp`, and is on the same file system.
    link(Path::new("../tmp"), &root.join("var/tmp"))?;
    etc::make(&root.join("etc"), plan)?;
    put_tools(root, plan)?;
    put_links(root, plan, host)?;
    make_mount_points(root, plan, host)?;
    plan.settings.mounts.iter().try_for_each(|mount| make_target(root, plan, mount))
}

/// Writes the files that describe the agent to its model and its runtime, with the paths of `layout`.
pub(super) fn describe(root: &Path, layout: &Layout, inputs: &RootInputs<'_>) -> Result<(), RootError> {
    let RootInputs { plan, image, runtime, .. } = *inputs;
    let sections = contexts(layout, plan, image);
    // A sandbox without a private root may run already. Links that its programs left here are not followed.
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

/// Creates one directory with all tools by name. Each is a link to a program of the host, or to the mount point of a program
/// from an image.
fn put_tools(root: &Path, plan: &RootPlan<'_>) -> Result<(), RootError> {
    if plan.settings.tools.iter().any(|tool| tool.image.is_some()) {
        own_dir(&root.join(BIN_IMAGES), None)?;
    }
    for tool in &plan.settings.tools {
        let place = root.join("opt/bins").join(&tool.name);
        match (&tool.image, &tool.builtin) {
            (Some(_), _) => {
                let program = Path::new(&tool.name).join(&tool.name);
                own_dir(&root.join(BIN_IMAGES).join(&tool.name), None)?;
                // The program is bound over this file, so that no path of the store is visible in a sandbox.
                put(&root.join(BIN_IMAGES).join(&program), b"")?;
                link(&Path::new("../bin-images").join(program), &place)?;
            }
            (None, Some(program)) => {
                let program = Path::new(BUILTIN).join(program);
                own_dir(&root.join(BUILTIN), None)?;
                put(&root.join(&program), b"")?;
                link(&Path::new("../..").join(program), &place)?;
            }
            (None, None) if tool.shell => {
                put_script(&root.join(SHELL), &shell_script(&tool.path))?;
                link(&Path::new("../..").join(SHELL), &place)?;
            }
            (None, None) => link(&link_target(Path::new(&tool.path)), &place)?,
        }
    }
    Ok(())
}

/// The tool of `SHELL host`: the host's shell, whose command lines find the host's programs behind the agent's own tools. Only
/// the shell and what it starts have this `PATH`; the environment of the agent stays as it is documented.
fn shell_script(shell: &str) -> String {
    let places = HOST_PATH.join(":");
    format!(
        "#!{shell}\ncase \":$PATH:\" in *:{places}:*) ;; *) PATH=\"$PATH:{places}\" ;; esac\nexport PATH\nexec {shell} \"$@\"\n"
    )
}

/// Creates the links that programs expect: to system directories of the host, to a shell, and from the root's path on the
/// host.
fn put_links(root: &Path, plan: &RootPlan<'_>, host: &HostTrees) -> Result<(), RootError> {
    for (place, to) in &host.links {
        let place = root.join(place.strip_prefix("/").unwrap_or(place));
        make_parents(root, plan, &place)?;
        link(to, &place)?;
    }
    if host.trees.is_empty() {
        for (tool, dir) in [("sh", "bin"), ("env", "usr/bin")] {
            if plan.settings.tools.iter().any(|known| known.name == tool) {
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

/// Creates the mount points for parts of the system. The keeper creates none, so it needs no space on the disk.
fn make_mount_points(root: &Path, plan: &RootPlan<'_>, host: &HostTrees) -> Result<(), RootError> {
    for place in ["proc", "dev", "sys"] {
        own_dir(&root.join(place), None)?;
    }
    for tree in &host.trees {
        let place = root.join(tree.strip_prefix("/").unwrap_or(tree));
        make_parents(root, plan, &place)?;
        if tree.is_dir() {
            own_dir(&place, owner(root, plan, &place))?;
        } else if fs::symlink_metadata(&place).map_or(true, |found| !found.is_file()) {
            clear(&place)?;
            put(&place, b"")?;
        }
    }
    Ok(())
}

/// Creates the parent directories of a path in the root. Links among them are replaced.
fn make_parents(root: &Path, plan: &RootPlan<'_>, place: &Path) -> Result<(), RootError> {
    above(root, place).into_iter().try_for_each(|dir| own_dir(dir, owner(root, plan, dir)))
}

/// The owner of a directory: the agent's user if its programs may write there.
fn owner(root: &Path, plan: &RootPlan<'_>, dir: &Path) -> Option<u32> {
    let is_theirs = THEIRS.iter().any(|theirs| dir.starts_with(root.join(theirs)));
    if is_theirs { plan.uid } else { None }
}

/// The directories between the root and `target`, topmost first.
fn above<'t>(root: &Path, target: &'t Path) -> Vec<&'t Path> {
    let above = target.ancestors().skip(1).take_while(|dir| *dir != root && dir.starts_with(root));
    let mut above: Vec<&Path> = above.collect();
    above.reverse();
    above
}

/// Writes the files of an image. If one fails, all are removed, so that a failed start takes no space.
fn put_files(dir: &Path, image: &ImageRecord, files: &FileSource<'_>) -> Result<(), RootError> {
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
        // An error here is ignored: the next attempt clears the directory, and the caller needs the first error.
    }
    done
}

/// Checks that the source of a mount exists and still resolves to the path that was recorded when the agent was created.
fn check_mount(mount: &MountRecord) -> Result<(), RootError> {
    let (host, target) = (mount.host.clone(), mount.target.clone());
    match fs::canonicalize(&mount.host) {
        Ok(real) if real.as_os_str() == mount.host.as_str() => Ok(()),
        Ok(leads_to) => Err(RootError::Moved { host, target, leads_to }),
        Err(cause) => Err(RootError::Mount { host, target, cause }),
    }
}

/// Creates the mount point of a mount.
fn make_target(root: &Path, plan: &RootPlan<'_>, mount: &MountRecord) -> Result<(), RootError> {
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

/// Drops the contents that are on disk, and keeps the names and the rest of the image.
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

/// The binds of the sandbox: `/opt` (read-only), the runtime, programs from images and of the daemon, and the operator's mounts. A checked
/// program is bound only if the file is still the one that was checked.
pub(super) fn binds(root: &Path, plan: &SandboxPlan, runtime: &Path, checked: &CheckedPrograms) -> Vec<Bind> {
    let read_only = |source: PathBuf, target: PathBuf| {
        let checked = checked.get(&source).copied();
        Bind::read_only(source, target).checked(checked)
    };
    let stock = runtime;
    let runtime = plan.settings.runtime.as_ref().map_or(stock, |own| Path::new(&own.path));
    let mut binds = vec![
        read_only(root.join("opt"), root.join("opt")),
        read_only(runtime.to_owned(), root.join(RUNTIME)),
    ];
    binds.extend(spec_binds(root, &RootPlan::of(plan), stock, checked));
    binds
}

/// The binds of programs from images and of the daemon, and of the operator's mounts.
pub(super) fn spec_binds(
    root: &Path,
    plan: &RootPlan<'_>,
    stock: &Path,
    checked: &CheckedPrograms,
) -> Vec<Bind> {
    let read_only = |source: PathBuf, target: PathBuf| {
        let checked = checked.get(&source).copied();
        Bind::read_only(source, target).checked(checked)
    };
    let mut binds = Vec::new();
    let tools = plan.settings.tools.iter().filter(|tool| tool.image.is_some());
    binds.extend(tools.map(|tool| {
        let place = root.join(BIN_IMAGES).join(&tool.name).join(&tool.name);
        read_only(PathBuf::from(&tool.path), place)
    }));
    // A program that several tools are is bound once.
    let builtins: BTreeSet<&str> =
        plan.settings.tools.iter().filter_map(|tool| tool.builtin.as_deref()).collect();
    binds.extend(
        builtins.into_iter().map(|program| read_only(stock.to_owned(), root.join(BUILTIN).join(program))),
    );
    binds.extend(plan.settings.mounts.iter().map(|mount| Bind {
        source: PathBuf::from(&mount.host),
        target: mount_target(root, &mount.target),
        read_only: mount.read_only,
        checked: None,
        owner: mount.owner.as_ref().map(|owner| BindOwner { uid: owner.uid, gid: owner.gid }),
    }));
    binds
}

fn mount_target(root: &Path, target: &str) -> PathBuf {
    root.join(target.trim_start_matches('/'))
}

/// The complete environment of every program in the sandbox.
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

/// The configured variables by key. Those of the agent override those of the image.
fn configured_env(plan: &SandboxPlan, image: &ImageRecord) -> Vec<EnvRecord> {
    let mut all: BTreeMap<&str, EnvRecord> = BTreeMap::new();
    for var in &image.env {
        all.insert(&var.key, var.clone());
    }
    for (key, value) in &plan.settings.env {
        let description = all.get(key.as_str()).and_then(|var| var.description.clone());
        all.insert(key, EnvRecord { key: key.clone(), value: value.clone(), description });
    }
    // Reserved keys are refused when they are set, but an older release may have accepted some.
    all.into_values().filter(|var| lodge_image::agentfile::check_env_key(&var.key).is_ok()).collect()
}

/// The effective settings. Those of the agent override those of the image.
pub(super) fn configs(plan: &SandboxPlan, image: &ImageRecord) -> BTreeMap<String, String> {
    let mut configs = image.configs.clone();
    configs.extend(plan.settings.configs.clone());
    configs
}

/// Removes these files and trees.
pub(super) fn remove_all(paths: &[&Path]) -> Result<(), RootError> {
    paths.iter().try_for_each(|path| clear(path))
}

/// Removes all files of a removed agent.
pub(super) fn remove(data_dir: &Path, agent: &AgentId) -> Result<(), RootError> {
    clear(&root_of(data_dir, agent))?;
    clear(&log_of(data_dir, agent))
}

#[cfg(test)]
mod tests;
