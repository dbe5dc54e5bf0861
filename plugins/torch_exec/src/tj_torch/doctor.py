"""Findings for ``tj doctor``: the PyTorch that is installed, and what is lost with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tj_core.extend import Finding

from tj_torch.installation import TESTED, is_tested, torch_version

if TYPE_CHECKING:
    from tj_core.extend import Session

    from tj_torch.torch_private.tables import Table

__all__ = ["findings"]


def findings(session: Session | None, *, every: bool, names: bool) -> Iterator[Finding]:
    """Examine PyTorch; in a ``session``, run the probes of all plugins' private names.

    Features that work are found one by one if ``every``, names if ``names``.
    """
    from tj_torch.torch_private.tables import PRIVATE_NAMES

    version, newest = torch_version(), TESTED[-1]
    tested = f"PyTorch {version}; tj was tested with {', '.join(TESTED)}"
    if is_tested(version):
        yield Finding("torch", tested)
    else:
        yield Finding("torch", tested, "note", f"pip install 'torch=={newest}.*'")
    if session is None:
        return
    for table in [rule.value for rule in session.tables[PRIVATE_NAMES]]:
        lost = table.probe()
        table.probed.keep(session.config.core.cache_dir, lost)
        yield from _features(table, lost, every)
        if names:
            yield from _names(table, lost)


def _features(table: Table, lost: dict[str, str], every: bool) -> Iterator[Finding]:
    for feature in table.features:
        reason = lost.get(feature.name)
        if reason is not None:
            text = f"{feature.name} is lost: {reason}; without it, {feature.without}"
            mending = f"pip install 'torch=={TESTED[-1]}.*', or a newer {table.owner}"
            yield Finding(table.owner, text, "bad", mending)
        elif every:
            yield Finding(table.owner, f"{feature.name}: {feature.does}")
    if not lost:
        count = len(table.features)
        yield Finding(table.owner, f"all {count} features that rest on private names work")


def _names(table: Table, lost: dict[str, str]) -> Iterator[Finding]:
    lines = ["private names of PyTorch in use:"]
    for name in (*table.names.values(), *table.used()):
        features = [table.feature(feature) for feature in name.features]
        without = "; ".join(f"{f.name}: {f.without}" for f in features)
        lines += [
            name.path,
            f"    used to {name.use}",
            *(f"    renamed since {version}: {path}" for version, path in name.moved),
            f"    {'lost' if any(f in lost for f in name.features) else 'without it'}: {without}",
        ]
    yield Finding(table.owner, "\n".join(lines))
