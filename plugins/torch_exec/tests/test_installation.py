"""Results of probes on disk, in files that only this user can have written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tj_torch.installation import Probed

if TYPE_CHECKING:
    from pathlib import Path

PROBED = Probed("tj-torch", "tj_torch.capture.dynamo")


def test_what_was_found_is_read_again(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert PROBED.kept(cache) is None
    PROBED.keep(cache, {"feature": "reason"})
    assert PROBED.kept(cache) == {"feature": "reason"}


def test_a_folder_that_others_can_write_to_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("pwd", reason="folders have no modes on this system")
    cache = tmp_path / "cache"
    PROBED.keep(str(cache), {"feature": "reason"})
    (cache / "torch-probes").chmod(0o777)
    assert PROBED.kept(str(cache)) is None
