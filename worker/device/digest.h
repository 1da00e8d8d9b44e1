#pragma once
// FNV-1a over numbers and texts: the same on every machine. Values, any thread.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace refrain::worker {

class Digest {
 public:
  void add(uint64_t word) {
    for (int i = 0; i < 8; ++i) add_byte(static_cast<unsigned char>(word >> (8 * i) & 0xff));
  }
  // Its length goes before it: "a", "bc" is not "ab", "c".
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
  }
  uint64_t value() const { return value_; }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }

  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace refrain::worker
