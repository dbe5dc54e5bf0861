"""Plugin with PyTorch's frontends, dialects and the eager executor.

Only its hooks import torch, so that listing plugins is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tj_core.extend import hookimpl

if TYPE_CHECKING:
    from tj_core.extend import (
        CliCommand,
        Dialect,
        Executor,
        Finding,
        Frontend,
        PackageFormat,
        RuleTable,
        Session,
        Tag,
        Transform,
    )

TJ_PLUGIN_API = 1

TJ_FALLBACK = True


@dataclass(frozen=True, slots=True)
class Options:
    """Options in ``[tool.tj.torch]``.

    ``memo_size``: number of expansions that a session keeps. ``functional``: programs to
    functionalize (stage FUNCTIONAL). ``auto``: those with traced gradients or executors other than
    fallbacks; ``always`` and ``never`` are for debugging. With ``always``, PyTorch's autograd does
    not see writes to saved tensors, and does not refuse such programs. ``probe``: run the probes of
    PyTorch's private names at the first compile in a process, even for a tested version (`tj
    doctor` shows their results).
    """

    memo_size: int = 4096
    functional: Literal["auto", "always", "never"] = "auto"
    probe: bool = False


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    return None if importlib.util.find_spec("torch") else "torch is not installed"


@hookimpl
def tj_lacking(cache_dir: str | None) -> str | None:
    from tj_torch.installation import Probed

    return Probed("tj-torch", "tj_torch.capture.dynamo").lacking(cache_dir)


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_frontends(options: Options) -> tuple[Frontend, ...]:
    from tj_torch.dispatch.frontends import frontends

    return frontends(options.probe)


@hookimpl
def tj_dialects() -> tuple[Dialect, ...]:
    from tj_torch.ops.dialect.dialects import dialects

    return dialects()


@hookimpl
def tj_rule_tables(options: Options) -> tuple[RuleTable[Any], ...]:
    from tj_torch import differences, layer_outputs
    from tj_torch.capture import autocast_notes, levels, raising_calls
    from tj_torch.capture.dynamo import trace_limits
    from tj_torch.capture.dynamo.features import TABLE
    from tj_torch.capture.fx import facts
    from tj_torch.dispatch import wrappers
    from tj_torch.ops.service import rule_tables
    from tj_torch.torch_private.tables import registered

    captured = (
        autocast_notes.rules(), differences.rules(), facts.rules(), layer_outputs.rules(),
        levels.rules(), raising_calls.rules(), trace_limits.rules(), registered(TABLE),
        wrappers.rules(),
    )  # fmt: skip
    return (*rule_tables(options.memo_size), *captured)


@hookimpl
def tj_tags(options: Options) -> tuple[Tag, ...]:
    from tj_torch.capture.handled_calls import HANDLED
    from tj_torch.capture.higher_order.checkpoint import TAGS
    from tj_torch.capture.inputs import INFERENCE
    from tj_torch.functionalize.bases import MEMBER, MEMORY
    from tj_torch.functionalize.depended_on import CROSSING, RETURNED_VIEW
    from tj_torch.functionalize.functionalize import OVERWRITTEN

    return (*TAGS, CROSSING, HANDLED, INFERENCE, MEMBER, MEMORY, OVERWRITTEN, RETURNED_VIEW)


@hookimpl
def tj_transforms(options: Options) -> tuple[Transform, ...]:
    from tj_torch.capture.higher_order.checkpoint import inline_checkpoints
    from tj_torch.capture.unneeded_gradients import unneeded_gradients
    from tj_torch.functionalize.transform import functional

    return (inline_checkpoints(), unneeded_gradients(), functional(options.functional))


@hookimpl
def tj_executors() -> tuple[Executor, ...]:
    from tj_torch.eager.executor import eager_executor

    return (eager_executor(),)


@hookimpl
def tj_package_formats() -> tuple[PackageFormat, ...]:
    from tj_torch.package.form import package_format

    return (package_format(),)


@hookimpl
def tj_cli_commands() -> tuple[CliCommand, ...]:
    from tj_torch.demo import demo_command
    from tj_torch.new_plugin.command import new_plugin_command
    from tj_torch.package.command import package_command

    return (demo_command(), new_plugin_command(), package_command())


@hookimpl
def tj_findings(session: Session | None, every: bool, names: bool) -> tuple[Finding, ...]:
    from tj_torch.doctor import findings

    return tuple(findings(session, every=every, names=names))
