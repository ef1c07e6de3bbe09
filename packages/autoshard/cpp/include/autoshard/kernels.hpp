// The two loops that take most of the time.
#pragma once

#include <cstddef>

// If the compiler supports it, a version for wider vectors is chosen when the module is loaded. The
// results are the same, as no operation is fused or reordered.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && \
    !defined(__SANITIZE_ADDRESS__)
#define AUTOSHARD_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define AUTOSHARD_WIDE
#endif

namespace autoshard {

/// out[c] = min over rows r of weights[r] + table[r][c].
void min_plus(const double* table, const double* weights, std::size_t rows, std::size_t columns,
              double* out);

/// out[c] = min over labels s of base[s] + sum over k of rows[k][s * steps[k] + c].
void min_sum(const double* base, std::size_t labels, const double* const* rows,
             const std::size_t* steps, std::size_t n_rows, std::size_t columns, double* out);

}  // namespace autoshard
