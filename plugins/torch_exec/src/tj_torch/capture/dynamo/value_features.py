"""Features of a capture for lists, numbers and tensors of the caller, a part of the table."""

from __future__ import annotations

from tj_torch.capture.dynamo import (
    global_numbers,
    growing_lists,
    numpy_numbers,
    numpy_types,
    outer_probes,
    pending_writes,
    strided_outs,
    tensors,
)
from tj_torch.capture.dynamo.class_features import names, unnoticed
from tj_torch.torch_private.features import Correction, Needs

__all__ = ["VALUES"]

VALUES: tuple[Correction, ...] = (
    Correction.of(
        "types of NumPy",
        "isinstance, type and hasattr of a NumPy scalar see a number, not an array",
        unnoticed(numpy_types.correct),
        Needs(names=numpy_types.NAMES),
        outer_probes.numpy_types,
    ),
    Correction(
        "numbers of NumPy",
        "NumPy computes numbers from constants while the program is captured",
        "programs that call functions of NumPy run as they are",
        apply=unnoticed(numpy_numbers.compute_numbers),
        probe=outer_probes.numpy_numbers,
        needs=Needs(),
    ),
    Correction(
        "numbers of globals",
        "a whole number of a global object that differs between calls is a symbol",
        "each value of such a number is compiled for",
        apply=unnoticed(global_numbers.correct),
        needs=Needs(),
    ),
    Correction(
        "growing lists",
        "a list that a program only adds to may have any length",
        "each length of such a list is compiled for",
        apply=growing_lists.correct,
        needs=Needs(),
    ),
    Correction.of(
        "writes before handlers",
        "a handler of a tensor subclass sees what the program has written before",
        unnoticed(pending_writes.leave_unseen_writes),
        Needs(names("STORE_ATTR STORE_GLOBAL STORE_DEREF STORE_SUBSCR DELETE_SUBSCR")),
        outer_probes.seen_writes,
    ),
    Correction.of(
        "hooks that read",
        "a hook on a computed tensor reads state when it runs",
        unnoticed(tensors.leave_reading_hooks),
        Needs(names=names("register_hook")),
        outer_probes.hooks,
    ),
    Correction(
        "strided results",
        "a call may write to a tensor that is not contiguous, by `out=`",
        "the graph breaks at such a call",
        apply=unnoticed(strided_outs.correct),
        needs=Needs(),
    ),
)
