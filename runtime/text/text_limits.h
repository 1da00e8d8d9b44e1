#pragma once
// What the encoding of one text may cost. The regex's match limit, the number of a
// normalizer's steps and of a pre-tokenizer's stages, and the longest piece are limited besides.

#include <atomic>
#include <cstddef>
#include <limits>

namespace refrain::text {

struct TextLimits {
  size_t max_bytes = std::numeric_limits<size_t>::max();   // of the text
  size_t max_tokens = std::numeric_limits<size_t>::max();  // encoding ends when it has more
  // Set by whoever wants the work to end: the encoding fails with kUnavailable. May be null.
  const std::atomic<bool>* stop = nullptr;
};

}  // namespace refrain::text
