"""The end-to-end gate: checkpoints of real geometry, arrivals over HTTP, and every token judged (docs/gate.md)."""
import os

# Read when numpy is first imported. These products are small, and threads that wait for each other on busy cores take
# longer than one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
