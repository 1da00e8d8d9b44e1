"""The official OpenAI client against a real server with two workers."""
import concurrent.futures
import json
import re

import httpx
import openai
import pytest
from conftest import Server, held, wait_for

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("openai") / "serve.log", "--max-num-seqs", 64, "--max-model-len", 1024,
                    "--served-model-name", "smol").start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def test_models_are_listed(client):
    models = client.models.list().data
    assert [m.id for m in models] == ["smol"] and models[0].object == "model"


def test_a_model_is_retrieved_by_its_name(client):
    assert client.models.retrieve("smol").max_model_len == 1024
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("org/other")


def test_a_prompt_is_cut_to_its_last_tokens_when_asked(client):
    def ask(prompt, **fields):
        answer = client.completions.create(model="smol", prompt=prompt, temperature=0, max_tokens=4, extra_body=fields)
        return answer.choices[0].text, answer.usage.prompt_tokens
    assert ask("Hello there. " + PROMPT, truncate_prompt_tokens=5) == (ask(PROMPT)[0], 5)
    assert ask([1, 2, 3, 504, 3575, 282, 4649, 314], truncate_prompt_tokens=5) == (ask(PROMPT)[0], 5)
    assert ask(PROMPT, truncate_prompt_tokens=500)[1] == 5
    assert ask("word " * 3000, truncate_prompt_tokens=-1)[1] == 1020
    with pytest.raises(openai.BadRequestError, match="truncate_prompt_tokens"):
        ask(PROMPT, truncate_prompt_tokens=1025)


def test_a_stop_token_is_the_reason_as_a_number(client):
    answer = client.completions.create(model="smol", prompt=PROMPT, temperature=0, max_tokens=8,
                                       extra_body={"stop_token_ids": [7042]})
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", 7042)
    at_border = client.completions.create(model="smol", prompt=PROMPT, temperature=0, max_tokens=8, stop=["."],
                                          extra_body={"min_tokens": 1})
    assert at_border.choices[0].text == " Paris"


def test_an_answer_has_the_id_that_its_request_brings(client):
    def answer(request_id):
        return client.completions.create(model="smol", prompt="One", max_tokens=1,
                                         extra_headers={"X-Request-Id": request_id}).id

    assert answer("mine-7") == "cmpl-mine-7"
    with pytest.raises(openai.BadRequestError, match="X-Request-Id"):
        answer("x" * 129)


def test_what_is_ignored_is_said_once(server, client):
    for _ in range(2):
        client.completions.create(model="smol", prompt=PROMPT, max_tokens=1, user="me", extra_body={"temprature": 0})
    log = server.log.read_text()
    assert log.count("temprature") == log.count('the field "user"') == 1


def test_completion_has_text_usage_and_reason(client):
    answer = client.completions.create(model="smol", prompt=PROMPT, **GREEDY)
    assert answer.choices[0].text.startswith(" Paris.")
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 24, 29)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")


def test_chat_answers_and_stops_at_the_end_token(client):
    answer = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": "What is gravity? Answer in one sentence."}],
        temperature=0, max_tokens=64)
    message = answer.choices[0].message
    assert message.role == "assistant" and message.content.startswith("Gravity is a fundamental concept in physics")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 39


def test_streams_add_up_to_the_whole_answer(client):
    whole = client.completions.create(model="smol", prompt=PROMPT, **GREEDY).choices[0].text
    chunks = list(client.completions.create(model="smol", prompt=PROMPT, stream=True,
                                            stream_options={"include_usage": True}, **GREEDY))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens == 24 and not chunks[-1].choices
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert len(chunks) > 5


def test_chat_stream_begins_with_the_role(client):
    messages = [{"role": "user", "content": "Say hello."}]
    whole = client.chat.completions.create(model="smol", messages=messages, **GREEDY).choices[0].message.content
    chunks = list(client.chat.completions.create(model="smol", messages=messages, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole


def test_stop_string_ends_the_answer_before_itself(client):
    whole = client.completions.create(model="smol", prompt=PROMPT, **GREEDY).choices[0].text
    answer = client.completions.create(model="smol", prompt=PROMPT, stop=["answer"], **GREEDY)
    assert answer.choices[0].text == whole[:whole.index("answer")]
    assert answer.choices[0].finish_reason == "stop"
    streamed = "".join(c.choices[0].text for c in client.completions.create(
        model="smol", prompt=PROMPT, stop=["answer"], stream=True, **GREEDY))
    assert streamed == answer.choices[0].text


def test_n_choices_differ_by_seed_and_repeat_by_seed(client):
    def ask():
        answer = client.completions.create(model="smol", prompt="Once upon a time", n=4, seed=7, temperature=1.0,
                                           max_tokens=12)
        assert [c.index for c in answer.choices] == [0, 1, 2, 3]
        return [c.text for c in answer.choices]
    first = ask()
    assert len(set(first)) > 1
    assert ask() == first


def test_completion_logprobs(client):
    answer = client.completions.create(model="smol", prompt=PROMPT, logprobs=5, temperature=0, max_tokens=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens[0] == " Paris" and len(logprobs.token_logprobs) == 3
    assert abs(logprobs.token_logprobs[0] - -0.2606) < 0.15
    assert len(logprobs.top_logprobs[0]) == 5
    assert max(logprobs.top_logprobs[0].values()) == pytest.approx(logprobs.token_logprobs[0])
    assert "".join(logprobs.tokens) == answer.choices[0].text
    only = client.completions.create(model="smol", prompt=PROMPT, logprobs=0, temperature=0, max_tokens=3).choices[0].logprobs
    assert [list(top) for top in only.top_logprobs] == [[token] for token in only.tokens]


def test_a_sampled_token_is_listed_and_nothing_is_null(client):
    drawn = client.completions.create(model="smol", prompt=PROMPT, logprobs=2, temperature=2, seed=5, max_tokens=16,
                                      extra_body={"allowed_token_ids": [7042, 504]})
    logprobs = drawn.choices[0].logprobs
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert top[token] == value and all(isinstance(other, float) for other in top.values())


def test_logprobs_are_the_models_own_whatever_the_request_changes(client):
    def first(**fields):
        answer = client.completions.create(model="smol", prompt=PROMPT, logprobs=1, temperature=0, max_tokens=1, extra_body=fields)
        return answer.choices[0].logprobs
    plain = first()
    assert plain.tokens == [" Paris"]
    forbidden = first(logit_bias={"7042": -100})
    assert forbidden.tokens != plain.tokens
    assert forbidden.top_logprobs[0][" Paris"] == pytest.approx(plain.token_logprobs[0], abs=1e-4)
    assert forbidden.top_logprobs[0][forbidden.tokens[0]] == forbidden.token_logprobs[0] < plain.token_logprobs[0]


def test_chat_logprobs(client):
    answer = client.chat.completions.create(model="smol", messages=[{"role": "user", "content": "Hi"}], logprobs=True,
                                            top_logprobs=3, temperature=0, max_tokens=4)
    content = answer.choices[0].logprobs.content
    assert len(content) == 4
    for token in content:
        assert bytes(token.bytes).decode(errors="replace") == token.token
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)


def test_logit_bias_forces_and_forbids(client):
    forced = client.completions.create(model="smol", prompt=PROMPT, logit_bias={"7042": 100}, temperature=0,
                                       max_tokens=3)
    assert forced.choices[0].text == " Paris Paris Paris"
    forbidden = client.completions.create(model="smol", prompt=PROMPT, logit_bias={"7042": -100}, temperature=0,
                                          max_tokens=1)
    assert forbidden.choices[0].text != " Paris"


def test_several_prompts_and_token_prompts(client):
    answer = client.completions.create(model="smol", prompt=[PROMPT, "1 2 3 4 5 6 7"], temperature=0, max_tokens=4)
    assert [c.index for c in answer.choices] == [0, 1]
    ids = client.completions.create(model="smol", prompt=[504, 3575, 282, 4649, 314], temperature=0, max_tokens=4)
    assert ids.choices[0].text == answer.choices[0].text


def test_token_ids_are_returned_when_asked_for_whole_and_streamed(server, client):
    def ask(path, **fields):
        body = {"model": "smol", "temperature": 0, "max_tokens": 12, "return_token_ids": True} | fields
        with httpx.Client(base_url=server.base, timeout=60) as http:
            return http.post(path, json=body)

    def events(answer):
        return [json.loads(line[6:]) for line in answer.text.splitlines()
                if line.startswith("data: ") and "[DONE]" not in line]
    prompt = ask("/tokenize", prompt=PROMPT).json()["tokens"]
    whole = ask("/v1/completions", prompt=PROMPT).json()["choices"][0]
    assert whole["prompt_token_ids"] == prompt and len(whole["token_ids"]) == 12
    assert ask("/detokenize", tokens=whole["token_ids"]).json()["prompt"] == whole["text"]
    parts = [event["choices"][0] for event in events(ask("/v1/completions", prompt=PROMPT, stream=True))]
    assert sum((part["token_ids"] for part in parts), []) == whole["token_ids"]
    assert [part.get("prompt_token_ids") for part in parts] == [prompt] + [None] * (len(parts) - 1)

    messages = [{"role": "user", "content": "Say hello."}]
    prompt = ask("/tokenize", messages=messages).json()["tokens"]
    chat = ask("/v1/chat/completions", messages=messages).json()
    assert chat["prompt_token_ids"] == prompt and len(chat["choices"][0]["token_ids"]) > 1
    chunks = events(ask("/v1/chat/completions", messages=messages, stream=True))
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt] + [None] * (len(chunks) - 1)
    assert sum((chunk["choices"][0].get("token_ids", []) for chunk in chunks), []) == chat["choices"][0]["token_ids"]
    plain = ask("/v1/completions", prompt=PROMPT, return_token_ids=False).json()["choices"][0]
    assert "token_ids" not in plain and "prompt_token_ids" not in plain


def test_echo_gives_the_prompt_back(client):
    answer = client.completions.create(model="smol", prompt=PROMPT, echo=True, temperature=0, max_tokens=1)
    assert answer.choices[0].text == PROMPT + " Paris"


def test_tokenize_and_detokenize(server):
    status, text = server.post("/tokenize", {"model": "smol", "prompt": PROMPT})
    answer = json.loads(text)
    assert status == 200 and answer["tokens"] == [504, 3575, 282, 4649, 314] and answer["count"] == 5
    status, text = server.post("/detokenize", {"model": "smol", "tokens": answer["tokens"]})
    assert status == 200 and json.loads(text) == {"prompt": PROMPT}


@pytest.mark.parametrize("field, value", [
    ("temperature", -1), ("temperature", "hot"), ("temperature", 1e308), ("top_p", 0), ("top_p", 1.5), ("n", 0),
    ("n", 17), ("n", 2**31), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2**63), ("max_tokens", 1.5),
    ("logprobs", 21), ("stop", 5), ("stop", [""]), ("logit_bias", {"x": 1}), ("logit_bias", {"1": 101}),
    ("logit_bias", {"99999999": 1}), ("presence_penalty", 3), ("frequency_penalty", -3), ("seed", "a"),
    ("stream", "yes"), ("min_p", 2), ("top_k", -2), ("best_of", 3), ("suffix", "x"), ("prompt", 5),
    ("prompt", []), ("prompt", ""), ("prompt", [1 << 30]), ("response_format", {"type": "xml"}),
])
def test_numbers_out_of_range_are_400_and_name_the_field(server, field, value):
    status, text = server.post("/v1/completions", {"model": "smol", "prompt": PROMPT, "max_tokens": 2, field: value})
    error = json.loads(text)["error"]
    assert status == 400, text
    assert field in (error["param"] or "") + error["message"]
    assert error["type"] == "invalid_request_error"


def test_errors_reach_the_client_as_its_own_types(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="this model's maximum context length is 1024 tokens"):
        client.completions.create(model="smol", prompt="word " * 3000)
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="smol", messages=[])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{\"prompt\": \"a\", }", b"[" * 100, b"\xff\xfe", b"null"])
def test_malformed_json_is_400(server, body):
    status, text = server.post("/v1/completions", body)
    assert status == 400 and json.loads(text)["error"]["message"]


def test_wrong_routes_and_methods(server):
    assert server.get("/nowhere")[0] == 404
    assert server.get("/v1/completions")[0] == 405
    assert server.post("/metrics", {})[0] == 405
    for status, text in (server.get("/nowhere"), server.get("/v1/completions")):
        assert json.loads(text)["error"]["code"] == status


def test_health_metrics_and_graphs(server, client):
    client.completions.create(model="smol", prompt=PROMPT, **GREEDY)
    assert server.get("/live")[0] == 200 and server.get("/ready")[0] == 200 and server.get("/health")[0] == 200
    metrics = server.get("/metrics")[1]
    assert "refrain:generation_tokens_total" in metrics and "refrain:cudagraph_dispatch_total" in metrics
    for part in ("queue", "prefill", "decode", "inference"):  # each request has begun, run and ended
        assert re.search(rf"refrain:request_{part}_time_seconds_count{{.*}} [1-9]", metrics), part
    steps = re.search(r"refrain:steps_total{.*} (\d+)", metrics)[1]
    assert re.search(rf"refrain:iteration_tokens_total_count{{.*}} {steps}\n", metrics)
    assert re.search(r'refrain:cache_config_info{block_size="16",.*num_gpu_blocks="[1-9]\d*"', metrics)
    graphs = json.loads(server.get("/cudagraphs")[1])
    counts = [row["count"] for row in graphs["dispatch"]]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0
    assert any(row["mode"] == "FULL" for row in graphs["dispatch"])
    assert len(graphs["ranks"]) == 2 and graphs["ranks"][0]["manifest"]
    digests = [[entry["digest"] for entry in rank["manifest"]] for rank in graphs["ranks"]]
    assert digests[0] == digests[1]
    page = server.get("/cudagraphs", {"Accept": "text/html"})[1]
    assert page.startswith("<!doctype html>") and "Graphs that ran" in page


def test_64_streams_of_mixed_lengths_equal_their_solo_runs(client):
    words = "one two three four five six seven eight nine ten".split()

    def ask(i):
        prompt = "Count: " + " ".join(words[(i + j) % 10] for j in range(1 + i % 40))
        stream = client.completions.create(model="smol", prompt=prompt, stream=True, temperature=0.7 * (i % 2), seed=i,
                                           max_tokens=4 + i % 29)
        return "".join(chunk.choices[0].text for chunk in stream)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        crowd = list(pool.map(ask, range(64)))
    assert all(crowd)
    assert [ask(i) for i in range(64)] == crowd


def test_a_client_that_leaves_frees_its_request(server, client):
    def metric(name, label=""):
        return next(float(line.split()[-1]) for line in server.get("/metrics")[1].splitlines()
                    if line.startswith(name + "{") and label in line)

    def aborted():
        return metric("refrain:request_success_total", 'finished_reason="abort"')
    before = aborted()
    stream = client.completions.create(model="smol", prompt=PROMPT, stream=True, temperature=0, max_tokens=900,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_for(lambda: metric("refrain:num_requests_running") == 0, 30, "the cancelled request is gone")
    assert aborted() == before + 1


def test_priority_needs_its_policy(client):
    assert client.completions.create(model="smol", prompt=PROMPT, max_tokens=1, extra_body={"priority": 0}).choices
    with pytest.raises(openai.BadRequestError, match="--scheduling-policy priority"):
        client.completions.create(model="smol", prompt=PROMPT, max_tokens=1, extra_body={"priority": 1})


def test_requests_of_lower_priority_numbers_begin_first(start_server, tmp_path):
    server = start_server("--scheduling-policy", "priority", "--max-num-seqs", 1, "--max-model-len", 512,
                          "--trace-file", tmp_path / "trace.json", tp=1)
    client = server.client()
    first = client.completions.create(model="SmolLM2-135M-Instruct", prompt=PROMPT, max_tokens=400, stream=True,
                                      extra_body={"priority": -9, "ignore_eos": True})
    next(iter(first))

    def ask(priority, tokens):
        client.completions.create(model="SmolLM2-135M-Instruct", prompt=PROMPT, temperature=0, max_tokens=tokens,
                                  extra_body={"priority": priority, "ignore_eos": True})
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        asked = []
        with held(server.workers()[0]):  # so that the first one does not end meanwhile
            for number, priority in enumerate((5, 0, -5), start=1):
                asked.append(pool.submit(ask, priority, 4))
                wait_for(lambda: json.loads(server.get("/health")[1])["requests_waiting"] == number, 20, "all wait")
        first.close()  # it keeps the others waiting no longer than it must
        for each in asked:
            each.result()
    assert server.stop() == 0
    events = json.loads((tmp_path / "trace.json").read_text())
    begun = sorted((event["ts"], event["id"]) for event in events if event["ph"] == "b" and event["name"] == "prefill")
    assert [number for _, number in begun] == [1, 4, 3, 2]


def test_bad_words_never_come_with_or_without_a_space(client):
    def ask(words, **fields):
        return client.completions.create(model="smol", prompt=PROMPT, extra_body={"bad_words": words}, **(GREEDY | fields)).choices[0].text
    plain = ask([])
    assert plain.startswith(" Paris.")
    assert "Paris" not in ask(["Paris"])
    several = plain[1:plain.index("\n")] if "\n" in plain else plain[1:30]
    assert several in plain and several not in ask([several])  # several tokens: their beginning may still come
    assert ask([several])[:6] == " Paris"
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(
        model="smol", prompt=PROMPT, stream=True, extra_body={"bad_words": [several, "Paris"]}, **GREEDY))
    assert streamed == ask([several, "Paris"]) and "Paris" not in streamed


def test_bad_words_keep_to_the_allowed_tokens_and_min_tokens(client):
    def ask(**fields):
        return client.completions.create(model="smol", prompt=PROMPT, temperature=0, max_tokens=1, extra_body=fields)
    assert ask(allowed_token_ids=[7042, 504], bad_words=["Paris"]).choices[0].text == "The"
    assert "Paris" not in ask(min_tokens=1, bad_words=["Paris"]).choices[0].text
    with pytest.raises(openai.BadRequestError, match="bad_words leaves no token"):
        ask(allowed_token_ids=[7042], bad_words=["Paris"])
    for wrong in ("Paris", [1], [""], ["x"] * 257):
        with pytest.raises(openai.BadRequestError, match="bad_words"):
            ask(bad_words=wrong)
