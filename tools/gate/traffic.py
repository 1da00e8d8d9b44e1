"""Requests of mixed lengths from a seed, sent to a server as they arrive, and what came back."""
import asyncio
import json
import math
import random
import re
import time
from dataclasses import dataclass, field

from drills.client import Broken, read_body, read_chunks, read_head, request_bytes


PATIENCE = 120   # seconds for an answer


@dataclass(frozen=True)
class Traffic:
    """Lengths are lognormal; a third of the prompts begin with one of a few shared prefixes, or all with one."""
    requests: int = 24
    rate: float = 40.0           # a second, Poisson; 0: all at once
    prompt_mean: float = 60
    prompt_most: int = 200
    output_mean: float = 24
    output_most: int = 64
    shared: tuple = (48, 100)    # lengths of the shared prefixes
    prefix_of_all: int = 0       # tokens that every prompt begins with, beyond its own: then steps read it once (CG-13)
    seed: int = 7


@dataclass
class Answer:
    prompt: list
    max_tokens: int
    model: str = ""              # an adapter's name
    status: int = 0
    error: str = ""
    text: list = field(default_factory=list)
    token_ids: list = field(default_factory=list)    # as the server tells them, where it does
    logprobs: list = field(default_factory=list)     # of its own tokens, where asked for
    usage: int = 0
    finish: str = ""
    begun: float = 0.0
    times: list = field(default_factory=list)        # of each event with output


def lognormal(rng, mean, sigma, least, most):
    return max(least, min(most, int(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))


def make_bodies(traffic, vocab, adapters=()):
    rng = random.Random(traffic.seed)

    def ids(count):
        return [rng.randrange(3, vocab) for _ in range(count)]
    prefixes = [ids(length) for length in traffic.shared]
    of_all = ids(traffic.prefix_of_all)
    bodies = []
    for i in range(traffic.requests):
        prompt = ids(lognormal(rng, traffic.prompt_mean, 1.0, 1, traffic.prompt_most))
        if prefixes and i % 3 == 2:
            prompt = (rng.choice(prefixes) + prompt)[:traffic.prompt_most]
        body = {"prompt": of_all + prompt, "max_tokens": lognormal(rng, traffic.output_mean, 0.8, 4, traffic.output_most),
                "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True,
                "stream_options": {"include_usage": True}}
        if adapter := ("", *adapters)[i % (1 + len(adapters))]:
            body["model"] = adapter
        bodies.append(body | ({"logprobs": 0} if i % 2 else {}))
    return bodies


def on_event(answer, data):
    event = json.loads(data)
    if "error" in event:
        answer.error = json.dumps(event["error"])
        return
    if event.get("usage"):
        answer.usage = event["usage"]["completion_tokens"]
    for choice in event["choices"]:
        if choice.get("text"):
            answer.text.append(choice["text"])
            answer.times.append(time.monotonic())
        answer.token_ids += choice.get("token_ids") or []
        answer.logprobs += (choice.get("logprobs") or {}).get("token_logprobs", [])
        answer.finish = choice.get("finish_reason") or answer.finish


async def read_answer(reader, answer):
    answer.status, headers = await read_head(reader)
    if answer.status != 200:
        answer.error = (await read_body(reader, headers)).decode(errors="replace")[:300]
        return
    buffer = b""
    async for chunk in read_chunks(reader):
        *events, buffer = (buffer + chunk).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                on_event(answer, event[6:])


async def ask(port, body):
    """One streamed completion to its end; what went wrong stands in the answer."""
    answer = Answer(body["prompt"], body["max_tokens"], body.get("model", ""), begun=time.monotonic())
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    except OSError as error:
        answer.error = str(error)
        return answer
    try:
        writer.write(request_bytes("POST", "/v1/completions", body))
        async with asyncio.timeout(PATIENCE):
            await read_answer(reader, answer)
    except (Broken, OSError, ValueError) as error:
        answer.error = answer.error or f"{type(error).__name__}: {error}"
    finally:
        writer.close()
    return answer


async def send_alone(port, bodies):
    return [await ask(port, body) for body in bodies]


async def send_as_they_arrive(port, bodies, rate, seed):
    rng, tasks = random.Random(seed), []
    for body in bodies:
        if rate:
            await asyncio.sleep(rng.expovariate(rate))
        tasks.append(asyncio.create_task(ask(port, body)))
    return await asyncio.gather(*tasks)


def output_ids(answer):
    """The token ids of an answer whose token N has the text " tN"; ValueError says what is wrong with it."""
    if answer.error or answer.status != 200:
        raise ValueError(f"status {answer.status}: {answer.error}")
    text = "".join(answer.text)
    if not re.fullmatch(r"( ?t\d+)*", text):
        raise ValueError(f"this is not the text of tokens: {text[:80]!r}")
    ids = [int(number) for number in re.findall(r"t(\d+)", text)]
    if (len(ids), answer.usage, answer.finish) != (answer.max_tokens, answer.max_tokens, "length"):
        raise ValueError(f"{len(ids)} tokens, usage {answer.usage}, finish {answer.finish!r}; {answer.max_tokens} were wanted")
    if answer.token_ids and answer.token_ids != ids:
        raise ValueError(f"token_ids and text are of different tokens: {answer.token_ids[:8]}, {ids[:8]}")
    return ids
