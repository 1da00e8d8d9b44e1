"""The vocabularies the tokenizer is held against: where each comes from, and the tokenizer.json
around it, written as the model's own publishes it (GGUF files keep only the vocabulary)."""
import json
import struct
from pathlib import Path

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]
# Dialect corners: ^ and $ at every line, {n,m}+ as a plain repeat, \h as a hex digit, \w, \b.
CORNERS = r"^#+|\d{1,2}+|\b\h{4}\b|\w+'?|[^\w\s]+?$|(?<=\s)\s|\S|\s"


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(regex, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(*stages):
    return {"type": "Sequence", "pretokenizers": list(stages)}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def with_splits(*patterns):
    return sequence(*[split(p) for p in patterns], byte_level(False))


BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SPM_DECODER = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
               {"type": "Fuse"}]
NFC = {"type": "NFC"}
SPM_MODEL = {"byte_fallback": True, "fuse_unk": True}
LLAMA2 = {"normalizer": {"type": "Sequence", "normalizers": [
              {"type": "Prepend", "prepend": "▁"},
              {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
          "pre_tokenizer": None, "model": SPM_MODEL,
          "decoder": {"type": "Sequence", "decoders": SPM_DECODER + [
              {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}

# name: (GGUF file, what surrounds its vocabulary). "bos": a token the post-processor puts first.
VOCABULARIES = {
    "smollm2": ("smollm2", {"pre_tokenizer": sequence(digits(True), byte_level(True))}),
    "llama3": ("llama-bpe", {"pre_tokenizer": with_splits(LLAMA3), "model": {"ignore_merges": True},
                             "bos": "<|begin_of_text|>"}),
    "qwen2": ("qwen2", {"normalizer": NFC, "pre_tokenizer": with_splits(QWEN2)}),
    "qwen35": ("qwen35", {"normalizer": NFC, "pre_tokenizer": with_splits(QWEN35)}),
    "gpt2": ("gpt-2", {"pre_tokenizer": byte_level(True)}),
    "starcoder": ("starcoder", {"pre_tokenizer": sequence(digits(True), byte_level(True))}),
    "refact": ("refact", {"pre_tokenizer": sequence(digits(True), byte_level(True))}),
    "command-r": ("command-r", {"normalizer": NFC, "pre_tokenizer": sequence(digits(True), byte_level(True)),
                                "bos": "<BOS_TOKEN>"}),
    "deepseek-coder": ("deepseek-coder", {"pre_tokenizer": sequence(
        *[split(p) for p in DEEPSEEK_CODER], digits(True), byte_level(False)),
        "bos": "<｜begin▁of▁sentence｜>"}),
    "falcon": ("falcon", {"pre_tokenizer": sequence(
        {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), digits(False),
        split("[0-9][0-9][0-9]"))}),
    "gemma": ("gemma-4", {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                          "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String"),
                          "model": SPM_MODEL, "decoder": {"type": "Sequence", "decoders": SPM_DECODER},
                          "bos": "<bos>"}),
    "llama2": ("llama-spm", {**LLAMA2, "bos": "<s>"}),
    "phi3": ("phi-3", LLAMA2),
    # Real vocabularies under other rules.
    "llama2-metaspace": ("llama-spm", {"pre_tokenizer": METASPACE, "model": SPM_MODEL, "bos": "<s>",
                                       "decoder": LLAMA2["decoder"]}),
    "llama2-metaspace-split": ("llama-spm", {"pre_tokenizer": {**METASPACE, "prepend_scheme": "always", "split": True},
                                             "model": {"fuse_unk": False}, "decoder": METASPACE}),
    "qwen2-o200k": ("qwen2", {"pre_tokenizer": with_splits(O200K)}),
    "qwen2-deepseek3": ("qwen2", {"pre_tokenizer": with_splits(*DEEPSEEK3)}),
    "qwen2-kimi": ("qwen2", {"pre_tokenizer": with_splits(KIMI)}),
    "qwen2-prefix": ("qwen2", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]},
        "pre_tokenizer": byte_level(True, prefix=True)}),
    "gpt2-corners": ("gpt-2", {"normalizer": {"type": "NFKC"}, "pre_tokenizer": with_splits(CORNERS)}),
    "gpt2-behaviors": ("gpt-2", {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
                                 "pre_tokenizer": sequence(
        split("[aeiou]+", "MergedWithNext"), split("[.,;]", "MergedWithPrevious"), split("x", "Removed"),
        split(r"\w+", "Contiguous", invert=True), {"type": "WhitespaceSplit"},
        {"type": "Punctuation", "behavior": "MergedWithPrevious"}, byte_level(False))}),
    "gpt2-whitespace": ("gpt-2", {"normalizer": {"type": "NFD"},
                                  "pre_tokenizer": sequence({"type": "Whitespace"}, byte_level(False))}),
}


def read_gguf(path: Path):
    """tokens, scores, token types and merges of a GGUF vocabulary. The package gguf makes an array of each string,
    which takes ten times as long as all else here."""
    data, at = path.read_bytes(), 4  # behind the magic number

    def number(code):
        nonlocal at
        (value,) = struct.unpack_from("<" + code, data, at)
        at += struct.calcsize("<" + code)
        return value

    def value(kind):
        nonlocal at
        if kind == 8:
            size = number("Q")
            at += size
            return data[at - size:at].decode("utf-8", "surrogateescape")
        if kind == 9:
            of, count = number("I"), number("Q")
            return [value(of) for _ in range(count)]
        return number("BbHhIif?__Qqd"[kind])

    version, _, count = number("I"), number("Q"), number("Q")
    if data[:4] != b"GGUF" or version not in (2, 3):
        raise ValueError(f"{path}: a GGUF file of version 2 or 3 was expected")
    fields = {value(8): value(number("I")) for _ in range(count)}
    names = {"tokens": "tokens", "types": "token_type", "scores": "scores", "merges": "merges", "bos": "bos_token_id",
             "eos": "eos_token_id"}
    found = {name: fields.get("tokenizer.ggml." + key) for name, key in names.items()}
    return {**found, "template": fields.get("tokenizer.chat_template")}


def merges_from_scores(tokens, scores):
    """What a SentencePiece vocabulary means as merges: any split of a token into two tokens, in the
    order of the token's score."""
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token, i in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                merges.append((-scores[i], ids[left], ids[right], left, right))
    merges.sort(key=lambda m: m[0])
    return [[m[3], m[4]] for m in merges]


def tokenizer_json(vocabulary, rules):
    """A tokenizer.json of the vocabulary under the rules."""
    tokens, types = vocabulary["tokens"], vocabulary["types"] or []
    merges = vocabulary["merges"]
    if merges is None:
        merges = merges_from_scores(tokens, vocabulary["scores"])
    else:
        merges = [m.split(" ", 1) if m.count(" ") == 1 else _split_merge(m) for m in merges]
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": kind == 4 and i % 3 == 0,
              "rstrip": kind == 4 and i % 3 == 1, "normalized": kind == 4, "special": kind == 3}
             for i, kind in enumerate(types) if kind in (3, 4) and tokens[i]]
    post = None
    if "bos" in rules:
        bos = rules["bos"]
        post = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {bos: {"id": bos, "ids": [tokens.index(bos)], "tokens": [bos]}}}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>" if "<unk>" in tokens else None,
             "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": False, **rules.get("model", {}),
             "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                       "normalizer": rules.get("normalizer"), "pre_tokenizer": rules.get("pre_tokenizer"),
                       "post_processor": post, "decoder": rules.get("decoder", BYTE_DECODER), "model": model},
                      ensure_ascii=False)


def _split_merge(merge):
    """A merge whose tokens hold spaces themselves: cut at the space that leaves both sides whole."""
    for cut, char in enumerate(merge):
        if char == " " and 0 < cut < len(merge) - 1:
            return [merge[:cut], merge[cut + 1:]]
    raise ValueError(f"merge {merge!r} has no two sides")
