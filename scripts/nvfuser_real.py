"""Define recorded regions with nvFuser itself: it needs no GPU for that.

``python scripts/nvfuser_real.py FOLDER`` takes the definitions that tests of tj-nvfuser leave in
a folder (``TJ_NVFUSER_DEFINITIONS=FOLDER tox run -e all -- plugins/nvfuser_exec/tests``), defines
each with nvFuser's bindings and has nvFuser print it. It needs a CUDA build of PyTorch and the
wheel of nvFuser that fits to it, and nothing of tj. It fails if nvFuser refuses a definition.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import nvfuser_direct
import torch


def defined(text: str) -> Any:
    """The fusion that ``text`` defines.

    :raises Exception: if nvFuser refuses it.
    """
    scope: dict[str, Any] = {
        "DataType": nvfuser_direct.DataType,
        "FusionDefinition": nvfuser_direct.FusionDefinition,
    }
    exec(text, scope)
    with contextlib.redirect_stdout(io.StringIO()), nvfuser_direct.FusionDefinition() as fusion:
        scope["nvfuser_fusion"](fusion)
    return fusion


def reason(error: Exception) -> str:
    """What nvFuser says, without its stack."""
    return " ".join(str(error).partition("Exception raised from")[0].split())


def main(folder: Path) -> int:
    """Define and print all; what is refused, by reason, with an example of each."""
    refused: Counter[str] = Counter()
    unprinted: Counter[str] = Counter()
    example: dict[str, str] = {}
    files = sorted(folder.glob("*.py"))
    for file in files:
        found = refused
        try:
            fusion = defined(file.read_text("utf-8"))
            found = unprinted
            repr(fusion)
        except Exception as error:
            found[reason(error)] += 1
            example.setdefault(reason(error), file.name)
    print(f"PyTorch {torch.__version__}, {len(files)} definitions")
    for what, counts in (("refused", refused), ("defined, and not printed", unprinted)):
        print(f"{counts.total()} {what}")
        for text, count in counts.most_common():
            print(f"    {count} as {example[text]}: {text}")
    return bool(refused) or not files


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
