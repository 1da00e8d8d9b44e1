"""Two "hosts" on one machine: each has its own network, pids and /dev/shm, and a link to the other one."""
import json
import subprocess
import sys
from pathlib import Path

from conftest import wait_for, within

# Asks a server on a host's own loopback interface, since the test lives in another network.
CLIENT = """
import sys, urllib.request, urllib.error
url, body = sys.argv[1], sys.argv[2].encode() or None
request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
try:
    with urllib.request.urlopen(request, timeout=float(sys.argv[3])) as response:
        for line in response:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
except OSError as error:
    sys.exit(str(error))
"""


def child_of(process):
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pids[0]) if pids else None


class Host:
    def __init__(self):
        self.process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
             "mount -t tmpfs tmpfs /dev/shm && (mount -t sysfs sysfs /sys || true) && ip link set lo up && echo ready && exec sleep infinity"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            self.process.wait(timeout=within(10))
            raise OSError(self.process.stderr.read().strip() or "no namespaces")
        self.pid = child_of(self.process)

    def enter(self, *argv):
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", *map(str, argv)]

    def start(self, *argv, log, **options):
        """A program of this host; the signals of `kill` reach it."""
        return subprocess.Popen(self.enter(*argv), stdin=subprocess.DEVNULL, stdout=log.open("w"),
                                stderr=subprocess.STDOUT, **options)

    def client(self, port, path, body=None):
        """A request to a server of this host, under way: its lines come on stdout."""
        text = "" if body is None else json.dumps(body)
        return subprocess.Popen(self.enter(sys.executable, "-c", CLIENT, f"http://127.0.0.1:{port}{path}", text,
                                           within(120)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(self, port, path, body=None):
        """The answer of a server of this host; none while there is none."""
        asked = self.client(port, path, body)
        out, _ = asked.communicate(timeout=within(120))
        return out if asked.returncode == 0 else None

    def leftovers(self):
        """Processes but the host's first one, files in its /dev/shm, ports that are listened on."""
        root = Path(f"/proc/{self.pid}/root")
        processes = [p.name for p in (root / "proc").iterdir() if p.name.isdigit() and p.name != "1"]
        ports = [line.split()[1] for name in ("tcp", "tcp6")
                 for line in Path(f"/proc/{self.pid}/net/{name}").read_text().splitlines()[1:]
                 if line.split()[3] == "0A"]
        return processes + [str(p) for p in (root / "dev/shm").iterdir()] + ports

    def close(self):
        self.process.kill()
        self.process.wait(timeout=within(10))


def connect(first, second):
    """A link between two hosts; their addresses on it."""
    subprocess.run(["ip", "link", "add", "mesh0", "netns", str(first.pid), "type", "veth", "peer", "name", "mesh0",
                    "netns", str(second.pid)], check=True, capture_output=True, text=True)
    addresses = ("10.77.0.1", "10.77.0.2")
    for host, address in zip((first, second), addresses):
        for command in (["ip", "addr", "add", f"{address}/24", "dev", "mesh0"], ["ip", "link", "set", "mesh0", "up"]):
            subprocess.run(host.enter(*command), check=True, capture_output=True, text=True)
    for host in (first, second):   # the kernel takes up to a second to call it up, and UCX uses none that is not
        wait_for(lambda host=host: "state UP" in subprocess.run(host.enter("ip", "link", "show", "mesh0"), capture_output=True,
                                                                text=True).stdout, 10, "the link is up")
    return addresses


