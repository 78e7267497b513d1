//! State directories that another user could have prepared: neither the daemon nor the command trusts them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::json;

use crate::world::{A_TOKEN, ApiWorld, is_root, told};

/// A user that runs no test.
const STRANGER: u32 = 54_321;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
}

/// Both programs refuse the directory in the same words, and the daemon makes nothing in it.
#[track_caller]
fn refused(world: &ApiWorld, why: &str, hint: &str) {
    let before: Vec<_> =
        fs::read_dir(world.lodge.home()).expect("a directory").flatten().map(|e| e.path()).collect();
    let daemon = told(&world.lodge.daemon_command().output().expect("lodged runs"));
    let command = world.cli(&["info"]);
    let mut starting = world.lodge.cli_command(["ps"]);
    starting.env_remove("LODGE_NO_AUTOSTART");
    let starting = told(&starting.output().expect("lodge runs"));
    for (code, out, err) in [daemon, command, starting] {
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.starts_with("error: ") && err.contains(why) && err.contains(hint), "{err}");
    }
    let after: Vec<_> =
        fs::read_dir(world.lodge.home()).expect("a directory").flatten().map(|e| e.path()).collect();
    assert_eq!(before, after);
}

#[test]
fn a_directory_that_others_can_write_is_refused_wherever_on_the_way_it_is() {
    let world = ApiWorld::asleep();
    let (home, above) = (world.lodge.home(), world.lodge.dir().to_owned());
    for mode in [0o777, 0o720, 0o1777] {
        chmod(&home, mode);
        refused(&world, "other users can write", &format!("chmod go-w {}", home.display()));
    }
    chmod(&home, 0o700);
    let mode = above.metadata().expect("a directory").mode();
    chmod(&above, 0o777);
    refused(&world, &format!("other users can write {}", above.display()), "chmod go-w");
    // In a sticky directory such as /tmp, users can rename only their own files.
    chmod(&above, 0o1777);
    assert_eq!(world.cli(&["info"]).0, 3);
    chmod(&above, mode & 0o7777);
    let config = home.join("lodged.yaml");
    fs::write(&config, "serve:\n  no-http: true\n").expect("a file");
    chmod(&config, 0o666);
    refused(&world, &config.display().to_string(), "chmod go-w");
}

#[test]
fn a_link_to_a_directory_that_others_can_replace_is_refused() {
    let mut world = ApiWorld::asleep();
    let (dir, home) = (world.lodge.dir().to_owned(), world.lodge.home());
    let open = dir.join("open");
    fs::create_dir(&open).expect("a directory");
    fs::rename(&home, open.join("real")).expect("a directory");
    symlink(open.join("real"), &home).expect("a link");
    chmod(&open, 0o777);
    refused(&world, &format!("other users can write {}", open.display()), "chmod go-w");
    chmod(&open, 0o755);
    world.lodge.start();
    assert_eq!(world.cli(&["info"]).0, 0);
}

#[test]
fn root_does_not_use_the_directory_of_another_user() {
    if !is_root() {
        return;
    }
    let world = ApiWorld::asleep();
    let home = world.lodge.home();
    chown(&home, Some(STRANGER), Some(STRANGER)).expect("root gives away");
    refused(&world, &format!("belongs to user {STRANGER}, not to you (user 0)"), "set LODGE_HOME");
    chown(&home, Some(0), Some(0)).expect("root takes");
    // Nor one in that user's home, which is nothing for root to remove or to take.
    let above = world.lodge.dir().to_owned();
    chown(&above, Some(STRANGER), None).expect("root gives away");
    let hint = format!("hint: run this as user {STRANGER}, or set LODGE_HOME to a directory of your own");
    refused(&world, &format!("{} on the way to it belongs to user {STRANGER}", above.display()), &hint);
    let (_, _, err) = world.cli(&["ps"]);
    assert!(!err.contains("chown") && !err.contains("remove"), "{err}");
    chown(&above, Some(0), None).expect("root takes");
    for name in ["daemon.db", "credentials.json", "lodged.yaml"] {
        let path = home.join(name);
        fs::write(&path, "").expect("a file");
        chown(&path, Some(STRANGER), None).expect("root gives away");
        refused(&world, &format!("{} belongs to user {STRANGER}", path.display()), "chown");
        fs::remove_file(&path).expect("a file");
    }
    let bin = home.join("bin");
    fs::create_dir(&bin).expect("a directory");
    chown(&bin, Some(STRANGER), None).expect("root gives away");
    refused(&world, &bin.display().to_string(), "chown");
}

#[test]
fn a_token_does_not_go_to_a_socket_in_a_directory_that_others_can_write() {
    let world = ApiWorld::asleep();
    let home = world.lodge.home();
    let listener = UnixListener::bind(home.join("lodge.sock")).expect("a socket");
    listener.set_nonblocking(true).expect("a socket");
    fs::write(home.join("credentials.json"), r#"{"token":"sesame"}"#).expect("a file");
    chmod(&home, 0o777);
    let (code, _, err) = world.cli(&["ps"]);
    assert_eq!(code, 1, "{err}");
    assert!(listener.accept().is_err(), "somebody connected");
    // With a token and an address of its own a command has no use for the directory.
    let mut elsewhere = world.lodge.cli_command(["--daemon", "http://127.0.0.1:1", "ps"]);
    elsewhere.env("LODGE_TOKEN", A_TOKEN);
    assert_eq!(told(&elsewhere.output().expect("lodge runs")).0, 3);
}

#[tokio::test]
async fn a_program_that_was_swapped_is_not_run() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.ok("agent/stop", json!({"agent": agent})).await;
    api.agent_is(&agent, "stopped").await;
    let bin = world.lodge.home().join("bin");
    let ran = world.lodge.dir().join("ran");
    let swap = || {
        let mut swapped = 0;
        for entry in fs::read_dir(&bin).expect("programs").flatten() {
            let len = usize::try_from(entry.metadata().expect("a program").len()).expect("a size");
            let mut script = format!("#!/bin/sh\ntouch {}\nexit\n", ran.display()).into_bytes();
            script.resize(len, b'\n');
            fs::remove_file(entry.path()).expect("a program");
            fs::write(entry.path(), script).expect("a program");
            chmod(&entry.path(), 0o755);
            swapped += 1;
        }
        assert_eq!(swapped, 2, "keeper and runtime");
    };
    // While a daemon runs that has used them, and before the next one does.
    swap();
    api.ok("agent/start", json!({"agent": agent})).await;
    api.agent_is(&agent, "ready").await;
    assert_eq!(api.answer(&agent, "s", "[[reply:first]]").await, "first");
    api.ok("agent/stop", json!({"agent": agent})).await;
    api.agent_is(&agent, "stopped").await;
    drop(api);
    world.lodge.kill9();
    swap();
    world.lodge.start();
    let mut api = world.checked().await;
    api.ok("agent/start", json!({"agent": agent})).await;
    api.agent_is(&agent, "ready").await;
    assert_eq!(api.answer(&agent, "s", "[[reply:second]]").await, "second");
    assert!(!ran.exists());
}
