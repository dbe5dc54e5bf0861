"""The buckets in which ``DistributedDataParallel`` reduces gradients, as groups of parameters.

After the first step PyTorch fills its buckets in the order in which gradients have arrived; where
parameters may be unused, in the order in which they are defined, from the last to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_torch.extend import byte_size

from tj_distributed import names

if TYPE_CHECKING:
    from tj_core.extend import TensorProxy

__all__ = ["Buckets", "active"]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Limits of buckets in bytes, the last one for all further buckets.

    ``rebuilt`` is true if the order is that of arrival.
    """

    limits: tuple[int, ...]
    rebuilt: bool

    def groups(self, parameters: Sequence[TensorProxy]) -> list[int]:
        """Number of the bucket of each of ``parameters``, which are in the order of arrival.

        A bucket is full with the parameter that reaches its limit; each data type has its own.
        """
        open_buckets: dict[tuple[object, object], _Open] = {}
        found, opened = [], 0
        ordered = parameters if self.rebuilt else parameters[::-1]
        for p in ordered:
            key = p.dtype, p.device
            bucket = open_buckets.get(key)
            if bucket is None or bucket.full(self.limits):
                place = 0 if bucket is None else bucket.place + 1
                bucket = open_buckets[key] = _Open(opened, place)
                opened += 1
            bucket.bytes += byte_size(p)
            found.append(bucket.number)
        return found if self.rebuilt else found[::-1]


@dataclass(slots=True)
class _Open:
    """A bucket that is being filled, the one at ``place`` of its data type."""

    number: int
    place: int
    bytes: int = 0

    def full(self, limits: Sequence[int]) -> bool:
        return self.bytes >= limits[min(self.place, len(limits) - 1)]


def active() -> Buckets | None:
    """The buckets of the wrapper whose forward is running; None outside of one."""
    wrapper: Any = names.active_ddp()
    if wrapper is None:
        return None
    # Read one by one: what a newer version calls otherwise is left out.
    limits = tuple(getattr(wrapper, "bucket_bytes_cap_list", ()))
    if not limits:
        # Unless the user gives a size, the first bucket is smaller, to start early.
        first = (names.FIRST_BUCKET,) if wrapper.bucket_bytes_cap_default else ()
        limits = (*first, wrapper.bucket_bytes_cap)
    # The condition of the reducer's `should_rebuild_buckets`.
    return Buckets(limits, wrapper.static_graph or not wrapper.find_unused_parameters)
