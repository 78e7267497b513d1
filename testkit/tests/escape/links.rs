//! Names that an agent plants where the daemon reads and writes: they lead nowhere, and block nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::json;

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, sh};

/// More than a model gets, so that all of it is kept as a file.
const LOUD: &str = "i=0; while [ $i -lt 40000 ]; do echo 'a line that is long enough to count for something'; i=$((i+1)); done";

/// A foreign directory and its state.
fn outside(world: &ApiWorld) -> (std::path::PathBuf, String) {
    let dir = world.lodge.dir().join("outside");
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("kept"), "as it was").expect("a file");
    let seen = seen(&dir);
    (dir, seen)
}

fn seen(dir: &Path) -> String {
    let mut names: Vec<_> =
        fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let (dir_meta, kept) = (fs::metadata(dir).expect("a directory"), dir.join("kept"));
    let meta = fs::metadata(&kept).expect("a file");
    format!(
        "{names:?} {:o} {} {:o} {} {} {:?}",
        dir_meta.mode(),
        dir_meta.uid(),
        meta.mode(),
        meta.uid(),
        meta.nlink(),
        fs::read_to_string(kept)
    )
}

/// Lets the agent run a script, and then one that is loud: both turns must come to their end.
async fn plant(api: &mut CheckedClient, script: &str) {
    api.answer("one", "s", &format!("{} [[reply:planted]]", sh(script))).await;
    api.answer("one", "s", &format!("{} [[reply:loud]]", sh(LOUD))).await;
}

#[tokio::test]
async fn links_in_place_of_an_agents_directories_are_not_followed_by_the_daemon() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let (dir, before) = outside(&world);
    let to = dir.display();
    for place in [
        "var/log/tools",
        "var/log",
        "var/lib",
        "var",
        "home/.cache",
        "home/.local/share",
        "home",
        "tmp",
        "workspace",
        "etc",
        "usr",
    ] {
        let script = format!(
            "cd \"$LODGE_AGENT_ROOT\"; mkdir -p var/log; rm -rf {place} 2>/dev/null; mv {place} {place}.old 2>/dev/null; \
             ln -s {to} {place} 2>/dev/null; true"
        );
        plant(&mut api, &script).await;
        assert_eq!(seen(&dir), before, "while it runs, with {place}");
        api.ok("agent/stop", json!({"agent": "one"})).await;
        api.ok("agent/start", json!({"agent": "one"})).await;
        api.agent_is("one", "ready").await;
        api.answer("one", "t", &format!("{} [[reply:again]]", sh("echo again > ../tmp/file; echo x > file")))
            .await;
        assert_eq!(seen(&dir), before, "after a start, with {place}");
    }
    api.ok("agent/remove", json!({"agent": "one", "force": true})).await;
    assert_eq!(seen(&dir), before, "after it was removed");
}

#[tokio::test]
async fn no_kind_of_file_in_the_place_of_a_log_holds_the_daemon_up() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}BIN python3 host:python3 \"makes files\"\n");
    api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    api.agent_is("one", "ready").await;
    let (dir, before) = outside(&world);
    for make in [
        "os.mkfifo('var/log/tools')",
        "open('var/log/tools', 'w').truncate(1 << 40)",
        "s = __import__('socket').socket(1); s.bind('var/log/tools')",
        "os.symlink('/dev/zero', 'var/log/tools')",
        "os.symlink('tools', 'var/log/tools')",
        "os.mkdir('var/log/tools'); os.chmod('var/log/tools', 0)",
        "os.mkdir('var/log/tools'); [os.mkfifo('var/log/tools/%d.stdout' % n) for n in range(300)]",
        "os.mkdir('var/log/tools'); [os.symlink('/etc/passwd', 'var/log/tools/exe_%d.stdout' % n) for n in range(300)]",
    ] {
        let script = format!(
            "import os, shutil\nos.chdir(os.environ['LODGE_AGENT_ROOT'])\nos.makedirs('var/log', exist_ok=True)\n\
             try:\n    os.chmod('var/log/tools', 0o700); shutil.rmtree('var/log/tools')\nexcept NotADirectoryError: os.unlink('var/log/tools')\n\
             except OSError:\n    os.path.lexists('var/log/tools') and os.unlink('var/log/tools')\n{make}"
        );
        let call = json!(["-c", script]);
        api.answer("one", "s", &format!("[[tool:python3|{call}]] [[reply:planted]]")).await;
        api.answer("one", "s", &format!("{} [[reply:loud]]", sh(LOUD))).await;
    }
    // The daemon reads logs and lists agents as before.
    api.ok("agent/logs", json!({"agent": "one"})).await;
    api.ok("agent/remove", json!({"agent": "one", "force": true})).await;
    assert_eq!(seen(&dir), before);
}
