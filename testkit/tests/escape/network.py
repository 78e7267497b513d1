"""What an agent tries by its network. Prints one line an attempt: a name, `OPEN` or `closed`, and why.

Whether something of the host was reached is also counted by the host itself.
"""
import ctypes
import errno
import json
import os
import socket
import struct
import sys
import threading
import time

given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
FAST = 0x20000000
far = tuple(given["far"]) if given["far"] else None


def report(name, outcome, why):
    print(f"{name}\t{outcome}\t{why}", flush=True)


def attempt(name, work):
    try:
        found = work()
        report(name, "OPEN" if found else "closed", found or "nothing")
    except OSError as error:
        report(name, "closed", errno.errorcode.get(error.errno, str(error)))


def v4(host, port):
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + b"\0" * 8


def raw_connect(fd, address):
    buffer = ctypes.create_string_buffer(address, len(address))
    if libc.connect(fd, buffer, len(address)) != 0:
        raise OSError(ctypes.get_errno(), "connect")


def dial(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as s:
        s.settimeout(3)
        s.connect((host, port))
        return f"connected to {s.getpeername()}"


def direct():
    for host, port in given["closed"]:
        attempt(f"connect {host} {port}", lambda: dial(host, port))
        def late():
            s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            s.setblocking(False)
            code = s.connect_ex((host, port))
            if code != errno.EINPROGRESS:
                raise OSError(code, "connect")
            import select
            select.select([], [s], [], 3)
            code = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, "connect")
            return f"connected to {s.getpeername()}"
        attempt(f"connect without waiting {host} {port}", late)


def fast_open():
    for host, port in given["closed"]:
        if ":" in host:
            continue
        attempt(f"sendto with FASTOPEN {host} {port}", lambda: socket.socket().sendto(b"x", FAST, (host, port)))
        attempt(f"sendmsg with FASTOPEN {host} {port}", lambda: socket.socket().sendmsg([b"x"], [], FAST, (host, port)))
        def by_option():
            s = socket.socket()
            s.setsockopt(6, 30, 1)
            s.settimeout(2)
            s.connect((host, port))
            return s.send(b"x")
        attempt(f"FASTOPEN_CONNECT {host} {port}", by_option)


def datagrams():
    for host, port in given["datagrams"]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        def send():
            s = socket.socket(family, socket.SOCK_DGRAM)
            s.sendto(b"x", (host, port))
        # That it was sent says nothing: to its own loopback it may. The host counts what arrives.
        attempt(f"datagram {host} {port}", send)
    attempt("datagram far", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("203.0.113.5", 7)))


def other_sockets():
    attempt("raw", lambda: str(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)))
    attempt("packet", lambda: str(socket.socket(17, socket.SOCK_RAW, 0)))
    attempt("vsock", lambda: str(socket.socket(40, socket.SOCK_STREAM)))
    libc.syscall.restype = ctypes.c_long
    def ring():
        if libc.syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
            raise OSError(ctypes.get_errno(), "io_uring")
        return "a ring"
    attempt("io_uring", ring)
    def look():
        if libc.syscall(438, os.pidfd_open(1), 3, 0) < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        return "a descriptor of the keeper"
    attempt("descriptor of the keeper", look)


def reset(s):
    raw_connect(s.fileno(), struct.pack("=H", socket.AF_UNSPEC) + b"\0" * 14)


def handed_in():
    """What was connected to a far machine is used for something else."""
    for host, port in given["closed"]:
        if ":" in host:
            continue
        def again():
            s = socket.create_connection(far, 5)
            reset(s)
            s.connect((host, port))
            return f"connected to {s.getpeername()}"
        attempt(f"reset and connect {host} {port}", again)
    def listens():
        s = socket.create_connection(far, 5)
        reset(s)
        s.listen()
        return f"listens at {s.getsockname()}"
    attempt("reset and listen", listens)
    def binds():
        s = socket.create_connection(far, 5)
        reset(s)
        s.bind(("0.0.0.0", given["port"]))
        s.listen()
        return f"listens at {s.getsockname()}"
    attempt("reset, bind and listen", binds)
    def fast():
        s = socket.create_connection(far, 5)
        reset(s)
        return s.sendto(b"x", FAST, tuple(given["closed"][0]))
    attempt("reset and FASTOPEN", fast)
    def repair():
        s = socket.create_connection(far, 5)
        s.setsockopt(6, 19, 1)
        return "repairs"
    attempt("repair", repair)
    def transparent():
        s = socket.create_connection(far, 5)
        s.setsockopt(0, 19, 1)
        return "is transparent"
    attempt("transparent", transparent)


def options():
    """Options that would lead a connection elsewhere than where it was checked to lead."""
    source_route = b"\x83\x07\x04" + socket.inet_aton("127.0.0.1") + b"\0"
    number = struct.pack("=i", 1)
    for name, level, option, value in [
        ("IP_OPTIONS", 0, 4, source_route),
        ("IP_UNICAST_IF", 0, 50, struct.pack(">i", 1)),
        ("IPV6_RTHDR", 41, 57, b""),
        ("IPV6_2292RTHDR", 41, 5, number),
        ("IPV6_2292PKTOPTIONS", 41, 6, b""),
        ("IPV6_PKTINFO", 41, 50, b"\0" * 16 + number),
        ("IPV6_UNICAST_IF", 41, 76, struct.pack(">i", 1)),
        ("SO_BINDTODEVICE", 1, 25, b"lo\0"),
        ("SO_BINDTOIFINDEX", 1, 62, number),
        ("TCP_FASTOPEN_CONNECT", 6, 30, number),
        ("TCP_FASTOPEN_NO_COOKIE", 6, 34, number),
    ]:
        def connected():
            with socket.create_connection(far, 5) as s:
                s.setsockopt(level, option, value)
                return "set"
        def before():
            with socket.socket(socket.AF_INET6 if level == 41 else socket.AF_INET) as s:
                s.setsockopt(level, option, value)
                return "set"
        attempt(f"{name} on a connection", connected)
        attempt(f"{name} on a socket", before)


def address_race():
    """One thread connects, another writes a closed address where the open one was."""
    good, bad = v4(*far), v4(*given["closed"][0])
    buffer = ctypes.create_string_buffer(good, 16)
    stop = threading.Event()
    def flip():
        while not stop.is_set():
            ctypes.memmove(buffer, bad, 16)
            ctypes.memmove(buffer, good, 16)
    flipping = threading.Thread(target=flip)
    flipping.start()
    won = tried = 0
    until = time.monotonic() + given["seconds"]
    while time.monotonic() < until:
        tried += 1
        with socket.socket() as s:
            if libc.connect(s.fileno(), buffer, 16) == 0 and s.getpeername() != far:
                won += 1
    stop.set()
    flipping.join()
    report(f"address swapped during connect, {tried} tries", "OPEN" if won else "closed", f"{won} won")


def network_of(s):
    """The number by which the kernel knows the network of a socket."""
    return struct.unpack("=Q", s.getsockopt(socket.SOL_SOCKET, 71, 8))[0]


def continue_race(name, call):
    """A Unix socket is let through; meanwhile its descriptor becomes a TCP socket, and its address one of the host's."""
    os.makedirs("race", exist_ok=True)
    path = f"race/{name}"
    unix = struct.pack("=H", socket.AF_UNIX) + path.encode() + b"\0"
    bad = v4(*given["closed"][0])
    buffer = ctypes.create_string_buffer(unix + b"\0" * 64, 110)
    held = socket.create_connection(far, 5) if far else socket.socket()
    reset(held)
    slot = os.dup(held.fileno())
    stop = threading.Event()
    def swap():
        while not stop.is_set():
            with socket.socket(socket.AF_UNIX) as harmless:
                ctypes.memmove(buffer, unix, len(unix))
                os.dup2(harmless.fileno(), slot)
                for _ in range(3):
                    os.dup2(held.fileno(), slot)
                    ctypes.memmove(buffer, bad, 16)
    swapping = [threading.Thread(target=swap) for _ in range(2)]
    for thread in swapping:
        thread.start()
    won = tried = 0
    winner = ""
    until = time.monotonic() + given["seconds"]
    while time.monotonic() < until:
        tried += 1
        if call(slot, buffer) == 0:
            s = socket.socket(fileno=os.dup(slot))
            try:
                if s.family == socket.AF_INET and not given["own"](s):
                    won += 1
                    winner = f", last at {s.getsockname()} in {network_of(s)}, where {network_of(socket.socket())} is inside"
            except OSError:
                pass
            s.close()
    stop.set()
    for thread in swapping:
        thread.join()
    report(f"{name} swapped under continue, {tried} tries", "OPEN" if won else "closed", f"{won} won{winner}")


def races():
    def is_peer_closed(s):
        return list(s.getpeername()) != given["closed"][0]
    given["own"] = is_peer_closed
    continue_race("connect", lambda fd, at: libc.connect(fd, at, 110))
    def is_port_elsewhere(s):
        return s.getsockname()[1] != given["closed"][0][1]
    given["own"] = is_port_elsewhere
    if far:
        continue_race("bind", lambda fd, at: libc.bind(fd, at, 110))


def ports():
    """Takes every port that matters to the host, inside, and leaves servers there."""
    kept = []
    for port in given["ports"]:
        for family, host in [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")]:
            s = socket.socket(family)
            s.bind((host, port))
            s.listen()
            kept.append(s)
    print("bound", flush=True)
    stay()


def stay():
    """Leaves a process that keeps every socket open."""
    if os.fork() == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        while True:
            time.sleep(60)


def occupy():
    """Takes ports of the host: sockets that were connected and reset, and are never closed."""
    taken, kept = set(), []
    for _ in range(given["rounds"]):
        for s in kept:
            s.close()
        kept = []
        for _ in range(given["kept"]):
            try:
                s = socket.create_connection(far, 5)
            except OSError as error:
                report("connect", "closed", errno.errorcode.get(error.errno, str(error)))
                break
            taken.add(s.getsockname()[1])
            reset(s)
            # The host's server cannot share a port with a socket that does not share it.
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            kept.append(s)
    for host in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::1", "::"]:
        try:
            s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            s.settimeout(5)
            s.connect((host, given["loopback"]))
            print(f"loopback {host} {s.recv(100).decode()}", flush=True)
            taken.add(s.getsockname()[1])
            reset(s)
            kept.append(s)
        except OSError as error:
            print(f"loopback {host} {errno.errorcode.get(error.errno, str(error))}", flush=True)
    print("taken " + json.dumps(sorted(taken)))
    print("kept " + json.dumps(sorted(s.getsockname()[1] for s in kept)), flush=True)
    stay()


for part in given["parts"]:
    globals()[part]()
print("over")
