"""The page in a headless Chromium: it opens quickly, and clicks show what they say.

``tox run -e browser`` runs these tests in full. ``SCREENSHOTS=docs`` takes looking.png anew.
"""

from __future__ import annotations

import time
import warnings

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_report import plugin

pytestmark = pytest.mark.browser


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        parts = self.qkv(self.first(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(torch.nn.Module):
    def __init__(self, layers, width=16, words=32):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.head = torch.nn.Linear(width, words)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def opened(browser, file):
    """Open the file; return the seconds until its script is done."""
    start = time.perf_counter()
    browser.get(file.as_uri())
    ready = browser.execute_script("return document.documentElement.dataset.ready")
    seconds = time.perf_counter() - start
    assert ready == "true"
    return seconds


def click(browser, selector):
    browser.find_element("css selector", selector).click()


def shown(browser):
    return browser.find_element("css selector", "section.shown").text


def choose(browser, name, text):
    """Choose the option of a select element that begins with ``text``."""
    from selenium.webdriver.support.select import Select

    select = Select(browser.find_element("id", name))
    select.select_by_visible_text(next(o.text for o in select.options if o.text.startswith(text)))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a program with a graph break, gradients and a recompilation."""

    @tj.jit(plugins=["torch", "autograd", plugin])
    def program(x, k):
        y = F.gelu(x * k["n"])
        torch._dynamo.graph_break()
        return (y.sin() @ y.T).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for n in (2, 3):
            program(torch.rand(4, 4, requires_grad=True), {"n": n}).backward()
    return tj.report(program, tmp_path_factory.mktemp("page") / "page.html", title="a program")


def test_tabs_show_what_they_say(browser, errors, page):
    opened(browser, page)
    assert "calls" in shown(browser)
    click(browser, "[data-tab=claims]")
    assert "torch.nn.functional.gelu" in shown(browser)
    click(browser, "[data-tab=code]")
    assert "def computation(_args):" in shown(browser)
    click(browser, "[data-tab=memory]")
    assert browser.find_element("css selector", "svg.memory polyline").is_displayed()
    click(browser, "[data-tab=breaks]")
    assert "torch._dynamo.graph_break()" in shown(browser)
    click(browser, "[data-tab=guards]")
    assert "k['n'] was 2, is 3" in browser.page_source
    click(browser, "[data-tab=time]")
    assert "capture" in shown(browser)
    assert errors() == []


def test_a_program_is_chosen_and_its_stages_compared(browser, errors, page, screenshot):
    opened(browser, page)
    click(browser, "[data-tab=trace]")
    choose(browser, "stage", "ACQUIRED")
    assert "stage='ACQUIRED'" in shown(browser)
    click(browser, "[data-tab=diff]")
    choose(browser, "before", "ACQUIRED")
    more = browser.find_elements("css selector", ".row.more")
    fewer = browser.find_elements("css selector", ".row.fewer")
    assert more
    assert fewer
    screenshot(browser, "looking.png")
    choose(browser, "before", "CLAIMED")
    assert "0 lines more, 0 fewer" in shown(browser)
    click(browser, ".program[data-number='1']")
    assert "backward" in browser.find_element("css selector", "[aria-current=true]").text
    assert errors() == []


def test_claims_are_filtered_by_a_word(browser, page):
    opened(browser, page)
    click(browser, "[data-tab=claims]")
    browser.find_element("id", "claims-filter").send_keys("gelu")
    rows = browser.find_elements("css selector", "#claims-table tbody tr")
    assert rows
    assert all("gelu" in row.text for row in rows)


def test_a_gpt_of_twelve_layers_opens_in_two_seconds(browser, errors, tmp_path):
    model = tj.jit(GPT(12), plugins=["torch", "autograd", plugin])
    model(torch.randint(0, 32, (2, 8))).backward()
    file = tj.report(model, tmp_path / "gpt.html")
    assert opened(browser, file) < 2
    rows = browser.find_elements("css selector", "#trace-lines .row")
    assert 10 < len(rows) < 200, "only lines in view are elements"
    click(browser, ".program[data-number='1']")
    box = browser.find_element("id", "trace-lines")
    browser.execute_script("arguments[0].scrollTop = arguments[0].scrollHeight", box)
    time.sleep(0.2)
    assert "return" in box.text
    assert errors() == []


def test_collectives_are_drawn(browser, errors, tmp_path):
    import torch.distributed as dist

    def summed(x):
        y = x * 2
        dist.all_reduce(y)
        return x.sin() + y

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        program = tj.jit(summed, plugins=["torch", "autograd", "distributed", plugin])
        program(torch.ones(3))
        opened(browser, tj.report(program, tmp_path / "page.html"))
    finally:
        dist.destroy_process_group()
    click(browser, "[data-tab=collectives]")
    assert browser.find_element("css selector", "svg.timeline .hidden rect").is_displayed()
    assert "started after" in shown(browser)
    assert "wait_tensor" in shown(browser)
    assert errors() == []
