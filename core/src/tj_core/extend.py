"""What authors of plugins import: the records, hooks and types of the plugin contract.

`tj_core` is the users' page, this one the authors'. What stands in other modules may change with
any version. What stands here keeps this policy:

- A name is added at any time; so are keyword arguments with a default, fields of records that have
  one, and members of `Stage`. Match stages and error classes by name, not by exhaustion.
- A name, an argument or a field is removed or renamed as `tj_core.deprecated` says: it warns for
  two minor releases at least, is an error by default in the next, and then gone.
- The text of messages, `repr` of records and the form of printed traces may change with any minor
  release; a printed trace is read by the release that printed it.
- A patch release changes none of this, so ``tj-core>=0.1,<0.2`` is the range to require.

Importing this module imports pluggy (for `hookimpl`) and nothing else beyond the core.
"""

from __future__ import annotations

from tj_core.deprecated import Deprecated01Warning, TjDeprecationWarning
from tj_core.errors import (
    CannotExpandError,
    CaptureError,
    ConfigError,
    ParseError,
    PluginConflictError,
    PluginError,
    RuleConflictError,
    RuleMissingError,
    TagError,
    TjError,
    TjWarning,
    TraceError,
    VerificationError,
)
from tj_core.expand import Expand, Expanded, bind_outputs, can_inline, inline
from tj_core.hookspecs import PLUGIN_API, hookimpl
from tj_core.jitted import Entry, Fallback, Guard, JitOptions, Jitted, Stats
from tj_core.language import ContextSpeller, Language, Resetting
from tj_core.passes import PassContext
from tj_core.pipeline import Compilation
from tj_core.proxy import (
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
)
from tj_core.records import (
    Again,
    Claim,
    CliCommand,
    Decline,
    Dialect,
    Executor,
    Frontend,
    Fusion,
    Pair,
    Split,
    Transform,
    Wrapped,
)
from tj_core.rewrite import Editor, Replacement, RewriteRule, rewrite
from tj_core.rules import Rule, RuleTable
from tj_core.session import Session
from tj_core.source import Source
from tj_core.stages import Stage
from tj_core.symbol import (
    NO_EFFECTS,
    PLAIN_CONTEXT,
    Alias,
    Body,
    BoundSymbol,
    Constant,
    Context,
    Effects,
    Region,
    Symbol,
)
from tj_core.tags import NO_TAGS, Tag, TagRegistry, TagSet
from tj_core.trace import Change, Namer, PassRecord, Trace
from tj_core.tree import leaves, map_tree
from tj_core.verify import verify

__all__ = [
    "NO_EFFECTS",
    "NO_TAGS",
    "PLAIN_CONTEXT",
    "PLUGIN_API",
    "Again",
    "Alias",
    "Body",
    "BoundSymbol",
    "CannotExpandError",
    "CaptureError",
    "Change",
    "Claim",
    "CliCommand",
    "Compilation",
    "ConfigError",
    "Constant",
    "Context",
    "ContextSpeller",
    "DType",
    "Decline",
    "Deprecated01Warning",
    "Device",
    "Dialect",
    "Dim",
    "Editor",
    "Effects",
    "Entry",
    "Executor",
    "Expand",
    "Expanded",
    "Fallback",
    "Frontend",
    "Fusion",
    "Guard",
    "JitOptions",
    "Jitted",
    "Language",
    "Namer",
    "NumberProxy",
    "OpaqueProxy",
    "Pair",
    "ParseError",
    "PassContext",
    "PassRecord",
    "PluginConflictError",
    "PluginError",
    "Proxy",
    "Region",
    "Replacement",
    "Resetting",
    "RewriteRule",
    "Rule",
    "RuleConflictError",
    "RuleMissingError",
    "RuleTable",
    "Session",
    "Source",
    "Split",
    "Stage",
    "Stats",
    "SubclassInfo",
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
    "TraceError",
    "Transform",
    "VerificationError",
    "Wrapped",
    "bind_outputs",
    "can_inline",
    "contiguous_strides",
    "hookimpl",
    "inline",
    "leaves",
    "map_tree",
    "rewrite",
    "verify",
]
