"""Tables of what a plugin does with private names of PyTorch, and what is lost without them.

A plugin registers its `Table` in the rule table ``private_names``. Then its probes run as those of
tj-torch do: once for an installation of a version that was not tested, before the first program is
compiled; and ``tj doctor`` lists its features and names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tj_core.extend import RuleTable

from tj_torch.installation import Probed
from tj_torch.torch_private.lookup import MissingNameError, Name

__all__ = ["PRIVATE_NAMES", "Feature", "Probe", "Table", "later", "registered"]

PRIVATE_NAMES = "private_names"
"""The name of the rule table; its keys are the names of distributions."""

Probe = Callable[[], None]
"""A small program that raises AssertionError where a feature has no effect."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that is right or fast by private names of PyTorch.

    ``does`` says what is so with it, ``without`` what becomes of programs without it, both as
    clauses. Without an ``essential`` one the plugin does nothing.
    """

    name: str
    does: str
    without: str
    essential: bool = False
    probe: Probe | None = None


def later(module: str, name: str) -> Probe:
    """The probe ``name`` of ``module``, which is imported when the probe runs."""

    def probe() -> None:
        getattr(importlib.import_module(module), name)()

    return probe


@dataclass(eq=False)
class Table:
    """The private names that a distribution uses, and the features that rest on them.

    ``place`` is where the table is, ``module:name``; probes run in another process, which imports
    it from there. ``package`` is what the probes test: their answers hold while its files stay.
    ``used`` finds names that are not in ``names``, such as methods that are replaced, and ``look``
    the features that lack one of those, with reasons.

    ``lost`` are the features that are lost in this process, with reasons: of the process, not of a
    session.
    """

    owner: str
    place: str
    package: str
    names: Mapping[str, Name]
    features: tuple[Feature, ...]
    tracker: str = ""
    look: Callable[[], dict[str, str]] = dict
    used: Callable[[], Iterable[Name]] = tuple
    lost: dict[str, str] = field(default_factory=dict)
    settled: bool = False
    looked: bool = False

    def __post_init__(self) -> None:
        self.tracker = self.tracker or f"the issue tracker of {self.owner}"
        known = {f.name for f in self.features}
        unknown = {f for n in self.names.values() for f in n.features} - known
        if unknown:
            raise ValueError(f"{self.owner} has no feature {min(unknown)!r}")

    @property
    def probed(self) -> Probed:
        """The answers of its probes, on disk."""
        return Probed(self.owner, self.package)

    def feature(self, name: str) -> Feature:
        """The feature of that name."""
        return next(f for f in self.features if f.name == name)

    def missing(self) -> dict[str, str]:
        """The features whose names this PyTorch lacks, with reasons."""
        found = self.look()
        for name in self.names.values():
            try:
                name.find()
            except MissingNameError as error:
                for feature in () if name.newer else name.features:
                    found.setdefault(feature, f"no {error.path}")
        return found

    def look_once(self) -> None:
        """Look for all names, once in a process, and lose the features that need missing ones."""
        if not self.looked:
            self.lost = {**self.missing(), **self.lost}
            self.looked = True

    def probe(self) -> dict[str, str]:
        """Run all probes in this process; return the features that are lost, with reasons.

        Those are lost, too, whose names are missing: their probes do not run.
        """
        self.settled = True  # programs of probes are compiled, too
        found = self.missing()
        for feature in self.features:
            if feature.probe is None or feature.name in found:
                continue
            try:
                feature.probe()
            except AssertionError as error:
                found[feature.name] = f"it has no effect: {error}"
            except Exception as error:
                found[feature.name] = f"its probe raises {type(error).__name__}: {error}"
        return found


def registered(table: Table) -> RuleTable[Table]:
    """``table`` as a plugin's ``tj_rule_tables`` returns it."""
    rules: RuleTable[Table] = RuleTable(PRIVATE_NAMES, rule_type=Table)
    rules.set(table.owner, table)
    return rules
