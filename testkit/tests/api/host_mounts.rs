//! Projects of the host under a daemon of root: the agent has the rights of their owner, and leaves nothing behind that
//! would give them to others. Under a daemon of an ordinary user the files are that user's, and nothing is mapped.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::host_disks::HostDisks;
use crate::world::{AGENTFILE, ApiWorld, is_root, kill, sh};

/// Whose project it is, as root has it.
const OWNER: (u32, u32) = (1000, 1001);
const TOOLS: &str = "BIN git host:git \"versions\"\nBIN python3 host:python3 \"calls\"\nNETWORK none\n";

/// A directory that is closed to others, with a repository in it. As root, everything in it belongs to that owner.
fn project(at: &Path, (uid, gid): (u32, u32)) -> PathBuf {
    let mut git = Command::new("git");
    git.args(["init", "-q"]).arg(at).env_clear();
    git.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/nonexistent");
    let made = git.output().expect("git runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::set_permissions(at, fs::Permissions::from_mode(0o700)).expect("a mode");
    if is_root() {
        give(at, uid, gid);
    }
    at.to_owned()
}

fn give(path: &Path, uid: u32, gid: u32) {
    lchown(path, Some(uid), Some(gid)).expect("an owner");
    if path.is_dir() {
        fs::read_dir(path)
            .expect("a directory")
            .for_each(|entry| give(&entry.expect("an entry").path(), uid, gid));
    }
}

fn owner_of(path: &Path) -> (u32, u32) {
    let found = path.symlink_metadata().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (found.uid(), found.gid())
}

async fn create(api: &mut CheckedClient, name: &str, mounts: Value) -> Value {
    let params = json!({"content": format!("{AGENTFILE}{TOOLS}"), "name": name, "mounts": mounts});
    api.ok("agent/create", params).await;
    api.agent_is(name, "ready").await
}

async fn says(api: &mut CheckedClient, agent: &str, script: &str) -> String {
    let script = format!("PATH=/opt/bins:/usr/bin:/bin\n{script}");
    api.answer(agent, "s", &format!("{} [[reply:{{{{tool}}}}]]", sh(&script))).await
}

async fn commits(api: &mut CheckedClient, agent: &str, name: &str) -> String {
    let script = format!(
        "cd /proj && git status --short 2>&1 && echo {name} > {name} && mkdir -p dir-{name} && git add {name} 2>&1 && \
         git -c user.name=a -c user.email=b commit -q -m '{name}' 2>&1 && git log --format=%s | cat"
    );
    says(api, agent, &script).await
}

fn layer<'v>(view: &'v Value, name: &str) -> &'v Value {
    let layers = view["isolation"].as_array().expect("layers");
    layers.iter().find(|layer| layer["name"] == name).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn an_agent_works_in_a_project_with_the_rights_of_its_owner_also_after_kills_and_restarts() {
    let mut world = ApiWorld::asleep();
    let base = world.lodge.dir().canonicalize().expect("a path");
    let disks = is_root().then(|| {
        let mut disks = HostDisks::new();
        disks.mount("tmpfs", &base.join("disk"), "mode=755");
        disks
    });
    let disk = if is_root() { base.join("disk") } else { base.clone() };
    let proj = project(&disk.join("proj"), OWNER);
    if is_root() {
        fs::write(proj.join("of-another"), "").expect("a file");
        chown(proj.join("of-another"), Some(1234), Some(1235)).expect("an owner");
    }
    world.lodge.start();
    let mut api = world.checked().await;
    let view = create(&mut api, "one", json!([{"host": proj, "target": "/proj"}])).await;
    let expected = if is_root() { OWNER } else { owner_of(&proj) };
    if is_root() {
        assert_eq!(view["mounts"][0]["owner"], "1000:1001");
        assert_eq!(layer(&view, "mount_owner")["in_force"], true, "{view:#}");
        let inspected = world.lodge.cli_ok(["inspect", "one"]);
        assert!(inspected.contains("at /proj (owner 1000:1001 → agent)"), "{inspected}");
        let seen = says(&mut api, "one", "stat -c %u:%g /proj /proj/of-another; id -u").await;
        let uid = &view["uid"];
        assert!(seen.contains(&format!("{uid}:{uid}\n1234:1235\n{uid}")), "{seen}");
    } else {
        assert_eq!(view["mounts"], json!([{"host": proj, "target": "/proj", "read_only": false}]));
        assert!(view["mounts"][0]["owner"].is_null() && layer(&view, "mount_owner").is_null(), "{view:#}");
    }
    let said = commits(&mut api, "one", "first").await;
    assert!(said.contains("first") && !said.contains("dubious"), "{said}");
    // A daemon that was killed adopts the sandbox with its mounts; a restart mounts again.
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.agent_is("one", "ready").await;
    assert!(commits(&mut api, "one", "second").await.contains("second\nfirst"));
    api.ok("agent/restart", json!({"agent": "one"})).await;
    api.agent_is("one", "ready").await;
    assert!(commits(&mut api, "one", "third").await.contains("third\nsecond\nfirst"));
    let keeper = api.ok("agent/get", json!({"agent": "one"})).await["pid"].as_i64().expect("a pid");
    kill(i32::try_from(keeper).expect("a pid"), libc::SIGKILL);
    api.until("agent/get", json!({"agent": "one"}), |view| {
        view["status"] == "ready" && view["pid"] != keeper
    })
    .await;
    assert!(commits(&mut api, "one", "fourth").await.contains("fourth\nthird"));
    for name in ["first", "dir-first", "second", "third", "fourth", "dir-fourth", ".git/index"] {
        assert_eq!(owner_of(&proj.join(name)), expected, "{name}");
    }
    drop((world, disks));
}

/// Ways to set a set-id bit, with what is left of the file.
const SET_ID: &str = r#"
import ctypes, os, platform, stat
libc = ctypes.CDLL(None, use_errno=True)
numbers = {'x86_64': dict(chmod=90, fchmod=91, open=2, creat=85, mknod=133, openat=257, mknodat=259, fchmodat=268,
                          mkdir=83, openat2=437, fchmodat2=452, uring=425),
           'aarch64': dict(fchmod=52, openat=56, mknodat=33, fchmodat=53, openat2=437, fchmodat2=452, uring=425)}
calls = numbers[platform.machine()]
AT = ctypes.c_int(-100)
def call(name, *args):
    if name not in calls: return None
    done = libc.syscall(ctypes.c_long(calls[name]), *args)
    return 'done' if done >= 0 else os.strerror(ctypes.get_errno())
def fresh(name):
    path = ('/proj/' + name).encode()
    if os.path.exists(path): os.unlink(path)
    return path
for bits in (0o4755, 0o2755, 0o6755):
    for name in ('chmod', 'fchmod', 'fchmodat', 'fchmodat2'):
        path = fresh(name); fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o755)
        args = {'chmod': (path, bits), 'fchmod': (fd, bits), 'fchmodat': (AT, path, bits), 'fchmodat2': (AT, path, bits, 0)}
        call(name, *args[name])
    new = os.O_CREAT | os.O_RDWR
    call('open', fresh('open'), new, bits); call('openat', AT, fresh('openat'), new, bits)
    call('creat', fresh('creat'), bits)
    call('mknod', fresh('mknod'), stat.S_IFREG | bits, 0); call('mknodat', AT, fresh('mknodat'), stat.S_IFREG | bits, 0)
    how = (ctypes.c_uint64 * 3)(new, bits, 0)
    call('openat2', AT, fresh('openat2'), how, 24)
    fd = libc.syscall(ctypes.c_long(calls['openat']), AT, b'/proj', os.O_TMPFILE | os.O_RDWR, bits)
    if fd >= 0: os.link('/proc/self/fd/%d' % fd, '/proj/tmpfile', follow_symlinks=True)
    call('mkdir', fresh('mkdir-%o' % bits), bits)
print('uring', call('uring', 8, (ctypes.c_char * 120)()))
left = [name for name in os.listdir('/proj') if os.lstat('/proj/' + name).st_mode & 0o6000]
print('left', left)
"#;

#[tokio::test]
async fn no_agent_leaves_a_set_id_program_in_a_project_and_ordinary_modes_stay_possible() {
    let mut world = ApiWorld::asleep();
    let base = world.lodge.dir().canonicalize().expect("a path");
    let disks = is_root().then(|| {
        let mut disks = HostDisks::new();
        disks.mount("tmpfs", &base.join("disk"), "mode=755");
        disks
    });
    let disk = if is_root() { base.join("disk") } else { base.clone() };
    let proj = project(&disk.join("proj"), OWNER);
    world.lodge.start();
    let mut api = world.checked().await;
    let view = create(&mut api, "one", json!([{"host": proj, "target": "/proj"}])).await;
    assert_eq!(layer(&view, "set_id_bits")["in_force"], true, "{view:#}");
    let program = if is_root() { SET_ID.to_owned() } else { SET_ID.replace("0o4755, 0o2755,", "0o4755,") };
    let text = format!("[[tool:python3|{}]] [[reply:{{{{tool}}}}]]", json!(["-c", program]));
    let said = api.answer("one", "s", &text).await;
    assert!(said.contains("left []") && !said.contains("uring done"), "{said}");
    let modes = fs::read_dir(&proj).expect("a directory").map(|entry| {
        let entry = entry.expect("an entry");
        (entry.file_name(), entry.metadata().expect("its mode").mode() & 0o7777)
    });
    let modes: Vec<_> = modes.collect();
    assert!(modes.iter().all(|(_, mode)| mode & 0o6000 == 0), "{modes:?}");
    assert!(modes.iter().any(|(name, _)| name == "fchmodat2"), "{modes:?}");
    let script = "cd /proj && install -m 755 /bin/true plain && cp -p plain copied && chmod 1700 copied && \
        tar -cf a.tar plain && rm plain && tar -xpf a.tar && test -x plain && mkdir -m 1777 sticky && echo ordi''nary; \
        install -m 4755 /bin/true marked 2>&1; git init -q inner && echo init''ed";
    let said = says(&mut api, "one", script).await;
    for words in ["ordinary", "Operation not permitted", "inited"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let marked = proj.join("marked").symlink_metadata().map_or(0, |found| found.mode());
    assert_eq!(marked & 0o6000, 0);
    drop((world, disks));
}

#[tokio::test]
async fn a_read_only_project_can_be_read_as_its_owner_and_not_written() {
    let mut world = ApiWorld::asleep();
    let base = world.lodge.dir().canonicalize().expect("a path");
    let disks = is_root().then(|| {
        let mut disks = HostDisks::new();
        disks.mount("tmpfs", &base.join("disk"), "mode=755");
        disks
    });
    let disk = if is_root() { base.join("disk") } else { base.clone() };
    let proj = project(&disk.join("proj"), OWNER);
    fs::write(proj.join("secret"), "of the owner").expect("a file");
    fs::set_permissions(proj.join("secret"), fs::Permissions::from_mode(0o600)).expect("a mode");
    if is_root() {
        chown(proj.join("secret"), Some(OWNER.0), Some(OWNER.1)).expect("an owner");
    }
    world.lodge.start();
    let mut api = world.checked().await;
    let mounts = json!([{"host": proj, "target": "/proj", "read_only": true}, {"host": proj.join("secret"), "target": "/one-file", "read_only": true}]);
    create(&mut api, "one", mounts).await;
    let script = "cat /proj/secret /one-file; git -C /proj status --short 2>&1; echo x > /proj/new; echo x > /one-file";
    let said = says(&mut api, "one", script).await;
    assert!(said.contains("of the ownerof the owner") && said.contains("?? secret"), "{said}");
    assert!(said.contains("Read-only file system") && !said.contains("dubious"), "{said}");
    assert!(!proj.join("new").exists());
    drop((world, disks));
}

#[tokio::test]
async fn directories_of_root_are_mapped_only_if_that_is_asked_for() {
    let mut world = ApiWorld::asleep();
    let base = world.lodge.dir().canonicalize().expect("a path");
    if !is_root() {
        world.lodge.start();
        let mut api = world.checked().await;
        fs::create_dir(base.join("mine")).expect("a directory");
        let mounts = json!([{"host": base.join("mine"), "target": "/proj", "map_root": true}]);
        let params = json!({"content": AGENTFILE, "mounts": mounts});
        let refused = api.refused("agent/create", params, "agent.mount_not_mapped").await;
        assert!(refused.to_string().contains("daemon that runs as root"), "{refused}");
        return;
    }
    let mut disks = HostDisks::new();
    disks.mount("tmpfs", &base.join("disk"), "mode=755");
    let proj = base.join("disk/proj");
    fs::create_dir(&proj).expect("a directory");
    world.lodge.start();
    let mut api = world.checked().await;
    let source = world.lodge.agent_dir("agent", &format!("{AGENTFILE}{TOOLS}"), &[]);
    let (source, mount) = (source.to_str().expect("text"), format!("{}:/proj", proj.display()));
    let (code, _, told) = world.cli(&["run", source, "--name", "one", "--detach", "-v", &mount]);
    assert!(code == 0 && told.contains("only the rights of others"), "{code} {told}");
    let view = api.agent_is("one", "ready").await;
    assert!(view["mounts"][0]["owner"].is_null(), "{view:#}");
    assert!(layer(&view, "mount_owner").is_null(), "{view:#}");
    let inspected = world.lodge.cli_ok(["inspect", "one"]);
    assert!(inspected.contains("at /proj (plain, rights of others)"), "{inspected}");
    assert!(says(&mut api, "one", "echo x > /proj/new").await.contains("Permission denied"));
    // The same agent gets root's rights by an update that says so.
    world.lodge.cli_ok(["agent", "update", "one", "-v", &format!("{mount}:rw,map-root")]);
    let view =
        api.until("agent/get", json!({"agent": "one"}), |view| !layer(view, "mount_owner").is_null()).await;
    assert_eq!((&view["mounts"][0]["owner"], &view["mounts"][0]["map_root"]), (&json!("0:0"), &json!(true)));
    let said = says(&mut api, "one", "echo x > /proj/new && chmod 4755 /proj/new; echo en''d").await;
    assert!(said.contains("Operation not permitted") && said.contains("end"), "{said}");
    assert_eq!(owner_of(&proj.join("new")), (0, 0));
    assert_eq!(proj.join("new").metadata().expect("a file").mode() & 0o7000, 0);
    drop((world, disks));
}

#[tokio::test]
async fn a_file_system_that_cannot_map_owners_is_refused_before_anything_is_made() {
    if !is_root() {
        // An ordinary user's agents are that user on every file system.
        return;
    }
    let mut world = ApiWorld::asleep();
    let base = world.lodge.dir().canonicalize().expect("a path");
    let mut disks = HostDisks::new();
    disks.mount("tmpfs", &base.join("disk"), "mode=755");
    for part in ["lower", "upper", "work"] {
        fs::create_dir(base.join("disk").join(part)).expect("a directory");
    }
    let part = |name: &str| base.join("disk").join(name).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", part("lower"), part("upper"), part("work"));
    disks.mount("overlay", &base.join("over"), &options);
    let proj = project(&base.join("over/proj"), OWNER);
    world.lodge.start();
    let mut api = world.checked().await;
    let source = world.lodge.agent_dir("agent", &format!("{AGENTFILE}{TOOLS}"), &[]);
    let (source, mount) = (source.to_str().expect("text"), format!("{}:/proj", proj.display()));
    let (code, _, told) = world.cli(&["run", source, "--name", "one", "--detach", "-v", &mount]);
    assert_eq!(code, 1, "{told}");
    for words in ["belongs to user 1000", "overlay", "hint: ", "run lodged as user 1000", "chmod -R o+rwX"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(api.ok("agent/list", json!({"all": true})).await["agents"], json!([]));
    let read_only = json!([{"host": proj, "target": "/proj", "read_only": true}]);
    let params = json!({"content": AGENTFILE, "mounts": read_only});
    api.refused("agent/create", params.clone(), "agent.mount_not_mapped").await;
    // What everybody may use needs no owner's rights.
    fs::set_permissions(&proj, fs::Permissions::from_mode(0o755)).expect("a mode");
    api.ok("agent/create", params).await;
    let writable = json!({"content": AGENTFILE, "mounts": [{"host": proj, "target": "/proj"}]});
    api.refused("agent/create", writable.clone(), "agent.mount_not_mapped").await;
    fs::set_permissions(&proj, fs::Permissions::from_mode(0o777)).expect("a mode");
    let created = api.ok("agent/create", writable).await;
    assert!(created["mounts"][0]["owner"].is_null(), "{created:#}");
    drop((world, disks));
}

#[tokio::test]
async fn a_project_that_belongs_to_others_now_is_not_mounted_with_their_rights() {
    if !is_root() {
        // There is nobody else whose rights it could have.
        return;
    }
    let mut world = ApiWorld::asleep();
    let base = world.lodge.dir().canonicalize().expect("a path");
    let mut disks = HostDisks::new();
    disks.mount("tmpfs", &base.join("disk"), "mode=755");
    let proj = project(&base.join("disk/proj"), OWNER);
    world.lodge.start();
    let mut api = world.checked().await;
    create(&mut api, "one", json!([{"host": proj, "target": "/proj"}])).await;
    api.ok("agent/stop", json!({"agent": "one"})).await;
    // Who may write above it can put another directory in its place.
    fs::rename(&proj, base.join("disk/away")).expect("a move");
    fs::create_dir(&proj).expect("a directory");
    api.ok("agent/start", json!({"agent": "one"})).await;
    let failed =
        api.until("agent/get", json!({"agent": "one"}), |view| view["failure_reason"] == "init").await;
    let detail = failed["failure_detail"].as_str().expect("a detail");
    for words in ["was 1000:1001 and is 0:0 now", "lodge agent update -v", "proj"] {
        assert!(detail.contains(words), "{detail}");
    }
    fs::remove_dir(&proj).expect("an empty directory");
    fs::rename(base.join("disk/away"), &proj).expect("a move");
    api.ok("agent/stop", json!({"agent": "one"})).await;
    api.ok("agent/start", json!({"agent": "one"})).await;
    api.agent_is("one", "ready").await;
    assert!(commits(&mut api, "one", "again").await.contains("again"));
    drop((world, disks));
}
