"""PyTorch's modules for data parallel training, by the attribute with the model that they wrap."""

from __future__ import annotations

from tj_core.extend import RuleTable
from tj_torch.extend import MODULE_WRAPPERS

__all__ = ["rules"]

_WRAPPERS = {
    # Its forward synchronizes buffers, tells the reducer of the pass, and rebuilds buckets.
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    # FSDP1: its forward gathers flat parameters, and frees them.
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": (
        "_fsdp_wrapped_module"
    ),
}


def rules() -> RuleTable[str]:
    """Rules for tj-torch's table ``module_wrappers``; names only, nothing is imported."""
    table: RuleTable[str] = RuleTable(MODULE_WRAPPERS, rule_type=str)
    for name, attribute in _WRAPPERS.items():
        table.set(name, attribute)
    return table
