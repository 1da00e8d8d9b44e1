#pragma once
// Random well-formed messages of every type from a seed, and equality of messages by their frames.

#include <cstddef>
#include <random>
#include <variant>
#include <vector>

#include "ipc/protocol/codec.h"

namespace refrain::ipc {

inline constexpr size_t kTypes = std::variant_size_v<Message>;

// A message whose variant index is `type`; containers hold up to about `size` elements.
Message random_message(size_t type, std::mt19937_64& random, size_t size);

std::vector<std::byte> frame_of(const Message& message, FrameInfo info = {1, 1});

// A decode step of `rows` requests, as the engine sends it token after token.
Step decode_step(int rows);

}  // namespace refrain::ipc
