"""What authors of gradients import from tj-autograd: the value of table ``grad``."""

from __future__ import annotations

from tj_autograd.joint.rules import GradRule

__all__ = ["GradRule"]
