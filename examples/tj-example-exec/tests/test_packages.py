"""Claims in a package: the functions are found by their symbols where it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import PackageError

if TYPE_CHECKING:
    from pathlib import Path


def program(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x) + F.gelu(x, approximate="tanh")


def test_claims_run_where_a_package_is_loaded(tmp_path: Path) -> None:
    x = torch.rand(64, 64)
    session = tj.Session(["example_exec", "torch"], overrides={"example_exec": {"min_elements": 1}})
    tj.export(program, (x,), session=session).save(tmp_path / "p.tjp")
    package = tj.load(tmp_path / "p.tjp")
    text = package.members["traces/computation.txt"].decode()
    assert "example_exec.torch.nn.functional.silu(" in text
    assert package.manifest["made"]["tj-example-exec"] == "0.1.0"
    torch.testing.assert_close(package(x), program(x))


def test_another_version_is_refused(tmp_path: Path) -> None:
    x = torch.rand(64, 64)
    session = tj.Session(["example_exec", "torch"], overrides={"example_exec": {"min_elements": 1}})
    package = tj.export(program, (x,), session=session)
    package.manifest["made"]["tj-example-exec"] = "0.0.9"
    package.save(tmp_path / "p.tjp")
    with pytest.raises(PackageError, match=r"tj-example-exec is 0\.1\.0 here"):
        tj.load(tmp_path / "p.tjp")
