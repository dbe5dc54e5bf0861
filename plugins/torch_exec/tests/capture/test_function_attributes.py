"""Attributes that a program sets on its functions: Python checks some, and calls read others."""

from __future__ import annotations

import functools

import pytest
import tj_core as tj
import torch

X = torch.ones(2)


def defaults(x):
    def h(a=1):
        return a

    h.__defaults__ = (5,)
    return x * h()


def keyword_defaults(x):
    def h(*, a=1):
        return a

    h.__kwdefaults__ = {"a": 5}
    return x * h()


def code(x):
    def h():
        return 1

    def other():
        return 7

    h.__code__ = other.__code__
    return x * h()


def dictionary(x):
    def h():
        return 1

    h.__dict__ = {"q": 3}
    return x * h.q


def deleted_defaults(x):
    def h(a=1):
        return a

    del h.__defaults__
    try:
        return x * h()
    except TypeError:
        return x * 3


def deleted_name(x):
    def h():
        return 1

    try:
        del h.__name__
    except TypeError:
        return x * 3
    return x


def number_for_a_name(x):
    def h():
        return 1

    try:
        h.__name__ = 3
    except TypeError:
        return x * 3
    return x


def number_for_annotations(x):
    def h():
        return 1

    try:
        h.__annotations__ = 3
    except TypeError:
        return x * 3
    return x


def constant_closure(x):
    def h():
        return 1

    try:
        h.__closure__ = ()
    except AttributeError:
        return x * 3
    return x


def defaults_of_a_global(x):
    added.__defaults__ = (x.shape[0],)
    return added(x)


def added(x, a=1):
    return x + a


@pytest.mark.parametrize(
    "program",
    [
        defaults,
        keyword_defaults,
        code,
        dictionary,
        deleted_defaults,
        deleted_name,
        number_for_a_name,
        number_for_annotations,
        constant_closure,
        defaults_of_a_global,
    ],
)
def test_what_calls_and_python_see_is_eagers(program):
    expected = program(X)
    added.__defaults__ = (1,)
    jitted = tj.jit(program)
    with pytest.warns(tj.TjWarning, match="changes the __.*__ of a function"):
        assert torch.equal(jitted(X), expected)
    assert torch.equal(jitted(X), expected)


def test_names_and_other_attributes_break_no_graph():
    def decorated(f):
        @functools.wraps(f)
        def g(*args):
            return f(*args)

        return g

    def program(x):
        @decorated
        def h(x):
            "Text."
            return x * 2

        h.__annotations__ = {"x": 3}
        h.__qualname__ = "q.h"
        h.__module__ = "m"
        h.q = 4
        return h(x) * h.q, h.__name__, h.__qualname__, h.__module__, h.__doc__, h.__annotations__

    expected, *texts = program(X)
    found, *others = tj.jit(program, fullgraph=True)(X)
    assert torch.equal(found, expected)
    assert others == texts


def test_a_decorator_of_a_global_function_breaks_no_graph():
    def program(x):
        @functools.wraps(added)
        def wrapper(*args):
            return added(*args) * 2

        return wrapper(x), f"{added.__qualname__} {wrapper.__qualname__}"

    (found, text), (expected, wanted) = tj.jit(program, fullgraph=True)(X), program(X)
    assert torch.equal(found, expected)
    assert text == wanted
