"""Regions and equal modules read what the program has written before each call of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.dynamo import reused_regions
from torch import nn

region = torch.compiler.nested_compile_region

Program = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Box:
    value: Any


box: Any = Box(torch.tensor(0.0))
flag = True


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


helper = scaled


@region
def boxed(x: torch.Tensor) -> torch.Tensor:
    return x + box.value


@region
def boxed_alone() -> torch.Tensor:
    return torch.add(box.value, 1)


def a_global() -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        global box
        for _ in range(2):
            box = Box(x)
            x = boxed_alone()
        return x

    return program


def a_global_and_an_argument() -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        global box
        for _ in range(3):
            box = Box(x * 2)
            x = boxed(x)
        return x

    return program


def a_flag() -> Program:
    @region
    def part(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if flag else x + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        global flag
        for _ in range(3):
            x = part(x)
            flag = not flag
        flag = True
        return x

    return program


def a_function() -> Program:
    @region
    def part(x: torch.Tensor) -> torch.Tensor:
        return helper(x)

    def program(x: torch.Tensor) -> torch.Tensor:
        global helper
        for add in (5, 7):
            x = part(x)
            helper = lambda y, add=add: y + add  # noqa: E731
        x = part(x)
        helper = scaled
        return x

    return program


def an_attribute() -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        box.value = x
        for _ in range(3):
            x = boxed(x)
            box.value = x * 2
        return x

    return program


def an_object_put_into_another() -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        new = Box(1)
        box.value = new
        for k in range(3):
            x = inner(x)
            new.value = k + 3
        box.value = x
        return x

    @region
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * box.value.value

    return program


def an_item_of_a_list() -> Program:
    numbers = [1]

    @region
    def part(x: torch.Tensor) -> torch.Tensor:
        return x * numbers[0]

    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(3):
            numbers[0] = k + 2
            x = part(x)
        return x

    return program


def an_item_of_a_dict() -> Program:
    values = {"a": torch.ones(3)}

    @region
    def part(x: torch.Tensor) -> torch.Tensor:
        return x * values["a"]

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = part(x)
            values["a"] = x * 2
        values["a"] = torch.ones_like(x)
        return x

    return program


def an_item_of_an_inner_dict() -> Program:
    values = {"outer": {"inner": 1}}

    @region
    def part(x: torch.Tensor) -> torch.Tensor:
        return x * values["outer"]["inner"]

    def program(x: torch.Tensor) -> torch.Tensor:
        inner = values["outer"]
        for k in range(3):
            x = part(x)
            inner["inner"] = k + 2
        inner["inner"] = 1
        return x

    return program


def an_end_of_a_list() -> Program:
    numbers = [1]

    @region
    def part(x: torch.Tensor) -> torch.Tensor:
        return x * numbers[-1]

    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(3):
            x = part(x)
            numbers.append(k + 2)
        del numbers[1:]
        return x

    return program


def a_set() -> Program:
    numbers = {1}

    @region
    def part(x: torch.Tensor) -> torch.Tensor:
        return x * len(numbers)

    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(3):
            x = part(x)
            numbers.add(k + 2)
        numbers.clear()
        numbers.add(1)
        return x

    return program


class Numbered(nn.Module):
    """A region that reads a number, a list and the mode of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.numbers = 1, [1]

    @region
    def part(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k * self.numbers[0] + (1 if self.training else 2)


def a_number_of_a_module() -> Program:
    class Program(Numbered):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for k in range(3):
                self.k = k + 1
                x = self.part(x)
            return x

    return Program()


def a_number_in_the_dict_of_a_module() -> Program:
    class Program(Numbered):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for k in range(3):
                self.__dict__["k"] = k + 1
                x = self.part(x)
            return x

    return Program()


def a_list_of_a_module() -> Program:
    class Program(Numbered):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for k in range(3):
                x = self.part(x)
                self.numbers = [k + 2]
            self.numbers = [1]
            return x

    return Program()


def a_mode_of_a_module() -> Program:
    class Program(Numbered):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = self.part(x)
                self.train(not self.training)
            return x

    return Program()


class Layer(nn.Module):
    def __init__(self, k: Any) -> None:
        super().__init__()
        self.linear, self.k = nn.Linear(3, 3), k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.k.value


class Model(nn.Module):
    """Equal layers, which are captured once by themselves."""

    def __init__(self, *, one: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind = type("OfThisModel", (Layer,), {})  # which no earlier model was refused regions for
        self.k, self.calls = Box(1), 0
        self.layers = nn.ModuleList(kind(self.k if one else Box(1)) for _ in range(6))


def an_object_of_all_layers() -> Program:
    class Program(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.k.value = 1
            for layer in self.layers:
                x = layer(x)
                self.k.value += 1
            return x

    return Program(one=True)


def an_object_of_one_layer() -> Program:
    class Program(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            layers: Any = self.layers
            layers[1].k.value = 3
            for layer in layers:
                x = layer(x)
            layers[1].k.value, layers[3].k.value = 1, 2
            return x

    return Program(one=False)


def an_object_of_the_first_layer() -> Program:
    class Program(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            layers: Any = self.layers
            layers[0].k.value = 3
            for layer in layers:
                x = layer(x)
            layers[0].k.value = 1
            return x

    return Program(one=False)


def a_number_of_the_model() -> Program:
    class Program(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            seen = []
            for layer in self.layers:
                x = layer(x)
                seen.append(x)
            return sum(seen, x)

    return Program(one=False)


@pytest.mark.parametrize(
    "make",
    [
        a_global, a_global_and_an_argument, a_flag, a_function, an_attribute,
        an_object_put_into_another, an_item_of_a_list, an_item_of_a_dict, an_item_of_an_inner_dict,
        an_end_of_a_list, a_set, a_number_of_a_module, a_number_in_the_dict_of_a_module,
        a_list_of_a_module, a_mode_of_a_module, an_object_of_all_layers, an_object_of_one_layer,
        an_object_of_the_first_layer, a_number_of_the_model,
    ],
)  # fmt: skip
def test_what_is_written_is_read(make: Callable[[], Program]) -> None:
    def outcomes(jit: Callable[[Any], Any]) -> list[torch.Tensor]:
        box.value = torch.tensor(0.0)
        program = jit(make())
        return [program(torch.tensor([1.0, -2.0, 3.0]) + k) for k in range(3)]

    expected = outcomes(lambda program: program)
    torch._dynamo.reset()
    torch.testing.assert_close(outcomes(tj.jit), expected, rtol=0, atol=0)


def test_a_number_that_no_layer_reads_costs_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    if reused_regions.dynamos_regions() is None:
        pytest.skip("this PyTorch captures a region for each call")
    reused: list[Any] = []
    original = reused_regions.Other.guard

    def counted(self: Any, condition: Any) -> None:
        reused.append(condition)
        original(self, condition)

    monkeypatch.setattr(reused_regions.Other, "guard", counted)
    tj.jit(a_number_of_the_model(), plugins=["torch"])(torch.ones(3))
    assert len(reused) >= 4
