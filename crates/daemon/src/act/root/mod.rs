//! An agent's root on disk: made anew from its image at every start, except what is the agent's own.
//!
//! The sandbox is down while this runs, but it wrote here before: links are never followed, and directories of
//! ours are replaced, not merged.

mod contexts;
pub(crate) mod mask;
mod tree;
mod yaml;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lodge_core::record::{AgentRow, EnvRecord, FileRecord, ImageRecord, MountRecord};
use lodge_exec::Bind;

pub(super) use self::contexts::contexts;
use self::tree::{clear, own_dir, put};

/// Where the runtime's program stands inside the root.
pub(super) const RUNTIME: &str = "usr/local/bin/runtime";

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

pub(super) fn root_of(data_dir: &Path, row: &AgentRow) -> PathBuf {
    data_dir.join("agents").join(row.id.as_str())
}

pub(super) fn log_of(data_dir: &Path, row: &AgentRow) -> PathBuf {
    data_dir.join("logs").join(format!("{}.log", row.id))
}

/// Makes the root. Doing it twice gives the same. `runtime` is the stock one, as it is stored.
pub(super) fn make(
    root: &Path,
    row: &AgentRow,
    image: &ImageRecord,
    runtime: &Path,
    files: &Files<'_>,
) -> Result<(), RootError> {
    row.spec.mounts.iter().try_for_each(check_mount)?;
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
    put_files(&root.join("etc/data"), image, files)?;
    let sections = contexts(root, row, image);
    for section in &sections {
        put(&root.join("etc/context").join(section.file()), section.text.as_bytes())?;
    }
    for tool in &row.spec.tools {
        let place = root.join("usr/bin").join(&tool.name);
        match tool.image {
            // The program is bound over it: no path of the store leads into a sandbox.
            Some(_) => put(&place, b"")?,
            None => std::os::unix::fs::symlink(&tool.path, &place)
                .map_err(|cause| RootError::Io { path: place, cause })?,
        }
    }
    for mount in &row.spec.mounts {
        make_target(root, row, mount)?;
    }
    let yaml = yaml::agent_yaml(row, image, &sections, runtime).map_err(|cause| RootError::Yaml { cause })?;
    put(&root.join("etc/agent.yaml"), yaml.as_bytes())
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
fn make_target(root: &Path, row: &AgentRow, mount: &MountRecord) -> Result<(), RootError> {
    let target = mount_target(root, &mount.target);
    let mut above: Vec<&Path> =
        target.ancestors().skip(1).take_while(|dir| *dir != root && dir.starts_with(root)).collect();
    above.reverse();
    for dir in above {
        own_dir(dir, row.uid)?;
    }
    if Path::new(&mount.host).is_dir() {
        own_dir(&target, row.uid)?;
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

/// What is bound into the sandbox beside its root: our parts of the root, so that it cannot change them, the
/// runtime, programs from images, and the operator's mounts.
pub(super) fn binds(root: &Path, row: &AgentRow, runtime: &Path) -> Vec<Bind> {
    let read_only = |source: PathBuf, target: PathBuf| Bind { source, target, read_only: true };
    let runtime = row.spec.runtime.as_ref().map_or(runtime, |own| Path::new(&own.path));
    let mut binds = vec![
        read_only(root.join("etc"), root.join("etc")),
        read_only(root.join("usr"), root.join("usr")),
        read_only(runtime.to_owned(), root.join(RUNTIME)),
    ];
    let tools = row.spec.tools.iter().filter(|tool| tool.image.is_some());
    binds.extend(
        tools.map(|tool| read_only(PathBuf::from(&tool.path), root.join("usr/bin").join(&tool.name))),
    );
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
    env.extend(configured_env(row, image).into_iter().map(|var| (var.key.into(), var.value.into())));
    env
}

/// The variables that people set, by key: those of the image, and before them those of the agent.
fn configured_env(row: &AgentRow, image: &ImageRecord) -> Vec<EnvRecord> {
    let mut all: BTreeMap<&str, EnvRecord> = BTreeMap::new();
    for var in &image.env {
        all.insert(&var.key, var.clone());
    }
    for (key, value) in &row.spec.env {
        let description = all.get(key.as_str()).and_then(|var| var.description.clone());
        all.insert(key, EnvRecord { key: key.clone(), value: value.clone(), description });
    }
    // What is reserved was refused when it was written; an older release may have known of less.
    all.into_values().filter(|var| lodge_image::agentfile::check_env_key(&var.key).is_ok()).collect()
}

/// The settings in force: those of the image, and before them those of the agent.
pub(super) fn configs(row: &AgentRow, image: &ImageRecord) -> BTreeMap<String, String> {
    let mut configs = image.configs.clone();
    configs.extend(row.spec.configs.clone());
    configs
}

/// Removes everything of an agent that is gone.
pub(super) fn remove(data_dir: &Path, row: &AgentRow) -> Result<(), RootError> {
    clear(&root_of(data_dir, row))?;
    clear(&log_of(data_dir, row))
}

#[cfg(test)]
mod tests {
    use lodge_core::agent::AgentState;
    use lodge_core::record::{AgentSpec, ContextRecord, RuntimeRecord, ToolRecord};
    use lodge_core::{IdSource, LineageId, SandboxId, Timestamp};
    use serde_json::{Value, json};

    use super::*;

    fn image() -> ImageRecord {
        let env = |key: &str, value: &str, what: Option<&str>| EnvRecord {
            key: key.into(),
            value: value.into(),
            description: what.map(Into::into),
        };
        ImageRecord {
            agentfile: b"FROM scratch\n".to_vec(),
            contexts: vec![ContextRecord {
                name: "SOUL".into(),
                description: Some("who".into()),
                text: "kind".into(),
            }],
            files: vec![FileRecord { name: "n.txt".into(), bytes: b"x".to_vec(), ..FileRecord::default() }],
            configs: [("max-steps".to_owned(), "5".to_owned()), ("custom".to_owned(), "a".to_owned())].into(),
            env: vec![env("B", "image", Some("the second")), env("PATH", "/evil", None), env("C", "c", None)],
            exec: vec!["serve".into(), "-v".into()],
            ..ImageRecord::default()
        }
    }

    /// As an earlier release kept them.
    fn kept(file: &FileRecord) -> Result<Vec<u8>, String> {
        Ok(file.bytes.clone())
    }

    const KEPT: Files<'static> = Files { contents: &kept, room: &|_| true };

    fn row(host: &Path) -> AgentRow {
        let (mut ids, now) = (IdSource::new(1), Timestamp::from_ms(1));
        let tool = ToolRecord {
            name: "sh".into(),
            source: "host:sh".into(),
            path: "/bin/sh".into(),
            digest: "sha256:1".into(),
            safe: false,
            description: "a shell".into(),
            usage: Some("sh -c".into()),
            image: None,
        };
        let mount = MountRecord {
            host: host.to_str().unwrap().into(),
            target: "/mnt/x".into(),
            read_only: true,
            description: Some("mine".into()),
        };
        let spec = AgentSpec {
            model: "p/m".into(),
            env: [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "agent".to_owned())].into(),
            configs: [("custom".to_owned(), "b".to_owned())].into(),
            mounts: vec![mount],
            tools: vec![tool],
            capabilities: vec!["note_save".into()],
            ..AgentSpec::default()
        };
        AgentRow {
            id: "agt_1".parse().unwrap(),
            name: "one".into(),
            image: "one:latest".into(),
            image_digest: "sha256:2".into(),
            lineage: LineageId::new(&mut ids, now),
            sandbox: SandboxId::new(&mut ids, now),
            state: AgentState::Starting,
            failure_detail: None,
            incarnation: 1,
            runs: 1,
            uid: None,
            created_at: now,
            started_at: None,
            spec,
            retry: lodge_core::record::Retry::default(),
            next: None,
        }
    }

    #[test]
    fn agent_yaml_has_every_documented_key_and_neither_values_nor_paths_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let (root, host) = (dir.path().join("root"), dir.path().canonicalize().unwrap().join("host"));
        fs::create_dir(&host).unwrap();
        make(&root, &row(&host), &image(), Path::new("/state/bin/runtime-abc"), &KEPT).unwrap();
        let text = fs::read_to_string(root.join("etc/agent.yaml")).unwrap();
        let yaml: Value = serde_saphyr::from_str(&text).unwrap();
        let expected = json!({
            "id": "agt_1", "name": "one", "model": "p/m", "workspace": "/workspace",
            "image": {"ref": "one:latest", "digest": "sha256:2"},
            "runtime": {"ref": "lodge:runtime", "digest": "sha256:abc", "binary": "/usr/local/bin/runtime"},
            "configs": {"custom": "b", "max-steps": "5"},
            "capabilities": [{"name": "note_save"}],
            "envs": [{"key": "A"}, {"key": "B", "description": "the second"}, {"key": "C"}],
            "mounts": [{"target": "/mnt/x", "description": "mine", "read_only": true}],
            "context": [
                {"name": "AGENT", "file": "/etc/context/AGENT.md"},
                {"name": "WORKSPACE", "file": "/etc/context/WORKSPACE.md"},
                {"name": "MOUNTS", "file": "/etc/context/MOUNTS.md"},
                {"name": "SOUL", "file": "/etc/context/SOUL.md", "description": "who"},
            ],
            "tools": [{
                "name": "sh", "description": "a shell", "binary": "/usr/bin/sh", "ref": "host:sh", "digest": "sha256:1",
                "usage": "sh -c",
            }],
            "exec": ["serve", "-v"],
        });
        assert_eq!(yaml, expected, "{text}");
        let own = RuntimeRecord {
            source: "host:loop".into(),
            path: "/usr/bin/loop".into(),
            digest: "sha256:3".into(),
            image: None,
        };
        let mut row = row(&host);
        row.spec.runtime = Some(own);
        make(&root, &row, &image(), Path::new("/state/bin/runtime-abc"), &KEPT).unwrap();
        let text = fs::read_to_string(root.join("etc/agent.yaml")).unwrap();
        assert!(text.contains("host:loop") && !text.contains("abc"), "{text}");
    }

    #[test]
    fn the_agents_variables_go_before_the_images_and_reserved_ones_never_come_through() {
        let (root, host) = (Path::new("/r"), Path::new("/h"));
        let env = environment(root, &row(host), &image());
        let of = |key: &str| -> Vec<String> {
            let found = env.iter().filter(|(known, _)| known == key);
            found.map(|(_, value)| value.to_string_lossy().into_owned()).collect()
        };
        assert_eq!((of("A"), of("B"), of("C")), (vec!["1".into()], vec!["agent".into()], vec!["c".into()]));
        assert_eq!((of("PATH"), env.len()), (vec!["/r/usr/bin".to_owned()], 11));
    }

    #[test]
    fn a_tool_from_an_image_is_bound_over_an_empty_file_and_one_of_the_host_is_linked() {
        let dir = tempfile::tempdir().unwrap();
        let (root, host) = (dir.path().join("root"), dir.path().canonicalize().unwrap().join("host"));
        fs::create_dir(&host).unwrap();
        let mut row = row(&host);
        let rg = ToolRecord {
            name: "rg".into(),
            path: "/state/registry/programs/1/ripgrep".into(),
            image: Some("rg:latest@sha256:1".into()),
            ..row.spec.tools[0].clone()
        };
        row.spec.tools.push(rg);
        let own =
            RuntimeRecord { path: "/state/registry/programs/2/loop".into(), ..RuntimeRecord::default() };
        row.spec.runtime = Some(own);
        make(&root, &row, &image(), Path::new("/r-1"), &KEPT).unwrap();
        assert_eq!(fs::read_link(root.join("usr/bin/sh")).unwrap(), Path::new("/bin/sh"));
        assert_eq!(
            root.join("usr/bin/rg").symlink_metadata().map(|meta| (meta.is_file(), meta.len())).unwrap(),
            (true, 0)
        );
        let binds = binds(&root, &row, Path::new("/r-1"));
        let at = |target: &str| binds.iter().position(|bind| bind.target == root.join(target)).unwrap();
        let rg = &binds[at("usr/bin/rg")];
        assert_eq!((rg.source.to_str(), rg.read_only), (Some("/state/registry/programs/1/ripgrep"), true));
        assert_eq!(binds[at(RUNTIME)].source, Path::new("/state/registry/programs/2/loop"));
        assert!(
            at("usr") < at("usr/bin/rg") && !binds.iter().any(|bind| bind.target == root.join("usr/bin/sh"))
        );
    }

    #[test]
    fn a_file_whose_contents_cannot_be_had_is_told_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().canonicalize().unwrap().join("host");
        fs::create_dir(&host).unwrap();
        let lost = Files { contents: &|_| Err("it is damaged".to_owned()), ..KEPT };
        let made = make(&dir.path().join("root"), &row(&host), &image(), Path::new("/r-1"), &lost);
        assert!(matches!(&made, Err(RootError::Contents { file, .. }) if file == "n.txt"), "{made:?}");
    }

    #[test]
    fn files_that_the_disk_has_no_room_for_are_not_begun() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().canonicalize().unwrap().join("host");
        fs::create_dir(&host).unwrap();
        let (root, image) = (dir.path().join("root"), image());
        let full = Files { room: &|_| false, ..KEPT };
        make(&root, &row(&host), &image, Path::new("/r-1"), &KEPT).unwrap();
        let made = make(&root, &row(&host), &image, Path::new("/r-1"), &full);
        assert!(matches!(made, Err(RootError::NoRoom { bytes: 1.. })), "{made:?}");
        assert!(!root.join("etc/data/n.txt").exists());
        let without = ImageRecord { files: Vec::new(), ..image };
        make(&root, &row(&host), &without, Path::new("/r-1"), &full).unwrap();
    }

    #[test]
    fn a_mount_that_is_gone_or_leads_elsewhere_is_told_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().canonicalize().unwrap().join("host");
        let fails = || {
            let made = make(&dir.path().join("root"), &row(&host), &image(), Path::new("/r-1"), &KEPT);
            crate::chain(&made.unwrap_err())
        };
        let gone = fails();
        assert!(gone.contains(host.to_str().unwrap()) && gone.contains("No such file"), "{gone}");
        std::os::unix::fs::symlink(dir.path(), &host).unwrap();
        let moved = fails();
        assert!(moved.contains("a link leads to") && !dir.path().join("root").exists(), "{moved}");
    }

    #[test]
    fn what_a_tool_left_in_the_place_of_a_mount_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (root, host, victim) = (base.join("root"), base.join("host"), base.join("victim"));
        fs::write(&host, "x").unwrap();
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("x"), "kept").unwrap();
        fs::create_dir_all(root.join("mnt")).unwrap();
        for link in [&victim, &victim.join("x")] {
            clear(&root.join("mnt")).unwrap();
            if link.is_dir() {
                std::os::unix::fs::symlink(link, root.join("mnt")).unwrap();
            } else {
                fs::create_dir(root.join("mnt")).unwrap();
                std::os::unix::fs::symlink(link, root.join("mnt/x")).unwrap();
            }
            make(&root, &row(&host), &image(), Path::new("/r-1"), &KEPT).unwrap();
            assert!(root.join("mnt/x").symlink_metadata().unwrap().is_file());
            assert_eq!(fs::read_to_string(victim.join("x")).unwrap(), "kept");
        }
    }
}
