"""Private names of PyTorch that the reference of nvFuser uses; tj-nvfuser itself uses none."""

from __future__ import annotations

from tj_torch.extend import Feature, Table, forget_names, later, names_finder, names_in

__all__ = ["ATTENTION", "NAMES", "SCALED", "TABLE", "forget"]

ATTENTION = "reference of attention"
SCALED = "reference of scaled products"

NAMES = names_in(
    {
        "torch": {"_scaled_mm": ("multiply matrices of 8 bits", SCALED)},
        "torch.ops.aten": {
            "_scaled_dot_product_flash_attention_for_cpu.default": ("run attention", ATTENTION),
            "_scaled_dot_product_flash_attention_for_cpu_backward.default": (
                "run the gradient of attention", ATTENTION,
            ),
        },
    },
    called={
        "_scaled_dot_product_flash_attention_for_cpu.default": "attention",
        "_scaled_dot_product_flash_attention_for_cpu_backward.default": "attention_backward",
        "_scaled_mm": "scaled_product",
    },
)  # fmt: skip
"""The names in each module, as PyTorch 2.10 to 2.15 have them, with uses and features."""

_WITHOUT = "regions with it cannot be tested without a device"

TABLE = Table(
    "tj-nvfuser",
    f"{__name__}:TABLE",
    "tj_nvfuser",
    NAMES,
    (
        Feature(
            SCALED,
            "products of 8 bits are computed in nvFuser's place",
            _WITHOUT,
            probe=later("tj_nvfuser.testing.probes", "scaled"),
        ),
        Feature(
            ATTENTION,
            "attention is computed in nvFuser's place",
            _WITHOUT,
            probe=later("tj_nvfuser.testing.probes", "attention"),
        ),
    ),
)
"""The names and features of the reference."""

__getattr__ = names_finder(globals(), NAMES, {})


def forget() -> None:
    """Look for all names again when they are next imported."""
    forget_names(globals(), NAMES)
