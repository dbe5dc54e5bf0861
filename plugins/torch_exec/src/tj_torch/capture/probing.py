"""Probes of an installation of PyTorch: run once, in a process of their own, and kept.

``python -m tj_torch.capture.probing tj_torch.capture.dynamo.features:TABLE`` runs those of a table
and prints the features that are lost, as JSON. A version that was tested is not probed, unless
option ``probe`` (``TJ_TORCH_PROBE=1``) says so.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from tj_core.extend import TjWarning

from tj_torch.capture.lost_features import say_lost
from tj_torch.capture.sources import users_stacklevel
from tj_torch.installation import TESTED, is_tested, torch_version

if TYPE_CHECKING:
    from tj_torch.torch_private.tables import Table

__all__ = ["settle"]

_LOG = logging.getLogger("tj.torch")
_SECONDS = 600
"""The longest that probes may take; those of all plugins take a minute, most of it to compile."""

# Probes are about PyTorch: one session runs them, and others wait for the file.
_LOCK = threading.Lock()

Found = dict[str, dict[str, str]]
"""The features that are lost, with reasons, by distribution."""


def settle(
    tables: Collection[Table], probe: bool, cache_dir: str | None, owner: str = "tj-torch"
) -> None:
    """Find out once in a process what this PyTorch has lost, if nobody knows.

    What tj-torch itself has lost is said where a program is captured.

    :param probe: whether to run probes that need not run, and again.
    :param cache_dir: the folder for answers that the project's ``cache_dir`` names.
    :param owner: the distribution of those features.
    """
    if all(table.settled for table in tables):
        return
    with _LOCK:
        new = [table for table in tables if not table.settled]
        if new and (probe or not is_tested(torch_version())):
            _settle(new, probe, cache_dir)
        for table in new:
            table.settled = True
            if table.owner != owner:
                say_lost(table, table.lost)


def _settle(tables: Sequence[Table], probe: bool, cache_dir: str | None) -> None:
    _LOG.info("PyTorch %s; tj was tested with %s", torch_version(), ", ".join(TESTED))
    kept = {} if probe else {t.owner: t.probed.kept(cache_dir) for t in tables}
    known = {owner: lost for owner, lost in kept.items() if lost is not None}
    if unknown := [t for t in tables if t.owner not in known]:
        found = _in_a_process(unknown)
        for table in unknown:
            if table.owner in found:
                table.probed.keep(cache_dir, found[table.owner])
        known |= found
    for table in tables:
        table.lost.update(known.get(table.owner, {}))


def _in_a_process(tables: Collection[Table]) -> Found:
    """Run the probes of ``tables`` in a new process, whose state no program of the user's changed.

    Tables of which it says nothing, with a warning, are left out.
    """
    # Options of the user's, such as disabled plugins, would change what the probes run.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    command = [sys.executable, "-m", "tj_torch.capture.probing", *(t.place for t in tables)]
    found: Found = {}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environ, timeout=_SECONDS
        )
        for line in done.stdout.splitlines():
            # PyTorch, and compilers that it starts, print lines of their own.
            if line.startswith(_MARK):
                found |= json.loads(line.removeprefix(_MARK))
        reason = f"exit status {done.returncode}"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = f"{type(error).__name__}: {error}"
    if silent := [t.owner for t in tables if t.owner not in found]:
        warnings.warn(
            f"tj: PyTorch {torch_version()} was not tested, and probes of it do not answer for "
            f"{', '.join(silent)} ({reason}); what its names tell decides. "
            "`tj doctor` runs the probes here",
            TjWarning,
            stacklevel=users_stacklevel(),
        )
    return found


_MARK = "tj probes: "
"""The prefix of lines that are answers."""


def _answer(places: Iterable[str]) -> None:
    for place in places:
        module, _, name = place.partition(":")
        table: Table = getattr(importlib.import_module(module), name)
        print(f"{_MARK}{json.dumps({table.owner: table.probe()})}", flush=True)


if __name__ == "__main__":
    _answer(sys.argv[1:])
