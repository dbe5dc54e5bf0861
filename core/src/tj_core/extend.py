"""The names that authors of plugins import: records, hooks and types of the plugin contract.

`tj_core` is the users' page, this one the authors'. All other modules of the core may change with
any version; the second door, `tj_core.internal`, which is for plugins of this tree, with any minor
release. The names here follow a policy:

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

from tj_core.analysis.alias import AliasFacts, alias_facts, makes_views, storage_roots
from tj_core.analysis.bound_sizes import size_places, sizes_are_bound, symbols_in
from tj_core.analysis.liveness import (
    dependent_values,
    free_values,
    last_uses,
    live_calls,
    live_items,
    value_names,
)
from tj_core.cli.console import file_to_write
from tj_core.compile.codegen import Program, generate
from tj_core.compile.compilation import Compilation
from tj_core.compile.context import PassContext
from tj_core.compile.failures import own_pass
from tj_core.compile.function_text import define
from tj_core.compile.outcome import Outcome
from tj_core.compile.transforms import Transform
from tj_core.contract.beside import Beside
from tj_core.contract.decline import Decline, ask
from tj_core.contract.dialects import Dialect
from tj_core.contract.executors import Claim, Executor, Pair, States
from tj_core.contract.expansion import Expand, Expanded, bind_outputs
from tj_core.contract.fusion import Boxed, Fused, Fusion, FusionRegion, interpreter
from tj_core.contract.packages import PackageFormat, Packaging, TrainingNode, TrainingParts
from tj_core.contract.rules import Rule, RuleTable
from tj_core.contract.sizes import ProgramSizes
from tj_core.contract.starts import Started
from tj_core.deprecations import Deprecated01Warning, TjDeprecationWarning
from tj_core.disk import cache_folder, check_own, own_folder, plugin_folder, replace_file
from tj_core.edit.bodies import canonical_body, formals, with_args
from tj_core.edit.detachment import detached
from tj_core.edit.editor import TraceEditor
from tj_core.edit.inlining import can_inline, inline
from tj_core.edit.reexpand import reexpand_all
from tj_core.edit.rewrite import CallEditor, Replacement, RewriteRule, rewrite
from tj_core.errors import (
    CannotExpandError,
    CaptureError,
    ConfigError,
    PackageError,
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
    notes,
)
from tj_core.host.commands import CliCommand
from tj_core.host.findings import Finding
from tj_core.host.frontends import Frontend
from tj_core.host.hookspecs import PLUGIN_API, hookimpl
from tj_core.host.jitted import Entry, Fallback, Guard, Jitted
from tj_core.host.reproducing import reproduce
from tj_core.host.services import Services
from tj_core.host.session import Session
from tj_core.ir.effects import Alias, Effects
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
    is_contiguous,
    is_subclass,
    may_overlap,
    requires_grad,
    strides_overlap,
    without_grad,
)
from tj_core.ir.sizes import evaluate_size, same_size, size_symbols
from tj_core.ir.stage import Stage
from tj_core.ir.substitution import substituted, substitution
from tj_core.ir.symbol import FUNCTIONAL, PLAIN_CONTEXT, REPLAYED, Constant, Context, Symbol
from tj_core.ir.tags import NEW_VALUE_OF, NO_TAGS, Tag, TagRegistry, TagSet
from tj_core.ir.trace import Body, BoundSymbol, Change, PassRecord, Subprogram, Trace
from tj_core.ir.tree import leaves, map_tree
from tj_core.passes.dce import dce
from tj_core.passes.fuse.overwriting import OVERWRITES, Overwrites
from tj_core.passes.fuse.refusals import REFUSES, Refuses
from tj_core.source import Source
from tj_core.text.language import Language
from tj_core.text.metadata import meta_text
from tj_core.verify.verifier import verify

__all__ = [
    "FUNCTIONAL",
    "NEW_VALUE_OF",
    "NO_TAGS",
    "OVERWRITES",
    "PLAIN_CONTEXT",
    "PLUGIN_API",
    "REFUSES",
    "REPLAYED",
    "Alias",
    "AliasFacts",
    "Beside",
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
    "Finding",
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
    "Outcome",
    "Overwrites",
    "PackageError",
    "PackageFormat",
    "Packaging",
    "Pair",
    "ParseError",
    "PassContext",
    "PassError",
    "PassRecord",
    "PluginConflictError",
    "PluginError",
    "Program",
    "ProgramSizes",
    "Proxy",
    "Refuses",
    "Replacement",
    "RewriteRule",
    "Rule",
    "RuleConflictError",
    "RuleMissingError",
    "RuleTable",
    "Services",
    "Session",
    "Source",
    "Stage",
    "Started",
    "States",
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
    "TrainingNode",
    "TrainingParts",
    "Transform",
    "VerificationError",
    "alias_facts",
    "ask",
    "bind_outputs",
    "cache_folder",
    "can_inline",
    "canonical_body",
    "check_own",
    "contiguous_strides",
    "dce",
    "define",
    "dependent_values",
    "detached",
    "evaluate_size",
    "file_to_write",
    "formal_index",
    "formal_input",
    "formal_value",
    "formals",
    "free_values",
    "generate",
    "hookimpl",
    "inline",
    "interpreter",
    "is_contiguous",
    "is_subclass",
    "last_uses",
    "leaves",
    "live_calls",
    "live_items",
    "makes_views",
    "map_tree",
    "may_overlap",
    "meta_text",
    "notes",
    "own_folder",
    "own_pass",
    "plugin_folder",
    "reexpand_all",
    "replace_file",
    "reproduce",
    "requires_grad",
    "rewrite",
    "same_size",
    "size_places",
    "size_symbols",
    "sizes_are_bound",
    "storage_roots",
    "strides_overlap",
    "substituted",
    "substitution",
    "symbols_in",
    "value_names",
    "verify",
    "with_args",
    "without_grad",
]
