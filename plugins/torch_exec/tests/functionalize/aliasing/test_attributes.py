"""Writes through views that are attributes of tensors, through conjugates and imaginary parts."""

from __future__ import annotations

import functools

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.fuzz import through_fx
from tj_conformance.programs.scenes import one, pair, viewed

pytestmark = pytest.mark.sampled(16)

case = Table()
LEAF = ("leaf",)


def numbers(new):
    """Complex matrix, with a view that the caller keeps."""
    z = new(2, 3, dtype=torch.complex64)
    return new.scene(z, watched=(z[1],))


def conjugated(new):
    """Matrix with a lazy conjugate bit."""
    z = new(2, 3, dtype=torch.complex64)
    return new.scene(z.conj(), watched=(z,))


# --------------------------------------------------------------------------- attributes


@case("I20", "O:alias of mutated input", layouts=(pair, viewed), raises=LEAF)
def transposed_by_attribute(x, y):
    t = x.T
    t.mul_(2)
    return t, x * y


@case("I20", layouts=(pair, viewed), raises=LEAF)
def row_of_a_transposed_matrix(x, y):
    x.mT[0].mul_(y[:2])
    return x, x.mT


@case("I20", layouts=(viewed,), raises=LEAF)
def adjoint_of_a_real_matrix(x, y):
    x.mH[1:].add_(1)
    return x.H, y


@case("I20", "O:non_alias")
def transposed_result(x, y):
    z = x * 2
    z.T[1].add_(y[:2])
    return z * 3, z.T


@case("I4", "I19", layouts=(pair, viewed))
def transposed_without_grad(x, y):
    with torch.no_grad():
        x.T.mul_(2)
    return x * y


@case("I5", layouts=(pair, viewed))
def transposed_and_detached(x, y):
    x.T.detach().mul_(2)
    return x + y


@case("I20", "O:alias_of_input, dtype", layouts=(numbers,), raises=LEAF)
def real_and_imaginary_part(z):
    z.real.mul_(2)
    z.imag.add_(1)
    return z * 1j, z.imag


@case("I20", "O:alias_of_input, dtype", layouts=(one,), raises=LEAF)
def real_part_of_a_real_matrix(x):
    x.real.mul_(2)
    return x.real, x + 1


# --------------------------------------------------------------------------- conjugates


@case("I20", layouts=(numbers,), raises=LEAF)
def conjugate(z):
    c = z.conj()
    c.mul_(2j)
    return c, z + 1


@case("I20", layouts=(numbers,), raises=LEAF)
def adjoint(z):
    z.H[0].mul_(2j)
    return z.mH, z.adjoint(), z * 1


@case("I20", layouts=(numbers,), raises=LEAF)
def imaginary_part_of_a_conjugate(z):
    part = z.conj().imag
    part.mul_(3)
    return part, z


@case("I20", layouts=(conjugated,), raises=LEAF)
def conjugate_argument(z):
    z.mul_(2j)
    return z, z.resolve_conj(), z.conj()


@case("I20", layouts=(conjugated,), kinds=("plain",))  # else fake tensors cannot, at times
def imaginary_part_of_a_conjugate_argument(z):
    z.imag.mul_(2)
    z[0].add_(1j)
    return z, z.imag


@case("I4", layouts=(numbers,))
def conjugate_without_grad(z):
    with torch.no_grad():
        z.conj().mul_(2j)
    return z * 2


@case("O:non_alias", layouts=(numbers,))
def conjugate_of_a_result(z):
    w = z * 2
    c = w.conj()
    c[0].add_(1j)
    w.mul_(c + 1)
    return w, c, c.resolve_conj()


@case("I1", "I2", layouts=(numbers,), raises=LEAF)
def conjugate_that_is_read(z):
    z.mul_(z.conj().resolve_conj())
    z.add_((z * 2).conj())
    return z


@pytest.mark.parametrize(**case.parameters())
def test_attributes(case, kind) -> None:
    run_case(case, kind)


CASES = [(c, k) for c, k in case.each() if c.layouts != (conjugated,)]


@functools.cache
def session(*plugins: str) -> tj.Session:
    return tj.Session(plugins, overrides={"torch": {"functional": "always"}})


@pytest.mark.parametrize(("case", "kind"), CASES, ids=[f"{c.name}-{k}" for c, k in CASES])
def test_all_of_them_are_functional(case, kind) -> None:
    for jit in (lambda fn: tj.jit(fn, session=session("torch")), through_fx(session("torch"))):
        report = run_case(case, kind, jit=jit, lenient=True, ignore=("grad_fn",))
        assert any(report.raised) or report.compilations
        assert declined(report) <= (set() if kind == "plain" else {SEEN_BY_AUTOGRAD})


SEEN_BY_AUTOGRAD = "a result depends on written memory that the caller sees"
"""In eager, the gradient of such a result flows through the caller's argument after the write."""


def test_a_conjugate_that_is_given_uncomputed_is_written_as_it_is() -> None:
    (c,) = [c for c in case.cases if c.name == "conjugate_argument"]
    report = run_case(c, "plain", jit=lambda fn: tj.jit(fn, session=session("torch")))
    reason = "torch.Tensor.mul_ writes to an input with a lazy conjugate or negative bit"
    assert declined(report) == {reason}


def declined(report) -> set[str]:
    return {answer.reason for c in report.compilations for _, answer in c.declined}
