//! What an agent's tools see of the world, and what they do not.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::world::{AGENTFILE, ApiWorld, is_root, sh};

#[tokio::test]
async fn the_environment_of_a_tool_is_the_documented_one_and_nothing_else() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("CANARY", "of-the-daemon");
    world.lodge.set_env("LD_LIBRARY_PATH", "/canary");
    world.lodge.start();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}ENV FROM_IMAGE=one\nENV OVERRIDDEN=image\nENV EMPTY=\n");
    let params =
        json!({"content": content, "name": "one", "env": {"OVERRIDDEN": "flag", "EXTRA": "a b=c\nd"}});
    api.ok("agent/create", params).await;
    let view = api.agent_is("one", "ready").await;
    assert!(view["root"].as_str().is_some_and(|root| root.starts_with('/')), "where the host has it");
    let text = api.answer("one", "s", "[[tool:env|[\"-0\"]]] [[reply:{{tool}}]]").await;
    let seen: BTreeMap<&str, &str> = text
        .split('\0')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.rsplit('\n').next().unwrap_or(key), value))
        .collect();
    let below = |part: &str| format!("/{part}");
    let expected: BTreeMap<&str, String> = BTreeMap::from([
        ("PATH", below("opt/bins")),
        ("HOME", below("home")),
        ("XDG_CONFIG_HOME", below("home/.config")),
        ("XDG_CACHE_HOME", below("home/.cache")),
        ("XDG_DATA_HOME", below("home/.local/share")),
        ("TMPDIR", below("tmp")),
        ("LANG", "C.UTF-8".to_owned()),
        ("LODGE_AGENT_ROOT", "/".to_owned()),
        ("FROM_IMAGE", "one".to_owned()),
        ("OVERRIDDEN", "flag".to_owned()),
        ("EMPTY", String::new()),
        ("EXTRA", "a b=c\nd".to_owned()),
    ]);
    assert_eq!(seen, expected.iter().map(|(key, value)| (*key, value.as_str())).collect(), "{text:?}");
    assert_eq!(view["env_keys"], json!(["EMPTY", "EXTRA", "FROM_IMAGE", "OVERRIDDEN"]));
    assert!(!view.to_string().contains("a b=c"), "values are not shown");
}

#[tokio::test]
async fn a_tool_reaches_neither_the_daemons_files_nor_its_socket_nor_another_agent() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let other = world.agent(&mut api, "two").await;
    api.answer(&other, "other", &sh("echo private > note")).await;
    let home = world.lodge.home();
    let note = home.join("agents").join(&other).join("workspace/note");
    assert!(note.exists());
    let mut script = String::new();
    for path in [home.join("daemon.db"), home.join("credentials.json"), home.join("providers.yaml"), note] {
        for prefix in ["", "/proc/1/root", "/proc/self/root"] {
            script.push_str(&format!(
                "cat {prefix}{} 2>/dev/null && echo RE''AD {prefix}{}\n",
                path.display(),
                path.display()
            ));
        }
    }
    script.push_str(&format!("test -S {}/lodge.sock && echo SOC''KET\n", home.display()));
    script.push_str(&format!("echo x > {}/planted\n", home.display()));
    script.push_str("echo x > \"$LODGE_AGENT_ROOT\"/etc/planted 2>/dev/null && echo WR''OTE\n");
    script.push_str("echo x > \"$LODGE_AGENT_ROOT\"/opt/bins/planted 2>/dev/null && echo WR''OTE\n");
    script.push_str("cat /proc/[0-9]*/comm\necho end\n");
    let text = format!("{} [[reply:{{{{tool}}}}]]", sh(&script));
    let answer = api.answer(&agent, "s", &text).await;
    for word in ["READ", "SOCKET", "WROTE", "lodged", &other] {
        assert!(!answer.contains(word), "{word}: {answer}");
    }
    assert!(answer.contains("end"));
    assert!(!home.join("planted").exists());
}

#[tokio::test]
async fn agents_of_root_have_users_of_their_own_and_others_stay_who_they_are() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let mut uids = Vec::new();
    for name in ["one", "two"] {
        world.agent(&mut api, name).await;
        let text = api.answer(name, name, "[[tool:id|[\"-u\"]]] [[reply:{{tool}}]]").await;
        let uid: u32 = text.split_whitespace().find_map(|word| word.parse().ok()).expect("a uid");
        let view = api.ok("agent/get", json!({"agent": name})).await;
        if is_root() {
            assert_eq!(view["uid"], json!(uid));
            assert!(uid > 100_000, "{uid}");
        }
        uids.push(uid);
    }
    assert_eq!(uids[0] == uids[1], !is_root(), "{uids:?}");
    assert!(!uids.contains(&0) || !is_root());
}

#[tokio::test]
async fn the_isolation_in_force_is_reported_and_each_missing_layer_says_why() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let info = api.ok("info", json!({})).await;
    let view = api.ok("agent/get", json!({"agent": "one"})).await;
    let layers = info["isolation"].as_array().expect("layers");
    let in_force = view["isolation"].as_array().expect("layers");
    // Only an agent has a gate.
    let in_force: Vec<&Value> = in_force.iter().filter(|layer| layer["name"] != "gate").collect();
    assert_eq!(
        json!(in_order(layers.iter())),
        json!(in_order(in_force.into_iter())),
        "what is promised is in force"
    );
    assert!(layers.len() >= 8);
    for layer in layers {
        let name = layer["name"].as_str().expect("a name");
        let tells_its_way = name == "kill" || name.starts_with("limit_");
        assert!(tells_its_way || layer["in_force"].as_bool() == Some(layer["why"].is_null()), "{layer}");
        assert!(!tells_its_way || layer["why"].is_string(), "{layer}");
        if layer["in_force"] == false {
            let warned = info["warnings"].to_string();
            assert!(warned.contains(layer["name"].as_str().expect("a name")), "{warned}");
        }
    }
}

#[tokio::test]
async fn the_root_has_the_documented_layout_and_description() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let text = format!(
        "{AGENTFILE}CONFIG max-tokens=100\nCONFIG custom-key=kept\nENV GREETING=hello\nADD note.txt \"a note\"\nCONTEXT SOUL <<EOF\nBe kind.\nEOF\n"
    );
    let dir = world.lodge.agent_dir("full", &text, &[("note.txt", "a note\n")]);
    let mounts = json!([{"host": world.lodge.dir().join("src-full"), "target": "/data", "read_only": true}]);
    api.ok("agent/create", json!({"path": dir, "name": "full", "mounts": mounts})).await;
    let view = api.agent_is("full", "ready").await;
    let root = Path::new(view["root"].as_str().expect("a root"));
    for part in ["etc/context", "etc/data", "opt/bins", "workspace", "tmp", "home", "var/lib"] {
        assert!(root.join(part).is_dir(), "{part}");
    }
    assert_eq!(fs::read_to_string(root.join("etc/Agentfile")).expect("a file"), text);
    assert_eq!(fs::read_to_string(root.join("etc/data/note.txt")).expect("a file"), "a note\n");
    assert_eq!(fs::read_to_string(root.join("etc/context/SOUL.md")).expect("a file").trim(), "Be kind.");
    let yaml = fs::read_to_string(root.join("etc/agent.yaml")).expect("a file");
    for line in [
        format!("id: {}", view["id"].as_str().expect("an id")),
        "name: full".to_owned(),
        "model: mock/m".to_owned(),
        "workspace: /workspace".to_owned(),
        format!("  digest: {}", view["image_digest"].as_str().expect("a digest")),
        "  max-tokens: \"100\"".to_owned(),
        "  custom-key: kept".to_owned(),
        "- key: GREETING".to_owned(),
        "- target: /data".to_owned(),
        "  read_only: true".to_owned(),
        "- name: SOUL".to_owned(),
        "  file: /etc/context/SOUL.md".to_owned(),
        "- name: sh".to_owned(),
        "  binary: /opt/bins/sh".to_owned(),
        "  ref: host:sh".to_owned(),
    ] {
        assert!(yaml.lines().any(|found| found == line), "{line} is missing:\n{yaml}");
    }
    assert!(!yaml.contains("hello") && !yaml.contains("src-full"), "values and host paths stay out:\n{yaml}");
    // A host program is recorded with where it is and what it is.
    let tool = &view["tools"][0];
    let path = tool["path"].as_str().expect("a path");
    assert!(path.starts_with('/') && tool["source"] == "host:sh", "{tool}");
    assert!(
        tool["digest"].as_str().is_some_and(|digest| digest.starts_with("sha256:") && digest.len() == 71)
    );
    assert!(matches!(&tool["note"], Value::String(note) if note.contains("not a boundary")), "{tool}");
}

#[tokio::test]
async fn of_the_host_an_agent_reads_what_its_programs_are_made_of_and_nothing_else() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "reader").await;
    // Every Linux has all of them, open to all users.
    let script = "ls -d /*; echo; for place in /var/cache /var/run /srv /mnt /run /root /boot /media; do test -e $place && echo \"$place is there\"; done; \
        ls /home /var /opt /sys /sys/fs 2>/dev/null; for place in /usr/bin /etc /proc \"$LODGE_AGENT_ROOT\"; do ls $place >/dev/null || echo \"$place is closed\"; done; echo over";
    api.answer(&agent, "s", &format!("{} [[reply:x]]", sh(script))).await;
    let messages = api.ok("session/messages", json!({"session": "s"})).await;
    let told = messages["messages"].as_array().unwrap().iter().find(|message| message["role"] == "tool");
    let told = told.expect("a result")["text"].as_str().expect("a text").to_owned();
    let first = world.lodge.home().canonicalize().expect("a path");
    let first = first.components().nth(1).expect("a directory").as_os_str().to_string_lossy().into_owned();
    let is_known = |name: &str| {
        let ours = [
            "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc", "sbin", "sys",
            "tmp",
        ];
        ours.contains(&name) || ["usr", "var", "workspace"].contains(&name) || name == first
    };
    let top: Vec<&str> = told.lines().take_while(|line| line.starts_with('/')).collect();
    assert!(top.len() >= 10 && top.iter().all(|path| is_known(&path[1..])), "{told}");
    assert!(
        !told.contains("is there") && !told.contains("is closed") && told.trim().ends_with("over"),
        "{told}"
    );
    assert!(told.contains("bins\nlodge") || told.contains("bin-images"), "{told}");
}

/// Layers by their names: they are listed in the order in which they were built.
fn in_order<'l>(layers: impl Iterator<Item = &'l Value>) -> Vec<&'l Value> {
    let mut layers: Vec<&Value> = layers.collect();
    layers.sort_by_key(|layer| layer["name"].as_str());
    layers
}
