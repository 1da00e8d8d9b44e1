"""Pages can be trusted: links lead somewhere, commands have the options that they show, messages are those of the programs."""
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("REFRAIN_BUILD_DIR", ROOT / "build")) / "bin"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
USERS = ["README.md", *(f"docs/{name}.md" for name in
                        ("quickstart", "python", "library", "cuda-graphs", "processes", "prefill-decode", "serving", "clients",
                         "lora", "speculation", "load", "debugging", "troubleshooting"))]
PAGES = "process/test_pages.py::"
# Where the commands of a page run, by how they begin: the test, or the command of its own for what the gate cannot have (hours,
# the network, several hosts).
RUN_BY = {
    ("README.md", "tools/test"): ".ci/run",
    ("README.md", "tools/quickstart"): PAGES + "test_the_quickstart_answers_and_keeps_serving",
    ("README.md", "build/bin/refrain serve --model"): PAGES + "test_the_server_of_a_page_answers_the_request_of_that_page",
    ("README.md", "curl"): PAGES + "test_the_server_of_a_page_answers_the_request_of_that_page",
    ("quickstart", "tools/quickstart"): PAGES + "test_the_quickstart_answers_and_keeps_serving",
    ("quickstart", "hf download"): PAGES + "test_a_model_of_the_hugging_face_cache_runs_by_its_name",
    ("quickstart", "build/bin/refrain serve Qwen"): PAGES + "test_a_model_of_the_hugging_face_cache_runs_by_its_name",
    ("quickstart", "build/bin/refrain serve --model"): PAGES + "test_the_server_of_a_page_answers_the_request_of_that_page",
    ("quickstart", "curl"): PAGES + "test_the_server_of_a_page_answers_the_request_of_that_page",
    ("quickstart", "build/bin/refrain generate --model build"): PAGES + "test_the_prompt_of_the_quickstart_page_is_answered",
    ("quickstart", "build/bin/refrain generate --model DIR"): PAGES + "test_the_file_of_prompts_of_the_quickstart_page_is_answered",
    ("python", "tools/install"): "tools/newcomer",
    ("python", "pip install ."): "tools/newcomer",
    ("python", "pip install . -C"): "process/python_package.py::wheel",
    ("library", "cmake --preset"): "tools/test",
    ("library", "cmake --install"): "process/test_library.py::prefix",
    ("cuda-graphs", "build/bin/refrain plan"): "tools/test_docs.py::test_the_plan_that_is_shown_is_what_the_program_says",
    ("processes", "build/bin/refrain serve"): PAGES + "test_the_groups_of_a_page_answer",
    ("processes", "build/bin/refrain keygen"): PAGES + "test_the_processes_of_the_page_serve_when_started_by_hand",
    ("processes", "coordinator"): PAGES + "test_the_processes_of_the_page_serve_when_started_by_hand",
    ("processes", "worker"): PAGES + "test_the_processes_of_the_page_serve_when_started_by_hand",
    ("processes", "srun"): "process/test_launchers.py::test_rank_and_size_of_slurm_are_taken",
    ("prefill-decode", "build/bin/refrain serve"): PAGES + "test_the_groups_of_a_page_answer",
    ("prefill-decode", "coordinator"): PAGES + "test_the_processes_of_the_page_serve_when_started_by_hand",
    ("prefill-decode", "worker"): PAGES + "test_the_processes_of_the_page_serve_when_started_by_hand",
    ("serving", "build/bin/refrain serve"): PAGES + "test_the_embeddings_of_the_serving_page_are_answered",
    ("serving", "curl http://127.0.0.1:8000/v1/embeddings"): PAGES + "test_the_embeddings_of_the_serving_page_are_answered",
    ("serving", "curl"): PAGES + "test_the_requests_of_the_serving_page_are_answered",
    ("clients", "lm_eval"): "tools/lm_eval",
    ("clients", "aiperf"): "tools/aiperf",
    ("lora", "refrain serve"): PAGES + "test_the_adapters_of_the_lora_page_answer",
    ("lora", "curl"): PAGES + "test_the_adapters_of_the_lora_page_answer",
    ("speculation", "refrain serve"): PAGES + "test_the_servers_of_the_speculation_page_answer",
    ("load", "refrain bench serve"): PAGES + "test_the_load_of_the_load_page_has_the_lines_that_it_shows",
    ("debugging", "refrain generate"): PAGES + "test_the_values_of_the_debugging_page_are_compared",
    ("debugging", ".venv/bin/python tools/compare_values"): PAGES + "test_the_values_of_the_debugging_page_are_compared"}


def tracked(*patterns):
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: (ROOT / name).read_text() for name in listed if (ROOT / name).is_file()}


def pages():
    return tracked("*.md")


def lost_pages(name, text):
    """Pages that are named in words, from the root of the tree, and are not there."""
    return [f"{name}: {page} is not there" for page in re.findall(r"\bdocs/[\w/.-]+\.md\b", text) if not (ROOT / page).exists()]


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    return found


def broken_links(name, page, read=lambda path: path.read_text()):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (ROOT / name).parent / path if path else ROOT / name
        if not place.exists():
            broken.append(f"{name}: {target} is not there")
        elif anchor and anchor not in anchors(page if not path else read(place)):
            broken.append(f"{name}: {target} has no such heading")
    return broken + lost_pages(name, page)


def test_every_link_leads_to_a_page_and_a_heading():
    found = [link for name, page in pages().items() for link in broken_links(name, page)]
    assert found == []


def test_every_page_that_code_names_is_there():
    code = tracked("apps", "cmake", "ipc", "kernels", "runtime", "tools", "worker", "tests/*.h", "tests/*.cpp", "tests/*.cu")
    assert sum("docs/" in text for text in code.values()) > 5
    assert [page for name, text in code.items() for page in lost_pages(name, text)] == []


@pytest.mark.parametrize("text", ["[a](no-such.md)", "[a](ARCHITECTURE.md#no-such)", "[a](#no-such)", "see docs/no-such.md"])
def test_a_broken_link_is_found(text):
    assert len(broken_links("docs/README.md", "# A page\n" + text)) == 1
    assert broken_links("docs/README.md", "# A page\n[a](ARCHITECTURE.md#one-step) [b](#a-page)") == []


def test_every_page_stands_in_the_index():
    index = (ROOT / "docs/README.md").read_text()
    missing = [name for name in pages() if name.startswith("docs/") and name != "docs/README.md"
               and not name.startswith("docs/adr/") and f"]({name.removeprefix('docs/')})" not in index]
    assert missing == []


OURS = r"(build/bin/)?(refrain|coordinator|worker)|tools/\w+|tests/gpu/check"


def lines(programs):
    """(page, line) of every command of these programs in the users' pages; prompts and comments are left out."""
    for name in USERS:
        for kind, block in FENCE.findall((ROOT / name).read_text()):
            for line in block.replace("\\\n", " ").splitlines() if kind in ("", "sh", "bash") else []:
                line = line.removeprefix("$ ").split(" #")[0]
                if re.fullmatch(programs, line.split(" ")[0]):
                    yield name, line


def commands():
    """The same of our own programs, (page, words)."""
    for name, line in lines(OURS):
        yield name, shlex.split(line)


def taken_by(page, line):
    """The longest beginning of a command that RUN_BY has for this page; None: none."""
    short = page.removeprefix("docs/").removesuffix(".md") if page != "README.md" else page
    found = [beginning for name, beginning in RUN_BY if name == short and (line + " ").startswith(beginning)]
    return (short, max(found, key=len)) if found else None


def test_every_command_of_the_users_pages_runs_somewhere():
    shown = list(lines(OURS + r"|curl|pip|hf|cmake|srun|lm_eval|aiperf|\.venv/bin/python"))
    assert [(page, line) for page, line in shown if taken_by(page, line) is None] == []
    assert set(RUN_BY) - {taken_by(page, line) for page, line in shown} == set(), "of no command any more"
    assert taken_by("docs/load.md", "refrain serve --model DIR") is None
    for where in set(RUN_BY.values()):
        path, _, name = where.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / path).read_text() if name else os.access(ROOT / path, os.X_OK), where


def help_of(program):
    done = subprocess.run([*program, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, f"{program}: {done.stderr}"
    return done.stdout


def unknown_options(words):
    """The options in a command's words that its program does not have; the program itself, when it is not there."""
    if words[0].startswith(("tools/", "tests/")):
        if not os.access(ROOT / words[0], os.X_OK):
            return [words[0]]
        text = (ROOT / words[0]).read_text()
        words = words[:words.index("--")] if "--" in words else words
    else:
        program = [BIN / Path(words[0]).name]
        if program[0].name == "refrain":
            program += words[1:3] if words[1] == "bench" else words[1:2]
            program += ["--base-url", "http://127.0.0.1"] if "--base-url" in words else []
        text = help_of(program)
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    return [option for option in options if not re.search(rf"{re.escape(option)}\b(?!-)", text)]


def test_every_command_of_the_users_pages_has_its_options():
    shown = list(commands())
    assert [(page, words, unknown_options(words)) for page, words in shown if unknown_options(words)] == []
    assert len(shown) >= 20


@pytest.mark.parametrize(("line", "unknown"), [
    ("refrain serve --model DIR --max-num-seq 4", "--max-num-seq"), ("tools/quickstart --kep", "--kep"),
    ("worker --rank 0 --port 1", "--port"), ("tools/no_such", "tools/no_such")])
def test_an_option_that_no_program_has_is_found(line, unknown):
    assert unknown_options(line.split()) == [unknown]


def test_the_plan_that_is_shown_is_what_the_program_says(tmp_path):
    blocks = [block for kind, block in FENCE.findall((ROOT / "docs/cuda-graphs.md").read_text()) if kind == "json"]
    (tmp_path / "plan.json").write_text(blocks[0])
    done = subprocess.run([BIN / "refrain", "plan", tmp_path / "plan.json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["dispatch"] == [json.loads(line) for line in blocks[1].splitlines()]


def sources():
    """The programs' text with strings that stand on several lines joined, and quotes as people see them."""
    text = "\n".join(path.read_text() for folder in ("apps", "runtime", "worker", "ipc")
                     for path in sorted((ROOT / folder).rglob("*.cpp")))
    return re.sub(r'"\s*\n\s*"', "", text).replace('\\"', '"')


def messages():
    for line in (ROOT / "docs/troubleshooting.md").read_text().splitlines():
        cells = line.strip("| ").split(" | ")
        cell = cells[1] if cells[0].isdigit() and len(cells) == 3 else cells[0]
        if line.startswith("| `") or cells[0].isdigit() and len(cells) == 3:
            yield from re.findall(r"`([^`]*[ …][^`]*)`", cell)


def unsaid(message, text):
    parts = [part.strip() for part in message.split("…")]
    return [part for part in parts if len(part) >= 6 and part not in text]


def test_every_message_of_the_troubleshooting_page_is_one_of_the_programs():
    text, quoted = sources(), list(messages())
    assert [message for message in quoted if unsaid(message, text)] == []
    assert len(quoted) >= 35
    assert unsaid("the server is going home", text)
