//! kill -9 of the daemon with agents alive, until the next daemon has all of them again.

use std::time::Instant;

use serde_json::json;

use crate::Sizes;
use crate::floor::Floors;
use crate::sample::Sample;
use crate::start;
use crate::table::{Hold, Row, Table};
use crate::world::World;

const HOLD_MS: f64 = 150.0;

pub(crate) async fn run(sizes: Sizes, floors: &mut Floors, world: &mut World, table: &mut Table) {
    let (mut whole, mut after, mut fsync) = (Sample::default(), Sample::default(), Sample::default());
    for _ in 0..sizes.recoveries {
        fsync.extend(&floors.fsync(10));
        let mut client = world.lodge.client().await;
        let listed = client.call_value("event/list", json!({"limit": 1})).await.expect("events");
        let head = listed["head"].as_u64().expect("a head");
        let keepers = world.lodge.keepers();
        world.lodge.kill9();
        let from = Instant::now();
        let answered = start::start(&mut world.lodge);
        let mut client = world.lodge.client().await;
        client.call_value("client/attach", json!({"all": true, "since": head})).await.expect("an attachment");
        let mut adopted = 0;
        while adopted < sizes.agents {
            let note = client.next().await.expect("an event");
            match note.params["kind"].as_str() {
                Some("lineage.adopted") => adopted += 1,
                Some("agent.failed") => panic!("an agent was lost: {}", note.params),
                Some(_) | None => {}
            }
        }
        whole.push(from.elapsed());
        after.push(from.elapsed().saturating_sub(answered));
        assert_eq!(keepers.len(), world.lodge.keepers().len(), "adopted, not started again");
    }
    let what = format!("kill -9 with {} live agents: exec until all adopted", sizes.agents);
    let row = Row::times(what, &whole).beside("fsync", fsync.p50());
    table.row(row.hold(Hold::at_most("", HOLD_MS)));
    table.row(Row::new("  after the first answer", "ms", after.p50()));
    table.row(Row::new("  slowest round", "ms", whole.max()));
}
