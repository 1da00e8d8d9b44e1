"""A server under the limits of its shell: it serves or says what it lacks, and leaves nothing behind."""
import concurrent.futures
import subprocess

import pytest
from conftest import BIN, SANITIZED, TINY, leftovers, wait_for, within

SMALL = ["--max-num-seqs", 8, "--max-model-len", 512]


def limited(limit, *argv, output):
    """Starts a program under a limit of the shell's."""
    words = " ".join(map(str, argv))
    return subprocess.Popen(["bash", "-c", f"ulimit {limit}; exec {words}"], stdout=output, stderr=output)


def test_a_file_size_limit_of_zero_leaves_nothing_behind(tmp_path):
    """With a log that cannot be written, too; the server may serve or say why not."""
    def ended(output):
        return limited("-f 0", "timeout", "-s", "TERM", 5, BIN / "refrain", "serve", TINY / "qwen3", "--port", 0, *SMALL,
                       output=output).wait(timeout=within(60))
    with (tmp_path / "log").open("w") as log, concurrent.futures.ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(ended, (subprocess.DEVNULL, log)))
    assert set(codes) <= {64, 75, 124}, "no signal ends it"
    assert leftovers() == []


# Who asks first depends on the machine: a thread's stack or scratch, a library that aborts, the worker's buffers, or its KV cache,
# whose size is a matter of configuration.
@pytest.mark.skipif(SANITIZED, reason="a sanitizer maps more than any of them")
@pytest.mark.parametrize("kilobytes", [60000, 80000, 90000])
def test_too_little_address_space_exits_75_and_says_so(tmp_path, kilobytes):
    def read():
        return (tmp_path / "log").read_text()
    with (tmp_path / "log").open("w") as output:
        server = limited(f"-v {kilobytes}", BIN / "refrain", "serve", TINY / "qwen3", "--port", 0, "--max-restarts", 0, *SMALL,
                         output=output)
    try:
        wait_for(lambda: server.poll() is not None or "ready: http" in read(), 60, "it is ready or ends")
    finally:
        server.terminate()  # of one that has ended: nothing
    code, log = server.wait(timeout=within(40)), read()
    if "ready: http" in log:  # the most of them can be enough
        assert code == 0 and kilobytes == 90000, log
    elif "KV blocks do not fit" in log:
        assert code == 64, log
    else:
        assert code == 75 and ("the system gave no" in log or "signal 6 (Aborted)" in log), log
