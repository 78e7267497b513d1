//! An agent of many small parts, from a registry on this machine, beside skopeo.

use std::path::PathBuf;

use lodge_testkit::lodge::Lodge;

use crate::BenchSizes;
use crate::images::peers::Peers;
use crate::images::{plain, store};
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};

const PART_BYTES: usize = 2048;
const NAME: &str = "parts:latest";

pub(crate) fn run(sizes: BenchSizes, peers: &Peers, table: &mut BenchTable) {
    let Some(registry) = peers.registry() else {
        return table.not_run("an agent of many parts pulled", "there is no registry");
    };
    let lodge = store::daemon();
    let (dir, parts) = agent(&lodge, "parts", sizes.image_layers, (sizes.image_layers, PART_BYTES), 1);
    lodge.cli_ok([
        "-q".as_ref(),
        "image".as_ref(),
        "build".as_ref(),
        dir.as_os_str(),
        "-t".as_ref(),
        NAME.as_ref(),
    ]);
    let there = format!("{}/parts/agent:v1", registry.host);
    lodge.cli_ok(["-q", "image", "push", NAME, &there]);
    lodge.cli_ok(["-q", "image", "rm", NAME]);
    store::until_empty(&lodge);
    let (mut floor, mut ours, mut skopeo) = (Sample::default(), Sample::default(), Sample::default());
    for _ in 0..sizes.layer_rounds {
        floor.push(plain::written(parts.iter().map(Vec::as_slice)));
        plain::flushed();
        ours.push(store::timed(&lodge, ["-q", "image", "pull", &there]));
        lodge.cli_ok(["-q", "image", "rm", &there]);
        store::until_empty(&lodge);
        if let Some(peer) = &peers.skopeo {
            let dir = tempfile::tempdir().expect("a temporary directory");
            plain::flushed();
            let to = format!("oci:{}:v1", dir.path().join("layout").display());
            skopeo.push(peer.copy(&format!("docker://{there}"), &to));
        }
    }
    let n = parts.len();
    table.row(BenchRow::times(format!("floor: {n} files of 2 KB written, each flushed"), &floor));
    let row = BenchRow::times(format!("agent of {n} small parts pulled"), &ours);
    if skopeo.len() == 0 {
        return table.row(row.with_floor("written", floor.p50()));
    }
    table.row(row.with_floor("skopeo", skopeo.p50()).hold(NumberBound::at_most("skopeo", skopeo.p50())));
    table.row(BenchRow::new("  beside the floor", "x", ours.p50() / floor.p50()));
    table.row(BenchRow::times("  skopeo", &skopeo).with_floor("written", floor.p50()));
}

/// The directory of an agent with this many contexts and files, and their contents.
pub(crate) fn agent(
    lodge: &Lodge,
    name: &str,
    contexts: usize,
    (files, file_bytes): (usize, usize),
    seed: u64,
) -> (PathBuf, Vec<Vec<u8>>) {
    let mut text = format!("# syntax=lodge/agentfile:1\nFROM scratch\nNAME {name}\nMODEL mock/instant\n");
    let mut parts = Vec::new();
    let mut written = Vec::new();
    for number in 0..contexts {
        text.push_str(&format!("CONTEXT C{number} file://c{number}.md\n"));
        let line = format!("what is to be known of {number} in {seed}\n");
        let context = line.repeat(PART_BYTES / line.len());
        written.push((format!("c{number}.md"), context.into_bytes()));
    }
    for number in 0..files {
        text.push_str(&format!("ADD f{number}.bin \"a file\"\n"));
        let mut noise = plain::noise(file_bytes, seed);
        noise[..8].copy_from_slice(&(number as u64).to_le_bytes());
        written.push((format!("f{number}.bin"), noise));
    }
    let dir = lodge.agent_dir(name, &text, &[]);
    for (file, bytes) in written {
        plain::put(&dir.join(file), &bytes);
        parts.push(bytes);
    }
    (dir, parts)
}
