"""Door of tj-torch for all plugins: expansions, names, sizes, contexts, gradients, tensor kinds.

All other modules may change with any version; the second door, `tj_torch.internal`, which is for
plugins of this tree, with any minor release.
"""

from __future__ import annotations

from tj_torch.capture.dynamo.adapter import compiling
from tj_torch.capture.eager_probe import equal_to_eager
from tj_torch.capture.lost_features import say_lost
from tj_torch.dispatch.wrappers import MODULE_WRAPPERS
from tj_torch.functionalize.depended_on import CROSSING
from tj_torch.functionalize.objects import Unsuitable
from tj_torch.ops.context.ambient import is_on
from tj_torch.ops.context.entering import AUTOCAST, surroundings
from tj_torch.ops.errors import ExpansionError
from tj_torch.ops.expansion.autograd_operators import same_operators
from tj_torch.ops.expansion.derive import Derivation, Slot
from tj_torch.ops.expansion.expander import Expander
from tj_torch.ops.expansion.expansion import Expansion
from tj_torch.ops.expansion.kinds import TENSOR_KINDS, TensorKind
from tj_torch.ops.expansion.python_functions import is_python, python_body
from tj_torch.ops.facts.arrivals import arrivals
from tj_torch.ops.facts.figures import (
    byte_size,
    multiplies,
    operations,
)
from tj_torch.ops.facts.schema_effects import may_write
from tj_torch.ops.facts.wiring import WIRING, Wiring
from tj_torch.ops.naming.resolve import resolve
from tj_torch.ops.service import TorchDialects
from tj_torch.ops.sizes.program import Sizes
from tj_torch.ops.sizes.shape_env import is_symbolic, number_text
from tj_torch.ops.values.convert import device_to_torch, dtype_to_torch, tensor_proxy, to_core_tree
from tj_torch.runtime.opaque_operators import opaque_operator
from tj_torch.runtime.ranks import (
    IN_EAGER,
    WAITING,
    agreed_by_ranks,
    has_several_ranks,
    said_by_ranks,
    say_to_ranks,
)
from tj_torch.runtime.subclasses import is_wrapper, is_wrapper_class
from tj_torch.torch_private.lookup import MissingNameError, Name, names_in
from tj_torch.torch_private.lookup import finder as names_finder
from tj_torch.torch_private.lookup import forget as forget_names
from tj_torch.torch_private.ops import set_conj, set_neg, storage_id
from tj_torch.torch_private.tables import Feature, Table, later, registered

__all__ = [
    "AUTOCAST",
    "CROSSING",
    "IN_EAGER",
    "MODULE_WRAPPERS",
    "TENSOR_KINDS",
    "WAITING",
    "WIRING",
    "Derivation",
    "Expander",
    "Expansion",
    "ExpansionError",
    "Feature",
    "MissingNameError",
    "Name",
    "Sizes",
    "Slot",
    "Table",
    "TensorKind",
    "TorchDialects",
    "Unsuitable",
    "Wiring",
    "agreed_by_ranks",
    "arrivals",
    "byte_size",
    "compiling",
    "device_to_torch",
    "dtype_to_torch",
    "equal_to_eager",
    "forget_names",
    "has_several_ranks",
    "is_on",
    "is_python",
    "is_symbolic",
    "is_wrapper",
    "is_wrapper_class",
    "later",
    "may_write",
    "multiplies",
    "names_finder",
    "names_in",
    "number_text",
    "opaque_operator",
    "operations",
    "python_body",
    "registered",
    "resolve",
    "said_by_ranks",
    "same_operators",
    "say_lost",
    "say_to_ranks",
    "set_conj",
    "set_neg",
    "storage_id",
    "surroundings",
    "tensor_proxy",
    "to_core_tree",
]
