#include "worker/runner/value_dump.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "runtime/base/check.h"
#include "runtime/base/json.h"

namespace refrain::worker {
namespace {

using Bytes = std::vector<std::byte>;

const char* numpy_type(DType dtype) {
  switch (dtype) {
    case DType::kInt32:
      return "<i4";
    case DType::kInt64:
      return "<i8";
    case DType::kUInt8:
      return "|u1";
    default:
      return "<f4";
  }
}

Bytes widened(const Bytes& narrow) {
  const size_t count = narrow.size() / sizeof(BFloat16);
  Bytes wide(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    BFloat16 value;
    std::memcpy(&value, narrow.data() + i * sizeof value, sizeof value);
    const float number = to_float(value);
    std::memcpy(wide.data() + i * sizeof number, &number, sizeof number);
  }
  return wide;
}

// Version 1.0 of the format: magic, length of the header, header padded to 64 bytes.
std::string npy_header(DType dtype, int64_t rows, int64_t cols) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}), }}",
                                   numpy_type(dtype), rows, cols);
  constexpr size_t kBefore = 10, kUnit = 64;
  const size_t padded = (kBefore + header.size() + 1 + kUnit - 1) / kUnit * kUnit - kBefore;
  header.resize(padded - 1, ' ');
  header += '\n';
  return fmt::format("\x93NUMPY\x01{}{}{}{}", std::string(1, '\0'),
                     static_cast<char>(padded & 0xff), static_cast<char>(padded >> 8), header);
}

void write_file(const std::filesystem::path& path, const std::string& head, const Bytes& data) {
  std::ofstream file(path, std::ios::binary);
  file.write(head.data(), static_cast<std::streamsize>(head.size()));
  file.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
  file.close();
  REFRAIN_CHECK(file.good(), "--dump-values: {} cannot be written", path.string());
}

std::string file_name(int op, const char* op_name, const std::string& value) {
  std::string name = fmt::format("{:04}.{}.{}.npy", op, op_name, value);
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

}  // namespace

ValueDump::ValueDump(const std::filesystem::path& directory, int rank, int32_t steps,
                     Device& device)
    : directory_(directory / fmt::format("rank{}", rank)), left_(steps), device_(device) {}

Bytes ValueDump::read(Stream& stream, const void* from, size_t bytes) {
  const auto pinned = device_.allocate_pinned(std::max<size_t>(bytes, 1));
  stream.copy(pinned->data(), from, bytes);
  stream.synchronize();
  const auto* data = static_cast<const std::byte*>(pinned->data());
  return {data, data + bytes};
}

// Live rows alone. A value of several times the requests holds so many parts one after the other,
// each of all padded rows (gathered logits).
ValueDump::Array ValueDump::read_value(const OpContext& context, ValueId id,
                                       const BatchDescriptor& key, const Live& live) {
  const Value& value = context.program->value(id);
  const auto row_bytes = static_cast<size_t>(value.cols) * size_of(value.dtype);
  const int64_t padded = value.rows.resolve(padded_sizes(*context.program, key));
  int64_t parts = 1, rows = padded;
  if (value.rows.extent != kNoExtent) {
    parts = value.rows.scale;
    rows = live.sizes[static_cast<size_t>(value.rows.extent)] + value.rows.more;
  }
  const Bytes all =
      read(*context.stream, context.addresses[static_cast<size_t>(id)][live.turn % kernels::kTurns],
           static_cast<size_t>(padded) * row_bytes);
  Array array{value.name, value.dtype, parts * rows, value.cols, {}};
  for (int64_t part = 0; part < parts; ++part) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(part * (padded / parts)) *
                                         static_cast<std::ptrdiff_t>(row_bytes);
    array.data.insert(array.data.end(), begin,
                      begin + rows * static_cast<std::ptrdiff_t>(row_bytes));
  }
  return array;
}

// What the step wrote into a layer's blocks: [tokens, elements of all parts].
ValueDump::Array ValueDump::read_cache_rows(const OpContext& context, ValueId id, int64_t tokens) {
  const Value& cache = context.program->value(id);
  const PagedLayout& layout = context.program->group_of(cache).paged;
  const int64_t block_size = context.block_size;
  const auto* base = static_cast<const std::byte*>(context.address(id));
  const auto paged = static_cast<size_t>(paged_place(*context.program, cache.group));
  const void* at_slots = context.address(prepare_op(*context.program).kv_slots[paged]);
  const Bytes slots =
      read(*context.stream, at_slots, static_cast<size_t>(tokens) * sizeof(int64_t));
  Array array{cache.name + ".written", cache.dtype, tokens, layout.cols(), {}};
  const auto pinned = device_.allocate_pinned(
      std::max<size_t>(static_cast<size_t>(tokens * layout.token_bytes()), 1));
  auto* to = static_cast<std::byte*>(pinned->data());
  for (int64_t token = 0; token < tokens; ++token) {
    int64_t slot;
    std::memcpy(&slot, slots.data() + static_cast<size_t>(token) * sizeof slot, sizeof slot);
    const std::byte* part_at = base + slot / block_size * block_size * layout.token_bytes();
    for (const PagedPart& part : layout.parts) {
      const auto unit = static_cast<size_t>(part.unit_bytes());
      for (int64_t i = 0; i < part.units; ++i, to += unit) {
        const int64_t at = i * block_size + slot % block_size;
        context.stream->copy(to, part_at + static_cast<size_t>(at) * unit, unit);
      }
      part_at += part.token_bytes() * block_size;
    }
  }
  context.stream->synchronize();
  array.data.assign(static_cast<const std::byte*>(pinned->data()),
                    static_cast<const std::byte*>(to));
  return array;
}

std::vector<ValueDump::Array> ValueDump::outputs(const OpContext& context, const Op& op,
                                                 const BatchDescriptor& key, const Live& live) {
  std::vector<Array> arrays;
  for (const ValueId id : writes(op)) {
    const Value& value = context.program->value(id);
    if (value.is_paged()) {
      arrays.push_back(read_cache_rows(context, id, live.sizes[kTokens]));
      continue;
    }
    // Of the slots' state not all has ever been written; parts of sums that only ever travel to
    // the other ranks have no place.
    if (value.kind == ValueKind::kState || context.address(id) == nullptr) continue;
    arrays.push_back(read_value(context, id, key, live));
  }
  return arrays;
}

std::string ValueDump::write(const std::filesystem::path& folder, int op, const char* op_name,
                             const Array& array) const {
  std::string name = file_name(op, op_name, array.name);
  REFRAIN_CHECK(array.dtype != DType::kFloat16, "--dump-values: {} is float16", array.name);
  write_file(folder / name, npy_header(array.dtype, array.rows, array.cols),
             array.dtype == DType::kBFloat16 ? widened(array.data) : array.data);
  return name;
}

void ValueDump::run(const OpContext& context, const BatchDescriptor& key, const ipc::Step& step,
                    int32_t num_tokens, uint32_t turn) {
  --left_;
  const std::filesystem::path folder = directory_ / fmt::format("step{}", step.step);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  REFRAIN_CHECK(!error, "--dump-values: {}: {}", folder.string(), error.message());
  const auto reqs = ipc::num_rows(step);
  const Live live{{num_tokens, reqs}, turn};
  nlohmann::json ops = nlohmann::json::array();
  for (size_t i = 0; i < context.program->ops.size(); ++i) {
    const Op& op = context.program->ops[i];
    launch_op(context, op, key);
    nlohmann::json values = nlohmann::json::array();
    for (const Array& array : outputs(context, op, key, live)) {
      const std::string file = write(folder, static_cast<int>(i), op_name(op), array);
      values.push_back({{"name", array.name}, {"dtype", to_string(array.dtype)}, {"file", file}});
    }
    ops.push_back({{"op", i}, {"name", op_name(op)}, {"values", std::move(values)}});
  }
  const nlohmann::json index = {{"program", context.program->name},
                                {"device", device_.name()},
                                {"step", step.step},
                                {"mode", ipc::to_string(step.runs.front().mode)},
                                {"num_tokens", num_tokens},
                                {"num_reqs", reqs},
                                {"key", {key.num_tokens, key.num_reqs}},
                                {"ops", std::move(ops)}};
  write_file(folder / "index.json", index.dump(1) + "\n", {});
}

}  // namespace refrain::worker
