#include <algorithm>
#include <cstring>
#include <future>

#include "runtime/base/check.h"
#include "worker/weights/rope_table.h"
#include "worker/weights/weight_source.h"
#include "worker/weights/weights.h"

// All weights lie in one device buffer. They travel in chunks of rows: while the device takes one
// chunk, a reader thread fills the other of two staging buffers with the next.

namespace refrain::worker {
namespace {

constexpr int64_t kChunkBytes = 8 << 20;
constexpr int64_t kChunkRows = 16;  // chunks begin at multiples of it (Device::upload_weight)
constexpr size_t kAlignment = 256;

struct Chunk {
  ValueId value = kNoValue;
  int64_t row = 0, rows = 0;
  size_t bytes = 0;  // in staging
};

// Where each value goes, and in what steps.
struct Layout {
  std::vector<size_t> offsets;  // by value
  std::vector<Chunk> chunks;
  size_t device_bytes = 0;
  size_t staging_bytes = 0;
  size_t total_bytes = 0;  // of all chunks
};

bool is_weight(const Value& value) { return value.kind == ValueKind::kWeight && !value.passed; }

size_t device_bytes(const Value& value, const Device& device) {
  const int64_t rows = value.rows.scale;
  return value.use == WeightUse::kMatrix ? device.weight_bytes(value.dtype, rows, value.cols)
                                         : static_cast<size_t>(rows * value.cols) * sizeof(float);
}

void add_chunks(Layout& layout, ValueId id, const Value& value) {
  const int64_t row_bytes = value.cols * static_cast<int64_t>(size_of(value.dtype));
  const int64_t fitting = kChunkBytes / row_bytes / kChunkRows * kChunkRows;
  const int64_t step = std::max(fitting, kChunkRows);
  for (int64_t row = 0; row < value.rows.scale; row += step) {
    const int64_t rows = std::min(step, value.rows.scale - row);
    const auto bytes = static_cast<size_t>(rows * row_bytes);
    layout.chunks.push_back({.value = id, .row = row, .rows = rows, .bytes = bytes});
    layout.staging_bytes = std::max(layout.staging_bytes, bytes);
    layout.total_bytes += bytes;
  }
}

Layout make_layout(const Program& program, const Device& device) {
  Layout layout;
  layout.offsets.assign(program.values.size(), 0);
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (!is_weight(value)) continue;
    layout.offsets[i] = layout.device_bytes;
    const size_t bytes = device_bytes(value, device);
    layout.device_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    add_chunks(layout, static_cast<ValueId>(i), value);
  }
  return layout;
}

// The first number of `rows` that is not finite; by the exponent's bits, which are all ones.
Status check_finite(const WeightPart& part, int64_t row, int64_t rows, DType dtype,
                    const char* from) {
  const int64_t cols = part.col_end - part.col_begin;
  const auto broken = [&](int64_t i) {
    if (dtype == DType::kBFloat16) {
      return (reinterpret_cast<const uint16_t*>(from)[i] & 0x7f80u) == 0x7f80u;
    }
    return (reinterpret_cast<const uint32_t*>(from)[i] & 0x7f800000u) == 0x7f800000u;
  };
  for (int64_t r = 0; r < rows; ++r) {
    bool any = false;  // without a branch inside, so that the loop is vectorised
    for (int64_t i = r * cols; i < (r + 1) * cols; ++i) any |= broken(i);
    if (!any) continue;
    int64_t i = r * cols;
    while (!broken(i)) ++i;
    return fail(
        ErrorCode::kInvalidArgument,
        "tensor {} holds a number that is not finite (NaN or infinity) at row {}, column {}",
        part.tensor, row + r, part.col_begin + i - r * cols);
  }
  return {};
}

// Fills staging with rows of a value, across its parts and their padding.
Status read_chunk(const Program& program, const ModelConfig& config, WeightSource& source,
                  const LoadChecks& checks, const Chunk& chunk, char* to) {
  const Value& value = program.value(chunk.value);
  if (value.use == WeightUse::kRopeTable) {
    fill_rope_table(config, chunk.row, chunk.rows, value.cols, reinterpret_cast<float*>(to));
    return {};
  }
  const int64_t row_bytes = value.cols * static_cast<int64_t>(size_of(value.dtype));
  int64_t at = 0;  // first row of the part within the value
  for (const WeightPart& part : value.parts) {
    const int64_t held = part.row_end - part.row_begin;
    const int64_t begin = std::max(chunk.row, at);
    const int64_t end = std::min(chunk.row + chunk.rows, at + held + part.pad_rows);
    const int64_t zeros_from = std::clamp(at + held, begin, std::max(begin, end));
    char* out = to + (begin - chunk.row) * row_bytes;
    if (begin < zeros_from) {
      const int64_t row = part.row_begin + begin - at, rows = zeros_from - begin;
      REFRAIN_RETURN_IF_ERROR(source.read(part, row, rows, value.dtype, out));
      if (checks.finite) REFRAIN_RETURN_IF_ERROR(check_finite(part, row, rows, value.dtype, out));
    }
    if (zeros_from < end)
      std::memset(to + (zeros_from - chunk.row) * row_bytes, 0,
                  static_cast<size_t>((end - zeros_from) * row_bytes));
    at += held + part.pad_rows;
  }
  return {};
}

kernels::Weight describe(const Value& value, const Device& device, const void* data) {
  return {.data = data,
          .dtype = value.dtype,
          .layout = device.weight_layout(value.dtype),
          .n = value.rows.scale,
          .k = value.cols};
}

void upload(const Program& program, const Layout& layout, const Chunk& chunk, const void* from,
            char* base, Device& device, Stream& stream) {
  const Value& value = program.value(chunk.value);
  char* to = base + layout.offsets[static_cast<size_t>(chunk.value)];
  if (value.use == WeightUse::kMatrix) {
    device.upload_weight(stream, describe(value, device, nullptr), to, chunk.row, chunk.rows, from);
  } else {
    const size_t row_bytes = static_cast<size_t>(value.cols) * sizeof(float);
    stream.copy(to + static_cast<size_t>(chunk.row) * row_bytes, from, chunk.bytes);
  }
}

Status check_parts(const Program& program, const WeightSource& source) {
  for (const Value& value : program.values) {
    if (!is_weight(value)) continue;
    REFRAIN_CHECK(value.use == WeightUse::kMatrix || value.dtype == DType::kFloat32,
                  "{} must be float32", value.name);
    for (const WeightPart& part : value.parts) REFRAIN_RETURN_IF_ERROR(source.check(part));
  }
  return {};
}

// Whether the device made the value's numbers itself: only where it keeps rows as they are and all
// of them are hashed.
bool make_on_device(const Value& value, const WeightSource& source, char* to, Device& device,
                    Stream& stream) {
  const bool rows_as_they_are =
      value.use != WeightUse::kMatrix ||
      device.weight_layout(value.dtype) == kernels::WeightLayout::kRowMajor;
  if (!rows_as_they_are || value.use == WeightUse::kRopeTable) return false;
  kernels::HashedRows rows;
  rows.dtype = value.dtype;
  rows.cols = value.cols;
  const int64_t row_bytes = value.cols * static_cast<int64_t>(size_of(value.dtype));
  const auto fill = [&](int64_t count) {
    rows.to = to;
    rows.rows = count;
    to += count * row_bytes;
    return device.fill_hashed(stream, rows);
  };
  for (const WeightPart& part : value.parts) {
    const std::optional<HashedPart> hashed = source.hashed(part);
    if (!hashed) return false;
    rows.base = hashed->base;
    rows.scale = hashed->scale;
    rows.offset = hashed->offset;
    rows.stride = part.tensor_cols;
    rows.first = part.row_begin * part.tensor_cols + part.col_begin;
    if (!fill(part.row_end - part.row_begin)) return false;
    rows.scale = rows.offset = 0;
    if (part.pad_rows > 0 && !fill(part.pad_rows)) return false;
  }
  return true;
}

// Takes the chunks of values that the device makes out of the layout.
void make_on_device(const Program& program, const WeightSource& source, Layout& layout, char* base,
                    Device& device, Stream& stream) {
  std::vector<bool> made(program.values.size(), false);
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (!is_weight(value)) continue;
    made[i] = make_on_device(value, source, base + layout.offsets[i], device, stream);
  }
  std::erase_if(layout.chunks, [&](const Chunk& chunk) {
    const bool gone = made[static_cast<size_t>(chunk.value)];
    if (gone) layout.total_bytes -= chunk.bytes;
    return gone;
  });
}

// Reads and uploads every chunk, one ahead.
Status transfer(const Program& program, const ModelConfig& config, WeightSource& source,
                const Layout& layout, char* base, Device& device, Stream& stream,
                const LoadProgress& progress, const LoadChecks& checks) {
  if (layout.chunks.empty()) return {};
  const std::unique_ptr<Buffer> staging[2] = {device.allocate_pinned(layout.staging_bytes),
                                              device.allocate_pinned(layout.staging_bytes)};
  const auto slot = [&](size_t i) { return static_cast<char*>(staging[i % 2]->data()); };
  const auto start_read = [&](size_t i) {
    return std::async(std::launch::async, [&, i] {
      return read_chunk(program, config, source, checks, layout.chunks[i], slot(i));
    });
  };
  size_t done = 0;
  std::future<Status> reading = start_read(0);
  for (size_t i = 0; i < layout.chunks.size(); ++i) {
    REFRAIN_RETURN_IF_ERROR(reading.get());
    if (i + 1 < layout.chunks.size()) reading = start_read(i + 1);
    upload(program, layout, layout.chunks[i], slot(i), base, device, stream);
    stream.synchronize();  // the slot is free again
    done += layout.chunks[i].bytes;
    if (progress) progress(done, layout.total_bytes);
  }
  return {};
}

void fold_norms(const Program& program, Weights& weights, Device& device, Stream& stream) {
  for (size_t i = 0; i < program.values.size(); ++i) {
    const ValueId norm = program.values[i].norm;
    if (norm == kNoValue) continue;
    const kernels::Weight& weight = weights.by_value[i].matrix;
    const float* vector = weights.by_value[static_cast<size_t>(norm)].vector;
    std::vector<float>& folded = weights.folded[norm];
    folded.resize(static_cast<size_t>(weight.k));
    stream.copy(folded.data(), vector, folded.size() * sizeof(float));
    kernels::FoldNormArgs args;
    args.weight = {const_cast<void*>(weight.data), weight.dtype, weight.k};
    args.norm = const_cast<float*>(vector);
    args.rows = weight.n;
    args.cols = static_cast<int32_t>(weight.k);
    device.kernels().fold_norm(stream.ref(), args);
  }
  if (!weights.folded.empty()) stream.synchronize();  // the copies
}

Result<Weights> load_from(WeightSource& source, const Program& program, const ModelConfig& config,
                          Device& device, Stream& stream, const LoadProgress& progress,
                          const LoadChecks& checks) {
  REFRAIN_RETURN_IF_ERROR(check_parts(program, source));
  Layout layout = make_layout(program, device);
  Weights weights;
  weights.by_value.resize(program.values.size());
  weights.bytes = layout.device_bytes;
  if (layout.device_bytes == 0) return weights;
  weights.buffers.push_back(device.allocate(layout.device_bytes, MemoryTag::kWeights));
  char* base = static_cast<char*>(weights.buffers.front()->data());
  make_on_device(program, source, layout, base, device, stream);
  REFRAIN_RETURN_IF_ERROR(
      transfer(program, config, source, layout, base, device, stream, progress, checks));
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (!is_weight(value)) continue;
    const char* data = base + layout.offsets[i];
    if (value.use == WeightUse::kMatrix)
      weights.by_value[i].matrix = describe(value, device, data);
    else
      weights.by_value[i].vector = reinterpret_cast<const float*>(data);
  }
  fold_norms(program, weights, device, stream);
  return weights;
}

}  // namespace

Result<Weights> load_weights(const Program& program, const ModelConfig& config,
                             const std::filesystem::path& directory, Device& device, Stream& stream,
                             const LoadProgress& progress, const LoadChecks& checks) {
  REFRAIN_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, open_checkpoint(directory));
  return load_from(*source, program, config, device, stream, progress, checks);
}

Result<Weights> make_dummy_weights(const Program& program, const ModelConfig& config, uint64_t seed,
                                   Device& device, Stream& stream, const LoadProgress& progress) {
  return load_from(*dummy_weights(seed), program, config, device, stream, progress, {});
}

void share_weights(const Program& program, Weights& weights, const Program& before,
                   const Weights& passing) {
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (value.kind != ValueKind::kWeight || !value.passed) continue;
    const auto found = std::ranges::find(before.values, value.name, &Value::name);
    REFRAIN_CHECK(found != before.values.end() && found->kind == ValueKind::kWeight &&
                      found->dtype == value.dtype && found->rows == value.rows &&
                      found->cols == value.cols,
                  "program {} shares {} of {}, which has none of that shape", program.name,
                  value.name, before.name);
    weights.by_value[i] = passing.by_value[static_cast<size_t>(found - before.values.begin())];
  }
}

}  // namespace refrain::worker
