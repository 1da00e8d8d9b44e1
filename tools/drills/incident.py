"""The incident records that the server writes when it loses a process (R-12)."""
import json


def incidents_since(folder, wall):
    """Records of a folder written after `wall` (seconds since 1970), oldest first."""
    found = []
    for path in folder.glob("incident-*.json"):
        try:
            written = path.stat().st_mtime
            if written >= wall - 0.1:   # file times are coarser than clocks
                found.append((written, json.loads(path.read_text(encoding="utf-8"))))
        except FileNotFoundError:       # an old record gave way to a new one
            continue
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]
