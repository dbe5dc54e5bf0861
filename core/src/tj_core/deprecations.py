"""Deprecations in the contract with plugins: one warning class per release of tj.

Adding is free. A hook may be added, and an argument to a hook: an implementation names the
arguments it wants. A field with a default may be added to a record. Removing takes four releases;
what 0.1 deprecates warns in 0.1 and 0.2, is an error by default in 0.3, and is gone in 0.4:

1. *Deprecated*, in two minor releases at least. The hook, or its argument, says so where it is
   specified, and plugins that implement it are warned of once, as they load, at the line of the
   implementation::

       @hookspec(warn_on_impl=Deprecated01Warning("tj_old: implement tj_new"))
       @hookspec(warn_on_impl_args={"old": Deprecated01Warning("tj_tags: `old` is `new`")})

   A function of `tj_core.extend` calls ``warnings.warn(Deprecated01Warning(...), stacklevel=2)``;
   any other name there moves to the module's ``__getattr__``, which does.
2. *An error by default*, in one minor release: a line below the class in this file,
   ``warnings.filterwarnings("error", category=Deprecated01Warning, append=True)``. Being last, it
   gives way to any filter of the user's. The plugin does not load.
3. *Gone*: the hook, argument or name, its class here, and that line. What is left in a plugin is
   an unknown hook or argument, which is an error that names plugin and tj-core.

``PLUGIN_API`` (in `tj_core.host.hookspecs`) is not part of this. It is raised by changes that no
warning can announce, because the same implementation would mean something else.
"""

from __future__ import annotations

from typing import ClassVar

from tj_core.errors import TjWarning

__all__ = ["Deprecated01Warning", "TjDeprecationWarning"]


class TjDeprecationWarning(TjWarning):
    """Base of the warnings of names and arguments that a later release of tj removes.

    No `DeprecationWarning`: Python hides these from users, who need to know in time that a
    plugin they rely on will stop loading.
    """

    since: ClassVar[str]
    """The minor release that deprecates the name, such as ``0.1``."""


class Deprecated01Warning(TjDeprecationWarning):
    """Deprecated by 0.1: an error by default in 0.3, gone in 0.4."""

    since = "0.1"
