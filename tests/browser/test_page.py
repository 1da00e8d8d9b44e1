"""The server's page in a browser, while a load runs: what a person sees, in light and dark, on a desk and on a phone."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "process"))
from conftest import BIN, SMOLLM2, Server, wait_for  # noqa: E402

KEY = "sesame"
SHOWN = "series.out.length > 12 && Number(at('running').textContent) > 0 && at('ttft50').textContent !== '–'"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a key, under load until the tests are over."""
    folder = tmp_path_factory.mktemp("page")
    server = Server(folder / "serve.log", "--api-key", KEY, "--max-model-len", 512, "--max-num-seqs", 12, "--audit-rate", 0.02)
    server.start()
    load = subprocess.Popen([str(word) for word in (
        BIN / "refrain", "bench", "serve", "--base-url", server.base, "--api-key", KEY, "--dataset-name", "random",
        "--num-prompts", 4000, "--max-concurrency", 16, "--random-input-len", 24, "--random-output-len", 48,
        "--random-range-ratio", 0.6)], stdout=(folder / "load.log").open("w"), stderr=subprocess.STDOUT)
    wait_for(lambda: "request_success_total" in server.get("/metrics", {"Authorization": "Bearer " + KEY})[1], 30, "a load")
    yield server
    assert load.poll() is None, (folder / "load.log").read_text()
    load.terminate()
    load.wait(30)
    assert server.stop() == 0


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["REFRAIN_BROWSER"], args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_the_page_shows_a_load(server, browser, scheme, width):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    faults, asked = [], []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" and "401" not in said.text else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.base + "/dashboard")
    page.get_by_label("Key").fill("wrong")
    page.get_by_role("button", name="Open").click()
    page.get_by_text("that key is not known").wait_for()
    page.get_by_label("Key").fill(KEY)
    page.get_by_role("button", name="Open").click()
    page.wait_for_function(SHOWN, timeout=60_000)

    text = lambda id: page.locator("#" + id).inner_text()  # noqa: E731
    assert text("state").startswith("ready") and text("running") == "12" and int(text("waiting")) <= 4
    assert float(text("out").replace(",", "")) > 1 and text("tokens_most") and text("cache_most") == "100 %"
    assert page.locator("#uses tr").count() > 1 and page.locator("#ranks tr").count() == 2
    assert page.locator("#modes rect").count() >= 10
    # Charts fill their width, and nothing hangs out of the page.
    charts = page.evaluate("[...document.querySelectorAll('svg')].map(svg => { const box = svg.getBoundingClientRect(); "
                           "return [...svg.children].reduce((most, child) => Math.max(most, child.getBoundingClientRect().right), 0) - box.right; })")
    assert len(charts) == 6 and all(abs(gap) < 2 for gap in charts), charts
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(244, 246, 248)", "dark": "rgb(19, 23, 27)"}[scheme]
    assert not faults and all(url.startswith((server.base, "data:")) for url in asked)
    if "REFRAIN_SCREENSHOT" in os.environ and scheme == "light":
        page.screenshot(path=os.environ["REFRAIN_SCREENSHOT"], full_page=True)
    page.close()


def test_the_page_of_graphs_takes_a_key_and_fits_a_phone(server, browser):
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(server.base + "/cudagraphs")
    for key, said in (("wrong", "that key is not known"), (KEY, "the whole step was one graph")):
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Open").click()
        page.get_by_text(said).wait_for()
    text = page.locator("body").inner_text()
    assert "padding" in text and "no graph ran" in text and page.locator("table").first.locator("tr").count() > 2
    assert "Rank 1" in text and page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="JSON").click()
    page.get_by_text('"dispatch"').wait_for()
    assert not faults
    page.close()
