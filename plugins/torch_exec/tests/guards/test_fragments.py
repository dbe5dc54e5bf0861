"""Classes that change between calls of a program with a graph break."""

from __future__ import annotations

import pytest
from tj_torch.capture.eager_probe import equal_to_eager

pytestmark = pytest.mark.sampled(5)

HEAD = """
x = torch.ones(2)
class R:
    def inherited(self, x): return x * 2
class Base(R):
    n = 2
    def g(self, x): return x * 2
    def __len__(self): return 2
    @property
    def p(self): return 2
    @classmethod
    def c(cls, x): return x * 2
class Other(R):
    n = 3
    def g(self, x): return x * 3
    def __len__(self): return 3
    @property
    def p(self): return 3
    @classmethod
    def c(cls, x): return x * 3
class A(Base):
    def above(self, x): return super().inherited(x)
o = A()
class M(torch.nn.Module):
    def forward(self, x): return x * 2
class N(M): pass
m, hooks = N(), []
register = torch.nn.modules.module.register_module_forward_hook
"""
MEMBERS = {
    "method": ("o.g(x)", "g", "lambda self, x: x * 5"),
    "method of a new object": ("A().g(x)", "g", "lambda self, x: x * 5"),
    "length": ("x * len(o)", "__len__", "lambda self: 5"),
    "property": ("x * o.p", "p", "property(lambda self: 5)"),
    "class method": ("A.c(x)", "c", "classmethod(lambda cls, x: x * 5)"),
    "data": ("x * o.n", "n", "5"),
    "forward": ("m(x)", "forward", "lambda self, x: x * 5"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_is_overridden(name: str) -> None:
    body, member, new = MEMBERS[name]
    owner, base = ("N", "M") if name == "forward" else ("A", "Base")
    calls = [
        f"setattr({owner}, {member!r}, {new})",
        f"setattr({base}, {member!r}, {new.replace('5', '7')})",
        f"delattr({owner}, {member!r})",
    ]
    equal_to_eager(_broken(body), "f(x)", *(c for call in calls for c in (call, "f(x)")))()


@pytest.mark.parametrize("name", [name for name in MEMBERS if name != "forward"])
def test_a_class_gets_other_bases(name: str) -> None:
    calls = ("setattr(A, '__bases__', (Other,))", "f(x)", "setattr(A, '__bases__', (Base,))")
    equal_to_eager(_broken(MEMBERS[name][0]), "f(x)", *calls, "f(x)")()


def test_what_super_finds() -> None:
    change = "setattr(Base, 'inherited', lambda self, x: x * 5)"
    equal_to_eager(_broken("o.above(x)"), "f(x)", change, "f(x)")()


def test_a_hook_on_all_modules() -> None:
    calls = ("hooks.append(register(lambda m, args, out: out * 5))", "f(x)", "hooks[0].remove()")
    equal_to_eager(_broken("m(x)"), "f(x)", *calls, "f(x)")()


def _broken(body: str) -> str:
    return f"{HEAD}def f(x):\n    torch._dynamo.graph_break()\n    return {body}\n"
