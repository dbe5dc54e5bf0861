"""Random bits, as of a dropout, by a kernel of vectors: the same numbers in a fifth of the time.

Where the processor is not Intel's, PyTorch draws them one by one (``bernoulli_scalar_kernel`` in
aten/src/ATen/native/cpu/DistributionKernels.cpp): each element takes two numbers of its Mersenne
Twister, whose last 53 bits, as a fraction, are compared with the probability. The kernel draws
under the generator's lock, and leaves it as PyTorch does. Until it is built, and where it draws
other numbers than PyTorch, PyTorch's runs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from pathlib import Path

import torch
from tj_core.extend import BoundSymbol, Claim, Decline, RuleTable, TensorProxy

from tj_inductor.adapter.features import is_lost
from tj_inductor.adapter.libraries import builds_kernels
from tj_inductor.adapter.names import DRAWS
from tj_inductor.kernels import Collected, Compilation, Waiting

__all__ = ["BERNOULLI", "Drawn", "claims", "drawn", "may_draw_by_mkl"]

BERNOULLI = "aten.bernoulli.p"

FEW = 4096
"""So many numbers take PyTorch's kernel 25 microseconds (AMD EPYC of family 25)."""

BITS = 53
"""Bits of a fraction, those of a float64."""

ONES: dict[torch.dtype, int] = {
    dtype: int(torch.ones(1, dtype=dtype, device="cpu").view(whole))
    for dtype, whole in (
        (torch.float32, torch.int32),
        (torch.float64, torch.int64),
        (torch.bfloat16, torch.int16),
        (torch.float16, torch.int16),
        (torch.bool, torch.uint8),
    )
}
"""The bits of a one, as a whole number, by data type."""

TYPES = frozenset(str(dtype).removeprefix("torch.") for dtype in ONES)
"""Names of the data types."""

OWN = -1
"""Seed that stands for the default generator."""

TEXT = r"""
#include <torch/csrc/inductor/cpp_prefix.h>
#include <ATen/CPUGeneratorImpl.h>
#include <algorithm>
#include <mutex>

// Inductor's options for the compiler leave loops alone; clang makes vectors by those of OpenMP.
#pragma GCC push_options
#pragma GCC optimize("tree-loop-vectorize")

constexpr int N = at::MERSENNE_STATE_N, M = at::MERSENNE_STATE_M;

static inline uint32_t mixed(uint32_t u, uint32_t v)
{
    const uint32_t y = (u & at::UMASK) | (v & at::LMASK);
    return (y >> 1) ^ (-(v & 1u) & at::MATRIX_A);
}

static void next_numbers(uint32_t* s)
{
    #pragma omp simd safelen(64)
    for (int j = 0; j < N - M; ++j) s[j] = s[j + M] ^ mixed(s[j], s[j + 1]);
    #pragma omp simd safelen(64)
    for (int j = N - M; j < N - 1; ++j) s[j] = s[j + M - N] ^ mixed(s[j], s[j + 1]);
    s[N - 1] = s[M - 1] ^ mixed(s[N - 1], s[0]);
}

static void temper(const uint32_t* s, uint32_t* made, int count)
{
    #pragma omp simd
    for (int j = 0; j < count; ++j) {
        uint32_t y = s[j];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        made[j] = y ^ (y >> 18);
    }
}

template <typename T>
static void draw(at::mt19937_data_pod& state, T* out, int64_t n, uint64_t limit, T one)
{
    constexpr uint32_t HIGH = (1u << 21) - 1;
    const uint32_t high = limit >> 32, low = limit;
    uint32_t* s = state.state_.data();
    uint32_t numbers[N];
    // Of two numbers, the first has the high bits; a block may end between them.
    uint32_t first = 0;
    bool waits = false;
    int at = state.left_ == 1 ? N : state.next_;
    while (n > 0) {
        if (at == N) {
            next_numbers(s);
            at = 0;
        }
        const int count = std::min<int64_t>(N - at, 2 * n - waits);
        const uint32_t* u = numbers;
        temper(s + at, numbers, count);
        at += count;
        const uint32_t* end = numbers + count;
        if (waits) {
            const uint64_t x = (uint64_t(first & HIGH) << 32) | *u++;
            *out++ = x < limit ? one : T(0);
            --n;
        }
        const int pairs = (end - u) / 2;
        #pragma omp simd
        for (int j = 0; j < pairs; ++j) {
            const uint32_t x = u[2 * j] & HIGH, y = u[2 * j + 1];
            out[j] = (x < high) | ((x == high) & (y < low)) ? one : T(0);
        }
        out += pairs;
        n -= pairs;
        u += 2 * pairs;
        waits = u < end;
        if (waits) first = *u;
    }
    state.left_ = N - at + 1;
    state.next_ = at;
}

static void draw_any(
    at::mt19937_data_pod& state, uint8_t* out, int64_t n, int64_t limit, int64_t size, int64_t one)
{
    if (size == 1) draw<uint8_t>(state, out, n, limit, one);
    if (size == 2) draw<uint16_t>(state, (uint16_t*)out, n, limit, one);
    if (size == 4) draw<uint32_t>(state, (uint32_t*)out, n, limit, one);
    if (size == 8) draw<uint64_t>(state, (uint64_t*)out, n, limit, one);
}

#pragma GCC pop_options

extern "C" void kernel(uint8_t* out, int64_t n, int64_t limit, int64_t size, int64_t one,
                       int64_t seed)
{
    if (n <= 0) return;
    if (seed >= 0) {
        at::mt19937_data_pod state = at::mt19937(seed).data();
        return draw_any(state, out, n, limit, size, one);
    }
    auto* own = at::get_generator_or_default<at::CPUGeneratorImpl>(
        std::nullopt, at::detail::getDefaultCPUGenerator());
    std::lock_guard<std::mutex> lock(own->mutex_);
    at::mt19937 engine = own->engine();
    at::mt19937_data_pod state = engine.data();
    draw_any(state, out, n, limit, size, one);
    engine.set_data(state);
    own->set_engine(engine);
}
"""
"""The kernel, of numbers ``[n]`` in memory of ``size`` bytes each, for a probability ``limit``."""


class Drawn:
    """The kernel of a process, built behind the programs that draw."""

    def __init__(self) -> None:
        self.kernel = Waiting(("uint8_t*", *["int64_t"] * 5), TEXT)
        self.lock = threading.Lock()
        self.right: bool | None = None

    def begin(self) -> None:
        """Build the kernel in another thread, if nobody has begun to."""
        with self.lock:
            if self.kernel.compilation is None:
                Compilation(Collected(kernels=[self.kernel]))

    def wait(self) -> bool:
        """Build the kernel, and return True if it can be used."""
        self.begin()
        assert self.kernel.compilation is not None
        self.kernel.compilation.wait()
        return self.is_usable()

    def is_usable(self) -> bool:
        """Check that the kernel is built, and draws PyTorch's numbers here.

        A program that was found on disk begins to build it in its first run, or to find it built;
        one of a package, whose process has no compiler, does not.
        """
        if self.kernel.compilation is None and builds_kernels():
            self.begin()
        if self.right is None and self.kernel.function is not None:
            self.right = all(self._is_right(dtype, p) for dtype in ONES for p in (0.3, 0.9))
        return bool(self.right)

    def _is_right(self, dtype: torch.dtype, p: float) -> bool:
        # A program may have set another device as the default.
        generator = torch.Generator("cpu").manual_seed(1234)
        out = torch.empty(1000, dtype=dtype, device="cpu")
        expected = torch.empty_like(out).bernoulli_(p, generator=generator)
        self.draw(out, p, 1234)
        return torch.equal(out, expected)

    def draw(self, out: torch.Tensor, p: float, seed: int = OWN) -> None:
        """Fill ``out``, which is contiguous, with ones of probability ``p``, and zeros."""
        # A product by a power of two is exact, and a fraction is less than `p` if the whole number
        # of its bits is less than the next one.
        limit = math.ceil(p * 2.0**BITS)
        self.kernel(out, out.numel(), limit, out.element_size(), ONES[out.dtype], seed)


def may_draw_by_mkl() -> bool:
    """Tell whether PyTorch may draw otherwise here: on processors of Intel's, by MKL."""
    info = Path("/proc/cpuinfo")
    return not info.exists() or "GenuineIntel" in info.read_text("utf-8", "replace")


@functools.cache
def drawn() -> Drawn:
    """The kernel of this process."""
    return Drawn()


def bernoulli(x: torch.Tensor, p: float) -> torch.Tensor:
    """``aten.bernoulli(x, p)``: ones of probability ``p`` and zeros, in the form of ``x``."""
    kernel = drawn()
    plain = x.device.type == "cpu" and x.dtype in ONES and x.is_contiguous()
    if plain and 0 <= p <= 1 and kernel.is_usable():
        out = torch.empty_like(x)
        # A batched tensor of `torch.func` has no memory, which the kernel finds before it draws.
        with contextlib.suppress(RuntimeError):
            kernel.draw(out, p)
            return out
    made: torch.Tensor = torch.ops.aten.bernoulli.p(x, p)
    return made


def is_faster(call: BoundSymbol) -> bool | Decline:
    """Decide if the kernel draws the numbers of ``call``; if so, begin to build it."""
    x = call.args[0]
    if is_lost(DRAWS):
        return Decline(f"this PyTorch lacks: {DRAWS}")
    if len(call.args) != 2 or call.kwargs:
        return Decline("it has a generator of its own")
    if not isinstance(x, TensorProxy) or x.device.type != "cpu" or x.flags:
        return Decline("the numbers are no plain tensor on the CPU")
    if x.dtype.name not in TYPES:
        return Decline(f"no kernel draws {x.dtype.name}")
    sizes = [n for n in x.shape if isinstance(n, int)]
    if len(sizes) == len(x.shape) and math.prod(sizes) < FEW:
        return Decline("PyTorch's kernel draws so few numbers as fast")
    drawn().begin()
    return True


def claims() -> RuleTable[Claim]:
    """Make the claims of draws."""
    table: RuleTable[Claim] = RuleTable("claim")
    table.set(BERNOULLI, Claim(bernoulli, is_faster))
    return table
