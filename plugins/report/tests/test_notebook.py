"""A notebook as its reader sees it: run by a Jupyter kernel, shown in a headless Chromium.

``SCREENSHOTS=docs tox run -e browser`` takes notebook.png anew.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

CELLS = (
    """\
import tj_core as tj
import torch
import torch.nn.functional as F

@tj.jit(plugins=["torch", "autograd"])
def loss(x, weight):
    hidden = F.gelu(x @ weight)
    hidden.mul_(2)
    return hidden.sum()

weight = torch.rand(8, 3, requires_grad=True)
loss(torch.rand(4, 8), weight).backward()""",
    "loss",
    "tj.explain(loss)",
    'tj.diff(loss, "ACQUIRED", "FUNCTIONAL")',
)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The page of a notebook after all its cells ran."""
    reason = "Jupyter is not installed; `tox run -e browser` has it"
    nbconvert = pytest.importorskip("nbconvert", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    import nbclient
    import nbformat.v4 as form

    made = form.new_notebook(cells=[form.new_code_cell(text) for text in CELLS])
    nbclient.NotebookClient(made, kernel_name="python3", timeout=300).execute()
    text, _ = nbconvert.HTMLExporter(template_name="lab").from_notebook_node(made)
    file = tmp_path_factory.mktemp("notebook") / "notebook.html"
    file.write_text(text, "utf-8")
    return file


def test_cells_show_programs_claims_and_differences(browser, notebook, screenshot):
    browser.set_window_size(1080, 1500)
    browser.get(notebook.as_uri())
    cells = browser.find_elements("css selector", ".jp-OutputArea-output.jp-RenderedHTMLCommon")
    assert len(cells) == len(CELLS) - 1
    function, claims, difference = (cell.text for cell in cells)
    assert "loss, jitted: 1 calls" in function
    assert "torch.nn.functional.gelu" in claims
    assert "+++ FUNCTIONAL" in difference
    folded = cells[0].find_element("css selector", "details")
    assert folded.get_attribute("open") is None
    folded.find_element("css selector", "summary").click()
    assert "compile seconds" in cells[0].text
    folded.find_element("css selector", "summary").click()
    screenshot(browser.find_element("css selector", "main"), "notebook.png")
