#include "autoshard/kernels.hpp"

#include <limits>

namespace autoshard {

AUTOSHARD_WIDE
void min_plus(const double* __restrict table, const double* __restrict weights, std::size_t rows,
              std::size_t columns, double* __restrict out) {
  for (std::size_t c = 0; c < columns; ++c) out[c] = std::numeric_limits<double>::infinity();
  for (std::size_t r = 0; r < rows; ++r, table += columns) {
    const double weight = weights[r];
    for (std::size_t c = 0; c < columns; ++c) {
      const double value = weight + table[c];
      out[c] = value < out[c] ? value : out[c];
    }
  }
}

AUTOSHARD_WIDE
void min_sum(const double* base, std::size_t labels, const double* const* rows,
             const std::size_t* steps, std::size_t n_rows, std::size_t columns,
             double* __restrict out) {
  for (std::size_t c = 0; c < columns; ++c) out[c] = std::numeric_limits<double>::infinity();
  for (std::size_t s = 0; s < labels; ++s) {
    if (n_rows == 1) {
      const double* a = rows[0] + s * steps[0];
      for (std::size_t c = 0; c < columns; ++c) {
        const double value = base[s] + a[c];
        out[c] = value < out[c] ? value : out[c];
      }
    } else if (n_rows == 2) {
      const double* a = rows[0] + s * steps[0];
      const double* b = rows[1] + s * steps[1];
      for (std::size_t c = 0; c < columns; ++c) {
        const double value = base[s] + a[c] + b[c];
        out[c] = value < out[c] ? value : out[c];
      }
    } else {
      for (std::size_t c = 0; c < columns; ++c) {
        double value = base[s];
        for (std::size_t k = 0; k < n_rows; ++k) value += rows[k][s * steps[k] + c];
        out[c] = value < out[c] ? value : out[c];
      }
    }
  }
}

}  // namespace autoshard
