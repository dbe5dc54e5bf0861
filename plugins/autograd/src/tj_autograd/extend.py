"""Names for authors of gradients: `GradRule`, the value of rule table ``grad``."""

from __future__ import annotations

from tj_autograd.joint.rules import GradRule

__all__ = ["GradRule"]
