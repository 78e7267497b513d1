//! An agent with five tools that are images, started until it is ready, beside one with five tools of the host.

use std::time::{Duration, Instant};

use lodge_proto::client::Client;
use lodge_testkit::lodge::PATIENCE;
use serde_json::{Value, json};

use crate::BenchSizes;
use crate::floor::Floors;
use crate::images::{plain, store};
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::world::BenchWorld;

const STOCK: &str = "BIN sh stock/busybox:latest \"a shell\"\nBIN rg stock/rg:latest \"searches\"\n\
                     BIN fd stock/fd:latest \"finds\"\nBIN jq stock/jq:latest \"reads JSON\"\n\
                     BIN xh stock/xh:latest \"asks over HTTP\"\n";
const HOST: &str = "BIN sh host:sh \"a shell\"\nBIN grep host:grep \"searches\"\nBIN find host:find \"finds\"\n\
                    BIN sed host:sed \"edits\"\nBIN cat host:cat \"prints\"\n";
/// What looking at five images may add to a start.
const RATIO_MAX: f64 = 1.5;
const MORE_MS: f64 = 3.0;

#[derive(Debug, Default)]
struct StockSamples {
    import: Sample,
    first: Sample,
    later: Sample,
    host: Sample,
    fsync: Sample,
}

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let archive = match store::stock_archive() {
        Ok(archive) => archive,
        Err(why) => return table.not_run("an agent with five stock tools", &why),
    };
    let mut samples = StockSamples::default();
    for _ in 0..sizes.stock_daemons {
        let world = BenchWorld::start().await;
        plain::flushed();
        let args =
            ["-q".as_ref(), "image".as_ref(), "import".as_ref(), "--yes".as_ref(), archive.as_os_str()];
        samples.import.push(store::timed(&world.lodge, args));
        let mut client = world.lodge.client().await;
        for (name, bins) in [("stock", STOCK), ("host", HOST)] {
            let text =
                format!("# syntax=lodge/agentfile:1\nFROM scratch\nNAME {name}\nMODEL mock/instant\n{bins}");
            client.call_value("image/build", json!({"content": text})).await.expect("an image");
        }
        client.call_value("client/attach", json!({"all": true})).await.expect("an attachment");
        // The first agent of a daemon pays for what every agent needs.
        until_ready(&mut client, "host").await;
        plain::flushed();
        samples.first.push(until_ready(&mut client, "stock").await);
        for _ in 0..sizes.stock_starts {
            samples.fsync.extend(&floors.fsync(1));
            samples.host.push(until_ready(&mut client, "host").await);
            samples.later.push(until_ready(&mut client, "stock").await);
        }
    }
    rows(&samples, table);
}

/// Creates an agent of an image and waits until it is ready; it is removed afterwards.
pub(crate) async fn until_ready(client: &mut Client, image: &str) -> Duration {
    let from = Instant::now();
    let made = client.call_value("agent/create", json!({"image": image})).await.expect("an agent");
    until(client, &made["id"], "agent.ready").await;
    let took = from.elapsed();
    let removed = json!({"agent": made["id"], "force": true});
    client.call_value("agent/remove", removed).await.expect("a removed agent");
    // The end of this one is not to be part of the next one's beginning.
    until(client, &made["id"], "agent.removed").await;
    took
}

/// Waits for an event of an agent.
async fn until(client: &mut Client, agent: &Value, kind: &str) {
    loop {
        let note = tokio::time::timeout(PATIENCE, client.next()).await.expect("an event in time");
        let note = note.expect("a connection that lives");
        if note.params["stream"] != *agent {
            continue;
        }
        match note.params["kind"].as_str() {
            Some(seen) if seen == kind => return,
            Some("agent.failed") => panic!("the agent failed: {}", note.params),
            Some(_) | None => {}
        }
    }
}

fn rows(samples: &StockSamples, table: &mut BenchTable) {
    let (host, fsync) = (samples.host.p50(), samples.fsync.p50());
    table.row(
        BenchRow::times("stock set imported through the CLI", &samples.import).with_floor("fsync", fsync),
    );
    table.row(BenchRow::times("agent with five tools of the host, created until ready", &samples.host));
    let later = BenchRow::times("  with five stock tools", &samples.later).with_floor("host", host);
    let limit = RATIO_MAX * host + MORE_MS;
    table.row(later.hold(NumberBound::at_most(&format!("{RATIO_MAX} x host + {MORE_MS} ms"), limit)));
    table.row(
        BenchRow::times("  with five that are unpacked for the first time", &samples.first)
            .with_floor("host", host),
    );
}
