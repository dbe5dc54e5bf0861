"""Scripts that compile and run a failed region again, by `tj_core.extend.reproduce`."""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tj_core.edit.editor import TraceEditor
from tj_core.ir.proxy import size_hints

if TYPE_CHECKING:
    from tj_core.compile.region_kernels import RegionKernel

__all__ = ["Reproducers", "script"]

SCRIPT = '''"""Region {key}, which failed in {owner}:
{reason}

Written by tj under Python {python}. Compiles the region again, runs it on generated inputs, and
compares the results with those of its operations, run one by one.
"""

from tj_core.extend import reproduce

reproduce({executor!r}, {arguments}trace="""
{trace}""")
'''


@dataclass
class Reproducers:
    """Scripts in a new temporary folder, made with the first script."""

    folder: Path | None = field(default=None)

    def save(self, kernel: RegionKernel, reason: str, sizes: Mapping[str, int]) -> Path | None:
        """Write the script for a region that failed for ``reason``; None if it cannot be written.

        ``sizes``: the sizes of the failed run, if they differ from the traced ones.
        """
        try:
            if self.folder is None:
                self.folder = Path(tempfile.mkdtemp(prefix="tj-reproducers-"))
            path = self.folder / f"{kernel.region.name}.py"
            path.write_text(script(kernel, reason, sizes), encoding="utf-8")
        except OSError:
            return None
        return path


def script(kernel: RegionKernel, reason: str, sizes: Mapping[str, int]) -> str:
    """The text of a script that compiles and runs the region of ``kernel`` again."""
    region = kernel.region
    sizes = size_hints(region.inputs) | dict(sizes)
    trace = TraceEditor.program_of(region.body, region.language, region.name)
    arguments: dict[str, object] = {"backward": True} if region.backward else {}
    arguments |= {"sizes": sizes} if sizes else {}
    arguments |= {"overwritten": dict(region.overwritten)} if region.overwritten else {}
    arguments |= {"flexible": sorted(region.flexible)} if region.flexible else {}
    arguments |= {"strides": dict(region.strides)} if region.strides else {}
    return SCRIPT.format(
        key=region.key,
        owner=kernel.owner,
        reason=_quoted(reason),
        python=platform.python_version(),
        executor=kernel.executor,
        arguments="".join(f"{name}={value!r}, " for name, value in arguments.items()),
        trace=_quoted(str(trace)).rstrip("\n") + "\n",
    )


def _quoted(text: str) -> str:
    """``text`` with escapes, to stand between triple quotes."""
    return re.sub(r'\\|"""', lambda m: "".join("\\" + c for c in m[0]), text)
