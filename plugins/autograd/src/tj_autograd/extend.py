"""Names for authors of gradients: `GradRule`, the value of rule table ``grad``.

Names here, their arguments and fields follow the policy of `tj_core.extend`: they are removed or
renamed with notice only. All other modules of tj-autograd may change with any version.
"""

from __future__ import annotations

from tj_autograd.joint.rules import GradRule

__all__ = ["GradRule"]
