//! Memory and CPU of agents that did some work and now do nothing.

use std::time::{Duration, Instant};

use crate::BenchSizes;
use crate::proc::{self, DaemonProcesses};
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::world::{BenchModel, BenchWorld, wait_ready};

const DAEMON_OWN_MB_MAX: f64 = 6.0;
const AGENT_MB_MAX: f64 = 0.4;
const PROGRAM_MB_MAX: f64 = 12.0;
/// Less than one tick of the kernel's clock, over all processes together.
const IDLE_CPU_MS_MAX: f64 = 10.0;
/// After the last turn, for what is released later.
const SETTLE: Duration = Duration::from_secs(2);

/// Returns the world with its agents alive.
pub(crate) async fn run(sizes: BenchSizes, table: &mut BenchTable) -> BenchWorld {
    let world = BenchWorld::start().await;
    let fresh = world.family();
    let empty = proc::pss_kb(fresh.daemon);
    let mut client = world.lodge.client().await;
    let (mut ids, mut ready) = (Vec::new(), Sample::default());
    for number in 0..sizes.agents {
        let from = Instant::now();
        let id = world.create(&mut client, &format!("a{number}"), BenchModel::Http).await;
        wait_ready(&mut client, &id).await;
        ready.push(from.elapsed());
        ids.push(id);
    }
    table.row(BenchRow::times("agent created until ready (looked at every 2 ms)", &ready));
    for id in &ids {
        let mut talk = world.talk(id, &format!("idle-{id}")).await;
        for _ in 0..sizes.agent_turns {
            talk.turn("hello").await;
        }
    }
    drop(client);
    tokio::time::sleep(SETTLE).await;
    let family = world.family();
    if let Some(kb) = empty {
        table.row(BenchRow::new("idle memory (PSS): daemon without agents", "MB", mb(kb)));
    }
    pss(&family, sizes, table);
    idle(&family, sizes, table).await;
    world
}

fn pss(family: &DaemonProcesses, sizes: BenchSizes, table: &mut BenchTable) {
    let of = |pids: &[u32]| pids.iter().map(|pid| proc::pss_kb(*pid)).sum::<Option<u64>>();
    let (daemon, keepers, runtimes) =
        (proc::pss_kb(family.daemon), of(&family.keepers), of(&family.runtimes));
    let (Some(daemon), Some(keepers), Some(runtimes)) = (daemon, keepers, runtimes) else {
        table.note("idle memory: keepers and runtimes are not dumpable, so only root may read it");
        return;
    };
    assert_eq!(family.runtimes.len(), sizes.agents, "every agent has one runtime");
    let n = sizes.agents as f64;
    let what = format!("  daemon with {} agents that did {} turns each", sizes.agents, sizes.agent_turns);
    table.row(BenchRow::new(what, "MB", mb(daemon)));
    if let Some(kb) = proc::anonymous_kb(family.daemon) {
        let own = BenchRow::new("    of which its own, the rest is its program's file", "MB", mb(kb));
        table.row(own.hold(NumberBound::at_most("", DAEMON_OWN_MB_MAX)));
    }
    if let Some(kb) = proc::program_kb(family.daemon) {
        let program = BenchRow::new("  the daemon's program, with keeper and runtime in it", "MB", mb(kb));
        table.row(program.hold(NumberBound::at_most("", PROGRAM_MB_MAX)));
    }
    let each = BenchRow::new("  each agent, keeper and runtime", "MB", mb(keepers + runtimes) / n);
    table.row(each.hold(NumberBound::at_most("", AGENT_MB_MAX)));
    table.row(BenchRow::new("    keeper", "MB", mb(keepers) / n));
    table.row(BenchRow::new("    runtime", "MB", mb(runtimes) / n));
}

async fn idle(family: &DaemonProcesses, sizes: BenchSizes, table: &mut BenchTable) {
    let before = family.threads_ns();
    // Without this a reading that is forbidden would look like perfect rest.
    if before.len() < family.all().count() || before.values().any(|ns| *ns == 0) {
        table.note("idle CPU: the kernel does not tell it of every thread");
        return;
    }
    tokio::time::sleep(Duration::from_secs(sizes.idle_s)).await;
    let since = |(thread, ns): (&String, &u64)| ns - before.get(thread).copied().unwrap_or(0).min(*ns);
    let used = family.threads_ns().iter().map(since).sum::<u64>() as f64 / 1e6;
    let what = format!("idle CPU of all processes in {} s", sizes.idle_s);
    table.row(BenchRow::new(what, "ms", used).hold(NumberBound::at_most("under one tick", IDLE_CPU_MS_MAX)));
}

fn mb(kb: u64) -> f64 {
    kb as f64 / 1024.0
}
