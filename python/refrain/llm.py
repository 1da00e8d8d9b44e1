"""Many prompts at once, answers when all are done."""
import threading
import weakref
from collections.abc import Sequence

from refrain.lora import Adapters, LoRARequest
from refrain.requests import Request, chat_fields, each_its_own, prompt_fields, refuse, start_engine
from refrain.sampling_params import SamplingParams


class LLM:
    """A model on worker processes of its own, which end with this object or the program.

    Options are those of the command line with underscores (docs/options.md); one that is wrong is a ValueError with the
    command line's sentence. Ctrl-C ends a call and leaves the engine usable.
    """

    def __init__(self, model: str, **options):
        self._engine = start_engine({"model": model, **options})
        self._adapters = Adapters(self._engine)
        self._turn = threading.Lock()
        self._count = 0
        self._finalizer = weakref.finalize(self, self._engine.stop)

    def generate(self, prompts, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool = False, lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
                 priority: list[int] | None = None, tokenization_kwargs: dict | None = None,
                 mm_processor_kwargs: dict | None = None):
        """RequestOutputs in the order of `prompts`: a text, token ids, a dictionary of either, or a list of those.

        Without sampling_params the model's own defaults hold, with one a prompt each has its own; so with lora_request.
        """
        refuse_absent(use_tqdm, tokenization_kwargs, mm_processor_kwargs)
        if isinstance(prompts, (str, dict)) or prompts and isinstance(prompts, list) and isinstance(prompts[0], int):
            prompts = [prompts]
        return self._run([prompt_fields(prompt) for prompt in prompts], sampling_params, lora_request, priority)

    def chat(self, messages, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_tqdm: bool = False, lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
             chat_template: str | None = None, chat_template_content_format: str = "auto",
             add_generation_prompt: bool = True, continue_final_message: bool = False, tools: list[dict] | None = None,
             chat_template_kwargs: dict | None = None, tokenization_kwargs: dict | None = None,
             mm_processor_kwargs: dict | None = None):
        """The same for a conversation, or a list of them."""
        refuse_absent(use_tqdm, tokenization_kwargs, mm_processor_kwargs)
        if chat_template_content_format != "auto":
            refuse("contents are given to the template as texts", chat_template_content_format=chat_template_content_format)
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        template = {"tools": tools, "chat_template": chat_template, "chat_template_kwargs": chat_template_kwargs,
                    "add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        return self._run([chat_fields(conversation, **template) for conversation in conversations], sampling_params,
                         lora_request)

    def remove_lora(self, lora_int_id: int) -> bool:
        """Takes an adapter out, when its last request has ended, and makes room for another."""
        return self._adapters.remove(lora_int_id)

    def shutdown(self):
        """Ends the workers; calls in other threads end with an EngineError."""
        self._finalizer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()

    def _run(self, inputs, sampling_params, lora_request, priority=None):
        count = len(inputs)
        samplings = each_its_own("sampling_params", sampling_params, count)
        loras = each_its_own("lora_request", lora_request, count)
        priorities = each_its_own("priority", 0 if priority is None else priority, count)
        with self._turn:
            requests = []
            try:
                for lora in dict.fromkeys(lora for lora in loras if lora is not None):
                    self._adapters.load(lora)
                for of_request in zip(inputs, samplings, loras, priorities):
                    requests.append(Request(self._engine, str(self._count), *of_request))
                    self._count += 1
                waiting = {engine_id: request for request in requests for engine_id in request.answers}
                while waiting:
                    # In short turns, so that Python sees a Ctrl-C. What a call before has cancelled may still come.
                    for piece in self._engine.poll(0.1):
                        request = waiting.get(piece.id)
                        if request is not None:
                            request.take(piece)
                            if piece.finish_reason:
                                del waiting[piece.id]
            except BaseException:
                for request in requests:
                    request.cancel()
                raise
        return [request.output for request in requests]


def refuse_absent(use_tqdm, tokenization_kwargs, mm_processor_kwargs):
    """What calls of vLLM's LLM take and these do not."""
    refuse("there is no progress bar; leave it out", use_tqdm=use_tqdm or None)
    refuse("texts become tokens in the tokenizer's own way; give token ids for another", tokenization_kwargs=tokenization_kwargs)
    refuse("models read text alone", mm_processor_kwargs=mm_processor_kwargs)
