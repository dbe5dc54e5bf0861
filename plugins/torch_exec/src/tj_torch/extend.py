"""What other plugins import from tj-torch: expansions, names, sizes, contexts, gradients of calls.

What stands in other modules may change with any version.
"""

from __future__ import annotations

from tj_torch.capture.dynamo.adapter import compiling
from tj_torch.capture.dynamo.passed_over import pass_over_package, uncaptured
from tj_torch.capture.dynamo.versions import captures_functions_in_steps, captures_hooks_of_values
from tj_torch.functionalize.bases import members
from tj_torch.functionalize.between import COPIED_BACK, CROSSING, RETURNED_VIEW
from tj_torch.functionalize.emitter import WITH_STRIDES
from tj_torch.functionalize.functionalize import OVERWRITTEN, WITH_VALUE
from tj_torch.functionalize.objects import Unsuitable, strided_beyond
from tj_torch.ops.context import AUTOCAST
from tj_torch.ops.contexts import ambient_autocast, autocast_as_in, is_on
from tj_torch.ops.convert import (
    constant,
    device_to_torch,
    dtype_to_torch,
    subclass_of,
    tensor_proxy,
    to_core,
    to_core_tree,
)
from tj_torch.ops.errors import WRITES_BACK, ExpansionError
from tj_torch.ops.expansion.derive import Derivation, Slot
from tj_torch.ops.expansion.expander import Expander
from tj_torch.ops.expansion.kinds import TENSOR_KINDS, TensorKind
from tj_torch.ops.expansion.observed import Observed, observed, same_operators
from tj_torch.ops.expansion.python_functions import is_python, python_body
from tj_torch.ops.expansion.replay import replay
from tj_torch.ops.expansion.run import Expansion
from tj_torch.ops.memo.instance import instance
from tj_torch.ops.memo.key import Unkeyable, call_key, known_of, tangents_key
from tj_torch.ops.memo.memo import Memo
from tj_torch.ops.memo.modes import Modes
from tj_torch.ops.names import Names, resolve
from tj_torch.ops.schema_facts import changes_unseen, may_write
from tj_torch.ops.service import TorchDialects
from tj_torch.ops.sizes.program import Sizes, is_dense, is_sized, row_major
from tj_torch.ops.sizes.shape_env import RunSymbols, SymbolFacts, is_symbolic, number_text
from tj_torch.ops.wiring import MADE, WIRING, Wiring
from tj_torch.runtime import thread_state
from tj_torch.runtime.forms import Form, form_of
from tj_torch.runtime.function import autograd_function
from tj_torch.runtime.generators import random_state, set_random_state
from tj_torch.runtime.modes import function_mode_is_on, without_function_modes, without_modes
from tj_torch.runtime.subclasses import is_wrapper, is_wrapper_class
from tj_torch.torch_private.ops import set_conj, set_neg, storage_id
from tj_torch.torch_private.runtime import (
    backward_keeps_graph,
    dispatch_modes,
    engine_gradients,
    forward_level,
    has_kernel,
    outside_levels,
    saved_tensors_are_hooked,
)

__all__ = [
    "AUTOCAST",
    "COPIED_BACK",
    "CROSSING",
    "MADE",
    "OVERWRITTEN",
    "RETURNED_VIEW",
    "TENSOR_KINDS",
    "WIRING",
    "WITH_STRIDES",
    "WITH_VALUE",
    "WRITES_BACK",
    "Derivation",
    "Expander",
    "Expansion",
    "ExpansionError",
    "Form",
    "Memo",
    "Modes",
    "Names",
    "Observed",
    "RunSymbols",
    "Sizes",
    "Slot",
    "SymbolFacts",
    "TensorKind",
    "TorchDialects",
    "Unkeyable",
    "Unsuitable",
    "Wiring",
    "ambient_autocast",
    "autocast_as_in",
    "autograd_function",
    "backward_keeps_graph",
    "call_key",
    "captures_functions_in_steps",
    "captures_hooks_of_values",
    "changes_unseen",
    "compiling",
    "constant",
    "device_to_torch",
    "dispatch_modes",
    "dtype_to_torch",
    "engine_gradients",
    "form_of",
    "forward_level",
    "function_mode_is_on",
    "has_kernel",
    "instance",
    "is_dense",
    "is_on",
    "is_python",
    "is_sized",
    "is_symbolic",
    "is_wrapper",
    "is_wrapper_class",
    "known_of",
    "may_write",
    "members",
    "number_text",
    "observed",
    "outside_levels",
    "pass_over_package",
    "python_body",
    "random_state",
    "replay",
    "resolve",
    "row_major",
    "same_operators",
    "saved_tensors_are_hooked",
    "set_conj",
    "set_neg",
    "set_random_state",
    "storage_id",
    "strided_beyond",
    "subclass_of",
    "tangents_key",
    "tensor_proxy",
    "thread_state",
    "to_core",
    "to_core_tree",
    "uncaptured",
    "without_function_modes",
    "without_modes",
]
