"""Fast tanh, erf and exp in float32 for C++ kernels.

All use polynomials of least maximum error, found by Lawson's iteration (C. L. Lawson, 1961) on
Chebyshev nodes, in 40 digits and more.

- ``tanh x = x P(x^2) / Q(x^2)``, of degrees 5 and 4 for ``|x| <= 9.02``; beyond that it is 1. The
  relative error is 1.3e-9, and 3.2e-7 by what float32 rounds.
- ``erf x = x P(x^2) / Q(x^2)``, of degrees 5 and 5 for ``|x| <= 3.93``; beyond that it is 1. The
  relative error is 1.9e-8, and 3.6e-7 with rounding.
- ``exp x = 2^n (1 + r + r^2 P(r))``, where ``n`` is the integer next to ``x / ln 2`` and ``r`` what
  is left of ``x`` (Cody and Waite, 1980: ``ln 2`` in two parts); ``P`` is of degree 4. The relative
  error is 3.1e-9, and 1.2e-7 with rounding.

PyTorch's kernels call a library, whose tanh is within 1.2e-7 and takes up to eight times as long.
Its erf for vectors has errors of 1.5e-7 near 0, too, and so few correct digits of a small value.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tj_inductor.texts import ENTRY, before_kernel

__all__ = ["with_fast_erf", "with_fast_exp", "with_fast_tanh"]

TANH = re.compile(r"\b(?:(\w+)\.tanh\(\)|std::tanh\((\w+)\))")
"""Spellings of tanh in a kernel: of a vector, and of a scalar."""

EXPM1 = re.compile(r"\b(\w+)\.exp\(\) - decltype\(\1\)\(1\)")
"""``expm1`` of a vector, as Inductor decomposes it; the difference cancels for small arguments."""

EXP = re.compile(r"\b(\w+(?:\.neg\(\))?)\.exp\(\)")
"""Spelling of exp of a vector."""

ERF = re.compile(r"\b(\w+)\.erf\(\)")
"""Spelling of erf of a vector."""


class Quotient(NamedTuple):
    """Coefficients of ``P`` and ``Q``, and the argument above which the function is 1."""

    above: tuple[str, ...]
    below: tuple[str, ...]
    end: str


OF_TANH = Quotient(
    (
        "0.99999999871366552", "0.13679919110246106", "0.0038683319314023048",
        "2.8007492266139612e-5", "3.058491021913527e-8", "-1.2203219134827358e-11",
    ),
    (
        "1.0", "0.47013251182574196", "0.02724585638269165", "0.00039386366477821911",
        "1.2873663190740843e-6",
    ),
    "9.02",
)  # fmt: skip
OF_ERF = Quotient(
    (
        "1.1283791455002203", "0.19077183723188648", "0.052788590335103536",
        "0.0037790696292476437", "0.00028479236095287868", "2.042005697820272e-6",
    ),
    (
        "1.0", "0.50239986077222787", "0.11425246734912959", "0.014996353586487392",
        "0.0011650746131881329", "3.8003596143306871e-5",
    ),
    "3.93",
)  # fmt: skip

REST = (
    "0.499999934123", "0.166665201055", "0.0416683942592", "0.00836878062223", "0.00138144647521",
)  # fmt: skip
"""Coefficients of ``P`` for exp."""


def with_fast_tanh(source: str) -> str:
    """Replace tanh of float32 values in the kernel ``source`` by the formula above."""
    return _with(source, *TANH.subn(lambda call: f"tanh_of({call[1] or call[2]})", source), _TANH)


def with_fast_erf(source: str) -> str:
    """Replace erf of float32 vectors in the kernel ``source`` by the formula above."""
    return _with(source, *ERF.subn(r"erf_of(\1)", source), _ERF)


def with_fast_exp(source: str) -> str:
    """Replace exp of float32 vectors in the kernel ``source`` by the formula above.

    ``expm1`` becomes the library's.
    """
    # Before `EXP`, which finds the exponential in it: the difference would keep the errors of that.
    source = EXPM1.sub(r"\1.expm1()", source)
    return _with(source, *EXP.subn(r"exp_of(\1)", source), _EXP)


def _with(source: str, made: str, count: int, functions: str) -> str:
    """Insert ``functions`` before the kernel ``made``; return ``source`` if it has no calls of
    them.

    A kernel without vectors is left unchanged: its compiler may have no vector types.
    """
    if not count or ENTRY.search(made) is None or "at::vec::" not in source:
        return source
    return before_kernel(made, functions if _COMMON in made else _COMMON + functions)


def _polynomial(variable: str, coefficients: tuple[str, ...]) -> str:
    """C++ text of a polynomial by Horner's rule; the first coefficient is the constant."""
    *others, text = (f"T({c}f)" for c in coefficients)
    for coefficient in reversed(others):
        text = f"fused({text}, {variable}, {coefficient})"
    return text


def _quotient(name: str, of: Quotient) -> str:
    """C++ text of the function ``name_quotient`` of a float or a vector."""
    return f"""template <typename T>
static inline T {name}_quotient(const T& given) {{
    T x = within(given, {of.end}f);
    T z = x * x;
    T above = {_polynomial("z", of.above)};
    T below = {_polynomial("z", of.below)};
    return x * above / below;
}}
"""


def _of_others(name: str) -> str:
    """C++ text of ``name_of`` for several vectors, to which halves are converted, and for vectors
    of other types, whose own function it calls.
    """
    return f"""template <typename T>
static inline T {name}_of(const T& x) {{ return x.{name}(); }}
template <int n>
static inline at::vec::VectorizedN<float, n> {name}_of(const at::vec::VectorizedN<float, n>& x) {{
    at::vec::VectorizedN<float, n> made;
    for (int i = 0; i < n; ++i) made[i] = {name}_of(x[i]);
    return made;
}}
"""


_COMMON = """#include <cmath>
using Floats = at::vec::Vectorized<float>;
static inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
static inline Floats fused(const Floats& a, const Floats& b, const Floats& c) {
    return at::vec::fmadd(a, b, c);
}
static inline float within(float x, float end) { return x > end ? end : x < -end ? -end : x; }
static inline Floats within(const Floats& x, float end) {
    return at::vec::clamp(x, Floats(-end), Floats(end));
}
"""

_TANH = f"""{_quotient("tanh", OF_TANH)}
static inline float tanh_of(float x) {{ return tanh_quotient(x); }}
static inline Floats tanh_of(const Floats& x) {{ return tanh_quotient(x); }}
static inline double tanh_of(double x) {{ return std::tanh(x); }}
{_of_others("tanh")}"""

_ERF = f"""{_quotient("erf", OF_ERF)}
static inline Floats erf_of(const Floats& x) {{
    // Exactly 1 at the ends: `gelu` multiplies large numbers by what is left.
    Floats beyond = x.abs() >= Floats({OF_ERF.end}f);
    return Floats::blendv(within(erf_quotient(x), 1.0f), within(x, 1.0f), beyond);
}}
{_of_others("erf")}"""

_EXP = f"""static inline Floats scaled(const Floats& x, const Floats& power) {{
#if defined(CPU_CAPABILITY_AVX512)
    return Floats(_mm512_scalef_ps(x, power));
#else
    using Whole = at::vec::Vectorized<int32_t>;
    // In two steps: a number whose power has no exponent of its own is small, or infinite.
    Whole whole = at::vec::convert_to_int_of_same_size(power);
    Whole half = whole >> Whole(1);
    auto factor = [](const Whole& n) {{
        return at::vec::cast<float, int32_t>((n + Whole(127)) << Whole(23));
    }};
    return x * factor(half) * factor(whole - half);
#endif
}}
static inline Floats exp_of(const Floats& given) {{
    using T = Floats;
    T x = within(given, 104.0f);
    T n = (x * T(1.44269504088896341f)).round();
    T r = fused(n, T(2.12194440e-4f), fused(n, T(-0.693359375f), x));
    T rest = {_polynomial("r", REST)};
    T made = fused(rest, r * r, r + T(1.0f));
    // A product that underflows takes processors a hundred times as long as one of zero.
    return scaled(T::blendv(made, T(0.0f), given < T(-103.98f)), n);
}}
{_of_others("exp")}"""
