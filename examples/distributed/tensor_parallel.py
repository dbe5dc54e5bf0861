"""Tensor parallel training: each rank has some heads and some columns of each layer."""

import tj_core as tj
from llama import Llama
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from training import main

COLUMNS = ("attention.q", "attention.k", "attention.v", "feed_forward.gate", "feed_forward.up")
ROWS = ("attention.o", "feed_forward.down")


def parallel(model: Llama) -> nn.Module:
    """``model`` on all ranks, compiled with its collectives."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        plan = {name: ColwiseParallel() for name in COLUMNS}
        plan |= {name: RowwiseParallel() for name in ROWS}
        parallelize_module(block, mesh, plan)
    return tj.jit(model)


if __name__ == "__main__":
    main(parallel, same_data=True)
