"""Table and JSON of a run of drills."""
import json
import os
import platform
import statistics
import subprocess
import time

from drills import ledger

COLUMNS = ("fault", "repeats", "detected s", "served again s", "lost", "cut", "ledger")


def spread(values):
    known = sorted(value for value in values if value is not None)
    return {"median": round(statistics.median(known), 3), "max": round(known[-1], 3)} if known else None


def summarise(name, text, outcomes, reason=None):
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    return {"fault": name, "what": text, "repeats": len(outcomes), "not_run": reason,
            "seconds": round(sum(outcome.seconds or 0 for outcome in outcomes), 1),
            "detected_s": spread([outcome.detected for outcome in outcomes]),
            "served_again_s": spread([outcome.served for outcome in outcomes]),
            "lost": sum(outcome.lost for outcome in outcomes), "cut": sum(outcome.cut for outcome in outcomes),
            "ledger": ledger.summary(faults), "runs": [outcome.as_json() for outcome in outcomes]}


def cells(row):
    def both(value):
        return "-" if value is None else f"{value['median']:.2f} / {value['max']:.2f}"
    if row["not_run"]:
        return [row["fault"], "not run", row["not_run"], "", "", "", ""]
    broken = " ".join(f"{rule}:{count}" for rule, count in row["ledger"].items()) or "clean"
    return [row["fault"], str(row["repeats"]), both(row["detected_s"]), both(row["served_again_s"]), str(row["lost"]),
            str(row["cut"]), broken]


def table(rows):
    """Median / maximum of the seconds after the fault."""
    lines = [list(COLUMNS)] + [cells(row) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def markdown(rows):
    """The same as a table of docs/drills.md."""
    lines = [COLUMNS, ["---"] * len(COLUMNS)] + [cells(row) for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def clean(rows):
    """No ledger rule was broken and nothing was lost. A fault that could not be staged breaks nothing."""
    return all(not row["ledger"] and not row["lost"] for row in rows)


def build_of(binaries):
    """The build that was drilled, as it says itself."""
    done = subprocess.run([os.path.join(binaries, "refrain"), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def document(bench, device, rows, began):
    settings = bench.settings
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "build": build_of(settings.binaries),
            "seconds": round(time.monotonic() - began),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores", "load_average": os.getloadavg()[0],
            "device": device, "model": os.path.basename(str(settings.model).rstrip("/")),
            "tensor_parallel_size": settings.tensor_parallel_size, "streams": settings.streams, "seed": settings.seed,
            "options": [str(option) for option in settings.options], "compare": settings.compare, "noise": bench.noise,
            "faults": rows}


def write_json(path, content):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
