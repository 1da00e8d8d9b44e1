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
                        ("quickstart", "python", "library", "cuda-graphs", "processes", "serving", "clients", "lora",
                         "speculation", "load", "debugging", "troubleshooting"))]


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


def commands():
    """(page, words) of every command line in the users' pages; prompts and comments are left out."""
    for name in USERS:
        for kind, block in FENCE.findall((ROOT / name).read_text()):
            if kind not in ("", "sh", "bash"):
                continue
            for line in block.replace("\\\n", " ").splitlines():
                words = line.removeprefix("$ ").split(" #")[0].split()
                if words and re.fullmatch(r"(build/bin/)?(refrain|coordinator|worker)|tools/\w+|tests/gpu/check", words[0]):
                    yield name, shlex.split(line.removeprefix("$ ").split(" #")[0])


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
