"""Process-wide settings that affect expansions and are not part of a call's context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Modes"]


@dataclass(frozen=True, slots=True)
class Modes:
    """Snapshot of the settings; take one per trace, not per call.

    An expansion is valid only while they stay the same, so frontends guard on them.
    """

    default_dtype: str
    default_device: str
    deterministic: tuple[bool, bool]
    attention: tuple[bool, ...]
    mkldnn: bool
    cudnn: tuple[bool, ...]
    matmul_precision: str

    @classmethod
    def current(cls) -> Modes:
        """Take a snapshot."""
        mkldnn: Any = torch.backends.mkldnn
        cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
        return cls(
            str(torch.get_default_dtype()),
            str(torch.get_default_device()),
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            (
                cuda.flash_sdp_enabled(),
                cuda.mem_efficient_sdp_enabled(),
                cuda.math_sdp_enabled(),
                cuda.cudnn_sdp_enabled(),
            ),
            mkldnn.enabled,
            (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
            torch.get_float32_matmul_precision(),
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """The settings as one hashable value."""
        return (
            self.default_dtype,
            self.default_device,
            self.deterministic,
            self.attention,
            self.mkldnn,
            self.cudnn,
            self.matmul_precision,
        )
