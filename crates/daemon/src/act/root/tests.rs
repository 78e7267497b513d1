//! Tests of agent roots on disk.

use lodge_core::record::{ContextRecord, RuntimeRecord, ToolRecord};
use lodge_engine::SandboxSettings;
use lodge_exec::FileIdentity;
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

/// Contents inside the record, as in earlier releases.
fn inline_contents(file: &FileRecord) -> Result<Vec<u8>, String> {
    Ok(file.bytes.clone())
}

/// Where the stock runtime is stored.
const STOCK: &str = "/state/bin/runtime-abc";

fn make_root(
    root: &Path,
    plan: &SandboxPlan,
    image: &ImageRecord,
    files: &FileSource<'_>,
) -> Result<(), RootError> {
    let host = HostTrees::of(&plan.settings, root);
    let inputs = RootInputs { plan, image, runtime: Path::new(STOCK), host: &host };
    make(root, &inputs, files)
}

const KEPT: FileSource<'static> = FileSource { contents: &inline_contents, room: &|_| true };

fn plan(host: &Path) -> SandboxPlan {
    let tool = ToolRecord {
        name: "sh".into(),
        source: "host:sh".into(),
        path: "/bin/sh".into(),
        digest: "sha256:1".into(),
        safe: false,
        description: "a shell".into(),
        usage: Some("sh -c".into()),
        ..ToolRecord::default()
    };
    let mount = MountRecord {
        host: host.to_str().unwrap().into(),
        target: "/mnt/x".into(),
        read_only: true,
        description: Some("mine".into()),
        owner: None,
    };
    let settings = SandboxSettings {
        model: "p/m".into(),
        env: [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "agent".to_owned())].into(),
        configs: [("custom".to_owned(), "b".to_owned())].into(),
        mounts: vec![mount],
        tools: vec![tool],
        capabilities: vec!["note_save".into()],
        ..SandboxSettings::default()
    };
    SandboxPlan {
        sandbox: "sbx_1".parse().unwrap(),
        incarnation: 1,
        agent: "agt_1".parse().unwrap(),
        run: 1,
        was_ready: false,
        name: "one".into(),
        image: "one:latest".into(),
        image_digest: "sha256:2".into(),
        uid: None,
        settings,
    }
}

#[test]
fn agent_yaml_has_every_documented_key_and_neither_values_nor_paths_of_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (root, host) = (dir.path().join("root"), dir.path().canonicalize().unwrap().join("host"));
    fs::create_dir(&host).unwrap();
    make_root(&root, &plan(&host), &image(), &KEPT).unwrap();
    let text = fs::read_to_string(root.join("etc/agent.yaml")).unwrap();
    let yaml: Value = serde_saphyr::from_str(&text).unwrap();
    let expected = json!({
        "id": "agt_1", "name": "one", "model": "p/m", "workspace": "/workspace",
        "image": {"ref": "one:latest", "digest": "sha256:2"},
        "runtime": {"ref": "lodge:runtime", "digest": "sha256:abc", "binary": "/opt/lodge/runtime"},
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
            "name": "sh", "description": "a shell", "binary": "/opt/bins/sh", "ref": "host:sh", "digest": "sha256:1",
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
    let mut plan = plan(&host);
    plan.settings.runtime = Some(own);
    make_root(&root, &plan, &image(), &KEPT).unwrap();
    let text = fs::read_to_string(root.join("etc/agent.yaml")).unwrap();
    assert!(text.contains("host:loop") && !text.contains("abc"), "{text}");
}

#[test]
fn variables_of_the_agent_override_those_of_the_image_and_reserved_ones_are_dropped() {
    let env = environment(&Layout::private(), &plan(Path::new("/h")), &image());
    let of = |key: &str| -> Vec<String> {
        let found = env.iter().filter(|(known, _)| known == key);
        found.map(|(_, value)| value.to_string_lossy().into_owned()).collect()
    };
    assert_eq!((of("A"), of("B"), of("C")), (vec!["1".into()], vec!["agent".into()], vec!["c".into()]));
    assert_eq!((of("PATH"), env.len()), (vec!["/opt/bins".to_owned()], 11));
}

#[test]
fn a_tool_from_an_image_is_bound_over_an_empty_file_and_one_of_the_host_is_linked() {
    let dir = tempfile::tempdir().unwrap();
    let (root, host) = (dir.path().join("root"), dir.path().canonicalize().unwrap().join("host"));
    fs::create_dir(&host).unwrap();
    let mut plan = plan(&host);
    let rg = ToolRecord {
        name: "rg".into(),
        path: "/state/registry/programs/1/ripgrep".into(),
        image: Some("rg:latest@sha256:1".into()),
        ..plan.settings.tools[0].clone()
    };
    plan.settings.tools.push(rg);
    let own = RuntimeRecord { path: "/state/registry/programs/2/loop".into(), ..RuntimeRecord::default() };
    plan.settings.runtime = Some(own);
    make_root(&root, &plan, &image(), &KEPT).unwrap();
    assert_eq!(fs::read_link(root.join("opt/bins/sh")).unwrap(), Path::new("/bin/sh"));
    // The link is relative, so it works wherever the root is mounted.
    assert_eq!(fs::read_link(root.join("opt/bins/rg")).unwrap(), Path::new("../bin-images/rg/rg"));
    let program = root.join("opt/bins/rg").canonicalize().unwrap();
    assert_eq!(program.metadata().map(|meta| (meta.is_file(), meta.len())).unwrap(), (true, 0));
    let identity = |ino| FileIdentity { dev: 1, ino, size: 1, changed_at: (1, 1) };
    let checked = [
        ("/state/registry/programs/1/ripgrep".into(), identity(1)),
        ("/state/registry/programs/2/loop".into(), identity(2)),
    ];
    let binds = binds(&root, &plan, Path::new("/r-1"), &checked.into());
    let at = |target: &str| binds.iter().position(|bind| bind.target == root.join(target)).unwrap();
    let rg = &binds[at("opt/bin-images/rg/rg")];
    assert_eq!((rg.source.to_str(), rg.read_only), (Some("/state/registry/programs/1/ripgrep"), true));
    assert_eq!(binds[at(RUNTIME)].source, Path::new("/state/registry/programs/2/loop"));
    assert_eq!((rg.checked, binds[at(RUNTIME)].checked), (Some(identity(1)), Some(identity(2))));
    assert!(at("opt") < at("opt/bin-images/rg/rg"));
    assert!(!binds.iter().any(|bind| bind.target == root.join("opt/bins/sh")));
}

#[test]
fn the_root_has_its_own_etc_and_a_link_from_its_path_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, host) = (base.join("root"), base.join("host"));
    fs::create_dir(&host).unwrap();
    make_root(&root, &plan(&host), &image(), &KEPT).unwrap();
    let read = |name: &str| fs::read_to_string(root.join("etc").join(name)).unwrap();
    assert!(read("passwd").contains(":/home:/opt/bins/sh\n"));
    assert_eq!(read("hostname"), "one\n");
    assert!(read("hosts").contains("127.0.1.1 one\n"));
    let former = root.join(root.strip_prefix("/").unwrap());
    assert_eq!(fs::read_link(former).unwrap(), Path::new("/"));
    assert_eq!(fs::read_link(root.join("var/tmp")).unwrap(), Path::new("../tmp"));
    // Without programs of the host, scripts use the agent's own shell.
    let mut plan = plan(&host);
    plan.settings.tools[0].image = Some("sh:latest@sha256:1".into());
    make_root(&root, &plan, &image(), &KEPT).unwrap();
    assert_eq!(fs::read_link(root.join("bin/sh")).unwrap(), Path::new("/opt/bins/sh"));
    assert!(!root.join("lib").exists() && !root.join("usr").exists());
}

#[test]
fn described_paths_follow_the_layout() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, host) = (base.join("root"), base.join("host"));
    fs::create_dir(&host).unwrap();
    let (plan, image) = (plan(&host), image());
    make_root(&root, &plan, &image, &KEPT).unwrap();
    let told = || {
        ["etc/agent.yaml", "etc/context/WORKSPACE.md", "etc/context/MOUNTS.md"]
            .map(|file| fs::read_to_string(root.join(file)).unwrap())
            .concat()
    };
    assert!(told().contains("`/workspace`") && told().contains("`/mnt/x`") && !told().contains("/root/"));
    let missing = lodge_exec::Layer { name: "private_root".into(), missing: Some("refused".into()) };
    let layout = Layout::of(&[missing], &root);
    let none = HostTrees::default();
    let inputs = RootInputs { plan: &plan, image: &image, runtime: Path::new(STOCK), host: &none };
    describe(&root, &layout, &inputs).unwrap();
    for path in ["workspace", "mnt/x", "opt/bins/sh", "etc/context/SOUL.md"] {
        assert!(told().contains(root.join(path).to_str().unwrap()), "{path}: {}", told());
    }
}

#[test]
fn an_unreadable_file_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().canonicalize().unwrap().join("host");
    fs::create_dir(&host).unwrap();
    let lost = FileSource { contents: &|_| Err("it is damaged".to_owned()), ..KEPT };
    let made = make_root(&dir.path().join("root"), &plan(&host), &image(), &lost);
    assert!(matches!(&made, Err(RootError::Contents { file, .. }) if file == "n.txt"), "{made:?}");
}

#[test]
fn files_are_not_written_if_the_disk_has_no_space_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().canonicalize().unwrap().join("host");
    fs::create_dir(&host).unwrap();
    let (root, image) = (dir.path().join("root"), image());
    let full = FileSource { room: &|_| false, ..KEPT };
    make_root(&root, &plan(&host), &image, &KEPT).unwrap();
    let refused = make_root(&root, &plan(&host), &image, &full);
    assert!(matches!(refused, Err(RootError::NoRoom { bytes: 1.. })), "{refused:?}");
    assert!(!root.join("etc/data/n.txt").exists());
    let without = ImageRecord { files: Vec::new(), ..image };
    make_root(&root, &plan(&host), &without, &full).unwrap();
}

#[test]
fn a_missing_or_redirected_mount_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().canonicalize().unwrap().join("host");
    let fails = || {
        let made = make_root(&dir.path().join("root"), &plan(&host), &image(), &KEPT);
        crate::chain(&made.unwrap_err())
    };
    let gone = fails();
    assert!(gone.contains(host.to_str().unwrap()) && gone.contains("No such file"), "{gone}");
    std::os::unix::fs::symlink(dir.path(), &host).unwrap();
    let moved = fails();
    assert!(moved.contains("a link leads to") && !dir.path().join("root").exists(), "{moved}");
}

#[test]
fn a_link_at_a_mount_point_is_not_followed() {
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
        make_root(&root, &plan(&host), &image(), &KEPT).unwrap();
        assert!(root.join("mnt/x").symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(victim.join("x")).unwrap(), "kept");
    }
}

#[test]
fn a_link_at_a_description_file_is_not_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, host, victim) = (base.join("root"), base.join("host"), base.join("victim"));
    for dir in [&host, &victim] {
        fs::create_dir(dir).unwrap();
    }
    for name in ["file", "SOUL.md", "agent.yaml"] {
        fs::write(victim.join(name), "kept").unwrap();
    }
    let (plan, image, none) = (plan(&host), image(), HostTrees::default());
    let inputs = RootInputs { plan: &plan, image: &image, runtime: Path::new(STOCK), host: &none };
    let described = || {
        describe(&root, &Layout::private(), &inputs).unwrap();
        for name in ["file", "SOUL.md", "agent.yaml"] {
            assert_eq!(fs::read_to_string(victim.join(name)).unwrap(), "kept", "{name}");
        }
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 3);
        assert_eq!(fs::read_to_string(root.join("etc/context/SOUL.md")).unwrap(), "kind");
        assert!(root.join("etc/agent.yaml").symlink_metadata().unwrap().is_file());
    };
    make_root(&root, &plan, &image, &KEPT).unwrap();
    let leave = |to: &Path, at: &str| {
        clear(&root.join(at)).unwrap();
        std::os::unix::fs::symlink(to, root.join(at)).unwrap();
    };
    leave(&victim.join("file"), "etc/agent.yaml");
    leave(&victim.join("file"), "etc/context/SOUL.md");
    described();
    leave(&victim, "etc/context");
    described();
    leave(&victim, "etc");
    described();
    // A hard link is replaced, too, and not written to.
    clear(&root.join("etc/agent.yaml")).unwrap();
    fs::hard_link(victim.join("file"), root.join("etc/agent.yaml")).unwrap();
    described();
}

#[test]
fn every_mount_point_of_the_keeper_exists() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let (root, host, victim) = (base.join("root"), base.join("host"), base.join("victim"));
    for dir in [&host, &victim, &base.join("kit/bin"), &base.join("kit/bin/deep")] {
        fs::create_dir_all(dir).unwrap();
    }
    for file in ["kit/bin/tool", "alone"] {
        fs::write(base.join(file), "").unwrap();
    }
    let mut plan = plan(&host);
    for path in ["kit/bin/tool", "alone"] {
        let path = base.join(path).display().to_string();
        plan.settings.tools.push(ToolRecord { path, ..plan.settings.tools[0].clone() });
    }
    let place = |path: &str| root.join(base.join(path).strip_prefix("/").unwrap());
    make_root(&root, &plan, &image(), &KEPT).unwrap();
    for dir in ["proc", "dev", "sys", "usr"] {
        assert!(root.join(dir).symlink_metadata().unwrap().is_dir(), "{dir}");
    }
    assert!(place("kit").is_dir() && place("alone").is_file());
    // A link in a parent directory is replaced.
    clear(&place("kit")).unwrap();
    std::os::unix::fs::symlink(&victim, place("kit")).unwrap();
    make_root(&root, &plan, &image(), &KEPT).unwrap();
    assert!(place("kit").symlink_metadata().unwrap().is_dir());
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
}
