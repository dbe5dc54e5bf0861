"""``tj demo``: a transformers Llama with random weights, eager and through tj, side by side."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.extend import CliCommand, Session, TjError, TraceEditor, free_values

if TYPE_CHECKING:
    import argparse

    import torch
    from rich.console import Console

__all__ = ["demo_command"]

# A small Llama with all parts of the real one (grouped-query attention, rotary embedding, RMS norm,
# gated MLP), at a size that builds and compiles in seconds on a laptop.
CONFIG = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 672,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
PROMPT = (2, 48)
NEW_TOKENS = 8

TOLERANCE = (1.3e-6, 1e-5)
"""Relative and absolute tolerance for float32 of `torch.testing.assert_close`."""


def demo_command() -> CliCommand:
    """Make the command ``tj demo``."""
    return CliCommand("demo", "run a transformers Llama eager and through tj", _configure, _run)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=4, help="decoder layers (default: 4)")
    parser.add_argument("--full-trace", action="store_true", help="print all layers, with bodies")
    parser.add_argument("--json", action="store_true", help="print JSON, and the text to stderr")


def _run(arguments: argparse.Namespace, session: Session) -> int:
    from rich.console import Console

    if arguments.layers < 1:
        raise TjError(f"--layers must be at least 1, not {arguments.layers}")
    console = Console(stderr=arguments.json)
    demo = _Demo(console, session, arguments.layers, arguments.full_trace)
    passed = demo.run()
    if arguments.json:
        print(json.dumps({"layers": arguments.layers, **demo.facts, "passed": passed}, indent=2))
    return 0 if passed else 1


class _Demo:
    """One run of the demo, which prints each step as it runs; ``facts`` are plain data of it."""

    def __init__(self, console: Console, session: Session, layers: int, full: bool) -> None:
        self.console = console
        self.session = session
        self.layers = layers
        self.full = full
        self.compared: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.facts: dict[str, Any] = {"executors": [e.name for e in session.executors]}

    def step(self, what: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        with self.console.status(f"{what} ..."):
            result = work()
        seconds = time.perf_counter() - start
        self.console.print(f"[bold]{what}[/] ({seconds:.1f} s)")
        self.facts.setdefault("steps", []).append({"step": what, "seconds": round(seconds, 3)})
        return result

    def run(self) -> bool:
        """Run all steps; return whether eager and tj agree."""
        import tj_core as tj
        import torch

        model = self.step("building the model", self.model)
        tokens = torch.randint(0, CONFIG["vocab_size"], PROMPT)
        self.console.print(f"executors: {', '.join(self.others) or 'PyTorch alone'}")
        jitted = tj.jit(model, session=self.session)
        with torch.no_grad():
            plain = self.without_cache(model, jitted, tokens)
            self.with_cache(model, jitted, tokens)
        self.console.rule("the trace of one layer")
        self.print_trace(plain)
        self.console.rule("claims")
        self.print_claims(plain)
        self.console.rule("statistics")
        self.print_stats(jitted)
        return self.judge()

    @property
    def others(self) -> list[str]:
        """Names of the executors beside PyTorch, whose kernels may round differently."""
        return [e.name for e in self.session.executors if not e.fallback]

    def compare(self, expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> None:
        """Print the greatest difference of eager's and tj's logits; keep them for `judge`."""
        pairs = list(zip(expected, got, strict=True))
        self.compared += pairs
        self.console.print(f"  maximum difference of logits: {_difference(pairs):g}")

    def judge(self) -> bool:
        """Print if eager and tj agree within the tolerance; return True if they do."""
        relative, absolute = TOLERANCE if self.others else (0.0, 0.0)
        allowed = f"{relative:g} of eager's, and {absolute:g}" if self.others else "none"
        agree = all(
            bool(((a - b).abs() <= absolute + relative * a.abs()).all()) for a, b in self.compared
        )
        difference = _difference(self.compared)
        self.console.print(
            f"maximum difference to eager: {difference:g} "
            f"(allowed: {allowed}): {'passed' if agree else 'FAILED'}"
        )
        # JSON has no NaN.
        self.facts["difference"] = None if math.isnan(difference) else difference
        self.facts["allowed"] = {"relative": relative, "absolute": absolute}
        return agree

    def model(self) -> torch.nn.Module:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            from transformers import LlamaConfig, LlamaForCausalLM
        except ImportError as error:
            raise TjError(
                "the demo needs transformers", hint="pip install 'tj-torch[demo]'"
            ) from error
        import torch

        torch.manual_seed(0)
        config = LlamaConfig(num_hidden_layers=self.layers, **CONFIG)
        return LlamaForCausalLM(config).eval()  # type: ignore[no-any-return]

    def without_cache(self, model: Any, jitted: Any, tokens: torch.Tensor) -> tuple[Any, Any]:
        import tj_core as tj

        expected = self.step("eager, no cache", lambda: model(tokens, use_cache=False).logits)
        got = self.step(
            "tj, no cache: capture, compile, run", lambda: jitted(tokens, use_cache=False).logits
        )
        self.step("tj again: a cache hit", lambda: jitted(tokens, use_cache=False))
        self.compare([expected], [got])
        return tj.last_traces(jitted), tj.explain(jitted)

    def with_cache(self, model: Any, jitted: Any, tokens: torch.Tensor) -> None:
        expected = self.step(
            f"eager, KV cache: prompt and {NEW_TOKENS} tokens", lambda: _decode(model, tokens)
        )
        chosen = [logits[:, -1:].argmax(-1) for logits in expected]
        got = self.step(
            f"tj, KV cache: prompt and {NEW_TOKENS} tokens",
            lambda: _decode(jitted, tokens, chosen),
        )
        self.compare(expected, got)

    def print_trace(self, plain: Any) -> None:
        traces, _ = plain
        trace = traces[-1] if self.full else _one_layer(traces[-1])
        text = self.facts["trace"] = trace.python(bodies=self.full)
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def print_claims(self, plain: Any) -> None:
        from rich.table import Table

        _, explanation = plain
        counts: dict[tuple[str, str], int] = {}
        for record in explanation.claims:
            key = (record.symbol.qualname, record.executor or "(its body)")
            counts[key] = counts.get(key, 0) + 1
        table = Table("operation", "executor", "calls")
        for (operation, executor), count in sorted(counts.items()):
            table.add_row(operation, executor, str(count))
        self.console.print(table)
        self.facts["claims"] = [
            {"operation": operation, "executor": executor, "calls": count}
            for (operation, executor), count in sorted(counts.items())
        ]

    def print_stats(self, jitted: Any) -> None:
        import tj_core as tj

        stats = tj.stats(jitted)
        names = ("calls", "hits", "misses", "entries", "memo_hits", "memo_misses")
        self.facts["statistics"] = {name: getattr(stats, name) for name in names}
        self.facts["compile_seconds"] = stats.compile_seconds
        self.facts["fallbacks"] = [fallback.reason for fallback in stats.fallbacks]
        seconds = ", ".join(f"{name} {value:.2f}" for name, value in stats.seconds.items())
        self.console.print(
            f"calls {stats.calls}, hits {stats.hits}, misses {stats.misses}, "
            f"entries {stats.entries}\n"
            f"expansions remembered {stats.memo_hits}, made {stats.memo_misses}\n"
            f"compile seconds {stats.compile_seconds:.2f}: {seconds}"
        )
        for fallback in stats.fallbacks:
            self.console.print(f"without tj: {fallback.reason}")


def _decode(
    model: Any, tokens: torch.Tensor, chosen: Sequence[torch.Tensor] = ()
) -> list[torch.Tensor]:
    """Logits of a prompt and of tokens after it, one at a time, with a KV cache.

    The tokens are those in ``chosen``, else chosen greedily. A second run must be given the tokens
    of the first: a difference in the last bit may decide between two of about equal probability.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    logits = []
    for i in range(NEW_TOKENS + 1):
        out = model(tokens, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits)
        tokens = chosen[i] if chosen else out.logits[:, -1:].argmax(-1)
    return logits


def _difference(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Greatest absolute difference; NaN if one of the values is NaN."""
    import torch

    return float(torch.stack([(a - b).abs().max() for a, b in pairs]).max())


def _one_layer(trace: Any) -> Any:
    """Part of ``trace`` from the first decoder layer."""
    calls = [c for c in trace.calls if c.source and ".layers.0" in f".{c.source.module_path}."]
    if not calls:
        return trace
    last = calls[-1].outputs
    editor = TraceEditor(trace)
    editor.append(*calls)
    return editor.done(name="layer", inputs=tuple(free_values(calls)), outputs=last)
