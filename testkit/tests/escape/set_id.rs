//! An agent tries to leave set-id files and file capabilities in a mounted directory of the host, with the rights of the
//! directory's owner. What arrived is checked from outside.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::checked::CheckedClient;
use crate::host_disks::HostDisks;
use crate::world::{ApiWorld, is_root};

const ATTACK: &str = include_str!("set_id.py");
const AGENTFILE: &str = "FROM scratch\nNAME marker\nMODEL mock/m\nBIN python3 host:python3 \"tries\"\nADD set_id.py \"what it tries\"\nNETWORK none\n";
const OWNER: (u32, u32) = (1000, 1001);

/// The lines of a report, as attempt, outcome and detail.
fn attempts(report: &str) -> Vec<Vec<&str>> {
    assert!(report.ends_with("over\n"), "it came to its end: {report}");
    report.lines().map(|line| line.split('\t').collect()).filter(|row: &Vec<&str>| row.len() == 3).collect()
}

/// Everything beneath a directory with a set-id bit or a capability.
fn marked(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let meta = fs::symlink_metadata(&path).expect("a mode");
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a path");
        let key = c"security.capability";
        // SAFETY: both texts are C strings that outlive the call; with no room announced, the kernel only counts.
        let capability = unsafe { libc::lgetxattr(name.as_ptr(), key.as_ptr(), std::ptr::null_mut(), 0) };
        if meta.mode() & 0o6000 != 0 || capability >= 0 {
            found.push(path.clone());
        }
        if meta.is_dir() {
            found.extend(marked(&path));
        }
    }
    found
}

fn project(at: PathBuf) -> PathBuf {
    fs::create_dir(&at).expect("a directory");
    fs::set_permissions(&at, fs::Permissions::from_mode(0o700)).expect("a mode");
    chown(&at, Some(OWNER.0), Some(OWNER.1)).expect("an owner");
    at
}

async fn nothing_is_marked(world: &ApiWorld, api: &mut CheckedClient, name: &str, proj: &Path) {
    let dir = world.lodge.agent_dir(name, AGENTFILE, &[("set_id.py", ATTACK)]);
    let mounts = json!([{"host": proj, "target": "/proj", "read_only": false}]);
    api.ok("agent/create", json!({"path": dir, "name": name, "mounts": mounts})).await;
    let view = api.agent_is(name, "ready").await;
    assert_eq!(view["mounts"][0]["owner"], "1000:1001", "{view:#}");
    let root = PathBuf::from(view["root"].as_str().expect("a root"));
    let call = json!(["/etc/data/set_id.py", "/proj", "/workspace/report"]);
    let turn = api.say(name, name, &format!("[[tool:python3|{call}]] [[reply:{{{{tool}}}}]]")).await;
    let report = fs::read_to_string(root.join("workspace/report")).unwrap_or_default();
    assert!(!report.is_empty(), "{turn:#}");
    let rows = attempts(&report);
    for row in &rows {
        println!("{:<7} {:<62} {}", row[1], row[0], row[2]);
    }
    println!("{} attempts in {}", rows.len(), proj.display());
    assert!(rows.len() > 100, "{}", rows.len());
    let open: Vec<&Vec<&str>> = rows.iter().filter(|row| row[1] != "closed").collect();
    assert!(open.is_empty(), "{open:#?}");
    assert_eq!(marked(proj), Vec::<PathBuf>::new());
    assert_eq!(marked(&root), Vec::<PathBuf>::new());
    let made = fs::read_dir(proj).expect("a directory").filter_map(Result::ok);
    let owners: Vec<(u32, u32)> =
        made.map(|entry| entry.metadata().map_or((0, 0), |meta| (meta.uid(), meta.gid()))).collect();
    assert!(owners.len() > 50 && owners.iter().all(|owner| *owner == OWNER), "{owners:?}");
}

#[tokio::test]
async fn no_attempt_to_set_an_id_bit_or_a_capability_on_a_mapped_mount_succeeds() {
    if !is_root() {
        // Nothing is mapped then, and agents have the rights of their user anyway.
        return;
    }
    let mut world = ApiWorld::asleep();
    let base = world.lodge.dir().canonicalize().expect("a path");
    let mut disks = HostDisks::new();
    disks.mount("tmpfs", &base.join("disk"), "mode=755");
    let in_memory = project(base.join("disk/proj"));
    let on_disk = project(base.join("proj"));
    world.lodge.start();
    let mut api = world.checked().await;
    nothing_is_marked(&world, &mut api, "first", &in_memory).await;
    let mounts = json!([{"host": on_disk, "target": "/proj", "read_only": false}]);
    let plain = json!({"content": "FROM scratch\nMODEL mock/m\n", "name": "plain", "mounts": mounts});
    match api.call("agent/create", plain).await {
        Ok(_) => nothing_is_marked(&world, &mut api, "second", &on_disk).await,
        Err(refused) => {
            assert_eq!(refused["data"]["code"], "agent.mount_not_mapped", "{refused:#}");
            println!("owners cannot be mapped in {}", base.display());
        }
    }
    drop((world, disks));
}

/// Without a sandbox, the same attempts succeed. Those that need a namespace or another convention may not.
#[test]
fn an_id_bit_that_is_set_without_a_sandbox_is_noticed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (script, report) = (dir.path().join("set_id.py"), dir.path().join("report"));
    let place = dir.path().join("place");
    fs::create_dir(&place).expect("a directory");
    fs::write(&script, ATTACK).expect("a file");
    let done = Command::new("python3").args([&script, &place, &report]).output().expect("python3 runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report = fs::read_to_string(report).expect("a report");
    let rows = attempts(&report);
    let is_open = |name: &str| rows.iter().any(|row| row[0] == name && row[1] == "OPEN");
    let mut ways: Vec<String> = ["fchmod", "fchmodat", "fchmodat of a link"]
        .iter()
        .map(|way| format!("4755 on a file by {way}"))
        .collect();
    ways.extend(
        ["openat", "mknodat", "openat of a temporary file"]
            .map(|way| format!("a new file with 4755 by {way}")),
    );
    if is_root() {
        ways.extend(["setxattr", "fsetxattr"].map(|way| format!("a capability by {way}")));
    }
    for way in ways {
        assert!(is_open(&way), "{way}: {report}");
    }
    assert!(!marked(&place).is_empty());
}
