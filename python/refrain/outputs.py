"""Answers in the shape of vLLM's, and how they grow from the engine's pieces."""
from dataclasses import dataclass, field, replace

from refrain.lora import LoRARequest


@dataclass
class Logprob:
    logprob: float
    rank: int | None  # 1: the most likely; None: not among those that were asked for
    decoded_token: str


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None  # stop, length or abort
    stop_reason: int | str | None = None  # the stop token or string that ended it
    lora_request: LoRARequest | None = None

    def finished(self):
        return self.finish_reason is not None

    def add(self, piece, detokenize=True):
        if detokenize:
            self.text += piece.text
        tokens = piece.tokens
        self.token_ids += [token.id for token in tokens]
        if self.logprobs is not None:
            self.logprobs += [logprobs_of(token) for token in tokens]
            self.cumulative_logprob += sum(token.logprob for token in tokens)
        self.finish_reason = piece.finish_reason or None
        self.stop_reason = piece.stop_reason or None if piece.stop_token is None else piece.stop_token

    def copy(self):
        return replace(self, token_ids=list(self.token_ids), logprobs=self.logprobs and list(self.logprobs))

    def clear(self):
        """What has been taken is not given again."""
        self.text, self.token_ids = "", []
        if self.logprobs is not None:
            self.logprobs = []


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # None of the first token
    lora_request: LoRARequest | None = None

    def clear(self):
        """What has been taken is not given again."""
        self.prompt_logprobs = None
        for output in self.outputs:
            output.clear()

    def copy(self):
        return replace(self, outputs=[output.copy() for output in self.outputs])


def logprobs_of(token):
    """The token itself first, then the likely ones."""
    ranks = {likely.id: rank for rank, likely in enumerate(token.top, 1)}
    found = {token.id: Logprob(token.logprob, token.rank or ranks.get(token.id), token.text)}
    for likely in token.top:
        found.setdefault(likely.id, Logprob(likely.logprob, ranks[likely.id], likely.text))
    return found
