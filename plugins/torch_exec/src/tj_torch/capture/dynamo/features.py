"""Features of a capture: what Dynamo gets wrong by itself, one table of all corrections.

A correction that does not find what it replaces in this PyTorch, or has no effect, is lost:
`tj_torch.torch_private.features` says what becomes of programs then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

from tj_torch.capture.dynamo import (
    collectives,
    containers,
    corrections,
    draws,
    equal_modules,
    exceptions,
    identity,
    imports,
    iterators,
    keywords,
    optimizer_steps,
    outer_probes,
    probes,
    refused_arguments,
    releases,
    result_caches,
    returned_objects,
    reused_regions,
    symbols,
    tensors,
    unguarded,
    unpacked_ranges,
    zeros,
)
from tj_torch.capture.dynamo import globals as own_globals
from tj_torch.capture.dynamo.asserts import keep_assertions
from tj_torch.capture.dynamo.attribute_writes import leave_unassignable
from tj_torch.capture.dynamo.autograd_functions import exactly
from tj_torch.capture.dynamo.class_features import CLASSES, names, unnoticed
from tj_torch.capture.dynamo.container_features import CONTAINERS
from tj_torch.capture.dynamo.data_features import NUMBERS_OF_DATA
from tj_torch.capture.dynamo.foundations import FOUNDATIONS, NAMES
from tj_torch.capture.dynamo.handlers import leave_handled_calls
from tj_torch.capture.dynamo.observations import Observations
from tj_torch.capture.dynamo.patches import leave_frames
from tj_torch.capture.dynamo.settings import guarding, with_settings
from tj_torch.capture.dynamo.value_features import VALUES
from tj_torch.capture.lost_features import say_lost
from tj_torch.ops.fakes.modes import corrected_fake_kernels
from tj_torch.torch_private import composable, dynamo, texts
from tj_torch.torch_private.features import Correction, Needs, apply_features, missing
from tj_torch.torch_private.lookup import Name
from tj_torch.torch_private.replacement import noting, path_of
from tj_torch.torch_private.tables import Table

__all__ = ["FEATURES", "TABLE", "corrected", "say_corrections"]


@contextlib.contextmanager
def corrected() -> Iterator[Observations]:
    """Let Dynamo record what the program says. To be entered under the lock.

    What is given is filled while programs are captured.

    :raises CaptureError: if an essential feature is lost in this PyTorch.
    """
    noticed = Observations()
    with with_settings(guarding()), ExitStack() as stack:
        noticed.lost = apply_features(FEATURES, stack, noticed, TABLE.lost)
        for feature, _ in noticed.lost:
            if needs := feature.needs:
                does = f"needs what this PyTorch lacks: {feature.name}"
                leave_frames(stack, needs.asks, does, of_pytorch=needs.of_pytorch)
        yield noticed


# --------------------------------------------------------------------------- the table


def _errors_of_data(stack: ExitStack, noticed: Observations) -> None:
    keep_assertions(stack, leave_handled_calls(stack, noticed), noticed)


_HANDLERS = names("PUSH_EXC_INFO SETUP_FINALLY CHECK_EXC_MATCH JUMP_IF_NOT_EXC_MATCH")
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
    *CLASSES,
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
        unnoticed(corrections.guard_missing_keys),
        Needs(_HANDLERS),
        probes.missing_keys,
    ),
    Correction.of(
        "context variables",
        "a ContextVar without a value, which gets one later, is asked in each call",
        unnoticed(releases.context_variables),
        Needs(_HANDLERS, names("get set reset")),
        probes.context_variables,
    ),
    Correction.of(
        "dicts of objects",
        "vars() of an object that the program makes is that object's",
        unnoticed(corrections.keep_dicts_of_new_objects),
        Needs(names=names("vars __dict__")),
        probes.dicts,
    ),
    Correction.of(
        "exceptions",
        "str(KeyError('x')) has quotes, and a class's own text is asked for",
        unnoticed(exceptions.correct),
        Needs(_HANDLERS | {"RAISE_VARARGS"}),
        probes.exceptions,
    ),
    Correction.of(
        "fast paths of attention",
        "modules for attention run the kernels that they run in eager",
        unnoticed(corrections.take_fast_paths),
        _ROUNDED,
    ),
    Correction.of(
        "contexts entered by hand",
        "a mode that a program enters without `with` is left as it was found",
        unnoticed(corrections.keep_contexts_in_frames),
        Needs(names=names("__enter__ __exit__ set_grad_enabled")),
        probes.contexts,
    ),
    Correction(
        "casts of other threads",
        "captures leave autocast's cache alone, which threads share",
        "a capture, and another thread that leaves autocast, may wait for each other",
        apply=unnoticed(corrections.cast_anew),
        needs=Needs(),
    ),
    Correction.of(
        "sizes after writes",
        "x.unsqueeze_(0) changes the shape that the program reads",
        unnoticed(releases.resync),
        Needs(
            names=names(
                "unsqueeze_ squeeze_ t_ transpose_ swapaxes_ swapdims_ resize_ resize_as_ set_ "
                "as_strided_ requires_grad_"
            )
        ),
        probes.sizes_after_writes,
    ),
    Correction.of(
        "calls that modes see",
        "torch.arange(3) is on the device of `torch.device(...)`, and modes see such calls",
        unnoticed(releases.seen_constructors),
        None,
        outer_probes.constructors,
    ),
    Correction.of(
        "states of an LSTM",
        "the last states of an LSTM have the shapes of the first ones",
        unnoticed(releases.lstm_states),
        Needs(names=names("lstm LSTM lstm_cell"), of_pytorch=True),
        probes.lstm_states,
    ),
    Correction.of(
        "views that are attributes",
        "x.T, x.data and the like are views made where the program reads them",
        unnoticed(tensors.compute_attributes_once),
        Needs(names=names("T mT H mH data real imag grad _base")),
        probes.attributes,
    ),
    Correction.of(
        "attributes that fakes lack",
        "what only a real tensor has is read from one",
        unnoticed(tensors.leave_the_unseen),
        Needs(names=tensors.UNGUARDED | {*tensors.UNSEEN, "untyped_storage"}),
        probes.unseen,
    ),
    Correction.of(
        "overridden operations",
        "operators that a subclass of Tensor defines are called",
        unnoticed(tensors.leave_overriding_subclasses),
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
        unnoticed(own_globals.correct),
        None,
        probes.scopes,
    ),
    Correction.of(
        "hidden builtins",
        "a global that comes to hide a builtin function is the one that is called",
        own_globals.guard_builtins,
        None,
        probes.hidden,
    ),
    Correction.of(
        "imports",
        "a statement that imports finds the module that sys.modules has in that call",
        imports.guard_imports,
        Needs(frozenset({"IMPORT_NAME"})),
        outer_probes.imported,
    ),
    Correction.of(
        "unguarded reads",
        "annotations, signatures, limits of sys and ranges are those of each call",
        unnoticed(unguarded.correct),
        Needs(names=unguarded.NAMES),
        outer_probes.unguarded,
    ),
    Correction.of(
        "unpacked ranges",
        "f(*range(3)) gives the numbers of the range",
        unnoticed(unpacked_ranges.correct),
        Needs(frozenset({unpacked_ranges.INSTRUCTION})),
        outer_probes.unpacked,
    ),
    Correction.of(
        "refused arguments",
        "range(2.0) and torch.set_grad_enabled(1) raise a TypeError",
        unnoticed(refused_arguments.correct),
        Needs(names=refused_arguments.NAMES),
        outer_probes.refused,
    ),
    Correction.of(
        "returned objects",
        "attributes are of an object, also where a call in place returns it",
        unnoticed(returned_objects.correct),
        None,
        outer_probes.returned,
    ),
    Correction.of(
        "keywords",
        "a keyword that names an argument by position is refused",
        unnoticed(keywords.correct),
        Needs(names("CALL_KW KW_NAMES CALL_FUNCTION_KW CALL_FUNCTION_EX")),
        probes.keywords,
    ),
    Correction.of(
        "identity",
        "`is` is asked in each call, as are objects that the program changes",
        unnoticed(identity.correct),
        None,
        probes.identity,
    ),
    Correction.of(
        "random numbers of Python",
        "random.Random objects draw anew in each call",
        unnoticed(draws.correct),
        Needs(
            names=names(
                "random Random randint randrange uniform shuffle sample choice choices gauss seed "
                "getstate setstate getrandbits betavariate normalvariate triangular expovariate"
            )
        ),
        probes.draws,
    ),
    Correction.of(
        "text of symbols",
        "text, rounding and divmod of a size are Python's",
        unnoticed(symbols.correct_texts),
        Needs(
            names("FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC"),
            names("format round divmod str repr"),
        ),
        probes.texts,
    ),
    Correction.of(
        "operators of symbols",
        "a product with zero, and an operator that Dynamo does not know, are Python's",
        unnoticed(symbols.correct_operators),
        None,
        probes.operators,
    ),
    *NUMBERS_OF_DATA,
    Correction.of(
        "signs of zero",
        "0.0 and -0.0 are two arguments",
        unnoticed(zeros.correct),
        None,
        probes.zeros,
    ),
    Correction.of(
        "iterators that leave",
        "a generator that a program returns runs when it is asked",
        unnoticed(iterators.correct),
        Needs(
            frozenset({"GET_ITER", "RETURN_GENERATOR", "YIELD_VALUE", "GEN_START"}),
            names("iter reversed map zip filter enumerate"),
        ),
        probes.iterators,
    ),
    Correction.of(
        "remembered results",
        "a function under lru_cache runs once",
        unnoticed(result_caches.correct),
        None,
        probes.remembering,
    ),
    Correction.of(
        "regions captured once",
        "a nested compile region is that of each of its modules, and of modes",
        reused_regions.correct,
        Needs(names=names("invoke_subgraph_placeholder"), of_pytorch=True),
        outer_probes.regions,
    ),
    Correction(
        "equal modules",
        "equal layers of a container are captured once",
        "captures take longer with each layer",
        apply=equal_modules.correct,
        needs=Needs(),
    ),
    Correction.of(
        "bounds of deques",
        "a deque with a maxlen drops what is too much",
        unnoticed(containers.bound_deques),
        Needs(
            names=names(
                "deque append appendleft extend extendleft insert rotate copy maxlen pop popleft"
            )
        ),
        probes.deques,
    ),
    *VALUES,  # a deque with a maxlen breaks the graph where it is read: after the bounds
    *CONTAINERS,
    Correction.of(
        "calls as they are",
        "addcdiv and the like are recorded, not others that round otherwise",
        unnoticed(corrections.keep_calls_whole),
        _ROUNDED,
    ),
    Correction.of(
        "steps of optimizers",
        "numbers of an optimizer's step are computed in double precision",
        unnoticed(optimizer_steps.correct),
        Needs(names=names("_optimizer_step_code _init_group"), of_pytorch=True),
    ),
    Correction.of(
        "gradients of collectives",
        "a collective that writes to a tensor has no gradient of its own",
        unnoticed(collectives.correct),
        Needs(
            names=names(
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
        unnoticed(leave_unassignable),
        Needs(frozenset({"DELETE_ATTR", "STORE_ATTR"}), names("setattr delattr")),
        probes.unassignable,
    ),
    Correction.of(
        "autograd.Function",
        "a Function is captured exactly, with its own backward",
        unnoticed(lambda stack: stack.enter_context(exactly())),
        Needs(names=names("apply"), of_pytorch=True),
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
        unnoticed(lambda stack: stack.enter_context(corrected_fake_kernels())),
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
        for path in dict.fromkeys(f"{path_of(owner)}.{name}" for owner, name in seen):
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
