"""Data parallel training: each rank has the model, and gradients are averaged."""

import tj_core as tj
from llama import Llama
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import main


def parallel(model: Llama) -> nn.Module:
    """The wrapper, whose model is compiled."""
    return tj.jit(DistributedDataParallel(model))


if __name__ == "__main__":
    main(parallel)
