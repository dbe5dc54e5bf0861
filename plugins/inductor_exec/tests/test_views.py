"""Programs with views and layouts whose regions Inductor compiles, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_suites.fused import VIEWS, hold, regions

pytestmark = pytest.mark.sampled(10)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", VIEWS)
def test_programs_are_equal_to_eager(name: str, fusing: Any) -> None:
    f, arguments = VIEWS[name]
    torch.manual_seed(0)
    jitted = fusing(f)
    hold(jitted, f, *arguments())
    assert tj.stats(jitted).fallbacks == ()
    assert regions(jitted), tj.explain(jitted)
