"""Each way runs a program as it says, and a planted fault is found in each."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.configurations import configured
from tj_conformance.programs.aliasing import Scene
from tj_conformance.seeds import collected
from tj_conformance.ways import texts
from tj_conformance.ways.running import WAYS, compare


def scene(way: str, n: int) -> Scene:
    a = torch.linspace(-1, 1, n * n, dtype=getattr(torch, WAYS[way].dtype)).view(n, n)
    return Scene((a.requires_grad_(),), (a,))


def right(a: torch.Tensor) -> torch.Tensor:
    return (a.sin() @ a).exp()


def wrong(a: torch.Tensor) -> torch.Tensor:
    return right(a) + 1 if torch.compiler.is_compiling() else right(a)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
def test_a_planted_fault_is_found(way: str) -> None:
    for program, equal in ((right, True), (wrong, False)):
        torch.compiler.reset()
        report = compare(way, lambda p=program: p, [functools.partial(scene, way, 4)])
        assert report.ok is equal, str(report)


@pytest.mark.parametrize(
    ("way", "options"),
    [("plain", {}), ("dynamic", {"dynamic": True}), ("background", {"compile": "background"})],
)
def test_options_of_jit(way: str, options: dict[str, Any]) -> None:
    seen: list[dict[str, Any]] = []

    def jit(f: Any, **given: Any) -> Any:
        seen.append(given)
        return tj.jit(f, **given)

    assert compare(way, lambda: right, [functools.partial(scene, way, 3)], jit=jit).ok
    assert seen == [options]


def test_modes_are_those_of_the_call() -> None:
    seen: dict[str, tuple[bool, bool, bool]] = {}

    for way in ("plain", "autocast", "no_grad", "inference"):

        def look(a: torch.Tensor, way: str = way) -> torch.Tensor:
            modes = torch.is_grad_enabled, torch.is_inference_mode_enabled
            seen[way] = (torch.is_autocast_enabled("cpu"), *(mode() for mode in modes))
            return a * 2

        compare(way, lambda look=look: look, [functools.partial(scene, way, 3)], jit=lambda f: f)
    assert seen == {
        "plain": (False, True, False),
        "autocast": (True, True, False),
        "no_grad": (False, False, False),
        "inference": (False, False, True),
    }


@pytest.mark.slow
def test_the_second_session_finds_what_the_first_has_kept() -> None:
    kept: list[Any] = []

    def jit(f: Any, **given: Any) -> Any:
        kept.append(tj.jit(f, **given))
        return kept[-1]

    with configured():
        assert compare("disk", lambda: right, [functools.partial(scene, "disk", 3)], jit=jit).ok
    assert [tj.stats(jitted).program_kept for jitted in kept] == [0, 2]


def test_a_number_makes_one_program() -> None:
    first, again = (list(map(str, collected(texts.programs(), 7, 5))) for _ in range(2))
    assert first == again
    assert len({*first}) == 5
