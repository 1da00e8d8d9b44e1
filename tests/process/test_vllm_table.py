"""What vLLM's clients and scripts may send (tests/fixtures/vllm-0.21.json, made by tools/vllm_table): nothing is passed
over in silence."""
import json
import re
import subprocess

import pytest
from conftest import BIN, ROOT, TINY, Server

TABLE = json.loads((ROOT / "tests/fixtures/vllm-0.21.json").read_text())
MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/tokenize": {"messages": MESSAGES},
    "/detokenize": {"tokens": [1]},
}
# Of no kind that a field has: what reads the field says so.
NONSENSE = [[{"nonsense": [1]}]]
# Read, but any value is right: they are variables of the chat template, or only told back.
ANY_VALUE = {"documents", "reasoning_effort", "metadata", "prompt_cache_key"}
# Fields of answers that are not told, and what clients see instead: nothing, where vLLM tells null.
ALWAYS_NULL = {"service_tier", "system_fingerprint", "kv_transfer_params", "routed_experts", "prompt_routed_experts",
               "prompt_text", "refusal", "annotations", "audio", "function_call", "input_messages", "output_messages"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("table") / "serve.log", "--max-model-len", 128, "--max-num-seqs", 4,
                    "--served-model-name", "tiny", model=TINY / "qwen2", tp=1).start()
    yield server
    assert server.stop() == 0


# In this order: a name that /tokenize says is not said again.
@pytest.mark.parametrize("route", sorted(TABLE["requests"]))
def test_each_request_field_is_read_or_its_name_is_said(server, route):
    silent = []
    for field in set(TABLE["requests"][route]) - ANY_VALUE:
        before = server.log.stat().st_size
        status, answer = server.post(route, BODIES[route] | {field: NONSENSE})
        with server.log.open() as log:
            log.seek(before)
            said = f'the field "{field}", which is ignored' in log.read()
        # One that another route has had before is not said again.
        said = said or f'the field "{field}", which is ignored' in server.log.read_text()
        named = status in (400, 404) and field in json.loads(answer)["error"]["message"].replace(".", "_")
        if not (said or named):
            silent.append((field, status, answer[:200]))
    assert silent == []


def parts(server, route, **fields):
    answer = server.post(route, BODIES[route] | {"stream": True, "return_token_ids": True} | fields)[1]
    return [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]


def names(*objects):
    return {name for entry in objects for name in entry} | ALWAYS_NULL


def test_answers_have_vllms_fields(server):
    def whole(route, **fields):
        return json.loads(server.post(route, BODIES[route] | {"return_token_ids": True, "prompt_logprobs": 0} | fields)[1])
    expected = TABLE["responses"]
    for route, kind, logprobs in (("/v1/completions", "Completion", 1), ("/v1/chat/completions", "ChatCompletion", True)):
        answer, stream = whole(route, logprobs=logprobs), parts(server, route, stream_options={"include_usage": True})
        choice, streamed = answer["choices"][0], [part["choices"][0] for part in stream if part["choices"]]
        assert set(expected[route][f"{kind}Response"]) <= names(answer)
        assert set(expected[route][f"{kind}ResponseChoice"]) <= names(choice)
        assert set(expected[route][f"{kind}StreamResponse"]) <= names(*stream)
        assert set(expected[route][f"{kind}ResponseStreamChoice"]) <= names(*streamed)
    assert set(expected["/v1/completions"]["CompletionLogProbs"]) == set(whole("/v1/completions", logprobs=1)["choices"][0]["logprobs"])
    chat = whole("/v1/chat/completions", logprobs=True)["choices"][0]
    assert set(expected["/v1/chat/completions"]["ChatCompletionLogProbsContent"]) == set(chat["logprobs"]["content"][0])
    assert set(expected["/v1/chat/completions"]["ChatMessage"]) <= names(chat["message"]) | {"tool_calls", "reasoning"}


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/messages", "/tokenize", "/detokenize"])
def test_other_answers_have_vllms_fields(server, route):
    body = json.loads(server.post(route, BODIES[route] | {"metadata": {}} | ({"return_token_strs": True} if route == "/tokenize" else {}))[1])
    kinds = dict(TABLE["responses"][route])
    if usage := kinds.pop("ResponseUsage", None):
        assert set(usage) <= set(body["usage"])
    for fields in kinds.values():
        assert set(fields) - names(body) == set()


def refused(option):
    done = subprocess.run([BIN / "refrain", "serve", TINY / "qwen2", option, "x"], capture_output=True, text=True, timeout=60)
    return done.returncode == 64 and f"{option}: " in done.stderr + done.stdout


def test_each_option_of_vllm_serve_is_taken_or_refused_with_a_sentence():
    page = subprocess.run([BIN / "refrain", "serve", "--help-page"], capture_output=True, text=True, check=True).stdout
    taken = set(re.findall(r"--[a-z0-9-]+", page))
    assert len(TABLE["options"]) > 200 and taken & set(TABLE["options"])
    assert [option for option in TABLE["options"] if option not in taken and not refused(option)] == []
    assert not refused("--no-such-option")
