"""The requests of a drill: each with a marker in its prompt, every other one bound to words of its own."""
import json
import re
from dataclasses import dataclass
from pathlib import Path

WORDS_EACH = 6


@dataclass(frozen=True)
class Request:
    name: str
    marker: str
    words: frozenset | None
    body: dict
    max_tokens: int


def made_up_tokenizer(directory, size):
    """A tokenizer.json whose token N is the text " tN": output shows ids. For shapes without a tokenizer of their own."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    path = Path(directory) / "tokenizer.json"
    path.write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {f"Ġt{i}": i for i in range(size)}, "merges": []}}))
    return path


def whole_words(tokenizer):
    """(id, word) of the tokens that are a space and then a word of letters and figures."""
    vocab = json.loads(Path(tokenizer).read_text(encoding="utf-8"))["model"]["vocab"]
    found = [(number, token[1:]) for token, number in vocab.items() if re.fullmatch("Ġ[A-Za-z0-9]{2,}", token)]
    return sorted(found)


def make_requests(tokenizer, count, rng, by_ids=None, least=12, most=40, adapters=()):
    """`count` requests. Even ones: any word; odd ones: only words of their own. Half of each greedy, half drawn by a seed.
    `by_ids`: (size of the vocabulary, least, most): prompts are so many random token ids. `adapters`: names; they and the
    base model take turns, by threes of one, so that each meets every kind of request."""
    words = whole_words(tokenizer)
    if len(words) < count * 2:
        raise SystemExit(f"{tokenizer} has {len(words)} whole words, too few for {count} requests")
    rng.shuffle(words)
    share = min(WORDS_EACH, len(words) // count)
    requests = []
    for i in range(count):
        own = words[i * share:(i + 1) * share]
        marker = f"zq{rng.randrange(10**6, 10**7)}x{i}"
        max_tokens = rng.randint(least, most)
        body = {"max_tokens": max_tokens, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        body["prompt"] = ([rng.randrange(by_ids[0]) for _ in range(rng.randint(*by_ids[1:]))] if by_ids else
                          f"The secret word of guest {i} is {marker}. Here is a story about the {own[0][1]} "
                          f"and the {own[-1][1]}: ")
        body.update({"temperature": 0.9, "seed": 1000 + i} if i % 4 >= 2 else {"temperature": 0})
        if adapters and (of := i // 3 % (1 + len(adapters))):
            body["model"] = adapters[of - 1]
        bound = i % 2 == 1
        if bound:
            body["allowed_token_ids"] = [number for number, _ in own]
        if i % 4 in (1, 2):
            body["logprobs"] = 0   # the stream then tells every token and where its text begins
        requests.append(Request(f"request {i}", marker, frozenset(word for _, word in own) if bound else None, body,
                                max_tokens))
    return requests
