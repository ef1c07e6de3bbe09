// Macros for tests, which are functions called by main; they report the first claim that is false.
#pragma once

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

#define CHECK(claim)                                                            \
  do {                                                                          \
    if (!(claim)) {                                                             \
      std::cerr << __FILE__ << ":" << __LINE__ << ": not true: " #claim << "\n"; \
      std::exit(1);                                                             \
    }                                                                           \
  } while (false)

// The expression must throw std::invalid_argument with `part` in its message.
#define CHECK_REFUSES(expression, part) \
  CHECK(crossmesh_test::refuses([&] { static_cast<void>(expression); }, part))

namespace crossmesh_test {

template <typename Function>
bool refuses(Function function, const std::string& part) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return std::string(error.what()).find(part) != std::string::npos;
  }
  return false;
}

}  // namespace crossmesh_test
