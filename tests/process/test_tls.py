"""HTTPS: real clients, old versions, plain text, certificates that do not fit."""
import json
import os
import socket
import ssl
import subprocess
import sys
import time

import openai
import pytest
from conftest import ROOT, BIN, TINY, within


sys.path.insert(0, str(ROOT / "tests/load"))
from mock_server import MockServer  # noqa: E402
from test_http_limits import PROMPT, client_of  # noqa: E402


@pytest.fixture
def certificate(tmp_path):
    """(certificate, key) of 127.0.0.1, signed by itself."""
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=refrain-test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2",
                    "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


class TlsServer(MockServer):
    """Probes go through a context that trusts the test's certificate."""

    def __init__(self, build, files, *options, **kwargs):
        super().__init__(build, "--ssl-certfile", files[0], "--ssl-keyfile", files[1], *options, **kwargs)
        self.context = ssl.create_default_context(cafile=files[0])

    def get(self, path, key=None):
        with socket.create_connection(("127.0.0.1", self.port), timeout=within(60)) as plain:
            with self.context.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                answer = b""
                while chunk := sock.recv(65536):
                    answer += chunk
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head[9:12]), body.decode()


def test_tls_serves_the_openai_client_and_python_ssl_R15(certificate):
    import httpx
    with TlsServer(BIN.parent, certificate) as server:
        assert "https://127.0.0.1" in server.log.read_text()
        with httpx.Client(verify=server.context) as http:
            client = client_of(server, scheme="https", http_client=http)
            whole = client.completions.create(model="qwen3", prompt=PROMPT, max_tokens=50, temperature=0,
                                              extra_body={"ignore_eos": True})
            chunks = list(client.completions.create(model="qwen3", prompt=PROMPT, max_tokens=50, temperature=0,
                                                    stream=True, extra_body={"ignore_eos": True}))
            assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model="other", prompt="x")
            # A body of many TLS records.
            with pytest.raises(openai.BadRequestError, match="max_model_len"):
                client.completions.create(model="qwen3", prompt="word " * 200_000)
            stream = client.completions.create(model="qwen3", prompt=PROMPT, max_tokens=400, stream=True,
                                               extra_body={"ignore_eos": True})
            next(iter(stream))
            stream.close()
        server.wait_idle(10)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_refuses_old_versions_and_plain_text(certificate):
    with TlsServer(BIN.parent, certificate) as server:
        def versions(least, most):
            context = ssl.create_default_context(cafile=certificate[0])
            context.minimum_version, context.maximum_version = least, most
            context.set_ciphers("ALL:@SECLEVEL=0")
            with socket.create_connection(("127.0.0.1", server.port), timeout=within(30)) as plain:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                    return sock.version()
        version = ssl.TLSVersion
        assert versions(version.TLSv1_2, version.TLSv1_2) == "TLSv1.2"
        assert versions(version.TLSv1_3, version.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            versions(version.TLSv1, version.TLSv1_1)
        with socket.create_connection(("127.0.0.1", server.port), timeout=within(30)) as plain:
            plain.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP/1.1 200" not in plain.recv(4096)
        # A peer that says nothing is cut off at the handshake's deadline (10 s).
        with socket.create_connection(("127.0.0.1", server.port), timeout=within(30)) as silent:
            begin = time.monotonic()
            assert silent.recv(1) == b""
            assert time.monotonic() - begin > 5
        assert server.get("/live")[0] == 200


def test_bench_serve_speaks_tls_to_those_it_trusts(certificate):
    def bench(**trusted):
        return subprocess.run([str(BIN / "refrain"), "bench", "serve", "--base-url", f"https://127.0.0.1:{server.port}",
                               "--model", "qwen3", "--vocab-size", "500", "--ignore-eos", "--dataset-name", "random",
                               "--random-input-len", "400", "--random-output-len", "8", "--num-prompts", "6", "--json"],
                              capture_output=True, text=True, env={**os.environ, **trusted}, timeout=within(60))

    with TlsServer(BIN.parent, certificate) as server:
        done = bench(SSL_CERT_FILE=str(certificate[0]))
        assert done.returncode == 0, (done.stdout, done.stderr)
        result = json.loads(done.stdout)
        assert result["completed"] == 6 and result["failed"] == 0 and result["total_output_tokens"] == 48
        done = bench()
        assert done.returncode != 0 and "certificate verify failed" in done.stderr, (done.stdout, done.stderr)


def test_a_certificate_of_another_key_exits_64_and_names_the_option(certificate, tmp_path):
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", other],
                   check=True, capture_output=True)
    done = subprocess.run([str(BIN / "coordinator"), "--model", str(TINY / "qwen3"), "--listen",
                           f"ipc://{tmp_path}/run/engine", "--port", "0", "--ssl-certfile", str(certificate[0]),
                           "--ssl-keyfile", str(other)], capture_output=True, text=True, timeout=within(60))
    assert done.returncode == 64 and "--ssl-keyfile" in done.stderr, done.stderr
    done = subprocess.run([str(BIN / "coordinator"), "--model", str(TINY / "qwen3"), "--listen",
                           f"ipc://{tmp_path}/run/engine", "--port", "0", "--api-key-file", os.devnull],
                          capture_output=True, text=True, timeout=within(60))
    assert done.returncode == 64 and "--api-key-file" in done.stderr, done.stderr
