//! `lodge selftest` as people run it: what it prints, how it ends, and that nothing is left of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use lodge_testkit::lodge::{PATIENCE, bin, processes_of, until};
use serde_json::Value;

/// Places of our own for a run: where it may put its things, and where it must not.
struct SelftestDir {
    dir: tempfile::TempDir,
}

impl SelftestDir {
    fn new() -> SelftestDir {
        let place = SelftestDir { dir: tempfile::tempdir().expect("a directory") };
        for name in ["tmp", "bin"] {
            fs::create_dir(place.path(name)).expect("a directory");
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn lodge(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("LODGE_HOME", self.path("state"))
            .env("TMPDIR", self.path("tmp"))
            .args(args)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.run_as(&bin("lodge"), args)
    }

    fn run_as(&self, program: &Path, args: &[&str]) -> Output {
        self.lodge(program, args).output().expect("lodge runs")
    }

    /// A program of this name beside a `lodge`, so that it is found in the place of `lodged`.
    fn lodged(&self, script: &str) -> PathBuf {
        // Written by another process: one that another test begins would inherit the open file, and what is open for
        // writing cannot be run.
        let mut write = Command::new("sh");
        write.args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""]);
        let written = write.arg(self.path("bin/lodged")).arg(script).status();
        assert!(written.expect("a shell").success(), "a script that runs");
        self.copy()
    }

    /// Another `lodge`, with nothing beside it.
    fn copy(&self) -> PathBuf {
        let lodge = self.path("bin/lodge");
        let copied = Command::new("cp").arg(bin("lodge")).arg(&lodge).status();
        assert!(copied.expect("cp").success(), "a copy");
        lodge
    }

    /// What runs and has to do with this place, `but` aside.
    fn processes(&self, but: &Child) -> Vec<String> {
        let found = processes_of(&self.path("tmp")).into_iter();
        found.filter(|(pid, _)| u32::try_from(*pid) != Ok(but.id())).map(|(_, line)| line).collect()
    }

    #[track_caller]
    fn assert_untouched(&self) {
        let left: Vec<_> = fs::read_dir(self.path("tmp")).expect("a directory").flatten().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        assert!(
            !self.path("home").exists() && !self.path("state").exists(),
            "the user's own state was touched"
        );
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_clean_run_prints_every_number_as_json_and_leaves_nothing_behind() {
    let place = SelftestDir::new();
    let output = place.run(&["selftest", "--crash", "8", "--seed", "4711", "--json"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    let told: Value = serde_json::from_str(&out).expect("one JSON object");
    for key in ["lost", "duplicated", "events_missed", "events_doubled", "leftover_processes"] {
        assert_eq!(told[key], 0, "{key}: {told}");
    }
    assert!(told["kills"].as_u64() >= Some(8) && told["acknowledged"].as_u64() > Some(0), "{told}");
    assert!(told["requests"].as_u64() > Some(0) && told["events"].as_u64() > Some(0), "{told}");
    let recovery = &told["recovery_ms"];
    assert!(
        recovery["p50"].as_f64() > Some(0.0) && recovery["p99"].as_f64() >= recovery["p50"].as_f64(),
        "{told}"
    );
    assert_eq!((&told["seed"], told["unknown"].is_u64()), (&4711.into(), true), "{told}");
    place.assert_untouched();
}

#[test]
fn a_run_for_people_ends_with_a_table_and_the_way_to_repeat_it() {
    let place = SelftestDir::new();
    let output = place.run(&["selftest", "--crash", "2"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    assert!(out.lines().any(|line| line.starts_with("lost ") && line.ends_with(" 0")), "{out}");
    let seed = err.lines().find_map(|line| line.strip_prefix("killing 2 times, seed ")).expect("a seed");
    assert!(err.contains(&format!("lodge selftest --crash 2 --seed {seed}")), "{err}");
    let kills = out.lines().find_map(|line| line.strip_prefix("kills ")).expect("a count").trim();
    let passed = format!("passed: {kills} kills, nothing lost, nothing twice, nothing left behind");
    assert_eq!(out.lines().last(), Some(passed.as_str()));
    assert!(out.contains("\n\nmust be 0\nlost "), "{out}");
    place.assert_untouched();
}

#[test]
fn wrong_arguments_are_bad_usage() {
    let place = SelftestDir::new();
    for args in [
        &["selftest"][..],
        &["selftest", "--crash", "0"],
        &["selftest", "--crash", "many"],
        &["selftest", "--crash", "1", "--seed", "x"],
        &["selftest-role", "no-such-role"],
        &["selftest-role", "effects"],
        &["selftest-role", "model", "--no-such-option", "1"],
    ] {
        let output = place.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn without_a_daemon_that_runs_it_says_what_is_missing_and_ends_with_one() {
    let place = SelftestDir::new();
    let lodge = place.copy();
    let output = place.run_as(&lodge, &["selftest", "--crash", "1"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("`lodged` cannot be run") && err.contains("hint: put `lodged` beside"), "{err}");

    let lodge = place.lodged("#!/bin/sh\necho this is why >&2\nexit 4\n");
    let output = place.run_as(&lodge, &["selftest", "--crash", "1"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("could not start") && err.contains("this is why"), "{err}");
    place.assert_untouched();
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_forgets_fails_the_test_and_its_state_is_kept() {
    let place = SelftestDir::new();
    let real = bin("lodged");
    let script = format!(
        "#!/bin/sh\nLODGED_MUTATION=reply-before-commit\nexport LODGED_MUTATION\nexec {} \"$@\"\n",
        real.display()
    );
    let lodge = place.lodged(&script);
    // Of this seed the first named point is the one before a commit.
    let output = place.run_as(&lodge, &["selftest", "--crash", "200", "--seed", "4", "--json"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    let told: Value = serde_json::from_str(&out).expect("one JSON object");
    assert!(told["lost"].as_u64() > Some(0) && told["ok"] == false, "{told}");
    let kept = &told["kept"][0];
    let dir = PathBuf::from(kept["dir"].as_str().expect("a directory"));
    assert!(dir.starts_with(place.path("tmp")) && dir.join("lodged.log").exists(), "{told}");
    assert!(
        err.contains(&format!("--seed {}", kept["seed"])) && err.contains(&*dir.to_string_lossy()),
        "{err}"
    );
}

#[test]
fn an_interrupted_run_ends_with_130_and_leaves_nothing_behind() {
    let place = SelftestDir::new();
    let mut child = place
        .lodge(&bin("lodge"), &["selftest", "--crash", "100000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("lodge runs");
    until("a keeper is there", || {
        place.processes(&child).iter().any(|line| line.contains("/bin/keeper-")).then_some(())
    });
    let pid = child.id().cast_signed();
    // SAFETY: sending a signal touches no memory; the pid is our child's, which was not waited for yet.
    unsafe {
        libc::kill(pid, libc::SIGINT);
    }
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("our child can be waited for") {
            break status;
        }
        assert!(Instant::now() < end, "it does not end");
        lodge_testkit::lodge::pause();
    };
    assert_eq!(status.code(), Some(130));
    assert_eq!(place.processes(&child), Vec::<String>::new());
    place.assert_untouched();
}
