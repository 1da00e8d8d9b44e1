"""The end-to-end gate: checkpoints of real geometry, arrivals over HTTP, and every token judged (docs/gate.md)."""
