"""A server under the limits of its shell: it serves or says what it lacks, and leaves nothing behind."""
import concurrent.futures
import subprocess

import pytest
from conftest import BIN, TINY, leftovers, within

SMALL = ["--max-num-seqs", 8, "--max-model-len", 512]


def limited(limit, *argv, output):
    """A run under a limit of the shell's."""
    words = " ".join(map(str, argv))
    return subprocess.run(["bash", "-c", f"ulimit {limit}; exec {words}"], stdout=output, stderr=output,
                          timeout=within(60))


def test_a_file_size_limit_of_zero_leaves_nothing_behind(tmp_path):
    """With a log that cannot be written, too; the server may serve or say why not."""
    def ended(output):
        return limited("-f 0", "timeout", "-s", "TERM", 5, BIN / "refrain", "serve", TINY / "qwen3", "--port", 0, *SMALL,
                       output=output).returncode
    with (tmp_path / "log").open("w") as log, concurrent.futures.ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(ended, (subprocess.DEVNULL, log)))
    assert set(codes) <= {64, 75, 124}, "no signal ends it"
    assert leftovers() == []


# Who asks first depends on the machine: a thread's stack or scratch, a library that aborts, the worker's buffers, or its KV cache,
# whose size is a matter of configuration.
@pytest.mark.parametrize("kilobytes", [60000, 80000, 90000])
def test_too_little_address_space_exits_75_and_says_so(tmp_path, kilobytes):
    with (tmp_path / "log").open("w") as output:
        done = limited(f"-v {kilobytes}", "timeout", "-s", "TERM", within(6), BIN / "refrain", "serve", TINY / "qwen3", "--port", 0,
                       "--max-restarts", 0, *SMALL, output=output)
    log = (tmp_path / "log").read_text()
    if "ready: http" in log:  # the most of them can be enough
        assert done.returncode == 124 and kilobytes == 90000, log
    elif "KV blocks do not fit" in log:
        assert done.returncode == 64, log
    else:
        assert done.returncode == 75 and ("the system gave no" in log or "signal 6 (Aborted)" in log), log
