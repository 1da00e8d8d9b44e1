"""Chats with tools and reasoning: the official OpenAI client against a real server and a small model, which copies the
format that its prompt shows."""
import json

import openai
import pytest
from conftest import Server

MODEL = "smol"
# A request's own template: the conversation as questions whose answers show the format.
TEMPLATE = """{%- for city in ["Oslo", "Rome", "Lima", "Cairo"] -%}
Q: What is the weather in {{ city }}?
A: <think>I call weather for {{ city }}.</think>Let me see.<tool_call>{"name": "weather", "arguments": {"city": "{{ city }}"}}</tool_call>.
{% endfor -%}
{%- for m in messages -%}
{%- if m.role == "user" %}Q: {{ m.content }}
A:
{%- elif m.tool_calls %} {{ m.content }}<tool_call>{"name": "{{ m.tool_calls[0].function.name }}", "arguments": {{ m.tool_calls[0].function.arguments | tojson }}}</tool_call>.
{% endif -%}
{%- endfor -%}"""
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}
QUESTION = {"role": "user", "content": "What is the weather in Berlin?"}
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 64, "stop": [".\n"], "extra_body": {"chat_template": TEMPLATE}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("chat") / "serve.log", "--max-model-len", 1024, "--served-model-name", MODEL,
                    "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3",
                    "--trust-request-chat-template", tp=1).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def test_a_call_its_reasoning_and_its_content_come_apart(client):
    choice = client.chat.completions.create(messages=[QUESTION], tools=[WEATHER], **GREEDY).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.reasoning == choice.message.reasoning_content == "I call weather for Berlin."
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.id.startswith("chatcmpl-tool-")
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Berlin"}


def test_a_stream_tells_the_same_in_deltas(client):
    name, arguments, content, reasoning, finish, ids, deltas = "", "", "", "", None, [], 0
    for chunk in client.chat.completions.create(messages=[QUESTION], tools=[WEATHER], stream=True, **GREEDY):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            ids += [call.id] if call.id else []
            name += call.function.name or ""
            arguments += call.function.arguments
            deltas += 1
    assert (name, json.loads(arguments), finish) == ("weather", {"city": "Berlin"}, "tool_calls")
    assert content == "Let me see." and reasoning == "I call weather for Berlin."
    assert len(ids) == 1 and deltas > 3


def test_the_clients_own_accumulator_understands_the_stream(client):
    with client.chat.completions.stream(messages=[QUESTION], tools=[WEATHER], **GREEDY) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Berlin"}


def test_without_tools_the_text_stays_as_it_is(client):
    choice = client.chat.completions.create(messages=[QUESTION], **GREEDY).choices[0]
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    assert choice.message.content.startswith("Let me see.<tool_call>")
    none = client.chat.completions.create(messages=[QUESTION], tools=[WEATHER], tool_choice="none", **GREEDY).choices[0]
    assert none.message.tool_calls is None


def test_a_call_that_max_tokens_cuts_is_no_call(client):
    cut = GREEDY | {"max_tokens": 24, "stop": None}
    choice = client.chat.completions.create(messages=[QUESTION], tools=[WEATHER], **cut).choices[0]
    assert choice.finish_reason == "length" and choice.message.tool_calls is None
    assert "<tool_call>" in choice.message.content


def test_a_call_comes_back_in_the_history_as_its_template_prints_it(server, client):
    first = client.chat.completions.create(messages=[QUESTION], tools=[WEATHER], **GREEDY).choices[0].message
    assert first.tool_calls
    history = [QUESTION, first.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": first.tool_calls[0].id,
                                                               "content": "sunny"}]
    body = {"model": MODEL, "messages": history, "tools": [WEATHER], "chat_template": TEMPLATE}
    status, text = server.post("/tokenize", body)
    assert status == 200
    status, text = server.post("/detokenize", {"model": MODEL, "tokens": json.loads(text)["tokens"]})
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Berlin"}}</tool_call>' in json.loads(text)["prompt"]
    again = client.chat.completions.create(messages=[*history, {"role": "user", "content": "What is the weather in Paris?"}],
                                           tools=[WEATHER], **GREEDY).choices[0].message
    assert json.loads(again.tool_calls[0].function.arguments) == {"city": "Paris"}


def test_content_null_parts_and_developer(server):
    def prompt(messages):
        status, text = server.post("/tokenize", {"model": MODEL, "messages": messages})
        assert status == 200, text
        return json.loads(server.post("/detokenize", {"tokens": json.loads(text)["tokens"]})[1])["prompt"]
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "user\none\ntwo<|im_end|>" in prompt([{"role": "user", "content": parts}])
    assert "assistant\n<|im_end|>" in prompt([{"role": "user", "content": "a"}, {"role": "assistant", "content": None}])
    assert "system\nBe brief.<|im_end|>" in prompt([{"role": "developer", "content": "Be brief."},
                                                    {"role": "user", "content": "a"}])


def test_a_final_message_is_continued(client):
    messages = [{"role": "user", "content": "What is the capital of France?"},
                {"role": "assistant", "content": "The capital of France is"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=2,
                                            extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert answer.choices[0].message.content.startswith(" Paris")


def test_sampling_defaults_come_from_generation_config(start_server, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0, "max_new_tokens": 5}))
    server = start_server("--generation-config", tmp_path, "--max-model-len", 256, "--served-model-name", MODEL, tp=1)
    assert "sampling defaults: temperature 0, max_new_tokens 5" in server.log.read_text()
    client = server.client()

    def ask(**fields):
        return client.completions.create(model=MODEL, prompt="The capital of France is", **fields)
    greedy = ask(temperature=0, max_tokens=5)
    answers = [ask(seed=seed) for seed in range(3)] + [ask(max_tokens=100)]
    assert [answer.choices[0].text for answer in answers] == [greedy.choices[0].text] * 4
    assert [answer.usage.completion_tokens for answer in answers] == [5] * 4
    assert len({ask(seed=seed, temperature=2).choices[0].text for seed in range(4)}) > 1


@pytest.mark.parametrize("options, message", [
    (["--tool-call-parser", "hermess"], "there are hermes"),
    (["--reasoning-parser", "o1"], "there are qwen3"),
    (["--enable-auto-tool-choice"], "needs --tool-call-parser"),
    (["--generation-config", "/nowhere"], "generation_config.json"),
    (["--override-generation-config", "{\"top_p\": 7}"], "top_p"),
])
def test_options_that_cannot_be_end_with_64(start_server, options, message):
    server = start_server(*options, ready=False)
    assert server.process.wait(60) == 64
    assert message in server.log.read_text()
