// Calls a fuzz target with random inputs, where libFuzzer is missing: `fuzz_cells [runs [seed]]`.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  const long runs = argc > 1 ? std::atol(argv[1]) : 20000;
  const unsigned long seed = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1;
  std::mt19937_64 random(seed);
  for (long run = 0; run < runs; ++run) {
    std::vector<std::uint8_t> data(random() % 200);
    // Small numbers test more, because they give valid counts, and positions that touch each other.
    const std::uint64_t limit = 1 + random() % (run % 2 == 0 ? 8 : 255);
    for (std::uint8_t& byte : data) {
      byte = static_cast<std::uint8_t>(random() % limit);
    }
    LLVMFuzzerTestOneInput(data.data(), data.size());
  }
  std::cout << runs << " inputs, seed " << seed << "\n";
}
