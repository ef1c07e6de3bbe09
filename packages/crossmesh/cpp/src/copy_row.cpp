#include "crossmesh/copy_row.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define CROSSMESH_AVX
#include <immintrin.h>
#endif

namespace crossmesh {
namespace {

// If the compiler knows the size, the copy of an element is one load and one store.
template <std::size_t size>
void copy_elements(std::byte* dst, const std::byte* src, const Loop& loop) {
  for (std::int64_t i = 0; i < loop.count; ++i) {
    std::memcpy(dst + i * loop.dst_stride, src + i * loop.src_stride, size);
  }
}

#ifdef CROSSMESH_AVX

constexpr std::size_t kLine = 64;  // bytes of a cache line

// Runs from `kShortest` bytes on, below `kLongest`, are copied by `copy_lines` if the copy has at
// least `kInside` bytes and its source has gaps. Otherwise they are copied by memcpy, which is
// faster within the caches of a core, and for a source without gaps. Relative to the rate of one
// memcpy of all bytes, 4 MiB in runs of 4 or 16 KiB are packed at 73 to 105 % by memcpy and at 83
// to 100 % by `copy_lines`; they are unpacked at 89 to 114 % by memcpy, and would be at 83 to 97 %
// by `copy_lines`. [measured: AMD EPYC of family 26, glibc 2.36, 2026-11-20, a busy machine]
constexpr std::size_t kShortest = 1024;
constexpr std::size_t kLongest = 64 * 1024;
constexpr std::int64_t kInside = 2 * 1024 * 1024;

// Copies of at least this many bytes are written past the caches, so that memory is not read only
// to be overwritten: together with their source they fill a cache of 32 MiB, so little of them
// would remain in it anyway. With 8 MiB instead, the next reader of the copy was half as fast.
constexpr std::int64_t kOutside = 16 * 1024 * 1024;

// How many bytes ahead, in the order of the runs, the source is prefetched when bytes are written
// past the caches. It seems to help: 16 MiB were packed at 89 to 111 % of the rate of memcpy
// instead of at 75 to 95 %; the medians scatter a lot, and one of six, which was disturbed, is left
// out.
constexpr std::size_t kAhead = 4096;

// Copies runs: whole cache lines of the destination by AVX, the bytes before and after by memcpy.
template <bool past_caches>
__attribute__((target("avx"))) void copy_lines(std::byte* dst, const std::byte* src,
                                               const Loop& loop, std::size_t run) {
  const std::size_t ahead = std::min(kAhead, run);
  // The distance to prefetch from less than `ahead` bytes before the end of a run: into the next
  // run.
  const std::uintptr_t ahead_of_last =
      static_cast<std::uintptr_t>(loop.src_stride) - (run - ahead);
  for (std::int64_t i = 0; i < loop.count; ++i) {
    std::byte* const to = dst + i * loop.dst_stride;
    const std::byte* const from = src + i * loop.src_stride;
    std::size_t at = -reinterpret_cast<std::uintptr_t>(to) % kLine;
    std::memcpy(to, from, at);
    for (; at + kLine <= run; at += kLine) {
      if (past_caches) {
        // A number instead of a pointer, because the address may be past the end of the array; to
        // prefetch it is harmless.
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
