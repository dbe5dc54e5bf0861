"""Marks of files of tests about backwards that users wrote."""

from __future__ import annotations

import pytest
import torch

__all__ = ["OWN_BACKWARDS"]

OWN_BACKWARDS = [
    pytest.mark.sampled(10),
    pytest.mark.usefixtures("forgotten"),  # programs share their code
    # Dynamo makes one where it captures a call of a Function, and looks at ``.grad`` of values.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.skipif(
        torch.__version__ < "2.11", reason="PyTorch 2.10: Functions are left to PyTorch"
    ),
]
