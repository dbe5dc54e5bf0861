"""The namespaces of executors, importable by printed programs.

``from tj_core.namespaces import x``: a symbol below ``x`` resolves in the project's session.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Namespace"]


class Namespace:
    """A dotted name under an executor's namespace; a call runs the executor's implementation."""

    __slots__ = ("_qualname",)

    def __init__(self, qualname: str) -> None:
        self._qualname = qualname

    def __getattr__(self, name: str) -> Namespace:
        return Namespace(f"{self._qualname}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the implementation, in the current session."""
        from tj_core.host.session import current_session
        from tj_core.ir.symbol import Symbol

        return current_session().language.resolve(Symbol.parse(self._qualname))(*args, **kwargs)


def __getattr__(name: str) -> Namespace:
    # Python itself asks modules for such names: `from` looks for ``__path__``.
    if name.startswith("_"):
        raise AttributeError(name)
    return Namespace(name)
