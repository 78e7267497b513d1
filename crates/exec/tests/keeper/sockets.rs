//! Connections that the keeper makes for programs: they look like the programs' own, and lead where the rules allow.

use std::net::{IpAddr, TcpListener};

use lodge_exec::Network;

use crate::home::{SandboxHome, until};
use crate::network::{list, origin, own_address, run, up};

/// Runs a Python program of several lines.
fn python(program: &str) -> String {
    python_by("python3", program)
}

/// As [`python`], by another command.
fn python_by(command: &str, program: &str) -> String {
    format!(
        "cat > p.py <<'END'\nimport errno, os, select, socket, struct, sys, threading\n{program}\nEND\n{command} p.py 2>&1"
    )
}

#[tokio::test]
async fn programs_connect_as_if_the_network_were_their_own() {
    let home = SandboxHome::new();
    let address = own_address().expect("this host has an address beside its loopback");
    let (listed, other) = (origin(address), origin(address));
    let mut link = up(&home, list(&[&listed.to_string()])).await;
    let program = format!(
        "
at, other = ('{address}', {port}), ('{address}', {other})
def ask(s):
    s.sendall(b'GET /x\\r\\n\\r\\n'); return s.recv(4096).decode().split()[-1]
s = socket.socket(); s.setsockopt(6, 1, 1); s.connect(at)
print('blocking', ask(s), s.getpeername() == at, s.getsockopt(6, 1), os.get_inheritable(s.fileno()), s.getblocking())
s = socket.create_connection(at, 5); print('timeout', ask(s))
s = socket.socket(); s.setblocking(False); e = s.connect_ex(at)
select.select([], [s], [], 5); s.setblocking(True); print('nonblocking', e == errno.EINPROGRESS, s.getsockopt(1, 4), ask(s))
s = socket.socket(); s.setblocking(False); p = select.epoll(); p.register(s, select.EPOLLOUT | select.EPOLLET)
s.connect_ex(at); print('epoll', p.poll(5) == [(s.fileno(), select.EPOLLOUT)]); p.modify(s, select.EPOLLIN); p.unregister(s)
s = socket.socket(); os.set_inheritable(s.fileno(), True); s.connect(at); print('inherits', os.get_inheritable(s.fileno()))
print('again', s.connect_ex(at) == errno.EISCONN, s.connect_ex(other) == errno.EISCONN); s.close()
for name, to in [('other', other), ('metadata', ('169.254.169.254', 80)), ('private', ('10.9.8.7', 80)), ('far', ('203.0.113.5', 80))]:
    print(name, errno.errorcode[socket.socket().connect_ex(to)])
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try: u.sendto(b'x', ('203.0.113.5', 9))
except OSError as e: print('udp', errno.errorcode[e.errno])
ok = []
def one(): ok.append(ask(socket.create_connection(at)))
t = [threading.Thread(target=one) for _ in range(60)]; [x.start() for x in t]; [x.join() for x in t]; print('many', len(ok))
print('proxy', [k for k in os.environ if 'proxy' in k.lower()])
",
        port = listed.port(),
        other = other.port(),
    );
    let output = run(&home, &mut link, "e1", &python(&program)).await;
    let hello = "/x";
    let expected = format!(
        "blocking {hello} True 1 False True\ntimeout {hello}\nnonblocking True 0 {hello}\nepoll True\ninherits True\n\
         again True True\nother EACCES\nmetadata EACCES\nprivate EACCES\nfar EACCES\nudp ENETUNREACH\nmany 60\nproxy []\n"
    );
    assert_eq!(output, expected);
}

#[tokio::test]
async fn nobody_waits_for_a_socket_that_came_while_another_was_refused() {
    let home = SandboxHome::new();
    let address = own_address().expect("this host has an address beside its loopback");
    let listed = origin(address);
    let mut link = up(&home, list(&[&listed.to_string()])).await;
    let program = format!(
        "
ok = []
def reach():
    for _ in range(20): socket.create_connection(('{address}', {port}), 20).close(); ok.append(1)
def refused():
    for _ in range(200): socket.socket().connect_ex(('10.9.8.7', 80))
t = [threading.Thread(target=f) for f in [reach, refused] * 20]; [x.start() for x in t]; [x.join() for x in t]; print(len(ok))
",
        port = listed.port()
    );
    assert_eq!(run(&home, &mut link, "e1", &python(&program)).await, "400\n");
}

#[tokio::test]
async fn servers_inside_are_reached_by_programs_inside_and_by_nobody_else() {
    for network in [Network::None, Network::Public] {
        let home = SandboxHome::new();
        let mut link = up(&home, network).await;
        let program = "
for family, at in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'), (socket.AF_INET, '0.0.0.0')]:
    l = socket.socket(family); l.setsockopt(1, 2, 1); l.bind((at, 80)); l.listen()
    c = socket.socket(family); c.connect((at, 80)); c.sendall(b'x'); print(at, l.accept()[0].recv(1).decode())
    c = socket.socket(family); c.setblocking(False); e = c.connect_ex((at, 80)); select.select([], [c], [], 5); print(c.getsockopt(1, 4))
    l.close()
print('closed', errno.errorcode[socket.socket().connect_ex(('127.0.0.1', 81))])
s = socket.socket(); s.listen(); c = socket.create_connection(('127.0.0.1', s.getsockname()[1])); print('unbound')
u = socket.socket(socket.AF_UNIX); u.bind('sock'); u.listen(); c = socket.socket(socket.AF_UNIX); c.connect('sock')
print('unix', struct.unpack('3i', c.getsockopt(1, 17, 12))[1] == os.getuid())
a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); a.bind(('127.0.0.1', 5000))
b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); b.connect(('127.0.0.1', 5000)); b.send(b'u'); print(a.recv(1).decode())
c = socket.socket(socket.AF_INET6); c.setsockopt(41, 26, 0); l = socket.create_server(('127.0.0.1', 82)); c.connect(('::ffff:127.0.0.1', 82)); print('mapped')
full = socket.socket(); full.bind(('127.0.0.1', 83)); full.listen(0)
k = [socket.socket() for _ in range(4)]
for x in k: x.setblocking(False); x.connect_ex(('127.0.0.1', 83))
w = socket.socket(); w.setsockopt(1, 21, struct.pack('ll', 0, 200000))
print('full', errno.errorcode[w.connect_ex(('127.0.0.1', 83))], w.getblocking())
";
        let output = run(&home, &mut link, "e1", &python(program)).await;
        let expected = "127.0.0.1 x\n0\n::1 x\n0\n0.0.0.0 x\n0\nclosed ECONNREFUSED\nunbound\nunix True\nu\nmapped\nfull EINPROGRESS True\n";
        assert_eq!(output, expected);
    }
}

#[tokio::test]
async fn a_listed_port_of_the_hosts_loopback_is_open_and_no_other() {
    let home = SandboxHome::new();
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let (open, closed) = (origin(loopback), origin(loopback));
    let mut link = up(&home, list(&[&format!("loopback:{}", open.port())])).await;
    let program = format!(
        "
for host in ['127.0.0.1', 'localhost', '0.0.0.0']:
    s = socket.create_connection((host, {open}), 5); s.sendall(b'GET /x\\r\\n\\r\\n'); print(host, s.recv(4096).decode().split()[-1])
    print(errno.errorcode[socket.socket().connect_ex(('127.0.0.1', {closed}))])
",
        open = open.port(),
        closed = closed.port()
    );
    let output = run(&home, &mut link, "e1", &python(&program)).await;
    assert_eq!(output, "127.0.0.1 /x\nECONNREFUSED\nlocalhost /x\nECONNREFUSED\n0.0.0.0 /x\nECONNREFUSED\n");
}

#[tokio::test]
async fn a_program_that_waits_for_a_connection_can_be_interrupted_and_killed() {
    let home = SandboxHome::new();
    let address = own_address().expect("this host has an address beside its loopback");
    // Connections beyond its queue wait.
    let full = TcpListener::bind((address, 0)).unwrap();
    let listed = full.local_addr().unwrap();
    // SAFETY: no memory is passed.
    unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&full), 0) };
    let mut link = up(&home, list(&[&listed.to_string()])).await;
    let program = format!(
        "
import signal, subprocess, time
at = ('{address}', {port})
fill = [socket.socket() for _ in range(3)]
for x in fill: x.setblocking(False); x.connect_ex(at)
seen = []
def alarm(*_):
    seen.append(1)
    if len(seen) == 3: raise TimeoutError
signal.signal(signal.SIGALRM, alarm); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
try: socket.socket().connect(at)
except TimeoutError: print('interrupted')
signal.setitimer(signal.ITIMER_REAL, 0)
p = [subprocess.Popen([sys.executable, '-c', 'import socket; print(1, flush=True); socket.socket().connect((\"{address}\", {port}))'], stdout=subprocess.PIPE) for _ in range(3)]
for x in p: x.stdout.read(1); x.kill(); x.wait()
l = socket.create_server(('127.0.0.1', 0)); socket.create_connection(l.getsockname()); print('goes on')
",
        port = listed.port()
    );
    let output = run(&home, &mut link, "e1", &python(&program)).await;
    assert_eq!(output, "interrupted\ngoes on\n");
}

#[tokio::test]
async fn a_program_that_hardly_gets_a_processor_connects_like_any_other() {
    let home = SandboxHome::new();
    let address = own_address().expect("this host has an address beside its loopback");
    let listed = origin(address);
    let mut link = up(&home, list(&[&listed.to_string()])).await;
    let program = format!(
        "
for _ in range(4 * os.cpu_count()):
    if os.fork() == 0:
        while os.getppid() != 1: pass
        os._exit(0)
os.nice(10)
found = []
for blocks in [True, False] * 10:
    s = socket.socket(); s.setblocking(blocks)
    e = s.connect_ex(('{address}', {port}))
    if not blocks:
        found.append(errno.errorcode.get(e)); select.select([], [s], [], 60); s.setblocking(True); e = s.getsockopt(1, 4)
    try:
        s.sendall(b'GET /x\\r\\n\\r\\n'); found.append((e, s.recv(4096).decode().split()[-1]))
    except OSError as error: found.append(error)
print(set(found), flush=True)
os.killpg(0, 9)
",
        port = listed.port(),
    );
    let output = run(&home, &mut link, "e1", &python_by("setsid -w python3", &program)).await;
    assert!(output.contains("(0, '/x')") && output.contains("EINPROGRESS"), "{output}");
    assert_eq!(output.matches(',').count(), 2, "{output}");
}

#[tokio::test]
async fn names_are_answered_by_the_gate_and_a_list_has_only_its_own() {
    let home = SandboxHome::new();
    let mut link = up(&home, list(&["listed.localhost", "nobody.invalid"])).await;
    let program = "
def ask(kind, name, record):
    q = struct.pack('>6H', 7, 256, 1, 0, 0, 0) + b''.join(bytes([len(l)]) + l.encode() for l in name.split('.')) + b'\\0' + struct.pack('>2H', record, 1)
    if kind == 'udp':
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(('127.0.0.1', 53)); s.send(q); a = s.recv(512)
    else:
        s = socket.create_connection(('127.0.0.1', 53), 20); s.sendall(struct.pack('>H', len(q)) + q); n = struct.unpack('>H', s.recv(2))[0]; a = s.recv(n)
    return struct.unpack('>6H', a[:12])[:4], a[-4:]
for kind in ['udp', 'tcp']:
    (i, flags, q, n), rest = ask(kind, 'listed.localhost', 1)
    print(kind, i, flags & 0x800f, n, socket.inet_ntoa(rest))
    print(kind, 'other', hex(ask(kind, 'other.example', 1)[0][1] & 0x800f))
try: socket.getaddrinfo('other.example', 80)
except socket.gaierror as e: print('gai', e.errno == socket.EAI_NONAME)
print(open('/etc/resolv.conf').read().split())
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'garbage', ('127.0.0.1', 53))
print(socket.gethostbyname('localhost'))
";
    let output = run(&home, &mut link, "e1", &python(program)).await;
    let one = |kind: &str| format!("{kind} 7 32768 1 127.0.0.1\n{kind} other 0x8003\n");
    let expected = format!("{}{}gai True\n['nameserver', '127.0.0.1']\n127.0.0.1\n", one("udp"), one("tcp"));
    assert_eq!(output, expected);
}

#[tokio::test]
async fn a_flood_of_calls_holds_up_neither_others_nor_the_link() {
    let home = SandboxHome::new();
    let mut link = up(&home, Network::Public).await;
    let flood = python(
        "
def flood():
    while True: socket.socket().connect_ex(('127.0.0.1', 9))
for _ in range(16): threading.Thread(target=flood, daemon=True).start()
print('floods', flush=True); threading.Event().wait()
",
    );
    link.send(&lodge_exec::KeeperCommand::Start(home.sh("flood", &flood))).await.unwrap();
    let said = home.exec_dir("flood").join("stdout");
    until("it floods", || std::fs::read_to_string(&said).is_ok_and(|said| said.contains("floods"))).await;
    for round in 0..20 {
        let exec = format!("e{round}");
        let output = run(&home, &mut link, &exec, "echo done").await;
        assert_eq!(output, "done\n");
    }
    link.send(&lodge_exec::KeeperCommand::Kill { exec: "flood".to_owned(), grace_ms: 0 }).await.unwrap();
}
