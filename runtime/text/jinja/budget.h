#pragma once
// What one rendering may still use: steps, bytes of text, depth of recursion. One object for one
// rendering, used by one thread. What is above a limit throws TemplateError.

#include <cstddef>
#include <cstdint>

namespace refrain::jinja {

struct Limits {
  uint64_t steps = 5'000'000;              // expressions, statements, and 64 bytes of text, each
  size_t output_bytes = size_t{16} << 20;  // of the rendering, and of any one string
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  void charge(uint64_t steps);
  // Counts a string of this size against the limits before it is made.
  void charge_text(size_t bytes);
  size_t most_text() const { return limits_.output_bytes; }

  // As long as it lives, one call of the interpreter by itself, so that the stack stays bounded.
  class Nesting {
   public:
    explicit Nesting(Budget& budget);
    ~Nesting() { --budget_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Budget& budget_;
  };

 private:
  static constexpr int kMaxDepth = 1000;

  const Limits limits_;
  uint64_t steps_ = 0;
  int depth_ = 0;
};

}  // namespace refrain::jinja
