"""Evaluate recorded regions with nvFuser's own evaluator, on the CPU.

``python scripts/nvfuser/evaluate.py FOLDER [--only TEXT]`` takes the definitions in a folder (see
definitions.py). nvFuser evaluates each expression by expression, on tensors that claim to be on a
CUDA device, and the results are compared with those of the reference of tj-nvfuser. It needs what
compile.py needs, and tj. Operations for which nvFuser has no evaluator are counted, and are no
failure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pretended

if TYPE_CHECKING:
    from definitions import Kept

EQUAL = "equal"
UNKNOWN = "nvFuser does not evaluate"


MISSING = "base_nodes.cpp", "Unexpected operator type", "Result is dynamic but not convertible"
"""Parts of nvFuser's errors for an operation without an
evaluator, or with one for numbers alone.
"""


def evaluated(definition: Kept, examples: list[Any]) -> list[Any]:
    """Results of nvFuser's evaluator; ``examples`` are tensors with their numbers of dimensions.

    :raises Exception: if nvFuser cannot evaluate the definition.
    """
    import nvfuser_direct
    import torch
    from tensors import Pretended, Pretending

    found: list[torch.Tensor] = []

    def caught(x: Any, *_: Any, **__: Any) -> bool:
        found.append(x)
        return True

    aten = torch.ops.aten
    pretending = Pretending({aten.allclose.default: caught, aten.equal.default: caught})
    inputs, outputs = (
        [Pretended(x) if isinstance(x, torch.Tensor) else x for x in values]
        for values in (definition.tensors(), examples)
    )
    fusion = definition.defined()
    with pretending:
        nvfuser_direct.validate_with_auto_inferred_outputs(fusion.fusion, outputs, inputs)
    return found


def outcome(definition: Kept) -> str:
    """Compare nvFuser's results with the reference; return `EQUAL`, or the difference or error."""
    import torch
    from definitions import reason
    from tj_nvfuser.testing.reference import FLOAT8, Reference

    expected = Reference().build(definition.text)(definition.tensors())
    try:
        found = evaluated(definition, [torch.zeros_like(x) for x in expected])
    except Exception as error:
        text = reason(error)
        missing = any(part in text for part in MISSING)
        return f"{UNKNOWN if missing else type(error).__name__}: {text[-260:]}"
    if len(found) != len(expected):
        return f"{len(found)} of {len(expected)} results were compared"
    expected = [x.float() if x.dtype in FLOAT8 else x for x in expected]
    try:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True)
    except AssertionError as error:
        return f"differs: {' '.join(str(error).split())[:300]}"
    return EQUAL


def main() -> int:
    """Evaluate all, and count the outcomes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of the names of tests to take")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as built:
        pretended.load(Path(built))
    from definitions import kept

    counts: Counter[str] = Counter()
    for definition in kept(options.folder):
        if definition.inputs is None or options.only not in definition.test:
            continue
        found = outcome(definition)
        counts[found.partition(":")[0]] += 1
        if found != EQUAL:
            print(f"{definition.name}, {definition.lines} lines: {found}", flush=True)
    print(f"{counts.total()} definitions")
    for text, count in counts.most_common():
        print(f"    {count} {text}")
    return not counts or not set(counts) <= {EQUAL, UNKNOWN}


if __name__ == "__main__":
    sys.exit(main())
