"""Probes of an installation of PyTorch: run once, in a process of their own, and kept.

``python -m tj_torch.capture.dynamo.probing`` runs all and prints the features that are lost, as
JSON. A version that was tested is not probed, unless option ``probe`` (``TJ_TORCH_PROBE=1``) says
so.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import warnings

from tj_core.extend import TjWarning

from tj_torch.capture.dynamo.features import FEATURES, LOST
from tj_torch.capture.dynamo.noticed import Noticed
from tj_torch.capture.sources import users_stacklevel
from tj_torch.torch_private.features import missing
from tj_torch.torch_private.installation import TESTED, is_tested, keep, kept, torch_version

__all__ = ["probe_all", "settle"]

_LOG = logging.getLogger("tj.torch")
_SECONDS = 600
"""The longest that probes may take; they take five."""


class _State:
    """A fact of the process, not of a session: whether it is known what its PyTorch has lost."""

    lock = threading.Lock()
    settled = False


def settle(probe: bool, cache_dir: str | None) -> None:
    """Find out once in a process what this PyTorch has lost, if nobody knows.

    :param probe: whether to run probes that need not run, and again.
    :param cache_dir: the folder for answers that the project's ``cache_dir`` names.
    """
    if _State.settled:
        return
    with _State.lock:
        if _State.settled:
            return
        version = torch_version()
        if probe or not is_tested(version):
            _LOG.info("PyTorch %s; tj-torch was tested with %s", version, ", ".join(TESTED))
            found = None if probe else kept(cache_dir)
            if found is None:
                found = _in_a_process()
                if found is not None:
                    keep(cache_dir, found)
            LOST.update(found or {})
        _State.settled = True


def probe_all() -> dict[str, str]:
    """Run all probes in this process; return the features that are lost, with reasons.

    Those are lost, too, whose names are missing: programs of their probes run as they are.
    """
    _State.settled = True  # programs of probes are captured, too
    lost = missing(FEATURES, Noticed())
    for feature in FEATURES:
        if feature.name in lost:
            continue
        try:
            if feature.probe is not None:
                feature.probe()
        except AssertionError as error:
            lost[feature.name] = f"it has no effect: {error}"
        except Exception as error:
            lost[feature.name] = f"its probe raises {type(error).__name__}: {error}"
    return lost


def _in_a_process() -> dict[str, str] | None:
    """Call `probe_all` in a new process, whose state no program of the user's has changed.

    None, with a warning, where the process does not answer.
    """
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    command = [sys.executable, "-m", "tj_torch.capture.dynamo.probing"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environ, timeout=_SECONDS
        )
        found = json.loads((done.stdout.splitlines() or [""])[-1])
        return {str(name): str(reason) for name, reason in found.items()}
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:
        warnings.warn(
            f"tj: PyTorch {torch_version()} was not tested, and probes of it do not answer "
            f"({type(error).__name__}: {error}); what its names tell decides. "
            "`tj doctor` runs the probes here",
            TjWarning,
            stacklevel=users_stacklevel(),
        )
        return None


if __name__ == "__main__":
    # The module that the rest of tj imports is another one than this.
    from tj_torch.capture.dynamo import probing

    print(json.dumps(probing.probe_all()))
