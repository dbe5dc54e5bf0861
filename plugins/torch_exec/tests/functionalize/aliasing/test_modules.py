"""Modules with state: buffers, statistics, attributes, lists, written parameters."""

from __future__ import annotations

import pytest
import torch
from tj_conformance.programs.aliasing import Program
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.scenes import one, viewed

case = Table()
Module = torch.nn.Module


def batch(new):
    return new.scene(new(4, 3))


def images(new):
    return new.scene(new(2, 3, 4, 4))


def of(module):
    """Program of a module, with parameters, buffers and plain attributes as its state."""

    def state():
        plain = {
            f"{path}.{k}": v
            for path, m in module.named_modules()
            for k, v in vars(m).items()
            if isinstance(v, int | float | str | list | tuple | dict | torch.Tensor)
            and not k.startswith("_")
        }
        return dict(module.named_parameters()), dict(module.named_buffers()), plain

    return Program(module, state)


def seeded(make):
    torch.manual_seed(1)
    return of(make())


@case.stateful("I26", "T:input data mutation", layouts=(batch, batch))
def batch_norm():
    return seeded(lambda: torch.nn.BatchNorm1d(3))


@case.stateful("I26", layouts=(batch,))
def batch_norm_eval():
    return seeded(lambda: torch.nn.BatchNorm1d(3).eval())


@case.stateful("I26", layouts=(images,))
def batch_norm_in_a_stack():
    def make():
        conv = torch.nn.Conv2d(3, 3, 3, padding=1)
        return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(3), torch.nn.ReLU(inplace=True))

    return seeded(make)


@case.stateful("I26", layouts=(images,))
def instance_norm_with_statistics():
    return seeded(lambda: torch.nn.InstanceNorm2d(3, track_running_stats=True))


@case.stateful("T:input data mutation", layouts=(one, viewed))
def buffer_is_written():
    class Counts(Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.register_buffer("calls", torch.tensor(0), persistent=False)

        def forward(self, x, *_):
            before = self.total * 1
            self.total += x.detach().sum(0)
            self.calls.add_(1)
            return x * self.total, before, self.calls

    return of(Counts())


@case.stateful(layouts=(one,))
def buffer_is_replaced():
    class Replaces(Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(2, 3))

        def forward(self, x):
            old = self.last
            self.last = x.detach() * 2
            return x + old

    return of(Replaces())


@case.stateful(layouts=(one,))
def buffer_and_view_are_returned():
    class Returns(Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(2, 3))

        def forward(self, x):
            with torch.no_grad():
                self.kept.copy_(x)
            return self.kept, self.kept[0], x * self.kept

    return of(Returns())


@case.stateful(layouts=(one,))
def buffer_is_given_as_argument_too():
    class Aliased(Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(2, 3))
            self.row = self.kept[1]

        def forward(self, x):
            self.row.mul_(2)
            return x * self.kept, self.row

    return of(Aliased())


@case.stateful(layouts=(one,))
def parameter_is_written_under_no_grad():
    class Renorms(Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3, 3), 4.0))

        def forward(self, x):
            with torch.no_grad():
                self.weight.div_(2)
            return x @ self.weight

    return of(Renorms())


@case.stateful(layouts=(one,))
def parameter_data_is_written():
    class Decays(Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3, 3), 4.0))

        def forward(self, x):
            self.weight.data.mul_(0.5)
            return x @ self.weight, self.weight.data

    return of(Decays())


@case.stateful(layouts=(one,))
def tied_weights():
    class Tied(Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(3, 3)
            self.b = torch.nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            with torch.no_grad():
                self.a.weight.add_(1)
            return self.b(self.a(x)), self.b.weight

    return seeded(Tied)


@case.stateful(layouts=(one,), raises=("plain", "leaf", "inner"))
def parameter_cannot_be_written():
    class Writes(Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.weight.mul_(2)
            return x * self.weight

    return of(Writes())


@case.stateful(layouts=(one,))
def python_attribute_counts():
    class Steps(Module):
        def __init__(self):
            super().__init__()
            self.n = 0
            self.words = {"last": 0.0}

        def forward(self, x):
            self.n = self.n + 1
            self.words["last"] = self.n * 2.0
            return x * self.n

    return of(Steps())


@case.stateful(layouts=(one,))
def tensors_are_appended_to_a_list():
    class Records(Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            y = x * 2
            self.seen.append(y.detach())
            self.seen.append(x[0])
            y.add_(1)
            return y

    return of(Records())


@case.stateful(layouts=(one,))
def a_value_is_kept_as_attribute():
    class Keeps(Module):
        def __init__(self):
            super().__init__()
            self.hidden = torch.zeros(2, 3)

        def forward(self, x):
            self.hidden = self.hidden + x.detach()
            self.view = self.hidden.view(-1)
            return x * self.hidden

    return of(Keeps())


@case.stateful(layouts=(one,))
def key_value_cache():
    class Cache(Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(4, 3))
            self.length = 0

        def forward(self, x):
            with torch.no_grad():
                self.keys[1:3] = x
                self.keys.index_copy_(0, torch.tensor([0]), x[:1])
            return x @ self.keys[:3].t()

    return of(Cache())


@case.stateful(layouts=(one,))
def closure_over_a_tensor():
    state = torch.zeros(2, 3)
    seen = []

    def program(x):
        state.add_(1)
        seen.append(state[0])
        return x * state

    return Program(program, lambda: (state, list(seen)))


@case.stateful(layouts=(one,))
def gradient_is_written_between_calls():
    """The program itself does a step of an optimizer.

    The test's second backward is refused, after which no gradient is left.
    """
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)

    def program(x):
        if weight.grad is not None:
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.5)
                weight.grad.zero_()
        return x * weight

    return Program(program, lambda: (weight, weight.grad))


@case.stateful(layouts=(one,))
def spectral_norm():
    return seeded(lambda: torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3)))


@case.stateful(layouts=(one,))
def max_norm_embedding():
    module = torch.nn.Embedding(4, 3, max_norm=1.0)
    torch.nn.init.constant_(module.weight, 2.0)

    class Uses(Module):
        def __init__(self):
            super().__init__()
            self.table = module

        def forward(self, x):
            return self.table(torch.tensor([1, 3])) + x

    return of(Uses())


@pytest.mark.sampled(12)
@pytest.mark.parametrize(**case.parameters())
def test_module(case, kind) -> None:
    run_case(case, kind)
