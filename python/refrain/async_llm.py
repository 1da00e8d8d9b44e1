"""Answers as they come, for asyncio."""
import asyncio
import threading
import weakref

from refrain._engine import EngineError
from refrain.lora import Adapters, LoRARequest
from refrain.requests import Request, chat_fields, prompt_fields, start_engine
from refrain.sampling_params import RequestOutputKind, SamplingParams


class _Streams:
    """Who waits for which of the engine's answers. The poll thread hands out, event loops take."""

    def __init__(self, engine):
        self.engine = engine
        self.lock = threading.Lock()
        self.takers = {}  # the engine's id: (loop, queue)
        self.error = None

    def open(self, make_request, loop, queue):
        with self.lock:  # no piece is handed out before its taker is known
            if self.error is not None:
                raise self.error
            request = make_request()
            for engine_id in request.answers:
                self.takers[engine_id] = (loop, queue)
        return request

    def close(self, ids):
        with self.lock:
            for engine_id in ids:
                self.takers.pop(engine_id, None)

    def run(self):
        try:
            while True:
                pieces = self.engine.poll(1.0)
                with self.lock:
                    for piece in pieces:
                        self.hand(self.takers.get(piece.id), piece)
        except EngineError as error:
            with self.lock:
                self.error = error
                for taker in self.takers.values():
                    self.hand(taker, error)

    @staticmethod
    def hand(taker, what):
        if taker is None:
            return
        loop, queue = taker
        try:
            loop.call_soon_threadsafe(queue.put_nowait, what)
        except RuntimeError:  # its loop was closed: nobody waits
            pass


class AsyncLLM:
    """A model on worker processes of its own; options as for LLM. Any number of generate() run at once."""

    def __init__(self, model: str, **options):
        self._engine = start_engine({"model": model, **options})
        self._adapters = Adapters(self._engine)
        self._streams = _Streams(self._engine)
        self._requests = {}  # request_id: running request
        self._count = 0
        threading.Thread(target=self._streams.run, daemon=True, name="refrain-poll").start()
        self._finalizer = weakref.finalize(self, self._engine.stop)

    async def generate(self, prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None, *,
                       lora_request: LoRARequest | None = None, priority: int = 0):
        """Yields RequestOutputs until one is finished. Leaving the loop, or cancelling the task, ends the request."""
        async for output in self._stream(prompt_fields(prompt), sampling_params, request_id, lora_request, priority):
            yield output

    async def chat(self, messages, sampling_params: SamplingParams | None = None, request_id: str | None = None, *,
                   lora_request: LoRARequest | None = None, priority: int = 0, **template):
        """The same for a conversation; `template` as for LLM.chat."""
        async for output in self._stream(chat_fields(messages, **template), sampling_params, request_id, lora_request,
                                         priority):
            yield output

    async def abort(self, request_id: str):
        """Ends a request early: its last output has the finish_reason abort. One that has ended is ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            request.cancel()

    async def remove_lora(self, lora_int_id: int) -> bool:
        """Takes an adapter out, when its last request has ended, and makes room for another."""
        return await asyncio.get_running_loop().run_in_executor(None, self._adapters.remove, lora_int_id)

    def shutdown(self):
        """Ends the workers; what still runs gets an EngineError."""
        self._finalizer()

    def _open(self, request_id, fields, sampling, lora, priority, *taker):
        if lora is not None:
            self._adapters.load(lora)
        return self._streams.open(lambda: Request(self._engine, request_id, fields, sampling, lora, priority), *taker)

    async def _stream(self, fields, sampling, request_id, lora, priority):
        if request_id is None:
            request_id = f"generate-{self._count}"
            self._count += 1
        if request_id in self._requests:
            raise ValueError(f"a request with the id {request_id} is running")
        loop, queue = asyncio.get_running_loop(), asyncio.Queue()
        kind = sampling.output_kind if sampling else RequestOutputKind.CUMULATIVE
        self._requests[request_id] = None
        request = None
        try:
            # Tokenizing takes a while for a long prompt, and so does loading an adapter: not on the loop.
            opened = loop.run_in_executor(None, self._open, request_id, fields, sampling, lora, priority, loop, queue)
            try:
                request = await asyncio.shield(opened)
            except asyncio.CancelledError:
                request = await opened
                raise
            ids = list(request.answers)
            self._requests[request_id] = request
            while not request.output.finished:
                take(request, await queue.get())
                while not queue.empty():
                    take(request, queue.get_nowait())
                if request.output.finished or kind is not RequestOutputKind.FINAL_ONLY:
                    yield request.output.copy()
                if kind is RequestOutputKind.DELTA:
                    request.output.clear()
        finally:
            del self._requests[request_id]
            if request is not None:
                request.cancel()
                self._streams.close(ids)


def take(request, what):
    if isinstance(what, EngineError):
        raise what
    request.take(what)
