"""Define recorded regions with nvFuser itself: it needs no GPU for that.

``python scripts/nvfuser/define.py FOLDER`` defines each of the definitions in a folder
(definitions.py says how they come there) with nvFuser's bindings, and has nvFuser print it. What is
printed is computed with PyTorch, and its results are held against those of the definition. It needs
a CUDA build of PyTorch, the wheel of nvFuser that fits to it, and tj. It fails if nvFuser refuses a
definition, or if a printed program computes something else.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from definitions import Kept, kept, reason
from tj_nvfuser.testing.printed import printed, rounded
from tj_nvfuser.testing.reference import FLOAT8, Reference


def reference(definition: Kept) -> tuple[list[Any], list[torch.Tensor]]:
    """Inputs, and what the definition computes for them.

    Of one element there is no index 1, and nothing is divided by 0.
    """
    run = Reference().build(rounded(definition.text))
    for whole in (None, 0):
        inputs = definition.tensors(whole)
        try:
            return inputs, list(run(inputs))
        except (IndexError, RuntimeError):
            continue
    inputs = definition.tensors(1)
    return inputs, list(run(inputs))


def compared(definition: Kept, text: str) -> None:
    """Hold what the printed program ``text`` computes against the definition.

    :raises AssertionError: if it computes something else.
    """
    inputs, expected = reference(definition)
    expected, got = (
        [x.float() if x.dtype in FLOAT8 else x for x in values]
        for values in (expected, printed(text)(inputs))
    )
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4, equal_nan=True)


def main(folder: Path) -> int:
    """Define, print and compute all; what fails, by reason, with an example of each."""
    refused, unprinted, differs = Counter[str](), Counter[str](), Counter[str]()
    example: dict[str, str] = {}
    unused = 0
    definitions = kept(folder)
    for definition in definitions:
        found = refused
        try:
            fusion = definition.defined()
            found = unprinted
            text = repr(fusion)
            found = differs
            if definition.inputs is None:
                unused += 1
            else:
                compared(definition, text)
        except Exception as error:
            found[reason(error)] += 1
            example.setdefault(reason(error), definition.name)
    print(f"PyTorch {torch.__version__}, {len(definitions)} definitions")
    for what, counts in (
        ("refused", refused),
        ("defined, and not printed", unprinted),
        ("printed, and not equal to the definition", differs),
    ):
        print(f"{counts.total()} {what}")
        for text, count in counts.most_common():
            print(f"    {count} as {example[text]}: {text[:300]}")
    print(f"{unused} printed, and not computed: no test has run them")
    return bool(refused) or bool(differs) or not definitions


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
