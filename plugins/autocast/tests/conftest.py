"""Skips of tj-autocast's tests where the plugin is unavailable, as with PyTorch 2.10."""

from __future__ import annotations

from pathlib import Path

import pytest
from tj_autocast.probe import keeps_casts_without_gradients


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder if tj-autocast is unavailable."""
    if keeps_casts_without_gradients():
        skip = pytest.mark.skip(reason="tj-autocast is unavailable: PyTorch 2.10's cache of casts")
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(skip)
