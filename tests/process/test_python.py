"""The Python package: a wheel of what is built, in an environment of its own."""
import json
import re
import signal
import subprocess
import time
import zipfile

from conftest import BIN, ROOT, SMOLLM2, command_line, within
from python_package import ENGINE, interrupt, python, run, start, strangers, wheel  # noqa: F401 some are fixtures

pytestmark = strangers
GOLDEN = json.loads((ROOT / "tests/golden/smollm2-135m.json").read_text())


def test_generate_and_chat_give_the_golden_tokens_in_vllms_shape(run):
    raw, chat = GOLDEN[0], next(case for case in GOLDEN if case["kind"] == "chat")
    answers = run(f"""
llm = {ENGINE}
params = SamplingParams(temperature=0, max_tokens=32, logprobs=2)
first, second, third = llm.generate([FRANCE, {{"prompt_token_ids": [504, 3575]}}, "One"], [params, greedy, None])
chat = llm.chat({chat["messages"]!r}, SamplingParams(temperature=0, max_tokens=16))[0]
top = first.outputs[0].logprobs[0]
print(json.dumps({{
    "first": [first.prompt, first.prompt_token_ids, first.outputs[0].token_ids, first.finished, first.request_id],
    "reasons": [first.outputs[0].finish_reason, first.outputs[0].stop_reason, second.outputs[0].finish_reason],
    "logprobs": [len(first.outputs[0].logprobs), [(k, v.rank, v.decoded_token) for k, v in top.items()]],
    "sum": first.outputs[0].cumulative_logprob < 0, "second": [second.prompt, second.prompt_token_ids],
    "third": len(third.outputs[0].token_ids), "chat": [chat.prompt_token_ids, chat.outputs[0].token_ids]}}))
""")
    assert answers["first"] == [raw["prompt"], raw["prompt_ids"], raw["output_ids"], True, "0"]
    assert answers["reasons"] == ["stop", None, "length"] and answers["sum"]
    assert answers["logprobs"] == [len(raw["output_ids"]), [[7042, 1, " Paris"], [260, 2, " the"]]]
    assert answers["second"] == [None, [504, 3575]] and answers["third"] == 16
    assert answers["chat"] == [chat["prompt_ids"], chat["output_ids"][:16]]


def test_answers_keep_to_their_form(run):
    said = run(f"""
from refrain import StructuredOutputsParams as Form
llm = {ENGINE}
person = {{"type": "object", "properties": {{"name": {{"type": "string", "maxLength": 8}}, "age": {{"type": "integer"}}}},
          "required": ["name", "age"], "additionalProperties": False}}
def ask(form): return SamplingParams(temperature=0, max_tokens=120, structured_outputs=form)
forms = [Form(json=person), Form(json=json.dumps(person)), Form(regex="[0-9]{{3}}"), Form(choice=["red", "blue"]),
         Form(grammar='root ::= "a" | "b"')]
texts = [answer.outputs[0].text for answer in llm.generate([FRANCE] * len(forms), [ask(form) for form in forms])]
errors = []
for form in (Form(json={{"type": "array", "uniqueItems": True}}), Form(regex="(a"), Form(), Form(regex="a", choice=["b"])):
    try: llm.generate(FRANCE, ask(form))
    except ValueError as error: errors.append(str(error))
print(json.dumps([texts, errors, llm.generate(FRANCE, greedy)[0].outputs[0].text == PARIS]))
""")
    (first, second, number, colour, letter), errors, usable = said
    assert set(json.loads(first)) == {"name", "age"} and first == second and usable
    assert re.fullmatch("[0-9]{3}", number) and colour in ("red", "blue") and letter in "ab"
    assert len(errors) == 4 and "uniqueItems" in errors[0] and "one of json, regex" in errors[2]


def test_the_programs_that_the_page_shows_run(python):
    shown = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.M | re.S)
    said = []
    for program in shown:
        done = subprocess.run([python, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=within(120))
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0].startswith("The capital of France is →  Paris.\n\nThe answer is:\n1, 2, 3, →  4, 5, 6\n")
    assert len(said) == 2 and len(said[1].splitlines()) > 2


def test_what_is_wrong_is_a_ValueError_with_the_command_lines_sentence(run):
    said = run(f"""
said = []
def refused(call):
    try: call()
    except ValueError as error: said.append(str(error))
refused(lambda: LLM({str(SMOLLM2)!r}, max_num_seq=4))
refused(lambda: LLM({str(SMOLLM2)!r}, block_size=7))
refused(lambda: LLM("/no/such/model"))
with {ENGINE} as llm:
    refused(lambda: llm.generate([FRANCE, FRANCE], [greedy, SamplingParams(temperature=-1)]))
    refused(lambda: llm.generate(FRANCE, SamplingParams(n=0)))
    refused(lambda: llm.generate([FRANCE], [greedy, greedy]))
    refused(lambda: llm.generate({{"text": FRANCE}}))
    assert llm.generate(FRANCE, greedy)[0].outputs[0].text == PARIS
try: llm.generate(FRANCE)
except EngineError as error: said.append(str(error))
print(json.dumps(said))
""")
    for words, sentence in zip((["--max-num-seq", "4"], ["--block-size", "7"], ["--model", "/no/such/model"]), said):
        done = subprocess.run([BIN / "refrain", "generate", "--model", SMOLLM2, "--prompt", "x", *words],
                              capture_output=True, text=True)
        assert sentence in done.stderr
    assert said[3:] == ["temperature is -1; it must be between 0 and 2", "n is 0; it must be at least 1",
                        "there are 1 prompts and 2 sampling_params",
                        "a prompt is {'prompt': text} or {'prompt_token_ids': ids}, got the keys ['text']",
                        "the engine was stopped"]


def test_several_answers_of_a_request_differ_by_their_seeds_and_stop_strings_end_them(run):
    one, two, stopped = run(f"""
llm = {ENGINE}
warm = SamplingParams(n=3, seed=7, max_tokens=12)
one, two = ([o.token_ids for o in llm.generate(FRANCE, warm)[0].outputs] for _ in range(2))
end = llm.generate(FRANCE, SamplingParams(temperature=0, max_tokens=32, stop=["The"], logit_bias={{30: 1.0}}))[0].outputs[0]
print(json.dumps([one, two, [end.text, end.finish_reason, end.stop_reason]]))
""")
    assert one == two and len(set(map(tuple, one))) == 3
    assert stopped == [" Paris.\n\n", "stop", "The"]


def test_ctrl_c_ends_a_call_and_the_engine_goes_on(start):
    process = start(f"""
llm = {ENGINE}
try:
    print("begun", flush=True)
    llm.generate([FRANCE] * 64, endless)
except KeyboardInterrupt:
    print(llm.generate(FRANCE, greedy)[0].outputs[0].text == PARIS)
""")
    children = interrupt(process, "begun")
    out, err = process.communicate(timeout=within(60))
    assert (out, process.returncode) == ("True\n", 0), err
    assert len(children) == 2 and not any(command_line(pid) for pid in children)


def test_ctrl_c_while_the_engine_starts_leaves_nothing(start):
    process = start(f"""
print("begun", flush=True)
llm = {ENGINE}
time.sleep(60)
""")
    children = interrupt(process, "begun")
    began = time.monotonic()
    _, err = process.communicate(timeout=within(60))
    assert err.rstrip().endswith("KeyboardInterrupt") and process.returncode in (1, 130, -signal.SIGINT)
    assert time.monotonic() - began < within(15) and not any(command_line(pid) for pid in children)


def test_async_answers_come_piece_by_piece_side_by_side_and_end_when_left(run):
    answers = run(f"""
async def whole(engine, params):
    return [output async for output in engine.generate(FRANCE, params)]

async def main():
    engine = Async{ENGINE}
    # Many tokens: those that come while this loop stands still are one output.
    grown, pieces, last = await asyncio.gather(*(
        whole(engine, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, output_kind=kind))
        for kind in (RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY)))
    texts = [output.outputs[0].text for output in grown]
    async for output in engine.generate(FRANCE, endless):
        break
    aborted = []
    async for output in engine.generate(FRANCE, endless, "mine"):
        aborted.append(output)
        await engine.abort("mine")
    async def late():
        async for _ in engine.generate(FRANCE, endless): pass
    task = asyncio.create_task(late())
    await asyncio.sleep(0.2)
    task.cancel()
    after = await whole(engine, greedy)
    refused = None
    try: await whole(engine, SamplingParams(top_p=7))
    except ValueError as error: refused = str(error)
    running = asyncio.create_task(late())
    await asyncio.sleep(0.2)
    engine.shutdown()
    ended = (await asyncio.gather(running, return_exceptions=True))[0]
    print(json.dumps([texts, "".join(o.outputs[0].text for o in pieces), len(last), last[0].outputs[0].text,
                      [len(aborted) < 400, aborted[-1].outputs[0].finish_reason], after[-1].outputs[0].text,
                      refused, [isinstance(ended, EngineError), str(ended)]]))
asyncio.run(main())
""")
    texts, pieces, count, last, aborted, after, refused, ended = answers
    paris = " Paris.\n\nThe answer is:"
    assert texts[-1] == pieces == last and last.startswith(paris) and count == 1 and after == paris
    assert len(texts) > 2 and all(b.startswith(a) for a, b in zip(texts, texts[1:]))
    assert aborted == [True, "abort"] and refused.startswith("top_p is 7") and ended == [True, "the engine was stopped"]


def test_answers_come_while_another_request_is_added(run):
    """Adding the slow one ends when the quick one's piece has been taken; its own pieces come before that."""
    texts, refused, left = run("""
import queue, threading
from types import SimpleNamespace
import refrain.async_llm

class Slow:
    def __init__(self):
        self.pieces, self.added, self.taken, self.broken = queue.Queue(), threading.Event(), threading.Event(), 0
    def add(self, request):
        prompt = json.loads(request)["prompt"]
        if prompt == "broken":
            self.broken += 1
            if self.broken == 2: raise ValueError("no second answer")
            return 3, []
        if prompt == "quick":
            self.added.set()
            return 1, []
        assert self.added.wait(30), "the quick one is added"
        self.put(1, "one")
        self.put(2, "two")
        assert self.taken.wait(30), "the quick one's piece is taken while the slow one is added"
        self.put(2, "", "stop")
        self.put(1, "", "stop")
        return 2, []
    def put(self, number, text, finish=""):
        self.pieces.put(SimpleNamespace(id=number, text=text, finish_reason=finish, tokens=[], stop_reason="", stop_token=None,
                                        error="", cached_tokens=0, prompt=[]))
    def poll(self, timeout): return [self.pieces.get()]
    def cancel(self, number): self.put(number, "", "abort")
    def stop(self): pass

slow = Slow()
refrain.async_llm.start_engine = lambda options: slow
async def whole(engine, prompt, params=None):
    async for output in engine.generate(prompt, params):
        if prompt == "quick": slow.taken.set()
    return output.outputs[0].text
async def main():
    engine = AsyncLLM("none")
    try: await whole(engine, "broken", SamplingParams(n=2))
    except ValueError as error: refused = str(error)
    texts = await asyncio.gather(whole(engine, "quick"), whole(engine, "slow"))
    print(json.dumps([texts, refused, [len(engine._streams.takers), len(engine._streams.early)]]))
asyncio.run(main())
""")
    assert texts == ["one", "two"] and refused == "no second answer" and left == [0, 0]


def test_a_killed_worker_is_replaced_and_one_too_many_is_an_EngineError(run):
    text, error = run(f"""
import subprocess
def kill():
    for pid in subprocess.run(["pgrep", "-P", str(os.getpid()), "worker"], capture_output=True, text=True).stdout.split():
        os.kill(int(pid), signal.SIGKILL)
        return
import threading
llm = {ENGINE[:-1]}, max_restarts=1)
threading.Timer(0.3, kill).start()
text = llm.generate([FRANCE] * 4, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))[0].outputs[0].text
threading.Timer(0.3, kill).start()
try: llm.generate([FRANCE] * 64, endless)
except EngineError as error: print(json.dumps([text, str(error)]))
""")
    assert text.startswith(" Paris.\n\nThe answer is:") and "workers ended" in error


def test_the_wheel_has_the_command_and_all_that_the_bundle_carries(wheel, python, tmp_path):
    done = subprocess.run([python.parent / "refrain", "generate", "--model", SMOLLM2, "--prompt", "The capital of France is",
                           "--max-tokens", "2", "--temperature", "0"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, " Paris.\n"), done.stderr
    subprocess.run([ROOT / "tools/bundle", "--build", BIN.parent, "--out", tmp_path / "bundle"], check=True,
                   stdout=subprocess.DEVNULL)
    names = zipfile.ZipFile(wheel).namelist()
    carried = {name.rsplit("/", 1)[1] for name in names if name.startswith("refrain/lib") and not name.endswith("/")}
    bundled = {path.name for folder in ("bin", "lib") for path in (tmp_path / "bundle" / folder).iterdir()}
    assert carried == bundled | {"librefrain.so.0.1"} and "refrain/LICENSE" in names
