"""Entries of the databases at which Dynamo breaks the graph, so torch.compile does too.

They give eager's results through PyTorch's own hook; the list may only get shorter.
"""

from __future__ import annotations

__all__ = ["MODULE_BREAKS", "OPERATION_BREAKS"]

_DATA = "a Python value, or a shape, depends on a tensor's data"
_SPARSE = "Dynamo does not capture sparse tensors"
_FAKE = "the operation does not run on fake tensors"
_RESIZE = "Dynamo does not capture resizing"
_SKIPPED = "the implementation calls a function that Dynamo does not look into"

OPERATION_BREAKS = {
    "allclose": _DATA,
    "combinations": _DATA,
    "corrcoef": _DATA,
    "cov": _DATA,
    "equal": _DATA,
    "geqrf": _FAKE,
    "histogram": _FAKE,
    "histogramdd": _FAKE,
    "linalg.lstsq": _DATA,
    "linalg.lstsq.grad_oriented": _DATA,
    "nn.functional.ctc_loss": _DATA,
    "nn.functional.gaussian_nll_loss": _DATA,
    "nn.functional.linear_cross_entropy.chunked": _SKIPPED,
    "nn.functional.linear_cross_entropy.chunked_none": _SKIPPED,
    "resize_": _RESIZE,
    "resize_as_": _RESIZE,
    "sparse.mm.reduce": _SPARSE,
    "sparse.sampled_addmm": _SPARSE,
    "to_sparse": _SPARSE,
}
"""Operations of op_db (float32, first three samples), each with the reason."""

MODULE_BREAKS = {
    "nn.BatchNorm1d": _DATA,
    "nn.BatchNorm2d": _DATA,
    "nn.BatchNorm3d": _DATA,
    "nn.CTCLoss": _DATA,
    "nn.GRU": "Dynamo does not capture recurrent modules",
    "nn.GaussianNLLLoss": _DATA,
    "nn.LSTM": "Dynamo does not capture recurrent modules",
    "nn.RNN": "Dynamo does not capture recurrent modules",
}
"""Modules of module_db (batch norm in training with ``momentum=None``), each with the reason."""
