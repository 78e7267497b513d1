//! Starting up: where settings come from, and everything that can be wrong before the doors open.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use lodge_testkit::lodge::{Lodge, PATIENCE, bin, pause};
use serde_json::{Value, json};

use crate::world::{ApiWorld, is_root, told};

/// Starts a daemon that must refuse, and checks its words.
#[track_caller]
fn refuses(lodge: &Lodge, args: &[&str], code: i32, error: &str, hint: &str) -> String {
    let mut command = lodge.daemon_command();
    let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lodged");
    let end = Instant::now() + PATIENCE;
    while child.try_wait().expect("our child").is_none() {
        if Instant::now() >= end {
            // It serves and does not end.
            child.kill().expect("our child");
        }
        pause();
    }
    let (exit, out, err) = told(&child.wait_with_output().expect("lodged ran"));
    let lines: Vec<&str> = err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(exit == code && out.is_empty(), "exit {exit}: {out}{err}");
    assert!(lines.len() == 1 && lines[0].contains(error), "{err}");
    let hints: Vec<&str> = err.lines().filter(|line| line.starts_with("hint: ")).collect();
    assert!(hints.len() == 1 && hints[0].contains(hint), "{err}");
    err
}

/// Every file below a directory with its size, time and content.
fn picture(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).expect("a file");
        if meta.is_dir() {
            left.extend(
                fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()),
            );
        }
        let bytes = if meta.is_file() { fs::read(&path).expect("a file") } else { Vec::new() };
        files.push((path, bytes));
    }
    files.sort();
    files
}

fn with_config(text: &str) -> Lodge {
    let lodge = Lodge::new();
    fs::create_dir(lodge.home()).expect("a directory");
    fs::write(lodge.home().join("lodged.yaml"), text).expect("a file");
    lodge
}

#[test]
fn a_configuration_with_mistakes_starts_nothing_and_names_the_way_out() {
    for (text, error, hint) in [
        ("serve:\n  htp-addr: x\n", "unknown key `htp-addr`", "did you mean `http-addr`?"),
        ("serve:\n  max_jobs: 3\n", "unknown key `max_jobs`", "did you mean `max-jobs`?"),
        ("serve:\n  flavour: x\n", "unknown key `flavour`", "keys below `serve:` are executor"),
        ("server:\n  no-ui: true\n", "unknown key `server`", "serve"),
        ("serve: [a\n", "not valid YAML", "line"),
        ("- a\n", "not valid YAML", "`serve:`"),
        ("serve:\n  max-jobs: many\n", "`many` does not fit max-jobs", "a whole number"),
        ("serve:\n  max-jobs: 0\n", "`0` does not fit max-jobs", "from 1"),
        ("serve:\n  backoff-cap: 30\n", "`30` does not fit backoff-cap", "a duration such as"),
        ("serve:\n  executor: podman\n", "`podman` does not fit executor", "system or docker"),
        ("serve:\n  no-http: maybe\n", "`maybe` does not fit no-http", "true or false"),
    ] {
        let lodge = with_config(text);
        let before = picture(&lodge.home());
        let err = refuses(&lodge, &[], 2, error, hint);
        assert!(err.contains("lodged.yaml"), "{err}");
        assert_eq!(picture(&lodge.home()), before, "something was made for {text:?}");
    }
}

#[test]
fn flags_and_variables_with_mistakes_are_named_too() {
    let mut lodge = Lodge::new();
    refuses(&lodge, &["--max-jobs", "x"], 2, "`x` does not fit max-jobs (--max-jobs)", "a whole number");
    refuses(&lodge, &["--config", "/no/such.yaml"], 2, "could not read /no/such.yaml", "--config");
    lodge.set_env("LODGED_SHUTDOWN_TIMEOUT", "soon");
    refuses(&lodge, &[], 2, "`soon` does not fit shutdown-timeout (LODGED_SHUTDOWN_TIMEOUT)", "5s");
    lodge.unset_env("LODGED_SHUTDOWN_TIMEOUT");
    refuses(&lodge, &["--executor", "docker"], 1, "docker executor", "--executor system");
    refuses(&lodge, &["--http-addr", "nonsense"], 2, "`nonsense` does not fit http-addr", "ADDRESS:PORT");
    refuses(&lodge, &["--log-level", "lodge=loud"], 2, "`lodge=loud` does not fit log-level", "debug");
    let output = lodge.daemon_command().arg("--no-such-flag").output().expect("lodged runs");
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test]
async fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let mut lodge = with_config("serve:\n  max-jobs: 2\n  max-concurrent: 2\n  backoff-base: 2s\n");
    lodge.set_env("LODGED_MAX_JOBS", "3");
    lodge.set_env("LODGED_MAX_CONCURRENT", "3");
    fs::set_permissions(lodge.home(), fs::Permissions::from_mode(0o700)).expect("a mode");
    let mut command = lodge.daemon_command();
    let mut child =
        command.args(["serve", "--max-jobs=4"]).stderr(std::process::Stdio::null()).spawn().expect("lodged");
    let info = lodge_testkit::lodge::until("the daemon answers", || {
        let (code, out, _) = told(&lodge.cli(["--json", "info"]));
        (code == 0).then(|| serde_json::from_str::<Value>(&out).expect("JSON"))
    });
    child.kill().expect("our child");
    child.wait().expect("our child");
    let config = |key: &str| (info["config"][key]["value"].clone(), info["config"][key]["source"].clone());
    assert_eq!(config("max-jobs"), (json!(4), json!("flag")));
    assert_eq!(config("max-concurrent"), (json!(3), json!("env")));
    assert_eq!(config("backoff-base"), (json!("2s"), json!("file")));
    assert_eq!(config("backoff-cap"), (json!("30s"), json!("default")));
    assert_eq!(config("data-dir").1, "env");
    assert_eq!(info["config_file"], json!(lodge.home().join("lodged.yaml")));
    // Every flag of the contract is a setting with a value and a source.
    for key in
        "executor socket-path http-addr no-http no-ui max-concurrent max-jobs backoff-base backoff-cap \
        shutdown-timeout readiness-timeout revival-policy allowed-origins data-dir log-format log-level"
            .split(' ')
            .filter(|key| !key.is_empty())
    {
        assert!(info["config"][key]["source"].is_string(), "{key} is not shown");
    }
}

#[test]
fn a_state_directory_that_cannot_be_one_is_refused() {
    let lodge = Lodge::new();
    fs::write(lodge.home(), "a file").expect("a file");
    refuses(&lodge, &[], 1, "is not a directory", "move it away");
    assert_eq!(fs::read_to_string(lodge.home()).expect("a file"), "a file");

    let lodge = Lodge::new();
    fs::create_dir(lodge.home()).expect("a directory");
    fs::set_permissions(lodge.home(), fs::Permissions::from_mode(0o777)).expect("a mode");
    refuses(&lodge, &[], 1, "other users can write", "chmod go-w");
    assert_eq!(picture(&lodge.home()).len(), 1, "something was made");
    if !is_root() {
        let lodge = Lodge::new();
        fs::create_dir(lodge.home()).expect("a directory");
        fs::set_permissions(lodge.home(), fs::Permissions::from_mode(0o500)).expect("a mode");
        let err = refuses(&lodge, &[], 1, "could not make", "you own it");
        assert!(err.contains("ermission denied"), "{err}");
        refuses(&lodge, &["--data-dir", "/proc/lodge"], 1, "could not make", "state directory");
    }
}

#[tokio::test]
async fn a_socket_path_longer_than_the_kernel_takes_works() {
    let mut lodge = Lodge::new();
    let deep = lodge.dir().join("d".repeat(90)).join("e".repeat(90));
    fs::create_dir_all(&deep).expect("a directory");
    let socket = deep.join("lodge.sock");
    assert!(socket.as_os_str().len() > 200);
    lodge.set_env("LODGED_SOCKET_PATH", socket.to_str().expect("UTF-8"));
    let mut child = lodge.daemon_command().stderr(std::process::Stdio::null()).spawn().expect("lodged");
    let info = lodge_testkit::lodge::until("the daemon answers", || {
        let (code, out, _) =
            told(&lodge.cli(["--json", "--socket", socket.to_str().expect("UTF-8"), "info"]));
        (code == 0).then(|| serde_json::from_str::<Value>(&out).expect("JSON"))
    });
    assert_eq!(info["socket"], json!(socket));
    child.kill().expect("our child");
    child.wait().expect("our child");
    // And with the whole state directory that deep, an agent works in it.
    let mut lodge = Lodge::new();
    let home = lodge.dir().join("h".repeat(120));
    lodge.set_env("LODGE_HOME", home.to_str().expect("UTF-8"));
    let mut child = lodge.daemon_command().stderr(std::process::Stdio::null()).spawn().expect("lodged");
    lodge_testkit::lodge::until("the socket is there", || {
        fs::metadata(home.join("lodge.sock")).is_ok_and(|meta| meta.file_type().is_socket()).then_some(())
    });
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/hello");
    let ran = lodge
        .cli_command(["run".as_ref(), example.as_os_str(), "--rm".as_ref(), "hi".as_ref()])
        .env("LODGE_HOME", &home)
        .output();
    let (code, out, err) = told(&ran.expect("lodge runs"));
    child.kill().expect("our child");
    child.wait().expect("our child");
    assert!(code == 0 && out.contains("Guests so far: 1"), "{code} {out} {err}");
}

#[test]
fn an_address_that_is_not_here_and_a_taken_socket_path_are_refused_with_the_next_step() {
    let lodge = Lodge::new();
    // An address for documentation, which no machine has.
    let addr = "192.0.2.1:5500";
    refuses(&lodge, &["--http-addr", addr], 1, &format!("could not listen on {addr}"), "--http-addr");
    assert!(!lodge.home().join("lodge.sock").exists());
    fs::write(lodge.home().join("lodge.sock"), "mine").expect("a file");
    refuses(&lodge, &[], 1, "is not a socket", "move");
    assert_eq!(fs::read_to_string(lodge.home().join("lodge.sock")).expect("a file"), "mine");
    refuses(
        &lodge,
        &["--socket-path", "/no/such/dir/s"],
        1,
        "could not listen on /no/such/dir/s",
        "--socket-path",
    );
}

#[tokio::test]
async fn a_second_daemon_names_the_first_and_does_it_no_harm() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let pid = world.lodge.pid().expect("a daemon");
    let err = refuses(&world.lodge, &[], 75, "another daemon has the state directory", "--data-dir");
    assert!(err.contains(&format!("pid {pid}, epoch 1")), "{err}");
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
    assert_eq!(api.again(&world.lodge).await.ok("info", json!({})).await["pid"], json!(pid));
}

#[tokio::test]
async fn a_stale_socket_is_replaced_by_the_next_daemon() {
    let mut lodge = Lodge::started();
    lodge.kill9();
    assert!(lodge.home().join("lodge.sock").exists());
    lodge.start();
    let mut client = lodge.client().await;
    assert_eq!(client.call_value("info", json!({})).await.expect("info")["epoch"], 2);
    let mode = |name: &str| fs::metadata(lodge.home().join(name)).expect("a file").mode() & 0o777;
    assert_eq!((mode(""), mode("lodge.sock"), mode("credentials.json")), (0o700, 0o600, 0o600));
    assert_eq!((mode("anchor.lock"), mode("daemon.db")), (0o600, 0o600));
}

#[test]
fn a_database_from_the_future_is_refused_and_stays_byte_for_byte() {
    let mut lodge = Lodge::started();
    lodge.kill9();
    let path = lodge.home().join("daemon.db");
    let database = rusqlite::Connection::open(&path).expect("a database");
    database.pragma_update(None, "user_version", (99 << 16) | 99).expect("a version");
    // Closing the last connection moves the log into the file.
    database.close().expect("closed");
    let before = fs::read(&path).expect("a file");
    let err = refuses(&lodge, &[], 1, "was written by a newer Lodge", "nothing was changed");
    assert!(err.contains("schema 99"), "{err}");
    assert_eq!(fs::read(&path).expect("a file"), before);
    assert!(!lodge.home().join("daemon.db-wal").exists(), "it was opened");
    // The same when the newer release was killed and its version is still in the log beside the file.
    let mut lodge = Lodge::started();
    lodge.kill9();
    let path = lodge.home().join("daemon.db");
    let kept = rusqlite::Connection::open(&path).expect("a database");
    kept.pragma_update(None, "wal_autocheckpoint", 0).expect("a setting");
    kept.pragma_update(None, "user_version", (99 << 16) | 99).expect("a version");
    let files = ["daemon.db", "daemon.db-wal"].map(|name| lodge.home().join(name));
    let before = files.clone().map(|path| fs::read(path).expect("a file"));
    refuses(&lodge, &[], 1, "was written by a newer Lodge", "nothing was changed");
    assert_eq!(files.map(|path| fs::read(path).expect("a file")), before);
    drop(kept);
}

#[test]
fn a_file_that_is_no_database_is_refused_and_kept() {
    for bytes in [b"not a database, but somebody's diary".to_vec(), vec![0; 8192]] {
        let lodge = Lodge::new();
        fs::create_dir(lodge.home()).expect("a directory");
        fs::set_permissions(lodge.home(), fs::Permissions::from_mode(0o700)).expect("a mode");
        fs::write(lodge.home().join("daemon.db"), &bytes).expect("a file");
        refuses(&lodge, &[], 1, "is not a Lodge database", "move that file away");
        assert_eq!(fs::read(lodge.home().join("daemon.db")).expect("a file"), bytes);
    }
    // A database of another program.
    let lodge = Lodge::new();
    fs::create_dir(lodge.home()).expect("a directory");
    let other = rusqlite::Connection::open(lodge.home().join("daemon.db")).expect("a database");
    other.execute("CREATE TABLE diary (day TEXT)", []).expect("a table");
    drop(other);
    let before = fs::read(lodge.home().join("daemon.db")).expect("a file");
    refuses(&lodge, &[], 1, "is not a Lodge database", "move that file away");
    assert_eq!(fs::read(lodge.home().join("daemon.db")).expect("a file"), before);
}

#[test]
fn without_any_home_the_daemon_says_what_to_set() {
    let output = std::process::Command::new(bin("lodged")).env_clear().output().expect("lodged runs");
    let (code, _, err) = told(&output);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("error: no home directory") && err.contains("hint: set LODGE_HOME"), "{err}");
}
