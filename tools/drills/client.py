"""A small asynchronous HTTP client that writes down everything about a streamed completion."""
import asyncio
import json
import time

from drills.ledger import Record


class Broken(Exception):
    """The connection ended in the middle of an answer, or the answer is no HTTP."""


async def read_head(reader):
    """(status, headers); names in lower case."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Broken("no answer") from error
    try:
        status = int(head[0].split()[1])
    except (IndexError, ValueError) as error:
        raise Broken(f"no status line: {head[0][:80]!r}") from error
    fields = (line.split(":", 1) for line in head[1:] if ":" in line)
    return status, {name.strip().lower(): value.strip() for name, value in fields}


async def read_chunks(reader):
    """Bodies of a chunked answer as they come."""
    try:
        while True:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            data = await reader.readexactly(size + 2)
            if size == 0:
                return
            yield data[:-2]
    except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
        raise Broken("cut in the middle of the answer") from error


async def read_body(reader, headers):
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return b"".join([chunk async for chunk in read_chunks(reader)])
    try:
        return await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Broken("cut in the middle of the answer") from error


def request_bytes(method, path, body=None, close=True):
    data = b"" if body is None else json.dumps(body).encode()
    return (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: {'close' if close else 'keep-alive'}\r\n\r\n").encode() + data


class Client:
    def __init__(self, port):
        self.port = port

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)

    async def fetch(self, path, body=None, timeout=10.0):
        """(status, text) of a request of its own; OSError or Broken when there is no answer."""
        async with asyncio.timeout(timeout):
            reader, writer = await self.connect()
            try:
                writer.write(request_bytes("GET" if body is None else "POST", path, body))
                status, headers = await read_head(reader)
                return status, (await read_body(reader, headers)).decode()
            finally:
                writer.close()

    async def stream(self, record, body, on_piece=None):
        """Streams one completion into `record`, which is as far as it came also when this is cancelled."""
        record.begun = time.monotonic()
        writer = None
        try:
            reader, writer = await self.connect()
            writer.write(request_bytes("POST", "/v1/completions", body))
            record.status, headers = await read_head(reader)
            if record.status != 200:
                record.end = "error"
                record.errors.append(read_json(record, await read_body(reader, headers)))
            else:
                await self.read_stream(record, reader, on_piece)
        except Broken:
            record.end = "cut" if record.status else "refused"
        except OSError:
            record.end = "cut" if record.status else "refused"
        except asyncio.CancelledError:
            if record.end == "open":
                record.end = "left"
        finally:
            record.ended = time.monotonic()
            if writer is not None:
                writer.close()
        return record

    async def read_stream(self, record, reader, on_piece):
        buffer = b""
        async for chunk in read_chunks(reader):
            buffer += chunk
            while b"\n\n" in buffer:
                event, buffer = buffer.split(b"\n\n", 1)
                if on_event(record, event) and on_piece is not None:
                    on_piece(record)
        if buffer.strip():
            record.broken.append(f"half an event: {buffer[:60]!r}")
        if record.errors:
            record.end = "error"
        elif record.dones:
            record.end = "complete"
        else:
            raise Broken("ended without [DONE]")


def read_json(record, data):
    try:
        return json.loads(data)
    except ValueError:
        record.broken.append(f"no JSON: {data[:60]!r}")
        return None


def on_event(record, event):
    """One server-sent event into the record; true when it has output. A comment keeps a waiting stream alive."""
    if event.startswith(b":"):
        return False
    if not event.startswith(b"data: "):
        record.broken.append(f"no event: {event[:60]!r}")
        return False
    data = event[6:].strip()
    if record.dones:
        record.after_end += 1
        return False
    if data == b"[DONE]":
        record.dones += 1
        return False
    body = read_json(record, data)
    if body is None:
        return False
    if "error" in body:
        record.errors.append(body)
        return False
    record.ids.add(body.get("id"))
    if body.get("usage"):
        record.usage = body["usage"]["completion_tokens"]
    had_output = False
    for choice in body.get("choices", []):
        logprobs = choice.get("logprobs")
        here = sum(len(text) for _, text in record.pieces)
        if logprobs:
            record.tokens += len(logprobs["tokens"])
            if logprobs["text_offset"]:
                record.offsets.append((logprobs["text_offset"][0], here))
        if choice.get("text"):
            record.pieces.append((time.monotonic(), choice["text"]))
            had_output = True
        if choice.get("finish_reason"):
            record.finishes.append(choice["finish_reason"])
    return had_output


def new_record(request):
    return Record(name=request.name, marker=request.marker, words=request.words)
