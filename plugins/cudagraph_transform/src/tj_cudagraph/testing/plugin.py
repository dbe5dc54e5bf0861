"""The plugin of tj-cudagraph with the recorder in place of CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import Dialect, RuleTable, Transform, hookimpl
from tj_torch.extend import registered

from tj_cudagraph.dialect import dialect
from tj_cudagraph.names import TABLE
from tj_cudagraph.options import Options
from tj_cudagraph.segment import Segments
from tj_cudagraph.testing.recorder import Recorder
from tj_cudagraph.transform import graph_segments
from tj_cudagraph.waits import waits

if TYPE_CHECKING:
    from tj_cudagraph.testing.counts import Counted

__all__ = ["RecorderPlugin"]


class RecorderPlugin:
    """tj-cudagraph for CPUs; its attribute `recorder` counts captures and replays.

    With ``counted``, CUDA's own graphs take the recorder's place.
    """

    tj_name = "cudagraph_recorder"

    def __init__(self, counted: Counted | None = None) -> None:
        self.recorder: Recorder | Counted = counted or Recorder()

    @hookimpl
    def tj_options(self) -> type[Any]:
        """Options of tj-cudagraph."""
        return Options

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        """Rule tables of tj-cudagraph."""
        return (waits(), registered(TABLE))

    @hookimpl
    def tj_dialects(self, options: Options) -> tuple[Dialect, ...]:
        """The dialect, bound to the recorder."""
        return (dialect(Segments(self.recorder, options)),)

    @hookimpl
    def tj_transforms(self, options: Options) -> tuple[Transform, ...]:
        """The transform, for the device of the graphs."""
        return (graph_segments(options, "cpu" if isinstance(self.recorder, Recorder) else "cuda"),)
