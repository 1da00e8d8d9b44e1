"""/v1/messages as Anthropic's clients speak it; calls by a format that the prompt shows (test_chat)."""
import json

import httpx
import pytest
from conftest import Server
from test_chat import TEMPLATE

MODEL = "smol"
KEY = "sk-of-messages"
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
QUESTION = {"role": "user", "content": "What is the weather in Berlin?"}
SHOWN = {"model": MODEL, "temperature": 0, "max_tokens": 64, "stop_sequences": [".\n"], "tools": [WEATHER],
         "chat_template": TEMPLATE}
PLAIN = {"model": MODEL, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("messages") / "serve.log", "--max-model-len", 1024, "--served-model-name", MODEL,
                    "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3",
                    "--trust-request-chat-template", "--api-key", KEY, tp=1).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.base, headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"}, timeout=60) as client:
        yield client


def create(client, **fields):
    answer = client.post("/v1/messages", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events_of(client, **fields):
    """[(event, data)] of a stream, each of whose data says its event's name."""
    events = []
    with client.stream("POST", "/v1/messages", json={**fields, "stream": True}) as stream:
        assert stream.status_code == 200
        name = None
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
                assert data["type"] == name
                events.append(data)
    return events


def accumulate(events):
    """The message that the events make, as Anthropic's clients build it."""
    message = events[0]["message"]
    pieces = {}
    for event in events[1:]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                pieces[event["index"]] = pieces.get(event["index"], "") + delta["partial_json"]
            else:
                kind = delta["type"].removesuffix("_delta")
                block[kind] += delta[kind]
        elif event["type"] == "content_block_stop" and event["index"] in pieces:
            message["content"][event["index"]]["input"] = json.loads(pieces[event["index"]])
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    assert events[-1]["type"] == "message_stop"
    return message


def test_a_text_is_what_a_chat_gives(server, client):
    blocks = [{"type": "text", "text": "Say hello."}]
    message = create(client, system="You are terse.", messages=[{"role": "user", "content": blocks}], **PLAIN)
    chat = client.post("/v1/chat/completions", headers={"Authorization": f"Bearer {KEY}"}, json={
        "messages": [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Say hello."}], **PLAIN}).json()
    assert message["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    counted = client.post("/v1/messages/count_tokens", json={
        "model": MODEL, "system": "You are terse.", "messages": [{"role": "user", "content": "Say hello."}]}).json()
    assert counted == {"input_tokens": chat["usage"]["prompt_tokens"]}


@pytest.mark.parametrize(("fields", "reason", "word"), [
    ({"max_tokens": 2}, "max_tokens", None),
    ({"stop_sequences": ["e"]}, "stop_sequence", "e"),
    ({"max_tokens": 200}, "end_turn", None),
])
def test_the_reason_to_end_is_told(client, fields, reason, word):
    message = create(client, messages=[{"role": "user", "content": "Say hello."}], **(PLAIN | fields))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, word)


def test_an_answer_that_was_begun_goes_on(client):
    messages = [{"role": "user", "content": "What is the capital of France?"},
                {"role": "assistant", "content": "The capital of France is"}]
    message = create(client, messages=messages, **PLAIN)
    assert message["content"][0]["text"].startswith(" Paris")
    counted = client.post("/v1/messages/count_tokens", json={"model": MODEL, "messages": messages}).json()["input_tokens"]
    assert counted == message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]


@pytest.mark.parametrize("fields", [{"structured_outputs": {"choice": ["Quite so", "Not so"]}},
                                    {"guided_regex": "(Quite|Not) so"}])
def test_an_answer_keeps_to_the_form_it_is_given(client, fields):
    message = create(client, messages=[{"role": "user", "content": "Is water wet?"}], **PLAIN, **fields)
    assert message["content"][0]["text"] in ("Quite so", "Not so")


def test_a_call_comes_with_its_thinking_and_its_text(client):
    message = create(client, messages=[QUESTION], **SHOWN)
    thinking, text, call = message["content"]
    assert thinking["thinking"] == "I call weather for Berlin." and text["text"] == "Let me see."
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Berlin"}) and call["id"]
    assert message["stop_reason"] == "tool_use"


def test_reasoning_is_left_out_for_one_who_asks(client):
    message = create(client, messages=[QUESTION], include_reasoning=False, **SHOWN)
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]


def test_the_events_add_up_to_the_message(client):
    whole = create(client, messages=[QUESTION], **SHOWN)
    streamed = accumulate(events_of(client, messages=[QUESTION], **SHOWN))
    for message in (whole, streamed):
        message["content"][2]["id"] = message["id"] = None
        del message["usage"]["cache_read_input_tokens"], message["usage"]["input_tokens"]  # the second one hits the cache
    assert streamed == whole


def test_a_result_of_a_call_goes_back_as_a_block(client):
    first = create(client, messages=[QUESTION], **SHOWN)
    result = {"type": "tool_result", "tool_use_id": first["content"][2]["id"], "content": [{"type": "text", "text": "Rain."}]}
    history = [QUESTION, {"role": "assistant", "content": first["content"]},
               {"role": "user", "content": [result, {"type": "text", "text": "What is the weather in Rome?"}]}]
    assert create(client, messages=history, **SHOWN)["content"][-1]["input"] == {"city": "Rome"}


@pytest.mark.parametrize(("fields", "message"), [
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"messages": []}, "messages must be"),
    ({"messages": [{"role": "system", "content": "x"}]}, "role user or assistant"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "of type 'image'"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "are not supported"),
    ({"stop_sequences": [3]}, "stop_sequences must be"),
    ({"messages": [{"role": "user", "content": "word " * 2000}]}, "maximum context length is"),
])
def test_what_is_not_there_is_refused_with_a_sentence(client, fields, message):
    answer = client.post("/v1/messages", json={"messages": [QUESTION], **PLAIN, **fields})
    assert answer.status_code == 400
    error = answer.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error" and message in error["error"]["message"]


def test_the_key_is_needed_R16(server):
    for headers in ({}, {"x-api-key": "sk-other"}):
        answer = httpx.post(f"{server.base}/v1/messages", json={"messages": [QUESTION], **PLAIN}, headers=headers)
        assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"
