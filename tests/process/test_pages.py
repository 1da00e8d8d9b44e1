"""The commands of README and of the users' pages do what the pages say, word for word but for ports and directories.

Their options are checked in tests/tools/test_docs.py, tools/quickstart's parts in tests/tools/test_first_request.py.
"""
import json
import os
import re
import shlex
import signal
import subprocess
import urllib.request

import pytest

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


def answers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_server_of_a_page_answers_the_request_of_that_page(page, tmp_path):
    port = free_port()
    log = (tmp_path / "serve.log").open("w")
    server = subprocess.Popen([*of_this_build(command(page, "build/bin/refrain serve --model")), "--port", str(port)],
                              stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port), 60, "ready")
        request = next(re.search(r"^curl .*\Z", block, re.M | re.S)[0] for block in blocks(page) if "\ncurl" in "\n" + block)
        done = subprocess.run(["bash", "-c", request.replace(":8000/", f":{port}/")], capture_output=True, text=True,
                              timeout=within(60))
        answer = json.loads(done.stdout)
        assert answer["choices"][0]["message"]["content"] and answer["usage"]["completion_tokens"] <= 48
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=within(40))
    assert code == 0
    assert f"serves {SMOLLM2.name}" in (tmp_path / "serve.log").read_text()


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


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_the_processes_of_the_page_serve_when_started_by_hand(transport, tmp_path):
    model, port, listen = TINY / "qwen2", free_port(), free_port()
    page = blocks("docs/processes.md")
    shown = [line for block in page for line in block.splitlines() if line.startswith(("coordinator ", "worker "))
             and f"{transport}://" in line]
    address = f"ipc://{SOCKETS}/engine" if transport == "ipc" else f"tcp://127.0.0.1:{listen}"
    if transport == "tcp":
        keygen = of_this_build(command("docs/processes.md", "build/bin/refrain keygen"))
        subprocess.run(keygen, cwd=tmp_path, check=True, capture_output=True)
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
