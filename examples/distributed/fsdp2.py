"""Sharded training: each rank has a part of each parameter, and gathers a block before it runs."""

import tj_core as tj
from llama import Llama
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import main


def parallel(model: Llama) -> nn.Module:
    """``model``, sharded; its blocks are compiled, and gathers run between them."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(tj.jit(block), mesh=mesh)
    return fully_shard(model, mesh=mesh)


if __name__ == "__main__":
    main(parallel)
