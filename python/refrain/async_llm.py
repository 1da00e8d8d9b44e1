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
        self.takers = {}  # the engine's id, until its last piece: who takes
        self.early = {}  # the engine's id: pieces that came before add() was back with it
        self.error = None

    def add(self, request, taker):
        """As the engine's, which may take long: without the lock, so that others get their pieces meanwhile."""
        if self.error is not None:
            raise self.error
        engine_id, prompt_ids = self.engine.add(request)
        with self.lock:
            self.takers[engine_id] = taker
            for piece in self.early.pop(engine_id, ()):
                self.hand(piece)
            if self.error is not None:  # since then
                taker.put(self.error)
        return engine_id, prompt_ids

    def hand(self, piece):
        """Under the lock. Every answer has a last piece, also one that is cancelled."""
        taker = self.takers.get(piece.id)
        if taker is None:
            self.early.setdefault(piece.id, []).append(piece)
            return
        if piece.finish_reason:
            del self.takers[piece.id]
        taker.put(piece)

    def run(self):
        try:
            while True:
                pieces = self.engine.poll(1.0)
                with self.lock:
                    for piece in pieces:
                        self.hand(piece)
        except EngineError as error:
            with self.lock:
                self.error = error
                for taker in self.takers.values():
                    taker.put(error)


class _Taker:
    """The engine as one request has it, whose pieces come into a queue of its event loop."""

    def __init__(self, streams, loop, queue):
        self.streams, self.loop, self.queue = streams, loop, queue
        self.cancel = streams.engine.cancel

    def add(self, request):
        return self.streams.add(request, self)

    def put(self, what):
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, what)
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

    def _open(self, taker, request_id, fields, sampling, lora, priority):
        if lora is not None:
            self._adapters.load(lora)
        return Request(taker, request_id, fields, sampling, lora, priority)

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
            taker = _Taker(self._streams, loop, queue)
            opened = loop.run_in_executor(None, self._open, taker, request_id, fields, sampling, lora, priority)
            try:
                request = await asyncio.shield(opened)
            except asyncio.CancelledError:
                request = await opened
                raise
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


def take(request, what):
    if isinstance(what, EngineError):
        raise what
    request.take(what)
