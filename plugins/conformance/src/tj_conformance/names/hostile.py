"""Names that a compiler may generate itself, for made-up programs."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

__all__ = ["HOSTILE", "Names", "normal"]

HOSTILE: dict[str, str] = {
    "formal": "a0 a1 a2 a3 a10 _0 _1 _2 _3 _0_1 _1_0_ va0 v_0 a0_1",
    "sizes": "s0 s1 s2 u0 u1 s77 s1_1 z0 zf0 n0 i0",
    "values": "t0 T0 x x_1 x_1_1 v v0 v1 base base_1 grad_x grad_a0 grad_grad_x x_size y0 c0 g0 p0 "
    "x0 add add_1 mul mul_1 sin x_0 y_1 out saved x_saved pair_state_x x_graph primals_1 "
    "tangents_1 buf0 arg0_1 input l_x_ l_args_0_ arg0",
    "namespaces": "torch aten tj inductor text onednn example_fuser math operator builtins numpy "
    "cudagraph prims T np F nn distributed",
    "generated": "computation backward joint forward call fn rows hits frame check run miss modes "
    "duals root tj_root_0 tj_root_1 make publish new args kwargs L G region segment shared_0 "
    "_args _box _error _annotate _plain _plain_tree _context _call _Call _apply _summed _views_0 "
    "_plan_0 _constant_0 _constant_3 _result _kernel _out_0 plainly _x_0 _a0_0 loop _generator_0 "
    "program finish enter guard value values names self cls state backward_0 backward_1 "
    "true_fn false_fn wrap_body_0 subgraph_0 __return__ __resume_at_0__ state_0 call0 call1",
    "flat": "torch_sum torch_sin torch_add torch_Tensor_mul_ aten_add_Tensor aten_mul_Tensor "
    "_torch_float32 _torch_float64 aten_sin_default torch_autograd_function_FunctionCtx",
    "keywords": "and_ in_ None_ class_ lambda_ from_ is_ True_ print_ match case type _ __ ___ "
    "import_ def_ del_ for_",
    "builtins": "slice complex float int len list dict tuple getattr range print id sum max min "
    "abs device dtype inf nan Ellipsis sorted zip isinstance object str iter next bool Exception "
    "locals globals vars map set super eval exec repr",
    "unicode": "é ñ_1 变量 ﬁ ª 𝐱 ｘ µ ſ aª a٣ ａ０ _０ ₒ ĳ 𝔱𝔬𝔯𝔠𝔥 Ⅳ",  # noqa: RUF001
    "digits": "w1 w12 w123 w1_2 w_1 w_2 w01 w001 m0 m00",
}
"""Hostile names by origin; Python normalizes the Unicode ones.

None begins with two underscores only: in a class, Python would prefix it with the name of the
class.
"""


def normal(name: str) -> str:
    """The form that Python gives to an identifier in a program's text."""
    return unicodedata.normalize("NFKC", name)


@dataclass
class Names:
    """Draws names for one program, each for one use unless asked to repeat one."""

    random: Random
    taken: set[str] = field(default_factory=set)

    def draw(self, avoid: Iterable[str] = ()) -> str:
        """Draw a new name, in the form in which it is listed."""
        taken = self.taken | set(avoid)
        for _ in range(200):
            kind = self.random.choice(list(HOSTILE))
            name = self.random.choice(HOSTILE[kind].split())
            if normal(name) not in taken:
                self.taken.add(normal(name))
                return name
        name = f"w{len(taken)}"
        self.taken.add(name)
        return name
