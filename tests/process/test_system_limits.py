"""Limits that the system sets: descriptors, disk."""
import os
import resource
import signal
import socket
import subprocess

from conftest import BIN, TINY, Server, wait_for, within


def with_descriptors(soft, hard):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_few_descriptors_are_told_at_the_start():
    done = subprocess.run([str(BIN / "refrain"), "serve", str(TINY / "qwen3"), "--port", "0"], capture_output=True,
                          text=True, timeout=within(60), preexec_fn=with_descriptors(64, 64))
    assert done.returncode == 64 and "descriptors" in done.stderr and "128" in done.stderr, done.stderr


def test_connections_beyond_the_descriptors_wait_or_are_refused_and_serving_goes_on(tmp_path):
    server = Server(tmp_path / "serve.log", model=TINY / "qwen3", tp=1)
    server.process = subprocess.Popen(server.command, stdin=subprocess.DEVNULL, stdout=server.log.open("w"),
                                      stderr=subprocess.STDOUT, preexec_fn=with_descriptors(64, 160))
    sockets = []
    try:
        server.wait_ready()
        coordinator = server.coordinator()
        for _ in range(300):  # more than there are descriptors
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", server.port))
            sockets.append(sock)
        wait_for(lambda: len(os.listdir(f"/proc/{coordinator}/fd")) > 150, 20, "the descriptors are used up")
        assert server.process.poll() is None and server.coordinator() == coordinator
        for sock in sockets:
            sock.close()
        wait_for(lambda: server.get("/live")[0] == 200, 20, "answers again")
        assert server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})[0] == 200
        assert server.coordinator() == coordinator
    finally:
        for sock in sockets:
            sock.close()
        assert server.stop() == 0


def test_logs_that_do_not_fit_on_the_disk_hurt_nobody(start_server, tmp_path):
    server = Server(tmp_path / "unused.log", model=TINY / "qwen3", tp=1)
    with open("/dev/full", "w") as full:
        server.process = subprocess.Popen(server.command, stdin=subprocess.DEVNULL, stdout=full, stderr=full)
    try:
        server.wait_ready()
        assert server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})[0] == 200
    finally:
        assert server.stop() == 0
