"""Answers that keep to a schema, a regular expression, a choice or a grammar, over HTTP with the official client."""
import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import time

import jsonschema
import openai
import pytest
from conftest import BIN, SANITIZED, SMOLLM2, Server, command_line, wait_for

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
ASK = [{"role": "user", "content": "Tell me of a person."}]
TOOLS = [{"type": "function", "function": {"name": name, "description": "Looks it up.", "parameters": {
    "type": "object", "properties": {key: {"type": "string", "maxLength": 10}}, "required": [key]}}}
    for name, key in (("weather", "city"), ("clock", "zone"))]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("structured") / "serve.log", "--max-num-seqs", 16, "--max-model-len", 1024,
                    "--served-model-name", "smol").start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def chat(client, **fields):
    extra = {k: fields.pop(k) for k in list(fields) if k.startswith(("guided_", "structured_"))} | fields.pop("extra", {})
    return client.chat.completions.create(**{"model": "smol", "messages": ASK, "max_tokens": 200, "temperature": 0,
                                             "extra_body": extra, **fields})


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_an_answer_keeps_to_its_schema(client, temperature):
    answer = chat(client, response_format=json_schema(PERSON), temperature=temperature, seed=1, n=4 if temperature else 1)
    assert {c.finish_reason for c in answer.choices} == {"stop"}
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), PERSON)


def test_a_stream_keeps_to_its_schema_and_gives_raw_logprobs(client):
    stream = chat(client, response_format=json_schema(PERSON), temperature=1.2, seed=3, stream=True, logprobs=True,
                  top_logprobs=2)
    text, logprobs = "", []
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        logprobs += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    jsonschema.validate(json.loads(text), PERSON)
    # The model's own words, not the grammar's: what it would have said is listed even where it is forbidden.
    assert any(entry.token not in [top.token for top in entry.top_logprobs] for entry in logprobs)


def test_json_object_regex_choice_and_grammar(client):
    assert isinstance(json.loads(chat(client, response_format={"type": "json_object"}, max_tokens=400, temperature=1,
                                      seed=5, messages=[{"role": "user", "content": "{}"}]).choices[0].message.content
                                 or "{}"), dict)
    for fields in ({"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"}}, {"guided_regex": "[0-9]{3}-[a-f]{2}"}):
        assert re.fullmatch("[0-9]{3}-[a-f]{2}", chat(client, **fields).choices[0].message.content)
    for fields in ({"structured_outputs": {"choice": ["rød", "blue \"x\""]}}, {"guided_choice": ["rød", "blue \"x\""]}):
        assert chat(client, **fields).choices[0].message.content in ("rød", "blue \"x\"")
    grammar = 'root ::= sum\nsum ::= digit "+" digit ("+" digit)?\ndigit ::= [0-9]'
    for fields in ({"structured_outputs": {"grammar": grammar}}, {"guided_grammar": grammar}):
        assert re.fullmatch(r"\d\+\d(\+\d)?", chat(client, **fields).choices[0].message.content)
    completion = client.completions.create(model="smol", prompt="It is", max_tokens=9, extra_body={"guided_regex": "x{5}"})
    assert completion.choices[0].text == "xxxxx"


@pytest.mark.parametrize("choice,names", [("required", {"weather", "clock"}),
                                          ({"type": "function", "function": {"name": "clock"}}, {"clock"})])
def test_a_tool_call_is_forced(client, choice, names):
    answer = chat(client, tools=TOOLS, tool_choice=choice).choices[0]
    [call] = answer.message.tool_calls
    assert call.function.name in names and answer.finish_reason == "tool_calls" and not answer.message.content
    schema = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == call.function.name)
    jsonschema.validate(json.loads(call.function.arguments), schema)
    streamed = ""
    for chunk in chat(client, tools=TOOLS, tool_choice=choice, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            streamed += part.function.arguments or ""
    jsonschema.validate(json.loads(streamed), schema)


@pytest.mark.parametrize("fields,named", [
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"guided_json": {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}}, "not"),
    ({"guided_json": {"type": "number", "multipleOf": 0.5}}, "multipleOf"),
    ({"guided_json": {"$ref": "#/$defs/none"}}, "none"),
    ({"guided_json": {"$ref": "#"}}, "cannot go on and not end"),
    ({"guided_regex": "((((a{1,1000}){1,1000}){1,1000}){1,1000})", "max_tokens": 60}, "ms to say what may follow"),
    ({"guided_regex": "(a"}, "regex|parenthes|refused"),
    ({"guided_grammar": "root ::= other"}, "other"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag")])
def test_what_is_wrong_or_not_supported_is_a_400_that_names_it(client, fields, named):
    with pytest.raises(openai.BadRequestError, match=named):
        chat(client, **fields)


# Nothing of it shows in the 48 tokens of a trial. What a mask costs then grows with each token.
LATE_BOMB = "[0-9]{49}" + "(" * 10 + "a" + "{1,1000})" * 10


def test_a_grammar_that_becomes_slow_ends_its_own_request_and_no_group_is_lost(server, client):
    workers = server.workers()
    other = {"model": "smol", "prompt": "One two", "max_tokens": 40, "temperature": 0}
    expected = client.completions.create(**other).choices[0].text
    with concurrent.futures.ThreadPoolExecutor() as pool:
        bomb = pool.submit(chat, client, max_tokens=400, guided_regex=LATE_BOMB, extra={"min_tokens": 390})
        while not bomb.done():
            assert client.completions.create(**other).choices[0].text == expected
    with pytest.raises(openai.BadRequestError, match="grammar of this answer cannot be followed in time: after [0-9]+ tokens"):
        bomb.result()
    with pytest.raises(openai.BadRequestError, match="refused: an answer showed that it takes too long to follow"):
        chat(client, guided_regex=LATE_BOMB)
    assert server.workers() == workers
    assert number(server, "requests_with_slow_grammar_total") == 1 and number(server, "worker_group_restarts_total") == 0


BOMBS = {
    "repeat": {"guided_regex": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"},
    "lookalikes": {"guided_regex": "(x+x+)+y" * 500},
    "nested": {"guided_grammar": "root ::= " + "(" * 20000 + '"a"' + ")" * 20000},
    "alternatives": {"guided_grammar": "\n".join(
        ["root ::= r0"] + [f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}" for i in range(400)] + ['r400 ::= "a" | ""'])},
    "many lengths": {"guided_regex": "|".join(f"[a-z]{{{i}}}x" for i in range(1, 1000))},
    "lengths": {"guided_json": {"type": "array", "minItems": 100000, "maxItems": 100000, "items": {
        "type": "string", "minLength": 99999, "maxLength": 100000}}}}


def test_a_grammar_bomb_is_refused_in_bounded_time_and_others_go_on(server, client):
    def others():
        begin = time.monotonic()
        client.completions.create(model="smol", prompt="One two", max_tokens=4)
        return time.monotonic() - begin

    def bomb(fields):
        begin = time.monotonic()
        try:
            chat(client, max_tokens=2, **fields)
            return "answered", time.monotonic() - begin
        except openai.BadRequestError as error:
            return error.message, time.monotonic() - begin

    workers = server.workers()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = [pool.submit(bomb, fields) for fields in BOMBS.values()]
        waits = [others() for _ in range(6)]
        ends = {name: future.result() for name, future in zip(BOMBS, running)}
    print(ends, waits)
    assert server.workers() == workers
    assert max(waits) < 5 and max(seconds for _, seconds in ends.values()) < 120
    for name in ("nested", "many lengths"):  # the others compile in time, which is no fault
        assert "refused" in ends[name][0], ends

    def helpers():
        return [pid for pid in server.children("coordinator") if "--grammar-helper" in command_line(pid)]

    # what broke a limit is known, and costs no second try.
    os.kill(helpers()[0], signal.SIGKILL)
    wait_for(lambda: not helpers(), 10, "the helper's end")
    assert bomb(BOMBS["many lengths"])[0] == ends["many lengths"][0]
    assert not helpers()


def test_a_grammar_that_costs_more_than_its_limits_ends_in_the_helper(server):
    def check(source, cpu_seconds, memory_mib):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with subprocess.Popen([BIN / "coordinator", "--grammar-helper", str(theirs.fileno()), SMOLLM2, "49152", "0",
                               str(cpu_seconds), "60", str(memory_mib << 20)], pass_fds=[theirs.fileno()]), ours:
            theirs.close()
            ours.send(source.encode())
            return ours.recv(4096).decode()

    source = "regex:" + BOMBS["many lengths"]["guided_regex"]
    if not SANITIZED:  # what a sanitizer maps is not limited
        assert "too large to compile in the memory" in check(source, 60, 4)
    assert "more than 1 s to compile" in check(source, 1, 512)


def test_an_answer_outlives_a_worker(server, client):
    """R-10: the matcher of the next worker reads the tokens that the client has."""
    schema = {"type": "array", "minItems": 40, "maxItems": 40, "items": PERSON}
    text, killed = "", False
    for chunk in chat(client, response_format=json_schema(schema), temperature=1, seed=2, max_tokens=600, stream=True):
        text += chunk.choices[0].delta.content or ""
        if not killed and len(text) > 60:
            os.kill(server.workers()[1], signal.SIGKILL)
            killed = True
    assert killed
    if text.rstrip().endswith("]"):
        jsonschema.validate(json.loads(text), schema)
    else:  # cut by max_tokens: what is there is the beginning of a valid answer
        people = re.findall(r"\{[^{}]*\}", text)
        assert len(people) > 3
        for person in people:
            jsonschema.validate(json.loads(person), PERSON)
    wait_for(lambda: server.get("/ready")[0] == 200, 60, "ready")


# The small model with tokens for the marks of a reasoning, in place of two that nobody uses. Its prompt shows the form.
THINKING = """{%- for city in ["Oslo", "Rome", "Lima", "Cairo"] -%}
Q: What is the weather in {{ city }}?
A:{% if enable_thinking is not defined or enable_thinking %}<think>I call weather for {{ city }}.</think>{% endif %}{"city": "{{ city }}", "sun": true}
{% endfor -%}
Q: {{ messages[0].content }}
A:{{ opening }}"""
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "sun": {"type": "boolean"}},
        "required": ["city", "sun"], "additionalProperties": False}
WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
BIAS = {"0": -100, "1": -100, "2": -100, "4": 6}  # the model knows no token 4, and other special ones too well
DRAFTS = ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3})]


@pytest.fixture(scope="module")
def thinking_model(tmp_path_factory):
    target = tmp_path_factory.mktemp("thinking")
    for file in SMOLLM2.iterdir():
        (target / file.name).symlink_to(file)
    tokenizer = json.loads((SMOLLM2 / "tokenizer.json").read_text())
    for old, new in (("<repo_name>", "<think>"), ("<reponame>", "</think>")):
        token = next(t for t in tokenizer["added_tokens"] if t["content"] == old)
        token |= {"content": new, "special": False}
        tokenizer["model"]["vocab"][new] = tokenizer["model"]["vocab"].pop(old)
    (target / "tokenizer.json").unlink()
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    return target


def thoughts(client, opening="", **fields):
    fields = {"max_tokens": 60, "temperature": 0, "model": "smol", "logit_bias": BIAS, **fields}
    kwargs = {"opening": opening} | fields.pop("kwargs", {})
    extra = {"chat_template": THINKING, "chat_template_kwargs": kwargs, "return_token_ids": True} | fields.pop("extra", {})
    return client.chat.completions.create(messages=[{"role": "user", "content": "What is the weather in Berlin?"}],
                                          extra_body=extra, **fields)


def number(server, name):
    return int(re.search(f"^refrain:{name}{{.*}} (\\d+)$", server.get("/metrics")[1], re.M)[1])


def of_choice(choice):
    calls = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or []]
    told = [pytest.approx(e.logprob, abs=1e-3) for e in choice.logprobs.content] if choice.logprobs else None
    return getattr(choice.message, "reasoning", None), choice.message.content, calls, choice.token_ids, told


def test_a_grammar_begins_behind_the_reasoning_and_forced_text_is_jumped_over(thinking_model, start_server):
    schema, form = json_schema(CITY), {"structured_outputs": {"regex": r'\{"city": "Berlin", "sun": (true|false), "wind": "none"\}'}}

    def answers(server):
        client = server.client()
        asked = [dict(response_format=schema, logprobs=True), dict(response_format=schema, opening="<think>"),
                 dict(response_format=schema, opening="<think></think>"), dict(extra=form),
                 dict(response_format=schema, kwargs={"enable_thinking": False}),
                 dict(tools=WEATHER, tool_choice="required"), dict(response_format=schema, n=3, temperature=1.2, seed=5),
                 dict(extra=form, temperature=0.8, seed=3, logprobs=True)]
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            return [[of_choice(c) for c in answer.choices] for answer in pool.map(lambda f: thoughts(client, **f), asked)]

    options = ["--max-num-seqs", 8, "--max-model-len", 512, "--served-model-name", "smol", "--trust-request-chat-template",
               "--reasoning-parser", "qwen3", "--dtype", "float32"]
    server = start_server(*options, model=thinking_model)
    plain = answers(server)
    [[free], [inside], [closed], [fixed], [off], [call], many, [drawn]] = plain
    assert free[0] == inside[0] == "I call weather for Berlin."
    for answer in (free, inside, closed, off, *many):
        jsonschema.validate(json.loads(answer[1]), CITY)
    assert closed[0] is None and off[0] is None
    assert call[0] and call[2][0][0] == "weather" and not call[1]
    jsonschema.validate(call[2][0][1], CITY)
    for answer in (fixed, drawn):
        assert json.loads(answer[1])["wind"] == "none"
    assert server.stop() == 0
    drafting = start_server(*options, *DRAFTS, model=thinking_model)
    assert answers(drafting) == plain
    assert number(drafting, "jump_forward_tokens_total") > 10
    told = number(drafting, "generation_tokens_total")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        again = pool.submit(lambda: [answers(drafting) for _ in range(2)])
        wait_for(lambda: number(drafting, "generation_tokens_total") > 1.3 * told, 30, "tokens before the kill")
        os.kill(drafting.workers()[1], signal.SIGKILL)
        assert again.result() == [plain] * 2
    assert number(drafting, "worker_group_restarts_total") == 1
    assert drafting.stop() == 0


def test_the_library_may_come_after_the_server(tmp_path, monkeypatch, start_server):
    """tools/quickstart answers before it has built the library for grammars."""
    library = tmp_path / "librefrain_xgrammar.so"
    monkeypatch.setenv("REFRAIN_XGRAMMAR", str(library))
    server = start_server("--max-num-seqs", 4, "--max-model-len", 256, "--served-model-name", "smol")
    body = {"model": "smol", "messages": ASK, "max_tokens": 8, "temperature": 0}
    choice = {**body, "structured_outputs": {"choice": ["yes", "no"]}}
    status, text = server.post("/v1/chat/completions", choice)
    said = json.loads(text)["error"]["message"]
    assert status == 503 and "ninja refrain_xgrammar" in said and str(library) in said
    assert server.post("/v1/chat/completions", body)[0] == 200
    library.write_bytes(b"no library")
    assert server.post("/v1/chat/completions", choice)[0] == 503
    library.unlink()
    library.symlink_to(BIN.parent / "lib" / library.name)
    status, text = server.post("/v1/chat/completions", choice)
    assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] in ("yes", "no")
    assert number(server, "worker_group_restarts_total") == 0
