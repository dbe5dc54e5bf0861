"""Fast loads, stores and conversions of bools, integers and halves for C++ kernels.

A kernel holds bools as masks: vectors of the type that they are used with, in which all bits of an
element are set, or none. Parts of PyTorch's headers convert them to bytes and halves, and load what
they mask, one element at a time. A vector of integers goes through a buffer that is written in
parts and read as a whole, for which processors wait. Fused, `x > 0` took 14 times as long as in
eager, a logical function of two masks 90 times, `2 * n + 1` of integers three times, and a
conversion of uint8 to int8 17 times (PyTorch 2.13, AVX2 and AVX-512). The functions below do the
same with vectors.
"""

from __future__ import annotations

import re

from tj_inductor.texts import ENTRY, before_kernel, respelled

__all__ = ["with_fast_loads"]

MASK = r"at::vec::VecMask<(\w+),(\d+)>"

ADDRESS = r"\w*ptr\d+\b|tmpbuf\w*\.data\(\)"

BYTES = r"(at::BFloat16|at::Half|u?int8_t)"

HALVES = r"(at::BFloat16|at::Half)"

VECTOR = r"(at::vec::VectorizedN?<(?:u?int\d+_t|at::BFloat16|at::Half)(?:,\d+)?>)"

CHANGES = tuple(
    (re.compile(spelling), becomes)
    for spelling, becomes in (
        # A mask of the bools at an address; their number follows the address.
        (rf"{MASK}::from\((?={ADDRESS})", r"mask_of<\1, \2>("),
        # A mask of a vector: of its elements that are not zero.
        (rf"{MASK}::from<\1,\2>\(", r"mask_of<\1, \2>("),
        # Ones and zeros of a mask.
        (rf"\b(\w+)\.to<{BYTES},1>\(\)", r"ones_of<\2>(\1)"),
        # The masked elements at an address, zero elsewhere.
        (
            rf"\b(\w+(?:\.template cast<float,2>\(\))?)\.template loadu<{HALVES},1>\(",
            r"masked_load_of<\2>(\1, ",
        ),
        # Bytes with another sign.
        (r"\bat::vec::convert<(u?int8_t)>\(", r"bytes_of<\1>("),
        # Elements at an address.
        (rf"\b{VECTOR}::loadu\((?={ADDRESS})", r"load_of<\1>("),
    )
)
"""Spellings in a kernel, and what they become."""

BOOLS = re.compile(r"\bbool\* (\w+)")
"""A parameter of the kernel that bools are written to."""

STORE = r"\b(\w+)\.store\((%s)\b"
"""Start of a mask that is written there."""


def with_fast_loads(source: str) -> str:
    """Replace loads, stores and conversions in the kernel ``source`` by those below."""
    made = respelled(source, CHANGES)
    entry = ENTRY.search(made)
    if entry is None:
        return source
    written = BOOLS.findall(made[entry.start() : made.find("{", entry.start())])
    if written:
        made = re.sub(STORE % "|".join(written), r"store_of(\1, \2", made)
    return source if made == source else before_kernel(made, _FUNCTIONS)


_FUNCTIONS = """#include <type_traits>
template <typename V, typename T>
static inline V load_of(const T* given) { return V::loadu(given); }
template <typename V, typename T>
static inline V load_of(const T* given, int count) {
    if (count == V::size()) { return V::loadu(given); }
#if defined(CPU_CAPABILITY_AVX2)
    auto parts = reinterpret_cast<const __m128i*>(given);
    if constexpr (sizeof(T) == 1 && std::is_same_v<V, at::vec::Vectorized<T>>) {
        // The other elements are ones, as in PyTorch's loads: something may divide by them.
        if (count == 8) {
            auto ones = _mm256_set1_epi8(1);
            auto low = _mm_unpacklo_epi64(_mm_loadl_epi64(parts), _mm256_castsi256_si128(ones));
            return V(_mm256_inserti128_si256(ones, low, 0));
        }
    } else if constexpr (sizeof(T) == 2 && std::is_same_v<V, at::vec::Vectorized<T>>) {
        if (count == 8) {
            __m256i filled = _mm256_set1_epi16(std::is_integral_v<T> ? 1 : 0);
            return V(_mm256_inserti128_si256(filled, _mm_loadu_si128(parts), 0));
        }
    }
#elif defined(CPU_CAPABILITY_AVX512)
    if constexpr (sizeof(T) == 1 && std::is_same_v<V, at::vec::Vectorized<T>>) {
        if (count == 16) {
            auto low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(given));
            return V(_mm512_inserti32x4(_mm512_set1_epi8(1), low, 0));
        }
    }
#endif
    return V::loadu(given, count);
}
template <typename T, typename V>
static inline auto bytes_of(const V& given) {
    constexpr bool is_signed = std::is_same_v<V, at::vec::Vectorized<int8_t>>;
    constexpr bool are_bytes = is_signed || std::is_same_v<V, at::vec::Vectorized<uint8_t>>;
#if defined(CPU_CAPABILITY_AVX512)
    if constexpr (are_bytes) { return at::vec::Vectorized<T>(static_cast<__m512i>(given)); } else
#elif defined(CPU_CAPABILITY_AVX2)
    if constexpr (are_bytes) { return at::vec::Vectorized<T>(static_cast<__m256i>(given)); } else
#endif
    return at::vec::convert<T>(given);
}
template <typename T, int N>
using Mask = at::vec::VecMask<T, N>;
template <typename T, int N>
using Lanes = at::vec::int_same_size_t<T>[Mask<T, N>::size()];
template <typename T, int N>
static inline Mask<T, N> mask_of(const bool* given, int count) {
    constexpr int size = Mask<T, N>::size();
    // A bool that is a view of a byte may be any number.
    auto bytes = reinterpret_cast<const uint8_t*>(given);
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
    using Whole = at::vec::Vectorized<int32_t>;
    if constexpr (sizeof(T) >= sizeof(int32_t)) {
        if (count == size) {
            constexpr int parts = size / Whole::size();
            at::vec::VectorizedN<int32_t, parts> whole;
            for (int i = 0; i < parts; i++) {
                auto some = load_of<at::vec::Vectorized<uint8_t>>(
                    bytes + i * Whole::size(), Whole::size());
                whole[i] = at::vec::convert<int32_t, 1, uint8_t, 1>(some) != Whole(0);
            }
            Mask<int32_t, parts> made(whole);
            if constexpr (std::is_same_v<T, double>) {
                return made.template cast<int64_t, N>().template cast<double, N>();
            } else {
                return made.template cast<T, N>();
            }
        }
    }
#endif
    __at_align__ Lanes<T, N> kept;
    for (int i = 0; i < size; i++) { kept[i] = i < count && bytes[i] != 0 ? -1 : 0; }
    return at::vec::VectorizedN<T, N>::loadu(kept);
}
template <typename T, int N>
static inline Mask<T, N> mask_of(const at::vec::VectorizedN<T, N>& given) {
    return at::vec::VectorizedN<T, N>(given != at::vec::VectorizedN<T, N>(static_cast<T>(0)));
}
template <typename T, int N>
static inline void store_of(const Mask<T, N>& mask, bool* given, int count) {
#if defined(CPU_CAPABILITY_AVX2)
    if constexpr (sizeof(T) == sizeof(int32_t)) {
        if (count == Mask<T, N>::size()) {
            auto whole = mask.template cast<int32_t, N>();
            for (int i = 0; i < N; i++) {
                __m256i part = whole[i];
                auto low = _mm256_castsi256_si128(part), high = _mm256_extracti128_si256(part, 1);
                auto bytes = _mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128());
                bytes = _mm_and_si128(bytes, _mm_set1_epi8(1));
                _mm_storel_epi64(reinterpret_cast<__m128i*>(given + i * 8), bytes);
            }
            return;
        }
    }
#endif
    __at_align__ Lanes<T, N> kept;
    at::vec::VectorizedN<T, N>(mask).store(kept);
    for (int i = 0; i < count; i++) { given[i] = kept[i] != 0; }
}
template <typename V>
static inline void store_of(const V& value, bool* given, int count) { value.store(given, count); }
template <typename U, typename T, int N>
static inline at::vec::Vectorized<U> ones_of(const Mask<T, N>& mask) {
    constexpr bool is_half = std::is_same_v<U, at::BFloat16> || std::is_same_v<U, at::Half>;
    if constexpr (is_half && std::is_same_v<T, float> && N == 2) {
        using Floats = at::vec::VectorizedN<float, 2>;
        auto floats = Floats::blendv(Floats(0.0f), Floats(1.0f), at::vec::VectorizedN<T, N>(mask));
        return at::vec::convert<U, 1, float, 2>(floats);
    } else if constexpr (std::is_integral_v<U>) {
        constexpr int size = Mask<T, N>::size();
        __at_align__ U ones[size];
        store_of(mask, reinterpret_cast<bool*>(ones), size);
        return load_of<at::vec::Vectorized<U>>(ones, size);
    } else {
        return mask.template to<U, 1>();
    }
}
template <typename U, typename T, int N>
static inline at::vec::Vectorized<U> masked_load_of(const Mask<T, N>& mask, const U* given) {
    if constexpr (std::is_same_v<T, float> && N == 2) {
        // Inside of a border, which most of a loop is, all elements may be read.
        if (Mask<float, 1>(mask[0]).all_masked() && Mask<float, 1>(mask[1]).all_masked()) {
            return at::vec::Vectorized<U>::loadu(given);
        }
    }
    return mask.template loadu<U, 1>(given);
}
"""
