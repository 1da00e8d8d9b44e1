"""What a launcher's environment says to `worker`: an option wins, two launchers that disagree are exit code 64."""
import os
import subprocess

from conftest import BIN, TINY, within


def worker(variables, *options):
    """Of a worker that cannot get further than its options: its coordinator's address has no keys."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", **variables}
    return subprocess.run([BIN / "worker", "--model", TINY / "qwen3", "--device", "host", *map(str, options)],
                          env=environment, capture_output=True, text=True, timeout=within(60))


def test_launchers_that_disagree_are_both_named():
    done = worker({"RANK": "0", "SLURM_PROCID": "1", "WORLD_SIZE": "2"})
    assert done.returncode == 64
    assert "0 (RANK)" in done.stderr and "1 (SLURM_PROCID)" in done.stderr, done.stderr
    done = worker({"RANK": "0", "WORLD_SIZE": "2", "LWS_GROUP_SIZE": "4"})
    assert done.returncode == 64
    assert "2 (WORLD_SIZE)" in done.stderr and "4 (LWS_GROUP_SIZE)" in done.stderr, done.stderr


def test_an_option_wins_and_the_coordinator_is_on_the_leaders_host():
    done = worker({"RANK": "0", "SLURM_PROCID": "1", "WORLD_SIZE": "2"}, "--rank", 1)
    assert done.returncode == 64
    assert "tcp://127.0.0.1:5555 needs --curve-key" in done.stderr, done.stderr
    assert "SLURM_PROCID" not in done.stderr


def test_rank_and_size_of_slurm_are_taken():
    done = worker({"SLURM_PROCID": "3", "SLURM_NTASKS": "2"})
    assert done.returncode == 64
    assert "rank 3 is not among the 2 ranks 0 to 1" in done.stderr, done.stderr


def test_an_address_for_the_other_ranks_is_one_of_this_machine():
    for address in ("*", "0.0.0.0:7000", "host:port"):
        done = worker({"RANK": "0", "WORLD_SIZE": "2"}, "--local-addr", address)
        assert done.returncode == 64
        assert f'local-addr: "{address}" is not HOST or HOST:PORT' in done.stderr, done.stderr
