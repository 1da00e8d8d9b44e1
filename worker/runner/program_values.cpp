#include "worker/runner/program_values.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "worker/runner/value_memory.h"

namespace refrain::worker {
namespace {

constexpr size_t kValueAlignment = 256;

size_t aligned_bytes(const Program& program, const Value& value) {
  const auto bytes = static_cast<size_t>(value.rows.resolve(program.max_sizes()) * value.cols) *
                     size_of(value.dtype);
  return (bytes + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
}

bool is_own(const Value& value, Storage storage) {
  return value.storage == storage && value.kind != ValueKind::kWeight && !value.passed;
}

size_t all_bytes(const Program& program, Storage storage) {
  size_t bytes = kValueAlignment;
  for (const Value& value : program.values)
    if (is_own(value, storage)) bytes += aligned_bytes(program, value);
  return bytes;
}

ValueId passed_by(const Program& before, const Program& program, const Value& value) {
  const auto found = std::ranges::find(before.values, value.name, &Value::name);
  REFRAIN_CHECK(
      found != before.values.end() && found->dtype == value.dtype && found->cols == value.cols &&
          found->rows.resolve(before.max_sizes()) == value.rows.resolve(program.max_sizes()),
      "program {} reads {} of {}, which has none of that shape", program.name, value.name,
      before.name);
  return static_cast<ValueId>(found - before.values.begin());
}

}  // namespace

ProgramValues::ProgramValues(Device& device, Stream& stream, const Program& program,
                             const Program& before, const std::vector<Addresses>& passing)
    : addresses_(program.values.size()) {
  const auto place = [&](Storage storage, Buffer& memory, auto&& set) {
    auto* at = static_cast<std::byte*>(memory.data());
    for (size_t i = 0; i < program.values.size(); ++i) {
      if (!is_own(program.values[i], storage)) continue;
      set(addresses_[i], at);
      at += aligned_bytes(program, program.values[i]);
    }
  };
  device_memory_ = device.allocate(all_bytes(program, Storage::kDevice), MemoryTag::kInputs);
  place(Storage::kDevice, *device_memory_,
        [](Addresses& addresses, std::byte* at) { addresses.fill(at); });
  for (size_t turn = 0; turn < kernels::kTurns; ++turn) {
    pinned_[turn] = device.allocate_pinned(all_bytes(program, Storage::kPinned));
    std::memset(pinned_[turn]->data(), 0, pinned_[turn]->bytes());
    place(Storage::kPinned, *pinned_[turn],
          [turn](Addresses& addresses, std::byte* at) { addresses[turn] = at; });
  }
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (value.passed && value.kind != ValueKind::kWeight)
      addresses_[i] = passing[static_cast<size_t>(passed_by(before, program, value))];
  }
  const Filler zeros(device, 0);  // until the copies have been made
  zeros.fill(stream, device_memory_->data(), device_memory_->bytes());
  stream.synchronize();
}

}  // namespace refrain::worker
