"""Features of a capture for what containers hold, in which order, and for texts of it.

A part of the table.
"""

from __future__ import annotations

from tj_torch.capture.dynamo import (
    containers,
    delayed_texts,
    ordered_dicts,
    orders_of_sets,
    outer_probes,
    probes,
)
from tj_torch.capture.dynamo.class_features import names, unnoticed
from tj_torch.torch_private.features import Correction, Needs

__all__ = ["CONTAINERS"]

CONTAINERS: tuple[Correction, ...] = (
    Correction.of(
        "classes derived from containers",
        "methods of a class derived from set or deque are called",
        unnoticed(containers.leave_subclasses),
        Needs(
            frozenset({"CONTAINS_OP"}),
            names("add update discard remove pop clear union append appendleft extend popleft"),
        ),
        probes.sets,
    ),
    Correction.of(
        "order of keys",
        "move_to_end of an OrderedDict moves the key in it",
        unnoticed(containers.guard_order),
        Needs(names=names("move_to_end")),
        probes.order,
    ),
    Correction.of(
        "orders between calls",
        "a loop over an OrderedDict, and `==` of two, see keys that were moved between calls",
        ordered_dicts.guard_orders,
        None,
        outer_probes.orders,
    ),
    Correction.of(
        "orders of sets",
        "a loop over a set goes in the order that Python has, and sees another one between calls",
        orders_of_sets.keep_orders,
        None,
        outer_probes.sets,
    ),
    Correction.of(
        "delayed texts",
        "the text of a tensor or an object is of what it holds where the program makes the text",
        unnoticed(delayed_texts.correct),
        Needs(names("FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC"), names("format")),
        outer_probes.delayed,
    ),
    Correction.of(
        "text of containers",
        "the text of an OrderedDict, and of classes like it, has all items",
        unnoticed(containers.leave_texts),
        Needs(names("FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC"), names("format str")),
        outer_probes.texts,
    ),
    Correction.of(
        "tensors in containers",
        "`x in [y]`, index and count ask what Python asks",
        unnoticed(containers.compare_tensors_in_lists),
        Needs(frozenset({"CONTAINS_OP"}), names("count index remove contains __contains__")),
        probes.inside,
    ),
    Correction.of(
        "numbers in containers",
        "`2 in (n, 3)` compares the number that a symbol stands for",
        unnoticed(containers.compare_numbers_in_containers),
        Needs(frozenset({"CONTAINS_OP"}), names("contains __contains__")),
        outer_probes.sought,
    ),
    Correction.of(
        "greatest tensors",
        "max and min of tensors are one of them",
        unnoticed(containers.leave_greatest_tensors),
        Needs(names=names("max min")),
        probes.greatest,
    ),
    Correction.of(
        "sizes that are mapped",
        "a torch.Size whose items are mapped is a tuple",
        unnoticed(containers.mapped_sizes),
        Needs(names=names("tree_map tree_map_ tree_map_only tree_map_with_path")),
        probes.sizes,
    ),
)
