"""Arguments for a package, as its contract says them: given tensors, or random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tj_core.extend import PackageError, SymDim, TensorProxy, evaluate_size
from tj_core.internal import parse_meta

from tj_torch.ops.values.convert import device_to_torch, dtype_to_torch
from tj_torch.package.trees import rebuilt

__all__ = ["example"]


def example(
    manifest: Mapping[str, Any], given: Mapping[str, torch.Tensor] | None
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments: tensors are those in ``given``, by name, else random.

    Sizes that are symbols are those of the exported call. Whole numbers are 0 or 1, which are
    indices that most programs take.

    :raises PackageError: if ``given`` lacks a tensor.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    sizes: Mapping[str, int] = manifest["sizes"]
    for name, keyword, place, tree in manifest["contract"]["arguments"]:
        count = 0

        def leaf(kind: str, content: Any, name: str = name) -> Any:
            nonlocal count
            if kind == "number":
                return sizes[content]
            count += 1
            known = name if count == 1 else f"{name}.{count - 1}"
            if given is None:
                return _random(content, sizes)
            if known not in given:
                raise PackageError(f"the file of arguments has no tensor {known}")
            wanted = parse_meta(known, content)
            assert isinstance(wanted, TensorProxy)
            return given[known].requires_grad_(wanted.requires_grad)

        value = rebuilt(tree, leaf)
        if place == len(positional):
            positional.append(value)
        else:
            keywords[keyword] = value
    return positional, keywords


def _random(text: str, sizes: Mapping[str, int]) -> torch.Tensor:
    p = parse_meta("x", text)
    assert isinstance(p, TensorProxy)
    shape, strides = (
        [evaluate_size(n.name, sizes.__getitem__) if isinstance(n, SymDim) else n for n in dims]
        for dims in (p.shape, p.strides)
    )
    dtype = dtype_to_torch(p.dtype)
    made = torch.empty_strided(shape, strides, dtype=dtype, device=device_to_torch(p.device))
    if dtype.is_floating_point or dtype.is_complex:
        return made.copy_(torch.rand(shape)).requires_grad_(p.requires_grad)
    return made.copy_(torch.randint(0, 2, shape))
