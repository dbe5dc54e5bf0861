"""Private names of PyTorch for groups, waits and backwards, and the features that rest on them."""

from __future__ import annotations

from tj_torch.extend import Feature, Table, forget_names, later, names_finder, names_in, say_lost

__all__ = ["AGREE", "CHECKPOINTS", "GLOO", "NAMES", "OVERLAP", "TABLE", "WAITS", "forget", "look"]

AGREE = "ranks that agree"
CHECKPOINTS = "shards in checkpoints"
GLOO = "gathers at once on gloo"
OVERLAP = "gradients by bucket"
WAITS = "waits that end"

NAMES = names_in(
    {
        "torch._C._distributed_c10d": {
            "_get_work_registry_size": ("see if threads find each other's collectives", WAITS),
            "Backend.Options._timeout": ("wait for other ranks as long as the group does", AGREE),
        },
        "torch.distributed.distributed_c10d": {
            "_resolve_process_group": ("find the group of a program's collectives", AGREE),
        },
        "torch._C": {
            "_current_graph_task_id": ("see that a backward runs", CHECKPOINTS),
        },
        "torch.ops._c10d_functional": {
            "all_gather_into_tensor_out.default": ("gather as gloo does safely", GLOO),
            "all_reduce.default": ("start a collective, in a probe", WAITS),
            "wait_tensor.default": ("wait for a collective in a thread", AGREE),
        },
        "torch.nn.parallel.distributed": {
            "DistributedDataParallel._get_active_ddp_module": (
                "see which wrapper calls a program",
                OVERLAP,
            ),
        },
        "torch.distributed": {
            "_DEFAULT_FIRST_BUCKET_BYTES": ("cut where the first bucket is complete", OVERLAP),
            "ProcessGroup._get_backend": ("know a group's backend, and its timeout", GLOO),
        },
    },
    called={
        "_get_work_registry_size": "unfinished",
        "Backend.Options._timeout": "timeout_of",
        "_resolve_process_group": "resolve_group",
        "_current_graph_task_id": "backward_id",
        "all_gather_into_tensor_out.default": "ALL_GATHER_OUT",
        "all_reduce.default": "ALL_REDUCE",
        "wait_tensor.default": "WAIT",
        "DistributedDataParallel._get_active_ddp_module": "active_ddp",
        "_DEFAULT_FIRST_BUCKET_BYTES": "FIRST_BUCKET",
        "ProcessGroup._get_backend": "backend_of",
    },
)
"""The names in each module, as PyTorch 2.10 to 2.15 have them, with uses and features."""

TABLE = Table(
    "tj-distributed",
    f"{__name__}:TABLE",
    "tj_distributed",
    NAMES,
    (
        Feature(
            AGREE,
            "ranks that run different collectives raise; collectives start early",
            "they wait for each other, or add up what does not belong together, as in eager; "
            "collectives stay where they are",
            probe=later("tj_distributed.probes", "agreeing"),
        ),
        Feature(
            WAITS,
            "a rank that waits for a collective ends with what another has found",
            "it waits as PyTorch does, and gets the error of PyTorch's backend",
            probe=later("tj_distributed.probes", "waiting"),
        ),
        Feature(
            GLOO,
            "gathers that gloo runs at once do not damage its memory",
            "they may: gloo's threads free a text twice, and a process may end in `malloc`",
            probe=later("tj_distributed.probes", "gathering"),
        ),
        Feature(
            OVERLAP,
            "gradients of a model in DistributedDataParallel are reduced while others are computed",
            "all are reduced at the end of the backward",
            probe=later("tj_distributed.probes", "overlapping"),
        ),
        Feature(
            CHECKPOINTS,
            "what is checkpointed in eager gathers sharded parameters again, however it is called",
            "what is checkpointed has to be a module, where eager gathers again",
        ),
    ),
)
"""The names and features of tj-distributed."""

__getattr__ = names_finder(globals(), NAMES, {})


def look(feature: str) -> bool:
    """See once in a process which names there are, and say what is lost; True if ``feature`` is
    not.
    """
    if not TABLE.looked:
        TABLE.look_once()
        say_lost(TABLE, TABLE.lost)
    return feature not in TABLE.lost


def forget() -> None:
    """Look for all names again when they are next imported."""
    forget_names(globals(), NAMES)
