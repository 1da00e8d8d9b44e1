"""The Python package's requests as vLLM's programs make them: prompt_logprobs, LoRA adapters, and every other parameter."""
import json
import re
import subprocess

import pytest
from adapters import merge, write_adapter
from conftest import BIN, ROOT, SMOLLM2, TINY, within
from python_package import ENGINE, interrupt, python, run, start, strangers, wheel  # noqa: F401 some are fixtures

pytestmark = strangers
LORA_MODEL = TINY / "llama-bias-f32"


def test_prompt_logprobs_tell_how_likely_the_prompts_tokens_are(run):  # P-17
    made, told, several, none, deltas, refused = run(f"""
llm = {ENGINE}
def scored(**more): return SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2, **more)
def plain(entries): return [entry and [(k, v.logprob, v.rank, v.decoded_token) for k, v in entry.items()] for entry in entries]
first = llm.generate(FRANCE, SamplingParams(temperature=0, max_tokens=6, logprobs=2))[0]
made = first.outputs[0]
again = llm.generate({{"prompt_token_ids": first.prompt_token_ids + made.token_ids}}, scored())[0]
several, none = llm.generate([FRANCE + " banana", [7]], [scored(n=2, seed=1), scored()])
def error(params):
    try: llm.generate(FRANCE, params)
    except ValueError as error: return str(error)
refused = [error(SamplingParams(prompt_logprobs=count)) for count in (-1, 21)]
llm.shutdown()
async def main():
    engine = Async{ENGINE}
    kind = RequestOutputKind.DELTA
    # Many tokens: those that come while this loop stands still are one output.
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, prompt_logprobs=0, output_kind=kind)
    found = [output.prompt_logprobs async for output in engine.generate(FRANCE, params)]
    whole = [output.prompt_logprobs async for output in engine.generate(FRANCE, SamplingParams(max_tokens=6, prompt_logprobs=True))]
    engine.shutdown()
    return [found, [len(entries) for entries in whole], [len(entry or []) for entry in whole[-1]]]
found, lengths, counts = asyncio.run(main())
print(json.dumps([[first.prompt_token_ids, made.token_ids, plain(made.logprobs)], plain(again.prompt_logprobs),
                  plain(several.prompt_logprobs), plain(none.prompt_logprobs),
                  [len(found[0]), found[1:], set(lengths) == {{5}}, max(counts) <= 2, len(counts)], refused]))
""")
    begin, tokens, logprobs = made
    assert told[0] is None and len(told) == len(begin) + len(tokens)
    assert told[len(begin):] == logprobs  # to the bit on the host device, greedy: rank 1 first
    assert told[1][0][0] == begin[1] and told[1][0][3] == " capital" and told[1][0][2] > 2
    unlikely = several[-1]
    assert len(unlikely) == 3 and unlikely[0][2] > 100 and [entry[2] for entry in unlikely[1:]] == [1, 2]
    assert none == [None] and deltas == [5, [None] * len(deltas[1]), True, True, 5] and deltas[1]
    assert "prompt_logprobs" in refused[0] and "greater than max allowed: 20" in refused[1]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Adapters `one` and `two`, and beside them copies of the model with each merged into its weights."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("one", "two"), 1):
        write_adapter(folder / name, LORA_MODEL, seed)
        merge(folder / name, LORA_MODEL, folder / f"merged-{name}")
    return folder


def lora_engine(**options):
    given = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 256, **options}
    return f"LLM({str(LORA_MODEL)!r}, **{given!r})"


LORA = """
from refrain import LoRARequest
prompt = [5, 7, 9, 11]
params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
def answers(llm, prompts, loras): return [a.outputs[0].token_ids for a in llm.generate(prompts, params, lora_request=loras)]
"""


def test_lora_requests_are_answered_by_their_adapters_wherever_these_lie(run, adapters):  # P-16
    mixed, single, told, merged, async_mixed, errors, left = run(LORA + f"""
import glob, pathlib
folder = pathlib.Path({str(adapters)!r})
os.chdir(folder)
one, two = LoRARequest("one", 1, str(folder / "one")), LoRARequest("two", 2, "two")
with {lora_engine(enable_lora=True, max_loras=2, tensor_parallel_size=2)} as llm:
    mixed = answers(llm, [prompt] * 3, [one, None, two])
    output = llm.generate(prompt, params, lora_request=one)[0]
    single = [output.outputs[0].token_ids, answers(llm, prompt, LoRARequest("two", 2, str(folder / "two")))[0]]
    told = [output.lora_request.lora_name, output.outputs[0].lora_request.path, one == LoRARequest("one", 7, "x")]
    errors = []
    def refused(call):
        try: call()
        except ValueError as error: errors.append(str(error))
    refused(lambda: answers(llm, prompt, LoRARequest("other", 1, "two")))
    refused(lambda: answers(llm, prompt, LoRARequest("one", 1, "two")))
    refused(lambda: answers(llm, prompt, LoRARequest("gone", 3, "no/such/folder")))
    refused(lambda: answers(llm, prompt, LoRARequest("broken", 4, ".")))
    refused(lambda: answers(llm, [prompt] * 2, [one]))
    refused(lambda: answers(llm, prompt, "one"))
    refused(lambda: LoRARequest("one", 0, "one"))
    refused(lambda: LoRARequest("one", 1, "one", load_inplace=True))
    refused(lambda: llm.generate(prompt, SamplingParams(prompt_logprobs=1), lora_request=one))
    assert answers(llm, [prompt] * 3, [one, None, two]) == mixed
merged = []
for name in ("merged-one", {str(LORA_MODEL)!r}, "merged-two"):
    with LLM(name, dtype="float32", max_num_seqs=8, num_gpu_blocks_override=256) as llm:
        merged += answers(llm, [prompt], None)
        refused(lambda: answers(llm, prompt, one))
async def main():
    engine = Async{lora_engine(enable_lora=True, max_loras=1)}
    async def whole(lora):
        async for output in engine.generate(prompt, params, lora_request=lora): pass
        return output.outputs[0].token_ids
    answers = await asyncio.gather(*(whole(lora) for lora in (one, None, two, one)))
    try: await whole(LoRARequest("broken", 4, "."))
    except ValueError as error: errors.append(str(error))
    engine.shutdown()
    return answers
mine = asyncio.run(main())
left = [path for base in ("/tmp", os.environ.get("TMPDIR"), os.environ.get("XDG_RUNTIME_DIR")) if base
        for path in glob.glob(f"{{base}}/refrain-{{os.getpid()}}-*")]
print(json.dumps([mixed, single, told, merged, mine, errors, left]))
""")
    assert mixed == merged and len({str(tokens) for tokens in merged}) == 3 and single == [mixed[0], mixed[2]]
    assert told == ["one", str(adapters / "one"), True] and async_mixed == [*mixed, mixed[0]]
    sentences = ("a name and a number of its own", "the LoRA adapter 'one' is", "no/such/folder is no directory",
                 ". is no LoRA adapter: ", "there are 2 prompts and 1 lora_request", "is a LoRARequest, not str",
                 "it must be at least 1", "load_inplace is not supported", "LoRA adapters", *["--enable-lora"] * 3,
                 ". is no LoRA adapter: ")
    assert len(errors) == len(sentences) and all(words in error for words, error in zip(sentences, errors)), errors
    assert left == []  # no directory of links


def test_given_adapters_and_a_given_directory_bound_what_may_be_named(run, adapters):
    given, below, errors = run(LORA + f"""
folder = {str(adapters)!r}
errors = []
def refused(call):
    try: call()
    except ValueError as error: errors.append(str(error))
with {lora_engine(enable_lora=True, lora_modules=[{"name": "one", "path": str(adapters / "one")}, f"also={adapters}/two"])} as llm:
    given = answers(llm, [prompt] * 2, [LoRARequest("one", 1, folder + "/one"), LoRARequest("also", 2, folder + "/two")])
    refused(lambda: answers(llm, prompt, LoRARequest("one", 1, folder + "/two")))
with {lora_engine(enable_lora=True, lora_dir=str(adapters))} as llm:
    below = answers(llm, [prompt] * 2, [LoRARequest("one", 1, folder + "/one"), LoRARequest("two", 2, folder + "/two")])
    refused(lambda: answers(llm, prompt, LoRARequest("else", 3, {str(LORA_MODEL)!r})))
print(json.dumps([given, below, errors]))
""")
    assert given == below and given[0] != given[1]
    assert "the LoRA adapter 'one' is" in errors[0] and "leave --lora-dir out" in errors[1]


def test_a_removed_adapter_makes_room_for_another(run, adapters):
    first, error, second, again, removed, rest = run(LORA + f"""
one, two = LoRARequest("one", 1, {str(adapters / "one")!r}), LoRARequest("two", 2, {str(adapters / "two")!r})
renamed = LoRARequest("one", 1, {str(adapters / "two")!r})
llm = {lora_engine(enable_lora=True, max_cpu_loras=1)}
first = answers(llm, prompt, one)
try: answers(llm, prompt, two)
except ValueError as error: said = str(error)
removed = [llm.remove_lora(7), llm.remove_lora(1), llm.remove_lora(1)]
second = answers(llm, prompt, two)
removed.append(llm.remove_lora(2))
again = answers(llm, prompt, renamed)
llm.shutdown()
async def main():
    engine = Async{lora_engine(enable_lora=True, max_cpu_loras=1)}
    async def whole(lora):
        async for output in engine.generate(prompt, params, lora_request=lora): pass
        return output.outputs[0].token_ids
    stream = engine.generate(prompt, params, lora_request=one)
    rest = [await anext(stream)]  # of a busy machine it may hold all
    going = asyncio.create_task(engine.remove_lora(1))  # waits for the stream
    rest += [output async for output in stream]
    found = [await going, rest[-1].outputs[0].token_ids, await whole(two)]
    engine.shutdown()
    return found
print(json.dumps([first, said, second, again, removed, asyncio.run(main())]))
""")
    assert "as many as --max-cpu-loras allows" in error and removed == [False, True, False, True]
    assert first != second == again and rest == [True, first[0], second[0]]


def test_a_killed_worker_is_replaced_and_its_adapters_come_back(run, adapters):
    before, during, after = run(LORA + f"""
import subprocess
one, two = LoRARequest("one", 1, {str(adapters / "one")!r}), LoRARequest("two", 2, {str(adapters / "two")!r})
llm = {lora_engine(enable_lora=True, max_loras=2)}
before = answers(llm, prompt, one)
os.kill(int(subprocess.run(["pgrep", "-P", str(os.getpid()), "worker"], capture_output=True, text=True).stdout.split()[0]), 9)
during = answers(llm, [prompt] * 2, [one, two])
print(json.dumps([before, during, answers(llm, [prompt] * 2, [one, two])]))
""")
    assert before == during[:1] and after == during


def test_ctrl_c_ends_the_wait_for_an_adapter_and_the_engine_goes_on(start, adapters):
    process = start(LORA + f"""
import threading
one = LoRARequest("one", 1, {str(adapters / "one")!r})
llm = {lora_engine(enable_lora=True)}
load, begun = llm._adapters.engine.load_adapter, threading.Event()
class Slow:  # an adapter that takes its time
    def load_adapter(self, *request):
        if not begun.is_set(): print("begun", flush=True)
        begun.set()
        time.sleep(0.1)
        return False
llm._adapters.engine = Slow()
try:
    answers(llm, prompt, one)
except KeyboardInterrupt:
    llm._adapters.engine = llm._engine
    print(len(answers(llm, prompt, one)[0]))
""")
    interrupt(process, "begun")
    out, err = process.communicate(timeout=within(60))
    assert (out, process.returncode) == ("12\n", 0), err


# vLLM's parameters whose values are right as they are given, or that the engine itself refuses at another value.
NEEDS = {"n": 0, "presence_penalty": 3, "frequency_penalty": 3, "repetition_penalty": 0, "temperature": -1, "top_p": 7,
         "top_k": -2, "min_p": 7, "seed": "x", "stop": [""], "stop_token_ids": [-1], "ignore_eos": 7, "max_tokens": 0,
         "min_tokens": 99, "logprobs": 21, "prompt_logprobs": 21, "logprob_token_ids": [1], "flat_logprobs": True,
         "skip_special_tokens": 7, "include_stop_str_in_output": 7, "output_text_buffer_length": 1,
         "logit_bias": {"x": 1}, "allowed_token_ids": [], "extra_args": {"a": 1}, "bad_words": [" "],
         "skip_reading_prefix_cache": True, "thinking_token_budget": 0, "repetition_detection": {}}
OTHERWISE = {"detokenize", "spaces_between_special_tokens", "output_kind", "skip_clone", "structured_outputs"}


def test_each_of_vllms_sampling_params_is_taken_or_refused_with_a_sentence(run):
    table = json.loads((ROOT / "tests/fixtures/vllm-0.21.json").read_text())["python"]
    assert set(NEEDS) | OTHERWISE == set(table["SamplingParams"]) and not set(NEEDS) & OTHERWISE
    names, sentences, forms, texts, calls = run(f"""
import dataclasses, inspect
from refrain import LoRARequest, StructuredOutputsParams as Form
def names(kind): return [field.name for field in dataclasses.fields(kind)]
def parameters(name): return list(inspect.signature(getattr(LLM, name)).parameters)
llm = {ENGINE}
def refused(call):
    try: call()
    except ValueError as error: return str(error)
def ask(**fields): return lambda: llm.generate(FRANCE, SamplingParams(**fields))
sentences = {{name: refused(ask(**{{name: value}})) for name, value in {NEEDS!r}.items()}}
sentences["spaces_between_special_tokens"] = refused(ask(spaces_between_special_tokens=False, skip_special_tokens=False))
sentences["detokenize"] = refused(ask(detokenize=False, stop="x"))
forms = {{name: refused(ask(structured_outputs=Form(regex="a", **{{name: value}}))) for name, value in (
    ("disable_any_whitespace", True), ("disable_additional_properties", True), ("whitespace_pattern", " "), ("structural_tag", "x"))}}
def tokens(**fields): return llm.generate(FRANCE, SamplingParams(temperature=0, max_tokens=8, **fields))[0].outputs[0]
silent, forbidden = tokens(detokenize=False), tokens(bad_words=["Paris"])
texts = [silent.text, len(silent.token_ids), forbidden.text, tokens(skip_clone=True, spaces_between_special_tokens=False).text,
         tokens(logprobs=True).logprobs is not None]
calls = [refused(lambda: llm.generate(FRANCE, use_tqdm=True)), refused(lambda: llm.generate(FRANCE, priority=[1])),
         refused(lambda: llm.generate(FRANCE, tokenization_kwargs={{}})), refused(lambda: llm.chat([], mm_processor_kwargs={{}})),
         refused(lambda: llm.chat([{{"role": "user", "content": "a"}}], chat_template_content_format="openai"))]
seeds = [SamplingParams(seed=-1).fields(0), SamplingParams(seed=0).fields(1)]
assert "seed" not in seeds[0] and seeds[1]["seed"] == 1
assert llm.generate(FRANCE, greedy, use_tqdm=False, priority=[0])[0].outputs[0].text == PARIS
print(json.dumps([[names(SamplingParams), names(Form), names(LoRARequest), parameters("generate"), parameters("chat")],
                  sentences, forms, texts, calls]))
""")
    for kind, ours in zip(("SamplingParams", "StructuredOutputsParams", "LoRARequest", "LLM.generate", "LLM.chat"), names):
        assert [name for name in ours if name != "self"] == table[kind], kind
    assert {name: said for name, said in sentences.items() if name not in (said or "").replace("prompt logprobs", "prompt_logprobs")} == {}
    assert all(said and name in said for name, said in forms.items()), forms
    assert texts[:2] == ["", 8] and "Paris" not in texts[2] and texts[3:] == [" Paris.\n\nThe answer is:", True]
    for words, said in zip(("use_tqdm", "priority", "tokenization_kwargs", "mm_processor_kwargs", "chat_template_content_format"), calls):
        assert said and words in said


def test_each_of_vllms_engine_arguments_is_taken_or_refused_with_a_sentence(run):
    table = json.loads((ROOT / "tests/fixtures/vllm-0.21.json").read_text())
    page = subprocess.run([BIN / "refrain", "generate", "--help-page"], capture_output=True, text=True, check=True).stdout
    taken = set(re.findall(r"--[a-z0-9-]+", page))
    words = {"--" + name.replace("_", "-") for name in table["python"]["LLM.__init__"]} | set(table["options"])
    asked = sorted(word.removeprefix("--").replace("-", "_") for word in words - taken)
    said = run(f"""
def refused(name):
    try: LLM({str(SMOLLM2)!r}, **{{name: "x"}})
    except ValueError as error: return str(error)
print(json.dumps({{name: refused(name) for name in {asked!r}}}))
""")
    assert len(said) > 100
    assert [name for name, sentence in said.items() if f"--{name.replace('_', '-')}" not in (sentence or "")] == []
