"""`refrain bench serve --base-url`: against a real server, against one that misbehaves, and its options."""
import json
import subprocess
import threading
import time
import xml.etree.ElementTree
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import BIN, TINY, within

TINY_LOAD = ["--vocab-size", "500", "--ignore-eos", "--dataset-name", "random", "--random-input-len", "20",
             "--random-output-len", "8"]
LISTS = ["input_lens", "output_lens", "start_times", "ttfts", "itls", "e2els", "errors"]
NAMES = [f"{figure}_{time}_ms" for figure in ("mean", "median", "std", "p50", "p99")
         for time in ("ttft", "tpot", "itl", "e2el")]


def load(base, *arguments):
    return subprocess.run([str(BIN / "refrain"), "bench", "serve", "--base-url", base, *map(str, arguments)],
                          capture_output=True, text=True, timeout=within(120))


def test_a_real_server_is_measured_and_every_file_is_written(start_server, tmp_path):
    server = start_server("--max-num-seqs", 8, "--api-key", "sesame", model=TINY / "qwen3", tp=1)
    done = load(server.base, *TINY_LOAD, "--num-prompts", 30, "--request-rate", 200, "--max-concurrency", 6,
                "--goodput", "ttft:60000", "tpot:60000", "--metric-percentiles", "50,99", "--api-key", "sesame",
                "--num-warmups", 2, "--json", "--save-detailed", "--result-dir", tmp_path, "--result-filename",
                "r.json", "--plot", tmp_path / "p.svg", "--seed", 3)
    assert done.returncode == 0, (done.returncode, done.stderr)
    result, saved = json.loads(done.stdout), json.loads((tmp_path / "r.json").read_text())
    assert {**saved, **result} == saved and set(saved) - set(result) == set(LISTS)
    assert result["completed"] == 30 and result["failed"] == 0 and result["short_answers"] == 0
    assert result["total_input_tokens"] == 600 and result["total_output_tokens"] == 240
    assert result["model_id"] == "qwen3" and result["undisturbed"] is True and result["seed"] == 3
    assert 1 <= result["max_concurrent_requests"] <= 6
    assert result["request_goodput"] == result["request_throughput"] > 0
    assert not set(NAMES) - set(result) and all(result[name] >= 0 for name in NAMES)
    assert 0 < result["median_ttft_ms"] <= result["p99_ttft_ms"] <= result["p99_e2el_ms"]
    assert all(len(saved[name]) == 30 for name in LISTS)
    assert saved["output_lens"] == [8] * 30 and not any(saved["errors"])
    assert result["output_throughput"] == pytest.approx(240 / result["duration"])
    assert xml.etree.ElementTree.parse(tmp_path / "p.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("options", [
    ["--endpoint", "/v1/chat/completions", "--extra-body", '{"chat_template": null}'], ["--prompts", "text"],
    ["--prompts", "text", "--tokenizer", str(TINY / "qwen3")], ["--dataset-name", "prefix"]])
def test_each_kind_of_request_is_answered_and_the_table_shows_it(start_server, options):
    server = start_server(model=TINY / "qwen3", tp=1)
    words = ["--prefix-repetition-prefix-len", "8", "--prefix-repetition-suffix-len", "8",
             "--prefix-repetition-output-len", "4"]
    done = load(server.base, *TINY_LOAD, *words, "--num-prompts", 3, *options)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Successful requests:                     3" in done.stdout and "P99 TPOT (ms)" in done.stdout


def test_a_failed_request_fails_the_run_and_says_why(start_server):
    server = start_server(model=TINY / "qwen3", tp=1)
    done = load(server.base, *TINY_LOAD, "--num-prompts", 4, "--vocab-size", 100000)
    assert done.returncode == 70 and "HTTP 400" in done.stdout and "requests failed" in done.stderr


def test_a_server_that_lost_its_workers_meanwhile_fails_the_run_R21(start_server):
    server = start_server("--fault", "kind=oom,step=60", model=TINY / "qwen3", tp=1)
    done = load(server.base, *TINY_LOAD, "--num-prompts", 8, "--max-concurrency", 1, "--random-output-len", "20")
    assert done.returncode == 70 and "the workers were lost" in done.stderr, (done.stdout, done.stderr)


class Misbehaving(BaseHTTPRequestHandler):
    """Answers as the model's name says, and has no /metrics."""
    protocol_version = "HTTP/1.1"
    EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'
    DONE = b"data: [DONE]\n\n"
    FIRST, NEXT, NUM_TOKENS = 1.0, 0.6, 3  # seconds to the first token and between two of a paced answer

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_error(404)

    def do_POST(self):
        begun = time.monotonic()
        model = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["model"]
        if model == "paced":
            return self.answer_paced(begun)
        body = {"good": self.EVENT * 3 + self.DONE, "no-end": self.EVENT, "empty": self.DONE,
                "error": b'data: {"error":{"message":"it broke"}}\n\n' + self.DONE, "cut": self.EVENT}[model]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (model == "cut")))
        self.end_headers()
        self.wfile.write(body)
        if model == "cut":
            self.close_connection = True

    def answer_paced(self, begun):
        """Each token at its time from the request's begin, never before."""
        self.send_response(200)
        self.send_header("Content-Length", str(self.NUM_TOKENS * len(self.EVENT) + len(self.DONE)))
        self.end_headers()
        for i in range(self.NUM_TOKENS):
            time.sleep(max(0, begun + self.FIRST + i * self.NEXT - time.monotonic()))
            self.wfile.write(self.EVENT)
        self.wfile.write(self.DONE)


@pytest.fixture
def misbehaving():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("model, why", [
    ("no-end", "[DONE]"), ("empty", "no token"), ("error", "it broke"), ("cut", "closed the connection")])
def test_an_answer_that_is_not_whole_is_a_failure(misbehaving, model, why):
    done = load(misbehaving, "--model", model, "--num-prompts", 3)
    assert done.returncode == 70 and why in done.stdout and "failed 3 times" in done.stdout, done.stdout


def test_times_are_those_that_the_server_took(misbehaving):
    """Never less than they were; how much more depends on the machine, but at least once in three not as much as another token."""
    late = within(0.9 * Misbehaving.NEXT)
    first, whole = Misbehaving.FIRST, Misbehaving.FIRST + (Misbehaving.NUM_TOKENS - 1) * Misbehaving.NEXT
    for last in (False, False, True):
        result = json.loads(load(misbehaving, "--model", "paced", "--num-prompts", 6, "--json").stdout)
        ttft, e2el = result["median_ttft_ms"] / 1000, result["median_e2el_ms"] / 1000
        assert first <= ttft and whole <= e2el
        assert result["mean_tpot_ms"] == pytest.approx(
            (result["mean_e2el_ms"] - result["mean_ttft_ms"]) / (Misbehaving.NUM_TOKENS - 1))
        assert result["mean_itl_ms"] == pytest.approx(result["mean_tpot_ms"])
        if ttft < first + late and e2el < whole + late:
            break
        assert not last, (ttft, e2el)


def test_another_server_is_measured_without_counters_of_ours(misbehaving):
    done = load(misbehaving, "--model", "good", "--num-prompts", 3, "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 0 and result["undisturbed"] is None
    assert result["total_output_tokens"] == 9  # events count where there is no usage


def test_nobody_there_is_an_error_to_try_again():
    done = load("http://127.0.0.1:9", "--num-prompts", 1)
    assert done.returncode == 75 and "no connection" in done.stderr


@pytest.mark.parametrize("arguments, word", [
    (["--dataset-name", "nonsense"], "--dataset-name"), (["--dataset-name", "custom"], "--dataset-path"),
    (["--dataset-name", "random", "--dataset-path", "x"], "--dataset-path"), (["--goodput", "ttft"], "--goodput"),
    (["--goodput", "speed:3"], "--goodput"), (["--request-rate", "0"], "--request-rate"),
    (["--request-rate", "nan"], "--request-rate"), (["--percentile-metrics", "x"], "--percentile-metrics"),
    (["--metric-percentiles", "101"], "--metric-percentiles"), (["--extra-body", "[]"], "--extra-body"),
    (["--ramp-up-strategy", "linear"], "--ramp-up-end-rps"), (["--num-prompt", "3"], "--num-prompts"),
    (["--base-url", "localhost:8000"], "--base-url"), (["--tokenizer", "no-such-folder"], "no-such-folder"),
    (["--dataset-path", "no-such-file"], "--tokenizer"),
])
def test_options_that_make_no_sense_are_named(arguments, word):
    done = load("http://127.0.0.1:9", *arguments)
    assert done.returncode == 64 and word in done.stderr, (done.returncode, done.stderr)
