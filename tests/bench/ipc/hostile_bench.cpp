// hostile_bench [--json]: what damaged and hostile frames do to our codec and, beside it, to
// cereal's own binary archive fed with the same step. Counts of what is accepted; bytes and time of
// the costliest length.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cereal/archives/binary.hpp>
#include <cereal/types/vector.hpp>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>

#include "ipc/protocol/codec.h"
#include "ipc/protocol/crc32c.h"
#include "ipc/protocol/limits.h"
#include "runtime/base/json.h"
#include "tests/unit/ipc/allocation_count.h"
#include "tests/unit/ipc/random_message.h"

namespace refrain::ipc {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kFrames = 1'000'000;
constexpr int kBareFrames = 10'000;  // a flipped length costs it tens of milliseconds
constexpr size_t kMaxBits = 8;
constexpr rlim_t kMemory = rlim_t{1} << 28;  // cereal asks for more; it gets bad_alloc then

// The arrays of a step, as cereal alone would carry them.
struct BareStep {
  uint64_t step = 0;
  std::vector<int32_t> slots, lengths, computed, tokens, block_slots, block_indices, block_ids;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(step, slots, lengths, computed, tokens, block_slots, block_indices, block_ids);
  }
};

Bytes bare_frame(const Step& from) {
  const Rows& rows = from.runs.front().rows;
  BareStep step{from.step,      rows.slot,           rows.num_tokens,      rows.computed,
                rows.token_ids, from.blocks[0].slot, from.blocks[0].index, from.blocks[0].block};
  std::ostringstream text;
  cereal::BinaryOutputArchive archive(text);
  archive(step);
  const std::string content = text.str();
  Bytes frame(content.size());
  std::memcpy(frame.data(), content.data(), content.size());
  return frame;
}

bool bare_accepts(const Bytes& frame) {
  std::istringstream text(std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
  try {
    cereal::BinaryInputArchive archive(text);
    BareStep step;
    archive(step);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool ours_accepts(const Bytes& frame) { return decode_frame(frame).has_value(); }

struct Codec {
  std::string name;
  Bytes frame;
  std::function<bool(const Bytes&)> accepts;
  std::function<void(Bytes&)> repair;  // of what guards the frame, as a deliberate sender would
  int frames;
};

void repair(Bytes& frame) {
  const auto length = static_cast<uint32_t>(frame.size() - kHeaderBytes);
  std::memcpy(frame.data() + 8, &length, sizeof length);
  const std::span<const std::byte> all(frame);
  const uint32_t crc = crc32c(all.subspan(16), crc32c(all.first(12)));
  std::memcpy(frame.data() + 12, &crc, sizeof crc);
}

double accepted_percent(const Codec& codec, size_t max_bits) {
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int i = 0; i < codec.frames; ++i) {
    Bytes frame = codec.frame;
    for (size_t flips = 1 + random() % max_bits; flips > 0; --flips) {
      const size_t bit = random() % (frame.size() * 8);
      frame[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    accepted += frame != codec.frame && codec.accepts(frame);
  }
  return 100.0 * accepted / codec.frames;
}

// Processor time of this thread, whatever else the machine does.
double thread_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

struct Cost {
  double bytes = 0;  // asked for, given or not
  double us = 0;
};

// Every eight bytes of the frame become 2^k - 1 and 2^k in turn, k = `bottom` … `top`.
Cost worst_length(const Codec& codec, int bottom, int top) {
  Cost worst;
  for (size_t at = 0; at + 8 <= codec.frame.size(); ++at)
    for (int k = bottom; k <= top; ++k)
      for (const uint64_t value : {(uint64_t{1} << k) - 1, uint64_t{1} << k}) {
        Bytes frame = codec.frame;
        std::memcpy(frame.data() + at, &value, sizeof value);
        codec.repair(frame);
        const AllocationCount allocations;
        const double start = thread_us();
        codec.accepts(frame);
        const double took = thread_us() - start;
        worst.bytes = std::max(worst.bytes, static_cast<double>(allocations.bytes()));
        worst.us = std::max(worst.us, took);
      }
  return worst;
}

bool accepts_more_bytes(const Codec& codec) {
  Bytes frame = codec.frame;
  frame.resize(frame.size() + 100);
  codec.repair(frame);
  return codec.accepts(frame);
}

int bench(bool json) {
  const rlimit memory{kMemory, kMemory};
  if (::setrlimit(RLIMIT_AS, &memory) != 0) throw std::runtime_error("no memory limit");
  const Step step = decode_step(8);
  const Codec codecs[] = {
      {"cereal 1.3 alone", bare_frame(step), bare_accepts, [](Bytes&) {}, kBareFrames},
      {"this codec", frame_of(step), ours_accepts, repair, kFrames},
  };
  auto rows = nlohmann::json::array();
  for (const Codec& codec : codecs) {
    if (!codec.accepts(codec.frame)) throw std::runtime_error(codec.name + " refuses a good frame");
    // cereal zero-fills what it allocates: 2^25 entries of 4 bytes show it.
    const bool bare = codec.name != "this codec";
    const Cost worst = worst_length(codec, bare ? 25 : 10, bare ? 25 : 63);
    rows.push_back({{"codec", codec.name},
                    {"frame_bytes", codec.frame.size()},
                    {"frames", codec.frames},
                    {"one_bit_accepted_percent", accepted_percent(codec, 1)},
                    {"one_to_eight_bits_accepted_percent", accepted_percent(codec, kMaxBits)},
                    {"bytes_after_the_end_accepted", accepts_more_bytes(codec)},
                    {"largest_length", bare ? "2^25" : "2^63"},
                    {"worst_length_bytes_asked_for", worst.bytes},
                    {"worst_length_us", worst.us}});
  }
  if (json) {
    std::printf("%s\n", rows.dump(2).c_str());
    return 0;
  }
  for (const auto& row : rows)
    for (const auto& [name, value] : row.items())
      std::printf("%-36s %s\n", name.c_str(), value.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace refrain::ipc

int main(int argc, char** argv) {
  try {
    return refrain::ipc::bench(argc == 2 && std::strcmp(argv[1], "--json") == 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hostile_bench: %s\n", error.what());
    return 70;
  }
}
