"""Private names of PyTorch that this plugin uses, the features that rest on them, their probes.

A name that this PyTorch lacks raises `MissingNameError` where it is used, and nothing uses it then.
"""

from __future__ import annotations

from tj_torch.extend import Feature, Table, forget_names, later, names_finder, names_in, say_lost

__all__ = ["CONVOLUTIONS", "INT8", "NAMES", "PACKED", "PRODUCTS", "TABLE", "forget", "look", "lost"]

PRODUCTS = "products of oneDNN"
CONVOLUTIONS = "convolutions of oneDNN"
PACKED = "packed weights"
INT8 = "products of int8"

NAMES = names_in(
    {
        "torch": {"Tensor._version": ("see that a weight was written", PACKED, INT8)},
        "torch.ops.aten": {
            "_int_mm.default": ("multiply int8", INT8),
            "_weight_int8pack_mm.default": ("multiply by weights of int8", INT8),
            "mkldnn_rnn_layer.default": ("run an LSTM layer with packed weights", PACKED),
        },
        "torch.ops.mkldnn": {
            "_convolution_pointwise.default": (
                "run a convolution and what follows", CONVOLUTIONS, PACKED,
            ),
            "_linear_pointwise.default": ("multiply matrices", PRODUCTS),
            "_reorder_convolution_weight.default": ("pack a weight of a convolution", PACKED),
            "_reorder_linear_weight.default": ("pack a weight of a linear layer", PACKED),
            "_reorder_mkldnn_rnn_layer_weight.default": ("pack weights of an LSTM layer", PACKED),
        },
        "torch.utils._python_dispatch": {
            "_disable_current_modes": ("measure outside of all modes", PRODUCTS),
        },
    },
    called={
        "_convolution_pointwise.default": "CONVOLUTION",
        "_disable_current_modes": "without_dispatch_modes",
        "_int_mm.default": "INT8_PRODUCT",
        "_linear_pointwise.default": "LINEAR",
        "_reorder_convolution_weight.default": "PACK_CONVOLUTION",
        "_reorder_linear_weight.default": "PACK_LINEAR",
        "_reorder_mkldnn_rnn_layer_weight.default": "PACK_RECURRENT",
        "_weight_int8pack_mm.default": "INT8_WEIGHT_PRODUCT",
        "mkldnn_rnn_layer.default": "RECURRENT",
    },
)  # fmt: skip
"""The names in each module, as PyTorch 2.10 to 2.15 have them, with uses and features."""

TABLE = Table(
    "tj-onednn",
    f"{__name__}:TABLE",
    "tj_onednn",
    NAMES,
    (
        Feature(
            PRODUCTS,
            "products are multiplied by oneDNN where it is faster",
            "PyTorch multiplies all",
            True,
            later("tj_onednn.probes", "products"),
        ),
        Feature(
            CONVOLUTIONS,
            "a convolution by one pixel, or one and the activation after it, is a call of oneDNN",
            "PyTorch runs them",
            probe=later("tj_onednn.probes", "convolutions"),
        ),
        Feature(
            PACKED,
            "frozen weights are in the layout that oneDNN multiplies fastest",
            "weights stay as they are, with freeze, too",
            probe=later("tj_onednn.probes", "packed"),
        ),
        Feature(
            INT8,
            "layers that options choose run in int8",
            "they run in the data types of the program",
            probe=later("tj_onednn.probes", "int8"),
        ),
    ),
)
"""The names and features of tj-onednn."""

__getattr__ = names_finder(globals(), NAMES, {})


def look() -> None:
    """Look for the names once in a process, and warn of features that are lost."""
    if not TABLE.looked:
        TABLE.look_once()
        say_lost(TABLE, TABLE.lost)


def lost(feature: str) -> str | None:
    """Reason why calls that need ``feature`` are left to PyTorch; None if it is there."""
    return f"this PyTorch lacks: {feature}" if feature in TABLE.lost else None


def forget() -> None:
    """Look for all names again when they are next imported."""
    forget_names(globals(), NAMES)
