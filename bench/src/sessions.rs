//! Many sessions: listing them, and finding a word in all of them.

use std::time::{Duration, Instant};

use lodge_proto::client::Client;
use serde_json::{Value, json};

use crate::floor::Floors;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::{BenchSizes, fill, proc, start};

/// The largest page that the API gives.
const PAGE: u32 = 500;
const PAGE_MS_MAX: f64 = 50.0;
/// After the last search, for what is released later.
const SETTLE: Duration = Duration::from_secs(3);

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let mut lodge = fill::filled(sizes.filled_agents, sizes.filled_events);
    start::start(&mut lodge);
    let mut client = lodge.client().await;
    let (mut page, mut all) = (Sample::default(), Sample::default());
    for _ in 0..sizes.starts {
        let (from, mut after, mut seen) = (Instant::now(), Value::Null, 0);
        loop {
            let params = json!({"limit": PAGE, "after": after});
            let (list, took) = timed(&mut client, "session/list", params).await;
            page.push(took);
            seen += list["sessions"].as_array().map_or(0, Vec::len);
            after = list["next"].clone();
            if after.is_null() {
                break;
            }
        }
        all.push(from.elapsed());
        assert!(seen >= sizes.filled_agents as usize, "every session is listed: {seen}");
    }
    let (sessions, fsync) = (sizes.filled_agents, floors.fsync(20).p50());
    let row = |what: String, sample: &Sample| BenchRow::times(what, sample).with_floor("fsync", fsync);
    let hold = NumberBound::at_most("instantly", PAGE_MS_MAX);
    table.row(row(format!("a page of {PAGE} of {sessions} sessions"), &page).hold(hold));
    table.row(row(format!("all {sessions} sessions, page after page"), &all));
    let pid = lodge.pid().expect("a daemon");
    tokio::time::sleep(SETTLE).await;
    let before = proc::pss_kb(pid);
    let query = json!({"query": "plain answer", "limit": 20});
    let (mut first, mut again) = (Sample::default(), Sample::default());
    first.push(timed(&mut client, "session/search", query.clone()).await.1);
    for _ in 0..sizes.starts {
        again.push(timed(&mut client, "session/search", query.clone()).await.1);
    }
    table.row(row("the first search, which takes everything into the index".to_owned(), &first));
    table.row(row("a search when nothing is new".to_owned(), &again));
    tokio::time::sleep(SETTLE).await;
    if let (Some(before), Some(after)) = (before, proc::pss_kb(pid)) {
        let mb = |kb: u64| kb as f64 / 1024.0;
        table.row(
            BenchRow::new("daemon (PSS) after searching", "MB", mb(after)).with_floor("before", mb(before)),
        );
    }
}

async fn timed(client: &mut Client, method: &str, params: Value) -> (Value, Duration) {
    let from = Instant::now();
    let answer = client.call_value(method, params).await.expect("an answer");
    (answer, from.elapsed())
}
