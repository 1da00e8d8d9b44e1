"""The commands of README and of the users' pages do what the pages say, word for word but for ports, directories and sizes.

Their options, and that each command has a test, are checked in tests/tools/test_docs.py.
"""
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import urllib.request

import pytest
from adapters import write_adapter
from pooling_reference import write_model
from tiny_head import write_head

from conftest import BIN, ROOT, SMOLLM2, SOCKETS, TINY, free_port, start_by_hand, wait_for, within


def blocks(page):
    return re.findall(r"^```\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def command(page, beginning):
    """The words of the page's one command that begins so."""
    found = [line for block in blocks(page) for line in block.splitlines() if line.startswith(beginning)]
    assert len(set(found)) == 1, f"{page} shows {found}"
    return shlex.split(found[0])


def of_this_build(words):
    """The words with the program and the model of this run."""
    return [str(BIN / os.path.basename(words[0])), *(str(SMOLLM2) if word.endswith(SMOLLM2.name) else word for word in words[1:])]


def commands(page, beginning):
    """The page's commands that begin so, each on one line."""
    lines = [line for block in blocks(page) for line in block.replace("\\\n", " ").splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith(beginning)]


def requests(page):
    """Its curl commands, whose bodies go over several lines."""
    return [request for block in blocks(page) for request in re.findall(r"^curl .*?(?=^curl |\Z)", block, re.M | re.S)]


def asked(request, port):
    done = subprocess.run(["bash", "-c", request.replace(":8000/", f":{port}/")], capture_output=True, text=True, timeout=within(60))
    return done.stdout


@contextlib.contextmanager
def served(words, tmp_path):
    """The port of a server that a page's words start."""
    port, log = free_port(), tmp_path / "serve.log"
    server = subprocess.Popen([*words, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log.open("w"), stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: answers(port) or server.poll() is not None, 60, "ready")
        assert server.poll() is None, log.read_text()[-2000:]
        yield port
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=within(40))
    assert code == 0


def answers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


@pytest.mark.skipif(BIN.parent != ROOT / "build", reason="it builds, in build")
def test_the_quickstart_answers_and_keeps_serving(tmp_path):
    """What is built is taken as it is; tools/newcomer does it in a fresh clone."""
    words, port = command("docs/quickstart.md", "tools/quickstart --keep"), free_port()
    assert command("docs/quickstart.md", "tools/quickstart --keep")[0] == commands("README.md", "tools/quickstart")[0].split()[0]
    words[words.index("9000")] = str(port)
    log = tmp_path / "quickstart.log"
    script = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log.open("w"), stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_for(lambda: "until Ctrl-C" in log.read_text() or script.poll() is not None, 120, "an answer")
        assert script.poll() is None and answers(port), log.read_text()
    finally:
        os.killpg(script.pid, signal.SIGINT)
        code = script.wait(timeout=within(40))
    told = log.read_text()
    assert code == 0 and "> What is gravity?" in told and "captured and never replayed" in told, told


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_server_of_a_page_answers_the_request_of_that_page(page, tmp_path):
    with served(of_this_build(command(page, "build/bin/refrain serve --model")), tmp_path) as port:
        [request] = requests(page)
        answer = json.loads(asked(request, port))
        assert answer["choices"][0]["message"]["content"] and answer["usage"]["completion_tokens"] <= 48
    assert f"serves {SMOLLM2.name}" in (tmp_path / "serve.log").read_text()


def test_the_requests_of_the_serving_page_are_answered(tmp_path):
    keys, form = [block for block in blocks("docs/serving.md") if block.startswith("{")]
    (tmp_path / "keys.json").write_text(keys.replace('{"key": "sk-…"}', '{"key": "sk-other"}').replace("sk-…", "sk-alice"))
    words = [BIN / "refrain", "serve", "--model", SMOLLM2, "--max-model-len", "512", "--api-key-file", tmp_path / "keys.json"]
    with served(map(str, words), tmp_path) as port:
        shown = [request for request in requests("docs/serving.md") if "/v1/embeddings" not in request]
        for request in shown:
            answer = json.loads(asked(request.replace("curl ", "curl -H 'Authorization: Bearer sk-other' "), port))
            assert "error" not in answer or answer["error"] is None, answer
        assert len(shown) == 2
        body = form.replace("[…]", '[{"role": "user", "content": "How old are you?"}]').replace("{", '{"temperature": 0, ', 1)
        answer = json.loads(asked("curl http://127.0.0.1:8000/v1/chat/completions -H 'Authorization: Bearer sk-alice' "
                                  f"-H 'Content-Type: application/json' -d {shlex.quote(body)}", port))
        assert isinstance(json.loads(answer["choices"][0]["message"]["content"])["age"], int)


def test_the_embeddings_of_the_serving_page_are_answered(tmp_path):
    model = tmp_path / "Qwen3-Embedding-0.6B"
    write_model(model, modules=("LAST", True))
    [line] = [line for line in commands("docs/serving.md", "build/bin/refrain serve") if model.name in line]
    with served(of_this_build(shlex.split(line.replace(model.name, str(model)))), tmp_path) as port:
        [request] = [request for request in requests("docs/serving.md") if "/v1/embeddings" in request]
        answer = json.loads(asked(request, port))
        assert [len(entry["embedding"]) for entry in answer["data"]] == [64, 64]


def test_the_adapters_of_the_lora_page_answer(tmp_path):
    model = TINY / "llama-bias-f32"
    for seed, name in enumerate(("sql", "poems", "sql-v2")):
        write_adapter(tmp_path / "adapters" / name, model, seed)
    [line] = commands("docs/lora.md", "refrain serve")
    words = of_this_build(shlex.split(line.replace("/models/llama-8b", str(model)).replace("/adapters/", f"{tmp_path}/adapters/")))
    with served([*words, "--lora-dir", str(tmp_path / "adapters")], tmp_path) as port:
        complete, load, unload = requests("docs/lora.md")
        first = json.loads(asked(complete, port))
        assert first["model"] == "sql" and first["choices"][0]["text"]
        assert "sql" in asked(unload, port) and "error" in json.loads(asked(complete, port))
        assert "sql" in asked(load, port)
        assert json.loads(asked(complete, port))["choices"][0]["text"] != first["choices"][0]["text"]


def answers_eight_tokens(line, tmp_path):
    with served(of_this_build(shlex.split(line.replace("DIR", str(TINY / "qwen3")))), tmp_path) as port:
        body = {"model": "qwen3", "prompt": [5, 6, 7] * 8, "max_tokens": 8, "ignore_eos": True}
        answer = json.loads(asked(f"curl http://127.0.0.1:8000/v1/completions -d {shlex.quote(json.dumps(body))}", port))
        assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3"])
def test_the_servers_of_the_speculation_page_answer(method, tmp_path):
    [line] = [line for line in commands("docs/speculation.md", "refrain serve") if method in line]
    write_head(tmp_path / "head", TINY / "qwen3", "eagle3")
    answers_eight_tokens(line.replace("DRAFT_DIR", str(TINY / "qwen2")).replace("HEAD_DIR", str(tmp_path / "head")), tmp_path)


@pytest.mark.parametrize("page", ["processes", "prefill-decode"])
def test_the_groups_of_a_page_answer(page, tmp_path):
    [line] = commands(f"docs/{page}.md", "build/bin/refrain serve")
    answers_eight_tokens(line, tmp_path)


def test_the_load_of_the_load_page_has_the_lines_that_it_shows(start_server):
    server = start_server("--max-model-len", 128, tp=1)
    [line] = commands("docs/load.md", "refrain bench serve")
    line = line.replace("1000", "20").replace("400", "12").replace(":8000", f":{server.port}")    # a port may have such digits
    done = subprocess.run(of_this_build(shlex.split(line)), capture_output=True, text=True, timeout=within(120))
    assert done.returncode == 0, done.stderr
    said = dict(re.findall(r"^(\w.*?): +(\S+) *$", done.stdout, re.M))
    shown = dict(re.findall(r"^(\w.*?): +(\S+) *$", "\n".join(blocks("docs/load.md")), re.M))
    assert len(shown) >= 6 and set(shown) <= set(said), done.stdout
    assert said["Successful requests"] == "20" and said["Failed requests"] == "0"


def test_the_values_of_the_debugging_page_are_compared(tmp_path):
    """Both on the host device: the page's second one needs a GPU."""
    lines = commands("docs/debugging.md", "refrain generate") + commands("docs/debugging.md", ".venv")
    assert len(lines) == 3
    for line in lines:
        line = line.replace("/tmp/", f"{tmp_path}/").replace("--device cuda", "--device host").replace(" M ", f" {SMOLLM2} ")
        words = shlex.split(line)
        words = of_this_build(words) if words[0] == "refrain" else words
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=within(120))
        assert done.returncode == 0, done.stdout + done.stderr
    assert "equal" in done.stdout or "no difference" in done.stdout, done.stdout


def test_a_model_of_the_hugging_face_cache_runs_by_its_name(tmp_path):
    """The quickstart page's own model, which `hf download` would have put there."""
    fetch, serve = command("docs/quickstart.md", "hf download"), command("docs/quickstart.md", "build/bin/refrain serve Qwen")
    assert fetch[2] == serve[2]
    snapshots = tmp_path / "hub" / f"models--{fetch[2].replace('/', '--')}" / "snapshots"
    words = [BIN / "refrain", "generate", "--model", serve[2], "--prompt", "One", "--max-tokens", "2"]
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=within(60))
    assert done.returncode == 64 and f"What to do: {' '.join(fetch)}" in done.stderr
    snapshots.mkdir(parents=True)
    (snapshots / "0123abc").symlink_to(TINY / "qwen3")
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=within(60))
    assert done.returncode == 0 and done.stdout, done.stderr


def test_the_prompt_of_the_quickstart_page_is_answered():
    words = of_this_build(command("docs/quickstart.md", "build/bin/refrain generate --model build"))
    done = subprocess.run(words, capture_output=True, text=True, timeout=within(120))
    assert done.returncode == 0 and "Paris" in done.stdout, done.stdout + done.stderr


def test_the_file_of_prompts_of_the_quickstart_page_is_answered(tmp_path):
    words = of_this_build(command("docs/quickstart.md", "build/bin/refrain generate --model DIR"))
    (tmp_path / "in.jsonl").write_text('{"prompt": "One, two,", "max_tokens": 4}\n{"prompt_ids": [5], "max_tokens": 2}\n')
    words[words.index("DIR")] = str(SMOLLM2)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=within(120))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(line["output_ids"]) for line in lines] == [4, 2]
    assert all({"prompt_ids", "text", "finish_reason"} <= set(line) for line in lines)


@pytest.mark.parametrize(("page", "transport"), [("processes", "ipc"), ("processes", "tcp"), ("prefill-decode", "tcp")])
def test_the_processes_of_the_page_serve_when_started_by_hand(page, transport, tmp_path):
    model, port, listen = TINY / "qwen2", free_port(), free_port()
    shown = [line for beginning in ("coordinator ", "worker ") for line in commands(f"docs/{page}.md", beginning)
             if f"{transport}://" in line]
    address = f"ipc://{SOCKETS}/engine" if transport == "ipc" else f"tcp://127.0.0.1:{listen}"
    if transport == "tcp":
        keygen = of_this_build(command("docs/processes.md", "build/bin/refrain keygen"))
        subprocess.run(keygen, cwd=tmp_path, check=True, capture_output=True)
    if page == "prefill-decode":  # keys as the other page has them; all on this machine
        shown = [line.replace(" K ", " keys/coordinator.key ").replace("-allow A", "-allow keys/coordinator.allow") for line in shown]
        shown = [re.sub(r"--local-addr \S+ …", "--local-addr 127.0.0.1 --curve-key keys/worker%d.key --curve-allow keys/worker.allow" % i,
                        line) for i, line in enumerate(shown, -1)]
    elif transport == "tcp":
        second = next(line for line in shown if line.startswith("worker"))
        shown.append(second.replace("--rank 0", "--rank 1").replace("worker0", "worker1"))
    assert len(shown) == 3
    started = []
    try:
        for index, line in enumerate(shown):
            words = re.sub(r"(ipc|tcp)://\S+", address, line).replace("keys/", f"{tmp_path}/keys/").split()
            words = [str(model) if word == "DIR" else word for word in words]
            if words[0] == "coordinator":
                words = [word for word in words if word not in ("--port", "8000")] + ["--port", str(port)]
            started.append(start_by_hand(*words, log=tmp_path / f"{index}.log"))
        wait_for(lambda: answers(port), 60, "ready")
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=within(40)) for process in started]
    assert codes == [0, 0, 0], (tmp_path / "0.log").read_text()
    (SOCKETS / "engine").unlink(missing_ok=True)
