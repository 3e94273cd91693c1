// What the checks of a config share (config_check.cpp): they throw std::invalid_argument naming a field and its value.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace forearm {

struct Config;

// The product of three sizes up to this bound fits 64 bits.
constexpr int64_t kLargest = int64_t{1} << 20;

[[noreturn]] inline void refuse(const std::string& what) { throw std::invalid_argument(what); }

inline void in_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    refuse(std::string(name) + " is " + std::to_string(value) + "; it must be " + std::to_string(least) + " to " +
           std::to_string(most));
}

// Of residual streams and what is added to them, in feed_forward/stream_check.cpp.
void check_streams(const Config& config);

}  // namespace forearm
