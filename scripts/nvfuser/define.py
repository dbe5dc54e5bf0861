"""Define recorded regions with nvFuser itself: it needs no GPU for that.

``python scripts/nvfuser/define.py FOLDER`` defines each of the definitions in a folder
(definitions.py says how they come there) with nvFuser's bindings, and has nvFuser print it. It
needs a CUDA build of PyTorch and the wheel of nvFuser that fits to it, and nothing of tj. It fails
if nvFuser refuses a definition.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
from definitions import kept, reason


def main(folder: Path) -> int:
    """Define and print all; what is refused, by reason, with an example of each."""
    refused: Counter[str] = Counter()
    unprinted: Counter[str] = Counter()
    example: dict[str, str] = {}
    definitions = kept(folder)
    for definition in definitions:
        found = refused
        try:
            fusion = definition.defined()
            found = unprinted
            repr(fusion)
        except Exception as error:
            found[reason(error)] += 1
            example.setdefault(reason(error), definition.name)
    print(f"PyTorch {torch.__version__}, {len(definitions)} definitions")
    for what, counts in (("refused", refused), ("defined, and not printed", unprinted)):
        print(f"{counts.total()} {what}")
        for text, count in counts.most_common():
            print(f"    {count} as {example[text]}: {text}")
    return bool(refused) or not definitions


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
