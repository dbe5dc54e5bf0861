"""Features of a capture: what Dynamo gets wrong by itself, one table of all corrections.

A correction that does not find what it replaces in this PyTorch, or has no effect, is lost:
`tj_torch.torch_private.features` says what becomes of programs then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from tj_torch.capture.dynamo import (
    class_probes,
    collectives,
    containers,
    corrections,
    draws,
    enums,
    exceptions,
    identity,
    iterators,
    keywords,
    lists_and_sets,
    metaclasses,
    missing_attributes,
    optimizer_steps,
    own_methods,
    probes,
    releases,
    result_caches,
    symbols,
    tensors,
    zeros,
)
from tj_torch.capture.dynamo import globals as own_globals
from tj_torch.capture.dynamo.asserts import keep_assertions
from tj_torch.capture.dynamo.attribute_writes import leave_unassignable
from tj_torch.capture.dynamo.autograd_functions import exactly
from tj_torch.capture.dynamo.class_attributes import leave_set_attributes
from tj_torch.capture.dynamo.foundations import FOUNDATIONS, NAMES
from tj_torch.capture.dynamo.handlers import leave_handled_calls
from tj_torch.capture.dynamo.observations import Observations
from tj_torch.capture.dynamo.patches import leave_frames
from tj_torch.capture.lost_features import say_lost
from tj_torch.ops.fakes.modes import corrected_fake_kernels
from tj_torch.torch_private import composable, dynamo, texts
from tj_torch.torch_private.features import Correction, Needs, apply_features, missing
from tj_torch.torch_private.lookup import Name
from tj_torch.torch_private.replacement import noting
from tj_torch.torch_private.tables import Table

__all__ = ["FEATURES", "TABLE", "corrected", "say_corrections"]


@contextlib.contextmanager
def corrected() -> Iterator[Observations]:
    """Let Dynamo record what the program says. To be entered under the lock.

    What is given is filled while programs are captured.

    :raises CaptureError: if an essential feature is lost in this PyTorch.
    """
    noticed = Observations()
    with ExitStack() as stack:
        noticed.lost = apply_features(FEATURES, stack, noticed, TABLE.lost)
        for feature, _ in noticed.lost:
            if needs := feature.needs:
                does = f"needs what this PyTorch lacks: {feature.name}"
                leave_frames(stack, needs.asks, does, of_pytorch=needs.of_pytorch)
        yield noticed


# --------------------------------------------------------------------------- the table


def _unnoticed(correct: Callable[[ExitStack], object]) -> Callable[[ExitStack, Observations], None]:
    def apply(stack: ExitStack, noticed: Observations) -> None:
        correct(stack)

    return apply


def _members(stack: ExitStack, noticed: Observations) -> None:
    corrections.notice_lookups(stack, noticed)
    releases.refuse_setters(stack)


def _errors_of_data(stack: ExitStack, noticed: Observations) -> None:
    keep_assertions(stack, leave_handled_calls(stack))


def _functions(stack: ExitStack, noticed: Observations) -> None:
    stack.enter_context(exactly())


def _fake_kernels(stack: ExitStack, noticed: Observations) -> None:
    stack.enter_context(corrected_fake_kernels())


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HANDLERS = _names("PUSH_EXC_INFO SETUP_FINALLY CHECK_EXC_MATCH JUMP_IF_NOT_EXC_MATCH")
_UNTOLD = _ROUNDED = Needs()

FEATURES: tuple[Correction, ...] = (
    Correction.of(
        "capture",
        "programs are captured whole",
        lambda stack, noticed: None,
        None,
        probes.captured,
    ),
    *FOUNDATIONS,
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
        _unnoticed(leave_set_attributes),
        Needs(frozenset({"STORE_ATTR"}), _names("setattr")),
        class_probes.attributes,
    ),
    Correction.of(
        "calls of metaclasses",
        "a class that its metaclass makes once is made once",
        _unnoticed(metaclasses.leave_metaclass_calls),
        None,
        class_probes.metaclasses,
    ),
    Correction.of(
        "checks of metaclasses",
        "isinstance asks a metaclass, in each call",
        _unnoticed(metaclasses.leave_metaclass_checks),
        Needs(names=_names("isinstance issubclass")),
        class_probes.checks,
    ),
    Correction.of(
        "lists and sets",
        "what a program adds to a list or a set that was there before is in it, whoever has it",
        _unnoticed(lists_and_sets.keep_lists_and_sets),
        None,
        class_probes.lists_and_sets,
    ),
    Correction.of(
        "graph breaks in builtins",
        "a correction that breaks the graph inside of a builtin function does so",
        _unnoticed(own_methods.keep_stops),
        None,
        class_probes.stops,
    ),
    Correction.of(
        "own methods",
        "methods of the program's classes, enums and numbers that Python calls run in each call",
        _unnoticed(own_methods.leave_own_methods),
        None,
        class_probes.own_methods,
    ),
    Correction.of(
        "members of enums",
        "what a member of an enum holds is read in each call",
        _unnoticed(enums.leave_members),
        None,
        class_probes.enum_members,
    ),
    Correction.of(
        "classes made in programs",
        "a class that the program makes is a new one in each call",
        _unnoticed(lists_and_sets.leave_made_classes),
        Needs(frozenset({"LOAD_BUILD_CLASS"}), _names("type")),
        class_probes.made_classes,
    ),
    Correction.of(
        "lazy modules",
        "a lazy module is initialised by PyTorch, with the random numbers of eager",
        corrections.refuse_uninitialized_modules,
        None,
        probes.lazy_modules,
    ),
    Correction.of(
        "missing keys",
        "a key that a dict lacks, and gets later, is found then",
        _unnoticed(corrections.guard_missing_keys),
        Needs(_HANDLERS),
        probes.missing_keys,
    ),
    Correction.of(
        "missing attributes",
        "an attribute that an object lacks, and gets later, is found then",
        _unnoticed(missing_attributes.guard_missing_attributes),
        None,
        class_probes.missing_attributes,
    ),
    Correction.of(
        "context variables",
        "a ContextVar without a value, which gets one later, is asked in each call",
        _unnoticed(releases.context_variables),
        Needs(_HANDLERS, _names("get set reset")),
        probes.context_variables,
    ),
    Correction.of(
        "dicts of objects",
        "vars() of an object that the program makes is that object's",
        _unnoticed(corrections.keep_dicts_of_new_objects),
        Needs(names=_names("vars __dict__")),
        probes.dicts,
    ),
    Correction.of(
        "exceptions",
        "str(KeyError('x')) has quotes, and a class's own text is asked for",
        _unnoticed(exceptions.correct),
        Needs(_HANDLERS | {"RAISE_VARARGS"}),
        probes.exceptions,
    ),
    Correction.of(
        "fast paths of attention",
        "modules for attention run the kernels that they run in eager",
        _unnoticed(corrections.take_fast_paths),
        _ROUNDED,
    ),
    Correction.of(
        "contexts entered by hand",
        "a mode that a program enters without `with` is left as it was found",
        _unnoticed(corrections.keep_contexts_in_frames),
        Needs(names=_names("__enter__ __exit__ set_grad_enabled")),
        probes.contexts,
    ),
    Correction.of(
        "sizes after writes",
        "x.unsqueeze_(0) changes the shape that the program reads",
        _unnoticed(releases.resync),
        Needs(
            names=_names(
                "unsqueeze_ squeeze_ t_ transpose_ swapaxes_ swapdims_ resize_ resize_as_ set_ "
                "as_strided_ requires_grad_"
            )
        ),
        probes.sizes_after_writes,
    ),
    Correction.of(
        "states of an LSTM",
        "the last states of an LSTM have the shapes of the first ones",
        _unnoticed(releases.lstm_states),
        Needs(names=_names("lstm LSTM lstm_cell"), of_pytorch=True),
        probes.lstm_states,
    ),
    Correction.of(
        "views that are attributes",
        "x.T, x.data and the like are views made where the program reads them",
        _unnoticed(tensors.compute_attributes_once),
        Needs(names=_names("T mT H mH data real imag grad _base")),
        probes.attributes,
    ),
    Correction.of(
        "attributes that fakes lack",
        "what only a real tensor has is read from one",
        _unnoticed(tensors.leave_the_unseen),
        Needs(names=frozenset(tensors.UNSEEN) | {"grad_fn", "_grad_fn"}),
        probes.unseen,
    ),
    Correction.of(
        "overridden operations",
        "operators that a subclass of Tensor defines are called",
        _unnoticed(tensors.leave_overriding_subclasses),
        None,
        probes.overriding,
    ),
    Correction.of(
        "classes of tensors",
        "methods of a tensor subclass that are replaced between calls are the ones that run",
        tensors.notice_subclasses,
        None,
    ),
    Correction.of(
        "globals of functions",
        "functions read the globals that they have, whatever module has that name",
        _unnoticed(own_globals.correct),
        None,
        probes.scopes,
    ),
    Correction.of(
        "keywords",
        "a keyword that names an argument by position is refused",
        _unnoticed(keywords.correct),
        Needs(_names("CALL_KW KW_NAMES CALL_FUNCTION_KW CALL_FUNCTION_EX")),
        probes.keywords,
    ),
    Correction.of(
        "identity",
        "`is` is asked in each call, as are objects that the program changes",
        _unnoticed(identity.correct),
        None,
        probes.identity,
    ),
    Correction.of(
        "random numbers of Python",
        "random.Random objects draw anew in each call",
        _unnoticed(draws.correct),
        Needs(
            names=_names(
                "random Random randint randrange uniform shuffle sample choice choices gauss seed "
                "getstate setstate getrandbits betavariate normalvariate triangular expovariate"
            )
        ),
        probes.draws,
    ),
    Correction.of(
        "text of symbols",
        "text, rounding and divmod of a size are Python's",
        _unnoticed(symbols.correct_texts),
        Needs(
            _names("FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC"),
            _names("format round divmod str repr"),
        ),
        probes.texts,
    ),
    Correction.of(
        "operators of symbols",
        "a product with zero, and an operator that Dynamo does not know, are Python's",
        _unnoticed(symbols.correct_operators),
        None,
        probes.operators,
    ),
    Correction.of(
        "signs of zero",
        "0.0 and -0.0 are two arguments",
        _unnoticed(zeros.correct),
        None,
        probes.zeros,
    ),
    Correction.of(
        "iterators that leave",
        "a generator that a program returns runs when it is asked",
        _unnoticed(iterators.correct),
        Needs(
            frozenset({"GET_ITER", "RETURN_GENERATOR", "YIELD_VALUE", "GEN_START"}),
            _names("iter reversed map zip filter enumerate"),
        ),
        probes.iterators,
    ),
    Correction.of(
        "remembered results",
        "a function under lru_cache runs once",
        _unnoticed(result_caches.correct),
        None,
        probes.remembering,
    ),
    Correction.of(
        "bounds of deques",
        "a deque with a maxlen drops what is too much",
        _unnoticed(containers.bound_deques),
        Needs(
            names=_names(
                "deque append appendleft extend extendleft insert rotate copy maxlen pop popleft"
            )
        ),
        probes.deques,
    ),
    Correction.of(
        "classes derived from containers",
        "methods of a class derived from set or deque are called",
        _unnoticed(containers.leave_subclasses),
        Needs(
            frozenset({"CONTAINS_OP"}),
            _names("add update discard remove pop clear union append appendleft extend popleft"),
        ),
        probes.sets,
    ),
    Correction.of(
        "order of keys",
        "move_to_end of an OrderedDict moves the key in it",
        _unnoticed(containers.guard_order),
        Needs(names=_names("move_to_end")),
        probes.order,
    ),
    Correction.of(
        "tensors in containers",
        "`x in [y]`, index and count ask what Python asks",
        _unnoticed(containers.compare_tensors_in_lists),
        Needs(frozenset({"CONTAINS_OP"}), _names("count index remove")),
        probes.inside,
    ),
    Correction.of(
        "greatest tensors",
        "max and min of tensors are one of them",
        _unnoticed(containers.leave_greatest_tensors),
        Needs(names=_names("max min")),
        probes.greatest,
    ),
    Correction.of(
        "sizes that are mapped",
        "a torch.Size whose items are mapped is a tuple",
        _unnoticed(containers.mapped_sizes),
        Needs(names=_names("tree_map tree_map_ tree_map_only tree_map_with_path")),
        probes.sizes,
    ),
    Correction.of(
        "calls as they are",
        "addcdiv and the like are recorded, not others that round otherwise",
        _unnoticed(corrections.keep_calls_whole),
        _ROUNDED,
    ),
    Correction.of(
        "steps of optimizers",
        "numbers of an optimizer's step are computed in double precision",
        _unnoticed(optimizer_steps.correct),
        Needs(names=_names("_optimizer_step_code _init_group"), of_pytorch=True),
    ),
    Correction.of(
        "gradients of collectives",
        "a collective that writes to a tensor has no gradient of its own",
        _unnoticed(collectives.correct),
        Needs(
            names=_names(
                "all_reduce all_gather all_gather_into_tensor reduce_scatter_tensor "
                "all_to_all_single _all_gather_base _reduce_scatter_base"
            )
        ),
    ),
    Correction.of(
        "errors of data",
        "errors of data reach the program's handlers, an assertion is an AssertionError",
        _errors_of_data,
        Needs(_HANDLERS | {"RAISE_VARARGS", "SETUP_WITH", "LOAD_ASSERTION_ERROR"}),
        probes.errors_of_data,
    ),
    Correction.of(
        "attributes that refuse",
        "an attribute that cannot be set raises where the program sets it",
        _unnoticed(leave_unassignable),
        Needs(frozenset({"DELETE_ATTR", "STORE_ATTR"}), _names("setattr delattr")),
        probes.unassignable,
    ),
    Correction.of(
        "autograd.Function",
        "a Function is captured exactly, with its own backward",
        _functions,
        Needs(names=_names("apply"), of_pytorch=True),
        probes.functions,
    ),
    Correction(
        "stances",
        "torch.compiler.set_stance says what becomes of jitted programs",
        "jitted programs do not heed torch.compiler.set_stance",
        probe=probes.stances,
        needs=_UNTOLD,
    ),
    Correction(
        "graph breaks",
        "tj.programs says where each fragment begins and ends, and why",
        "tj.programs lists fragments without their places",
        probe=probes.graph_breaks,
        needs=Needs(),
    ),
    Correction.of(
        "strides of kernels",
        "what a program reads of strides is what the kernel returns",
        _fake_kernels,
        None,
        probes.strides,
    ),
    Correction(
        "sharded modules",
        "a module that is jitted after `fully_shard` is part of the sharded model",
        "its parameters stay gathered between forward and backward",
        probe=probes.sharded_modules,
        needs=Needs(),
    ),
)
"""All corrections, in the order in which they are made."""


def say_corrections(lost: Iterable[tuple[Correction, str]]) -> None:
    """Warn of each correction that is lost, with its reason, once in a process."""
    say_lost(TABLE, {feature.name: reason for feature, reason in lost})


def _missing() -> dict[str, str]:
    return missing(FEATURES, Observations())


def _replaced() -> Iterator[Name]:
    """The members of Dynamo's classes and modules that corrections replace, and rare names."""
    yield from texts.WHERE_IMPORTED.values()
    for feature in FEATURES:
        with noting() as seen, contextlib.suppress(Exception), ExitStack() as stack:
            feature.apply(stack, Observations())
        for path in dict.fromkeys(seen):
            yield Name(path, f"be replaced: {feature.does}", (feature.name,))


TABLE = Table(
    "tj-torch",
    f"{__name__}:TABLE",
    "tj_torch.capture.dynamo",
    {**dynamo.NAMES, **NAMES, **composable.NAMES},
    FEATURES,
    look=_missing,
    used=_replaced,
)
"""The names and features of tj-torch."""
