"""Second door of the core: names for tj's own plugins alone, without stability.

Each is needed by one plugin of this tree. They change with any minor release, and plugins of this
tree require one (``tj-core>=0.1,<0.2``). Plugins of third parties import from `tj_core.extend`.
"""

from __future__ import annotations

from tj_core.analysis.alias import Place, Storage, ViewStep, same_objects
from tj_core.analysis.bound_sizes import SizePlace
from tj_core.analysis.overlaps import Overlap
from tj_core.api import backend_state
from tj_core.cli.programs import add_target, run_target
from tj_core.compile.collection import collecting_less
from tj_core.compile.compilation import Track
from tj_core.compile.failures import call_of, source_of, warn_of
from tj_core.compile.outcome import Recompiler
from tj_core.compile.region_kernels import RegionKernel
from tj_core.compile.worker import worker
from tj_core.contract.decline import answer
from tj_core.contract.dialects import Resetting
from tj_core.contract.executors import state_keepers, with_state
from tj_core.contract.fields import FUNCTION, OPTIONAL_FUNCTION, check_fields
from tj_core.disk import is_own
from tj_core.edit.bodies import closed_body, wrapped_body
from tj_core.edit.reexpand import reexpand
from tj_core.edit.states import with_states, without_states
from tj_core.edit.subprograms import joined_effects, summed_effects, with_programs
from tj_core.errors import add_note, did_you_mean, has_written
from tj_core.host.commands import OWN_COMMANDS
from tj_core.host.discovery import installed_version
from tj_core.host.formats import plugin_executors
from tj_core.host.jitted import Fragment, jitted_of
from tj_core.ir.effects import NO_EFFECTS
from tj_core.ir.proxy import size_expressions, size_hints
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.sizes import Operation, SizeTree, normal_size, parse_size
from tj_core.ir.symbol import AUGMENTED, BACKWARD, FORWARD, INVERSE
from tj_core.looking.comparison import DIFFERENCES, LAYERS, Figures, Observed
from tj_core.looking.notebook import callable_html
from tj_core.looking.pages import PAGES, Page
from tj_core.looking.programs import CompiledProgram, wait_for
from tj_core.passes.cse import cse
from tj_core.passes.fuse.early_numbers import numbers_first
from tj_core.passes.fuse.keys import call_token, region_key
from tj_core.text.metadata import parse_meta
from tj_core.text.printer import printed_lines, value_text
from tj_core.verify.wellformed import same_metadata

__all__ = [
    "AUGMENTED",
    "BACKWARD",
    "DIFFERENCES",
    "FORWARD",
    "FUNCTION",
    "INVERSE",
    "LAYERS",
    "NO_EFFECTS",
    "OPTIONAL_FUNCTION",
    "OWN_COMMANDS",
    "PAGES",
    "CompiledProgram",
    "Figures",
    "Fragment",
    "Observed",
    "Operation",
    "Overlap",
    "Page",
    "Place",
    "Recompiler",
    "RegionKernel",
    "Resetting",
    "RuntimeValues",
    "SizePlace",
    "SizeTree",
    "Storage",
    "Track",
    "ViewStep",
    "add_note",
    "add_target",
    "answer",
    "backend_state",
    "call_of",
    "call_token",
    "callable_html",
    "check_fields",
    "closed_body",
    "collecting_less",
    "cse",
    "did_you_mean",
    "has_written",
    "installed_version",
    "is_own",
    "jitted_of",
    "joined_effects",
    "normal_size",
    "numbers_first",
    "parse_meta",
    "parse_size",
    "plugin_executors",
    "printed_lines",
    "reexpand",
    "region_key",
    "run_target",
    "same_metadata",
    "same_objects",
    "size_expressions",
    "size_hints",
    "source_of",
    "state_keepers",
    "summed_effects",
    "value_text",
    "wait_for",
    "warn_of",
    "with_programs",
    "with_state",
    "with_states",
    "without_states",
    "worker",
    "wrapped_body",
]
