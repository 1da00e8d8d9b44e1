"""The drills' client: what it writes down of good, broken and ended streams. The other side is a scripted socket."""
import asyncio
import json

import pytest
from drills.client import Client
from drills.ledger import Record

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(body):
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"


def piece(text, offset=None, finish=None):
    logprobs = None if offset is None else {"tokens": [text], "text_offset": [offset]}
    return event({"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}]})


USAGE = event({"id": "cmpl-1", "choices": [], "usage": {"completion_tokens": 2}})
DONE = event(b"[DONE]")


def stream(answer):
    """The record of a stream answered with these bytes."""
    async def run():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            return await Client(server.sockets[0].getsockname()[1]).stream(Record("a"), {"prompt": "x"})
        finally:
            server.close()
    return asyncio.run(run())


def test_a_whole_stream_even_when_events_are_spread_over_chunks():
    data = piece(" cat", 0) + piece(" dog", 4, "length") + USAGE + DONE
    for size in (len(data), 7):
        answer = HEAD + b"".join(chunk(data[i:i + size]) for i in range(0, len(data), size)) + chunk(b"")
        record = stream(answer)
        assert (record.end, record.text, record.tokens, record.usage) == ("complete", " cat dog", 2, 2)
        assert (record.finishes, record.dones, record.ids, record.broken) == (["length"], 1, {"cmpl-1"}, [])
        assert record.offsets == [(0, 0), (4, 4)]


def test_comments_keep_a_waiting_stream_alive_and_are_no_part_of_it():
    record = stream(HEAD + chunk(b": keep-alive\n\n" + piece(" cat", 0)) + chunk(b": keep-alive\n\n" + DONE) + chunk(b""))
    assert (record.end, record.text, record.broken, record.after_end) == ("complete", " cat", [], 0)


def test_a_gap_shows_in_the_offsets():
    record = stream(HEAD + chunk(piece(" cat", 0) + piece(" dog", 9)) + chunk(DONE) + chunk(b""))
    assert record.offsets == [(0, 0), (9, 4)]


@pytest.mark.parametrize("answer, end", [
    (HEAD + chunk(piece(" cat")), "cut"),                       # the connection ends in the middle
    (HEAD + chunk(piece(" cat")) + chunk(b""), "cut"),          # a proper end of HTTP, but no [DONE]
    (b"", "refused"),
    (HEAD + chunk(event({"error": {"message": "lost"}}) + DONE) + chunk(b""), "error"),
    (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 30\r\n\r\n" + b'{"error": {"message": "lost"}}', "error")])
def test_ends_that_are_not_complete(answer, end):
    record = stream(answer)
    assert record.end == end
    assert bool(record.errors) == (end == "error")


def test_what_comes_after_the_end_is_counted():
    record = stream(HEAD + chunk(piece(" cat", finish="length") + DONE + piece(" dog") + DONE) + chunk(b""))
    assert (record.text, record.dones, record.after_end) == (" cat", 1, 2)


def test_what_is_no_event_is_written_down():
    assert stream(HEAD + chunk(b"data: {broken\n\n" + DONE) + chunk(b"")).broken
    assert stream(HEAD + chunk(b"hello\n\n" + DONE) + chunk(b"")).broken
