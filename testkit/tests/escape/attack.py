"""Tries to leave the sandbox it runs in. One line for each attempt: what, `closed` or `OPEN`, and how it went.

`OPEN` means that the attempt did what an agent must not be able to do. What can only be seen from outside is looked
at there, by the test that plants the targets; the file named in the first argument says which.
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys

GIVEN = json.load(open(sys.argv[1]))
LIBC = ctypes.CDLL(None, use_errno=True)
OWN = os.getpid()
ROOT = os.environ["LODGE_AGENT_ROOT"]
WORK = os.path.join(ROOT, "workspace")


class Open(Exception):
    """The attempt succeeded."""


REPORT = open(os.path.join(WORK, "report"), "w")


def tell(name, outcome, detail):
    print("%s\t%s\t%s" % (name, outcome, str(detail).replace("\n", " ").replace("\t", " ")[:120]), file=REPORT, flush=True)


def attempt(name, act):
    try:
        detail = act()
    except Open as won:
        return tell(name, "OPEN", won)
    except OSError as error:
        return tell(name, "closed", errno.errorcode.get(error.errno, error))
    except Exception as error:
        return tell(name, "closed", "%s %s" % (type(error).__name__, error))
    tell(name, "closed", detail or "nothing")


def syscall(number, *args):
    """Raises what the kernel said."""
    ctypes.set_errno(0)
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = LIBC.syscall(ctypes.c_long(number), *args)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def must_fail(act, *args):
    """An act that is open as soon as it works."""
    raise Open(act(*args))


def read(path):
    with open(path, "rb", buffering=0) as file:
        return file.read(4096)


def has_canary(path):
    if GIVEN["canary"].encode() in read(path):
        raise Open("read it")
    return "no canary"


def write(path, flags=os.O_CREAT):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | flags)
    os.write(fd, b"x")
    raise Open("wrote to it")


def plant(path):
    """Where the agent has a directory of its own at the same path, this works, and only the test can tell."""
    os.mkdir(path + "-dir")
    with open(path, "w"):
        return "made"


# Files of the daemon and of others.

def prefixes():
    yield ""
    for pid in [name for name in os.listdir("/proc") if name.isdigit()] + ["self"]:
        yield "/proc/%s/root" % pid
    yield "/proc/1/cwd"


def files():
    for path in GIVEN["files"]:
        for prefix in prefixes():
            attempt("read %s%s" % (prefix, path), lambda: must_fail(read, prefix + path))
        attempt("hard link to %s" % path, lambda: must_fail(os.link, path, os.path.join(WORK, "linked")))
        attempt("rename of %s" % path, lambda: must_fail(os.rename, path, path + ".gone"))
        # Where it could be taken away, it can be made again, and belongs to the agent then.
        flags = os.O_CREAT if os.path.exists(path + ".gone") else 0
        attempt("write to %s" % path, lambda: write(path, flags))
        attempt("change the mode of %s" % path, lambda: must_fail(os.chmod, path, 0o640))
        attempt("change the times of %s" % path, lambda: must_fail(os.utime, path, (1, 1)))
        attempt("set an attribute of %s" % path, lambda: must_fail(os.setxattr, path, "user.planted", b"x"))
        attempt("change the owner of %s" % path, lambda: must_fail(os.chown, path, os.getuid(), -1))
        link = os.path.join(WORK, "link")
        os.path.lexists(link) and os.unlink(link)
        os.symlink(path, link)
        attempt("read a link to %s" % path, lambda: must_fail(read, link))
    for path in GIVEN["dirs"]:
        attempt("new file and directory in %s" % path, lambda: plant(os.path.join(path, "planted")))
    for path in GIVEN["fifos"]:
        attempt("words into %s" % path, lambda: into_fifo(path))
    for path in [
        GIVEN["state"], os.path.join(GIVEN["state"], "agents"), "/", "/home", "/root", "/run", "/tmp", "/var/tmp", "/var",
        "/var/lib", "/opt", "/srv", "/mnt", "/media", "/etc",
    ]:
        attempt("names in %s" % path, lambda: look(path))
    for descriptor in os.listdir("/proc/self/fd"):
        for way in ("/..", "/../..", "/../../.."):
            attempt("out by descriptor %s%s" % (descriptor, way), lambda: look("/proc/self/fd/%s%s" % (descriptor, way)))
    attempt("out by the keeper's root", lambda: look("/proc/1/root/.."))
    attempt("read by handle", by_handle)


def look(path):
    found = os.listdir(path)
    seen = [name for name in found if any(word in name for word in GIVEN["names"])]
    if seen:
        raise Open(seen)
    return found


def into_fifo(path):
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, b"x")
    raise Open("wrote to it")


def by_handle():
    number = {"x86_64": 304, "aarch64": 265}[os.uname().machine]
    directory = os.open("/", os.O_RDONLY)
    handle = (ctypes.c_char * 128)()
    ctypes.memmove(handle, (ctypes.c_uint * 2)(8, 1), 8)
    syscall(number, directory, handle, os.O_RDONLY)
    raise Open("opened")


def own_parts():
    for part in ["etc/agent.yaml", "opt/bins/sh", "opt/lodge/runtime", "etc/data/attack.py", "etc/passwd"]:
        path = os.path.join(ROOT, part)
        attempt("write to its %s" % part, lambda: write(path))
        attempt("remove its %s" % part, lambda: must_fail(os.unlink, path))
        attempt("replace its %s" % part, lambda: replace(path))
    for part in ["workspace", "home", "tmp", "var", "sys", "dev", "proc"]:
        path = os.path.join(ROOT, part)
        attempt("rename its %s" % part, lambda: must_fail(os.rename, path, path + ".old"))
    for part in ["", "sys", "sys/fs", "dev", "proc"]:
        path = os.path.join(ROOT, part)
        attempt("new file in its /%s" % part, lambda: write(os.path.join(path, "planted")))
    for part in ["etc", "usr", "opt", "opt/bins"]:
        path = os.path.join(ROOT, part)
        attempt("rename its %s" % part, lambda: must_fail(os.rename, path, path + ".old"))
        attempt("change the mode of its %s" % part, lambda: must_fail(os.chmod, path, 0o777))
        attempt("new file in its %s" % part, lambda: write(os.path.join(path, "planted")))
    attempt("preloaded library", lambda: write("/etc/ld.so.preload"))
    for path in ["/etc/passwd", "/etc/cron.d/planted", "/usr/bin/planted", "/usr/local/bin/planted", "/etc/hosts"]:
        attempt("write to %s" % path, lambda: write(path))


def replace(path):
    new = os.path.join(WORK, "new")
    with open(new, "w") as file:
        file.write("#!/bin/sh\n")
    os.rename(new, path)
    raise Open("replaced")


# Sockets of others.

def connect(address):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as dialled:
            dialled.settimeout(5)
            try:
                dialled.connect(address)
            except OSError as error:
                if error.errno == errno.EPROTOTYPE:
                    continue
                raise
            raise Open("connected")
    return "no kind fits"


def sockets():
    for path in GIVEN["sockets"] + [
        "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
        "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/notify", "/run/systemd/journal/stdout",
        "/run/user/%d/bus" % os.getuid(), "/run/user/0/bus", "/tmp/.X11-unix/X0",
    ]:
        attempt("connect to %s" % path, lambda: connect(path))
        attempt("connect to /proc/1/root%s" % path, lambda: connect("/proc/1/root" + path))
    attempt("any socket of the host", any_socket)
    for name in GIVEN["abstract"]:
        attempt("connect to @%s" % name, lambda: connect("\0" + name))
    if GIVEN["abstract"]:
        attempt("any abstract socket", any_abstract)
    for family in (17, 38, 40, 44, 29):
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
        for kind in kinds:
            attempt("socket of family %d kind %d" % (family, kind), lambda: must_fail(socket.socket, family, kind))
    attempt("raw internet socket", lambda: must_fail(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1))
    for host, port in GIVEN["dial"]:
        attempt("dial %s %d" % (host, port), lambda: must_fail(socket.create_connection, (host, port), 5))


def any_socket():
    tried = 0
    for top in ["/tmp", "/var", "/run", "/dev", "/home", "/root", "/srv", "/mnt", "/media", "/opt", "/etc", "/usr/local"]:
        for directory, _, names in os.walk(top):
            for name in names:
                path = os.path.join(directory, name)
                try:
                    if not stat.S_ISSOCK(os.lstat(path).st_mode):
                        continue
                    tried += 1
                    connect(path)
                except OSError:
                    pass
    return "%d sockets seen" % tried


def any_abstract():
    names = [line.split()[-1] for line in open("/proc/net/unix") if " @" in line]
    tried = 0
    for name in names:
        tried += 1
        try:
            connect("\0" + name[1:])
        except OSError:
            pass
    return "%d names seen" % tried


# Processes of others.

def ours():
    """This process, what it came from and what it started."""
    family, pid = {OWN}, OWN
    while pid > 1:
        family.add(pid)
        pid = int(open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[1])
    return family


def others():
    mine = ours()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in mine:
            continue
        try:
            found[int(name)] = open("/proc/%s/cmdline" % name).read().replace("\0", " ").strip() or "?"
        except OSError:
            pass
    return found


def role(pid, line):
    if pid == 1:
        return "keeper"
    if line.startswith("keeper gate"):
        return "gate"
    if "opt/lodge/runtime" in line:
        return "runtime"
    return "process"


def contents(pid, part):
    """What can be read of a process. Of one that just ended the kernel gives nothing, to anybody."""
    got = read("/proc/%d/%s" % (pid, part))
    if not got and b") Z" in read("/proc/%d/stat" % pid):
        raise OSError(errno.ESRCH, "it ended")
    return got


def processes():
    found = others()
    attempt("processes of others", lambda: foreign(found))
    for pid, line in found.items():
        name = role(pid, line)
        for part in ["environ", "mem", "maps", "auxv", "stack", "syscall", "io", "personality"]:
            attempt("%s's %s" % (name, part), lambda: must_fail(contents, pid, part))
        for part in ["fd", "map_files", "fdinfo"]:
            attempt("%s's %s" % (name, part), lambda: must_fail(os.listdir, "/proc/%d/%s" % (pid, part)))
        for part in ["root", "cwd", "exe", "fd/0", "fd/1", "fd/3", "ns/net", "ns/mnt"]:
            attempt("%s's %s" % (name, part), lambda: must_fail(os.readlink, "/proc/%d/%s" % (pid, part)))
        for fd in range(0, 16):
            attempt("words into %s's descriptor %d" % (name, fd), lambda: write("/proc/%d/fd/%d" % (pid, fd)))
        inspect(name, pid)
        limits = (ctypes.c_ulong * 2)(0, 0)
        attempt("limits of the %s" % name, lambda: must_fail(resource_of, pid, limits))
    for pid in GIVEN["pids"]:
        attempt("host process %d" % pid, lambda: must_fail(read, "/proc/%d/environ" % pid))
        attempt("signal to host process %d" % pid, lambda: must_fail(os.kill, pid, 0))


def foreign(found):
    strange = [line for line in found.values() if any(word in line for word in GIVEN["names"] + ["lodged"])]
    if strange:
        raise Open(strange)
    return "%d of its own" % len(found)


def resource_of(pid, limits):
    number = {"x86_64": 302, "aarch64": 261}[os.uname().machine]
    return syscall(number, pid, 7, limits, None)


def inspect(name, pid):
    machine = os.uname().machine
    ptrace = {"x86_64": 101, "aarch64": 117}[machine]
    for request, word in [(16, "attach"), (0x4206, "seize")]:
        attempt("ptrace %s to the %s" % (word, name), lambda: must_fail(syscall, ptrace, request, pid, 0, 0))
    buffer = ctypes.create_string_buffer(16)
    part = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
    for number, word in [({"x86_64": 310, "aarch64": 270}[machine], "read"), ({"x86_64": 311, "aarch64": 271}[machine], "write")]:
        attempt("%s the %s's memory" % (word, name), lambda: must_fail(syscall, number, pid, part, 1, part, 1, 0))
    attempt("take a descriptor of the %s" % name, lambda: must_fail(take_fd, pid))


def take_fd(pid):
    pidfd = syscall(434, pid, 0)
    return syscall(438, pidfd, 1, 0)


def signals():
    """Whom of these a signal reached is seen from outside: pid 1 hears none even where the kernel says otherwise."""
    for pid, line in others().items():
        name = role(pid, line)
        if name == "gate" and GIVEN["guards_signals"]:
            for number in (0, signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
                attempt("signal %d to the gate" % number, lambda: must_fail(os.kill, pid, number))
        if name == "keeper":
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV):
                attempt("signal %d to the keeper" % number, lambda: quiet(os.kill, pid, number))


def quiet(act, *args):
    act(*args)
    return "sent; the host sees whether it was heard"


# The kernel.

CALLS = {
    # name: (x86_64, aarch64, arguments)
    "mount": (165, 40, [b"none", b"/mnt", b"tmpfs", 0, None]),
    "umount": (166, 39, [b"/proc", 2]),
    "pivot_root": (155, 41, [b".", b"."]),
    "chroot": (161, 51, [b"."]),
    "unshare user": (272, 97, [0x10000000]),
    "unshare mount": (272, 97, [0x00020000]),
    "unshare net": (272, 97, [0x40000000]),
    "unshare pid": (272, 97, [0x20000000]),
    "clone user": (56, 220, [0x10000000 | 17, 0, 0, 0, 0]),
    "clone3": (435, 435, [None, 88]),
    "open_tree": (428, 428, [-100, b"/", 1]),
    "fsopen": (430, 430, [b"tmpfs", 0]),
    "mount_setattr": (442, 442, [-100, b"/", 0, None, 0]),
    "keyctl": (250, 219, [0, -3, 1]),
    "add_key": (248, 217, [b"user", b"x", b"x", 1, -3]),
    "request_key": (249, 218, [b"user", b"x", None, 0]),
    "bpf": (321, 280, [0, None, 0]),
    "io_uring_setup": (425, 425, [1, (ctypes.c_char * 120)()]),
    "perf_event_open": (298, 241, [(ctypes.c_char * 128)(), 0, -1, -1, 0]),
    "reboot": (169, 142, [0xFEE1DEAD - (1 << 32), 672274793, 0, None]),
    "kexec_load": (246, 104, [0, 0, None, 0]),
    "init_module": (175, 105, [None, 0, b""]),
    "finit_module": (313, 273, [-1, b"", 0]),
    "delete_module": (176, 106, [b"none", 0]),
    "swapon": (167, 224, [b"/none", 0]),
    "settimeofday": (164, 170, [None, None]),
    "acct": (163, 89, [None]),
    "syslog": (103, 116, [10, None, 0]),
    "userfaultfd": (323, 282, [0]),
    "quotactl": (179, 60, [0, b"/none", 0, None]),
    "sethostname": (170, 161, [b"x", 1]),
    "setuid to root": (105, 146, [0]),
    "setgid to root": (106, 144, [0]),
    "setgroups": (116, 159, [0, None]),
    "chown to root": (92, 54, [b".", 0, 0]),
}


def kernel():
    machine = os.uname().machine
    for name, (x86, arm, args) in CALLS.items():
        if machine == "aarch64" and name == "chown to root":
            continue
        # A user that a namespace does not know is none that anybody could become.
        unknown = [errno.EINVAL] if "root" in name else []
        attempt(name, lambda: call(x86 if machine == "x86_64" else arm, args, unknown))
    for kind in os.listdir("/proc/1/ns") if os.access("/proc/1/ns", os.R_OK) else ["net", "mnt", "pid", "user"]:
        attempt("enter the keeper's %s namespace" % kind, lambda: enter(kind))
    for module in ["iopl", "ioperm"]:
        if machine == "x86_64":
            number = {"iopl": 172, "ioperm": 173}[module]
            attempt(module, lambda: call(number, [3, 0, 0]))


def call(number, args, unknown=()):
    child = os.fork()
    if child == 0:
        try:
            syscall(number, *args)
            os._exit(200)
        except OSError as error:
            os._exit(min(error.errno, 199))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 200:
        raise Open("the kernel did it")
    if code < 0:
        return "killed by signal %d" % -code
    refused = (errno.EPERM, errno.ENOSYS, errno.EACCES)
    if code not in refused and code not in unknown:
        # The kernel looked at the arguments, so nothing but their sense kept it from doing it.
        raise Open("not refused: %s" % errno.errorcode.get(code, code))
    return errno.errorcode[code]


def enter(kind):
    fd = os.open("/proc/1/ns/%s" % kind, os.O_RDONLY)
    number = {"x86_64": 308, "aarch64": 268}[os.uname().machine]
    syscall(number, fd, 0)
    raise Open("entered")


def rights():
    status = open("/proc/self/status").read()
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"]:
        attempt("missing %r" % line.replace("\t", " "), lambda: absent(line, status))
    for program in ["su", "sudo", "pkexec", "doas", "newgrp", "mount"]:
        attempt("setuid %s" % program, lambda: raised(program))
    attempt("core dumps", lambda: must_fail(raise_core))


def absent(line, status):
    if line not in status:
        raise Open("not set")


def raised(program):
    arguments = {"su": ["root", "-c", "id -u"], "newgrp": ["root"], "mount": ["-t", "tmpfs", "none", "/mnt"]}
    ran = subprocess.run(
        ["/usr/bin/" + program] + arguments.get(program, ["id", "-u"]),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20,
        env={"PATH": "/usr/bin:/bin"},
    )
    if ran.returncode == 0 and (program == "mount" or ran.stdout.strip() == b"0"):
        raise Open(ran.stdout)
    return "code %d" % ran.returncode


def raise_core():
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    return "raised"


# Devices, terminals, what processes share.

DEVICES = {"fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}


def devices():
    attempt("devices beyond the usual", unusual)
    for name in sorted(DEVICES):
        path = os.path.join("/dev", name)
        if not os.path.islink(path) and stat.S_ISCHR(os.lstat(path).st_mode):
            attempt("change the times of %s" % path, lambda: must_fail(os.utime, path))
            attempt("change the mode of %s" % path, lambda: must_fail(os.chmod, path, 0o666))
    for name in ["mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1", "fuse", "kvm", "loop-control", "console", "tty0", "input/event0"]:
        for flags in (os.O_RDONLY, os.O_WRONLY):
            attempt("/dev/%s" % name, lambda: must_fail(os.open, "/dev/" + name, flags | os.O_NONBLOCK))
    for kind, word in [(stat.S_IFBLK, "block"), (stat.S_IFCHR, "character")]:
        path = os.path.join(WORK, "node-" + word)
        attempt("new %s device" % word, lambda: must_fail(os.mknod, path, kind | 0o600, os.makedev(1, 1)))
    for path in GIVEN["terminals"] + ["/dev/tty", "/dev/console"]:
        attempt("words to %s" % path, lambda: write(path))
        attempt("keys into %s" % path, lambda: must_fail(type_into, path))
    for path in GIVEN["shared"]:
        attempt("read %s" % path, lambda: has_canary(path))
    attempt("shared memory of others", shared_memory)
    attempt("any shared memory", lambda: lines_in("/proc/sysvipc/shm"))


def unusual():
    found = set(os.listdir("/dev")) - DEVICES
    if found:
        raise Open(sorted(found)[:8])
    return "none"


def type_into(path):
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    return fcntl.ioctl(fd, 0x5412, b"x")


def shared_memory():
    LIBC.shmget.restype = ctypes.c_int
    found = LIBC.shmget(GIVEN["shm_key"], 0, 0)
    if found == -1:
        raise OSError(ctypes.get_errno(), "none")
    raise Open("found")


def lines_in(path):
    if len(open(path).readlines()) > 1:
        raise Open("there is some")


def settings():
    for path in [
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
        "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe", "/proc/1/oom_score_adj",
        "/proc/self/uid_map", "/proc/self/attr/current", "/sys/power/state", "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled",
        "/proc/1/comm", "/proc/1/coredump_filter", "/proc/1/sched", "/proc/1/timerslack_ns", "/proc/1/clear_refs",
    ]:
        attempt("write to %s" % path, lambda: write(path))
    for path in ["/proc/kcore", "/proc/1/task/1/environ"]:
        attempt("read %s" % path, lambda: must_fail(read, path))


def cgroups():
    attempt("another cgroup", any_cgroup)
    attempt("cgroups of others", lambda: foreign_cgroups())
    attempt("the rest of /sys", rest_of_sys)


def foreign_cgroups():
    seen = [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith("lodge-")]
    if seen:
        raise Open(seen)


def rest_of_sys():
    seen = sorted(os.path.join(directory, name) for directory in ("/sys", "/sys/fs", "/sys/devices", "/sys/devices/system") for name in os.listdir(directory))
    known = ["/sys/devices", "/sys/devices/system", "/sys/devices/system/cpu", "/sys/fs", "/sys/fs/cgroup"]
    if [path for path in seen if path not in known]:
        raise Open(seen)


def any_cgroup():
    tried = 0
    for directory, names, files in os.walk("/sys/fs/cgroup"):
        for name in ("cgroup.procs", "cgroup.kill", "memory.limit_in_bytes", "memory.max", "pids.max", "cgroup.freeze"):
            if name not in files:
                continue
            tried += 1
            value = {"cgroup.procs": b"0", "cgroup.kill": b"0"}.get(name, b"max")
            try:
                with open(os.path.join(directory, name), "wb", buffering=0) as file:
                    file.write(value)
            except OSError:
                continue
            raise Open(os.path.join(directory, name))
        if directory.count("/") < 6:
            try:
                os.mkdir(os.path.join(directory, "planted"))
            except OSError:
                continue
            os.rmdir(os.path.join(directory, "planted"))
            raise Open("a new one in " + directory)
    return "%d files refused" % tried


for part in (files, own_parts, sockets, processes, kernel, rights, devices, settings, cgroups, signals):
    if part.__name__ not in GIVEN["parts"]:
        continue
    try:
        part()
    except Exception as error:
        tell(part.__name__, "BROKEN", "%s %s" % (type(error).__name__, error))
REPORT.write("over\n")
REPORT.close()
print("over")
