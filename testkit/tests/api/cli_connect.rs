//! Errors for a wrong daemon address or wrong credentials.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use lodge_testkit::lodge::{Lodge, bin};

use crate::world::{ApiWorld, is_root, told};

/// A user that owns nothing here.
const NOBODY: u32 = 65_534;

/// What `lodge` says, without a daemon of its own.
fn run(away: &Lodge, args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
    let output = away.cli_command(args).envs(env.iter().copied()).output().expect("lodge runs");
    let (code, out, err) = told(&output);
    assert_eq!(out, "", "{args:?} {env:?}");
    (code, err)
}

#[test]
fn a_daemon_elsewhere_is_reached_with_a_token_and_says_how_to_get_one() {
    let (world, away) = (ApiWorld::new(), Lodge::new());
    let url = format!("http://{}", world.lodge.http_addr());
    let expected = format!(
        "error: there is no token for the daemon at {url}\n  \
         because: LODGE_TOKEN is not set, and the state directory has no token for that address\n\n\
         hint: run `lodge token issue` on the daemon's machine, and set LODGE_TOKEN to what it prints\n"
    );
    assert_eq!(run(&away, &["--daemon", &url, "ps"], &[]), (1, expected));
    // The hint is true.
    let token = world.lodge.cli_ok(["token", "issue"]);
    assert_eq!(
        run(&away, &["--daemon", &url, "-q", "ps"], &[("LODGE_TOKEN", token.trim())]),
        (0, String::new())
    );
}

#[test]
fn the_token_of_another_daemon_is_not_taken_for_one_that_the_user_gave() {
    let (world, other) = (ApiWorld::new(), ApiWorld::new());
    let url = format!("http://{}", world.lodge.http_addr());
    let expected = format!(
        "error: there is no token for the daemon at {url}\n  \
         because: LODGE_TOKEN is not set, and the token in the state directory is not one of that daemon's\n\n\
         hint: run `lodge token issue` on the daemon's machine, and set LODGE_TOKEN to what it prints\n"
    );
    assert_eq!(run(&other.lodge, &["--daemon", &url, "ps"], &[]), (1, expected));
    let token = other.lodge.cli_ok(["token", "issue"]);
    let (code, err) = run(&other.lodge, &["--daemon", &url, "ps"], &[("LODGE_TOKEN", token.trim())]);
    assert_eq!(code, 1);
    assert!(err.starts_with("error: the token is not one of this daemon's\n"), "{err}");
}

#[test]
fn variables_with_something_else_in_them_are_named() {
    let (world, away) = (ApiWorld::new(), Lodge::new());
    let (url, socket) =
        (format!("http://{}", world.lodge.http_addr()), world.lodge.home().join("lodge.sock"));
    let socket = socket.to_str().expect("UTF-8");
    for args in [["--daemon", &url, "ps"], ["--socket", socket, "ps"]] {
        for garbage in ["garbage", "gar bage", "a.b.c"] {
            let (code, err) = run(&away, &args, &[("LODGE_TOKEN", garbage)]);
            assert_eq!(code, 1, "{err}");
            assert!(err.starts_with("error: LODGE_TOKEN is not a token of Lodge\n\nhint: "), "{err}");
            assert!(err.contains("`lodge token issue`"), "{err}");
        }
    }
    let file = away.dir().join("bad.pem");
    fs::write(&file, "nothing").expect("a file");
    let secure = format!("https://{}", world.lodge.http_addr());
    for (path, why) in [
        (away.dir().join("missing.pem"), "no such file"),
        (file, "it has no certificate"),
        (away.dir().to_owned(), "it is a directory"),
    ] {
        let path = path.to_str().expect("UTF-8");
        let (code, err) = run(&away, &["--daemon", &secure, "ps"], &[("LODGE_CA_FILE", path)]);
        assert_eq!(code, 1, "{err}");
        let head =
            format!("error: the file given by LODGE_CA_FILE cannot be used: {path}\n  because: {why}\n");
        assert!(err.starts_with(&head), "{err}");
    }
}

#[test]
fn a_path_or_a_url_in_the_wrong_place_is_reported_with_the_right_one() {
    let (world, away) = (ApiWorld::new(), Lodge::new());
    let url = format!("http://{}", world.lodge.http_addr());
    let (home, socket) = (world.lodge.home(), world.lodge.home().join("lodge.sock"));
    let (home, socket) = (home.to_str().expect("UTF-8"), socket.to_str().expect("UTF-8"));
    let missing = away.dir().join("missing.sock");
    let missing = missing.to_str().expect("UTF-8");
    let file = away.dir().join("file");
    fs::write(&file, "").expect("a file");
    let file = file.to_str().expect("UTF-8");
    for (args, env, code, because, hint) in [
        (["--daemon", socket], None, 2, "because: it is a socket\n", format!("write `--socket {socket}`")),
        (["--daemon", home], None, 2, "because: it is a directory\n", format!("set LODGE_HOME={home}")),
        (["--daemon", missing], None, 2, "no such file or directory\n", "`--socket PATH`".to_owned()),
        (
            ["--socket", &url],
            None,
            2,
            "is a URL, not the path of a socket\n",
            format!("write `--daemon {url}`"),
        ),
        (["--socket", home], None, 3, "because: it is a directory\n", format!("`--socket {socket}`")),
        (["--socket", file], None, 3, "because: it is a file, not a socket\n", "check the path".to_owned()),
        (["--socket", missing], None, 3, "because: no such file or directory\n", "`lodged serve`".to_owned()),
        (
            ["--daemon", &url],
            Some(url.as_str()),
            2,
            "is not an address\n",
            "LODGE_DAEMON_ADDR=127.".to_owned(),
        ),
        (["--daemon", &url], Some(socket), 2, "is not an address\n", "chosen by LODGE_SOCKET".to_owned()),
    ] {
        let args = [args[0], args[1], "ps"];
        let env: Vec<(&str, &str)> = env.map(|addr| ("LODGE_DAEMON_ADDR", addr)).into_iter().collect();
        let (found, err) = run(&away, &args, &env);
        assert_eq!(found, code, "{args:?} {env:?}: {err}");
        assert!(err.contains(because) && err.contains(&hint), "{args:?} {env:?}: {err}");
    }
}

#[test]
fn a_state_directory_that_is_a_file_is_reported_before_anything_is_started() {
    let away = Lodge::new();
    let file = away.dir().join("file");
    fs::write(&file, "").expect("a file");
    let mut command = away.cli_command(["ps"]);
    command.env("LODGE_HOME", &file).env_remove("LODGE_NO_AUTOSTART");
    let (code, _, err) = told(&command.output().expect("lodge runs"));
    let expected = format!(
        "error: the state directory {} is not a directory\n\n\
         hint: move it away, or set LODGE_HOME to a directory\n",
        file.display()
    );
    assert_eq!((code, err), (1, expected));
}

#[test]
fn a_state_directory_that_is_a_link_to_nothing_is_reported_with_its_target() {
    let away = Lodge::new();
    let (link, target) = (away.dir().join("link"), away.dir().join("gone"));
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    let mut command = away.cli_command(["ps"]);
    command.env("LODGE_HOME", &link).env_remove("LODGE_NO_AUTOSTART");
    let (code, _, err) = told(&command.output().expect("lodge runs"));
    let expected = format!(
        "error: the state directory {} is a link to nothing\n\nhint: create {}, or set LODGE_HOME to another directory\n",
        link.display(),
        target.display()
    );
    assert_eq!((code, err), (1, expected));
}

#[test]
fn the_socket_of_another_user_is_reported_with_that_user() {
    if !is_root() {
        // Only root can be another user.
        return;
    }
    let world = ApiWorld::new();
    let socket = world.lodge.home().join("lodge.sock");
    // A copy that all users can run, and a state directory for it.
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let (lodge, home) = (dir.path().join("lodge"), dir.path().join("home"));
    fs::copy(bin("lodge"), &lodge).expect("a copy");
    fs::create_dir(&home).expect("a directory");
    chown(&home, Some(NOBODY), Some(NOBODY)).expect("root gives away");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).expect("a mode");
    let id = NOBODY.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(&lodge).arg("--socket").arg(&socket);
    command.arg("ps").env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.env("LODGE_HOME", &home).env("LODGE_NO_AUTOSTART", "1").current_dir("/");
    let (code, _, err) = told(&command.output().expect("setpriv runs"));
    assert_eq!(code, 3, "{err}");
    let head = format!(
        "error: could not connect to the socket {}\n  because: permission denied\n",
        socket.display()
    );
    assert!(err.starts_with(&head), "{err}");
    assert!(err.contains(" belongs to user 0: run this as that user, or set LODGE_HOME"), "{err}");
}
