"""Run calls on fake tensors, for metadata that neither capture nor expansion has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tj_core.extend import Constant, Context, Proxy, TensorProxy, map_tree

from tj_torch.ops.context.entering import expansion_context, surroundings
from tj_torch.ops.expansion.arguments import make_fake
from tj_torch.ops.expansion.autograd_info import NonLeaf
from tj_torch.ops.expansion.expander import generators_untouched
from tj_torch.ops.fakes.modes import fake_mode
from tj_torch.torch_private import ops as private

__all__ = ["FakeRuns"]


class FakeRuns:
    """Runner of single calls of one program on fake tensors made from proxies.

    Data-dependent numbers and sizes are symbols; results with such symbols are kept by name, for
    the calls that take them.
    """

    def __init__(self) -> None:
        self.mode = fake_mode(symbolic=True)
        self._known: dict[str, Any] = {}
        self._sizes: dict[str, Any] = {}

    def run(self, fn: Callable[..., Any], args: Any, kwargs: Any, context: Context) -> Any:
        """Result of ``fn`` for trees of proxies and constants; raises the errors of ``fn``."""
        with self.entered(context):
            args, kwargs = self.actual((args, dict(kwargs)))
            return fn(*args, **kwargs)

    def actual(self, tree: Any) -> Any:
        """``tree`` with fakes for its proxies, one per proxy."""
        made: dict[str, Any] = {}

        def leaf(value: Any) -> Any:
            if not isinstance(value, Proxy):
                return value.value if isinstance(value, Constant) else value
            if value.name not in made:
                made[value.name] = self.fake(value)
            return made[value.name]

        return map_tree(leaf, tree)

    @contextlib.contextmanager
    def entered(self, context: Context) -> Iterator[None]:
        """Enter the fake mode under the call's ``context`` and no ambient state."""
        around = surroundings(*expansion_context(context))
        with generators_untouched(), private.quiet(), around, self.mode:
            yield

    def record(self, proxies: Iterable[Proxy], values: Iterable[Any]) -> None:
        """Keep the fakes that the proxies' metadata were read from."""
        self._known.update((p.name, v) for p, v in zip(proxies, values, strict=True))

    def fake(self, proxy: Proxy) -> Any:
        """Fake value for ``proxy``: the kept one, else a new one."""
        known = self._known.get(proxy.name)
        if known is not None or not isinstance(proxy, TensorProxy):
            return self._known[proxy.name]
        if proxy.requires_grad:
            leaf = make_fake(self.mode, proxy, self._size).requires_grad_()
            return NonLeaf.of(leaf, lambda: make_fake(self.mode, proxy, self._size))
        return make_fake(self.mode, proxy, self._size)

    def _size(self, expression: str) -> Any:
        """A symbol for a size that depends on data, where no result with it was kept.

        Each expression has one, without what is known of the symbols in it.
        """
        if expression not in self._sizes:
            self._sizes[expression] = self.mode.shape_env.create_unbacked_symint()
        return self._sizes[expression]
