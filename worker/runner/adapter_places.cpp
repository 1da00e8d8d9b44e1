#include "worker/runner/adapter_places.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "runtime/base/check.h"
#include "worker/runner/value_memory.h"

namespace refrain::worker {
namespace {

constexpr size_t kPlaceAlignment = 256;

size_t aligned(size_t bytes) {
  return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

size_t bytes_of(const Value& value) {
  return static_cast<size_t>(value.rows.scale * value.cols) * size_of(value.dtype);
}

void write(const std::vector<float>& values, DType dtype, std::byte* out) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out, values.data(), values.size() * sizeof(float));
    return;
  }
  std::ranges::transform(values, reinterpret_cast<BFloat16*>(out),
                         [](float x) { return to_bfloat16(x); });
}

// [rows, cols] as [cols, rows].
std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t cols) {
  std::vector<float> result(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col)
      result[static_cast<size_t>(col * rows + row)] = values[static_cast<size_t>(row * cols + col)];
  }
  return result;
}

}  // namespace

AdapterPlaces::AdapterPlaces(Device& device, Stream& stream, LoraProgram lora, size_t num_values,
                             std::map<ValueId, std::vector<float>> folded)
    : device_(device),
      lora_(std::move(lora)),
      folded_(std::move(folded)),
      addresses_(lora_.program.values.size()) {
  const std::vector<Value>& values = lora_.program.values;
  const auto is_here = [&](size_t i) { return values[i].storage == Storage::kDevice; };
  size_t bytes = 0;
  for (size_t i = num_values; i < values.size(); ++i)
    if (is_here(i)) bytes += aligned(bytes_of(values[i]));
  memory_ = device.allocate(std::max<size_t>(bytes, 1), MemoryTag::kWeights);
  auto* at = static_cast<std::byte*>(memory_->data());
  const Filler zeros(device, 0);  // until the copies have been made
  for (size_t i = num_values; i < values.size(); ++i) {
    if (!is_here(i)) continue;
    addresses_[i].fill(at);
    if (values[i].zeroed) zeros.fill(stream, at, bytes_of(values[i]));
    at += aligned(bytes_of(values[i]));
  }
  stream.synchronize();
  in_place_.assign(static_cast<size_t>(value(lora_.ranks).rows.scale), 0);
}

Status AdapterPlaces::check(const PeftAdapter& adapter) const {
  const auto refuse = [&](const TensorInfo& tensor, const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}\": {}", adapter.path(),
                tensor.name.substr(0, 200), why);
  };
  for (const auto& [module, pair] : adapter.modules()) {
    const auto target = std::ranges::find(lora_.targets, module, &LoraTarget::module);
    if (target == lora_.targets.end())
      return refuse(pair.a, "the model has no such module that adapters may change");
    if (pair.a.shape[1] != target->cols)
      return refuse(
          pair.a, fmt::format("has {} columns, the model needs {}", pair.a.shape[1], target->cols));
    if (pair.b.shape[0] != target->rows)
      return refuse(pair.b,
                    fmt::format("has {} rows, the model needs {}", pair.b.shape[0], target->rows));
  }
  if (lora_.targets.empty()) return {};
  const int64_t most = value(lora_.targets.front().b).cols / num_places();
  if (adapter.rank() > most)
    return refuse(adapter.modules().begin()->second.a,
                  fmt::format("its rank is {}, max_lora_rank {}", adapter.rank(), most));
  return {};
}

// B's scale is in it, and zeros for padding. A value that is no finite number would reach the rows
// of other adapters.
Status AdapterPlaces::read_part(const PeftAdapter& adapter, const LoraTarget& target,
                                const Part& part, std::byte* memory) const {
  const PeftAdapter::Pair& pair = adapter.modules().at(target.module);
  const int64_t rank = adapter.rank(), rows = target.row_end - target.row_begin;
  const int64_t cols = target.col_end - target.col_begin;
  REFRAIN_ASSIGN_OR_RETURN(std::vector<float> a,
                           adapter.read(pair.a, 0, rank, target.col_begin, cols));
  if (target.norm != kNoValue) {
    const std::vector<float>& norm = folded_.at(target.norm);
    for (size_t i = 0; i < a.size(); ++i) a[i] *= norm[i % norm.size()];
  }
  if (target.by_token) a = transposed(a, rank, cols);
  write(a, value(target.a).dtype, memory + part.a);
  REFRAIN_ASSIGN_OR_RETURN(std::vector<float> b,
                           adapter.read(pair.b, target.row_begin, rows, 0, rank));
  b.resize(static_cast<size_t>(target.b_rows * rank));
  const DType dtype = value(target.b).dtype;
  for (float& x : b) {
    x *= adapter.scale();
    if (std::isfinite(dtype == DType::kFloat32 ? x : to_float(to_bfloat16(x)))) continue;
    return fail(ErrorCode::kInvalidArgument,
                "{}: tensor \"{}\": a value times the scale {} is no finite number in {}",
                adapter.path(), pair.b.name.substr(0, 200), adapter.scale(), to_string(dtype));
  }
  write(b, dtype, memory + part.b);
  return {};
}

Status AdapterPlaces::check_base(const PeftAdapter& adapter, const OpenModel& open_model) const {
  if (adapter.base_weights().empty()) return {};
  REFRAIN_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> model, open_model());
  for (const auto& [module, tensor] : adapter.base_weights()) {
    const auto target = std::ranges::find(lora_.targets, module, &LoraTarget::module);
    if (target == lora_.targets.end())
      return fail(ErrorCode::kInvalidArgument, "{}: tensor \"{}\": the model has no such module",
                  adapter.path(), tensor.name);
    REFRAIN_RETURN_IF_ERROR(adapter.check_base(tensor, target->weight, *model));
  }
  return {};
}

// Each part's values are converted one by one, so that threads share the parts. The error of the
// first one that has any.
Status AdapterPlaces::read_parts(const PeftAdapter& adapter, const std::vector<Part>& parts,
                                 std::byte* memory, int threads) const {
  std::vector<Status> ended(parts.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < parts.size(); i = next++)
      ended[i] = read_part(adapter, *parts[i].target, parts[i], memory);
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  for (const Status& status : ended) REFRAIN_RETURN_IF_ERROR(status);
  return {};
}

Result<AdapterPlaces::Adapter> AdapterPlaces::read(const PeftAdapter& adapter,
                                                   const OpenModel& open_model, int threads) const {
  REFRAIN_RETURN_IF_ERROR(check(adapter));
  REFRAIN_RETURN_IF_ERROR(check_base(adapter, open_model));
  std::vector<Part> parts;
  const auto rank = static_cast<size_t>(adapter.rank());
  size_t bytes = aligned(static_cast<size_t>(value(lora_.ranks).cols) * sizeof(int32_t));
  for (const LoraTarget& target : lora_.targets) {
    if (!adapter.modules().contains(target.module)) continue;
    Part part{&target, bytes, 0};
    bytes += aligned(rank * static_cast<size_t>(target.col_end - target.col_begin) *
                     size_of(value(target.a).dtype));
    part.b = bytes;
    bytes += aligned(rank * static_cast<size_t>(target.b_rows) * size_of(value(target.b).dtype));
    parts.push_back(part);
  }
  const size_t rows_at = bytes;
  bytes += (1 + 2 * parts.size()) * sizeof(CopyRows);
  Adapter here;
  here.memory = device_.allocate_pinned_in_pieces(bytes);
  auto* memory = static_cast<std::byte*>(here.memory->data());
  auto* ranks = reinterpret_cast<int32_t*>(memory);
  std::fill_n(ranks, value(lora_.ranks).cols, 0);
  for (const Part& part : parts) ranks[part.target->rank_column] = static_cast<int32_t>(rank);
  REFRAIN_RETURN_IF_ERROR(read_parts(adapter, parts, memory, threads));
  here.rows = list_rows(rank, parts, memory, reinterpret_cast<CopyRows*>(memory + rows_at));
  return here;
}

void AdapterPlaces::add(AdapterId id, Adapter adapter) {
  REFRAIN_CHECK(!knows(id), "LoRA adapter {} is there already", id);
  adapters_[id] = std::move(adapter);
}

// Written to `list`: A's rows of a place lie one behind the other, B's between those of the others.
std::span<const CopyRows> AdapterPlaces::list_rows(size_t rank, const std::vector<Part>& parts,
                                                   const std::byte* memory, CopyRows* list) const {
  const size_t places = in_place_.size();
  size_t count = 0;
  const size_t ranks = static_cast<size_t>(value(lora_.ranks).cols) * sizeof(int32_t);
  list[count++] = {address(lora_.ranks), ranks, ranks, memory, ranks, 1};
  for (const Part& part : parts) {
    const LoraTarget& target = *part.target;
    const Value &a = value(target.a), &b = value(target.b);
    const size_t a_row = static_cast<size_t>(a.cols) * size_of(a.dtype);
    const size_t a_bytes =
        rank * static_cast<size_t>(target.col_end - target.col_begin) * size_of(a.dtype);
    list[count++] = {address(target.a) + static_cast<size_t>(target.a_row) * a_row,
                     static_cast<size_t>(a.rows.scale) / places * a_row,
                     0,
                     memory + part.a,
                     a_bytes,
                     1};
    const size_t b_row = static_cast<size_t>(b.cols) * size_of(b.dtype);
    list[count++] = {address(target.b) + static_cast<size_t>(target.b_begin) * b_row,
                     b_row / places,
                     b_row,
                     memory + part.b,
                     rank * size_of(b.dtype),
                     static_cast<size_t>(target.b_rows)};
  }
  return {list, count};
}

void AdapterPlaces::unload(AdapterId id, Stream& stream) {
  const auto found = adapters_.find(id);
  if (found == adapters_.end()) return;
  stream.synchronize();  // copies out of its memory
  std::ranges::replace(in_place_, id, AdapterId{0});
  adapters_.erase(found);
}

void AdapterPlaces::forget_all(Stream& stream) {
  stream.synchronize();
  std::ranges::fill(in_place_, AdapterId{0});
  adapters_.clear();
}

void AdapterPlaces::place(int32_t place, AdapterId id, Stream& stream) {
  REFRAIN_CHECK(place >= 0 && place < num_places(), "LoRA adapter {} goes to place {} of {}", id,
                place, num_places());
  const auto found = adapters_.find(id);
  REFRAIN_CHECK(found != adapters_.end(), "LoRA adapter {} is not loaded", id);
  stream.copy_rows(found->second.rows, static_cast<size_t>(place));
  in_place_[static_cast<size_t>(place)] = id;
}

}  // namespace refrain::worker
