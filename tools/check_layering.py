#!/usr/bin/env python3
"""Holds include lines and CMake links to the layers of docs/ARCHITECTURE.md.

A folder may include what its own line of ARROWS names, not what that includes in turn, and GROUND, on which all stand; EXTRA holds
the arrows that cross the rooms, each with its reason. Third-party headers that must stay in few places are listed in ISOLATED. Exit 1 with one line a fault.
"""
import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOP = ("apps", "library", "python", "runtime", "ipc", "kernels", "worker")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}

# The ground floor, each on those before it: results, logs and clocks; what a model's files say.
GROUND = ["runtime/base", "runtime/config/model"]

ARROWS = {
    "apps/refrain": ["runtime/offline", "runtime/plan", "runtime/bootstrap", "runtime/supervise",
                     "runtime/config", "runtime/actor", "ipc/transport"],
    "apps/bench": ["runtime/bench", "runtime/load", "runtime/config"],
    "apps/coordinator": ["runtime/coordinator", "runtime/grammar", "runtime/config"],
    "apps/front": ["runtime/coordinator", "runtime/config"],
    "apps/worker": ["worker/worker", "worker/bench", "runtime/config", "ipc/transport"],
    "library": ["runtime/offline", "library/refrain"],
    "library/refrain": [],
    "python": ["library/refrain"],
    "runtime/bench": ["runtime/offline", "runtime/bootstrap", "runtime/load", "runtime/server", "runtime/config"],
    "runtime/offline": ["runtime/bootstrap", "runtime/supervise", "runtime/server", "runtime/engine", "runtime/grammar",
                        "runtime/text", "runtime/config", "ipc/protocol"],
    "runtime/coordinator": ["runtime/bootstrap", "runtime/supervise", "runtime/server", "runtime/front", "runtime/engine",
                            "runtime/config", "runtime/actor"],
    "runtime/bootstrap": ["runtime/supervise", "runtime/server", "runtime/front", "runtime/engine", "runtime/text", "runtime/config",
                          "runtime/actor", "ipc/transport", "ipc/protocol"],
    "runtime/supervise": ["runtime/engine", "runtime/config", "runtime/actor"],
    "runtime/plan": ["ipc/protocol"],
    "runtime/load": ["runtime/text", "runtime/config", "runtime/actor", "runtime/net"],
    "runtime/server": ["runtime/engine", "runtime/grammar", "runtime/text", "runtime/config",
                       "runtime/actor", "runtime/net", "ipc/protocol"],
    "runtime/front": ["runtime/engine", "runtime/config", "runtime/actor", "ipc/transport", "ipc/protocol"],
    "runtime/engine": ["runtime/sched", "runtime/text", "runtime/config", "runtime/actor",
                       "ipc/transport", "ipc/protocol"],
    "runtime/sched": ["ipc/protocol"],
    "runtime/text": [],
    "runtime/grammar": ["runtime/grammar/library", "runtime/text"],
    "runtime/grammar/library": [],
    "runtime/config": ["ipc/protocol"],
    "runtime/config/model": [],
    "runtime/actor": [],
    "runtime/net": [],
    "runtime/base": [],
    "ipc/transport": ["ipc/protocol"],
    "ipc/protocol": [],
    "ipc/shm": [],
    "worker/worker": ["worker/runner", "worker/transfer", "worker/device", "worker/device/factory", "runtime/actor", "ipc/transport",
                      "ipc/protocol"],
    "worker/bench": ["worker/runner", "worker/graph", "worker/weights", "worker/comm", "worker/device",
                     "worker/device/factory", "ipc/protocol"],
    "worker/runner": ["worker/graph", "worker/dispatch", "worker/kv", "worker/weights", "worker/models", "worker/program",
                      "worker/comm", "worker/device", "kernels/core", "ipc/protocol"],
    "worker/graph": ["worker/dispatch", "worker/program", "worker/weights", "worker/comm", "worker/device", "kernels/core"],
    "worker/dispatch": ["kernels/core"],
    "worker/program": ["worker/dispatch", "kernels/core"],
    "worker/transfer": ["worker/kv", "worker/device", "kernels/core", "ipc/protocol"],
    "worker/kv": ["worker/program", "worker/device", "ipc/protocol"],
    "worker/weights": ["worker/program", "worker/device", "kernels/core"],
    "worker/models": ["worker/program", "kernels/core", "ipc/protocol"],
    "worker/comm": ["worker/device", "kernels/core"],
    "worker/comm/host": ["worker/comm", "worker/device/host", "kernels/host", "kernels/core", "ipc/shm"],
    "worker/comm/cuda": ["worker/comm", "worker/comm/host", "worker/device/cuda", "kernels/cuda", "kernels/core"],
    "worker/device": ["kernels/core"],
    "worker/device/host": ["worker/device", "kernels/host", "kernels/core", "ipc/shm"],
    "worker/device/cuda": ["worker/device", "kernels/cuda", "kernels/core"],
    "worker/device/factory": ["worker/device", "worker/device/host", "worker/comm", "worker/comm/host", "kernels/host"],
    "worker/device/factory/cuda": ["worker/device/factory", "worker/device", "worker/device/cuda", "worker/comm",
                                   "worker/comm/cuda", "kernels/cuda"],
    "kernels/host": ["kernels/core"],
    "kernels/cuda": ["kernels/core"],
    "kernels/core": [],
}

EXTRA = {
    ("ipc/transport", "runtime/actor"): "a socket is an awaitable on the actor's executor",
    ("runtime/supervise", "ipc/shm"): "the supervisor reads the ranks' flight recorders",
    ("runtime/bootstrap", "worker/dispatch"): "graph options are checked by the serving dispatcher, and the names of backends "
                                              "and ops, before anything starts",
    ("runtime/plan", "worker/dispatch"): "the dispatcher that serves explains the plan",
    ("runtime/bench", "worker/dispatch"): "the time of a dispatch is measured without workers",
    ("worker/worker", "ipc/shm"): "the flight recorder lies in memory shared with the supervisor",
    ("worker/worker", "runtime/config"): "options of debugging come by a worker's command line",
    ("worker/runner", "runtime/config"): "options of debugging",
    ("worker/runner", "runtime/grammar"): "masks of grammars are filled beside the device",
    ("worker/dispatch", "ipc/protocol"): "modes and keys travel in messages; one enum, not two",
    ("worker/graph", "ipc/protocol"): "the manifest of captures travels in messages",
    ("worker/program", "ipc/protocol"): "kinds of state groups travel in messages; one enum, not two",
    ("worker/comm", "ipc/protocol"): "where the ranks of a group are travels in messages; one struct, not two",
    ("worker/transfer", "ipc/transport"): "blocks of groups on different machines come over tcp",
    ("worker/comm/host", "ipc/transport"): "ranks that share no memory meet over tcp",
}

ISOLATED = [
    ("CUDA and NCCL", re.compile(r"^(cuda|cublas|cudnn|curand|cusparse|nccl|nvrtc|nvml|nvtx3/|nvToolsExt|cub/|thrust/|"
                                 r"cute/|cutlass/|cooperative_groups|device_launch|driver_types|mma\.h|flashinfer/)"),
     lambda folder: "cuda" in folder.split("/"), "a cuda/ folder"),
    ("ZeroMQ, cereal, Asio and Beast", re.compile(r"^(zmq|cereal/|boost/asio|boost/beast|asio)"),
     lambda folder: folder.startswith(("ipc", "runtime/actor", "runtime/net", "runtime/server", "runtime/load")),
     "ipc/, runtime/actor, runtime/net, runtime/server and runtime/load"),
    ("nlohmann/json.hpp, whose parser is compiled once,", re.compile(r"^nlohmann/json\.hpp"),
     lambda folder: folder == "runtime/base", "runtime/base/json.h"),
]

# (file, header): reason. For a header of ISOLATED that one file outside those folders must have.
ISOLATION_EXCEPTIONS = {}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^">]+)[">]')
LIBRARY = re.compile(r"refrain_library\(\s*(\w+)([^)]*)\)", re.S)


def granted(node):
    """Every folder that `node` may include: what its line names and what all stand on."""
    ground = GROUND[:GROUND.index(node)] if node in GROUND else GROUND
    return {*ground, *ARROWS.get(node, []), *(b for a, b in EXTRA if a == node)}


def reachable(node):
    """What the folders that `node` may include grant in turn, and theirs."""
    seen, stack = set(), [node]
    while stack:
        new = granted(stack.pop()) - seen
        seen |= new
        stack += new
    return seen


def layer_of(folder):
    """The longest known layer that holds the folder, or None."""
    parts = folder.split("/")
    for n in range(len(parts), 0, -1):
        if "/".join(parts[:n]) in ARROWS:
            return "/".join(parts[:n])
    return None


def sources(root):
    for top in TOP:
        yield from (f for f in sorted((root / top).rglob("*")) if f.suffix in SUFFIXES)


def check_edge(place, folder, target_folder):
    """A fault's text, or None: may `folder` use `target_folder`?"""
    source, target = layer_of(folder), layer_of(target_folder)
    if source is None:
        return f"{place}: the folder {folder} belongs to no layer; add it to ARROWS in tools/check_layering.py"
    if target is None:
        return f"{place}: {target_folder} belongs to no layer"
    if source != target and target not in granted(source):
        return f"{place}: {source} may not use {target}"
    return None


def check_isolation(file, folder, place, header):
    for name, pattern, allowed, where in ISOLATED:
        if pattern.match(header) and not allowed(folder) and (file, header) not in ISOLATION_EXCEPTIONS:
            yield f"{place}: {name} headers belong in {where} only, here <{header}>"


def check_file(root, path):
    file = path.relative_to(root).as_posix()
    folder = path.parent.relative_to(root).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        place = f"{file}:{number}"
        first = header.split("/")[0]
        if first in TOP and "/" in header:
            fault = check_edge(place, folder, header.rsplit("/", 1)[0])
            if fault:
                yield fault
        elif first == "tests":
            yield f"{place}: the product may not include tests"
        elif quote == '"' and not (path.parent / header).exists():
            yield f'{place}: project headers are included from the root, as "runtime/base/result.h", not "{header}"'
        elif header.startswith(".."):
            yield f'{place}: project headers are included from the root, not as "{header}"'
        yield from check_isolation(file, folder, place, header)


def check_links(root):
    """Each refrain_library's dependencies against the same arrows."""
    libraries, folders = [], {}
    for top in TOP:
        for path in sorted((root / top).rglob("CMakeLists.txt")):
            folder = path.parent.relative_to(root).as_posix()
            for name, rest in LIBRARY.findall(re.sub(r"#.*", "", path.read_text(encoding="utf-8"))):
                folders[name] = folder
                libraries.append((f"{folder}/CMakeLists.txt ({name})", folder, rest.split()))
    for place, folder, words in libraries:
        for word in words:
            if word in folders:
                fault = check_edge(place, folder, folders[word])
                if fault:
                    yield fault


def check_arrows():
    """The rules themselves: no cycle, no unknown name."""
    for a, b in [(a, b) for a in ARROWS for b in ARROWS[a]] + list(EXTRA):
        if a not in ARROWS or b not in ARROWS:
            yield f"check_layering.py: the arrow {a} -> {b} names an unknown layer"
    for node in ARROWS:
        if node in reachable(node):
            yield f"check_layering.py: {node} reaches itself"


def check(root):
    faults = list(check_arrows()) + list(check_links(root))
    count = 0
    for path in sources(root):
        count += 1
        faults += check_file(root, path)
    return count, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to check (default: this one)")
    arguments = parser.parse_args()
    count, faults = check(arguments.root)
    print("\n".join(faults + [f"layering: {count} files, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
