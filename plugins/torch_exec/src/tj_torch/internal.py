"""Second door of tj-torch: names for tj's own plugins alone, without stability.

Parts of how calls run on fake tensors and programs become functional. They change with any version;
plugins of third parties import from `tj_torch.extend`.
"""

from __future__ import annotations

from tj_torch.capture.autocast_notes import NOTES as AUTOCAST_NOTES
from tj_torch.capture.autocast_notes import AutocastNotes
from tj_torch.functionalize.objects import Objects, reads_data
from tj_torch.ops.autograd_marks import autograd_marks
from tj_torch.ops.cast_cache import is_leaf
from tj_torch.ops.context import surroundings
from tj_torch.ops.convert import State, value_proxy
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.arguments import make_fake
from tj_torch.ops.expansion.autograd_info import (
    NonLeaf,
    Saving,
    count_edges,
    gradients_of,
    runs_python,
)
from tj_torch.ops.expansion.body import BodyBuilder, alias_facts
from tj_torch.ops.expansion.derivation import default_tangent, missing_symbols
from tj_torch.ops.expansion.recorder import Recorded, Recorder, Ref
from tj_torch.ops.expansion.run import Run, constant_leaf
from tj_torch.ops.handler_state import same_tensors
from tj_torch.ops.operators import OpFacts, Role
from tj_torch.ops.sizes.program import known_sizes
from tj_torch.ops.sizes.shape_env import plain
from tj_torch.runtime.subclasses import Layout, dense_tensors, unflatten
from tj_torch.runtime.versions import versioned
from tj_torch.torch_private.ops import (
    deny_data_pointer,
    functionalization_below_subclasses,
    functionalized,
    functionalized_again,
    metadata_mutated,
    unwrapped,
)
from tj_torch.torch_private.runtime import TorchDispatchMode, without_dispatch_modes

__all__ = [
    "AUTOCAST_NOTES",
    "AutocastNotes",
    "BodyBuilder",
    "CannotExpand",
    "Layout",
    "NonLeaf",
    "Objects",
    "OpFacts",
    "Recorded",
    "Recorder",
    "Ref",
    "Role",
    "Run",
    "Saving",
    "State",
    "TorchDispatchMode",
    "alias_facts",
    "autograd_marks",
    "constant_leaf",
    "count_edges",
    "default_tangent",
    "dense_tensors",
    "deny_data_pointer",
    "functionalization_below_subclasses",
    "functionalized",
    "functionalized_again",
    "gradients_of",
    "is_leaf",
    "known_sizes",
    "make_fake",
    "metadata_mutated",
    "missing_symbols",
    "plain",
    "reads_data",
    "runs_python",
    "same_tensors",
    "surroundings",
    "unflatten",
    "unwrapped",
    "value_proxy",
    "versioned",
    "without_dispatch_modes",
]
