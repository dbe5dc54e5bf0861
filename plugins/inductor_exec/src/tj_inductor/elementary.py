"""Elementary functions of C++ kernels: a tanh that takes a fraction of the time of PyTorch's.

``tanh x = x P(x^2) / Q(x^2)``, with polynomials of degree 5 and 4 whose largest relative error for
``|x| <= 9.02`` is the least: 1.3e-9, by Lawson's iteration (C. L. Lawson, 1961) on 160 Chebyshev
nodes in 60 digits. Beyond that tanh is 1 in float32. What float32 rounds makes it 3.2e-7. PyTorch's
kernels call a library for it, which is within half that, and takes four to eight times as long.
"""

from __future__ import annotations

import re

from tj_inductor.texts import ENTRY

__all__ = ["with_fast_tanh"]

CALLS = re.compile(r"\b(?:(\w+)\.tanh\(\)|std::tanh\((\w+)\))")
"""How kernels spell it: of a vector, and of a number."""

ABOVE = (
    "0.99999999871366552", "0.13679919110246106", "0.0038683319314023048",
    "2.8007492266139612e-5", "3.058491021913527e-8", "-1.2203219134827358e-11",
)  # fmt: skip
BELOW = (
    "1.0", "0.47013251182574196", "0.02724585638269165", "0.00039386366477821911",
    "1.2873663190740843e-6",
)  # fmt: skip
LARGEST = "9.02"


def with_fast_tanh(source: str) -> str:
    """The text of a kernel whose values of float32 have their tanh from `FORMULA`."""
    made, count = CALLS.subn(lambda call: f"tanh_of({call[1] or call[2]})", source)
    entry = ENTRY.search(made)
    if not count or entry is None:
        return source
    return made[: entry.start()] + FORMULA + made[entry.start() :]


def _horner(coefficients: tuple[str, ...]) -> str:
    """A polynomial in ``z``."""
    *others, text = (f"T({c}f)" for c in coefficients)
    for coefficient in reversed(others):
        text = f"fused({text}, z, {coefficient})"
    return text


FORMULA = f"""#include <cmath>
using Floats = at::vec::Vectorized<float>;
static inline float fused(float a, float b, float c) {{ return std::fma(a, b, c); }}
static inline Floats fused(const Floats& a, const Floats& b, const Floats& c) {{
    return at::vec::fmadd(a, b, c);
}}
static inline float within(float x, float end) {{ return x > end ? end : x < -end ? -end : x; }}
static inline Floats within(const Floats& x, float end) {{
    return at::vec::clamp(x, Floats(-end), Floats(end));
}}
template <typename T>
static inline T rational_tanh(const T& given) {{
    T x = within(given, {LARGEST}f);
    T z = x * x;
    T above = {_horner(ABOVE)};
    T below = {_horner(BELOW)};
    return x * above / below;
}}
static inline float tanh_of(float x) {{ return rational_tanh(x); }}
static inline Floats tanh_of(const Floats& x) {{ return rational_tanh(x); }}
static inline double tanh_of(double x) {{ return std::tanh(x); }}
template <typename T>
static inline T tanh_of(const T& x) {{ return x.tanh(); }}
"""
