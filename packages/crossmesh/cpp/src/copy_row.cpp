#include "crossmesh/copy_row.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define CROSSMESH_AVX
#include <immintrin.h>
#endif

namespace crossmesh {
namespace {

// With a size known to the compiler, a copy of an element is a load and a store.
template <std::size_t size>
void copy_elements(std::byte* dst, const std::byte* src, const Loop& loop) {
  for (std::int64_t i = 0; i < loop.count; ++i) {
    std::memcpy(dst + i * loop.dst_stride, src + i * loop.src_stride, size);
  }
}

#ifdef CROSSMESH_AVX

constexpr std::size_t kLine = 64;  // bytes of a cache line

// Runs of these many bytes, below `kLongest`, are copied here where a copy has `kInside` bytes or
// more and its source has gaps; else by memcpy, which is the faster in the caches of a core, and
// out of a source without gaps. It packs 4 MiB in runs of 4 or 16 KiB at 73 to 105 % of the rate of
// one memcpy of them all, and this at 83 to 100 %; it unpacks them at 89 to 114 %, and this would
// at 83 to 97 %. [measured: AMD EPYC of family 26, glibc 2.36, 2026-11-20, a busy machine]
constexpr std::size_t kShortest = 1024;
constexpr std::size_t kLongest = 64 * 1024;
constexpr std::int64_t kInside = 2 * 1024 * 1024;

// From so many bytes on, with their source as many as a cache of 32 MiB, little is found in a cache
// afterwards: they are written past the caches, and memory is not read only to be overwritten. With
// 8 MiB that made the next reader of what was written half as fast.
constexpr std::int64_t kOutside = 16 * 1024 * 1024;

// Bytes between what is read and what is prefetched, in the order of the runs, if written past the
// caches. It seems to help: 16 MiB were packed at 89 to 111 % of the rate of memcpy instead of at
// 75 to 95 %, by medians that scatter much, and without one of six that was disturbed.
constexpr std::size_t kAhead = 4096;

// Whole lines of the destination by AVX, what is before and after them in a run by memcpy.
template <bool past_caches>
__attribute__((target("avx"))) void copy_lines(std::byte* dst, const std::byte* src,
                                               const Loop& loop, std::size_t run) {
  const std::size_t ahead = std::min(kAhead, run);
  // From a place less than `ahead` before the end of a run, to one in the next run.
  const std::uintptr_t ahead_of_last =
      static_cast<std::uintptr_t>(loop.src_stride) - (run - ahead);
  for (std::int64_t i = 0; i < loop.count; ++i) {
    std::byte* const to = dst + i * loop.dst_stride;
    const std::byte* const from = src + i * loop.src_stride;
    std::size_t at = -reinterpret_cast<std::uintptr_t>(to) % kLine;
    std::memcpy(to, from, at);
    for (; at + kLine <= run; at += kLine) {
      if (past_caches) {
        // As a number, since it may be past the end of the array: that is harmless to prefetch.
        const auto here = reinterpret_cast<std::uintptr_t>(from + at);
        const std::uintptr_t next = here + (run - at > ahead ? ahead : ahead_of_last);
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
      }
      for (std::size_t half = at; half < at + kLine; half += kLine / 2) {
        const auto word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + half));
        auto* const place = reinterpret_cast<__m256i*>(to + half);
        past_caches ? _mm256_stream_si256(place, word) : _mm256_store_si256(place, word);
      }
    }
    std::memcpy(to + at, from + at, run - at);
  }
}

#endif

void copy_runs(std::byte* dst, const std::byte* src, const Loop& loop, std::size_t run,
               [[maybe_unused]] std::int64_t whole) {
#ifdef CROSSMESH_AVX
  if (kShortest <= run && run < kLongest && whole >= kInside && __builtin_cpu_supports("avx")) {
    if (whole >= kOutside) {
      return copy_lines<true>(dst, src, loop, run);
    }
    if (loop.src_stride != static_cast<std::ptrdiff_t>(run)) {
      return copy_lines<false>(dst, src, loop, run);
    }
  }
#endif
  for (std::int64_t i = 0; i < loop.count; ++i) {
    std::memcpy(dst + i * loop.dst_stride, src + i * loop.src_stride, run);
  }
}

}  // namespace

void finish_rows([[maybe_unused]] std::int64_t whole) {
#ifdef CROSSMESH_AVX
  if (whole >= kOutside) {
    _mm_sfence();
  }
#endif
}

void copy_row(std::byte* dst, const std::byte* src, const Loop& loop, std::size_t run,
              std::int64_t whole) {
  switch (run) {
    case 1:
      return copy_elements<1>(dst, src, loop);
    case 2:
      return copy_elements<2>(dst, src, loop);
    case 4:
      return copy_elements<4>(dst, src, loop);
    case 8:
      return copy_elements<8>(dst, src, loop);
    case 16:
      return copy_elements<16>(dst, src, loop);
    default:
      return copy_runs(dst, src, loop, run, whole);
  }
}

}  // namespace crossmesh
