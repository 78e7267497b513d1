//! Standard input beside the text of a prompt: pipes are sent, files only with `-`, and nothing else is read.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, told};

/// Runs a command with these bytes on a pipe.
fn piped(world: &ApiWorld, args: &[&str], bytes: &[u8]) -> (i32, String, String) {
    let mut command = world.lodge.cli_command(args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lodge");
    // A command that refuses may end before it has read everything.
    drop(child.stdin.take().expect("stdin").write_all(bytes));
    told(&child.wait_with_output().expect("an end"))
}

/// The first message of a session.
async fn sent(api: &mut CheckedClient, session: &str) -> Value {
    api.ok("session/messages", json!({"session": session})).await["messages"][0]["text"].clone()
}

#[tokio::test]
async fn a_pipe_is_sent_with_the_text_in_a_block_that_it_cannot_close() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let (code, out, err) =
        piped(&world, &["prompt", "one", "-s", "a", "sum", "up [[reply:ok]]"], b"line 1\n```\nline 2\n");
    assert_eq!((code, out.as_str(), err.as_str()), (0, "ok\n", ""));
    assert_eq!(
        sent(&mut api, "a").await,
        "sum up [[reply:ok]]\n\nStandard input:\n````stdin\nline 1\n```\nline 2\n````"
    );
    // Of an empty pipe there is nothing to send.
    assert_eq!(piped(&world, &["prompt", "one", "-s", "b", "[[reply:ok]]"], b"").0, 0);
    assert_eq!(sent(&mut api, "b").await, "[[reply:ok]]");
    // Some programs are given a socket, as by inetd and some shells over a network.
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    (&ours).write_all(b"from a socket").expect("sent");
    drop(ours);
    let mut command = world.lodge.cli_command(["prompt", "one", "-s", "c", "[[reply:ok]]"]);
    let output = command.stdin(Stdio::from(OwnedFd::from(theirs))).output().expect("lodge runs");
    assert!(output.status.success());
    assert_eq!(sent(&mut api, "c").await, "[[reply:ok]]\n\nStandard input:\n```stdin\nfrom a socket\n```");
    // `run` with a prompt does the same.
    let dir = world.lodge.agent_dir("two", AGENTFILE, &[]);
    let dir = dir.to_str().expect("UTF-8");
    let args = ["run", dir, "--name", "two", "-s", "d", "[[reply:ok]]"];
    let (code, out, err) = piped(&world, &args, b"for a new agent\n");
    assert_eq!((code, out.as_str()), (0, "ok\n"), "{err}");
    assert_eq!(sent(&mut api, "d").await, "[[reply:ok]]\n\nStandard input:\n```stdin\nfor a new agent\n```");
}

#[tokio::test]
async fn a_file_is_read_only_with_a_dash_so_that_a_loop_keeps_its_lines() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let names = world.lodge.dir().join("names");
    std::fs::write(&names, "first\nsecond\nthird\n").expect("a file");
    let lodge = lodge_testkit::lodge::bin("lodge");
    let script = format!(
        "while read -r name; do {} prompt one -s \"$name\" \"[[reply:$name]]\"; done",
        lodge.display()
    );
    let mut shell = std::process::Command::new("sh");
    shell.env("LODGE_HOME", world.lodge.home()).env("HOME", world.lodge.dir()).env("LODGE_NO_AUTOSTART", "1");
    let output = shell.args(["-c", &script]).stdin(File::open(&names).expect("a file")).output();
    let (code, out, err) = told(&output.expect("a shell"));
    assert_eq!((code, out.as_str()), (0, "first\nsecond\nthird\n"), "{err}");
    assert_eq!(sent(&mut api, "first").await, "[[reply:first]]");
    for (session, words) in [("after", ["[[reply:ok]]", "-"]), ("before", ["-", "[[reply:ok]]"])] {
        let mut command = world.lodge.cli_command(["prompt", "one", "-s", session]);
        let output = command.args(words).stdin(File::open(&names).expect("a file")).output();
        assert!(output.expect("lodge runs").status.success());
        assert_eq!(
            sent(&mut api, session).await,
            "[[reply:ok]]\n\nStandard input:\n```stdin\nfirst\nsecond\nthird\n```"
        );
    }
}

#[tokio::test]
async fn what_is_not_text_or_too_long_is_refused_before_anything_is_sent() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    for (bytes, why) in [
        (&b"ab\xff\xfe"[..], "  because: byte 3 is not UTF-8\n"),
        (b"a\0b", "  because: it contains zero bytes\n"),
    ] {
        for words in [&["look"][..], &[]] {
            let (code, out, err) = piped(&world, &[&["prompt", "one"], words].concat(), bytes);
            assert_eq!((code, out.as_str()), (1, ""), "{err}");
            assert!(err.starts_with("error: stdin is not text\n") && err.contains(why), "{err}");
            assert!(err.contains("\nhint: pipe in UTF-8 text"), "{err}");
        }
    }
    // One limit for one message, wherever its text comes from.
    let much = vec![b'x'; 1024 * 1024];
    let (code, _, err) = piped(&world, &["prompt", "one", "look"], &much);
    assert!(code == 1 && err.contains("bytes; 1048576 is the most"), "{err}");
    let more = vec![b'x'; 5 << 20];
    for words in [&["look"][..], &[], &["-"]] {
        let (code, _, err) = piped(&world, &[&["prompt", "one"], words].concat(), &more);
        assert!(code == 1 && err.contains("has more than 1048576 bytes"), "{err}");
    }
    let sessions = api.ok("session/list", json!({})).await;
    assert_eq!(sessions["sessions"], json!([]));
}
