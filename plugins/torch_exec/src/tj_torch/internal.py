"""Second door of tj-torch: names for tj's own plugins alone, without stability.

Parts of how programs are captured, calls run on fake tensors, and writes become values, each needed
by one plugin. They change with any minor release, and plugins of this tree require one
(``tj-torch>=0.1,<0.2``). Plugins of third parties import from `tj_torch.extend`.
"""

from __future__ import annotations

from tj_torch.capture.autocast_notes import NOTES as AUTOCAST_NOTES
from tj_torch.capture.autocast_notes import AutocastNotes
from tj_torch.capture.dynamo.releases import (
    captures_functions_in_steps,
    captures_hooks_of_values,
    captures_writes_of_functions,
)
from tj_torch.capture.dynamo.skip_rules import pass_over_package, uncaptured
from tj_torch.capture.inputs import INFERENCE
from tj_torch.functionalize.bases import members
from tj_torch.functionalize.depended_on import COPIED_BACK, RETURNED_VIEW
from tj_torch.functionalize.emitter import WITH_STRIDES
from tj_torch.functionalize.functionalize import OVERWRITTEN, WITH_VALUE
from tj_torch.functionalize.objects import (
    Objects,
    overlaps_itself,
    reads_data,
    strided_beyond,
)
from tj_torch.ops.context.ambient import ambient_autocast, autocast_as_in, autocast_is_on
from tj_torch.ops.context.cast_cache import is_leaf
from tj_torch.ops.errors import WRITES_BACK, CannotExpand
from tj_torch.ops.expansion.arguments import make_fake
from tj_torch.ops.expansion.autograd_info import (
    NonLeaf,
    Saving,
    count_edges,
    gradients_of,
    runs_python,
)
from tj_torch.ops.expansion.body import BodyBuilder, alias_facts, placed_tensors
from tj_torch.ops.expansion.derivation import default_tangent, missing_symbols
from tj_torch.ops.expansion.recorder import Recorded, Recorder, Ref
from tj_torch.ops.expansion.replay import replay
from tj_torch.ops.expansion.run import Run, constant_leaf
from tj_torch.ops.facts.autograd_marks import autograd_marks
from tj_torch.ops.facts.figures import parts_to_count
from tj_torch.ops.facts.operators import OpFacts, Role
from tj_torch.ops.facts.rounding import decided, read_apart
from tj_torch.ops.facts.schema_effects import changes_unseen
from tj_torch.ops.fakes.handler_state import same_tensors
from tj_torch.ops.memo.instance import instance
from tj_torch.ops.memo.key import Unkeyable, call_key, known_of, tangents_key
from tj_torch.ops.memo.memo import Memo
from tj_torch.ops.naming.names import Names
from tj_torch.ops.settings.modes import Modes
from tj_torch.ops.sizes.program import is_dense, is_sized, known_sizes, row_major, symbols_in
from tj_torch.ops.sizes.shape_env import RunSymbols, SymbolFacts, plain
from tj_torch.ops.values.convert import State, constant, subclass_of, to_core, value_proxy
from tj_torch.runtime import thread_state
from tj_torch.runtime.beside import is_beside, tracing_alone
from tj_torch.runtime.counters import versioned
from tj_torch.runtime.forms import Form, form_of, keys
from tj_torch.runtime.function import autograd_function
from tj_torch.runtime.functional import with_strides
from tj_torch.runtime.generators import random_state, set_random_state
from tj_torch.runtime.joined import EARLIER
from tj_torch.runtime.modes import function_mode_is_on, without_function_modes, without_modes
from tj_torch.runtime.subclasses import Layout, dense_tensors, unflatten
from tj_torch.torch_private.ops import (
    deny_data_pointer,
    functionalization_below_subclasses,
    functionalized,
    functionalized_again,
    metadata_mutated,
    python_dispatcher,
    unwrapped,
)
from tj_torch.torch_private.replacement import Shared, replace
from tj_torch.torch_private.runtime import (
    TorchDispatchMode,
    backward_keeps_graph,
    dispatch_modes,
    engine_gradients,
    forward_level,
    function_modes,
    has_kernel,
    is_executed,
    level_depth,
    outside_levels,
    saved_tensors_are_hooked,
    set_version_counter,
    unwrap_if_dead,
    without_dispatch_modes,
)

__all__ = [
    "AUTOCAST_NOTES",
    "COPIED_BACK",
    "EARLIER",
    "INFERENCE",
    "OVERWRITTEN",
    "RETURNED_VIEW",
    "WITH_STRIDES",
    "WITH_VALUE",
    "WRITES_BACK",
    "AutocastNotes",
    "BodyBuilder",
    "CannotExpand",
    "Form",
    "Layout",
    "Memo",
    "Modes",
    "Names",
    "NonLeaf",
    "Objects",
    "OpFacts",
    "Recorded",
    "Recorder",
    "Ref",
    "Role",
    "Run",
    "RunSymbols",
    "Saving",
    "Shared",
    "State",
    "SymbolFacts",
    "TorchDispatchMode",
    "Unkeyable",
    "alias_facts",
    "ambient_autocast",
    "autocast_as_in",
    "autocast_is_on",
    "autograd_function",
    "autograd_marks",
    "backward_keeps_graph",
    "call_key",
    "captures_functions_in_steps",
    "captures_hooks_of_values",
    "captures_writes_of_functions",
    "changes_unseen",
    "constant",
    "constant_leaf",
    "count_edges",
    "decided",
    "default_tangent",
    "dense_tensors",
    "deny_data_pointer",
    "dispatch_modes",
    "engine_gradients",
    "form_of",
    "forward_level",
    "function_mode_is_on",
    "function_modes",
    "functionalization_below_subclasses",
    "functionalized",
    "functionalized_again",
    "gradients_of",
    "has_kernel",
    "instance",
    "is_beside",
    "is_dense",
    "is_executed",
    "is_leaf",
    "is_sized",
    "keys",
    "known_of",
    "known_sizes",
    "level_depth",
    "make_fake",
    "members",
    "metadata_mutated",
    "missing_symbols",
    "outside_levels",
    "overlaps_itself",
    "parts_to_count",
    "pass_over_package",
    "placed_tensors",
    "plain",
    "python_dispatcher",
    "random_state",
    "read_apart",
    "reads_data",
    "replace",
    "replay",
    "row_major",
    "runs_python",
    "same_tensors",
    "saved_tensors_are_hooked",
    "set_random_state",
    "set_version_counter",
    "strided_beyond",
    "subclass_of",
    "symbols_in",
    "tangents_key",
    "thread_state",
    "to_core",
    "tracing_alone",
    "uncaptured",
    "unflatten",
    "unwrap_if_dead",
    "unwrapped",
    "value_proxy",
    "versioned",
    "with_strides",
    "without_dispatch_modes",
    "without_function_modes",
    "without_modes",
]
