"""Define recorded regions with nvFuser itself, which needs no GPU for that.

``python scripts/nvfuser/define.py FOLDER`` defines each of the definitions in a folder (see
definitions.py) with nvFuser's bindings, and has nvFuser print it. The printed program is computed
with PyTorch, and its results are compared with those of the definition. It needs a CUDA build of
PyTorch, the wheel of nvFuser for that PyTorch, and tj. It fails if nvFuser refuses a definition, or
if a printed program has other results.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from definitions import Kept, kept, reason
from tj_nvfuser.testing.printouts import printed, rounded
from tj_nvfuser.testing.reference import FLOAT8, Reference


def reference(definition: Kept) -> tuple[list[Any], list[torch.Tensor]]:
    """Inputs of the definition, and its results for them.

    Integers are 0 or 1 at first; only 0 if 1 is no valid index; only 1 if 0 is a divisor.
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
    """Compare the results of the printed program ``text`` with those of the definition.

    :raises AssertionError: if they differ.
    """
    inputs, expected = reference(definition)
    expected, got = (
        [x.float() if x.dtype in FLOAT8 else x for x in values]
        for values in (expected, printed(text)(inputs))
    )
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4, equal_nan=True)


def main(folder: Path) -> int:
    """Define, print and compute all; print the failures by reason, with an example of each."""
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
