"""How an answer's tokens are chosen, and when it ends: vLLM's SamplingParams."""
from dataclasses import asdict, dataclass
from enum import Enum


class RequestOutputKind(Enum):
    """What AsyncLLM.generate yields: the answer so far, what is new, or the whole answer alone."""
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    """What the answer must look like: one of the first five. The server's sentence refuses the others."""
    json: str | dict | None = None  # a JSON schema
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # EBNF with a rule `root`
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


@dataclass
class SamplingParams:
    """Ranges are checked when a request is made: a bad value is a ValueError that names its field."""
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: what the model has room for
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None  # not supported
    flat_logprobs: bool = False  # not supported
    detokenize: bool = True  # False: answers have no text
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_clone: bool = False  # a request keeps nothing of this object, so either is right
    output_text_buffer_length: int = 0  # not supported
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict | None = None  # not supported
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = False  # not supported
    thinking_token_budget: int | None = None  # not supported
    repetition_detection: object | None = None  # not supported

    def fields(self, index):
        """Of the request for the answer number `index` of n."""
        self._refuse_absent()
        fields = {name: value for name, value in asdict(self).items() if value is not None and name not in _NOT_SENT}
        fields.setdefault("max_tokens", 2**31 - 1)
        fields.pop("seed", None)
        if not isinstance(self.seed, int | None):
            raise ValueError(f"seed is {self.seed!r}; it must be a whole number")
        if self.seed not in (None, -1):  # -1 is none, as in vLLM
            fields["seed"] = self.seed + index
        for name in ("logprobs", "prompt_logprobs"):
            if fields.get(name) is True:
                fields[name] = 1
        if index > 0:  # one answer tells of the prompt
            fields.pop("prompt_logprobs", None)
        if self.logit_bias is not None:
            fields["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.structured_outputs is not None:
            form = fields["structured_outputs"]
            fields["structured_outputs"] = {name: value for name, value in form.items() if value is not False}
        return fields

    def _refuse_absent(self):
        for name, why in _ABSENT.items():
            if getattr(self, name) not in (self.__dataclass_fields__[name].default, None):
                raise ValueError(f"{name} is not supported: {why}")
        if not self.spaces_between_special_tokens and not self.skip_special_tokens:
            raise ValueError("spaces_between_special_tokens is false: special tokens in a text have the tokenizer's spaces")
        if self.stop and not self.detokenize:
            raise ValueError("stop needs detokenize: stop strings are found in the text")


# Why fields of vLLM's are refused unless they are as without them.
_ABSENT = {
    "logprob_token_ids": "log-probabilities are told of the likeliest tokens (logprobs) alone",
    "flat_logprobs": "log-probabilities are a dictionary for each token",
    "output_text_buffer_length": "vLLM sets it itself; leave it out",
    "extra_args": "there are no sampling plug-ins to take them",
    "skip_reading_prefix_cache": "an engine with enable_prefix_caching=False reads no cached blocks",
    "thinking_token_budget": "thinking ends where the model ends it, or with max_tokens",
    "repetition_detection": "repetition_penalty and frequency_penalty make repetition less likely",
}
_NOT_SENT = {"n", "output_kind", "detokenize", "spaces_between_special_tokens", "skip_clone", *_ABSENT}
