//! An agent's root on disk: made anew from its image at every start, except what is the agent's own.
//!
//! The sandbox is down while this runs, but it wrote here before: links are never followed, and directories of
//! ours are replaced, not merged.

use std::ffi::{CStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lodge_core::record::{AgentRow, ImageRecord};
use lodge_exec::Bind;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chmodat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use serde::Serialize;

/// Where the runtime's program stands inside the root.
pub(super) const RUNTIME: &str = "usr/local/bin/runtime";

#[derive(Debug, thiserror::Error)]
#[error("could not make or remove {}", path.display())]
pub(super) struct RootError {
    path: PathBuf,
    #[source]
    cause: io::Error,
}

pub(super) fn root_of(data_dir: &Path, row: &AgentRow) -> PathBuf {
    data_dir.join("agents").join(row.id.as_str())
}

pub(super) fn log_of(data_dir: &Path, row: &AgentRow) -> PathBuf {
    data_dir.join("logs").join(format!("{}.log", row.id))
}

/// Makes the root. Doing it twice gives the same.
pub(super) fn make(root: &Path, row: &AgentRow, image: &ImageRecord) -> Result<(), RootError> {
    own_dir(root, None)?;
    for ours in ["etc", "usr", "tmp"] {
        clear(&root.join(ours))?;
    }
    for ours in ["etc", "etc/context", "etc/data", "usr", "usr/bin", "usr/local", "usr/local/bin"] {
        own_dir(&root.join(ours), None)?;
    }
    for theirs in [
        "workspace",
        "tmp",
        "home",
        "home/.config",
        "home/.cache",
        "home/.local",
        "home/.local/share",
        "var",
        "var/lib",
    ] {
        own_dir(&root.join(theirs), row.uid)?;
    }
    put(&root.join("etc/Agentfile"), &image.agentfile)?;
    put(&root.join(RUNTIME), b"")?;
    for file in &image.files {
        put(&root.join("etc/data").join(&file.name), &file.bytes)?;
    }
    for (name, text) in contexts(root, row, image) {
        put(&root.join("etc/context").join(format!("{name}.md")), text.as_bytes())?;
    }
    for tool in &row.spec.tools {
        let link = root.join("usr/bin").join(&tool.name);
        std::os::unix::fs::symlink(&tool.path, &link).map_err(|cause| RootError { path: link, cause })?;
    }
    for mount in &row.spec.mounts {
        let target = mount_target(root, &mount.target);
        let mut above: Vec<&Path> =
            target.ancestors().skip(1).take_while(|dir| *dir != root && dir.starts_with(root)).collect();
        above.reverse();
        for dir in above {
            own_dir(dir, row.uid)?;
        }
        if Path::new(&mount.host).is_dir() {
            own_dir(&target, row.uid)?;
        } else if fs::symlink_metadata(&target).is_err() {
            put(&target, b"")?;
        }
    }
    put(&root.join("etc/agent.yaml"), agent_yaml(row, image).as_bytes())
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

/// What is bound into the sandbox beside its root: our parts of the root, so that it cannot change them, the
/// runtime, and the operator's mounts.
pub(super) fn binds(root: &Path, row: &AgentRow, runtime: &Path) -> Vec<Bind> {
    let read_only = |source: PathBuf, target: PathBuf| Bind { source, target, read_only: true };
    let mut binds = vec![
        read_only(root.join("etc"), root.join("etc")),
        read_only(root.join("usr"), root.join("usr")),
        read_only(runtime.to_owned(), root.join(RUNTIME)),
    ];
    binds.extend(row.spec.mounts.iter().map(|mount| Bind {
        source: PathBuf::from(&mount.host),
        target: mount_target(root, &mount.target),
        read_only: mount.read_only,
    }));
    binds
}

fn mount_target(root: &Path, target: &str) -> PathBuf {
    root.join(target.trim_start_matches('/'))
}

/// The whole environment of everything in the sandbox.
pub(super) fn environment(root: &Path, row: &AgentRow, image: &ImageRecord) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = [
        ("PATH", "usr/bin"),
        ("HOME", "home"),
        ("XDG_CONFIG_HOME", "home/.config"),
        ("XDG_CACHE_HOME", "home/.cache"),
        ("XDG_DATA_HOME", "home/.local/share"),
        ("TMPDIR", "tmp"),
    ]
    .map(|(key, below)| (key.into(), root.join(below).into()))
    .into();
    env.push(("LANG".into(), "C.UTF-8".into()));
    env.push(("LODGE_AGENT_ROOT".into(), root.into()));
    for var in &image.env {
        if !row.spec.env.contains_key(&var.key) {
            env.push((var.key.clone().into(), var.value.clone().into()));
        }
    }
    env.extend(row.spec.env.iter().map(|(key, value)| (key.into(), value.into())));
    env
}

/// Every section of the system prompt, in order.
pub(super) fn contexts(root: &Path, row: &AgentRow, image: &ImageRecord) -> Vec<(String, String)> {
    let mut all = vec![
        ("AGENT".to_owned(), about_agent(row, image)),
        ("WORKSPACE".to_owned(), about_workspace(root, image)),
    ];
    if !row.spec.mounts.is_empty() {
        let lines = row.spec.mounts.iter().map(|mount| {
            let mode = if mount.read_only { "read-only" } else { "read and write" };
            format!("- `{}`: {mode}", mount_target(root, &mount.target).display())
        });
        let lines: Vec<String> = lines.collect();
        all.push((
            "MOUNTS".to_owned(),
            format!("Directories of the host that you can use:\n\n{}\n", lines.join("\n")),
        ));
    }
    all.extend(image.contexts.iter().map(|context| (context.name.clone(), context.text.clone())));
    all
}

fn about_agent(row: &AgentRow, image: &ImageRecord) -> String {
    let mut text = format!("You are the agent `{}` (id {}).\n", row.name, row.id);
    if let Some(description) = row.spec.labels.get("description").or_else(|| image.labels.get("description"))
    {
        text.push_str(&format!("\n{description}\n"));
    }
    if row.spec.tools.is_empty() {
        text.push_str("\nYou have no tools.\n");
    } else {
        text.push_str("\nYour tools are these programs and no others. Call one with `{\"args\": [\"…\"], \"stdin\": \"…\"}`.\n\n");
        for tool in &row.spec.tools {
            text.push_str(&format!("- `{}`: {}\n", tool.name, tool.description));
        }
    }
    text
}

fn about_workspace(root: &Path, image: &ImageRecord) -> String {
    let shown = root.display();
    let mut text = format!(
        "Programs run in `{shown}/workspace`. It is yours and is kept.\n\n- `{shown}/tmp`: scratch, wiped at every start\n- `{shown}/home`: your home\n- `{shown}/var/lib`: data you want to keep\n"
    );
    if !image.files.is_empty() {
        text.push_str("\nFiles that came with you:\n\n");
        for file in &image.files {
            text.push_str(&format!("- `{shown}/etc/data/{}`\n", file.name));
        }
    }
    text
}

#[derive(Serialize)]
struct AgentYaml<'a> {
    id: &'a str,
    name: &'a str,
    model: &'a str,
    workspace: &'static str,
    image: ImageYaml<'a>,
    configs: &'a std::collections::BTreeMap<String, String>,
    envs: Vec<KeyYaml<'a>>,
    mounts: Vec<MountYaml<'a>>,
    context: Vec<ContextYaml>,
    tools: Vec<ToolYaml<'a>>,
}

#[derive(Serialize)]
struct ImageYaml<'a> {
    r#ref: &'a str,
    digest: &'a str,
}

#[derive(Serialize)]
struct KeyYaml<'a> {
    key: &'a str,
}

#[derive(Serialize)]
struct MountYaml<'a> {
    target: &'a str,
    read_only: bool,
}

#[derive(Serialize)]
struct ContextYaml {
    name: String,
    file: String,
}

#[derive(Serialize)]
struct ToolYaml<'a> {
    name: &'a str,
    description: &'a str,
    binary: String,
    r#ref: &'a str,
    digest: &'a str,
}

/// The documented description of the agent, for people and for runtimes.
fn agent_yaml(row: &AgentRow, image: &ImageRecord) -> String {
    let names = ["AGENT", "WORKSPACE"].into_iter().map(str::to_owned);
    let names = names.chain((!row.spec.mounts.is_empty()).then(|| "MOUNTS".to_owned()));
    let names = names.chain(image.contexts.iter().map(|context| context.name.clone()));
    let mut keys: Vec<&str> =
        image.env.iter().map(|var| var.key.as_str()).chain(row.spec.env.keys().map(String::as_str)).collect();
    keys.sort_unstable();
    keys.dedup();
    let yaml = AgentYaml {
        id: row.id.as_str(),
        name: &row.name,
        model: &row.spec.model,
        workspace: "/workspace",
        image: ImageYaml { r#ref: &row.image, digest: &row.image_digest },
        configs: &image.configs,
        envs: keys.into_iter().map(|key| KeyYaml { key }).collect(),
        mounts: row
            .spec
            .mounts
            .iter()
            .map(|mount| MountYaml { target: &mount.target, read_only: mount.read_only })
            .collect(),
        context: names.map(|name| ContextYaml { file: format!("/etc/context/{name}.md"), name }).collect(),
        tools: row
            .spec
            .tools
            .iter()
            .map(|tool| ToolYaml {
                name: &tool.name,
                description: &tool.description,
                binary: format!("/usr/bin/{}", tool.name),
                r#ref: &tool.source,
                digest: &tool.digest,
            })
            .collect(),
    };
    serde_saphyr::to_string(&yaml).unwrap_or_default()
}

/// A real directory with the right owner: anything else of that name is removed first.
fn own_dir(path: &Path, uid: Option<u32>) -> Result<(), RootError> {
    let failed = |cause| RootError { path: path.to_owned(), cause };
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            fs::remove_file(path).map_err(failed)?;
            fs::DirBuilder::new().mode(0o755).create(path).map_err(failed)?;
        }
        Err(_) => fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(failed)?,
    }
    // The mode survives a strict umask of whoever started the daemon.
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    match uid {
        Some(uid) => std::os::unix::fs::lchown(path, Some(uid), Some(uid)).map_err(failed),
        None => Ok(()),
    }
}

/// Removes a file, a link or a whole tree. What is not there is removed already.
fn clear(path: &Path) -> Result<(), RootError> {
    let removed = match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if found.is_dir() => remove_tree(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(|cause| RootError { path: path.to_owned(), cause })
}

/// Removes a tree of any depth, with any names and modes, by two descriptors: every directory that is found below a
/// child of the top is moved to the top, so that nothing lies deeper than that. Links are never followed.
fn remove_tree(path: &Path) -> io::Result<()> {
    let top = open_dir(rustix::fs::CWD, path)?;
    let mut moved = 0_u64;
    loop {
        let mut found = false;
        for entry in Dir::read_from(&top)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) {
                continue;
            }
            found = true;
            if !is_dir(&top, name)? {
                unlinkat(&top, name, AtFlags::empty())?;
                continue;
            }
            let child = open_dir(&top, name)?;
            empty_into(&child, &top, &mut moved)?;
            match unlinkat(&top, name, AtFlags::REMOVEDIR) {
                // Reading and removing at once may pass over entries; the next round finds them.
                Ok(()) | Err(Errno::NOTEMPTY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !found {
            return fs::remove_dir(path);
        }
    }
}

/// Removes the files of a directory and moves its directories to the top.
fn empty_into(child: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    for entry in Dir::read_from(child)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        if !is_dir(child, name)? {
            unlinkat(child, name, AtFlags::empty())?;
            continue;
        }
        // A directory moves only if it may be changed itself.
        make_mine(child, name)?;
        loop {
            *moved += 1;
            match renameat(child, name, top, format!(".removed-{moved}")) {
                Ok(()) => break,
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn is_dir(dir: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let found = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode).is_dir())
}

/// Opens a directory for reading, after giving its owner the right to.
fn open_dir<P: rustix::path::Arg + Copy>(dir: impl AsFd, name: P) -> io::Result<OwnedFd> {
    make_mine(&dir, name)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

/// Programs leave directories behind that their owner may not enter or change.
fn make_mine<P: rustix::path::Arg + Copy>(dir: impl AsFd, name: P) -> io::Result<()> {
    Ok(chmodat(dir, name, Mode::RWXU, AtFlags::empty())?)
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), RootError> {
    let failed = |cause| RootError { path: path.to_owned(), cause };
    fs::write(path, bytes).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(failed)
}

/// Removes everything of an agent that is gone.
pub(super) fn remove(data_dir: &Path, row: &AgentRow) -> Result<(), RootError> {
    clear(&root_of(data_dir, row))?;
    clear(&log_of(data_dir, row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_its_owner_may_not_enter_is_removed_and_what_links_lead_to_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        fs::write(other.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&other, tree.join("a/link")).unwrap();
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        clear(&tree).unwrap();
        assert!(!tree.exists() && other.join("kept").exists());
    }

    #[test]
    fn a_tree_deeper_than_any_path_or_stack_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut at = open_dir(rustix::fs::CWD, &tree).unwrap();
        for _ in 0..20_000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_dir(&at, "d").unwrap();
        }
        drop(at);
        clear(&tree).unwrap();
        assert!(!tree.exists());
    }
}
