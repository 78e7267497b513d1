//! Agents that try to get out by the network, in every mode, beside a machine that they may reach.
//!
//! Each test runs itself again in a network namespace that it made: there the host has addresses of its own, a machine
//! beyond it that looks public, one that looks private, and a name server. Nothing is ever sent to a real network.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, is_root};

const ATTACK: &str = include_str!("network.py");
const FAR: &str = include_str!("far.py");
const AGENTFILE: &str = "FROM scratch\nNAME burglar\nMODEL mock/m\nBIN python3 host:python3 \"tries\"\n\
    BIN sh host:sh \"a shell\"\nBIN bash host:bash \"a shell\"\nBIN curl host:curl \"a client\"\n\
    BIN perl host:perl \"a client\"\nBIN git host:git \"a client\"\nBIN busybox host:busybox \"a static client\"\nBIN tail host:tail \"ends\"\nADD network.py \"what it tries\"\n";
/// Says that this process is in the network that it made.
const INSIDE: &str = "LODGE_TEST_NETWORK";
const FAR_AWAY: &str = "203.0.113.5";
/// The host's own addresses there, beside its loopback. The second is a secondary of the first's network.
const OWN: [&str; 4] = ["203.0.113.1", "203.0.113.9", "10.99.0.1", "2001:db8:1::1"];

/// Whether this process is in a network of its own by now. If not, a second one runs the same test there.
fn in_network(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("a file");
    put("far.py", FAR);
    put("resolv.conf", &format!("nameserver {FAR_AWAY}\n"));
    let own: String = OWN
        .map(|address| {
            let bits = if address.contains(':') { "64 nodad" } else { "24" };
            let (bits, extra) = bits.split_once(' ').unwrap_or((bits, ""));
            format!("ip addr add {address}/{bits} dev near {extra}\n")
        })
        .concat();
    let program = std::env::current_exe().expect("this program");
    // SAFETY: these cannot fail and touch no memory.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // Root of a namespace of its own may do this; what it starts is the same user again.
    let again =
        if is_root() { String::new() } else { format!("unshare -U --map-user={uid} --map-group={gid} ") };
    let script = format!(
        "set -e\ncd {dir}\nmount --bind resolv.conf $(readlink -f /etc/resolv.conf)\nip link set lo up\n\
         unshare -n python3 far.py beyond ready & far=$!\ntrap 'kill $far' EXIT\n\
         while [ \"$(readlink /proc/$far/ns/net)\" = \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.02; done\n\
         ip link add near type veth peer name beyond netns $far\n{own}ip link set near up\n\
         while [ ! -s ready ]; do kill -0 $far; sleep 0.02; done\n\
         {again}{program} --exact {test} --nocapture\n",
        dir = dir.path().display(),
        program = program.display(),
    );
    let flags: &[&str] = if is_root() { &["-n", "-m"] } else { &["-U", "-r", "-n", "-m"] };
    let path = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin";
    let ended = Command::new("/usr/bin/unshare")
        .args(flags)
        .args(["sh", "-c", &script])
        .env(INSIDE, "1")
        .env("PATH", path)
        .status()
        .expect("a network");
    assert!(ended.success(), "in a network of its own");
    false
}

/// Servers of the host that no agent may reach; they count connections.
struct Traps {
    port: u16,
    reached: Arc<AtomicUsize>,
    datagrams: Vec<UdpSocket>,
}

impl Traps {
    fn set() -> Traps {
        let first = TcpListener::bind(("127.0.0.1", 0)).expect("a socket");
        let port = first.local_addr().expect("an address").port();
        let reached = Arc::new(AtomicUsize::new(0));
        let others = OWN.iter().copied().chain(["::1"]).map(|host| {
            let address = SocketAddr::new(host.parse::<IpAddr>().expect("an address"), port);
            TcpListener::bind(address).expect("a socket")
        });
        for listener in std::iter::once(first).chain(others) {
            let reached = reached.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    reached.fetch_add(1, Ordering::SeqCst);
                    drop(stream);
                }
            });
        }
        let hosts = OWN.iter().copied().chain(["127.0.0.1", "::1"]);
        let datagrams = hosts.map(|host| {
            let socket = UdpSocket::bind((host, port)).expect("a socket");
            socket.set_nonblocking(true).expect("a socket");
            socket
        });
        Traps { port, reached, datagrams: datagrams.collect() }
    }

    fn reached(&self) -> usize {
        self.reached.load(Ordering::SeqCst)
    }

    fn heard(&self) -> usize {
        let is_heard = |socket: &&UdpSocket| socket.recv(&mut [0; 16]).is_ok();
        self.datagrams.iter().filter(is_heard).count()
    }
}

fn daemon_port(world: &ApiWorld) -> u16 {
    let addr = world.lodge.http_addr();
    addr.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

/// Everything of the host that is closed in every mode but `host`.
fn closed(world: &ApiWorld, traps: &Traps) -> Vec<Value> {
    let mut all = Vec::new();
    for port in [traps.port, daemon_port(world), world.mock.address().port()] {
        for host in OWN.iter().copied().chain(["127.0.0.1", "127.8.9.10", "0.0.0.0", "localhost", "::1"]) {
            all.push(json!([host, port]));
        }
        for host in ["::ffff:127.0.0.1", "::ffff:203.0.113.1", "::", "64:ff9b::7f00:1", "2002:7f00:1::1"] {
            all.push(json!([host, port]));
        }
    }
    for host in ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "203.0.113.255", "224.0.0.1"] {
        all.push(json!([host, 80]));
    }
    // The first is what races aim at.
    all.sort_by_key(|place| *place != json!(["127.0.0.1", traps.port]));
    all
}

async fn agent(world: &ApiWorld, api: &mut CheckedClient, name: &str, network: &str) -> Value {
    let agentfile = format!("{AGENTFILE}{network}\n");
    let dir = world.lodge.agent_dir(name, &agentfile, &[("network.py", ATTACK)]);
    api.ok("agent/create", json!({"path": dir, "name": name})).await;
    api.agent_is(name, "ready").await
}

/// What the agent says of what it tried.
async fn tried(api: &mut CheckedClient, view: &Value, given: &Value) -> String {
    let name = view["name"].as_str().expect("a name");
    let root = std::path::PathBuf::from(view["root"].as_str().expect("a root"));
    let script = format!("python3 {} '{given}' > report 2>&1", root.join("etc/data/network.py").display());
    let call = json!(["-c", script]);
    let turn = api.say(name, name, &format!("[[tool:sh|{call}]] [[reply:{{{{tool}}}}]]")).await;
    let report = fs::read_to_string(root.join("workspace/report")).unwrap_or_default();
    assert!(report.ends_with("over\n"), "it came to its end: {turn:#}\n{report}");
    report
}

/// Attempts that succeeded.
fn open(report: &str) -> Vec<&str> {
    report.lines().filter(|line| line.contains("\tOPEN\t")).collect()
}

async fn nothing_succeeds(network: &str, reaches_far: bool) {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let view = agent(&world, &mut api, "burglar", network).await;
    attack(&world, &mut api, &view, reaches_far).await;
}

/// As on a kernel whose Landlock has no network rights: sockets from the gate receive only from their peer. Without
/// filters, the way out is a proxy.
async fn nothing_succeeds_behind_filters(network: &str) {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_KEEPER_CRASH_AT", "keeper.no_landlock_tcp");
    world.lodge.start();
    let mut api = world.checked().await;
    let view = agent(&world, &mut api, "burglar", network).await;
    let is_filtered = is_filtered(&view);
    attack(&world, &mut api, &view, is_filtered).await;
}

/// Whether sockets of an agent that does without Landlock have filters.
fn is_filtered(view: &Value) -> bool {
    let layers = view["isolation"].as_array().expect("layers");
    let layer = |name: &str| layers.iter().find(|layer| layer["name"] == name).expect("a layer").clone();
    assert_eq!(layer("network_landlock")["in_force"], false, "{view:#}");
    let filter = layer("network_filter");
    let is_filtered = filter["in_force"] == true;
    println!("{filter}");
    // Root can attach filters on every kernel.
    assert!(is_filtered || (!is_root() && filter["why"].is_string()), "{filter}");
    is_filtered
}

async fn attack(world: &ApiWorld, api: &mut CheckedClient, view: &Value, reaches_far: bool) {
    let traps = Traps::set();
    let mut parts = vec!["direct", "fast_open", "datagrams", "other_sockets"];
    if reaches_far {
        parts.extend(["handed_in", "options", "address_race"]);
    }
    parts.push("races");
    let given = json!({
        "parts": parts,
        "closed": closed(world, &traps),
        "datagrams": OWN.iter().chain(&["127.0.0.1", "::1"]).map(|host| json!([host, traps.port])).collect::<Vec<_>>(),
        "far": if reaches_far { json!([FAR_AWAY, 80]) } else { Value::Null },
        "port": traps.port,
        "seconds": 1,
    });
    let report = tried(api, view, &given).await;
    println!("{}, as {}\n{report}", view["network"], if is_root() { "root" } else { "an ordinary user" });
    assert_eq!(open(&report), Vec::<&str>::new());
    assert_eq!((traps.reached(), traps.heard()), (0, 0), "of the host");
    assert!(api.answer("burglar", "burglar", "[[reply:well]]").await.contains("well"));
}

#[tokio::test]
async fn nothing_gets_out_of_the_default_network() {
    if in_network("network::nothing_gets_out_of_the_default_network") {
        nothing_succeeds("", true).await;
    }
}

#[tokio::test]
async fn nothing_gets_out_of_a_network_with_private_ranges() {
    if in_network("network::nothing_gets_out_of_a_network_with_private_ranges") {
        nothing_succeeds("NETWORK lan", true).await;
    }
}

#[tokio::test]
async fn nothing_gets_out_of_a_list() {
    if in_network("network::nothing_gets_out_of_a_list") {
        nothing_succeeds("NETWORK 203.0.113.0/24 10.0.0.0/8 web.example loopback:1", true).await;
    }
}

#[tokio::test]
async fn nothing_gets_out_of_the_default_network_behind_filters() {
    if in_network("network::nothing_gets_out_of_the_default_network_behind_filters") {
        nothing_succeeds_behind_filters("").await;
    }
}

#[tokio::test]
async fn nothing_gets_out_of_a_list_behind_filters() {
    if in_network("network::nothing_gets_out_of_a_list_behind_filters") {
        nothing_succeeds_behind_filters("NETWORK 203.0.113.0/24 10.0.0.0/8 web.example loopback:1").await;
    }
}

#[tokio::test]
async fn nothing_gets_out_where_there_is_no_network() {
    if in_network("network::nothing_gets_out_where_there_is_no_network") {
        nothing_succeeds("NETWORK none", false).await;
    }
}

#[tokio::test]
async fn the_hosts_network_is_noticed_to_be_open() {
    if !in_network("network::the_hosts_network_is_noticed_to_be_open") {
        return;
    }
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let traps = Traps::set();
    let view = agent(&world, &mut api, "burglar", "NETWORK host").await;
    let given = json!({
        "parts": ["direct", "datagrams", "handed_in"],
        "closed": [["127.0.0.1", traps.port], ["203.0.113.9", traps.port]],
        "datagrams": [["127.0.0.1", traps.port]],
        "far": [FAR_AWAY, 80],
        "port": traps.port,
    });
    let report = tried(&mut api, &view, &given).await;
    for way in ["connect 127", "connect without waiting", "reset and connect", "reset and listen"] {
        assert!(open(&report).iter().any(|line| line.starts_with(way)), "{way}: {report}");
    }
    assert!(traps.reached() > 0 && traps.heard() > 0, "{report}");
}

#[tokio::test]
async fn ports_that_a_tool_takes_are_its_own_and_not_the_hosts() {
    if !in_network("network::ports_that_a_tool_takes_are_its_own_and_not_the_hosts") {
        return;
    }
    let mut world = ApiWorld::asleep();
    let port =
        || TcpListener::bind(("127.0.0.1", 0)).and_then(|server| server.local_addr()).expect("a port").port();
    world.lodge.set_env("LODGED_HTTP_ADDR", &format!("127.0.0.1:{}", port()));
    world.lodge.start();
    let mut api = world.checked().await;
    let (daemon, mock) = (daemon_port(&world), world.mock.address().port());
    // One that a stopped model server had.
    let free = port();
    let modes = ["", "NETWORK lan", "NETWORK web.example", "NETWORK none"];
    for (number, network) in modes.into_iter().enumerate() {
        let view = agent(&world, &mut api, &format!("a{number}"), network).await;
        let given = json!({"parts": ["ports"], "ports": [daemon, mock, free, 80], "far": null});
        let report = tried(&mut api, &view, &given).await;
        assert!(report.contains("bound"), "{network}: {report}");
        for host in ["127.0.0.1", "::1", OWN[0], OWN[1]] {
            assert!(TcpStream::connect((host, free)).is_err(), "{network}: {host}");
        }
    }
    // The daemon gets its port again.
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(daemon_port(&world), daemon);
    api.ok("info", json!({})).await;
}

/// A socket behind a filter keeps its port of the host after a reset. A tool once took the daemon's port like this, and
/// those of other servers.
#[tokio::test]
async fn ports_of_the_host_that_a_tool_keeps_are_few_and_no_servers() {
    if !in_network("network::ports_of_the_host_that_a_tool_keeps_are_few_and_no_servers") {
        return;
    }
    let local = TcpListener::bind(("127.0.0.1", 0)).expect("a socket");
    let loopback = local.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in local.incoming().flatten() {
            let peer = stream.peer_addr().expect("a peer").ip().to_string();
            // A client that left does not get it.
            drop(stream.write_all(peer.as_bytes()));
        }
    });
    let mut world = ApiWorld::asleep();
    let everywhere = TcpListener::bind(("0.0.0.0", 0)).expect("a socket");
    let model_server = everywhere.local_addr().expect("an address").port();
    world.lodge.set_env("LODGED_KEEPER_CRASH_AT", "keeper.no_landlock_tcp");
    world.lodge.start();
    let mut api = world.checked().await;
    let view =
        agent(&world, &mut api, "burglar", &format!("NETWORK {FAR_AWAY}:80 loopback:{loopback}")).await;
    if !is_filtered(&view) {
        return;
    }
    drop(everywhere);
    let daemon = daemon_port(&world);
    let given =
        json!({"parts": ["occupy"], "far": [FAR_AWAY, 80], "rounds": 6, "kept": 400, "loopback": loopback});
    let report = tried(&mut api, &view, &given).await;
    let ports = |name: &str| -> Vec<u16> {
        let line = report.lines().find_map(|line| line.strip_prefix(name));
        serde_json::from_str(line.expect("a line")).expect("ports")
    };
    let (taken, kept) = (ports("taken "), ports("kept "));
    assert!(kept.len() > 400 && !kept.contains(&0), "the attack works: {report}");
    assert!(taken.len() <= 2048, "{}", taken.len());
    for server in [daemon, world.mock.address().port(), loopback, model_server] {
        assert!(!taken.contains(&server), "{server}");
    }
    // Its ports do not block the loopback, and half of the host's ports are never among them.
    for port in &kept {
        TcpListener::bind(("127.0.0.1", *port)).unwrap_or_else(|error| panic!("{port}: {error}"));
    }
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("a range");
    let first: u16 = range.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a port");
    let others: Vec<&u16> =
        taken.iter().filter(|port| **port < first || (*port - first).is_multiple_of(2)).collect();
    assert!(others.is_empty(), "from {first}: {others:?}");
    TcpListener::bind(("0.0.0.0", model_server)).expect("the port that the model server had");
    for host in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"] {
        let heard = report.lines().find_map(|line| line.strip_prefix(&format!("loopback {host} ")));
        let heard: Ipv4Addr = heard.and_then(|peer| peer.parse().ok()).expect("the server's answer");
        assert!(heard.is_loopback() && heard != Ipv4Addr::LOCALHOST, "{heard}");
    }
    for host in ["::1", "::"] {
        assert!(report.contains(&format!("loopback {host} EACCES\n")), "{report}");
    }
}

#[tokio::test]
async fn ordinary_programs_reach_what_is_open_and_know_no_proxy() {
    if !in_network("network::ordinary_programs_reach_what_is_open_and_know_no_proxy") {
        return;
    }
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let get = |host: &str| {
        format!(
            "curl -sS --max-time 10 http://{host}/ 2>&1; \
             python3 -c 'import urllib.request as u; print(u.urlopen(\"http://{host}/\", timeout=10).read().decode().strip())' 2>&1 | tail -1; \
             python3 -c 'import asyncio
async def main():
    r, w = await asyncio.wait_for(asyncio.open_connection(\"{host}\".strip(\"[]\"), 80), 10)
    w.write(b\"GET / HTTP/1.0\\r\\n\\r\\n\"); print((await r.read()).decode().split(\"\\n\")[-2])
asyncio.run(main())' 2>&1 | tail -1"
        )
    };
    let places = [
        "203.0.113.5",
        "web.example",
        "other.example",
        "[2001:db8:1::5]",
        "10.99.0.5",
        "private.example",
        "own.example",
        "inward.example",
    ];
    for (name, network, opened) in [
        ("public", "", &places[..4]),
        ("lan", "NETWORK lan", &places[..6]),
        ("list", "NETWORK web.example:80", &places[1..2]),
        (
            "wild",
            "NETWORK *.example 10.99.0.0/24",
            &["web.example", "other.example", "10.99.0.5", "private.example"][..],
        ),
        ("none", "NETWORK none", &[][..]),
    ] {
        agent(&world, &mut api, name, network).await;
        for (number, place) in places.iter().enumerate() {
            let session = format!("{name}{number}");
            let call = json!(["-c", get(place)]);
            let answer =
                api.answer(name, &session, &format!("[[tool:sh|{call}]] [[reply:{{{{tool}}}}]]")).await;
            let expected = if opened.contains(place) { 3 } else { 0 };
            assert_eq!(answer.matches("far away").count(), expected, "{name} {place}: {answer}");
        }
    }
    // Shells and other languages, names that need a stream, and a list that opens an address by its name alone.
    let script = "bash -c 'exec 3<>/dev/tcp/web.example/80; printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3; tail -1 <&3' 2>&1; \
        perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(\"web.example:80\") or die $@; print $s \"GET / HTTP/1.0\\r\\n\\r\\n\"; print((<$s>)[-1])' 2>&1; \
        python3 -c 'import socket; print(len(socket.getaddrinfo(\"big.example\", 80, type=1)))' 2>&1; \
        busybox wget -q -O - http://web.example/ 2>&1; \
        git clone -q http://web.example/repo.git cloned 2>&1 && git -C cloned log -1 --format=%s; \
        python3 -c 'import select, socket, time
s = socket.socket(); s.setblocking(False); p = select.epoll(); p.register(s, select.EPOLLOUT | select.EPOLLIN)
code = s.connect_ex((\"203.0.113.5\", 80)); p.poll(10)
assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, code
s.sendall(b\"GET / HTTP/1.0\\r\\n\\r\\n\"); s.setblocking(True); b = b\"\"
while not b.endswith(b\"away\\n\"): b += s.recv(4096)
print(b.decode().split(\"\\n\")[-2])' 2>&1; \
        { [ ! -x /usr/bin/node ] && echo far away; } || /usr/bin/node -e 'fetch(\"http://web.example/\").then(r => r.text()).then(t => console.log(t.trim()))' 2>&1";
    let call = json!(["-c", script]);
    let answer = api.answer("public", "more", &format!("[[tool:sh|{call}]] [[reply:{{{{tool}}}}]]")).await;
    assert_eq!(answer.matches("far away").count(), 6, "{answer}");
    assert!(answer.contains("\n200") || answer.contains("\n1\n"), "{answer}");
}
