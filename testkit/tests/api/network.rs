//! What an agent's tools reach of the network: all of it, none of it, or what a list names.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use lodge_testkit::lodge::{Lodge, bin};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, family, is_root, kill, sh};

const AGENTFILE: &str = "FROM scratch\nNAME tester\nMODEL mock/m\nBIN sh host:sh \"a shell\"\n\
    BIN python3 host:python3 \"a client\"\nBIN cat host:cat \"files\"\nBIN sleep host:sleep \"waits\"\n";

/// An address of this host that is not its loopback. Nothing is sent to find it.
fn own_address() -> IpAddr {
    let source = |any: &str, far: &str| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((far, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
    };
    let found = source("0.0.0.0", "192.0.2.1").or_else(|| source("::", "2001:db8::1"));
    found.expect("this host has an address beside its loopback, without which there is no network to reach")
}

/// A web server: `/to/<url>` leads there, anything else is greeted.
fn origin(address: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).expect("a socket");
    let at = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            let host = lines
                .by_ref()
                .take_while(|line| !line.is_empty())
                .find_map(|line| line.to_lowercase().strip_prefix("host: ").map(str::to_owned));
            let path = first.split(' ').nth(1).unwrap_or_default();
            let answer = match path.strip_prefix("/to/") {
                Some(url) => format!("HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n"),
                None => {
                    let text = format!("hello to {} as {}\n", path, host.unwrap_or_default());
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
                }
            };
            drop((&stream).write_all(answer.as_bytes()));
        }
    });
    at
}

/// A daemon with these lines in its hosts file. Other processes see the host's own file.
///
/// `without` is what its keepers do without.
fn with_hosts(lines: &str, without: Option<&str>) -> (ApiWorld, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let (hosts, wrapper) = (dir.path().join("hosts"), dir.path().join("lodged-with-hosts"));
    let before = fs::read_to_string("/etc/hosts").unwrap_or_default();
    fs::write(&hosts, format!("{before}\n{lines}")).expect("a file");
    fs::set_permissions(&hosts, fs::Permissions::from_mode(0o644)).expect("a mode");
    let (hosts, lodged) = (hosts.display(), bin("lodged"));
    let lodged = lodged.display();
    // SAFETY: these cannot fail and touch no memory.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let script = if is_root() {
        format!("exec unshare -m sh -c 'mount --bind {hosts} /etc/hosts && exec {lodged}'")
    } else {
        // Root of a namespace of its own may mount, and what it starts is the same user again.
        let again = format!("unshare -U --map-user={uid} --map-group={gid}");
        format!("exec unshare -U -r -m sh -c 'mount --bind {hosts} /etc/hosts && exec {again} {lodged}'")
    };
    fs::write(&wrapper, format!("#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n{script}\n"))
        .expect("a file");
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("a mode");
    let mut world = ApiWorld::with(Lodge::of(wrapper));
    if let Some(point) = without {
        world.lodge.set_env("LODGED_KEEPER_CRASH_AT", point);
    }
    world.lodge.start();
    (world, dir)
}

async fn agent(api: &mut CheckedClient, name: &str, network: &str) -> Value {
    let content = format!("{AGENTFILE}{network}\n");
    api.ok("agent/create", json!({"content": content, "name": name})).await;
    api.agent_is(name, "ready").await
}

/// What a Python program of the agent prints, with `get(url)` and `dial(host, port)` at hand.
async fn python(api: &mut CheckedClient, agent: &str, session: &str, program: &str) -> String {
    let helpers = "import socket, urllib.request, urllib.error\n\
        def get(url):\n    try: print(url, urllib.request.urlopen(url, timeout=10).read().decode())\n    \
        except urllib.error.HTTPError as e: print(url, e.code, e.reason, e.read().decode())\n    \
        except Exception as e: print(url, 'failed', e)\n\
        def dial(host, port):\n    try: socket.create_connection((host, port), 5); print('REACHED', host, port)\n    \
        except Exception as e: print('not reached', host, port)\n";
    let call = json!(["-c", format!("{helpers}{program}\nprint('over')")]);
    let text = format!("[[tool:python3|{call}]] [[reply:{{{{tool}}}}]]");
    let answer = api.answer(agent, session, &text).await;
    assert!(answer.contains("over"), "{answer}");
    answer
}

fn daemon_port(world: &ApiWorld) -> u16 {
    let addr = world.lodge.http_addr();
    addr.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

#[tokio::test]
async fn an_agent_without_a_network_reaches_neither_the_host_nor_the_daemon_and_still_thinks() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let view = agent(&mut api, "one", "NETWORK none").await;
    assert_eq!(view["network"], json!({"mode": "none", "allow": []}));
    let holds = |name: &str| {
        view["isolation"]
            .as_array()
            .expect("layers")
            .iter()
            .any(|layer| layer["name"] == name && layer["in_force"] == true)
    };
    assert!(holds("netns") && !holds("gate"), "{view}");
    let (address, mock) = (own_address(), world.mock.address());
    let program = format!(
        "dial('127.0.0.1', {})\ndial('{}', {})\ndial('{address}', {})\ndial('169.254.169.254', 80)\n\
         s = socket.create_server(('127.0.0.1', 9999)); dial('localhost', 9999)\n\
         import os; print([k for k in os.environ if 'proxy' in k.lower()])",
        daemon_port(&world),
        mock.ip(),
        mock.port(),
        origin(address).port(),
    );
    let answer = python(&mut api, "one", "s", &program).await;
    assert_eq!(answer.matches("not reached").count(), 4, "{answer}");
    assert!(answer.contains("REACHED localhost 9999") && answer.contains("\n[]\n"), "{answer}");
}

#[tokio::test]
async fn a_list_opens_names_by_what_they_lead_to_and_nothing_else() {
    let address = own_address();
    let (site, inner) = (origin(address), origin(IpAddr::from([127, 0, 0, 1])));
    let lines =
        format!("{address} allowed.example\n127.0.0.1 inward.example\n169.254.169.254 cloud.example\n");
    let (world, _hosts) = with_hosts(&lines, None);
    let mut api = world.checked().await;
    let (port, inner, daemon) = (site.port(), inner.port(), daemon_port(&world));
    let list = format!("NETWORK allowed.example inward.example cloud.example {site}");
    let view = agent(&mut api, "one", &list).await;
    assert_eq!(view["network"]["mode"], "list");
    let program = format!(
        "get('http://allowed.example:{port}/plain')\nget('http://{site}/literal')\n\
         get('http://inward.example:{inner}/')\nget('http://cloud.example/latest/meta-data')\n\
         get('http://inward.example:{daemon}/healthz')\nget('http://169.254.169.254/latest')\n\
         dial('127.0.0.1', {daemon})\ndial('127.0.0.1', {inner})\ndial('{address}', {daemon})\n\
         import os; print([k for k in os.environ if 'proxy' in k.lower()])"
    );
    let answer = python(&mut api, "one", "s", &program).await;
    for part in [format!("hello to /plain as allowed.example:{port}"), format!("hello to /literal as {site}")]
    {
        assert!(answer.contains(&part), "{part} is missing:\n{answer}");
    }
    assert_eq!(answer.matches("hello").count(), 2, "{answer}");
    assert_eq!(answer.matches("Connection refused").count(), 2, "its own loopback: {answer}");
    assert_eq!(answer.matches("Permission denied").count(), 2, "{answer}");
    assert_eq!(answer.matches("not reached").count(), 3, "{answer}");
    assert!(answer.contains("\n[]\n"), "no proxy: {answer}");

    // A name alone does not open an address of the host itself.
    agent(&mut api, "two", "NETWORK allowed.example").await;
    let answer = python(&mut api, "two", "t", &format!("get('http://allowed.example:{port}/')")).await;
    assert!(answer.contains("Permission denied"), "{answer}");
}

#[tokio::test]
async fn without_a_guard_a_list_is_served_by_a_proxy_that_says_what_would_open_the_rest() {
    let address = own_address();
    let (site, inner) = (origin(address), origin(IpAddr::from([127, 0, 0, 1])));
    let lines = format!(
        "{address} allowed.example other.example\n127.0.0.1 inward.example\n169.254.169.254 cloud.example\n"
    );
    let (world, _hosts) = with_hosts(&lines, Some("keeper.no_landlock_tcp+keeper.no_network_filter"));
    let mut api = world.checked().await;
    let (port, inner, daemon) = (site.port(), inner.port(), daemon_port(&world));
    let list = format!("NETWORK allowed.example inward.example cloud.example {site}");
    let view = agent(&mut api, "one", &list).await;
    assert_eq!(view["network"]["mode"], "list");
    let program = format!(
        "get('http://allowed.example:{port}/plain')\nget('http://{site}/literal')\n\
         get('http://other.example:{port}/')\nget('http://allowed.example:{port}/to/http://other.example:{port}/')\n\
         get('http://inward.example:{inner}/')\nget('http://cloud.example/latest/meta-data')\n\
         get('http://inward.example:{daemon}/healthz')\nget('http://169.254.169.254/latest')\n\
         dial('{address}', {port})\ndial('127.0.0.1', {daemon})\ndial('127.0.0.1', {inner})\n\
         import os\ndel os.environ['NO_PROXY'], os.environ['no_proxy']\nget('http://127.0.0.1:{daemon}/healthz')"
    );
    let answer = python(&mut api, "one", "s", &program).await;
    for part in [
        format!("hello to /plain as allowed.example:{port}"),
        format!("hello to /literal as {site}"),
        format!(
            "403 other.example is not listed by NETWORK the agent's NETWORK does not list other.example:{port}"
        ),
        format!("now:  {list}"),
        format!("add `other.example:{port}` to that line"),
        "inward.example leads to 127.0.0.1, which NETWORK does not open".to_owned(),
        "cloud.example leads to 169.254.169.254, which NETWORK does not open".to_owned(),
    ] {
        assert!(answer.contains(&part), "{part} is missing:\n{answer}");
    }
    assert_eq!(answer.matches("hello").count(), 2, "{answer}");
    assert_eq!(
        answer.matches("other.example is not listed").count(),
        2,
        "a redirect is a request, too: {answer}"
    );
    assert_eq!(answer.matches("which NETWORK does not open").count(), 5, "{answer}");
    assert_eq!(answer.matches("not reached").count(), 3, "{answer}");

    // A name alone does not open an address of the host itself. A daemon has one keeper do without something.
    let (world, _hosts) = with_hosts(&lines, Some("keeper.no_landlock_tcp+keeper.no_network_filter"));
    let mut api = world.checked().await;
    agent(&mut api, "two", "NETWORK allowed.example").await;
    let answer = python(&mut api, "two", "t", &format!("get('http://allowed.example:{port}/')")).await;
    assert!(
        answer.contains("private or the host's own") && answer.contains(&format!("add `{address}`")),
        "{answer}"
    );
}

/// The process that is an agent's gate, as the host sees it.
fn gate_of(view: &Value) -> Option<i32> {
    let keeper = i32::try_from(view["pid"].as_i64()?).ok()?;
    let is_gate =
        |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"keeper\0gate\0");
    family(keeper).into_iter().find(is_gate)
}

#[tokio::test]
async fn a_gate_outlives_the_daemon_and_an_agent_whose_gate_died_gets_a_new_one() {
    let site = origin(own_address());
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let view = agent(&mut api, "one", &format!("NETWORK {site}")).await;
    let gate = gate_of(&view).expect("a gate");
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    // An agent is ready by what is recorded; its keeper has a pid as soon as it was found again.
    let is_found = |view: &Value| !view["pid"].is_null();
    let view = api.until("agent/get", json!({"agent": "one"}), is_found).await;
    assert_eq!(gate_of(&view), Some(gate));
    let program = format!("get('http://{site}/')");
    assert!(python(&mut api, "one", "s", &program).await.contains("hello"));

    let asked = json!({"agent": "one", "bin": "sh", "args": ["-c", "echo begun; sleep 600"]});
    let job = json!({"job": api.ok("job/submit", asked).await["id"]});
    api.until("job/get", job.clone(), |view| view["stdout_bytes"] == 6).await;
    kill(gate, libc::SIGKILL);
    let another =
        |view: &Value| view["status"] == "ready" && gate_of(view).is_some_and(|found| found != gate);
    api.until("agent/get", json!({"agent": "one"}), another).await;
    let lost = api.until("job/get", job, |view| !view["finished_at"].is_null()).await;
    assert_eq!((&lost["status"], &lost["signal"]), (&json!("error"), &Value::Null), "{lost:#}");
    assert!(lost["error"].as_str().is_some_and(|why| why.contains("lost")), "{lost:#}");
    assert!(python(&mut api, "one", "t", &program).await.contains("hello"));
}

#[tokio::test]
async fn an_agent_that_cannot_have_a_network_of_its_own_fails_and_says_so() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_KEEPER_CRASH_AT", "keeper.no_network");
    world.lodge.start();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}NETWORK none\n");
    api.ok("agent/create", json!({"content": content, "name": "one"})).await;
    let failed = |view: &Value| !view["failure_detail"].is_null() || view["status"] == "ready";
    let view = api.until("agent/get", json!({"agent": "one"}), failed).await;
    let log = json!(api.log().await).to_string();
    let told = format!("{view}{log}");
    assert!(told.contains("needs a network namespace"), "{told}");
    assert!(log.contains("\"init\""), "{log}");
}

#[tokio::test]
async fn with_the_hosts_network_its_abstract_sockets_are_closed_where_the_kernel_can() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let name = format!("lodge-test-bus-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("a socket");
    let view = agent(&mut api, "one", "NETWORK host").await;
    assert_eq!(view["network"]["mode"], "host");
    let program = format!(
        "s = socket.socket(socket.AF_UNIX)\ntry: s.connect('\\0{name}'); print('REACHED the bus')\nexcept OSError as e: print(e)\n\
         t = socket.socket(socket.AF_UNIX); t.bind('\\0{name}-own'); t.listen()\n\
         s = socket.socket(socket.AF_UNIX); s.connect('\\0{name}-own'); print('its own')\n\
         for f in (17, 38, 40):\n    try: socket.socket(f, socket.SOCK_STREAM if f != 17 else socket.SOCK_RAW); print('SOCKET', f)\n    except OSError: pass"
    );
    let answer = python(&mut api, "one", "s", &program).await;
    let scope =
        view["isolation"].as_array().expect("layers").iter().find(|layer| layer["name"] == "landlock_scope");
    let scoped = scope.is_some_and(|layer| layer["in_force"] == true);
    assert_eq!(answer.contains("REACHED"), !scoped, "{answer} {scope:?}");
    assert!(answer.contains("its own") && !answer.contains("SOCKET"), "{answer}");
    drop(listener);
}

#[tokio::test]
async fn info_says_whether_networks_can_be_closed_and_guarded_and_the_default_is_public() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let info = api.ok("info", json!({})).await;
    let layer = info["isolation"].as_array().expect("layers").iter().find(|layer| layer["name"] == "netns");
    assert_eq!(layer.expect("a layer")["in_force"], true, "{info}");
    let layers = info["isolation"].as_array().expect("layers");
    let guard = layers.iter().find(|layer| layer["name"] == "network_landlock");
    assert_eq!(guard.expect("a layer")["in_force"], true, "{info}");
    let view = agent(&mut api, "one", "").await;
    assert_eq!(view["network"], json!({"mode": "public", "allow": []}));
    let answer = api.answer("one", "s", &format!("{} [[reply:{{{{tool}}}}]]", sh("set"))).await;
    assert!(!answer.to_lowercase().contains("proxy"), "{answer}");
}
