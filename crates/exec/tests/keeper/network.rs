//! The network of a sandbox, from inside: none, and a list behind its gate.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use lodge_exec::{Executor, ExitOutcome, Link, Network};

use crate::home::{BOX, PATIENCE, SandboxHome, is_root, processes_with, until};

/// An address of this host that is not its loopback. Nothing is sent to find it.
pub(crate) fn own_address() -> Option<IpAddr> {
    let source = |any: &str, far: &str| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((far, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
    };
    source("0.0.0.0", "192.0.2.1").or_else(|| source("::", "2001:db8::1"))
}

/// A server that sends `hello` and the request that it read, once per connection.
pub(crate) fn origin(address: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut asked = [0; 4096];
            let len = stream.read(&mut asked).unwrap_or(0);
            let line = String::from_utf8_lossy(&asked[..len]).lines().next().unwrap_or_default().to_owned();
            let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello to {line}\n");
            drop(stream.write_all(answer.as_bytes()));
        }
    });
    at
}

/// Sends the request on its standard input to an address, and prints what comes back.
const DIAL: &str = "dial() { python3 -c '
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
s.sendall(sys.argv[3].encode().decode(\"unicode_escape\").encode())
while True:
    b = s.recv(65536)
    if not b: break
    sys.stdout.write(b.decode())
' \"$@\" 2>&1; }\n";

pub(crate) async fn up(home: &SandboxHome, network: Network) -> Link {
    home.host.start(&lodge_exec::SandboxSpec { network, ..home.spec() }).await.unwrap();
    home.dial(1).await
}

/// As on a kernel that can guard no socket of the host's in a sandbox.
async fn up_with_proxy(home: &SandboxHome, network: Network) -> Link {
    let failpoint = Some("keeper.no_landlock_tcp+keeper.no_network_filter".to_owned());
    home.host.start(&lodge_exec::SandboxSpec { network, failpoint, ..home.spec() }).await.unwrap();
    home.dial(1).await
}

pub(crate) fn list(words: &[&str]) -> Network {
    Network::List { allow: words.iter().map(|word| (*word).to_owned()).collect() }
}

/// Runs a script that may use `dial`, with what the host's Python needs.
pub(crate) async fn run(home: &SandboxHome, link: &mut Link, exec: &str, script: &str) -> String {
    let record = home.run_sh(link, exec, &format!("{DIAL}{script}\ntrue")).await;
    assert_eq!(record.ended, ExitOutcome::Code(0), "{}", home.stdout(exec));
    home.stdout(exec)
}

#[tokio::test]
async fn without_a_network_a_tool_has_its_own_loopback_and_nothing_else() {
    let home = SandboxHome::new();
    let loopback = origin(IpAddr::from([127, 0, 0, 1]));
    let mut link = up(&home, Network::None).await;
    let mut script = format!(
        "dial 127.0.0.1 {} x; grep -c : /proc/net/dev; env | grep -i proxy; \
         python3 -c '
import socket
s = socket.create_server((\"127.0.0.1\", 8000)); c = socket.create_connection((\"127.0.0.1\", 8000)); print(\"inside\")
s6 = socket.create_server((\"::1\", 8000), family=socket.AF_INET6); print(\"inside6\")
'\n",
        loopback.port()
    );
    if let Some(address) = own_address() {
        script.push_str(&format!("dial {address} {} x\n", origin(address).port()));
    }
    let output = run(&home, &mut link, "e1", &script).await;
    assert!(output.contains("inside\ninside6\n") && !output.contains("hello"), "{output}");
    assert!(output.contains("\n1\n"), "one interface: {output}");
    assert!(!output.to_lowercase().contains("proxy="), "{output}");
    let holds =
        |name: &str| link.welcome.layers.iter().any(|layer| layer.name == name && layer.missing.is_none());
    assert!(holds("netns") && !holds("gate"));
}

#[tokio::test]
async fn without_a_guard_a_list_is_served_by_a_proxy() {
    let home = SandboxHome::new();
    let address = own_address().expect("this host has an address beside its loopback");
    let (listed, other) = (origin(address), origin(address));
    let loopback = origin(IpAddr::from([127, 0, 0, 1]));
    let words = [&listed.to_string(), "127.0.0.1", "169.254.169.254", "localhost"];
    let mut link = up_with_proxy(&home, list(&words)).await;
    let script = format!(
        "echo proxy $HTTP_PROXY $https_proxy $ALL_PROXY $NO_PROXY\n\
         gate() {{ dial 127.0.0.1 3128 \"$1\"; }}\n\
         gate 'GET http://{listed}/plain HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'\n\
         gate 'CONNECT {listed} HTTP/1.1\\r\\n\\r\\nGET /tunnel HTTP/1.1\\r\\n\\r\\n'\n\
         echo refused; gate 'GET http://{other}/ HTTP/1.1\\r\\n\\r\\n'\n\
         echo direct; dial {address} {port} x\n\
         echo closed; gate 'CONNECT {loopback} HTTP/1.1\\r\\n\\r\\n'; gate 'CONNECT localhost:{loopport} HTTP/1.1\\r\\n\\r\\n'\n\
         gate 'GET http://169.254.169.254/latest HTTP/1.1\\r\\n\\r\\n'\n",
        port = listed.port(),
        loopport = loopback.port(),
    );
    let output = run(&home, &mut link, "e1", &script).await;
    let url = "http://127.0.0.1:3128";
    assert!(output.contains(&format!("proxy {url} {url} {url} localhost,127.0.0.1,::1\n")), "{output}");
    assert!(output.contains("hello to GET /plain HTTP/1.1"), "{output}");
    assert!(output.contains("200 Connected") && output.contains("hello to GET /tunnel HTTP/1.1"), "{output}");
    assert_eq!(output.matches("hello").count(), 2, "{output}");
    let (_, refused) = output.split_once("refused\n").unwrap();
    assert!(refused.contains(&format!("NETWORK does not list {other}")), "{output}");
    assert!(refused.contains(&format!("add `{other}` to that line")), "{output}");
    assert_eq!(refused.matches("which NETWORK does not open").count(), 3, "{output}");
}

#[tokio::test]
async fn without_a_guard_a_port_of_the_hosts_loopback_is_reached_at_that_port_inside() {
    let home = SandboxHome::new();
    let [opened, v6_alone, other] = ["127.0.0.1", "::1", "127.0.0.1"].map(|at| origin(at.parse().unwrap()));
    // A port without a listener.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let words = [opened, v6_alone, silent].map(|at| format!("loopback:{}", at.port()));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut link = up_with_proxy(&home, list(&words)).await;
    let script = format!(
        "ask() {{ echo \"$1 $2\"; dial $1 $2 'GET /plain HTTP/1.1\\r\\n\\r\\n'; }}\n\
         ask 127.0.0.1 {opened}; ask ::1 {opened}; ask localhost {opened}; ask 127.0.0.1 {v6_alone}\n\
         for host in localhost 127.0.0.1 '[::1]'; do dial 127.0.0.1 3128 \"CONNECT $host:{opened} HTTP/1.1\\r\\n\\r\\nGET /tunnel HTTP/1.1\\r\\n\\r\\n\"; done\n\
         echo closed; ask 127.0.0.1 {silent}; ask 127.0.0.1 {other}; dial 127.0.0.1 3128 'CONNECT 127.0.0.1:{other} HTTP/1.1\\r\\n\\r\\n'\n",
        opened = opened.port(),
        v6_alone = v6_alone.port(),
        silent = silent.port(),
        other = other.port(),
    );
    let output = run(&home, &mut link, "e1", &script).await;
    assert_eq!(output.matches("hello to GET /plain").count(), 4, "{output}");
    assert_eq!(output.matches("hello to GET /tunnel").count(), 3, "{output}");
    let (_, closed) = output.split_once("closed\n").unwrap();
    assert!(!closed.contains("hello") && closed.contains("which NETWORK does not open"), "{output}");
}

#[tokio::test]
async fn no_tool_sees_who_serves_a_connection_of_the_proxy() {
    let address = own_address().expect("this host has an address beside its loopback");
    let silent = TcpListener::bind((address, 0)).unwrap();
    let listed = silent.local_addr().unwrap();
    let home = SandboxHome::new();
    let mut link = up_with_proxy(&home, list(&[&listed.to_string()])).await;
    let script = format!(
        "python3 -c '
import os, socket
s = socket.create_connection((\"127.0.0.1\", 3128), 10)
s.sendall(b\"CONNECT {listed} HTTP/1.1\\r\\n\\r\\n\")
assert b\"200\" in s.recv(4096)
def read(path):
    try: return open(path).read()
    except OSError: return \"\"
own = read(\"/proc/self/net/tcp\")
pids = range(1, os.getpid() + 100)
print([pid for pid in pids if \"gate\" in read(\"/proc/%d/comm\" % pid)])
print([pid for pid in pids if read(\"/proc/%d/net/tcp\" % pid).count(\"\\n\") > own.count(\"\\n\")])
'"
    );
    let output = run(&home, &mut link, "e1", &script).await;
    assert_eq!(output, "[]\n[]\n");
}

#[tokio::test]
async fn an_agent_has_a_limited_number_of_connections_open_whoever_has_their_descriptors() {
    let address = own_address().expect("this host has an address beside its loopback");
    let server = TcpListener::bind((address, 0)).unwrap();
    let listed = server.local_addr().unwrap();
    // A connection counts as long as a program has its end.
    std::thread::spawn(move || server.incoming().flatten().for_each(drop));
    let home = SandboxHome::new();
    let mut link = up(&home, list(&[&listed.to_string()])).await;
    let script = format!(
        "python3 -c '
import os, socket
def take(count):
    held, refused = [], 0
    for _ in range(count):
        s = socket.socket()
        try:
            s.connect((\"{}\", {}))
            held.append(s)
        except BlockingIOError:
            refused += 1
    return held, refused
told, tell = os.pipe()
over, end = os.pipe()
child = os.fork()
if child == 0:
    held, refused = take(600)
    os.write(tell, b\"%d\" % refused)
    os.read(over, 1)
    os._exit(0)
first = int(os.read(told, 16))
held, refused = take(600)
print(first, refused)
os.write(end, b\"x\")
os.waitpid(child, 0)
while not take(1)[0]: pass
held += take(300)[0]
print(len(held))
' 2>&1",
        listed.ip(),
        listed.port(),
    );
    let output = run(&home, &mut link, "e1", &script).await;
    assert_eq!(output, "0 176\n724\n");
}

#[tokio::test]
async fn a_list_with_a_word_that_names_nobody_does_not_start() {
    let home = SandboxHome::new();
    let spec = lodge_exec::SandboxSpec { network: list(&["http://a.example"]), ..home.spec() };
    let refused = home.host.start(&spec).await.unwrap_err();
    assert!(refused.to_string().contains("`http://a.example` names no host"), "{refused}");
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
}

#[tokio::test]
async fn a_host_without_network_namespaces_starts_nothing_that_is_not_to_have_its_network() {
    for failpoint in ["keeper.no_network", "keeper.no_namespaces"] {
        for network in [Network::None, Network::Public, Network::Lan, list(&["a.example"])] {
            let home = SandboxHome::new();
            let failpoint = Some(failpoint.to_owned());
            let spec = lodge_exec::SandboxSpec { network, failpoint, ..home.spec() };
            let refused = home.host.start(&spec).await.unwrap_err();
            assert!(refused.to_string().contains("needs a network namespace"), "{refused}");
            assert!(home.host.wait_gone(BOX, PATIENCE).await);
        }
    }
}

/// The gate of a sandbox, as the host sees it: it is a child of the keeper.
fn gate_of(home: &SandboxHome) -> Vec<i32> {
    let keeper = home.keeper_pid().unwrap();
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parent == Some(keeper.to_string().as_str())
    };
    processes_with("gate").into_iter().filter(is_child).collect()
}

#[tokio::test]
async fn no_tool_can_signal_or_look_into_the_gate_and_it_has_no_rights() {
    let home = SandboxHome::new();
    let mut link = up(&home, list(&["a.example"])).await;
    let gate = gate_of(&home)[0];
    let status = std::fs::read_to_string(format!("/proc/{gate}/status")).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")) || !is_root(), "{status}");
    }
    for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    assert!(!is_root() || uid.split_whitespace().all(|uid| uid == "65534"), "{status}");
    // `/proc` says nothing of it: its network and its mounts are the host's.
    let script = "for p in /proc/[0-9]*; do [ -d $p ] && [ ! -e $p/stat ] || continue; \
        g=${p#/proc/}; echo gate; ls -A $p; cat $p/net/tcp $p/mountinfo 2>/dev/null; kill -9 $g 2>/dev/null && echo signalled; kill -STOP $g 2>/dev/null && echo stopped; \
        ls $p/fd 2>/dev/null; cat $p/environ 2>/dev/null; head -c1 $p/mem 2>/dev/null; cat $p/maps 2>/dev/null; done; \
        kill -9 -1 2>/dev/null; true";
    home.run_sh(&mut link, "e1", script).await;
    let scoped =
        link.welcome.layers.iter().any(|layer| layer.name == "landlock_scope" && layer.missing.is_none());
    if is_root() || scoped {
        assert_eq!(home.stdout("e1"), "gate\n");
        assert_eq!(gate_of(&home), [gate]);
        home.run_sh(&mut link, "e2", "true").await;
    }
}

#[tokio::test]
async fn a_gate_ends_with_its_keeper_however_that_ends() {
    let address = own_address().expect("this host has an address beside its loopback");
    // One that never answers holds a connection open.
    let silent = TcpListener::bind((address, 0)).unwrap();
    let listed = silent.local_addr().unwrap();
    for killed in [true, false] {
        let home = SandboxHome::new();
        let mut link = up(&home, list(&[&listed.to_string()])).await;
        let script = format!("dial {} {} x & echo", listed.ip(), listed.port());
        run(&home, &mut link, "e1", &script).await;
        let (held, _): (TcpStream, _) = silent.accept().unwrap();
        let gate = gate_of(&home);
        assert_eq!(gate.len(), 1);
        if killed {
            home.kill_keeper();
        } else {
            link.send(&lodge_exec::KeeperCommand::End { grace_ms: 1000 }).await.unwrap();
        }
        assert!(home.host.wait_gone(BOX, PATIENCE).await);
        until("the gate is gone", || !std::path::Path::new(&format!("/proc/{}", gate[0])).exists()).await;
        let mut rest = Vec::new();
        // Closed or reset: the other end is gone.
        drop((&held).read_to_end(&mut rest));
    }
}

#[tokio::test]
async fn a_sandbox_whose_gate_died_ends_and_says_why() {
    let home = SandboxHome::new();
    let mut link = up(&home, list(&["a.example"])).await;
    home.run_sh(&mut link, "e1", "true").await;
    let gate = rustix::process::Pid::from_raw(gate_of(&home)[0]).unwrap();
    rustix::process::kill_process(gate, rustix::process::Signal::KILL).unwrap();
    assert!(home.host.wait_gone(BOX, PATIENCE).await);
    assert!(home.log().contains("its gate died"), "{}", home.log());
}

#[tokio::test]
async fn a_proxy_has_a_limited_number_of_connections_and_refuses_the_next() {
    let address = own_address().expect("this host has an address beside its loopback");
    let silent = TcpListener::bind((address, 0)).unwrap();
    let listed = silent.local_addr().unwrap();
    // It says nothing, and goes when its client goes.
    std::thread::spawn(move || {
        for mut stream in silent.incoming().flatten() {
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    let home = SandboxHome::new();
    let mut link = up_with_proxy(&home, list(&[&listed.to_string()])).await;
    let script = format!(
        "python3 -c '
import socket
def ask():
    s = socket.create_connection((\"127.0.0.1\", 3128), 10)
    s.sendall(b\"CONNECT {listed} HTTP/1.1\\r\\n\\r\\n\")
    return s, s.recv(4096).decode().split()[1]
held = [ask() for _ in range(128)]
print(sorted(set(code for _, code in held)), ask()[1])
held.pop()[0].close()
while True:
    s, code = ask()
    if code == \"200\": break
print(code)
'"
    );
    let output = run(&home, &mut link, "e1", &script).await;
    assert_eq!(output, "['200'] 503\n200\n");
}
