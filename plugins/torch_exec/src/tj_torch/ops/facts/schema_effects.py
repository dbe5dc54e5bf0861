"""Effects of operators that functionalization refuses, from their schemas.

PyTorch functionalizes its own operators. An operator of an extension that writes an argument or
returns a view of one is known by its schema's annotations alone; it is a kernel without a body.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from tj_core.extend import Alias, BoundSymbol, Effects, Proxy, TensorProxy, leaves

from tj_torch.ops.naming.resolve import resolve
from tj_torch.runtime.checks import asserted
from tj_torch.torch_private.runtime import OpOverload
from tj_torch.torch_private.runtime import schemas as schemas_of

__all__ = [
    "bound_arguments",
    "changes_unseen",
    "extension",
    "may_write",
    "only_raises",
    "schema_effects",
    "writes_nothing",
]

_CHECK = f"{asserted.__module__}.{asserted.__qualname__}"


def extension(fn: Any) -> Any:
    """``fn`` if it is an operator of an extension with annotations in its schema, else None."""
    # PyTorch's own operators are functionalized, which shows more than their schemas.
    if not isinstance(fn, OpOverload) or fn.namespace in ("aten", "prim", "prims"):
        return None
    return fn if _annotated(fn._schema) else None


def writes_nothing(fn: Any) -> bool:
    """Test if, by its schemas, ``fn`` without ``out=`` neither writes nor aliases its arguments.

    False for a function in Python, which has no schema.
    """
    if isinstance(fn, OpOverload):
        return not _annotated(fn._schema)
    if not isinstance(fn, types.BuiltinFunctionType | types.MethodDescriptorType):
        return False
    schemas = schemas_of(f"aten::{fn.__name__}")
    # Overloads with `out=` write by their schemas; who gives none runs another one.
    mine = [s for s in schemas if not any(a.name == "out" for a in s.arguments)]
    return bool(mine) and not any(map(_annotated, mine))


def changes_unseen(call: BoundSymbol) -> bool:
    """Test for an in-place operator, by its name, whose schema declares no write.

    ``inductor.resize_storage_bytes_`` frees memory or allocates it: a read of its argument that is
    moved in the program may find no memory.
    """
    effects = call.effects
    if effects.mutates or effects.rebinds or effects.aliases or call.flat_outs:
        return False
    operator = call.symbol.path.removesuffix(".default").rpartition(".")[2]
    return operator.endswith("_") and "side_effect" in effects.ordered and bool(call.flat_args)


def only_raises(call: BoundSymbol) -> bool:
    """Test for a check of data, which raises or does nothing."""
    return call.symbol.qualname == _CHECK


def may_write(call: BoundSymbol) -> bool:
    """Test for a call whose writes neither an expansion nor a schema describes."""
    if "side_effect" not in call.effects.ordered or call.body is not None or not call.flat_args:
        return False
    if only_raises(call):
        return False
    return "out" in dict(call.kwargs) or not writes_nothing(resolve(call.symbol))


def _annotated(schema: Any) -> bool:
    return any(item.alias_info for item in (*schema.arguments, *schema.returns))


def schema_effects(
    op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Any
) -> Effects:
    """Effects of a call of ``op`` by its schema: mutated arguments, aliases, random numbers.

    ``args`` and ``kwargs`` hold proxies, ``outputs`` is the call's result on fake tensors.
    """
    flat = [leaf for leaf in leaves((args, dict(kwargs))) if isinstance(leaf, Proxy)]
    places: dict[str, int] = {}
    for i, proxy in enumerate(flat):
        # Of a tensor that is passed twice, effects name the first place.
        places.setdefault(proxy.name, i)
    mutates: dict[int, None] = {}
    sets: dict[str, list[int]] = {}
    for argument, value in bound_arguments(op._schema, args, kwargs):
        if argument.alias_info is None:
            continue
        found = [places[p.name] for p in leaves(value) if isinstance(p, Proxy)]
        if argument.alias_info.is_write:
            mutates.update(dict.fromkeys(found))
        for name in argument.alias_info.before_set:
            sets.setdefault(name, []).extend(found)
    aliases = tuple(_aliases(op._schema, sets, outputs))
    # The default generator of the device of the first tensor is the one drawn from.
    device = next((p.device for p in flat if isinstance(p, TensorProxy)), "cpu")
    seeded = (f"random:{device}",) if torch.Tag.nondeterministic_seeded in op.tags else ()
    return Effects(tuple(sorted(mutates)), (), aliases, seeded)


def bound_arguments(
    schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments that ``schema`` declares and a call is given, each with its value."""
    for i, argument in enumerate(schema.arguments):
        if i < len(args):
            yield argument, args[i]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _aliases(schema: Any, sets: Mapping[str, list[int]], outputs: Any) -> Iterator[Alias]:
    returned = [outputs] if len(schema.returns) == 1 else list(outputs or ())
    output = 0
    for declared, value in zip(schema.returns, returned, strict=False):
        tensors = [x for x in leaves(value) if isinstance(x, torch.Tensor)]
        info = declared.alias_info
        arguments = sorted({i for n in info.before_set for i in sets.get(n, ())}) if info else []
        for _ in tensors:
            for i in arguments:
                yield Alias(output, "arg", i, identical=info.is_write and len(arguments) == 1)
            output += 1
