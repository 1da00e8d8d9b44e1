#!/usr/bin/env python3
"""Waits until a Refrain server is ready, asks it one question, prints the answer and the graphs that ran."""
import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request

WIDTH = 110
QUESTION = "What is gravity? Answer in one sentence."


def fetch(base, path, body=None, timeout=120):
    """(status, text). A refused connection raises OSError."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(base + path, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def alive(pid):
    """Is the process there and not a zombie?"""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ready(base, pid, limit):
    """Seconds until /ready answers 200; None when the server dies or takes longer than the limit."""
    begin = shown = time.monotonic()
    while time.monotonic() - begin < limit:
        if pid and not alive(pid):
            print("  the server has ended before it was ready", flush=True)
            return None
        try:
            if fetch(base, "/ready", timeout=5)[0] == 200:
                return time.monotonic() - begin
        except OSError:
            pass
        if time.monotonic() - shown >= 2:
            shown = time.monotonic()
            print(f"  waiting for the model to load and its graphs to be captured: {shown - begin:.0f} s", flush=True)
        time.sleep(0.05)
    print(f"  the server was not ready within {limit} s", flush=True)
    return None


def ask(base, model):
    begin = time.monotonic()
    status, text = fetch(base, "/v1/chat/completions", {
        "model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64, "temperature": 0})
    if status != 200:
        print(f"  the chat request was answered with status {status}: {text[:500]}")
        return False
    answer = json.loads(text)
    seconds, tokens = time.monotonic() - begin, answer["usage"]["completion_tokens"]
    print(f"\n  > {QUESTION}\n  {answer['choices'][0]['message']['content']}")
    print(f"\n  {tokens} tokens in {seconds:.2f} s ({tokens / seconds:.1f} tokens/s)\n", flush=True)
    return True


def show_graphs(base):
    """The server's own table of the steps it ran, by size and mode (CG-32)."""
    status, text = fetch(base, "/cudagraphs?format=text")
    if status != 200:
        print(f"  /cudagraphs was answered with status {status}: {text[:200]}")
        return False
    for line in text.rstrip().splitlines():
        print("  " + (line if len(line) <= WIDTH else line[:WIDTH - 2] + " …"))
    print(flush=True)
    return json.loads(fetch(base, "/cudagraphs?format=json")[1])["steps"] > 0


def undisturbed(base):
    """R-21: no worker group was lost on the way to the answer, and no request had to be resumed."""
    status, text = fetch(base, "/metrics")
    counts = {}
    for line in text.splitlines() if status == 200 else []:
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            counts[name.split("{")[0]] = float(value)
    good = True
    for name in ("refrain:worker_group_restarts_total", "refrain:requests_resumed_total", "refrain:requests_without_logit_total"):
        if counts.get(name) != 0:
            print(f"  {name} is {counts.get(name, 'not in /metrics')} and not 0: the workers failed on the way (see the server's log)")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, help="the server's process: stop waiting when it ends")
    parser.add_argument("--limit", type=float, default=300, help="seconds to wait for readiness")
    arguments = parser.parse_args()
    base = f"http://127.0.0.1:{arguments.port}"
    if arguments.pid and not os.path.isdir("/proc"):
        parser.error("--pid needs /proc")
    seconds = wait_until_ready(base, arguments.pid, arguments.limit)
    if seconds is None:
        return 1
    print(f"  ready after {seconds:.1f} s", flush=True)
    model = json.loads(fetch(base, "/v1/models")[1])["data"][0]["id"]
    return 0 if ask(base, model) and show_graphs(base) and undisturbed(base) else 1


if __name__ == "__main__":
    sys.exit(main())
