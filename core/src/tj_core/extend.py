"""The names that authors of plugins import: records, hooks and types of the plugin contract.

`tj_core` is the users' page, this one the authors'. All other modules of the core may change with
any version. The names here follow a policy:

- A name is added at any time; so are keyword arguments and fields of records that have a default,
  and members of `Stage`. Match stages and error classes by name, not by exhaustion.
- A name, an argument or a field is removed or renamed as `tj_core.deprecations` says: it warns for
  two minor releases at least, is an error by default in the next, and then gone.
- The text of messages, `repr` of records and the form of printed traces may change with any minor
  release; a printed trace is read by the release that printed it.
- A patch release changes none of this, so ``tj-core>=0.1,<0.2`` is the range to require.

Importing this module imports pluggy (for `hookimpl`) and nothing else beyond the core.
"""

from __future__ import annotations

from tj_core.analysis.alias import (
    AliasFacts,
    Place,
    Storage,
    ViewStep,
    alias_facts,
    makes_views,
    same_objects,
    storage_roots,
)
from tj_core.analysis.bound_sizes import SizePlace, size_places, sizes_are_bound, symbols_in
from tj_core.analysis.liveness import (
    dependent_values,
    free_values,
    last_uses,
    live_calls,
    live_items,
    value_names,
)
from tj_core.api import backend_state
from tj_core.compile.codegen import Program, generate
from tj_core.compile.collection import collecting_less
from tj_core.compile.compilation import Compilation
from tj_core.compile.context import PassContext
from tj_core.compile.failures import call_of, own_pass, source_of, warn_of
from tj_core.compile.function_text import define
from tj_core.compile.outcome import Outcome, Recompiler
from tj_core.compile.transforms import Transform
from tj_core.contract.decline import Decline, answer, ask
from tj_core.contract.dialects import Dialect, Resetting
from tj_core.contract.executors import STATE, Claim, Executor, Pair, States, with_state
from tj_core.contract.expansion import Expand, Expanded, bind_outputs
from tj_core.contract.fields import FUNCTION, OPTIONAL_FUNCTION, check_fields
from tj_core.contract.fusion import Boxed, Fused, Fusion, FusionRegion, interpreter
from tj_core.contract.rules import Rule, RuleTable
from tj_core.contract.sizes import ProgramSizes
from tj_core.deprecations import Deprecated01Warning, TjDeprecationWarning
from tj_core.disk import cache_folder, check_own, is_own, own_folder, replace_file
from tj_core.edit.bodies import canonical_body, formals, with_args, wrapped_body
from tj_core.edit.editor import TraceEditor
from tj_core.edit.inlining import can_inline, inline
from tj_core.edit.reexpand import reexpand, reexpand_all
from tj_core.edit.rewrite import CallEditor, Replacement, RewriteRule, rewrite
from tj_core.edit.subprograms import joined_effects, summed_effects, with_programs
from tj_core.errors import (
    CannotExpandError,
    CaptureError,
    ConfigError,
    ParseError,
    PassError,
    PluginConflictError,
    PluginError,
    RuleConflictError,
    RuleMissingError,
    TagError,
    TjError,
    TjWarning,
    TraceError,
    VerificationError,
    add_note,
    notes,
)
from tj_core.host.commands import CliCommand
from tj_core.host.frontends import Frontend
from tj_core.host.hookspecs import PLUGIN_API, hookimpl
from tj_core.host.jitted import Entry, Fallback, Guard, Jitted, jitted_of
from tj_core.host.reproducing import reproduce
from tj_core.host.services import Services
from tj_core.host.session import Session
from tj_core.ir.effects import NO_EFFECTS, Alias, Effects
from tj_core.ir.names import Namer, formal_index, formal_input, formal_value
from tj_core.ir.proxy import (
    Device,
    Dim,
    DType,
    NumberProxy,
    OpaqueProxy,
    Proxy,
    SubclassInfo,
    SymDim,
    TensorProxy,
    contiguous_strides,
    is_subclass,
    may_overlap,
    requires_grad,
    size_expressions,
    size_hints,
)
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.sizes import (
    Operation,
    SizeTree,
    evaluate_size,
    normal_size,
    parse_size,
    same_size,
    size_symbols,
)
from tj_core.ir.stage import Stage
from tj_core.ir.substitution import substituted, substitution
from tj_core.ir.symbol import (
    AUGMENTED,
    BACKWARD,
    FORWARD,
    FUNCTIONAL,
    INVERSE,
    PLAIN_CONTEXT,
    REPLAYED,
    Constant,
    Context,
    Symbol,
)
from tj_core.ir.tags import NEW_VALUE_OF, NO_TAGS, Tag, TagRegistry, TagSet
from tj_core.ir.trace import Body, BoundSymbol, Change, PassRecord, Subprogram, Trace
from tj_core.ir.tree import leaves, map_tree
from tj_core.passes.cse import cse
from tj_core.passes.dce import dce
from tj_core.passes.fuse.overwriting import OVERWRITES, Overwrites
from tj_core.passes.fuse.refusals import REFUSES, Refuses
from tj_core.source import Source
from tj_core.text.language import Language
from tj_core.text.metadata import meta_text
from tj_core.text.printer import value_text
from tj_core.verify.verifier import verify
from tj_core.verify.wellformed import same_metadata

__all__ = [
    "AUGMENTED",
    "BACKWARD",
    "FORWARD",
    "FUNCTION",
    "FUNCTIONAL",
    "INVERSE",
    "NEW_VALUE_OF",
    "NO_EFFECTS",
    "NO_TAGS",
    "OPTIONAL_FUNCTION",
    "OVERWRITES",
    "PLAIN_CONTEXT",
    "PLUGIN_API",
    "REFUSES",
    "REPLAYED",
    "STATE",
    "Alias",
    "AliasFacts",
    "Body",
    "BoundSymbol",
    "Boxed",
    "CallEditor",
    "CannotExpandError",
    "CaptureError",
    "Change",
    "Claim",
    "CliCommand",
    "Compilation",
    "ConfigError",
    "Constant",
    "Context",
    "DType",
    "Decline",
    "Deprecated01Warning",
    "Device",
    "Dialect",
    "Dim",
    "Effects",
    "Entry",
    "Executor",
    "Expand",
    "Expanded",
    "Fallback",
    "Frontend",
    "Fused",
    "Fusion",
    "FusionRegion",
    "Guard",
    "Jitted",
    "Language",
    "Namer",
    "NumberProxy",
    "OpaqueProxy",
    "Operation",
    "Outcome",
    "Overwrites",
    "Pair",
    "ParseError",
    "PassContext",
    "PassError",
    "PassRecord",
    "Place",
    "PluginConflictError",
    "PluginError",
    "Program",
    "ProgramSizes",
    "Proxy",
    "Recompiler",
    "Refuses",
    "Replacement",
    "Resetting",
    "RewriteRule",
    "Rule",
    "RuleConflictError",
    "RuleMissingError",
    "RuleTable",
    "RuntimeValues",
    "Services",
    "Session",
    "SizePlace",
    "SizeTree",
    "Source",
    "Stage",
    "States",
    "Storage",
    "SubclassInfo",
    "Subprogram",
    "SymDim",
    "Symbol",
    "Tag",
    "TagError",
    "TagRegistry",
    "TagSet",
    "TensorProxy",
    "TjDeprecationWarning",
    "TjError",
    "TjWarning",
    "Trace",
    "TraceEditor",
    "TraceError",
    "Transform",
    "VerificationError",
    "ViewStep",
    "add_note",
    "alias_facts",
    "answer",
    "ask",
    "backend_state",
    "bind_outputs",
    "cache_folder",
    "call_of",
    "can_inline",
    "canonical_body",
    "check_fields",
    "check_own",
    "collecting_less",
    "contiguous_strides",
    "cse",
    "dce",
    "define",
    "dependent_values",
    "evaluate_size",
    "formal_index",
    "formal_input",
    "formal_value",
    "formals",
    "free_values",
    "generate",
    "hookimpl",
    "inline",
    "interpreter",
    "is_own",
    "is_subclass",
    "jitted_of",
    "joined_effects",
    "last_uses",
    "leaves",
    "live_calls",
    "live_items",
    "makes_views",
    "map_tree",
    "may_overlap",
    "meta_text",
    "normal_size",
    "notes",
    "own_folder",
    "own_pass",
    "parse_size",
    "reexpand",
    "reexpand_all",
    "replace_file",
    "reproduce",
    "requires_grad",
    "rewrite",
    "same_metadata",
    "same_objects",
    "same_size",
    "size_expressions",
    "size_hints",
    "size_places",
    "size_symbols",
    "sizes_are_bound",
    "source_of",
    "storage_roots",
    "substituted",
    "substitution",
    "summed_effects",
    "symbols_in",
    "value_names",
    "value_text",
    "verify",
    "warn_of",
    "with_args",
    "with_programs",
    "with_state",
    "wrapped_body",
]
