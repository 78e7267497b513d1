//! Agents that take all there is: processes, memory, disk. The host and the other agents go on.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, family, sh};

const LIMITS: &str = "LIMIT pids 60\nLIMIT memory 128m\nLIMIT disk 32m\n";
const PIDS_MAX: usize = 60;
/// What may be written before the limit is noticed: half of what is tried. It is counted, so a fast disk gets far beyond it.
const DISK_MAX_BYTES: u64 = 2 * 1024 * 1024 * 1024;

async fn scene(world: &ApiWorld) -> CheckedClient {
    let mut api = world.checked().await;
    let tools =
        "BIN python3 host:python3 \"takes all\"\nBIN sh host:sh \"a shell\"\nBIN dd host:dd \"writes\"\n";
    let content = format!("FROM scratch\nNAME bomb\nMODEL mock/m\n{tools}{LIMITS}");
    api.ok("agent/create", json!({"content": content, "name": "bomb"})).await;
    api.agent_is("bomb", "ready").await;
    world.agent(&mut api, "calm").await;
    api
}

/// Starts the bomb, regardless of the outcome of its turn, and lets the other agent answer.
async fn explode(api: &mut CheckedClient, program: &str) -> String {
    let call = json!(["-c", program]);
    let turn = api.say("bomb", "s", &format!("[[tool:python3|{call}]] [[reply:{{{{tool}}}}]]")).await;
    let answer = api.answer("calm", "c", &format!("{} [[reply:{{{{tool}}}}]]", sh("echo well"))).await;
    assert!(answer.contains("well"), "{answer}");
    turn["text"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_fork_bomb_fills_its_own_sandbox_and_no_other() {
    let world = ApiWorld::new();
    let mut api = scene(&world).await;
    let program = "import os, time\nn = 0\nfor _ in range(2000):\n    try:\n        if os.fork() == 0: time.sleep(1000)\n        \
        n += 1\n    except OSError: pass\nprint('forked', n)";
    let text = explode(&mut api, program).await;
    let view = api.ok("agent/get", json!({"agent": "bomb"})).await;
    let keeper = view["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let living = keeper.map_or(0, |keeper| family(keeper).len());
    // The keeper and what guards execs are not counted.
    assert!(living <= PIDS_MAX + 8, "{living} processes: {text}");
    assert!(!text.contains("forked 2000"), "{text}");
    // What it left goes with it.
    api.ok("agent/stop", json!({"agent": "bomb"})).await;
    assert!(keeper.is_none_or(|keeper| family(keeper).is_empty()));
}

#[tokio::test]
async fn a_memory_bomb_is_over_before_the_host_is() {
    let world = ApiWorld::new();
    let mut api = scene(&world).await;
    for program in [
        "b = []\nfor _ in range(4096): b.append(bytearray(b'x' * (1 << 20)))\nprint('TOOK', len(b))",
        "for n in range(4096): open('/dev/shm/fill%d' % n, 'wb').write(b'x' * (1 << 20))\nprint('TOOK all')",
    ] {
        let text = explode(&mut api, program).await;
        assert!(!text.contains("TOOK"), "{text}");
        api.agent_is("bomb", "ready").await;
    }
}

fn bytes_beneath(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_beneath(&entry.path()),
        Ok(meta) => std::os::unix::fs::MetadataExt::blocks(&meta) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

#[tokio::test]
async fn a_disk_is_not_filled_by_one_agent_wherever_it_writes() {
    let world = ApiWorld::new();
    let mut api = scene(&world).await;
    let view = api.ok("agent/get", json!({"agent": "bomb"})).await;
    let root = Path::new(view["root"].as_str().expect("a root")).to_owned();
    for place in ["fill", "../var/lib/fill", "/tmp/fill", "/var/tmp/fill"] {
        // As one file, and as many.
        let program = format!(
            "try:\n    f = open('{place}', 'wb', buffering=0)\n    for _ in range(4096): f.write(b'x' * (1 << 20))\n\
             except OSError:\n    for n in range(4096): open('{place}%d' % n, 'wb').write(b'x' * (1 << 20))\nprint('WROTE all')"
        );
        let text = explode(&mut api, &program).await;
        assert!(!text.contains("WROTE"), "{place}: {text}");
        let used = bytes_beneath(&root);
        assert!(used <= DISK_MAX_BYTES, "{place}: {used} bytes");
        let tidy = "rm -f fill* ../var/lib/fill* /tmp/fill* /var/tmp/fill*";
        api.until("agent/get", json!({"agent": "bomb"}), |view| view["status"] != "working").await;
        let tidied = format!("{} [[reply:tidy]]", sh(&format!("PATH=/usr/bin:/bin {tidy}; true")));
        assert_eq!(api.say("bomb", "t", &tidied).await["status"], "done", "{place}");
    }
}
