"""Programs of the scoreboard where a compiler computes other values, or a name meets its own.

Programs where writes or aliases go wrong are in `board.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tj_conformance.programs.cases import Board
from torch.utils.checkpoint import checkpoint

case = Board()
known = case.known

OURS = "found here"


# --------------------------------------------------------------------------- layouts


def integers_to_fill(new):
    return new.scene(new(2, 3), torch.zeros((), dtype=torch.int32))


def volume(new):
    return new.scene(new(1, 2, 7, 7, 7))


def number_to_fill(new):
    return new.scene(new(3, 3), torch.zeros((), dtype=torch.float64))


def quotients(new):
    return new.scene(torch.tensor([1.0, -1.0, 2.5, torch.inf]))


def product_of_a_row(new):
    return new.scene(torch.full((3,), torch.nan), new(1, 4), new(4, 3))


def sized(shape):
    return lambda new: new.scene(new(*shape))


def between_infinities(new):
    return new.scene(torch.tensor([[[torch.inf, 1.0, 2.0, -torch.inf]]]))


def truths(new):
    return new.scene(torch.ones(3, dtype=torch.bool))


def integers(new):
    return new.scene(torch.tensor([1, -77_777, 65_519], dtype=torch.int32))


# --------------------------------------------------------------------------- programs


@known(OURS, layouts=(truths,))
def truths_times_a_number(x):
    x.mul_(2)
    return x


@known(OURS, layouts=(integers_to_fill,))
def sum_into_integers(x, y):
    return torch.sum(x / 3, (0, 1), out=y)


@known(OURS, layouts=(number_to_fill,))
def rank_into_a_number(x, y):
    return torch.linalg.matrix_rank(x, out=y)


@known("Inductor, found here", layouts=(volume,))
def windows_at_random_places(x):
    places = torch.tensor([[[0.1, 0.5, 0.9], [0.8, 0.2, 0.4]]])
    x = x + torch.arange(x.numel(), dtype=x.dtype).view(x.shape)
    return F.fractional_max_pool3d(x, 2, output_size=(4, 4, 4), _random_samples=places)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def copy_of_an_argument(x):
    copied = torch.empty_like(x).copy_(x)
    return copied.view(-1).clone(), x.sin()


@known("Inductor, found here", layouts=(lambda new: new.scene(new(8, 8)),))
def rows_that_move_down(x):
    sums = x.cumsum(0)
    sums[1:] = sums[:-1].clone()
    return sums


@known("Inductor, found here", layouts=(lambda new: new.scene(new(8, 8)),))
def rows_added_to_each_other(x):
    sums = x.cumsum(0)
    return sums.index_add(0, torch.tensor([1, 0]), sums[:2])


@known("Inductor, found here", layouts=(lambda new: new.scene(new(8, 8)),))
def rows_whose_places_are_their_numbers(x):
    sums = x.cumsum(0)
    return sums.index_put((sums[:, 0].long() % 8,), torch.arange(8.0)[:, None])


@known("Inductor, found here", layouts=(lambda new: new.scene(new(4)),))
def one_of_equal_rows(x):
    return x.sin().expand(3, 4).index_fill(0, torch.tensor([1]), 7)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(4)),))
def one_of_windows(x):
    return x.sin().unfold(0, 2, 1).index_fill(0, torch.tensor([2]), 7) + 1


@known("Inductor, found here", layouts=(lambda new: new.scene(new(300)),))
def ones_that_are_counted_in_bytes(x):
    return torch.ones(300).cumsum(0, dtype=torch.uint8) * x


@known("Inductor, found here", layouts=(lambda new: new.scene(new(8)),))
def multiples_of_a_billion(x):
    return torch.arange(8) * 1_000_000_000 + x


@known("Inductor, found here", layouts=(lambda new: new.scene(new(300)),))
def numbers_as_bytes(x):
    return torch.arange(300).to(torch.uint8).to(torch.int64) * x


@known("Inductor, found here", layouts=(lambda new: new.scene(new(4, 3)),))
def part_that_is_written_later(x):
    y = x * 2
    joined = torch.cat([y, x + 1])
    y.index_put_((torch.tensor([0, 1]),), x[:2], accumulate=True)
    return joined, y.sum()


@known("Inductor, found here", layouts=(lambda new: new.scene(new(1, 1, 2, 2)),))
def images_whose_size_stays(x):
    return F.interpolate(x, scale_factor=1.3) * 2


@known("Inductor, found here", kind="leaf", layouts=(lambda new: new.scene(new(1, 1, 4, 4)),))
def gradient_of_a_scaled_image(x):
    return F.interpolate(x * 2, scale_factor=3.1).sin()


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def index_before_the_first(x):
    return x.index_copy(0, torch.tensor([-1]), x[:1]).sin()


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def labels_behind_the_last(x):
    return F.multilabel_margin_loss(x, torch.tensor([[0, -1, 1], [2, 1, -1]]))


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def no_probability(x):
    return F.binary_cross_entropy(x.sigmoid() + 1, x.sigmoid())


@known("Inductor, found here", layouts=(lambda new: new.scene(new(4, 8)),))
def small_differences(x):
    return torch.expm1(x * 1e-9) * 1e9


@known("Inductor, found here", layouts=(lambda new: new.scene(new(4, 8)),))
def quotient_near_one(x):
    return torch.atanh(x * 1e-9) * 1e9


@known("Inductor, found here", layouts=(lambda new: new.scene(new(4, 8)),))
def small_part_of_a_distribution(x):
    return torch.erf(x * 1e-9) * 1e9


@known("Inductor, found here", layouts=(lambda new: new.scene(new(4, 8)),))
def square_of_a_large_number(x):
    return torch.acosh(x.abs() * 1e30 + 1)


@known("Inductor, found here", layouts=(product_of_a_row,))
def zero_times_what_is_no_number(x, a, b):
    return torch.addmm(x, a, b, beta=0.0) + 1


@known("Inductor, found here", layouts=(quotients,))
def floor_of_a_quotient(x):
    return x // 0.1, x // torch.inf


@known("Inductor, found here", layouts=(quotients,))
def rest_of_an_infinite_divisor(x):
    return (x % torch.full_like(x, torch.inf)).sin()


@known("Inductor, found here", layouts=(between_infinities,))
def infinity_at_a_point(x):
    return F.interpolate(x, size=3, mode="linear", align_corners=True).tanh() + 1


@known("Inductor, found here", layouts=(between_infinities,))
def place_outside_of_an_infinite_border(x):
    return F.grid_sample(x[None], torch.full((1, 1, 1, 2), -3.0), align_corners=True) + 1


@known("Inductor, found here", layouts=(lambda new: new.scene(new(1, 8)),))
def gradient_of_a_window_that_is_cut(x):
    weight = torch.arange(4.0)

    def loss(y):
        return (F.avg_pool1d(y.sin(), 3, 2, ceil_mode=True) * weight).sum()

    return torch.func.grad(loss)(x)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(1, 8, 8)),))
def maxima_beside_padding(x):
    low = torch.where(x.cos() > 2, x, -torch.inf)
    return F.max_pool2d(low, 3, 2, 1, return_indices=True)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(8, 8)),))
def float_that_no_byte_holds(x):
    return (x * 1000).to(torch.int8) + 1


@known("Inductor, found here", layouts=(integers,))
def power_of_two_of_another_type(x):
    return torch.ldexp(x.bfloat16(), x.half()) + 1


@known("Inductor, found here", layouts=(lambda new: new.scene(new(4, 8)),))
def product_that_overflows(x):
    large = x.abs() * 1e30 + 1e30
    return torch.addcmul(x, large, large, value=1e-30)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(5, 4)),))
def sum_of_bytes(x):
    return ((x * 10).to(torch.int8) + 1).sum(dtype=torch.int8)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(5, 4)),))
def smallest_of_bytes(x):
    return ((x.abs() * 10 + 100).to(torch.uint8) + 1).amin()


@known("Inductor, found here", layouts=(lambda new: new.scene(new(3, 33)),))
def place_of_the_smallest_bool(x):
    return ((x * 7).sin() > 0).min(1).indices + 1


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 600)),))
def many_terms_at_a_place(x):
    places = torch.zeros(600, dtype=torch.int64)
    return torch.zeros(1, dtype=torch.bfloat16).scatter_add(0, places, (x[0] * 0 + 1).bfloat16())


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def rest_of_a_rounded_number(x):
    return torch.fmod((x * 0 + 0.30078125).bfloat16(), 0.3) * 2


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def number_that_a_type_does_not_hold(x):
    return torch.where(x > 0, (x * 10).to(torch.int16), 2**33) + 1


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def negative_power_of_integers(x):
    return ((x * 0 + 2).int()) ** -3 + 1


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def vector_of_another_type(x):
    return torch.mv(x, x[0].double()) + 1


@known(
    "AOTAutograd, found here",
    kind="leaf",
    layouts=tuple(lambda new, n=n: new.scene(new(n, 2)) for n in (2, 3, 257)),
)
def power_with_a_size(x):
    return (x * 1e-3 - 0.9).bfloat16() ** x.shape[0]


@known("AOTAutograd, found here", kind="inner", layouts=(lambda new: new.scene(new(2, 3)),))
def product_with_itself_in_place(x):
    y = x * 2
    return y.mul_(y)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(3, 3), new(3, 4), new(4, 3)),))
def multiple_of_a_product(x, a, b):
    return torch.add(x, a @ b, alpha=0.5)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 9), torch.tensor([1, 4])),))
def places_before_a_mask(x, places):
    x = x.clone()
    x[:, places] = 5.0
    x[x > 1] = 1.0
    return x


@known("Inductor, found here", layouts=(lambda new: new.scene(new(2, 3), new(2, 3)),))
def copy_of_what_is_overwritten(x, y):
    old = x.clone()
    x.copy_(y * 0.5)
    y.copy_(old)


@known("Inductor, found here", layouts=(lambda new: new.scene(new(6, 6)),))
def diagonal_by_its_reverse(x):
    x = x.clone()
    x.diagonal().add_(x.sum(0))
    x.diagonal().mul_(x.diagonal().flip(0))
    return x


wrap_body_0 = 3.0


@known("Dynamo, found here", kind="inner", layouts=(lambda new: new.scene(new(2, 3)),))
def global_called_as_dynamo_calls_its_own(x):
    return checkpoint(lambda y: y.sin() * wrap_body_0, x, use_reentrant=False) + wrap_body_0


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def attribute_of_what_is_written(x):
    x.number = 3
    x += 1
    return x * getattr(x, "number", 0)


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def defaults_that_a_function_gets(x):
    def scaled(y, by=1):
        return y * by

    scaled.__defaults__ = (5,)
    return scaled(x)


def positions(first, second, third):
    return first + 10 * second + 100 * third


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def range_that_a_call_unpacks(x):
    return x * positions(*range(3))


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def text_before_a_write(x):
    text = f"{x}"
    x += 1
    return x, text


class Count:
    number = 1

    def __format__(self, spec):
        return f"{self.number}"


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def text_of_a_new_object(x):
    new = Count()
    new.number = 5
    return x * 2, f"{new}"


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def columns_in_the_order_of_a_set(x):
    return [x[:, k] * 2 for k in {2, *[0, 1]}]


@known("Dynamo, found here", layouts=tuple(map(sized, ((2, 3), (4, 5), (6, 3)))))
def size_among_the_sizes(x):
    return x * (2 if 3 in x.shape else 5)


@known("Dynamo, found here", layouts=tuple(map(sized, ((2, 3), (4, 5), (6, 3)))))
def comparison_that_is_true(x):
    return x * (2 if (x.shape[0] > 1) is True else 5)


# --------------------------------------------------------------------------- regions


def two(new):
    return new.scene(new(2, 3), new(2, 3))


@torch.compiler.nested_compile_region
def weighted(a, b):
    return a * 2 - b.sin()


@known("Dynamo, found here", kind="inner", layouts=(two,))
def region_that_gets_one_tensor_twice_first(x, y):
    return weighted(x, x) + weighted(x, y)


@known("Dynamo, found here", kind="leaf", layouts=(two,))
def region_without_gradients_the_second_time(x, y):
    first = weighted(x, y)
    with torch.no_grad():
        second = weighted(x, y)
    return first * (2 if second.requires_grad else 3)


# --------------------------------------------------------------------------- chosen elements


def eight_rows(new):
    return new.scene(new(8, 7))


@known("Inductor, found here", kind="leaf", layouts=(eight_rows,))
def greatest_of_a_function(x):
    return torch.tanh(x).amax(-1)


@known("Inductor, found here", layouts=(eight_rows,))
def roots_of_distances_from_the_least(x):
    h = F.gelu(x)
    return (h - h.amin(-1, keepdim=True)).sqrt()


class Factor:
    number = 1


factor, factors = Factor(), [1]


@torch.compiler.nested_compile_region
def times_a_global(x):
    return x * FACTOR


@torch.compiler.nested_compile_region
def times_an_attribute(x):
    return x * factor.number


@torch.compiler.nested_compile_region
def times_an_item(x):
    return x * factors[-1]


FACTOR = 1


@known("PyTorch issue 191821", layouts=(lambda new: new.scene(new(2, 3)),))
def region_after_its_global_is_rebound(x):
    global FACTOR
    for k in range(3):
        x, FACTOR = times_a_global(x), k + 2
    FACTOR = 1
    return x


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def region_after_an_attribute_is_set(x):
    for k in range(3):
        x, factor.number = times_an_attribute(x), k + 2
    factor.number = 1
    return x


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(2, 3)),))
def region_after_a_list_grows(x):
    for k in range(3):
        x = times_an_item(x)
        factors.append(k + 2)
    del factors[1:]
    return x


layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 1).eval()


@known("Dynamo, found here", layouts=(lambda new: new.scene(new(1, 3, 4)),))
def encoder_with_padding(x):
    with torch.no_grad():
        return encoder(x, src_key_padding_mask=torch.tensor([[False, False, True]]))
