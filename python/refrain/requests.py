"""From what people write to the engine's requests, and from its pieces to their outputs."""
import json

from refrain._engine import Engine, EngineError
from refrain.outputs import CompletionOutput, RequestOutput, logprobs_of


def words_of(options):
    """Keyword options as the words of a command line: max_num_seqs=4 is --max-num-seqs 4; None is not given."""
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"{option}={str(value).lower()}")
        elif value is not None:
            words += [option, *values_of(name, value)]
    return words


def values_of(name, value):
    """A dictionary is JSON, a list is written with commas; of lora_modules each is a word, as the command line has them."""
    if isinstance(value, (list, tuple, set)):
        words = [word for item in value for word in values_of(name, item)]
        return words if name == "lora_modules" else [",".join(words)]
    return [json.dumps(value) if isinstance(value, dict) else str(value)]


def each_its_own(name, given, count):
    """A list of `count`: what was given for each, or one for all."""
    if not isinstance(given, (list, tuple)):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"there are {count} prompts and {len(given)} {name}")
    return given


def refuse(why, **given):
    """What vLLM has and this engine has not, unless it is None."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is not supported: {why}")


def start_engine(options):
    """An engine that is ready. Ctrl-C while it starts ends it."""
    engine = Engine(words_of(options))
    try:
        while not engine.wait_ready(0.1):
            pass
    except BaseException:
        engine.stop()
        raise
    return engine


def prompt_fields(prompt):
    """A text, a list of token ids, or vLLM's dictionaries of either."""
    if isinstance(prompt, dict):
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown or len(prompt) != 1:
            raise ValueError("a prompt is {'prompt': text} or {'prompt_token_ids': ids}, got the keys "
                             f"{sorted(map(str, prompt))}")
        prompt = next(iter(prompt.values()))
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, list):
        return {"prompt_ids": prompt}
    raise ValueError(f"a prompt is a text or a list of token ids, not {type(prompt).__name__}")


def chat_fields(messages, *, tools=None, chat_template=None, chat_template_kwargs=None, add_generation_prompt=True,
                continue_final_message=False):
    """A conversation, and how its template is used."""
    given = {"tools": tools, "chat_template": chat_template, "chat_template_kwargs": chat_template_kwargs}
    return {"messages": list(messages), "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **{name: value for name, value in given.items() if value is not None}}


class Request:
    """One request of a caller: as many of the engine's as it wants answers."""

    def __init__(self, engine, request_id, fields, sampling, lora=None, priority=0):
        self.engine = engine
        self.answers = {}  # the engine's id: the answer, until it has ended
        self.detokenize = sampling is None or sampling.detokenize
        count = 1 if sampling is None else sampling.n
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"n is {count}; it must be at least 1")
        outputs, prompt_ids = [], []
        try:
            for index in range(count):
                chosen = {"priority": priority} | ({} if sampling is None else sampling.fields(index))
                if lora is not None:
                    chosen["model"] = lora.lora_name
                engine_id, prompt_ids = engine.add(json.dumps({**fields, **chosen}))
                asked = chosen.get("logprobs") is not None
                outputs.append(CompletionOutput(index, logprobs=[] if asked else None,
                                                cumulative_logprob=0.0 if asked else None, lora_request=lora))
                self.answers[engine_id] = outputs[-1]
        except BaseException:
            self.cancel()
            raise
        told = sampling is not None and sampling.prompt_logprobs is not None
        self.output = RequestOutput(request_id, fields.get("prompt"), prompt_ids, outputs, lora_request=lora,
                                    prompt_logprobs=[None] if told else None)

    def cancel(self):
        for engine_id in self.answers:
            self.engine.cancel(engine_id)

    def take(self, piece):
        """Adds a piece of one of its answers; an answer that failed is an EngineError."""
        if piece.finish_reason == "error":
            raise EngineError(piece.error)
        self.answers[piece.id].add(piece, self.detokenize)
        if piece.prompt:
            self.output.prompt_logprobs += [logprobs_of(token) for token in piece.prompt]
        self.output.num_cached_tokens = max(self.output.num_cached_tokens, piece.cached_tokens)
        if piece.finish_reason:
            del self.answers[piece.id]
        self.output.finished = not self.answers
