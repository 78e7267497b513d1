//! Connections of tools: with the host's network, with sockets that are handed in, and through the proxy where sockets
//! cannot be, all to one server of this host.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;

use lodge_testkit::lodge::Lodge;
use serde_json::{Value, json};

use crate::BenchSizes;
use crate::proc;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::world::{BenchWorld, wait_ready};

const CONNECT_MORE_MS_MAX: f64 = 0.2;
const HANDED_IN_SHARE_MIN: f64 = 0.9;
const RELAYED_SHARE_MIN: f64 = 0.4;
const AGENT_MORE_MB_MAX: f64 = 0.3;
/// What a keeper then does without, so that sockets are guarded by filters, or connections are relayed.
const NO_LANDLOCK: &str = "keeper.no_landlock_tcp";
const NO_GUARD: &str = "keeper.no_landlock_tcp+keeper.no_network_filter";

const HANDED_IN: &str = "  a socket that is handed in";
const FILTERED: &str = "  one behind a filter";

/// Measures as a tool: connections one after the other, then one that sends and one that receives.
const CLIENT: &str = "import json, os, socket, sys, time\n\
    host, port, count, mb = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])\n\
    proxy = os.environ.get('HTTP_PROXY')\n\
    def dial(word):\n\
    \x20   at = proxy.split('/')[2].split(':') if proxy else (host, port)\n\
    \x20   s = socket.create_connection((at[0], int(at[1])))\n\
    \x20   if proxy:\n\
    \x20       s.sendall(f'CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n'.encode())\n\
    \x20       while not s.recv(4096).endswith(b'\\r\\n\\r\\n'): pass\n\
    \x20   s.sendall(word); return s\n\
    times = []\n\
    for _ in range(count):\n\
    \x20   s = socket.socket(); t = time.perf_counter(); s.connect((host, port) if not proxy else tuple([proxy.split('/')[2].split(':')[0], 3128]))\n\
    \x20   times.append((time.perf_counter() - t) * 1e3); s.close()\n\
    block = bytes(1 << 18); s = dial(b'S'); t = time.perf_counter()\n\
    for _ in range(mb * 4): s.sendall(block)\n\
    s.shutdown(1); s.recv(1); sent = mb / (time.perf_counter() - t)\n\
    s = dial(b'R' + mb.to_bytes(4, 'big')); t = time.perf_counter(); n = 0\n\
    while True:\n\
    \x20   b = s.recv(1 << 18)\n\
    \x20   if not b: break\n\
    \x20   n += len(b)\n\
    got = n / (1 << 20) / (time.perf_counter() - t)\n\
    open('measured', 'w').write(json.dumps({'times': times, 'sent': sent, 'got': got}))\n";

/// What a tool measured.
struct NetworkSample {
    connects: Sample,
    sent_mb_s: f64,
    got_mb_s: f64,
}

/// An agent that measures.
struct NetworkAgent {
    id: String,
    root: PathBuf,
}

pub(crate) async fn run(sizes: BenchSizes, table: &mut BenchTable) {
    let Some(address) = own_address() else {
        return table.note("network: this host has no address beside its loopback");
    };
    let server = serve(address);
    let world = BenchWorld::start().await;
    let (filtering, relaying) = (world_without(NO_LANDLOCK).await, world_without(NO_GUARD).await);
    let direct = client(&world, "direct", "NETWORK host").await;
    let handed_in = client(&world, "handed-in", &format!("NETWORK {server}")).await;
    let filtered = client(&filtering, "filtered", &format!("NETWORK {server}")).await;
    let relayed = client(&relaying, "relayed", &format!("NETWORK {server}")).await;
    let clients = [(&world, &direct), (&world, &handed_in), (&filtering, &filtered), (&relaying, &relayed)];
    let mut found: [Vec<NetworkSample>; 4] = Default::default();
    for round in 0..sizes.network_rounds {
        for (found, (world, client)) in found.iter_mut().zip(clients) {
            found.push(measure(world, client, server, sizes, round).await);
        }
    }
    let [direct, handed_in, filtered, relayed] = found.map(NetworkTotals::of);
    table.row(BenchRow::times("connect of a tool, the host's network", &direct.connects));
    for (name, totals) in [(HANDED_IN, &handed_in), (FILTERED, &filtered)] {
        let more = NumberBound::at_most("direct + 0.2 ms", direct.connects.p50() + CONNECT_MORE_MS_MAX);
        let row = BenchRow::times(name, &totals.connects).with_floor("direct", direct.connects.p50());
        table.row(row.hold(more));
    }
    for (what, direct, handed_in, filtered, relayed) in [
        ("sent by a tool", direct.sent, handed_in.sent, filtered.sent, relayed.sent),
        ("received by a tool", direct.got, handed_in.got, filtered.got, relayed.got),
    ] {
        table.row(BenchRow::rounds(format!("{what}, the host's network"), "MB/s", &direct));
        let row = |name: &str, sample: &Sample, share: f64| {
            let hold = NumberBound::at_least(&format!("{share} of direct"), share * direct.p50());
            BenchRow::rounds(name, "MB/s", sample).with_floor("direct", direct.p50()).hold(hold)
        };
        table.row(row(HANDED_IN, &handed_in, HANDED_IN_SHARE_MIN));
        table.row(row(FILTERED, &filtered, HANDED_IN_SHARE_MIN));
        table.row(row("  relayed by the proxy", &relayed, RELAYED_SHARE_MIN));
    }
    memory(&world, sizes, table).await;
}

/// A daemon whose keepers do without something.
async fn world_without(what: &str) -> BenchWorld {
    let mut lodge = Lodge::new();
    lodge.set_env("LODGED_KEEPER_CRASH_AT", what);
    BenchWorld::of(lodge, &[]).await
}

/// Each kind of measurement, of all rounds.
struct NetworkTotals {
    connects: Sample,
    sent: Sample,
    got: Sample,
}

impl NetworkTotals {
    fn of(rounds: Vec<NetworkSample>) -> NetworkTotals {
        let mut totals =
            NetworkTotals { connects: Sample::default(), sent: Sample::default(), got: Sample::default() };
        for round in rounds {
            totals.connects.extend(&round.connects);
            totals.sent.push_ms(round.sent_mb_s);
            totals.got.push_ms(round.got_mb_s);
        }
        totals
    }
}

/// What an agent with the default network takes beyond one without any.
async fn memory(world: &BenchWorld, sizes: BenchSizes, table: &mut BenchTable) {
    let mut each = Vec::new();
    for (word, network) in [("none", "NETWORK none"), ("public", "")] {
        let before = used_kb(world);
        for number in 0..sizes.network_agents {
            client(world, &format!("{word}-{number}"), network).await;
        }
        match (before, used_kb(world)) {
            (Some(before), Some(after)) => {
                each.push(after.saturating_sub(before) as f64 / 1024.0 / sizes.network_agents as f64);
            }
            (_, _) => return table.note("memory with a network: only root may read it"),
        }
    }
    let hold = NumberBound::at_most("without + 0.3 MB", each[0] + AGENT_MORE_MB_MAX);
    let row = BenchRow::new("idle memory (PSS) of an agent with the default network", "MB", each[1]);
    table.row(row.with_floor("without one", each[0]).hold(hold));
}

/// Of all keepers and everything below them, their gates included.
fn used_kb(world: &BenchWorld) -> Option<u64> {
    let family = world.family();
    family.keepers.iter().chain(&family.runtimes).map(|pid| proc::pss_kb(*pid)).sum()
}

/// An address of this host that is not its loopback. Nothing is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

/// Reads everything, or sends the requested number of bytes.
fn serve(address: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).expect("a socket");
    let at = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut word = [0];
            if stream.read_exact(&mut word).is_err() {
                continue;
            }
            let mut bytes = vec![0; 1 << 18];
            if word == *b"S" {
                while stream.read(&mut bytes).is_ok_and(|len| len > 0) {}
                continue;
            }
            let mut mb = [0; 4];
            if stream.read_exact(&mut mb).is_ok() {
                let mut left = u64::from(u32::from_be_bytes(mb)) * 4;
                while left > 0 && stream.write_all(&bytes).is_ok() {
                    left -= 1;
                }
            }
        }
    });
    at
}

async fn client(world: &BenchWorld, name: &str, network: &str) -> NetworkAgent {
    let text = format!(
        "FROM scratch\nNAME {name}\nMODEL mock/m\nBIN python3 host:/usr/bin/python3 safe \"measures\"\n\
         ADD client.py \"what it runs\"\n{network}\n"
    );
    let dir = world.lodge.agent_dir(name, &text, &[("client.py", CLIENT)]);
    let mut client = world.lodge.client().await;
    let made = client.call_value("agent/create", json!({"path": dir})).await.expect("an agent");
    let id = made["id"].as_str().expect("an agent has an id").to_owned();
    wait_ready(&mut client, &id).await;
    let view = client.call_value("agent/get", json!({"agent": id})).await.expect("an agent");
    NetworkAgent { id, root: view["root"].as_str().expect("a root").into() }
}

async fn measure(
    world: &BenchWorld,
    client: &NetworkAgent,
    server: SocketAddr,
    sizes: BenchSizes,
    round: usize,
) -> NetworkSample {
    let script = client.root.join("etc/data/client.py");
    let words = [
        script.display().to_string(),
        server.ip().to_string(),
        server.port().to_string(),
        sizes.network_connects.to_string(),
        sizes.network_mb.to_string(),
    ];
    let mut talk = world.talk(&client.id, &format!("s-{}-{round}", client.id)).await;
    talk.turn(&format!("[[tool:python3|{}]] [[reply:done]]", json!(words))).await;
    let text = std::fs::read(client.root.join("workspace/measured")).expect("a measurement");
    let found: Value = serde_json::from_slice(&text).expect("a measurement");
    let mut connects = Sample::default();
    for time in found["times"].as_array().expect("times") {
        connects.push_ms(time.as_f64().expect("a time"));
    }
    let rate = |name: &str| found[name].as_f64().expect("a rate");
    NetworkSample { connects, sent_mb_s: rate("sent"), got_mb_s: rate("got") }
}
