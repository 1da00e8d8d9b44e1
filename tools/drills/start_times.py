"""How long each part of a group's start took, from the time stamps of the server's log."""
import re

STAMP = re.compile(r"^(\d\d):(\d\d):(\d\d)\.(\d{3}) \S+ \[(worker \d+|coordinator|front|serve|refrain)\] (.*)$")
# Words of a worker's log line, and the part that ends with it.
PARTS = (("opening the device", "process"), ("rank ", "context"), ("joined group", "hello"), ("group of ", "nccl"),
         ("weights:", "weights"), ("ready:", "capture"))
DAY = 86400.0


def lines(text):
    """(seconds of the day, who, what) of every line with a time stamp."""
    for line in text.splitlines():
        found = STAMP.match(line)
        if found:
            hours, minutes, seconds, thousandths, who, what = found.groups()
            yield int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(thousandths) / 1000, who, what


def start_times(text, begun):
    """{part: seconds} of the slowest rank at each part; `begun`: the second of the day when the group was lost."""
    ranks = {}
    for when, who, what in lines(text):
        part = next((part for words, part in PARTS if what.startswith(words)), None)
        if who.startswith("worker") and part:
            last, times = ranks.setdefault(who, [begun, {}])
            if part == "process":   # the process of this rank that came last counts
                last, times = begun, {}
            times[part] = (when - last) % DAY
            ranks[who] = [when, times]
    worst = {}
    for _, times in ranks.values():
        for part, seconds in times.items():
            worst[part] = round(max(seconds, worst.get(part, 0.0)), 3)
    return worst
