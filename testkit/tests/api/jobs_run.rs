//! Jobs outlive the daemon and the runtime, and their output is kept byte for byte.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use lodge_proto::base64;
use lodge_testkit::lodge::{PATIENCE, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::jobs_api::{is, over, submit};
use crate::world::{AGENTFILE, ApiWorld, family, id, kill};

/// Prints a part, of both streams, when the file that it waits for is there.
const PARTS: &str = r#"
part=0
while [ $part -lt COUNT ]; do
    until test -e go$part; do sleep 0.01; done
    line=0
    while [ $line -lt LINES ]; do
        echo "$part/$line: out, and a few words more so that it takes its room"
        [ $((line % 7)) = 0 ] && echo "$part/$line: err" >&2
        line=$((line + 1))
    done
    part=$((part + 1))
done
"#;

fn parts(count: usize, lines: usize, end: &str) -> String {
    format!("{}{end}", PARTS.replace("COUNT", &count.to_string()).replace("LINES", &lines.to_string()))
}

/// What such a job writes to both streams.
fn written(count: usize, lines: usize) -> [String; 2] {
    let mut all = [String::new(), String::new()];
    for (part, line) in (0..count).flat_map(|part| (0..lines).map(move |line| (part, line))) {
        let out = format!("{part}/{line}: out, and a few words more so that it takes its room\n");
        all[0].push_str(&out);
        if line % 7 == 0 {
            all[1].push_str(&format!("{part}/{line}: err\n"));
        }
    }
    all
}

fn workspace(world: &ApiWorld, agent: &str) -> PathBuf {
    world.lodge.home().join("agents").join(agent).join("workspace")
}

fn exec_dir(world: &ApiWorld, job: &str) -> Option<PathBuf> {
    let sandboxes = fs::read_dir(world.lodge.home().join("run")).ok()?;
    sandboxes.flatten().map(|sandbox| sandbox.path().join("exec").join(job)).find(|dir| dir.is_dir())
}

/// Everything that is kept of an output, read in pieces, and how much was passed over.
async fn output(api: &mut CheckedClient, job: &str, stream: &str, limit: u64) -> (Vec<u8>, u64) {
    let (mut bytes, mut dropped, mut offset) = (Vec::new(), 0, 0);
    loop {
        let asked = json!({"job": job, "stream": stream, "offset": offset, "limit": limit});
        let piece = api.ok("job/output", asked).await;
        let data = piece["data"].as_str().expect("data");
        bytes.extend(match piece["encoding"].as_str() {
            Some("base64") => base64::decode(data).expect("base64"),
            _utf8 => data.as_bytes().to_vec(),
        });
        dropped += piece["dropped"].as_u64().expect("a number");
        offset = piece["next"].as_u64().expect("a number");
        if piece["end"] == true || data.is_empty() {
            return (bytes, dropped);
        }
    }
}

async fn is_whole(api: &mut CheckedClient, job: &str, expected: &[String; 2]) {
    for (stream, expected) in ["stdout", "stderr"].into_iter().zip(expected) {
        let (bytes, dropped) = output(api, job, stream, 100_000).await;
        assert_eq!(dropped, 0, "{stream}");
        assert!(
            bytes == expected.as_bytes(),
            "{stream} differs: {} of {} bytes",
            bytes.len(),
            expected.len()
        );
    }
    // Which of two streams spoke first within a moment cannot be known; that neither says anything twice or too late can.
    let (bytes, _) = output(api, job, "merged", 70_000).await;
    assert!(is_interleaved(&bytes, expected[0].as_bytes(), expected[1].as_bytes()), "merged differs");
}

/// Whether these are all bytes of both, each in its order.
fn is_interleaved(merged: &[u8], out: &[u8], err: &[u8]) -> bool {
    // How much of the first may have been met so far; there is hardly ever more than one way.
    let mut ways = BTreeSet::from([0]);
    for (at, byte) in merged.iter().enumerate() {
        let of_out = ways.iter().filter(|way| out.get(**way) == Some(byte)).map(|way| way + 1);
        let of_err = ways.iter().filter(|way| err.get(at - **way) == Some(byte)).copied();
        ways = of_out.chain(of_err).collect();
    }
    merged.len() == out.len() + err.len() && ways.contains(&out.len())
}

#[tokio::test]
async fn a_job_goes_on_through_any_number_of_killed_daemons_and_nothing_of_it_is_lost() {
    // While it prints, and when it has ended; where that is passed for the first time in the life of a daemon.
    let while_it_runs =
        ["before_job_start", "after_job_start", "before_archive", "after_archive", "after_release"];
    let when_it_ended = ["before_job_end", "before_archive", "after_archive", "before_job_forget"];
    // The last part is printed in the life of the daemon that sees the end.
    let (count, lines) = (while_it_runs.len() + 1, 1_500);
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    world.lodge.kill9();
    let script = parts(count, lines, "kill -TERM $$");
    let asked = json!({"agent": agent, "bin": "sh", "args": ["-c", script], "request_id": "once"});
    for (part, point) in while_it_runs.into_iter().chain(when_it_ended).enumerate() {
        world.lodge.set_env("LODGED_CRASH_AT", point);
        world.lodge.spawn();
        if part == 0 {
            world.lodge.wait_ready();
            api.again(&world.lodge).await.agent_is(&agent, "ready").await;
            // It dies of this, perhaps before it has answered.
            drop(world.lodge.client().await.call_value("job/submit", asked.clone()).await);
        }
        fs::write(workspace(&world, &agent).join(format!("go{part}")), "").expect("a file");
        assert_eq!(
            world.lodge.wait_killed(PATIENCE),
            Some(true),
            "{point} was not passed:\n{}",
            world.lodge.log()
        );
    }
    world.lodge.unset_env("LODGED_CRASH_AT");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let job = id(&api.ok("job/submit", asked).await).to_owned();
    let done = over(&mut api, &job).await;
    assert_eq!(
        (&done["status"], &done["signal"], &done["exit_code"]),
        (&json!("done"), &json!(15), &Value::Null)
    );
    let expected = written(count, lines);
    is_whole(&mut api, &job, &expected).await;
    until("its files are gone", || exec_dir(&world, &job).is_none().then_some(()));
    is_whole(&mut api, &job, &expected).await;
    let started = api.log().await.iter().filter(|event| event["kind"] == "job.started").count();
    assert_eq!(started, 1);
}

#[tokio::test]
async fn a_job_whose_keeper_is_killed_is_an_error_with_everything_that_was_captured() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for daemon in ["lives", "dies too"] {
        let job = submit(&mut api, &agent, "echo said; echo more >&2; sleep 600").await;
        let said = |view: &Value| view["stdout_bytes"] == 5 && view["stderr_bytes"] == 5;
        api.until("job/get", json!({"job": job}), said).await;
        let keepers = world.lodge.keepers();
        if daemon == "dies too" {
            world.lodge.kill9();
        }
        keepers.iter().for_each(|keeper| kill(*keeper, libc::SIGKILL));
        until("the keeper is gone", || {
            let left = world.lodge.keepers();
            keepers.iter().all(|keeper| !left.contains(keeper)).then_some(())
        });
        if daemon == "dies too" {
            world.lodge.start();
            api = api.again(&world.lodge).await;
        }
        let lost = over(&mut api, &job).await;
        assert_eq!((&lost["status"], &lost["exit_code"]), (&json!("error"), &Value::Null), "{daemon}");
        assert!(lost["error"].as_str().is_some_and(|error| error.starts_with("lost: ")), "{lost}");
        assert_eq!(output(&mut api, &job, "stdout", 100).await.0, b"said\n");
        assert_eq!(output(&mut api, &job, "stderr", 100).await.0, b"more\n");
        assert_eq!(output(&mut api, &job, "merged", 100).await.0, b"said\nmore\n");
        until("its files are gone", || exec_dir(&world, &job).is_none().then_some(()));
        assert_eq!(output(&mut api, &job, "merged", 100).await.0, b"said\nmore\n");
        api.agent_is(&agent, "ready").await;
    }
}

#[tokio::test]
async fn the_output_of_a_removed_agent_stays_and_nothing_else_of_it_does() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let done = submit(&mut api, &agent, "echo done").await;
    over(&mut api, &done).await;
    let running = submit(&mut api, &agent, "echo running; sleep 600").await;
    api.until("job/get", json!({"job": running}), |view| view["stdout_bytes"] == 8).await;
    api.ok("agent/remove", json!({"agent": agent, "force": true})).await;
    let over = over(&mut api, &running).await;
    assert_eq!((&over["status"], &over["error"]), (&json!("cancelled"), &json!("its agent was removed")));
    let gone = || {
        let left = fs::read_dir(world.lodge.home().join("run")).map_or(0, |left| left.flatten().count());
        (left == 0 && !world.lodge.home().join("agents").join(&agent).exists()).then_some(())
    };
    until("its files are gone", gone);
    for _ in 0..2 {
        assert_eq!(output(&mut api, &done, "stdout", 100).await.0, b"done\n");
        assert_eq!(output(&mut api, &running, "merged", 100).await.0, b"running\n");
        world.lodge.kill9();
        world.lodge.start();
        api = api.again(&world.lodge).await;
    }
}

#[tokio::test]
async fn a_long_output_keeps_both_ends_and_says_how_much_is_missing() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let script = "line=0; while [ $line -lt 20000 ]; do echo $((1000000 + line)); line=$((line + 1)); done
        until test -e end; do sleep 0.01; done";
    let asked = json!({"agent": agent, "bin": "sh", "args": ["-c", script], "output": "16k"});
    let job = id(&api.ok("job/submit", asked).await).to_owned();
    let written: String = (0..20_000).map(|line| format!("{}\n", 1_000_000 + line)).collect();
    let last = json!({"job": job, "offset": written.len() - 1, "wait_ms": 30_000});
    assert_eq!(api.ok("job/output", last).await["data"], "\n");
    let running = api.ok("job/get", json!({"job": job})).await;
    fs::write(workspace(&world, &agent).join("end"), "").expect("write");
    let done = over(&mut api, &job).await;
    assert_eq!(
        (&done["status"], &done["exit_code"]),
        (&json!("done"), &json!(0)),
        "nothing is killed for it"
    );
    assert_eq!(running["status"], "running");
    for same in ["stdout_bytes", "truncated", "dropped_bytes"] {
        assert_eq!(running[same], done[same], "{same} is known before it ends");
    }
    assert_eq!((&done["stdout_bytes"], &done["truncated"]), (&json!(written.len()), &json!(true)));
    for archived in [false, true] {
        if archived {
            until("its files are gone", || exec_dir(&world, &job).is_none().then_some(()));
        }
        for stream in ["stdout", "merged"] {
            let (bytes, dropped) = output(&mut api, &job, stream, 1_000).await;
            assert_eq!(bytes.len() as u64 + dropped, written.len() as u64, "{stream}");
            assert_eq!(done["dropped_bytes"], dropped);
            let head = 12 << 10;
            assert!(bytes.len() >= head + (2 << 10) && bytes.len() <= 16 << 10, "{}", bytes.len());
            assert_eq!(bytes[..head], written.as_bytes()[..head]);
            assert!(written.as_bytes().ends_with(&bytes[head..]));
        }
    }
}

#[tokio::test]
async fn a_job_that_takes_too_long_is_ended_and_is_an_error_that_says_so() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let asked =
        json!({"agent": agent, "bin": "sh", "args": ["-c", "echo begun; sleep 600"], "timeout": "3s"});
    let job = id(&api.ok("job/submit", asked).await).to_owned();
    let ended = over(&mut api, &job).await;
    assert_eq!(
        (&ended["status"], &ended["error"], &ended["cause"]),
        (&json!("error"), &json!("timed out after 3 s"), &json!("timeout"))
    );
    assert_eq!(output(&mut api, &job, "stdout", 100).await.0, b"begun\n");
}

#[tokio::test]
async fn cancelling_ends_the_whole_tree_and_keeps_what_was_written() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}BIN setsid host:setsid \"leave\"\n");
    let agent = id(&api.ok("agent/create", json!({"content": content, "name": "one"})).await).to_owned();
    api.agent_is(&agent, "ready").await;
    // A child, its child, and those that left their session and their parents.
    let script = "trap '' TERM; echo begun; sh -c 'sleep 600 & sleep 600' & \
                  (setsid sh -c 'sh -c \"sleep 600\" & sleep 600' &) ; sleep 600";
    let before: usize = world.lodge.keepers().iter().map(|keeper| family(*keeper).len()).sum();
    let job = submit(&mut api, &agent, script).await;
    api.until("job/get", json!({"job": job}), |view| view["stdout_bytes"] == 6).await;
    let alive = || -> usize { world.lodge.keepers().iter().map(|keeper| family(*keeper).len()).sum() };
    until("all of it runs", || (alive() >= before + 7).then_some(()));
    let cancelled = api.ok("job/cancel", json!({"job": job})).await;
    assert_eq!(
        (&cancelled["status"], &cancelled["error"]),
        (&json!("cancelled"), &json!("cancelled on request"))
    );
    until("nothing of it is left", || (alive() == before).then_some(()));
    assert_eq!(output(&mut api, &job, "stdout", 100).await.0, b"begun\n");
    let refused = api.refused("job/cancel", json!({"job": job}), "job.not_running").await;
    assert_eq!(refused["message"], "async job not currently running");
    is(&mut api, &job, "cancelled").await;
}

#[tokio::test]
async fn what_is_too_old_or_too_much_goes_when_that_is_set_and_never_before() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let mut jobs = Vec::new();
    let wordy = "line=0; while [ $line -lt 3000 ]; do echo \"$line: some words that take room\"; line=$((line + 1)); done";
    for _ in 0..4 {
        let job = submit(&mut api, &agent, &parts(0, 0, wordy)).await;
        over(&mut api, &job).await;
        until("it is archived", || exec_dir(&world, &job).is_none().then_some(()));
        jobs.push(job);
    }
    let settings = |world: &ApiWorld, text: &str| {
        fs::write(world.lodge.home().join("lodged.yaml"), format!("serve:\n{text}")).expect("a file");
    };
    settings(&world, "  job-retention-bytes: 250k\n");
    api.ok("daemon/reload", json!({})).await;
    let removed = |view: &Value| view["output_removed"] == true;
    api.until("job/get", json!({"job": jobs[0]}), removed).await;
    api.until("job/get", json!({"job": jobs[1]}), removed).await;
    let newest = api.ok("job/get", json!({"job": jobs[3]})).await;
    assert_eq!(newest["output_removed"], false);
    assert!(!output(&mut api, &jobs[3], "stdout", 1 << 20).await.0.is_empty());
    // Later excess output is removed automatically.
    let late = submit(&mut api, &agent, &parts(0, 0, wordy)).await;
    over(&mut api, &late).await;
    api.until("job/get", json!({"job": jobs[3]}), removed).await;
    // Settings outlive the daemon, and the age removes rows.
    settings(&world, "  job-retention-age: 1s\n");
    world.lodge.kill9();
    world.lodge.start();
    api = api.again(&world.lodge).await;
    api.until("job/list", json!({}), |list| list["jobs"].as_array().is_some_and(Vec::is_empty)).await;
    api.refused("job/get", json!({"job": jobs[3]}), "job.not_found").await;
    let left = || {
        let database = rusqlite::Connection::open(world.lodge.home().join("output.db")).expect("a database");
        let left: i64 =
            database.query_row("SELECT count(*) FROM outputs", [], |row| row.get(0)).expect("a number");
        (left == 0).then_some(())
    };
    until("the archive is empty", left);
}

#[tokio::test]
async fn without_room_no_job_is_taken_and_that_is_reported_with_numbers() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_JOB_KEEP_FREE", "8000t");
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let asked = json!({"agent": agent, "bin": "sh", "args": ["-c", "true"]});
    let refused = api.refused("job/submit", asked, "job.disk_low").await;
    assert!(refused["data"]["cause"].as_str().is_some_and(|cause| cause.contains("MiB free")), "{refused}");
    assert_eq!(api.ok("job/list", json!({})).await["jobs"], json!([]));
}

#[tokio::test]
async fn a_damaged_archive_is_set_aside_and_said_and_jobs_go_on() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let before = submit(&mut api, &agent, "echo before").await;
    over(&mut api, &before).await;
    until("it is archived", || exec_dir(&world, &before).is_none().then_some(()));
    world.lodge.kill9();
    for tail in ["-wal", "-shm"] {
        drop(fs::remove_file(world.lodge.home().join(format!("output.db{tail}"))));
    }
    fs::write(world.lodge.home().join("output.db"), vec![7; 65_536]).expect("a file");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.agent_is(&agent, "ready").await;
    let after = submit(&mut api, &agent, "echo after").await;
    over(&mut api, &after).await;
    until("it is archived", || exec_dir(&world, &after).is_none().then_some(()));
    assert_eq!(output(&mut api, &after, "stdout", 100).await.0, b"after\n");
    assert_eq!(output(&mut api, &before, "stdout", 100).await, (Vec::new(), 7), "told as missing");
    let warned = api.ok("info", json!({})).await["warnings"].to_string();
    assert!(warned.contains("output.db.broken-"), "{warned}");
}
