"""Build every wheel of the workspace, install and use them in fresh environments.

``python scripts/check_wheels.py FOLDER [torch==2.14.1 [WHEELS]]`` builds into ``FOLDER/dist`` all
wheels that the folder ``WHEELS`` lacks, inspects all, installs them into new environments,
``FOLDER/core`` without PyTorch and others that share one, and runs from there, outside of this
tree, so that nothing is imported from it. The first failure ends it, with a message. With
``TJ_FULL=1``, each install command of `COMMANDS` is tried, else the first and the last.
"""

from __future__ import annotations

import configparser
import email
import email.message
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
import venv
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from written_plugins import check_written_plugins

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 900
"""Most seconds of one program: what hangs is named, and not only the job that ran out of time."""


def main(folder: Path, torch: str = "torch", built: str | None = None) -> None:
    """Run all checks in ``folder``, with the PyTorch of the requirement ``torch``.

    The wheels in the folder ``built`` are checked as they are.
    """
    with ThreadPoolExecutor(1) as beside:
        # PyTorch takes longest to install; the wheels are built meanwhile.
        full = beside.submit(Environment, folder / "full", torch, "numpy", "pytest", "networkx")
        wheels = build(folder / "dist", None if built is None else Path(built))
        for wheel in wheels:
            inspect(wheel)
        core = next(w for w in wheels if w.distribution == "tj-core")
        check_core_alone(Environment(folder / "core"), core)
        base = full.result()
    base.install(*third_parties(wheels))
    with ThreadPoolExecutor(2) as beside:
        checks = [beside.submit(check_everything, folder, base, wheels)]
        everything = os.environ.get("TJ_FULL") == "1"
        for number in range(len(COMMANDS)) if everything else (0, len(COMMANDS) - 1):
            checks.append(beside.submit(check_command, folder, base, number))
        for check in checks:
            check.result()
    print(f"all {len(wheels)} wheels are fine")


def check_everything(folder: Path, base: Environment, wheels: Sequence[Wheel]) -> None:
    """Check the wheels together in an environment."""
    clean = Environment(folder / "all", base=base)
    check_all(clean, wheels)
    check_examples(clean)
    step("tj new-plugin")
    check_written_plugins(clean, folder / "written")
    check_uninstall(clean)


def step(what: str) -> None:
    """Print the next step; flushed, because its child processes write to the same stream."""
    print(f"[{time.strftime('%H:%M:%S')}] {what}", flush=True)


def require(condition: object, message: str) -> None:
    """Exit with ``message`` unless ``condition`` holds."""
    if not condition:
        sys.exit(f"wheels: {message}")


# ------------------------------------------------------------------------------- the wheels


@dataclass(frozen=True)
class Wheel:
    """A built wheel and its metadata."""

    path: Path
    names: tuple[str, ...]
    metadata: email.message.Message
    entry_points: dict[str, dict[str, str]]

    @property
    def distribution(self) -> str:
        """Name of the distribution, such as ``tj-torch``."""
        return str(self.metadata["Name"])

    @property
    def package(self) -> str:
        """Name of its import package, such as ``tj_torch``."""
        return self.distribution.replace("-", "_")


def build(dist: Path, built: Path | None = None) -> list[Wheel]:
    """Build the core, all plugins and all examples, or take those in the folder ``built``."""
    projects = [ROOT / "core"]
    projects += sorted(p.parent for p in ROOT.glob("plugins/*/pyproject.toml"))
    projects += sorted(p.parent for p in ROOT.glob("examples/*/pyproject.toml"))
    number = len(projects)
    shutil.rmtree(dist, ignore_errors=True)  # an earlier run may have built another version
    if built is not None:
        shutil.copytree(built, dist, ignore=shutil.ignore_patterns("*.tar.gz"))
        have = {path.name.partition("-")[0] for path in dist.glob("*.whl")}
        projects = [p for p in projects if not have & {f.name for f in p.glob("src/tj_*")}]
        require(len(have) + len(projects) == number, f"{built} has wheels of {sorted(have)}")
    step(f"building {', '.join(p.name for p in projects)}")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command = [*pip, "--wheel-dir", str(dist)]
    # The core where nothing is installed but what it asks for. The others ask for the same.
    if projects[0] == ROOT / "core":
        subprocess.run([*command, str(projects.pop(0))], check=True)
    # Where nothing is installed to build with, pip refuses to be told in which version.
    environ = {k: v for k, v in os.environ.items() if k != "PIP_BUILD_CONSTRAINT"}
    rest = ["--no-build-isolation", *map(str, projects)]
    subprocess.run([*command, *rest], check=True, env=environ)
    wheels = [_read(path) for path in sorted(dist.glob("*.whl"))]
    require(len(wheels) == number, f"{number} projects made {len(wheels)} wheels")
    return wheels


def _read(path: Path) -> Wheel:
    with zipfile.ZipFile(path) as archive:
        names = tuple(archive.namelist())
        info = next(n.partition("/")[0] for n in names if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        entry_points = configparser.ConfigParser(delimiters=("=",))
        entry_points.optionxform = str  # type: ignore[assignment]  # names keep their case
        if f"{info}/entry_points.txt" in names:
            entry_points.read_string(archive.read(f"{info}/entry_points.txt").decode())
    groups = {group: dict(entry_points[group]) for group in entry_points.sections()}
    return Wheel(path, names, metadata, groups)


def inspect(wheel: Wheel) -> None:
    """Check a wheel's contents and metadata."""
    name, package, meta = wheel.distribution, wheel.package, wheel.metadata
    step(f"inspecting {wheel.path.name}")
    tops = {n.partition("/")[0] for n in wheel.names} - {f"{package}-{meta['Version']}.dist-info"}
    require(tops == {package}, f"{name} installs {sorted(tops)}, not just {package}")
    require(f"{package}/py.typed" in wheel.names, f"{name} has no py.typed: type checkers skip it")
    require(meta["License-Expression"] == "Apache-2.0", f"{name} names no license expression")
    require(meta.get_all("License-File"), f"{name} ships no LICENSE")
    python = meta["Requires-Python"]
    require(python == ">=3.10", f"{name} requires Python {python}")
    require(meta["Summary"] and meta.get_payload(), f"{name} has no description")
    require(not [n for n in wheel.names if "/tests/" in n], f"{name} ships its tests")
    if name == "tj-core":
        wanted = {"tj": "tj_core.cli.main:main"}
        require(wheel.entry_points.get("console_scripts") == wanted, "tj-core has no command tj")
        require("tj" not in wheel.entry_points, "tj-core registers a plugin")
    else:
        entry = package.removeprefix("tj_")
        wanted = {entry: f"{package}.plugin"}
        found = wheel.entry_points.get("tj")
        require(found == wanted, f"{name} has the entry points {found} in group tj, not {wanted}")


# ------------------------------------------------------------------------------- using them


class Environment:
    """A virtual environment with ``others`` installed, and an empty folder to run from.

    Requirements of ``others`` are installed as well, but nothing of this project. Packages of
    ``base``, which must not change, can be imported too.
    """

    def __init__(self, folder: Path, *others: str, base: Environment | None = None) -> None:
        step(f"making the environment {folder.name}")
        self.folder = folder
        venv.create(folder, clear=True, with_pip=base is None)
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        # Not the caller's path, home of modules or settings: what counts is what is installed.
        self.environ = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TJ_", "PYTHON", "TOX_", "VIRTUAL_ENV"))
        }
        self.environ["PATH"] = f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}"
        # Nor programs that another run has kept.
        self.cache = folder / "cache"
        self.environ["TJ_CACHE_DIR"] = str(self.cache.resolve())
        if base is not None:
            (self.packages / "base.pth").write_text(f"{base.packages}\n", "utf-8")
        if others:
            self.install(*others)

    @property
    def packages(self) -> Path:
        """The folder of installed packages."""
        return Path(self.python("import sysconfig; print(sysconfig.get_path('purelib'))").strip())

    def run(self, *command: str, limit: float = LIMIT) -> str:
        """Run a program of the environment; return its output.

        One that takes more than ``limit`` seconds ends the check.
        """
        shown = " ".join(command)
        try:
            done = subprocess.run(
                [str(self.bin / command[0]), *command[1:]],
                cwd=self.elsewhere,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired as error:
            said = b"".join(filter(None, (error.stdout, error.stderr))).decode(errors="replace")
            sys.exit(f"wheels: {shown}\ntook more than {limit:g} s:\n{said}")
        if done.returncode:
            sys.exit(
                f"wheels: {shown}\nfailed, status {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def python(self, program: str) -> str:
        """Run a Python program; return what it prints."""
        return self.run("python", "-I", "-c", textwrap.dedent(program))

    def install(self, *what: str) -> None:
        """Install with pip, and print it."""
        step(f"installing {', '.join(Path(w).name for w in what)}")
        # Not compiled ahead: of PyTorch, a small part is imported here.
        self.run("python", "-m", "pip", "install", "--quiet", "--no-compile", *what)

    def plugins(self) -> dict[str, str]:
        """State of each plugin, by name, from ``tj plugins --json``."""
        listed = json.loads(self.run("tj", "plugins", "--all", "--json"))
        return {plugin["name"]: plugin["state"] for plugin in listed}


def check_core_alone(clean: Environment, core: Wheel) -> None:
    """Check tj-core by itself: it imports, lists plugins, names missing ones, and brings no
    PyTorch.
    """
    clean.install(str(core.path))
    step("tj-core alone")
    clean.python(
        """
        import importlib.util, sys
        import tj_core as tj
        assert "site-packages" in tj.__file__, tj.__file__
        assert tj.__version__ != "0+unknown"
        assert importlib.util.find_spec("torch") is None, "tj-core brought PyTorch along"
        try:
            tj.jit(lambda x: x)
        except tj.TjError as error:
            assert "pip install tj-torch" in str(error), error
        else:
            raise AssertionError("tj.jit works without a frontend")
        """
    )
    version = clean.run("tj", "--version")
    require(version == f"tj-core {core.metadata['Version']}\n", f"tj --version says {version!r}")
    require(clean.plugins() == {}, f"tj-core alone lists plugins: {clean.plugins()}")
    require(clean.run("python", "-m", "tj_core", "config"), "python -m tj_core config says nothing")


@dataclass(frozen=True)
class Command:
    """A user's install command, the plugins that it brings, and the executor that must fuse a
    training step.
    """

    arguments: tuple[str, ...]
    brings: frozenset[str]
    session: str = "None"
    fuses: str | None = None


GRADIENTS = frozenset({"torch", "autograd", "autocast", "subclass"})
ON_REFERENCE = """tj.Session((ReferencePlugin(), "autocast", "subclass", "autograd", "torch"))"""

COMMANDS = (
    Command(("tj-core", "tj-nvfuser"), GRADIENTS | {"nvfuser"}, ON_REFERENCE, "nvfuser"),
    Command(("tj-core", "tj-inductor"), GRADIENTS | {"inductor"}, fuses="inductor"),
    Command(("tj-core", "tj-onednn"), GRADIENTS | {"onednn"}),
    Command(
        ("tj-core[torch]",), GRADIENTS | {"distributed", "inductor", "onednn"}, fuses="inductor"
    ),
)


def third_parties(wheels: Sequence[Wheel]) -> list[str]:
    """Requirements of the wheels, without this project's distributions, PyTorch and extras."""
    ours = {w.distribution for w in wheels}
    asked = [r for w in wheels for r in w.metadata.get_all("Requires-Dist") or ()]
    known = {r for r in asked if "extra ==" not in r}
    return sorted(r for r in known if re.split(r"[^\w.-]", r)[0] not in ours | {"torch"})


def check_command(folder: Path, base: Environment, number: int) -> None:
    """Check that a command of `COMMANDS` installs plugins for gradients, autocast and fusion."""
    command, clean = COMMANDS[number], Environment(folder / f"command-{number}", base=base)
    # Only the wheels at hand: an index may have others of these names.
    clean.install("--no-index", "--find-links", str(folder / "dist"), *command.arguments)
    states = clean.plugins()
    said = " ".join(command.arguments)
    step(f"a training step after pip install {said}")
    require(set(states) == command.brings, f"pip install {said} brings {sorted(states)}")
    bad = {k: v for k, v in states.items() if v != "loaded" and k not in ("nvfuser", "onednn")}
    require(not bad, f"after pip install {said}, plugins are {bad}")
    program = clean.elsewhere / "training.py"
    text = TRAINING.format(session=command.session, fuses=command.fuses)
    program.write_text(textwrap.dedent(text), "utf-8")
    clean.run("python", "-I", "-W", "error::UserWarning", str(program))
    step(f"pip install {said} is fine")


TRAINING = '''
"""A training step that is traced forward and backward, fused if somebody fuses, and autocast."""

import tj_core as tj
import torch
import torch.nn.functional as F

fuses = {fuses!r}
if fuses == "nvfuser":
    from tj_nvfuser.testing.plugin import ReferencePlugin

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
x = torch.randn(4, 8)


def loss(x):
    return (F.softmax(model(x), -1) * 2 - 1).square().mean()


def gradients(f, *context):
    model.zero_grad()
    with torch.autocast("cpu", enabled=bool(context)):
        value = f(x)
    value.backward()
    return value.detach(), [p.grad for p in model.parameters()]


session = {session}
jitted = tj.jit(loss, session=session)
torch.testing.assert_close(gradients(jitted), gradients(loss))
for which in ("forward", "backward"):
    program = tj.last_trace(jitted, which)
    assert program.stage.name == "CLAIMED", program
    regions = [c for c in program.calls if c.executor == fuses and "region" in str(c.symbol)]
    assert bool(regions) == (fuses is not None), program
assert tj.stats(jitted).fallbacks == (), tj.stats(jitted)

cast = tj.jit(loss, session=session)
torch.testing.assert_close(
    gradients(cast, "autocast"), gradients(loss, "autocast"), rtol=2e-2, atol=1e-2
)
lowered = tj.last_trace(cast, stage="FUNCTIONAL").calls
assert all(c.context.get("autocast.cpu") is None for c in lowered)
assert "Tensor.to" in {{c.symbol.name for c in lowered}}
'''


def check_all(clean: Environment, wheels: Sequence[Wheel]) -> None:
    """Check all wheels together: every plugin loads, and programs run with the right results."""
    clean.install(*(str(w.path) for w in wheels))
    step("plugins")
    owners = {w.package: [w.distribution] for w in wheels}
    found = json.loads(
        clean.python(
            """
            import json
            from importlib.metadata import packages_distributions
            known = packages_distributions()
            print(json.dumps({k: sorted(set(v)) for k, v in known.items() if k.startswith("tj_")}))
            """
        )
    )
    require(found == owners, f"import packages belong to {found}, not to {owners}")
    states = clean.plugins()
    wanted = {w.package.removeprefix("tj_") for w in wheels} - {"core"}
    require(set(states) == wanted, f"tj plugins lists {sorted(states)}, not {sorted(wanted)}")
    # Unavailable is a state too (no GPU here); failed never is.
    bad = {k: v for k, v in states.items() if v.partition(":")[0] not in ("loaded", "unavailable")}
    require(not bad, f"plugins in a bad state: {bad}")
    require(states["torch"] == "loaded", f"plugin torch is {states['torch']}")
    for name in ("nvfuser", "cudagraph"):
        require(states[name] == "unavailable", f"plugin {name} is {states[name]}")

    step("programs")
    # From a file: a program given with -c has no source, and frontends look at it.
    program = clean.elsewhere / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), "utf-8")
    print(clean.run("python", "-I", str(program)), end="")


PROGRAM = '''
"""A function, a module, and PyTorch's own hook, all equal to eager."""

import tj_core as tj
import torch


def f(x, y):
    return torch.nn.functional.gelu(x @ y, approximate="tanh") + 1


x, y = torch.rand(4, 8), torch.rand(8, 3)
jitted = tj.jit(f)
torch.testing.assert_close(jitted(x, y), f(x, y))
assert tj.stats(jitted).misses == 1 and tj.stats(jitted).hits == 0, tj.stats(jitted)
torch.testing.assert_close(jitted(x, y), f(x, y))
assert tj.stats(jitted).hits == 1, tj.stats(jitted)

two = tj.jit(f, plugins=["example_exec", "torch"])
torch.testing.assert_close(two(x, y), f(x, y))
runners = [claim.executor for claim in tj.explain(two).claims]
assert runners == ["torch", "example_exec", "torch"], runners

model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
torch.testing.assert_close(tj.jit(model)(x), model(x))
torch.testing.assert_close(torch.compile(model, backend="tj")(x), model(x))
trained = tj.jit(model)
trained(x).sum().backward()
assert tj.last_trace(trained, "backward").stage.name == "CLAIMED"
print(tj.last_trace(two))
'''


def check_examples(clean: Environment) -> None:
    """Run the examples' own tests against the installed wheels, as their authors would.

    Those of their programs only, unless ``TJ_FULL=1``: others run from the sources as well.
    """
    part = "" if os.environ.get("TJ_FULL") == "1" else "test_programs.py"
    for name in ("tj-example-exec", "tj-example-subclass"):
        step(f"the tests of {name}")
        folder = ROOT / "examples" / name
        arguments = ["-c", str(folder / "pyproject.toml"), "-p", "no:cacheprovider"]
        print(clean.run("python", "-m", "pytest", *arguments, str(folder / "tests" / part)), end="")


def check_uninstall(clean: Environment) -> None:
    """Check that an uninstalled plugin is not listed any more."""
    step("uninstalling the example")
    clean.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "tj-example-exec")
    require("example_exec" not in clean.plugins(), "an uninstalled plugin is still listed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
