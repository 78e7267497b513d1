//! One large tool to a registry on this machine and back, beside skopeo.

use crate::BenchSizes;
use crate::images::peers::{PeerRegistry, Peers, Skopeo};
use crate::images::{plain, store};
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};

use lodge_testkit::lodge::Lodge;

const MB: usize = 1024 * 1024;
const NAME: &str = "large:latest";

#[derive(Debug, Default)]
struct TransferSamples {
    hash: Sample,
    floor: Sample,
    ours: Sample,
    skopeo: Sample,
}

pub(crate) fn run(sizes: BenchSizes, peers: &Peers, table: &mut BenchTable) {
    let Some(registry) = peers.registry() else {
        return table.not_run("a large tool moved", "there is no registry");
    };
    let lodge = store::daemon();
    let bytes = plain::noise(sizes.image_mb * MB, 1);
    let file = lodge.dir().join("large");
    plain::put(&file, &bytes);
    let program = format!("{}:{}", store::platform(), file.display());
    plain::flushed();
    let built = store::timed(&lodge, ["-q", "bin", "build", "large", &program, "-t", NAME]);
    // Filled and read once before the measurement, so that every program finds it in memory.
    let there = format!("{}/large/tool:v1", registry.host);
    lodge.cli_ok(["-q", "bin", "push", NAME, &there]);
    let layout = lodge.dir().join("layout");
    let layout = format!("oci:{}:v1", layout.display());
    if let Some(skopeo) = &peers.skopeo {
        skopeo.copy(&format!("docker://{there}"), &layout);
    }
    let pushes = pushed(sizes, peers, &lodge, &layout, &bytes);
    lodge.cli_ok(["-q", "bin", "rm", NAME]);
    store::until_empty(&lodge);
    let pulls = pulled(sizes, peers.skopeo.as_ref(), &lodge, &registry, &bytes);
    let mb = sizes.image_mb;
    let floor = pulls.floor.p50();
    let row = BenchRow::new(format!("tool of {mb} MB packed, once"), "ms", built.as_secs_f64() * 1e3);
    table.row(row.with_floor("hash + write", floor));
    rows(&format!("tool of {mb} MB pulled"), &pulls, table);
    rows(&format!("tool of {mb} MB pushed"), &pushes, table);
}

/// Every round uses empty registries: contents that a registry has are not sent again.
fn pushed(sizes: BenchSizes, peers: &Peers, lodge: &Lodge, layout: &str, bytes: &[u8]) -> TransferSamples {
    let mut samples = TransferSamples::default();
    for _ in 0..sizes.image_rounds {
        samples.hash.push(plain::hashed([bytes]));
        let written = plain::written([bytes]);
        samples.floor.push(plain::hashed([bytes]) + written);
        if let Some(registry) = peers.registry() {
            plain::flushed();
            let to = format!("{}/large/tool:v1", registry.host);
            samples.ours.push(store::timed(lodge, ["-q", "bin", "push", NAME, &to]));
        }
        if let Some((registry, skopeo)) = peers.registry().zip(peers.skopeo.as_ref()) {
            plain::flushed();
            samples.skopeo.push(skopeo.copy(layout, &format!("docker://{}/large/tool:v1", registry.host)));
        }
    }
    samples
}

fn pulled(
    sizes: BenchSizes,
    skopeo: Option<&Skopeo>,
    lodge: &Lodge,
    registry: &PeerRegistry,
    bytes: &[u8],
) -> TransferSamples {
    let there = format!("{}/large/tool:v1", registry.host);
    let mut samples = TransferSamples::default();
    for _ in 0..sizes.image_rounds {
        samples.hash.push(plain::hashed([bytes]));
        let written = plain::written([bytes]);
        samples.floor.push(plain::hashed([bytes]) + written);
        plain::flushed();
        samples.ours.push(store::timed(lodge, ["-q", "bin", "pull", &there]));
        lodge.cli_ok(["-q", "bin", "rm", &there]);
        store::until_empty(lodge);
        if let Some(skopeo) = skopeo {
            let dir = tempfile::tempdir().expect("a temporary directory");
            plain::flushed();
            let to = format!("oci:{}:v1", dir.path().join("layout").display());
            samples.skopeo.push(skopeo.copy(&format!("docker://{there}"), &to));
        }
    }
    samples
}

fn rows(what: &str, samples: &TransferSamples, table: &mut BenchTable) {
    table.row(BenchRow::times("floor: the same bytes hashed once", &samples.hash));
    table.row(BenchRow::times("floor: hashed once, written once, flushed", &samples.floor));
    let floor = samples.floor.p50();
    let ours = BenchRow::times(what, &samples.ours);
    if samples.skopeo.len() == 0 {
        return table.row(ours.with_floor("hash + write", floor));
    }
    let skopeo = samples.skopeo.p50();
    table.row(ours.with_floor("skopeo", skopeo).hold(NumberBound::at_most("skopeo", skopeo)));
    table.row(BenchRow::new("  beside the floor", "x", samples.ours.p50() / floor));
    table.row(BenchRow::times("  skopeo", &samples.skopeo).with_floor("hash + write", floor));
}
