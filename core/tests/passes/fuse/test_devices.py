"""A region is on one device."""

from __future__ import annotations

from tj_core.ir.proxy import Device, Proxy
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol
from tj_core.passes.fuse.groups import Group, devices_of
from tj_core.passes.fuse.plan import Fusers, plan
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import vector


def test_a_region_is_on_one_device() -> None:
    """Two devices compute in turns: each has its region, and copies between them run alone."""
    loop = LoopPlugin()
    (executor,) = loop.tj_executors()
    first, second = Device("cuda", 0), Device("cuda", 1)

    def call(name: str, out: str, device: Device, *args: Proxy) -> BoundSymbol:
        made = vector(out, 3, device=device)
        return BoundSymbol(Symbol("numeric", name), args, outputs=made, executor="loop")

    x, y = vector("x", 3, device=first), vector("y", 3, device=second)
    a = call("neg", "a", first, x)
    b = call("neg", "b", second, y)
    c = call("mul", "c", first, a.outputs, x)
    copied = call("copy", "copied", second, c.outputs)
    d = call("mul", "d", second, b.outputs, copied.outputs)
    number = vector("n", 3).replace(shape=(), strides=())
    e = call("mul", "e", second, d.outputs, number)
    found = plan([a, b, c, copied, d, e], Fusers({"loop": executor}, frozenset()))
    groups = [[c.flat_outs[0].name for c in u.calls] for u in found.units if isinstance(u, Group)]
    assert sorted(groups) == [["a", "c"], ["d", "e"]]
    assert {u.flat_outs[0].name for u in found.units if isinstance(u, BoundSymbol)} == {
        "b", "copied"
    }  # fmt: skip
    assert devices_of(copied) == {first, second}
