"""The load scenarios of R-17 and R-18. Each gives figures; a broken promise that is no timing raises."""
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from asks import ask, body, percentile
from mock_server import MockServer

HERE = Path(__file__).resolve().parent


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


async def _open_streams(server, count, tokens):
    before = server.memory_kib()
    asks, begin = [], time.monotonic()
    for start in range(0, count, 200):
        asks += await asyncio.gather(*(ask(server.port, body(tokens, True, i), keep=i % 10 == 0)
                                       for i in range(start, min(start + 200, count))))
    statuses = await asyncio.gather(*(one.first for one in asks))
    seconds_to_open = time.monotonic() - begin
    open_now = sum(not one.end.done() for one in asks)
    memory = server.memory_kib() - before
    stay, leave = asks[::10], [one for i, one in enumerate(asks) if i % 10]
    for one in leave:
        one.transport.abort()
    whole = await asyncio.gather(*(one.end for one in stay))
    seconds_to_free = await asyncio.to_thread(server.wait_idle, 30)
    expect(statuses.count(200) == count, f"{count - statuses.count(200)} of {count} streams were not taken")
    expect(open_now == count, f"only {open_now} of {count} were open at once")
    expect(all(whole), f"{whole.count(False)} of {len(stay)} streams broke off")
    expect(all(one.completion_tokens() == tokens for one in stay), "a stream has too few or too many tokens")
    texts = {}  # by prompt, which repeat
    for i, one in enumerate(stay):
        expect(texts.setdefault(str(body(tokens, True, 10 * i)["prompt"]), one.text()) == one.text() != b"",
               "a stream's text is not that of another one with the same prompt")
    return {"streams_open_at_once": open_now, "kib_each": memory / count, "seconds_to_open": seconds_to_open,
            "read_to_the_end": len(stay), "hung_up": len(leave), "seconds_until_all_free": seconds_to_free}


def streams(build, count=10000, tokens=64, step_us=1_000_000):
    """Streams open at the same time; a tenth is read to its end, the others hang up."""
    with MockServer(build, "--max-num-seqs", count, "--max-num-batched-tokens", max(4096, 2 * count), "--max-queue", 0,
                    "--max-queue-wait", 0, step_us=step_us, blocks=count * 8 + 64) as server:
        asyncio.run(_open_streams(server, 16, 4))  # what is made once is made
        server.wait_idle(30)
        descriptors, threads = server.descriptors(), server.threads()
        figures = asyncio.run(_open_streams(server, count, tokens))
        time.sleep(0.5)
        expect(server.descriptors() <= descriptors, "descriptors were lost")
        expect(server.threads() == threads, "threads were left")
        return figures


def output(build, count=256, seconds=5, step_us=2500, chat=0):
    """What a token costs on its way from the worker to its stream: CPU by thread, and the period of a step."""
    tokens = int(3e6 * (seconds + 10) / max(step_us, 500))
    with MockServer(build, "--max-num-seqs", count, "--max-num-batched-tokens", max(4096, 2 * count), "--max-queue", 0,
                    "--max-queue-wait", 0, "--max-model-len", 32768, step_us=step_us,
                    blocks=min(count * (tokens // 16 + 4), 1 << 22), max_positions=32768) as server:
        client = subprocess.Popen([str(Path(build) / "tests/stream_load"), "--port", str(server.port), "--streams",
                                   str(count), "--tokens", str(min(tokens, 32000)), "--seconds", str(seconds + 0.5),
                                   "--path", "/v1/chat/completions" if chat else "/v1/completions"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            expect(client.stdout.readline() == "open\n", "the streams did not begin")
            before, steps, begin = server.thread_seconds(), server.metric("refrain:steps_total"), time.monotonic()
            made = server.metric("refrain:generation_tokens_total")
            time.sleep(seconds)
            after, took = server.thread_seconds(), time.monotonic() - begin
            steps = server.metric("refrain:steps_total") - steps
            made = server.metric("refrain:generation_tokens_total") - made
            seen = json.loads(client.communicate(timeout=60)[0])
        finally:
            client.kill()
            client.wait()
        step_cpu = server.metric("refrain:coordinator_us_per_step")
    by_name = {}
    for key, value in after.items():
        by_name.setdefault(key[0], []).append(value - before.get(key, 0))
    threads = {f"us_a_token_{name}": round(sum(spent) * 1e6 / made, 3) for name, spent in by_name.items()
               if sum(spent) * 1e6 / made >= 0.01}
    return {"streams": count, "worker_step_ms": step_us / 1000, "step_period_ms": took * 1000 / steps,
            "tokens_per_second": made / took, "events_per_second": seen["events"] / seen["seconds"],
            "gap_p50_ms": seen["gap_p50_ms"], "gap_p99_ms": seen["gap_p99_ms"],
            "events_a_read": seen["events"] / max(seen["reads"], 1), "engine_us_a_step": step_cpu,
            "us_a_token_in_all": sum(map(sum, by_name.values())) * 1e6 / made} | threads


async def _saturate(server, seconds, clients, request):
    """Closed loop: what the server can do. Answers a second."""
    done = 0
    end = time.monotonic() + seconds

    async def client(i):
        nonlocal done
        while time.monotonic() < end:
            one = await ask(server.port, request(i))
            if await one.end and one.end_at <= end:
                done += 1
    await asyncio.gather(*(client(i) for i in range(clients)))
    return done / seconds


async def _overload(server, seconds, rate, request):
    """Open loop at a rate; every request is answered or refused."""
    asks, tasks, begin = [], [], time.monotonic()

    async def one(i):
        made = await ask(server.port, request(i))
        asks.append(made)
        await made.end
    while (now := time.monotonic()) < begin + seconds:
        while len(tasks) < (now - begin) * rate:
            tasks.append(asyncio.create_task(one(len(tasks))))
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    return asks, begin


def overload(build, seconds=60, factor=3, max_wait=1.0, step_us=20_000, slots=32, tokens=20):
    """Goodput at a multiple of saturation against the goodput at saturation."""
    def request(i):
        return body(tokens, False, i)
    with MockServer(build, "--max-num-seqs", slots, "--max-queue-wait", max_wait, step_us=step_us) as server:
        asyncio.run(_saturate(server, min(seconds, 5), slots, request))  # warm
        peak = max(asyncio.run(_saturate(server, seconds / 3, clients, request)) for clients in (slots, slots + 8))
        server.wait_idle(30)
        asks, begin = asyncio.run(_overload(server, seconds, factor * peak, request))
        server.wait_idle(30)
        good = [a for a in asks if a.end.result()]
        refused = [a for a in asks if a.status in (429, 503)]
        expect(len(good) + len(refused) == len(asks), f"{len(asks) - len(good) - len(refused)} requests got neither "
               f"an answer nor a refusal: {[(a.status, a.received[-200:]) for a in asks if a not in good][:3]}")
        expect(all(a.retry_after for a in refused), "a refusal has no Retry-After")
        # Goodput while the load lasts: the queue fills at its begin and runs empty after its end.
        ramp = min(2 * max_wait, seconds / 4)
        goodput = sum(begin + ramp <= a.end_at <= begin + seconds for a in good) / (seconds - ramp)
        refusal = [(a.end_at - a.begin) * 1000 for a in refused]
        # The wait for the first token is not seen in a whole answer: its time less what it takes alone.
        alone = tokens * step_us / 1e6
        waits = [a.end_at - a.begin - alone for a in good]
        return {"seconds": seconds, "factor": factor, "peak_per_second": peak, "goodput_per_second": goodput,
                "share_of_peak": goodput / peak, "offered": len(asks), "answered": len(good), "refused": len(refused),
                "late": int(server.metric("refrain:requests_late_total")), "refusal_p50_ms": percentile(refusal, 0.5),
                "refusal_p99_ms": percentile(refusal, 0.99), "wait_p99_s": percentile(waits, 0.99),
                "max_queue_wait_s": max_wait}


async def _users(server, seconds, users, tokens):
    """Milliseconds that answers take for users who ask one request after the other."""
    times = []
    end = time.monotonic() + seconds

    async def user(i):
        while time.monotonic() < end:
            one = await ask(server.port, body(tokens, False, i))
            expect(await one.end, f"a user's request failed: {one.status} {one.received[-200:]}")
            times.append((one.end_at - one.begin) * 1000)
    await asyncio.gather(*(user(i) for i in range(users)))
    return times


async def drip(port, count):
    """The attack: connections that send a header byte by byte and come again when they are cut."""
    opened = 0

    async def socket(i):
        nonlocal opened
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                opened += 1
                writer.write(b"POST /v1/completions HTTP/1.1\r\nX-Slow: ")
                for _ in range(60):
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(2 + (i % 100) / 100)
                    if reader.at_eof():
                        break
                writer.close()
            except OSError:
                await asyncio.sleep(0.5)
    tasks = [asyncio.create_task(socket(i)) for i in range(count)]
    while opened < count:
        await asyncio.sleep(0.05)
    print("open", flush=True)
    await asyncio.gather(*tasks)


@contextlib.contextmanager
def _attack(server, sockets):
    """Slow sockets from a process of their own."""
    attack = subprocess.Popen([sys.executable, str(HERE / "scenarios.py"), str(server.port), str(sockets)],
                              stdout=subprocess.PIPE, text=True)
    try:
        expect(attack.stdout.readline() == "open\n", "the attack did not begin")
        yield
    finally:
        attack.kill()
        attack.wait()
        attack.stdout.close()


def slowloris(build, sockets=5000, seconds=10, rounds=7, users=8, step_us=5_000):
    """p99 of users with and without slow sockets, in turn: other load falls on both. Medians of the rounds."""
    quiet, attacked = [], []
    with MockServer(build, "--max-num-seqs", 64, step_us=step_us) as server:
        asyncio.run(_users(server, min(seconds, 5), users, 16))  # warm
        with _attack(server, sockets):
            held, before = server.descriptors(), server.cpu_seconds()
            time.sleep(seconds)
            cpu = (server.cpu_seconds() - before) / seconds
        for _ in range(rounds):
            quiet.append(asyncio.run(_users(server, seconds, users, 16)))
            with _attack(server, sockets):
                attacked.append(asyncio.run(_users(server, seconds, users, 16)))
        server.wait_idle(30)

    def middle(rounds_of_times, share):
        return statistics.median(percentile(times, share) for times in rounds_of_times)
    p99, p99_attacked = middle(quiet, 0.99), middle(attacked, 0.99)
    return {"sockets": sockets, "descriptors_held": held, "rounds": rounds, "answers_quiet": sum(map(len, quiet)),
            "answers_attacked": sum(map(len, attacked)), "p50_ms": middle(quiet, 0.5),
            "p50_attacked_ms": middle(attacked, 0.5), "p99_ms": p99, "p99_attacked_ms": p99_attacked,
            "p99_change": p99_attacked / p99 - 1, "cores_for_the_slow_sockets_alone": cpu,
            "p99_each_ms": [round(percentile(x, 0.99), 1) for x in quiet],
            "p99_attacked_each_ms": [round(percentile(x, 0.99), 1) for x in attacked]}


def ledger(build, requests=1_000_000, seed=1):
    """Requests of random lengths, a tenth cancelled, through engine and wire; every one ends once."""
    done = subprocess.run([str(Path(build) / "tests/ledger_load"), "--requests", str(requests), "--seed", str(seed)],
                          cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True, check=False)
    expect(done.stdout.startswith("{"), f"ledger_load ended with {done.returncode}")
    figures = json.loads(done.stdout)
    expect(figures["clean"] and done.returncode == 0, f"the ledger is not clean: {figures}")
    return figures


if __name__ == "__main__":
    asyncio.run(drip(int(sys.argv[1]), int(sys.argv[2])))
