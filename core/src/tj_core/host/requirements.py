"""Requirements on the environment: a project's, and those of a plugin's distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.errors import ConfigError, PluginError
from tj_core.host.discovery import (
    UNKNOWN,
    Found,
    core_version,
    distribution_requires,
    installed_version,
)

if TYPE_CHECKING:
    from tj_core.host.config import Config

__all__ = ["check_core_range", "check_requirements"]


def check_requirements(config: Config) -> None:
    """Compare ``required`` and ``minversion`` with the installed distributions.

    :raises ConfigError: if a text is not a requirement or a version.
    :raises PluginError: if something is missing or of another version.
    """
    if config.core.minversion is not None:
        _check_core(config.core.minversion, config["minversion"].origin)
    for text in config.core.required:
        _check_one(text, config["required"].origin)


def _check_core(text: str, origin: str) -> None:
    from packaging.version import InvalidVersion, Version

    try:
        wanted = Version(text)
    except InvalidVersion as error:
        raise ConfigError(f"{origin}: 'minversion' is not a version: {text!r}") from error
    if Version(core_version()) < wanted:
        raise PluginError(
            f"this project needs tj-core {text} or later, installed is {core_version()}",
            hint=f"asked for by {origin}; pip install 'tj-core>={text}'",
        )


def _check_one(text: str, origin: str) -> None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ConfigError(f"{origin}: 'required' has no requirement in {text!r}") from error
    if requirement.marker is not None and not requirement.marker.evaluate():
        return
    version = installed_version(requirement.name)
    # By default, a specifier contains no version before a release, such as 0.2.dev1.
    if version is None or not requirement.specifier.contains(version, prereleases=True):
        raise PluginError(
            f"this project requires {text!r}, installed is {version or 'none'}",
            hint=f"asked for by {origin}; pip install {text!r}",
        )


def check_core_range(found: Found) -> None:
    """Compare the tj-core that the plugin's distribution requires with the one that runs.

    Installers check this range, but not where distributions are built, linked or upgraded by hand.
    A tj-core that runs without being installed has no version, and passes.

    :raises PluginError: if tj-core has another version.
    """
    from packaging.requirements import Requirement

    version = core_version()
    for text in distribution_requires(found.distribution):
        requirement = Requirement(text)
        # Both spellings are one name of a distribution (PEP 503).
        if requirement.name.replace("_", "-").lower() != "tj-core" or version == UNKNOWN:
            continue
        # Without an extra: what only one needs may be missing.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            raise PluginError(
                f"{found.distribution} {found.version} requires "
                f"tj-core{requirement.specifier}, installed is tj-core {version}"
            )
