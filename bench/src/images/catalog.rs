//! Many images in one store: listed, one removed, and what a change of state costs while contents are collected.

use std::time::{Duration, Instant};

use lodge_proto::client::Client;
use lodge_testkit::lodge::PATIENCE;
use serde_json::{Value, json};
use tokio::task::LocalSet;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::images::{plain, store};
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::world::{BenchModel, BenchTalker, BenchWorld};

/// Connections that build at once.
const BUILDERS: usize = 8;
/// The default page size and the largest.
const PAGES: [usize; 2] = [100, 500];
const PAGE_MS_MAX: f64 = 50.0;
/// Flushes that the slowest change in a hundred may take, as while jobs print.
const FSYNCS_MAX: f64 = 3.0;

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let world = BenchWorld::start().await;
    let agent = world.agent("commits", BenchModel::Http).await;
    let from = Instant::now();
    filled(&world, sizes).await;
    let took = from.elapsed().as_secs_f64() * 1e3;
    let (images, bins) = (sizes.images, sizes.bins);
    let each = took / (images + bins) as f64;
    let fsync = floors.fsync(50);
    let what = format!("{images} images and {bins} tools built by {BUILDERS} at once, each");
    table.row(BenchRow::new(what, "ms", each).with_floor("fsync", fsync.p50()));
    listed(&world, sizes, table).await;
    let mut talker = BenchTalker::of(&world, &agent).await;
    removed(&world, sizes, &mut talker, floors, table).await;
}

async fn filled(world: &BenchWorld, sizes: BenchSizes) {
    let program = format!("/bin/{}", if std::path::Path::new("/bin/true").is_file() { "true" } else { "sh" });
    let platform = store::platform();
    let tasks = LocalSet::new();
    for builder in 0..BUILDERS {
        let mut client = world.lodge.client().await;
        let (program, platform) = (program.clone(), platform.clone());
        tasks.spawn_local(async move {
            for number in (builder..sizes.images).step_by(BUILDERS) {
                let text = format!(
                    "# syntax=lodge/agentfile:1\nFROM scratch\nNAME image-{number}\nMODEL mock/instant\n\
                     CONTEXT SOUL <<EOF\nYou are number {number}.\nEOF\n"
                );
                client.call_value("image/build", json!({"content": text})).await.expect("an image");
            }
            for number in (builder..sizes.bins).step_by(BUILDERS) {
                let bin = json!({
                    "name": "true", "tags": [format!("tool-{number}")], "description": format!("number {number}"),
                    "programs": [{"platform": platform, "path": program}],
                });
                client.call_value("bin/build", bin).await.expect("a tool");
            }
        });
    }
    tasks.await;
}

async fn listed(world: &BenchWorld, sizes: BenchSizes, table: &mut BenchTable) {
    let mut client = world.lodge.client().await;
    for (method, key, count) in [("image/list", "images", sizes.images), ("bin/list", "bins", sizes.bins)] {
        for limit in PAGES {
            let mut sample = Sample::default();
            for _ in 0..sizes.list_rounds {
                let from = Instant::now();
                client.call_value(method, json!({"limit": limit})).await.expect("a page");
                sample.push(from.elapsed());
            }
            let row = BenchRow::times(format!("{limit} of {count} by {method}"), &sample);
            table.row(row.hold(NumberBound::at_most("", PAGE_MS_MAX)));
        }
        let mut whole = Sample::default();
        for _ in 0..sizes.list_rounds.div_ceil(5) {
            let from = Instant::now();
            let seen = all(&mut client, method, key).await;
            whole.push(from.elapsed());
            assert!(seen >= count, "{seen} of {count} by {method}");
        }
        table.row(BenchRow::times(format!("  all of them, {} a page", PAGES[1]), &whole));
    }
}

async fn all(client: &mut Client, method: &str, key: &str) -> usize {
    let (mut seen, mut after) = (0, Value::Null);
    loop {
        let page = json!({"limit": PAGES[1], "after": after});
        let page = client.call_value(method, page).await.expect("a page");
        seen += page[key].as_array().map_or(0, Vec::len);
        if page["next"].is_null() {
            return seen;
        }
        after = page["next"].clone();
    }
}

/// Removes images one after the other, and changes what is recorded until the contents of each are gone.
async fn removed(
    world: &BenchWorld,
    sizes: BenchSizes,
    talker: &mut BenchTalker,
    floors: &mut Floors,
    table: &mut BenchTable,
) {
    let mut client = world.lodge.client().await;
    let (mut quiet, mut quiet_fsync) = (Sample::default(), Sample::default());
    plain::flushed();
    for _ in 0..sizes.collect_commits {
        quiet_fsync.extend(&floors.fsync(1));
        quiet.push(talker.commit().await);
    }
    let (mut answer, mut collection) = (Sample::default(), Sample::default());
    let (mut busy, mut fsync) = (Sample::default(), Sample::default());
    for number in 0..sizes.removals {
        let from = Instant::now();
        let image = json!({"image": format!("image-{number}")});
        let gone = client.call_value("image/remove", image).await.expect("a removal");
        answer.push(from.elapsed());
        let file = store::blob(&world.lodge, gone["digest"].as_str().expect("a digest"));
        while file.exists() {
            assert!(from.elapsed() < PATIENCE, "nothing was collected:\n{}", world.lodge.log());
            fsync.extend(&floors.fsync(1));
            busy.push(talker.commit().await);
        }
        collection.push(from.elapsed());
        tokio::time::sleep(BETWEEN).await;
    }
    let others = sizes.images;
    table.row(
        BenchRow::times(format!("image removed beside {others} others"), &answer)
            .with_floor("fsync", fsync.p50()),
    );
    table.row(BenchRow::times("  until its contents are gone", &collection));
    for (words, sample, fsync) in [
        ("while nothing is collected", &quiet, &quiet_fsync),
        ("while contents are collected", &busy, &fsync),
    ] {
        table.row(BenchRow::times(format!("state commit {words}"), sample).with_floor("fsync", fsync.p50()));
        let row =
            BenchRow::new("  the 99th in a hundred", "ms", sample.p99()).with_floor("its fsync", fsync.p99());
        table.row(row.hold(NumberBound::at_most("3 times fsync's 99th", FSYNCS_MAX * fsync.p99())));
    }
    table.row(BenchRow::new("  state commits that met a collection", "", busy.len() as f64));
}

/// So that two removals are not one collection.
const BETWEEN: Duration = Duration::from_millis(20);
