"""Features of a capture that are about classes, their members and what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tj_torch.capture.dynamo import (
    class_answers,
    class_probes,
    computed_attributes,
    constructors,
    corrections,
    enums,
    keys,
    lifetimes,
    lists_and_sets,
    metaclasses,
    method_closures,
    missing_attributes,
    module_hooks,
    module_members,
    own_dicts,
    own_methods,
    releases,
)
from tj_torch.capture.dynamo.class_attributes import leave_set_attributes
from tj_torch.capture.dynamo.descriptors import guard_descriptors
from tj_torch.torch_private.features import Correction, Needs

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["CLASSES", "names", "unnoticed"]


def unnoticed(correct: Callable[[ExitStack], object]) -> Callable[[ExitStack, Observations], None]:
    """Take a correction that has nothing to say to the capture."""

    def apply(stack: ExitStack, noticed: Observations) -> None:
        correct(stack)

    return apply


def names(text: str) -> frozenset[str]:
    """Split names that a program may use."""
    return frozenset(text.split())


def _members(stack: ExitStack, noticed: Observations) -> None:
    corrections.notice_lookups(stack, noticed)
    releases.refuse_setters(stack)


CLASSES: tuple[Correction, ...] = (
    Correction.of(
        "members of classes",
        "a member that is replaced on a class between calls is the one that runs",
        _members,
        None,
        class_probes.members,
    ),
    Correction.of(
        "attributes of classes",
        "what a program sets on a class is what objects and derived classes have",
        unnoticed(leave_set_attributes),
        Needs(frozenset({"STORE_ATTR"}), names("setattr")),
        class_probes.attributes,
    ),
    Correction.of(
        "calls of metaclasses",
        "a class that its metaclass makes once is made once",
        unnoticed(metaclasses.leave_metaclass_calls),
        None,
        class_probes.metaclasses,
    ),
    Correction.of(
        "checks of metaclasses",
        "isinstance asks a metaclass, in each call",
        unnoticed(metaclasses.leave_metaclass_checks),
        Needs(names=names("isinstance issubclass")),
        class_probes.checks,
    ),
    Correction.of(
        "answers of classes",
        "isinstance and callable see classes that are registered or changed between calls",
        class_answers.guard_answers,
        Needs(
            names("MATCH_CLASS MATCH_SEQUENCE MATCH_MAPPING"),
            names("isinstance issubclass callable"),
        ),
        class_probes.answers,
    ),
    Correction.of(
        "lists and sets",
        "what a program adds to a list or a set that was there before is in it, whoever has it",
        unnoticed(lists_and_sets.keep_lists_and_sets),
        None,
        class_probes.lists_and_sets,
    ),
    Correction.of(
        "graph breaks in builtins",
        "a correction that breaks the graph inside of a builtin function does so",
        unnoticed(own_methods.keep_stops),
        None,
        class_probes.stops,
    ),
    Correction.of(
        "own methods",
        "methods of the program's classes, enums and numbers that Python calls run in each call",
        unnoticed(own_methods.leave_own_methods),
        None,
        class_probes.own_methods,
    ),
    Correction.of(
        "members of enums",
        "what a member of an enum holds is read in each call",
        unnoticed(enums.leave_members),
        None,
        class_probes.enum_members,
    ),
    Correction.of(
        "classes made in programs",
        "a class that the program makes is a new one in each call",
        unnoticed(lists_and_sets.leave_made_classes),
        Needs(frozenset({"LOAD_BUILD_CLASS"}), names("type namedtuple")),
        class_probes.made_classes,
    ),
    Correction.of(
        "missing attributes",
        "an attribute that an object lacks, and gets later, is found then",
        unnoticed(missing_attributes.guard_missing_attributes),
        None,
        class_probes.missing_attributes,
    ),
    Correction.of(
        "computed attributes",
        "a property, or a __getattr__, runs as often as the program asks for what it computes",
        unnoticed(computed_attributes.compute_once),
        Needs(names=names("hasattr getattr")),
        class_probes.computed_attributes,
    ),
    Correction.of(
        "keys of objects",
        "what vars(x) has is asked in each call",
        unnoticed(own_dicts.guard_own_dicts),
        Needs(names=names("vars __dict__")),
        class_probes.own_dicts,
    ),
    Correction.of(
        "tensors of a size",
        "torch.Tensor(x.size()) has that size",
        unnoticed(constructors.unpack_sizes),
        Needs(names=names("Tensor FloatTensor DoubleTensor LongTensor IntTensor")),
        class_probes.constructors,
    ),
    Correction.of(
        "closures of methods",
        "methods of objects that a program makes read and write what they close over",
        unnoticed(method_closures.leave_closures),
        None,
        class_probes.method_closures,
    ),
    Correction(
        "hooks of modules",
        "that a module has no hooks is one guard",
        "each of six dicts is guarded, and calls of large models take longer",
        apply=unnoticed(module_hooks.guard_hooks_at_once),
        needs=Needs(),
    ),
    Correction.of(
        "hidden members",
        "what comes to hide a parameter or a submodule in a module is found in its place",
        unnoticed(module_members.guard_hidden_members),
        None,
        class_probes.hidden_members,
    ),
    Correction.of(
        "equal keys",
        "two keys that a class of the program's says are equal are one",
        unnoticed(keys.leave_equal_keys),
        None,
        class_probes.equal_keys,
    ),
    Correction.of(
        "ends of objects",
        "an object that a program makes ends, and is gone, when Python frees it",
        unnoticed(lifetimes.leave_lifetimes),
        None,
        class_probes.ends,
    ),
    Correction.of(
        "methods as values",
        "`torch.Tensor.sin` is a value, and another one is another program",
        unnoticed(guard_descriptors),
        None,
        class_probes.descriptors,
    ),
)
"""The corrections, a part of `tj_torch.capture.dynamo.features.FEATURES`."""
