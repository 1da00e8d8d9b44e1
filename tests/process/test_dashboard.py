"""The page of a running server: who may open it, what it reads, and its script on the server's own answers."""
import html.parser
import json
import re
import shutil
import subprocess

import pytest
from conftest import ROOT, TINY

PAGE = (ROOT / "runtime/server/dashboard.html").read_text()
SCRIPT = PAGE.split("<script>")[1].split("</script>")[0]
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
KEY = {"Authorization": "Bearer sesame"}
VOID = {"meta", "input", "br", "link"}
OPTIONAL_END = {"p", "th", "tr", "td", "li"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """(status, text) of each path of a server with a key that has answered one request."""
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("dashboard") / "serve.log", "--api-key", "sesame", "--audit-rate", 1,
                    model=TINY / "qwen3", tp=1).start()
    try:
        before = server.get("/metrics", KEY)
        body = {"prompt": [1, 2, 3], "max_tokens": 12, "ignore_eos": True, "temperature": 0}
        assert server.post("/v1/completions", body, KEY)[0] == 200
        yield {"server": server, "before": before, "metrics": server.get("/metrics", KEY),
               "graphs": server.get("/cudagraphs?format=json", KEY), "ready": server.get("/ready")}
    finally:
        assert server.stop() == 0


def test_the_page_is_open_and_asks_for_the_key_itself(answers):
    server = answers["server"]
    assert server.get("/dashboard") == (200, PAGE) == server.get("/", BROWSER)
    assert server.get("/")[0] == 401 and server.get("/metrics", BROWSER)[0] == 401
    status, form = server.get("/cudagraphs", BROWSER)
    assert status == 401 and "This server has keys" in form and "steps" not in form
    assert "needs a key" in json.loads(server.get("/cudagraphs")[1])["error"]["message"]
    assert "Graphs that ran" in server.get("/cudagraphs", BROWSER | KEY)[1]
    assert "GET /dashboard" in json.loads(server.get("/", KEY)[1])["routes"]


def test_the_page_takes_no_body_R24(answers):
    status, text = answers["server"].request("GET", "/dashboard", b"{}")
    assert status == 413 and "takes no body" in text
    assert answers["server"].request("POST", "/dashboard", b"{}")[0] == 405


def test_every_metric_and_field_that_the_page_reads_is_there(answers):
    status, text = answers["metrics"]
    assert status == 200
    exposed = set(re.findall(r"^refrain:(\w+)", text, re.M))
    named = set(re.findall(r'(?:sum|speed|total)\((?:\w+(?:\.\w+)?, )?"(\w+)"', SCRIPT)) | {
        name + "_bucket" for name in re.findall(r'between\([\w.]+, metrics, "(\w+)"', SCRIPT)} | {"cudagraph_dispatch_total"}
    assert len(named) > 15 and not named - exposed, named - exposed
    graphs = json.loads(answers["graphs"][1])
    assert {"steps", "state", "dispatch", "audit", "ranks"} <= set(graphs) and "first" in graphs["audit"]
    assert {"mode", "num_tokens", "padded_tokens", "paddings", "count"} <= set(graphs["dispatch"][0])
    assert {"device", "cudagraph_mode", "manifest", "memory"} <= set(graphs["ranks"][0])
    assert {"status", "detail"} <= set(json.loads(answers["ready"][1]))


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.faults = [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        self.faults += [f"{tag} loads {value}" for name, value in attributes if name in ("src", "href") and "//" in value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open[-1] != tag and self.open[-1] in OPTIONAL_END:
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> ends nothing")


def test_the_page_is_sound_html_that_loads_nothing_else():
    tags = Tags()
    tags.feed(PAGE)
    assert not tags.faults and not [tag for tag in tags.open if tag not in OPTIONAL_END]
    assert len(tags.ids) == len(set(tags.ids))
    used = set(re.findall(r'(?:at|show|chart)\("(\w+)"', SCRIPT))
    assert len(used) > 20 and not used - set(tags.ids), used - set(tags.ids)
    assert "prefers-color-scheme: dark" in PAGE and "innerHTML" not in PAGE  # what a server says is text


STAND_IN = """
const nodes = new Map();
function node(id) {
  return {id, children: [], attributes: {}, textContent: "", hidden: false, className: "",
    setAttribute(name, value) { this.attributes[name] = value; }, appendChild(child) { this.children.push(child); return child; },
    replaceChildren(...all) { this.children = all; }, prepend(child) { this.children.unshift(child); },
    addEventListener() {}, remove() {}};
}
const sessionStorage = {getItem() { return null; }};
const fetch = () => new Promise(() => {});
const document = {getElementById(id) { if (!nodes.has(id)) nodes.set(id, node(id)); return nodes.get(id); },
  createElement: node, createElementNS: (_, name) => node(name)};
"""
CHECKS = """
const said = JSON.parse(require("fs").readFileSync(0, "utf8"));
const assert = require("assert");
const graphs = JSON.parse(said.graphs), ready = JSON.parse(said.ready);
update(1000, parseMetrics(said.before), graphs, ready);
update(3000, parseMetrics(said.metrics), graphs, ready);
const text = id => String(nodes.get(id).textContent);
assert.match(text("state"), /^ready/); assert.strictEqual(text("done"), "1"); assert.strictEqual(text("out"), "6.0");
assert.match(text("ttft50"), /^[0-9.]+ m?s$/); assert.match(text("tpot99"), /^[0-9.]+ m?s$/);
assert.ok(Number(text("audited")) > 0); assert.strictEqual(text("differences"), "0");
assert.ok(nodes.get("modes").children.length > 0 && nodes.get("uses").children.length > 0);
assert.strictEqual(nodes.get("ranks").children.length, 1); assert.match(text("never"), /:/);
for (const [id, {children}] of nodes) for (const child of children)
  assert.ok(!JSON.stringify(child.attributes).match(/NaN|undefined/), id);
assert.strictEqual(quantile([[1, 0], [2, 10], [Infinity, 10]], .5), 1.5);
assert.strictEqual(quantile([[1, 0], [2, 0], [Infinity, 4]], .5), 2);
assert.strictEqual(quantile([[1, 0], [Infinity, 0]], .5), null); assert.strictEqual(quantile([], .5), null);
assert.strictEqual(paddingWaste([{mode: "FULL", padded_tokens: 8, paddings: 2, count: 3}, {mode: "NONE", padded_tokens: 5, paddings: 0, count: 9}]), .25);
assert.deepStrictEqual(parseMetrics('refrain:a{x="1,\\\\"y",z="b"} 2e3\\nother 1')["a"], [{labels: {x: '1,\\\\"y', z: "b"}, value: 2000}]);
assert.strictEqual(bytes(1536), "1.50 KiB"); assert.strictEqual(duration(.0123), "12.3 ms");
const incident = parseMetrics(said.metrics); incident.worker_group_restarts_total[0].value += 2;
update(5000, incident, graphs, ready);
assert.match(nodes.get("recent").children[0].textContent, /2 worker groups lost/);
process.exit(0);
"""


@pytest.mark.skipif(not shutil.which("node"), reason="the page's script needs node here")
def test_the_script_shows_what_the_server_says(answers, tmp_path):
    program = tmp_path / "page.cjs"
    program.write_text(STAND_IN + SCRIPT + CHECKS)
    said = {name: answers[name][1] for name in ("before", "metrics", "graphs", "ready")}
    done = subprocess.run(["node", str(program)], input=json.dumps(said), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
