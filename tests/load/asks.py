"""HTTP requests by the thousand: one connection each, as little work as can be for each byte."""
import asyncio
import json
import re
import time


class Ask(asyncio.Protocol):
    """One completion; `first` and `end` are futures, `status` and `received` what came."""

    def __init__(self, body, keep):
        data = json.dumps(body).encode()
        self.request = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data)) + data
        loop = asyncio.get_running_loop()
        self.first, self.end = loop.create_future(), loop.create_future()
        self.keep, self.status, self.retry_after, self.received = keep, 0, None, b""
        self.begin = self.first_at = self.end_at = 0.0

    def connection_made(self, transport):
        self.transport = transport
        self.begin = time.monotonic()
        transport.write(self.request)

    def data_received(self, data):
        if not self.status:
            self.first_at = time.monotonic()
            self.status = int(data[9:12])
            for line in data.split(b"\r\n\r\n", 1)[0].split(b"\r\n"):
                if line.lower().startswith(b"retry-after:"):
                    self.retry_after = int(line.split(b":")[1])
            self.first.set_result(self.status)
        self.received += data
        if not self.keep:
            self.received = self.received[-2048:]

    def connection_lost(self, error):
        self.end_at = time.monotonic()
        if not self.first.done():
            self.first.set_result(0)
        self.end.set_result(self.whole())

    def whole(self):
        """A good answer to its end."""
        return self.status == 200 and (b"[DONE]" in self.received[-2048:] or b'"usage"' in self.received[-2048:])

    def completion_tokens(self):
        found = re.findall(rb'"completion_tokens":(\d+)', self.received)
        return int(found[-1]) if found else 0

    def text(self):
        return b"".join(re.findall(rb'"text":"((?:[^"\\]|\\.)*)"', self.received))


def body(tokens, stream=False, seed=0, prompt_tokens=8):
    prompt = [1 + (seed * 7 + i * 13) % 400 for i in range(prompt_tokens)]
    request = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": stream}
    return request | {"stream_options": {"include_usage": True}} if stream else request


async def ask(port, request, keep=False):
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(lambda: Ask(request, keep), "127.0.0.1", port)
    return protocol


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
