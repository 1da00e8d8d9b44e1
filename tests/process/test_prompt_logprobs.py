"""prompt_logprobs and echo with logprobs, by the official client, over two ranks and prompts in chunks."""
import collections
import json
import math

import openai
import pytest
from conftest import Server

PROMPT = "The capital of France is"
CHUNK = 16
OPTIONS = ["--max-num-seqs", 8, "--max-model-len", 512, "--max-num-batched-tokens", CHUNK, "--served-model-name", "smol",
           "--max-logprobs", 12]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("prompt_logprobs") / "serve.log", *OPTIONS).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def complete(client, prompt, **fields):
    extra = {name: fields.pop(name) for name in ("prompt_logprobs", "return_token_ids", "ignore_eos", "cache_salt")
             if name in fields}
    return client.completions.create(model="smol", prompt=prompt, extra_body=extra, **{"temperature": 0, "max_tokens": 1} | fields)


@pytest.fixture(scope="module")
def forced(client):
    """Token ids of a prompt of several chunks, and the log-probabilities that its last ones had when they were made."""
    made = complete(client, PROMPT, max_tokens=60, logprobs=3, return_token_ids=True, ignore_eos=True).choices[0]
    return made.prompt_token_ids, made.token_ids, made


def test_a_prompts_tokens_are_as_likely_as_when_they_were_made(client, forced):
    begin, made, answer = forced
    for attempt in ("computed", "again, where all blocks are cached"):
        choice = complete(client, begin + made, prompt_logprobs=3).choices[0]
        told = choice.prompt_logprobs
        assert len(told) == len(begin + made) and told[0] is None, attempt
        logprobs = answer.logprobs
        for token, value, top, entry in zip(made, logprobs.token_logprobs, logprobs.top_logprobs, told[len(begin):]):
            own = entry[str(token)]
            assert own["logprob"] == value and own["rank"] == 1, attempt  # greedy; to the bit on the host device
            assert len(entry) == 3 and sorted(other["rank"] for other in entry.values()) == [1, 2, 3]
            assert {other["decoded_token"]: other["logprob"] for other in entry.values()} == top
    assert told[1][str(begin[1])]["decoded_token"] == " capital"


def test_an_unlikely_token_is_told_with_its_rank_beside_the_likeliest(client):
    told = complete(client, PROMPT + " banana", prompt_logprobs=2).choices[0].prompt_logprobs[-1]
    ranks = sorted(entry["rank"] for entry in told.values())
    assert len(told) == 3 and ranks[:2] == [1, 2] and ranks[2] > 100
    assert min(told.values(), key=lambda entry: entry["rank"])["decoded_token"] == " Paris"
    alone = complete(client, PROMPT + " banana", prompt_logprobs=0).choices[0].prompt_logprobs[-1]
    assert [entry["rank"] for entry in alone.values()] == [ranks[2]]


def test_an_echo_with_logprobs_begins_with_the_prompts(client, forced):
    begin, made, answer = forced
    plain = complete(client, PROMPT, max_tokens=3, logprobs=2).choices[0]
    echo = complete(client, PROMPT, max_tokens=3, logprobs=2, echo=True).choices[0]
    told = echo.logprobs
    assert echo.text == PROMPT + plain.text and "".join(told.tokens) == echo.text
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    assert told.token_logprobs[5:] == plain.logprobs.token_logprobs
    assert told.top_logprobs[5:] == plain.logprobs.top_logprobs
    assert all(value <= 0 for value in told.token_logprobs[1:])
    assert [echo.text[offset:][:len(token)] for token, offset in zip(told.tokens, told.text_offset)] == told.tokens
    alone = complete(client, begin + made, max_tokens=0, logprobs=1, echo=True)
    assert alone.choices[0].logprobs.token_logprobs[5:] == answer.logprobs.token_logprobs
    assert alone.usage.completion_tokens == 0 and alone.choices[0].finish_reason == "length"


def test_a_streamed_echo_tells_the_same(client):
    whole = complete(client, PROMPT, max_tokens=4, logprobs=1, echo=True).choices[0]
    parts = [chunk.choices[0] for chunk in complete(client, PROMPT, max_tokens=4, logprobs=1, echo=True, stream=True)]
    assert "".join(part.text for part in parts) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert sum((getattr(part.logprobs, name) for part in parts), []) == getattr(whole.logprobs, name), name


def test_several_prompts_and_choices_have_their_own(client):
    answer = complete(client, [PROMPT, "Once upon a time"], n=2, prompt_logprobs=1, echo=True)
    texts = [[next(iter(entry.values()))["logprob"] for entry in choice.prompt_logprobs[1:]] for choice in answer.choices]
    assert len(answer.choices) == 4 and texts[0] == texts[1] and texts[2] == texts[3] and texts[0] != texts[2]


def test_chats_tell_them_beside_the_choices(client):
    answer = client.chat.completions.create(model="smol", messages=[{"role": "user", "content": "Hi"}], max_tokens=2,
                                            extra_body={"prompt_logprobs": 0, "return_token_ids": True})
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens == len(answer.prompt_token_ids)
    assert [list(entry) for entry in answer.prompt_logprobs[1:]] == [[str(token)] for token in answer.prompt_token_ids[1:]]
    assert all(math.isfinite(entry[token]["logprob"]) for entry in answer.prompt_logprobs[1:] for token in entry)


def test_requests_beside_one_that_is_scored_get_the_same_answers(client, forced):
    begin, made, answer = forced
    stream = complete(client, PROMPT, max_tokens=60, stream=True, ignore_eos=True)
    text = next(stream).choices[0].text
    complete(client, begin + made, prompt_logprobs=0)
    text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == answer.text


@pytest.mark.parametrize("fields, words", [
    ({"prompt_logprobs": 13}, "Requested prompt logprobs of 13, which is greater than max allowed: 12"),
    ({"logprobs": 13}, "Requested sample logprobs of 13, which is greater than max allowed: 12"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs is not available when stream is true"),
    ({"prompt_logprobs": -1}, "prompt_logprobs must be a whole number from 0"),
    ({"max_tokens": 0}, "max_tokens must be a whole number from 1"),
])
def test_what_cannot_be_told_is_refused(client, fields, words):
    with pytest.raises(openai.BadRequestError, match=words):
        complete(client, PROMPT, **fields)


def test_what_is_told_of_all_prompts_has_an_end_R24(client):
    with pytest.raises(openai.BadRequestError, match="1092000 log-probabilities are asked for of prompts of 84000 tokens; a request is told at most 1048576"):
        complete(client, [[20] * 7000] * 12, prompt_logprobs=12)
    with pytest.raises(openai.BadRequestError, match="1092000 log-probabilities .* of 21000 tokens in each of 4 choices"):
        complete(client, [[20] * 7000] * 3, prompt_logprobs=12, n=4)


def test_steps_that_score_run_without_graphs_and_others_with_them(server, client):
    def steps():
        counts = collections.Counter()
        for entry in json.loads(server.get("/cudagraphs")[1])["dispatch"]:
            counts[entry["mode"]] += entry["count"]
        return counts
    before = steps()
    complete(client, [7, 8, 9] * 4, prompt_logprobs=0)
    scored = steps()
    complete(client, [9, 8, 7] * 4)
    after = steps()
    assert scored["NONE"] == before["NONE"] + 1 and after["NONE"] == scored["NONE"]
    assert sum(after.values()) == sum(scored.values()) + 1
