"""docs/options.md is what the programs say, and the check of it can fail."""
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("REFRAIN_BUILD_DIR", ROOT / "build"))


def check(root=ROOT):
    return subprocess.run([root / "tools/options_page", "--build", BUILD, "--check"], capture_output=True, text=True)


def test_the_page_of_options_is_made_from_the_programs():
    done = check()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_that_says_something_else_is_found(tmp_path):
    for name in ("tools/options_page", "docs/options.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
        (tmp_path / name).chmod(0o755)
    page = tmp_path / "docs/options.md"
    page.write_text(page.read_text().replace("--max-num-seqs", "--max-num-seq"))
    assert check(tmp_path).returncode == 1


def test_testing_options_stand_apart_and_defaults_are_shown():
    text = subprocess.run([BUILD / "bin/refrain", "serve", "--help"], capture_output=True, text=True, check=True).stdout
    groups = {block.split(":\n")[0]: block for block in text.split("\n\n\n")}
    assert "--fault" in groups["Testing"] and text.count("--fault ") == 1
    assert "--max-num-batched-tokens INT from 1 to 1048576 [2048]" in text
    assert "--host TEXT [127.0.0.1]" in text
