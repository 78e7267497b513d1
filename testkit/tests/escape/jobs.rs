//! A job is fenced like a tool: the attempts of one that a model submitted, and names planted where output is kept.

use std::fs;
use std::path::{Path, PathBuf};

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::targets::CANARY;
use crate::world::{AGENTFILE, ApiWorld, id};

/// Tries each way in the list, and says which were open.
const ATTEMPTS: &str = r#"
import os, sys
own, given = sys.argv[1], sys.argv[2:]
def listed(path):
    # Of the way to its own files an agent sees the names, and no others.
    strange = set(os.listdir(path)) - {'agents', own}
    if not strange: raise PermissionError('nothing of others')
    return strange
def tries(what, way):
    try:
        found = way()
    except Exception as error:
        print('closed\t%s\t%s' % (what, type(error).__name__))
    else:
        print('OPEN\t%s\t%r' % (what, found))
for path in given:
    tries('read ' + path, lambda: open(path, 'rb').read(64))
    tries('write ' + path, lambda: open(path, 'r+b').write(b'planted'))
    tries('list ' + path, lambda: listed(path))
    tries('link ' + path, lambda: os.link(path, 'linked'))
    tries('remove ' + path, lambda: os.unlink(path))
    # Where it has a directory of its own at the same path, this works, and only the test can tell.
    try: os.symlink('/etc/passwd', path + '.planted')
    except OSError: pass
for name in os.listdir('/proc/self/fd'):
    if int(name) > 2:
        # The list of them was one, and is closed.
        tries('inherit ' + name, lambda: os.readlink('/proc/self/fd/' + name))
print('over')
"#;

async fn over(api: &mut CheckedClient, job: &str) -> Value {
    api.until("job/get", json!({"job": job}), |view| !view["finished_at"].is_null()).await
}

async fn output(api: &mut CheckedClient, job: &str, stream: &str) -> String {
    let output = api.ok("job/output", json!({"job": job, "stream": stream, "limit": 1 << 20})).await;
    output["data"].as_str().expect("data").to_owned()
}

async fn submit(api: &mut CheckedClient, agent: &str, script: &str) -> String {
    let asked = json!({"agent": agent, "bin": "sh", "args": ["-c", script]});
    id(&api.ok("job/submit", asked).await).to_owned()
}

/// Where the files of a job that is not archived yet are.
fn exec_dir(world: &ApiWorld, job: &str) -> Option<PathBuf> {
    let sandboxes = fs::read_dir(world.lodge.home().join("run")).ok()?;
    sandboxes.flatten().map(|sandbox| sandbox.path().join("exec").join(job)).find(|dir| dir.is_dir())
}

/// An agent that can run Python.
async fn burglar(api: &mut CheckedClient) -> String {
    let content = format!("{AGENTFILE}BIN python3 host:python3 \"tries\"\n");
    let created = api.ok("agent/create", json!({"content": content, "name": "burglar"})).await;
    api.agent_is("burglar", "ready").await;
    id(&created).to_owned()
}

#[tokio::test]
async fn nothing_that_a_job_tries_with_the_state_the_archive_and_the_output_of_others_succeeds() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (victim, burglar) = (world.agent(&mut api, "victim").await, burglar(&mut api).await);
    // One job whose output is archived, and one whose output lies in its files.
    let archived = submit(&mut api, &victim, &format!("echo {CANARY}")).await;
    over(&mut api, &archived).await;
    until("it is archived", || exec_dir(&world, &archived).is_none().then_some(()));
    let running = submit(&mut api, &victim, &format!("echo {CANARY}; sleep 600")).await;
    api.until("job/get", json!({"job": running}), |view| view["stdout_bytes"] == CANARY.len() + 1).await;
    let own = submit(&mut api, &burglar, "echo mine; sleep 600").await;
    api.until("job/get", json!({"job": own}), |view| view["stdout_bytes"] == 5).await;
    let home = world.lodge.home().canonicalize().expect("a state directory");
    let mut paths: Vec<PathBuf> =
        ["", "daemon.db", "daemon.db-wal", "output.db", "output.db-wal", "run", "agents", "credentials.json"]
            .map(|name| home.join(name))
            .into();
    for job in [&running, &own] {
        let dir = exec_dir(&world, job).expect("its files").canonicalize().expect("a path");
        paths.extend(["stdout", "stderr", "order"].map(|name| dir.join(name)));
        paths.push(dir);
    }
    let before = seen(&home);
    // As a model does it.
    let mut args = vec!["-c".to_owned(), ATTEMPTS.to_owned(), burglar.clone()];
    args.extend(paths.iter().map(|path| path.display().to_string()));
    let call = json!({"bin": "python3", "args": args});
    let told = api.answer(&burglar, "b", &format!("[[tool:job_submit|{call}]] [[reply:{{{{tool}}}}]]")).await;
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"));
    let job = told["job_id"].as_str().expect("an id").to_owned();
    let done = over(&mut api, &job).await;
    let (report, err) = (output(&mut api, &job, "stdout").await, output(&mut api, &job, "stderr").await);
    assert!(done["exit_code"] == 0 && report.ends_with("over\n"), "{done:#}\n{report}\n{err}");
    let open: Vec<&str> = report.lines().filter(|line| line.starts_with("OPEN")).collect();
    assert!(open.is_empty(), "{open:#?}");
    assert!(report.lines().filter(|line| line.starts_with("closed")).count() >= paths.len() * 5);
    assert!(!report.contains(CANARY), "{report}");
    assert_eq!(seen(&home), before, "names came or went");
    // All output is unchanged.
    assert_eq!(output(&mut api, &archived, "stdout").await, format!("{CANARY}\n"));
    assert_eq!(output(&mut api, &running, "stdout").await, format!("{CANARY}\n"));
    assert_eq!(output(&mut api, &own, "stdout").await, "mine\n");
}

/// The names in the state directory, but those that come and go by themselves.
fn seen(home: &Path) -> Vec<String> {
    let names = fs::read_dir(home).expect("a directory").flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
    names.sort();
    names
}

#[tokio::test]
async fn a_model_reads_no_job_of_another_agent_by_its_tools() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (victim, burglar) = (world.agent(&mut api, "victim").await, burglar(&mut api).await);
    let asked = json!({"agent": victim, "session": "v", "bin": "sh", "args": ["-c", format!("echo {CANARY}; sleep 600")]});
    let job = id(&api.ok("job/submit", asked).await).to_owned();
    api.until("job/get", json!({"job": job}), |view| view["stdout_bytes"] == CANARY.len() + 1).await;
    for tool in ["job_status", "job_wait", "job_watch", "job_cancel"] {
        let call = json!({"job_id": job});
        let told = api.answer(&burglar, "b", &format!("[[tool:{tool}|{call}]] [[reply:{{{{tool}}}}]]")).await;
        assert!(told.contains("async job not found") && !told.contains(CANARY), "{tool}: {told}");
    }
    assert_eq!(api.ok("job/get", json!({"job": job})).await["status"], "running");
}

/// Puts something else where a file of a job was.
type Plant<'a> = &'a dyn Fn(&Path);

#[tokio::test]
async fn names_planted_where_the_output_of_a_job_is_kept_lead_nowhere_and_stop_nobody() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let outside = world.lodge.dir().join("outside");
    fs::write(&outside, CANARY).expect("a file");
    // Only the daemon's own user can write there: a keeper of another release, or a broken one.
    let plants: [(&str, Plant<'_>); 3] = [
        ("stdout", &|path| std::os::unix::fs::symlink(&outside, path).expect("a link")),
        ("stderr", &|path| fs::hard_link(&outside, path).expect("a second name")),
        ("order", &|path| std::os::unix::fs::symlink("/dev/zero", path).expect("a link")),
    ];
    for (name, plant) in plants {
        let job =
            submit(&mut api, &agent, "echo said; echo more >&2; until test -e go; do sleep 0.02; done").await;
        api.until("job/get", json!({"job": job}), |view| view["stdout_bytes"] == 5).await;
        let path = exec_dir(&world, &job).expect("its files").join(name);
        // Where the order is not written yet there is nothing in the way.
        drop(fs::remove_file(&path));
        plant(&path);
        for stream in ["stdout", "stderr", "merged"] {
            let read = api.call("job/output", json!({"job": job, "stream": stream})).await;
            assert!(!read.unwrap_or_else(|refused| refused).to_string().contains(CANARY), "{name}, {stream}");
        }
        fs::write(world.lodge.home().join("agents").join(&agent).join("workspace/go"), "").expect("a file");
        let done = over(&mut api, &job).await;
        assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(0)), "{name}: {done:#}");
        until("its files are gone", || exec_dir(&world, &job).is_none().then_some(()));
        for stream in ["stdout", "stderr", "merged"] {
            let read = api.call("job/output", json!({"job": job, "stream": stream})).await;
            assert!(!read.unwrap_or_else(|refused| refused).to_string().contains(CANARY), "{name}, {stream}");
        }
        assert_eq!(fs::read_to_string(&outside).expect("a file"), CANARY, "{name}");
        fs::remove_file(world.lodge.home().join("agents").join(&agent).join("workspace/go")).expect("a file");
    }
    let job = submit(&mut api, &agent, "echo well").await;
    over(&mut api, &job).await;
    assert_eq!(output(&mut api, &job, "stdout").await, "well\n");
}
