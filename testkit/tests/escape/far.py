"""A machine beyond the host: a web server and a name server, in a network namespace of its own.

Its network device is given to it by whoever started it. Says `ready` when it serves.
"""
import http.server
import socket
import struct
import subprocess
import sys
import threading
import time

ADDRESSES = ["203.0.113.5/24", "10.99.0.5/24", "2001:db8:1::5/64"]
NAMES = {
    "web.example": "203.0.113.5",
    "other.example": "203.0.113.5",
    "private.example": "10.99.0.5",
    "inward.example": "127.0.0.1",
    "own.example": "203.0.113.1",
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body, code = b"far away\n", 200
        if self.path.startswith("/repo.git/"):
            body, code = repository_file(self.path.split("?")[0])
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def repository_file(path):
    """A repository for clients that fetch its files one by one."""
    try:
        with open(path.lstrip("/"), "rb") as file:
            return file.read(), 200
    except OSError:
        return b"", 404


def make_repository():
    def git(*args, **kwargs):
        command = ["git", "--git-dir", "repo.git", "-c", "user.name=far", "-c", "user.email=far@web.example", *args]
        return subprocess.run(command, check=True, capture_output=True, **kwargs).stdout.decode().strip()
    subprocess.run(["git", "init", "-q", "--bare", "repo.git"], check=True)
    tree = git("hash-object", "-t", "tree", "-w", "--stdin", input=b"")
    git("update-ref", "refs/heads/far", git("commit-tree", "-m", "far away", tree))
    git("symbolic-ref", "HEAD", "refs/heads/far")
    git("update-server-info")


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    request_queue_size = 1024

    def handle_error(self, *_):
        """Clients that reset their connection are no news."""


def answer(question):
    number, _, _, _, _, _ = struct.unpack(">6H", question[:12])
    at, labels = 12, []
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode())
        at += 1 + question[at]
    kind, _ = struct.unpack(">2H", question[at + 1:at + 5])
    name = ".".join(labels).lower()
    records = [NAMES[name]] if name in NAMES and kind == 1 else []
    code = 0 if name in NAMES or name == "big.example" else 3
    if name == "big.example" and kind == 1:
        records = ["203.0.113.5"] * 200
    out = struct.pack(">6H", number, 0x8180 | code, 1, len(records), 0, 0) + question[12:at + 5]
    for address in records:
        out += struct.pack(">5HH", 0xc00c, 1, 1, 0, 60, 4) + socket.inet_aton(address)
    return out


def datagrams(server):
    while True:
        question, client = server.recvfrom(4096)
        out = answer(question)
        if len(out) > 512:
            out = out[:2] + struct.pack(">H", 0x8380) + question[4:6] + b"\0" * 6 + question[12:]
        server.sendto(out, client)


def streams(server):
    while True:
        client, _ = server.accept()
        with client:
            length = struct.unpack(">H", client.recv(2, socket.MSG_WAITALL))[0]
            out = answer(client.recv(length, socket.MSG_WAITALL))
            client.sendall(struct.pack(">H", len(out)) + out)


def main():
    device = sys.argv[1]
    while subprocess.run(["ip", "link", "show", device], capture_output=True).returncode != 0:
        time.sleep(0.02)
    for address in ADDRESSES:
        extra = ["nodad"] if ":" in address else []
        subprocess.run(["ip", "addr", "add", address, "dev", device, *extra], check=True)
    subprocess.run(["ip", "link", "set", device, "up"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("0.0.0.0", 53))
    threading.Thread(target=datagrams, args=[names], daemon=True).start()
    threading.Thread(target=streams, args=[socket.create_server(("0.0.0.0", 53))], daemon=True).start()
    make_repository()
    web = Server(("::", 80), Handler)
    with open(sys.argv[2], "w") as file:
        file.write("ready")
    web.serve_forever()


main()
