"""Choices between two floats in C++ kernels, without branches.

Where Inductor makes no vectors, as for images whose channels are moved last, a ``relu`` is
``std::max(x, 0)``, and ``where`` is ``mask ? a : b``. GCC makes branches of them, and goes on in
each with what it knows there. A processor cannot predict the signs of values: of 200,000 random
ones, a kernel took 930 microseconds, and takes 80 to 115 without branches (AMD EPYC of family 25).
"""

from __future__ import annotations

import re

from tj_inductor.texts import ENTRY, before_kernel, respelled

__all__ = ["without_branches"]

CHOICES = tuple(
    (re.compile(spelling), becomes)
    for spelling, becomes in (
        # Lambdas and casts, which Inductor writes for values that may not be computed, stay.
        (r"= (\w+) \? (\w+) : (\w+);", r"= chosen(\1, \2, \3);"),
        (r"\bstd::max\((\w+), decltype\(\1\)\((-?\w+)\)\)", r"larger(decltype(\1)(\2), \1)"),
        (r"\b(max|min)_propagate_nan\((\w+), (\w+)\)", r"\1_of(\2, \3)"),
    )
)
"""Spellings of choices between scalars, and what becomes of them."""


def without_branches(source: str) -> str:
    """Let each choice between two floats in the kernel ``source`` be one of their bits."""
    made = respelled(source, CHOICES)
    if made == source or ENTRY.search(made) is None:
        return source
    return before_kernel(made, _FUNCTIONS)


_FUNCTIONS = """#include <cstdint>
#include <cstring>
#include <type_traits>
// With vectors, their headers are there.
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
#define HAS_INTRINSICS
#endif
template <typename Bits, typename T>
static inline T chosen_bits(bool first, T a, T b) {
    Bits x, y;
    std::memcpy(&x, &a, sizeof(x));
    std::memcpy(&y, &b, sizeof(y));
    const Bits mask = -static_cast<Bits>(first);
    x = (x & mask) | (y & ~mask);
    std::memcpy(&a, &x, sizeof(x));
    return a;
}
template <typename A, typename B>
static inline auto chosen(bool first, const A& a, const B& b) {
    if constexpr (std::is_same_v<A, float> && std::is_same_v<B, float>) {
#if defined(HAS_INTRINSICS)
        const __m128 mask = _mm_castsi128_ps(_mm_cvtsi32_si128(-static_cast<int>(first)));
        return _mm_cvtss_f32(_mm_blendv_ps(_mm_set_ss(b), _mm_set_ss(a), mask));
#else
        return chosen_bits<uint32_t>(first, a, b);
#endif
    } else if constexpr (std::is_same_v<A, double> && std::is_same_v<B, double>) {
        return chosen_bits<uint64_t>(first, a, b);
    } else {
        return first ? a : b;
    }
}
// The larger (smaller) one; b if they are equal, or if one is NaN.
template <typename T>
static inline T larger(T a, T b) {
#if defined(HAS_INTRINSICS)
    if constexpr (std::is_same_v<T, float>)
        return _mm_cvtss_f32(_mm_max_ss(_mm_set_ss(a), _mm_set_ss(b)));
#endif
    return chosen(a > b, a, b);
}
template <typename T>
static inline T smaller(T a, T b) {
#if defined(HAS_INTRINSICS)
    if constexpr (std::is_same_v<T, float>)
        return _mm_cvtss_f32(_mm_min_ss(_mm_set_ss(a), _mm_set_ss(b)));
#endif
    return chosen(a < b, a, b);
}
template <typename T>
static inline T max_of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return chosen(a != a, a, larger(a, b));
    else return max_propagate_nan(a, b);
}
template <typename T>
static inline T min_of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return chosen(a != a, a, smaller(a, b));
    else return min_propagate_nan(a, b);
}
"""
