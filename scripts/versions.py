"""The matrix of docs/versions.md: tj with each PyTorch and each Python, by one command.

``python scripts/versions.py FOLDER 2.13.0 2.14.1 [--python python3.12] [--share 8]`` makes an
environment in ``FOLDER`` for each version, or reuses the one there, and runs what a user and the
tests run: imports, the README's example, probes, the demo, and a share of all tests. It prints a
row of the table for each, with failures below. An environment takes several GB; pip's settings
choose the builds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    *("numpy", "expecttest", "pytest", "pytest-xdist", "hypothesis", "editables", "hatchling"),
    *("rich", "transformers==5.23.0; python_version > '3.10'"),
    "transformers==5.20.2; python_version <= '3.10'",  # the last one for Python 3.10
)
"""Packages beside PyTorch for the tests and the build of this workspace."""

PACKAGES = (
    *("tj_core", "tj_torch", "tj_autograd", "tj_autocast", "tj_subclass", "tj_inductor"),
    *("tj_onednn", "tj_nvfuser", "tj_cudagraph", "tj_distributed", "tj_report"),
)
EXACT = {
    "TJ_DISABLE": "inductor,example_fuser,onednn",
    "TJ_CHECK": "sample",
    "TJ_STRICT": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Settings for tests that compare bit by bit, as in tox.ini."""


@dataclass
class Row:
    """Results of one version: words for each column, and lines on failures."""

    cells: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, name: str, done: subprocess.CompletedProcess[str]) -> None:
        """Record the result of a command; for a failure, its last lines."""
        self.cells.append("yes" if done.returncode == 0 else "no")
        if done.returncode:
            self.failed += [f"{name}:", *(done.stdout + done.stderr).splitlines()[-12:]]


class Environment:
    """A virtual environment of one PyTorch and one Python, with this workspace, editable."""

    def __init__(self, folder: Path, python: str, torch: str) -> None:
        self.python = folder / "bin" / "python"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("TJ_", "PYTHON"))}
        self.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "kernels")
        if not self.python.exists():
            subprocess.run([python, "-m", "venv", str(folder)], check=True)
            self.run("-m", "pip", "install", "--no-compile", "-q", f"torch=={torch}", *NEEDED)
        self.run("scripts/install_workspace.py")

    def run(
        self, *command: str, check: bool = True, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python in this tree."""
        return subprocess.run(
            [str(self.python), *command], cwd=ROOT, env={**self.environ, **environ},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=check,
        )  # fmt: skip


def row(environment: Environment, share: int, tests: Sequence[str]) -> Row:
    """Run every check in an environment."""
    made = Row()
    found = environment.run(
        "-c", "import platform, torch; print(torch.__version__, platform.python_version())"
    )
    made.cells += found.stdout.split()
    for name, command in {
        "imports": ("-c", f"import {', '.join(PACKAGES)}"),
        "example": ("-c", example()),
        "probes": ("-m", "tj_core", "doctor"),
        "demo": ("-m", "tj_core", "demo"),
    }.items():
        made.add(name, environment.run(*command, check=False))
    done = environment.run(
        *("-m", "pytest", "-n", "2", "--dist", "worksteal", "-q", *tests),
        check=False, TJ_ONE_IN=str(share), **EXACT,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    made.cells.append(lines[-1].strip("= ") if lines else "no answer")
    made.failed += [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return made


def example() -> str:
    """The README's first example, with a comparison of its result with eager's."""
    text = (ROOT / "README.md").read_text("utf-8")
    (code, *_) = re.findall(r"```python\n(# example\.py\n.*?)```", text, re.DOTALL)
    path = ROOT / ".tox" / "example.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(code + _CHECKED, "utf-8")
    return f"import runpy; runpy.run_path({str(path)!r})"


_CHECKED = """
x, w = torch.rand(4, 8, requires_grad=True), torch.rand(8, 3)
mine, eager = f(x, w), torch.nn.functional.gelu(x @ w) + 1
torch.testing.assert_close(mine, eager)
grads = (torch.autograd.grad(r.square().sum(), x) for r in (mine, eager))
torch.testing.assert_close(*grads)
assert not tj.stats(f).fallbacks
"""


def main(arguments: Sequence[str]) -> int:
    """Print the table; the exit status is 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("torch", nargs="+", help="versions of PyTorch")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--share", type=int, default=8, help="one test in so many")
    parser.add_argument("--tests", nargs="*", default=["plugins", "examples", "tests"])
    given = parser.parse_args(arguments)
    print("| PyTorch | Python | imports | example | probes | demo | tests |")
    print("|---|---|---|---|---|---|---|")
    failed = []
    for torch in given.torch:
        name = f"torch-{torch}-{Path(given.python).name}"
        made = row(Environment(given.folder / name, given.python, torch), given.share, given.tests)
        print(f"| {' | '.join(made.cells)} |", flush=True)
        failed += [f"{made.cells[0]}: {line}" for line in made.failed]
    print("\n".join(["", *failed]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
