//! What a person at a terminal sees, and what the daemon leaves on the disk.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use lodge_testkit::lodge::PATIENCE;
use serde_json::json;

use crate::world::{ApiWorld, sh};

/// Both ends of a new terminal.
pub fn terminal() -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: the two descriptors are written by the call and are ours alone; the other pointers may be null.
    unsafe {
        let opened = libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), none.cast());
        assert_eq!(opened, 0, "no terminal");
        (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
    }
}

/// A command at a terminal: what was typed goes in, what it shows is kept.
pub struct TerminalSession {
    ours: File,
    child: Child,
    shown: Receiver<Vec<u8>>,
    text: String,
}

impl TerminalSession {
    pub fn at(mut command: Command) -> TerminalSession {
        let (ours, theirs) = terminal();
        let end = |end: &OwnedFd| Stdio::from(end.try_clone().expect("a terminal"));
        command.env("NO_COLOR", "1").stdin(end(&theirs)).stdout(end(&theirs)).stderr(end(&theirs));
        let child = command.spawn().expect("lodge");
        drop((command, theirs));
        let (sender, shown) = channel();
        let mut reader = ours.try_clone().expect("a terminal");
        std::thread::spawn(move || {
            let mut buffer = [0_u8; 4096];
            // A terminal whose other end is closed gives an error where a pipe gives an end.
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        TerminalSession { ours, child, shown, text: String::new() }
    }

    pub fn type_in(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Waits until this is shown, and forgets everything up to it.
    #[track_caller]
    pub fn see(&mut self, expected: &str) {
        loop {
            if let Some(at) = self.text.find(expected) {
                self.text.drain(..at + expected.len());
                return;
            }
            match self.shown.recv_timeout(PATIENCE) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("`{expected}` is not shown, but {:?}", self.text)
                }
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn end(mut self) -> i32 {
        self.child.wait().expect("an end").code().unwrap_or(-1)
    }
}

/// A failed test leaves no command behind.
impl Drop for TerminalSession {
    fn drop(&mut self) {
        // A command that has ended cannot be killed, which is fine here.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What a command writes when its stdout and stderr are a terminal.
pub fn shown(world: &ApiWorld, args: &[&str], no_color: Option<&str>) -> String {
    let (mut ours, theirs) = terminal();
    let mut command = world.lodge.cli_command(args);
    command
        .env_remove("NO_COLOR")
        .stdout(theirs.try_clone().expect("a terminal"))
        .stderr(Stdio::from(theirs));
    if let Some(value) = no_color {
        command.env("NO_COLOR", value);
    }
    let mut child = command.spawn().expect("lodge");
    // The command holds the other end until it is dropped.
    drop(command);
    let mut text = Vec::new();
    // A terminal whose other end is closed gives an error where a pipe gives an end.
    drop(ours.read_to_end(&mut text));
    assert!(child.wait().expect("an end").success(), "{}", String::from_utf8_lossy(&text));
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn colours_are_for_terminals_that_want_them_and_models_cannot_steer_them() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    api.answer("one", "s", "[[reply:red \u{1b}[31mtext]]").await;
    let coloured = shown(&world, &["session", "show", "s"], None);
    assert!(coloured.contains("\u{1b}[1m"), "{coloured:?}");
    for value in ["1", "yes"] {
        let plain = shown(&world, &["session", "show", "s"], Some(value));
        assert!(!plain.contains('\u{1b}') && plain.contains("red "), "{plain:?}");
    }
    assert!(shown(&world, &["session", "show", "s"], Some("")).contains("\u{1b}[1m"), "empty means unset");
    // Tools are shown to who watches, and their answer is not coloured by the model.
    let text = format!("{} [[reply:\u{1b}[31mdone]]", sh("echo x"));
    let watched = shown(&world, &["prompt", "one", &text], Some("1"));
    assert!(
        watched.contains("⚙ sh -c") && watched.contains("[31mdone") && !watched.contains('\u{1b}'),
        "{watched:?}"
    );
    // A pipe gets the bytes as they are.
    assert_eq!(world.lodge.cli_ok(["prompt", "one", "[[reply:\u{1b}[31mraw]]"]), "\u{1b}[31mraw\n");
}

#[tokio::test]
async fn nothing_is_written_outside_the_state_directory() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", &format!("{} [[reply:x]]", sh("echo x > file; echo y > \"$HOME\"/file"))).await;
    api.ok("agent/remove", json!({"agent": agent, "force": true})).await;
    // HOME of the daemon is the directory around its state directory.
    let names = |dir: &std::path::Path| {
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(world.lodge.dir()), ["home", "lodged.log", "mock-llm.log"]);
    // And inside it only what is documented.
    let known = "agents anchor.lock bin credentials.json daemon.db daemon.db-shm daemon.db-wal host-etc lodge.sock logs \
        providers.yaml registry reserve run skills suspects";
    let known: Vec<&str> = known.split_whitespace().collect();
    for name in names(&world.lodge.home()) {
        assert!(known.contains(&name.as_str()), "{name} is not documented");
    }
    for dir in ["agents", "run"] {
        assert_eq!(names(&world.lodge.home().join(dir)), [""; 0], "{dir} of a removed agent");
    }
}
