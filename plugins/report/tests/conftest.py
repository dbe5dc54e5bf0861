"""Pages of small programs, taken apart, and a headless Chromium that shows pages."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
from tj_core.testing.numeric import NullPlugin, NumericPlugin, num
from tj_report import plugin
from tj_report.page import make_page


@dataclass
class Parsed(HTMLParser):
    """A page: text by element, attributes by tag, and the data that the script reads."""

    attributes: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
    text: str = ""
    open: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    EMPTY = ("meta", "br", "input")

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[self.attributes[-1][1].get("id") or "code"] = data
        elif self.open[-1:] != ["style"]:
            self.text += data

    def data(self, number: int) -> Any:
        """The data of a program."""
        return json.loads(self.scripts[f"program-{number}"])


def parse(page: str) -> Parsed:
    """The page, which has to be well-formed."""
    found = Parsed()
    found.feed(page)
    found.close()
    assert found.open == []
    assert found.wrong == []
    return found


@pytest.fixture
def session() -> tj.Session:
    """A session with pages, and an executor that takes multiplications."""
    null = NullPlugin("num.mul", answer=num.mul)
    return tj.Session(plugins=[plugin, null, NumericPlugin()])


@pytest.fixture
def jitted(session: tj.Session) -> Any:
    """A program that was compiled twice."""

    @tj.jit(session=session)
    def program(x, y):
        return x * y + y

    program([1.0, 2.0], [3.0, 4.0])
    program([1.0], [3.0])
    return program


@pytest.fixture
def parsed() -> Any:
    """The page about a callable, parsed."""
    return lambda fn, title="": parse(make_page(fn, title))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, as selenium drives it."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed; `tox run -e browser` has it"
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip(
            "no Chromium with its driver is installed (apt install chromium chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1280,800"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        shown = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield shown
    shown.quit()


@pytest.fixture
def errors(browser: Any) -> Callable[[], list[Any]]:
    """Errors that the page's scripts have raised since the last call."""
    return lambda: [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


@pytest.fixture
def screenshot() -> Callable[[Any, str], None]:
    """Keep a screenshot of a browser, or of one element, in the folder that SCREENSHOTS names."""
    folder = os.environ.get("SCREENSHOTS")

    def keep(shown: Any, name: str) -> None:
        if folder:
            save = getattr(shown, "save_screenshot", None) or shown.screenshot
            assert save(str(Path(folder) / name))

    return keep
