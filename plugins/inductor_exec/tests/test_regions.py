"""Programs whose regions Inductor compiles, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_suites.fused import PROGRAMS, hold, regions

pytestmark = pytest.mark.sampled(10)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_equal_to_eager(name: str, fusing: Any) -> None:
    f, arguments = PROGRAMS[name]
    torch.manual_seed(0)
    jitted = fusing(f)
    hold(jitted, f, *arguments())
    assert tj.stats(jitted).fallbacks == ()
    assert regions(jitted), tj.explain(jitted)


SCALARS = {
    "variance": lambda x: torch.var_mean(x, 0),
    "deviation": lambda x: (x.std(-1), x.var(0, correction=0)),
    "sums": lambda x: (x.sum(-1), x.prod(0), x.cumsum(0), x.logsumexp(0), x.norm(dim=0)),
    "places": lambda x: (x.argmax(0), x.sort(0)[0], x.topk(1, 0)[0], x.amax(-1), x.any(0)),
    "softmax": lambda x: (x.softmax(0), x.log_softmax(-1)),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", SCALARS)
def test_scalars_have_the_dimensions_0_and_minus_1(fusing: Any, name: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return SCALARS[name](x * 2), x.sin() + 1

    x = torch.tensor(1.5)
    torch.testing.assert_close(fusing(f)(x), f(x), equal_nan=True)
