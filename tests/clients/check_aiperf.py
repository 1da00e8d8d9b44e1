"""NVIDIA's aiperf measures a server with the small model, and its counts are the server's. By tools/aiperf."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "process"))
from conftest import ROOT, SMOLLM2, nothing_left_behind, start_server  # noqa: E402, F401

REQUESTS, TOKENS = 24, 16


def generated(server):
    lines = server.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("refrain:generation_tokens_total{"))


def test_aiperf_counts_what_the_server_counts(start_server, tmp_path):  # noqa: F811
    server = start_server("--max-model-len", 1024, tp=1)
    before = generated(server)
    words = ["profile", "--model", SMOLLM2.name, "--url", server.base, "--endpoint-type", "chat", "--streaming", "--tokenizer", SMOLLM2,
             "--concurrency", "4", "--request-count", REQUESTS, "--isl", "32", "--osl", TOKENS, "--extra-inputs", "ignore_eos:true",
             "--random-seed", "1", "--ui", "none", "--artifact-dir", tmp_path / "out"]
    with tempfile.TemporaryDirectory() as sockets:  # a short path, as sockets need
        own = {"HF_HOME": str(tmp_path / "hf"), "TMPDIR": sockets}
        done = subprocess.run([ROOT / "build/clients/aiperf/bin/aiperf", *map(str, words)], capture_output=True, text=True,
                              timeout=600, cwd=tmp_path, env={**os.environ, **own})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = json.loads((tmp_path / "out/profile_export_aiperf.json").read_text())
    said = {name: told[name]["avg"] for name in ("time_to_first_token", "inter_token_latency", "request_latency",
                                                 "output_token_throughput", "request_count", "total_usage_completion_tokens")}
    print(said)
    assert said["request_count"] == REQUESTS and told["error_summary"] == []
    assert said["total_usage_completion_tokens"] == REQUESTS * TOKENS == generated(server) - before
    assert 0 < said["time_to_first_token"] < said["request_latency"] and said["inter_token_latency"] > 0
    metrics = json.loads((tmp_path / "out/server_metrics_export.json").read_text())["metrics"]
    assert any(name.startswith("refrain:") for name in metrics), list(metrics)
