//! Jobs and a full disk: no output is lost, the archive waits and continues, and no job fills a disk.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lodge_testkit::lodge::{PATIENCE, until};
use serde_json::{Value, json};

use crate::disk::{SmallDisk, with_disk};
use crate::strike::{FailingCall, FailingThread};
use crate::struck::{WRITES_MAX, assert_sound, start};
use crate::world::{ApiConnection, AttachedListener, FullDiskWorld};

const MIB: u64 = 1 << 20;

/// Prints `lines` times sixteen KiB on stdout and a word on stderr, when there is a directory `go`.
fn printer(name: &str, lines: u64) -> String {
    format!(
        "for n in 1 2 3 4; do mkdir {name}.ran.$n 2>/dev/null && break; done; x=0123456789abcdef; i=0; \
         while [ $i -lt 10 ]; do x=$x$x; i=$((i + 1)); done; until test -e {name}.go; do sleep 0.02; done; \
         i=0; while [ $i -lt {lines} ]; do printf %s $x; i=$((i + 1)); done; echo over >&2; exit 4"
    )
}

fn printed(lines: u64) -> u64 {
    lines * (16 << 10)
}

fn submission(agent: &str, name: &str, script: &str) -> Value {
    json!({"agent": agent, "bin": "sh", "args": ["-c", script], "request_id": name})
}

fn exec_dir(world: &FullDiskWorld, job: &str) -> Option<PathBuf> {
    let sandboxes = fs::read_dir(world.lodge.home().join("run")).ok()?;
    sandboxes.flatten().map(|sandbox| sandbox.path().join("exec").join(job)).find(|dir| dir.is_dir())
}

async fn over(api: &mut ApiConnection, job: &str) -> Value {
    api.until("job/get", json!({"job": job}), |view| !view["finished_at"].is_null()).await
}

/// Everything that is kept of a stream, and how much was passed over.
async fn output(api: &mut ApiConnection, job: &str, stream: &str) -> (String, u64) {
    let (mut text, mut dropped, mut offset) = (String::new(), 0, 0);
    loop {
        let piece = api.ok("job/output", json!({"job": job, "stream": stream, "offset": offset})).await;
        text.push_str(piece["data"].as_str().expect("data"));
        dropped += piece["dropped"].as_u64().expect("a number");
        offset = piece["next"].as_u64().expect("a number");
        if piece["end"] == true {
            return (text, dropped);
        }
    }
}

/// One failure is absorbed, in `daemon.db` by the reserve and in `output.db` by a retry. With two, the daemon is
/// read-only for a moment, or the archive waits once more.
async fn writes_of_a_jobs_life_fail(times: u64, every: usize) {
    let world = FullDiskWorld::asleep(None);
    let daemon = start(&world);
    let (mut api, mut listener) = (world.api().await, AttachedListener::new(&world).await);
    let agent = api.agent("one").await;
    let mut jobs = 0;
    for skip in (0..WRITES_MAX).step_by(every) {
        daemon.arm(FailingCall::Write, FailingThread::Anybody, skip, times);
        let name = format!("j{skip}");
        let script = format!(
            "for n in 1 2 3 4; do mkdir {name}.ran.$n 2>/dev/null && break; done; echo out {name}; echo err {name} >&2; exit 4"
        );
        let taken = api.insist("job/submit", submission(&agent, &name, &script)).await;
        let job = taken["id"].as_str().expect("an id").to_owned();
        let done = over(&mut api, &job).await;
        assert_eq!(
            (&done["status"], &done["exit_code"]),
            (&json!("done"), &json!(4)),
            "write {skip}: {done}"
        );
        until("its files are gone", || exec_dir(&world, &job).is_none().then_some(()));
        for (stream, expected) in [("stdout", format!("out {name}\n")), ("stderr", format!("err {name}\n"))] {
            assert_eq!(output(&mut api, &job, stream).await, (expected, 0), "write {skip}");
        }
        assert_eq!(world.effects(&agent, &name), 1, "write {skip}");
        jobs += 1;
        if daemon.disarm() == 0 {
            println!("{times} failures, at every {every}. of {skip} writes of a job's life");
            assert!(skip > 10, "a job's life has more writes than {skip}");
            let log = api.log().await;
            let count = |kind: &str| log.iter().filter(|event| event["kind"] == kind).count();
            for kind in ["job.submitted", "job.started", "job.finished"] {
                assert_eq!(count(kind), jobs, "{kind}");
            }
            listener.heard_all(&log).await;
            api.storage_is("enough").await;
            let told = world.lodge.log().matches("archive.full").count();
            assert!(told > 0, "no write of the archive failed");
            drop(daemon);
            return ["daemon.db", "output.db"].into_iter().for_each(|name| assert_sound(&world, name));
        }
    }
    panic!("a job's life has no end of writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_survives_one_failure_at_every_write_of_its_life() {
    writes_of_a_jobs_life_fail(1, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_survives_a_read_only_daemon_at_every_third_write_of_its_life() {
    writes_of_a_jobs_life_fail(2, 3).await;
}

fn started(disk: &SmallDisk, keep_free: &str) -> FullDiskWorld {
    let mut world = FullDiskWorld::asleep(Some(&disk.home()));
    world.lodge.set_env("LODGED_JOB_KEEP_FREE", keep_free);
    world.lodge.start();
    world
}

#[test]
fn with_little_room_no_job_is_taken_from_anybody_and_those_that_run_go_on() {
    with_disk(
        "jobs::with_little_room_no_job_is_taken_from_anybody_and_those_that_run_go_on",
        |disk| async move {
            let world = started(&disk, "24m");
            let mut api = world.api().await;
            let agent = api.agent("one").await;
            let running = api.ok("job/submit", submission(&agent, "held", &printer("held", 4))).await;
            let running = running["id"].as_str().expect("an id").to_owned();
            until("the job runs", || (world.effects(&agent, "held") == 1).then_some(()));
            disk.fill(20 * MIB);
            let refused =
                api.call("job/submit", submission(&agent, "new", "true")).await.expect_err("no room");
            assert_eq!(refused["data"]["code"], "job.disk_low", "{refused}");
            assert!(refused["data"]["hint"].is_string(), "{refused}");
            let call = json!({"bin": "sh", "args": ["-c", "true"]});
            let turn =
                api.send(&agent, "s", &format!("[[tool:job_submit|{call}]][[reply:{{{{tool}}}}]]")).await;
            let told = api.done(&turn).await["text"].as_str().expect("a text").to_owned();
            assert!(told.contains("MiB") || told.contains("room"), "a model is told why: {told}");
            assert_eq!(api.ok("job/list", json!({})).await["jobs"].as_array().map(Vec::len), Some(1));
            world.go(&agent, "held");
            let done = over(&mut api, &running).await;
            assert_eq!(
                (&done["exit_code"], &done["stdout_bytes"]),
                (&json!(4), &json!(printed(4))),
                "{done:#}"
            );
            disk.free();
            let late = api.ok("job/submit", submission(&agent, "late", "echo late")).await;
            let late = late["id"].as_str().expect("an id").to_owned();
            assert_eq!(over(&mut api, &late).await["exit_code"], 0);
            assert_eq!(output(&mut api, &late, "stdout").await, ("late\n".to_owned(), 0));
        },
    );
}

#[test]
fn output_for_which_the_archive_has_no_room_waits_in_its_files_and_is_archived_later() {
    with_disk(
        "jobs::output_for_which_the_archive_has_no_room_waits_in_its_files_and_is_archived_later",
        |disk| async move {
            let world = started(&disk, "64k");
            let mut api = world.api().await;
            let agent = api.agent("one").await;
            let job = api.ok("job/submit", submission(&agent, "held", &printer("held", 128))).await;
            let job = job["id"].as_str().expect("an id").to_owned();
            until("the job runs", || (world.effects(&agent, "held") == 1).then_some(()));
            // As much as it prints, and too little for urgent writes.
            disk.fill(10 * MIB);
            world.go(&agent, "held");
            let done = over(&mut api, &job).await;
            let (whole, is) =
                ((&json!("done"), &json!(printed(128))), (&done["status"], &done["stdout_bytes"]));
            assert_eq!(is, whole, "{done:#}");
            assert_eq!(done["dropped_bytes"], 0, "{done:#}");
            until("the archive finds no room", || world.lodge.log().contains("archive.full").then_some(()));
            let expected = "0123456789abcdef".repeat(1024 * 128);
            assert!(output(&mut api, &job, "stdout").await == (expected.clone(), 0), "while it waits");
            assert!(exec_dir(&world, &job).is_some(), "its files are gone, and they are all there is");
            disk.free();
            until("its files are gone", || exec_dir(&world, &job).is_none().then_some(()));
            assert!(output(&mut api, &job, "stdout").await == (expected, 0), "when it is archived");
            assert_eq!(output(&mut api, &job, "stderr").await, ("over\n".to_owned(), 0));
        },
    );
}

#[test]
fn a_job_that_prints_without_end_fills_no_disk_and_ends_as_it_would_have() {
    /// Below this the daemon itself begins nothing new.
    const LOW: u64 = 16 * MIB;
    const LINES: u64 = 16_000;
    with_disk(
        "jobs::a_job_that_prints_without_end_fills_no_disk_and_ends_as_it_would_have",
        |disk| async move {
            let world = started(&disk, "40m");
            let mut api = world.api().await;
            let agent = api.agent("one").await;
            let job = api.ok("job/submit", submission(&agent, "loud", &printer("loud", LINES))).await;
            let job = job["id"].as_str().expect("an id").to_owned();
            world.go(&agent, "loud");
            let (mut least, end) = (u64::MAX, Instant::now() + PATIENCE);
            let done = loop {
                least = least.min(disk.room());
                let view = api.ok("job/get", json!({"job": job})).await;
                if !view["finished_at"].is_null() {
                    break view;
                }
                assert!(Instant::now() < end, "it does not end: {view:#}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            };
            assert_eq!((&done["status"], &done["exit_code"]), (&json!("done"), &json!(4)), "{done:#}");
            assert_eq!(done["stdout_bytes"], printed(LINES), "{done:#}");
            until("its files are gone", || {
                least = least.min(disk.room());
                exec_dir(&world, &job).is_none().then_some(())
            });
            println!("least room: {least} bytes; {} dropped", done["dropped_bytes"]);
            assert!(least >= LOW, "only {least} bytes were left");
            let (text, dropped) = output(&mut api, &job, "stdout").await;
            assert_eq!(text.len() as u64 + dropped, printed(LINES));
            // Its last output came when nothing was kept; its length is known.
            let (last, missing) = output(&mut api, &job, "stderr").await;
            assert_eq!((last.as_str(), missing, &done["stderr_bytes"]), ("", 5, &json!(5)), "{done:#}");
            assert_eq!(done["dropped_bytes"], dropped + missing, "{done:#}");
            let whole = "0123456789abcdef".repeat(text.len() / 16 + 1);
            assert!(text.len() as u64 > MIB && whole.starts_with(&text), "{} bytes", text.len());
            // Nothing else was affected.
            assert_eq!(api.storage_is("enough").await["since"], Value::Null);
            let turn = api.send(&agent, "s", "[[reply:well]]").await;
            assert_eq!(api.done(&turn).await["text"], "well");
            assert!(!world.lodge.log().contains("storage."), "the daemon ran short");
        },
    );
}
