//! What an agent is given of the host and of its own files, and that it is given nothing else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lodge_testkit::lodge::{Lodge, until};
use serde_json::json;

use crate::world::{AGENTFILE, ApiWorld, id, is_root, sh};

/// A world-accessible directory of the host, with a file in it.
fn shared(lodge: &Lodge, name: &str) -> PathBuf {
    let dir = lodge.dir().canonicalize().expect("a path").join(name);
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("file"), "from the host").expect("a file");
    for path in [&dir, &dir.join("file")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("a mode");
    }
    // What leads there may be passed, as for a directory that people share.
    for above in dir.ancestors().skip(1).filter(|above| above.starts_with(lodge.dir())) {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    dir
}

fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn a_mount_is_stored_shown_told_to_the_model_and_there_after_every_start() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (notes, out) = (shared(&world.lodge, "notes"), shared(&world.lodge, "out"));
    let mounts = json!([
        {"host": notes, "target": "//mnt/notes/", "read_only": true, "description": "what I wrote: all of it"},
        {"host": out, "target": "/workspace/out"},
    ]);
    api.ok("agent/create", json!({"content": AGENTFILE, "name": "one", "mounts": mounts})).await;
    let view = api.agent_is("one", "ready").await;
    let root = Path::new(view["root"].as_str().expect("a root")).to_owned();
    let shown = json!([
        {"host": notes, "target": "/mnt/notes", "read_only": true, "description": "what I wrote: all of it"},
        {"host": out, "target": "/workspace/out", "read_only": false},
    ]);
    for start in 0..2 {
        assert_eq!(api.ok("agent/get", json!({"agent": "one"})).await["mounts"], shown);
        let script =
            format!("cat \"$LODGE_AGENT_ROOT\"/mnt/notes/file; echo {start} >> out/file; echo; cat out/file");
        let said = api.answer("one", "s", &format!("{} [[reply:{{{{tool}}}}]]", sh(&script))).await;
        assert!(said.contains("from the host"), "{said}");
        let told = text(root.join("etc/context/MOUNTS.md"));
        assert!(told.contains("/mnt/notes` (read-only): what I wrote: all of it"), "{told}");
        assert!(told.contains("/workspace/out` (read and write)") && !told.contains("host:"), "{told}");
        let yaml = text(root.join("etc/agent.yaml"));
        assert!(yaml.contains("/mnt/notes") && !yaml.contains(notes.to_str().expect("text")), "{yaml}");
        api.ok("agent/stop", json!({"agent": "one"})).await;
        api.ok("agent/start", json!({"agent": "one"})).await;
        api.agent_is("one", "ready").await;
    }
    assert_eq!(text(out.join("file")), "from the host0\n1\n");
    api.ok("agent/remove", json!({"agent": "one", "force": true})).await;
    assert!(
        !root.exists() && notes.join("file").exists() && out.join("file").exists(),
        "what is the host's stays"
    );
}

#[tokio::test]
async fn no_way_leads_to_writing_what_is_mounted_read_only() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let notes = shared(&world.lodge, "notes");
    fs::create_dir(notes.join("sub")).expect("a directory");
    fs::set_permissions(notes.join("sub"), fs::Permissions::from_mode(0o777)).expect("a mode");
    let content = format!(
        "{AGENTFILE}BIN mount host:mount \"m\"\nBIN umount host:umount \"u\"\nBIN unshare host:unshare \"u\"\n\
         BIN ln host:ln \"l\"\nBIN mv host:mv \"m\"\nBIN rm host:rm \"r\"\nBIN chmod host:chmod \"c\"\nBIN truncate host:truncate \"t\"\n"
    );
    let mounts = json!([{"host": notes, "target": "/mnt/notes", "read_only": true}]);
    api.ok("agent/create", json!({"content": content, "name": "one", "mounts": mounts})).await;
    api.agent_is("one", "ready").await;
    let host = notes.display();
    let script = format!(
        "M=\"$LODGE_AGENT_ROOT\"/mnt/notes\n\
         for D in \"$M\" {host} /proc/self/root\"$M\" /proc/1/root\"$M\" /proc/self/root{host} \"$M\"/../notes \"$M\"/sub; do\n\
           echo x > \"$D\"/planted; echo x >> \"$D\"/file; truncate -s 0 \"$D\"/file; chmod 700 \"$D\"; rm -f \"$D\"/file\n\
           ln \"$D\"/file \"$D\"/hard; ln -s x \"$D\"/soft; mv \"$D\"/file \"$D\"/moved; touch \"$D\"/file2\n\
         done\n\
         ln \"$M\"/file \"$LODGE_AGENT_ROOT\"/workspace/hard && echo x >> \"$LODGE_AGENT_ROOT\"/workspace/hard\n\
         ln -s \"$M\" link; echo x > link/planted\n\
         mount -o remount,rw \"$M\" && echo RE''MOUNTED; mount -o remount,bind,rw \"$M\" && echo RE''MOUNTED\n\
         umount \"$M\" && echo UN''MOUNTED; mount --bind {host} workspace && echo BO''UND\n\
         unshare -Urm sh -c \"mount -o remount,bind,rw '$M' && echo x > '$M'/planted && echo ES''CAPED\"\n\
         unshare -m true && echo ES''CAPED\n\
         echo en''d"
    );
    let said = api.answer("one", "s", &format!("{} [[reply:{{{{tool}}}}]]", sh(&script))).await;
    assert!(said.contains("end"), "{said}");
    for word in ["REMOUNTED", "UNMOUNTED", "BOUND", "ESCAPED"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
    let mut names: Vec<String> = fs::read_dir(&notes)
        .expect("a directory")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["file", "sub"], "{said}");
    assert_eq!(text(notes.join("file")), "from the host");
    assert_eq!(fs::read_dir(notes.join("sub")).expect("a directory").count(), 0);
    assert_eq!(fs::metadata(&notes).expect("it").permissions().mode() & 0o777, 0o777);
}

#[tokio::test]
async fn a_mount_that_vanished_or_leads_elsewhere_keeps_its_agent_from_starting() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let notes = shared(&world.lodge, "notes");
    let away = notes.with_file_name("away");
    let mounts = json!([{"host": notes, "target": "/mnt/notes"}]);
    api.ok("agent/create", json!({"content": AGENTFILE, "name": "one", "mounts": mounts})).await;
    api.agent_is("one", "ready").await;
    for (what, words) in [("gone", "cannot mount"), ("a link", "a link leads to")] {
        api.ok("agent/stop", json!({"agent": "one"})).await;
        fs::rename(&notes, &away).expect("a move");
        if what == "a link" {
            std::os::unix::fs::symlink(world.lodge.home(), &notes).expect("a link");
        }
        api.ok("agent/start", json!({"agent": "one"})).await;
        let failed =
            api.until("agent/get", json!({"agent": "one"}), |view| view["failure_reason"] == "init").await;
        let detail = failed["failure_detail"].as_str().expect("a detail");
        assert!(detail.contains(words) && detail.contains(notes.to_str().expect("text")), "{what}: {detail}");
        if what == "a link" {
            fs::remove_file(&notes).expect("a link");
        }
        fs::rename(&away, &notes).expect("a move");
        api.ok("agent/stop", json!({"agent": "one"})).await;
        api.ok("agent/start", json!({"agent": "one"})).await;
        api.agent_is("one", "ready").await;
    }
}

#[tokio::test]
async fn a_host_program_that_vanished_keeps_its_agent_from_starting_until_it_is_back() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let kit = shared(&world.lodge, "kit");
    let (tool, away) = (kit.join("greet"), kit.join("away"));
    fs::write(&tool, "#!/bin/sh\necho good morning\n").expect("a program");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("its mode");
    let content = format!("{AGENTFILE}BIN greet host:{}\n", tool.display());
    api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    api.agent_is("one", "ready").await;
    api.ok("agent/stop", json!({"agent": "one"})).await;
    fs::rename(&tool, &away).expect("a move");
    api.ok("agent/start", json!({"agent": "one"})).await;
    let failed =
        api.until("agent/get", json!({"agent": "one"}), |view| view["failure_reason"] == "init").await;
    let detail = failed["failure_detail"].as_str().expect("a detail");
    for words in [tool.to_str().expect("text"), "lodge start one"] {
        assert!(detail.contains(words), "{detail}");
    }
    // The errors for existing programs that cannot be run.
    for (program, words) in [(&away, "chmod +x"), (&kit, "is a directory")] {
        fs::set_permissions(&away, fs::Permissions::from_mode(0o644)).expect("its mode");
        let content = format!("{AGENTFILE}BIN greet host:{}\n", program.display());
        let refused = api.refused("agent/create", json!({"content": content}), "bin.not_found").await;
        assert!(refused.to_string().contains(words), "{refused}");
    }
    fs::set_permissions(&away, fs::Permissions::from_mode(0o755)).expect("its mode");
    fs::rename(&away, &tool).expect("a move");
    api.ok("agent/stop", json!({"agent": "one"})).await;
    api.ok("agent/start", json!({"agent": "one"})).await;
    api.agent_is("one", "ready").await;
}

#[tokio::test]
async fn bad_mounts_and_bad_variables_are_refused_before_anything_is_made() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let home = world.lodge.home();
    let link = world.lodge.dir().join("link");
    std::os::unix::fs::symlink(&home, &link).expect("a link");
    let data = shared(&world.lodge, "data");
    for (host, target) in [
        (data.clone(), "relative"),
        (data.clone(), "/mnt/../etc"),
        (data.clone(), "/etc/context"),
        (data.clone(), "/usr/bin"),
        (data.clone(), "/opt/bins"),
        (data.clone(), "/proc/x"),
        (data.clone(), "/lib64"),
        (data.clone(), "/var/lib"),
        (PathBuf::from("data"), "/mnt"),
        (data.join("nothing"), "/mnt"),
        (home.clone(), "/mnt"),
        (home.join("agents"), "/mnt"),
        (world.lodge.dir().to_owned(), "/mnt"),
        (link, "/mnt"),
        (home.join("lodge.sock"), "/mnt"),
        (PathBuf::from("/"), "/mnt"),
        (PathBuf::from("/proc"), "/mnt"),
        (PathBuf::from("/sys"), "/mnt"),
        (PathBuf::from("/dev"), "/mnt"),
    ] {
        let mounts = json!([{"host": host, "target": target}]);
        api.refused("agent/create", json!({"content": AGENTFILE, "mounts": mounts}), "agent.bad_mount").await;
    }
    let large = "x".repeat(64 * 1024 + 1);
    for (key, value) in [
        ("PATH", "x"),
        ("HOME", "x"),
        ("XDG_DATA_HOME", "x"),
        ("LODGE_AGENT_ROOT", "x"),
        ("OPENAI_API_KEY", "x"),
        ("lower", "x"),
        ("A", large.as_str()),
        ("A", "zero\0byte"),
    ] {
        let params = json!({"content": AGENTFILE, "env": {key: value}});
        api.refused("agent/create", params, "agent.bad_env").await;
    }
    assert_eq!(api.ok("agent/list", json!({"all": true})).await["agents"], json!([]));
    assert_eq!(fs::read_dir(home.join("agents")).expect("a directory").count(), 0);
}

#[tokio::test]
async fn the_command_line_expands_paths_and_keeps_values_as_they_are() {
    let world = ApiWorld::new();
    let source = world.lodge.agent_dir("one", AGENTFILE, &[]);
    let notes = shared(&world.lodge, "notes");
    let value = "a=b\nc  d\tünï 🦦 \"quoted\" $HOME `x`";
    // HOME is the directory that `notes` lies in, and so is the working directory.
    let ran = world
        .lodge
        .cli_command(["run", source.to_str().expect("text"), "--detach", "--name", "one"])
        .args([
            "-v",
            "~/notes:/mnt/a:seen by me:ro",
            "-v",
            "./notes/../notes/file:/mnt/file",
            "-e",
            &format!("VALUE={value}"),
        ])
        .current_dir(world.lodge.dir())
        .output()
        .expect("lodge runs");
    assert!(!ran.status.success(), "read-only and not, of one directory");
    let ran = world
        .lodge
        .cli_command(["run", source.to_str().expect("text"), "--detach", "--name", "one"])
        .args(["-v", "~/notes:/mnt/a:seen by me:ro", "-v", "./notes/../notes/file:/mnt/file:ro"])
        .args(["-e", &format!("VALUE={value}"), "-e", "EMPTY="])
        .current_dir(world.lodge.dir())
        .output()
        .expect("lodge runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let mut api = world.checked().await;
    let view = api.agent_is("one", "ready").await;
    assert_eq!(
        view["mounts"],
        json!([
            {"host": notes, "target": "/mnt/a", "read_only": true, "description": "seen by me"},
            {"host": notes.join("file"), "target": "/mnt/file", "read_only": true},
        ])
    );
    let inspected = world.lodge.cli_ok(["inspect", "one"]);
    let mode = if is_root() { "(read-only, plain, rights of others)" } else { "(read-only)" };
    assert!(inspected.contains(&format!("at /mnt/a {mode}: seen by me")), "{inspected}");
    let said = api.answer("one", "s", "[[tool:env|[\"-0\"]]] [[reply:{{tool}}]]").await;
    assert!(said.split('\0').any(|pair| pair == format!("VALUE={value}")), "{said:?}");
    assert!(said.split('\0').any(|pair| pair == "EMPTY="), "{said:?}");
}

#[tokio::test]
async fn what_is_an_agents_own_is_kept_across_starts_and_gone_with_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}BIN ln host:ln \"l\"\nBIN chmod host:chmod \"c\"\n");
    let created = api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    let agent = id(&created).to_owned();
    let view = api.agent_is("one", "ready").await;
    let root = Path::new(view["root"].as_str().expect("a root")).to_owned();
    let places = ["workspace", "home", "home/.config", "var/lib", "tmp"];
    let script: String =
        places.iter().map(|place| format!("echo mine > \"$LODGE_AGENT_ROOT\"/{place}/kept\n")).collect();
    api.answer("one", "s", &sh(&script)).await;
    // A tool may leave links and odd modes in what is wiped; nothing that they lead to is touched.
    let outside = shared(&world.lodge, "outside");
    let planted = format!(
        "ln -s {} \"$LODGE_AGENT_ROOT\"/tmp/link; chmod 0 \"$LODGE_AGENT_ROOT\"/tmp/kept",
        outside.display()
    );
    api.answer("one", "s", &sh(&planted)).await;
    for _ in 0..2 {
        api.ok("agent/stop", json!({"agent": "one"})).await;
        api.ok("agent/start", json!({"agent": "one"})).await;
        api.agent_is("one", "ready").await;
        for place in &places[..4] {
            assert_eq!(text(root.join(place).join("kept")), "mine\n");
        }
        for name in ["kept", "link"] {
            assert!(root.join("tmp").join(name).symlink_metadata().is_err(), "tmp is wiped");
        }
    }
    assert_eq!(text(outside.join("file")), "from the host");
    let removed = api.ok("agent/remove", json!({"agent": agent, "force": true})).await;
    assert_eq!(removed["status"], "removed");
    assert!(!root.exists() && !world.lodge.home().join("logs").join(format!("{agent}.log")).exists());
}

#[tokio::test]
async fn what_is_reported_to_an_agent_follows_every_change_and_masks_what_looks_secret() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let source = world.lodge.agent_dir(
        "one",
        &format!(
            "{AGENTFILE}LABEL description=\"keeps the shop\"\nADD notes.txt notes.txt \"the stock\"\n\
             ENV COLOUR=blue \"of the door\"\nENV DB_PASSWORD=hunter2 \"of the till\"\nCONTEXT SOUL \"who I am\" <<E\nkind\nE\n\
             CONFIG max-tokens=99\nLIMIT memory 512m\nLIMIT pids 50\n"
        ),
        &[("notes.txt", "apples")],
    );
    let params = json!({"path": source, "name": "one", "env": {"EXTRA": "a|b\nc"}});
    api.ok("agent/create", params).await;
    let view = api.agent_is("one", "ready").await;
    let root = Path::new(view["root"].as_str().expect("a root")).to_owned();
    let told = text(root.join("etc/context/AGENT.md"));
    for words in [
        "You are the agent `one`",
        id(&view),
        "keeps the shop",
        "`mock/m`",
        "- `sh`: a shell",
        "`{\"args\": [\"…\"], \"stdin\": \"…\"}`",
        "etc/data/notes.txt` | the stock |",
        "| `COLOUR` | `blue` | of the door |",
        "| `DB_PASSWORD` | `[masked]` | of the till |",
        "| `EXTRA` | `a\\|b\\nc` |  |",
        "memory: 512 MiB",
        "processes: 50",
        "They reach neither this host nor private networks.",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(!told.contains("hunter2"));
    let workspace = text(root.join("etc/context/WORKSPACE.md"));
    assert!(workspace.contains("| `/workspace` |") && workspace.contains("| `/opt/bins` |"), "{workspace}");
    assert!(!root.join("etc/context/MOUNTS.md").exists());
    let yaml = text(root.join("etc/agent.yaml"));
    for words in [
        "id: agt_",
        "lodge:runtime",
        "sha256:",
        "/opt/lodge/runtime",
        "/etc/context/SOUL.md",
        "who I am",
        "max-tokens",
    ] {
        assert!(yaml.contains(words), "{words}: {yaml}");
    }
    for value in ["hunter2", "blue", "a|b"] {
        assert!(!yaml.contains(value), "{value}: {yaml}");
    }
    let order: Vec<usize> =
        ["AGENT.md", "WORKSPACE.md", "SOUL.md"].map(|name| yaml.find(name).expect("a file")).to_vec();
    assert!(order.is_sorted(), "{yaml}");
    // The model reads the same.
    api.answer("one", "s", "[[reply:hi]]").await;
    let changed = json!({"agent": "one", "env": {"EXTRA": "new", "MORE": "x"}, "model": "mock/other"});
    api.ok("agent/update", changed).await;
    let agent_md = root.join("etc/context/AGENT.md");
    until("the change shows", || {
        let told = fs::read_to_string(&agent_md).unwrap_or_default();
        let shows = ["| `EXTRA` | `new` |", "| `MORE` | `x` |", "`mock/other`"]
            .iter()
            .all(|words| told.contains(words));
        shows.then_some(())
    });
}
