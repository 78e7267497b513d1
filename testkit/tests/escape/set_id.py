"""Tries to leave set-id files and file capabilities in a directory. One line for each attempt: what, `closed` or `OPEN`,
and how it went. `OPEN` means that the file has such a bit or capability afterwards. The arguments are the directory and
the file for the report."""

import ctypes
import errno
import mmap
import os
import platform
import socket
import stat
import struct
import sys

PLACE, REPORT = sys.argv[1], open(sys.argv[2], "w")
LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = platform.machine()
AT_FDCWD, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW = -100, 0x1000, 0x400
BITS = (0o4755, 0o2755, 0o6755)
# Version 2, effective, with CAP_SETUID.
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0)
# Version 3, for the root user of a namespace.
CAPABILITY_OF_NAMESPACE = struct.pack("<IIIIII", 0x03000001, 1 << 7, 0, 0, 0, 1000)
OLD = {
    "x86_64": dict(
        chmod=90, fchmod=91, open=2, creat=85, mkdir=83, mknod=133, openat=257, mkdirat=258, mknodat=259, fchmodat=268,
        setxattr=188, lsetxattr=189, fsetxattr=190, unshare=272, linkat=265,
    ),
    "aarch64": dict(
        fchmod=52, openat=56, mkdirat=34, mknodat=33, fchmodat=53, setxattr=5, lsetxattr=6, fsetxattr=7, unshare=97, linkat=37,
    ),
}[MACHINE]
CALLS = dict(OLD, openat2=437, fchmodat2=452, setxattrat=463, file_setattr=469, io_uring_setup=425, io_uring_enter=426)
NEW_FILE = os.O_CREAT | os.O_RDWR


def call(name, *args):
    """Raises what the kernel said."""
    return raw(CALLS[name], *args)


def raw(number, *args):
    ctypes.set_errno(0)
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = LIBC.syscall(ctypes.c_long(number), *args)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def marks(path):
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return []
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        names = []
    return ["%o" % mode] * bool(mode & 0o6000) + [name for name in names if name == "security.capability"]


COUNT = 0


def attempt(name, act, made=None):
    """Tries it on a new file, or on what `made` makes, in a process of its own: a filter may end it."""
    global COUNT
    COUNT += 1
    path = os.path.join(PLACE, "try-%d" % COUNT)
    made and made(path)
    seen, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act(path.encode())
            said = "done"
        except OSError as error:
            said = errno.errorcode.get(error.errno, str(error))
        except BaseException as error:
            said = "%s %s" % (type(error).__name__, error)
        os.write(told, said.encode()[:100])
        os._exit(0)
    os.close(told)
    said = os.read(seen, 100).decode() or "ended by signal"
    os.close(seen)
    os.waitpid(child, 0)
    found = marks(path)
    print("%s\t%s\t%s" % (name, "OPEN" if found else "closed", ", ".join(found) or said), file=REPORT, flush=True)


def file(path):
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o755))


def opened(path):
    return os.open(path, os.O_RDWR)


def every_mode():
    for bits in BITS:
        for kind, made in (("file", file), ("directory", os.mkdir)):
            what = "%o on a %s by " % (bits, kind)
            flags = os.O_RDONLY if kind == "directory" else os.O_RDWR
            if "chmod" in CALLS:
                attempt(what + "chmod", lambda path: call("chmod", path, bits), made)
            attempt(what + "fchmod", lambda path: call("fchmod", os.open(path, flags), bits), made)
            attempt(what + "fchmod of a path", lambda path: call("fchmod", os.open(path, os.O_PATH), bits), made)
            attempt(what + "fchmodat", lambda path: call("fchmodat", AT_FDCWD, path, bits), made)
            attempt(what + "fchmodat of a link", lambda path: through_link(path, bits), made)
            attempt(what + "fchmodat2", lambda path: call("fchmodat2", AT_FDCWD, path, bits, 0), made)
            attempt(what + "fchmodat2 of a descriptor", lambda path: by_descriptor(path, bits), made)
            attempt(what + "chmod in /proc/self/fd", lambda path: os.chmod("/proc/self/fd/%d" % os.open(path, flags), bits), made)
            attempt(what + "chmod with high bits", lambda path: call("fchmodat", AT_FDCWD, path, bits | 0x7fff0000), made)
            attempt(what + "chmod with 64 bits", lambda path: call("fchmodat", AT_FDCWD, path, bits | 1 << 40), made)
            attempt(what + "chmod in a namespace", lambda path: in_namespace(path, bits), made)
            attempt(what + "file_setattr", lambda path: file_setattr(path, bits), made)
            if MACHINE == "x86_64":
                attempt(what + "chmod of x32", lambda path: raw(0x40000000 | 90, path, bits), made)
                attempt(what + "fchmod of i386", lambda path: i386(94, os.open(path, flags), bits), made)
        what = "a new file with %o by " % bits
        if "open" in CALLS:
            attempt(what + "open", lambda path: call("open", path, NEW_FILE, bits))
            attempt(what + "creat", lambda path: call("creat", path, bits))
            attempt(what + "mknod", lambda path: call("mknod", path, stat.S_IFREG | bits, 0))
            attempt(what + "mkdir", lambda path: call("mkdir", path, bits))
        attempt(what + "openat", lambda path: call("openat", AT_FDCWD, path, NEW_FILE, bits))
        attempt(what + "openat of a temporary file", lambda path: temporary(path, bits))
        attempt(what + "openat2", lambda path: openat2(path, bits))
        attempt(what + "mknodat", lambda path: call("mknodat", AT_FDCWD, path, stat.S_IFREG | bits, 0))
        attempt(what + "mknodat without a kind", lambda path: call("mknodat", AT_FDCWD, path, bits, 0))
        attempt(what + "mknodat as a pipe", lambda path: call("mknodat", AT_FDCWD, path, stat.S_IFIFO | bits, 0))
        attempt(what + "mkdirat", lambda path: call("mkdirat", AT_FDCWD, path, bits))
        attempt(what + "bind of a socket", lambda path: bound(path, bits))
        attempt(what + "io_uring", lambda path: uring_open(path, bits))
        attempt(what + "umask", lambda path: (os.umask(0), call("openat", AT_FDCWD, path, NEW_FILE, bits)))
        if MACHINE == "x86_64":
            attempt(what + "open of x32", lambda path: raw(0x40000000 | 2, path, NEW_FILE, bits))


def through_link(path, bits):
    os.symlink(path, path + b"-link")
    call("fchmodat", AT_FDCWD, path + b"-link", bits)


def by_descriptor(path, bits):
    call("fchmodat2", os.open(path, os.O_PATH), b"", bits, AT_EMPTY_PATH)


def in_namespace(path, bits):
    call("unshare", 0x10000000)
    call("fchmodat", AT_FDCWD, path, bits)


def file_setattr(path, bits):
    call("file_setattr", AT_FDCWD, path, struct.pack("<QIIII", bits, 0, 0, 0, 0), 24, 0)


def temporary(path, bits):
    fd = call("openat", AT_FDCWD, os.path.dirname(path), os.O_TMPFILE | os.O_RDWR, bits)
    call("linkat", AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, path, AT_SYMLINK_FOLLOW)


def openat2(path, bits):
    call("openat2", AT_FDCWD, path, struct.pack("<QQQ", NEW_FILE, bits, 0), 24)


def bound(path, bits):
    bare = socket.socket(socket.AF_UNIX)
    os.umask(0)
    try:
        call("fchmod", bare.fileno(), bits)
    finally:
        bare.bind(path)


def uring(entry):
    """One entry of a ring."""
    parameters = ctypes.create_string_buffer(120)
    ring = call("io_uring_setup", 4, parameters)
    sq = struct.unpack_from("<10I", parameters, 40)
    size = sq[6] + 4 * 4
    queue, entries = mmap.mmap(ring, max(size, 4096), offset=0), mmap.mmap(ring, 64 * 4, offset=0x10000000)
    entries[0:64] = entry.ljust(64, b"\0")
    queue[sq[6]:sq[6] + 4] = struct.pack("<I", 0)
    queue[sq[1]:sq[1] + 4] = struct.pack("<I", 1)
    call("io_uring_enter", ring, 1, 1, 1, None, 0)


def uring_open(path, bits):
    name = ctypes.create_string_buffer(path)
    # OPENAT: opcode, flags, priority, descriptor, offset, address, mode, open flags.
    uring(struct.pack("<BBHiQQII", 18, 0, 0, AT_FDCWD, 0, ctypes.addressof(name), bits, NEW_FILE))


def uring_setxattr(path, value):
    name, key, data = map(ctypes.create_string_buffer, (path, b"security.capability", value))
    # SETXATTR: the name of the attribute, its value, and the path.
    head = struct.pack("<BBHiQQII", 42, 0, 0, 0, ctypes.addressof(data), ctypes.addressof(key), len(value), 0)
    uring(head + struct.pack("<QHHiQ", 0, 0, 0, 0, ctypes.addressof(name)))


def i386(number, first, second):
    """A call of the old convention, which other filters would see with other numbers."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x53\xb8" + struct.pack("<I", number) + b"\xbb" + struct.pack("<I", first))
    code.write(b"\xb9" + struct.pack("<I", second) + b"\xcd\x80\x5b\xc3")
    act = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    done = act()
    if done < 0:
        raise OSError(-done, os.strerror(-done))


def every_attribute():
    for value, kind in ((CAPABILITY, "a capability"), (CAPABILITY_OF_NAMESPACE, "a capability of a namespace")):
        size = len(value)
        key = b"security.capability"
        attempt(kind + " by setxattr", lambda path: call("setxattr", path, key, value, size, 0), file)
        attempt(kind + " by lsetxattr", lambda path: call("lsetxattr", path, key, value, size, 0), file)
        attempt(kind + " by fsetxattr", lambda path: call("fsetxattr", opened(path), key, value, size, 0), file)
        attempt(kind + " by setxattrat", lambda path: setxattrat(path, key, value), file)
        attempt(kind + " by io_uring", lambda path: uring_setxattr(path, value), file)
        attempt(kind + " in a namespace", lambda path: (call("unshare", 0x10000000), call("setxattr", path, key, value, size, 0)), file)
    # An ACL changes the mode of its file, but only the bits for owner, group and others.
    entries = [(1, 7, 0xffffffff), (4, 5, 0xffffffff), (0x20, 0o6005, 0xffffffff)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    for key in (b"system.posix_acl_access", b"system.posix_acl_default"):
        attempt("set-id bits by %s" % key.decode(), lambda path: call("setxattr", path, key, acl, len(acl), 0), os.mkdir)


def setxattrat(path, key, value):
    data = ctypes.create_string_buffer(value, len(value))
    arguments = struct.pack("<QII", ctypes.addressof(data), len(value), 0)
    call("setxattrat", AT_FDCWD, path, 0, key, arguments, 16)


every_mode()
every_attribute()
print("over", file=REPORT, flush=True)
