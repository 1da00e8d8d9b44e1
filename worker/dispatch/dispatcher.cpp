#include "worker/dispatch/dispatcher.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "worker/dispatch/capture_sizes.h"

namespace refrain::worker {
namespace {

bool allows(const BatchShape& batch, RuntimeMode mode) {
  if (mode == RuntimeMode::kFull && batch.cascade) return false;
  return ((batch.allowed_modes >> static_cast<int>(mode)) & 1) != 0;
}

}  // namespace

CudagraphDispatcher::CudagraphDispatcher(CudagraphConfig config) : config_(std::move(config)) {
  const RuntimeMode mixed = mixed_mode(config_.mode);
  for (int32_t size : config_.capture_sizes) {
    const BatchDescriptor key{size, std::min(size, config_.max_num_seqs), false, false,
                              config_.capture_hidden_mode};
    if (mixed == RuntimeMode::kFull) add(mixed_, key);
    if (mixed == RuntimeMode::kPiecewise) add(piecewise_, key);
  }
  if (separates_decode_keys(config_.mode)) {
    for (const int32_t q : config_.uniform_query_lens) {
      Ladder& ladder = uniform_.emplace_back();
      for (int32_t size : decode_sizes(config_.capture_sizes, config_.max_num_seqs, q)) {
        add(ladder, {size, size / q, true, false, config_.capture_hidden_mode});
      }
    }
  }
  number(RuntimeMode::kFull);
  number(RuntimeMode::kPiecewise);
}

void CudagraphDispatcher::add(Ladder& ladder, BatchDescriptor key) {
  if (!config_.lora) {
    ladder[0].push_back({key, -1});
    return;
  }
  key.has_lora = true;
  ladder[1].push_back({key, -1});
  if (config_.specialize_lora) {
    key.has_lora = false;
    ladder[0].push_back({key, -1});
  }
}

namespace {

// Capture order: large to small; at one size adapters first, then uniform keys, of them those of
// more requests.
bool captured_before(const BatchDescriptor& a, const BatchDescriptor& b) {
  if (a.num_tokens != b.num_tokens) return a.num_tokens > b.num_tokens;
  if (a.has_lora != b.has_lora) return a.has_lora;
  if (a.uniform != b.uniform) return a.uniform;
  return a.num_reqs > b.num_reqs;
}

}  // namespace

void CudagraphDispatcher::number(RuntimeMode mode) {
  const std::vector<BatchDescriptor> order = keys(mode);
  for (Ladder* ladder : ladders(mode)) {
    for (auto& entries : *ladder) {
      for (Entry& entry : entries) {
        const auto at = std::find(order.begin(), order.end(), entry.key);
        entry.id = static_cast<int32_t>(at - order.begin());
      }
    }
  }
}

std::vector<BatchDescriptor> CudagraphDispatcher::keys(RuntimeMode mode) const {
  std::vector<BatchDescriptor> keys;
  const auto collect = [&keys](const Ladder& ladder) {
    for (const auto& entries : ladder) {
      for (const Entry& entry : entries) keys.push_back(entry.key);
    }
  };
  if (mode == RuntimeMode::kPiecewise) collect(piecewise_);
  if (mode == RuntimeMode::kFull) {
    for (const Ladder& ladder : uniform_) collect(ladder);
    collect(mixed_);
  }
  std::sort(keys.begin(), keys.end(), captured_before);
  return keys;
}

const CudagraphDispatcher::Entry* CudagraphDispatcher::find(const Ladder& ladder,
                                                            const BatchShape& batch,
                                                            RuntimeMode mode) const {
  const bool adapters = config_.lora && (batch.has_lora || !config_.specialize_lora);
  if (batch.has_lora && !config_.lora) return nullptr;
  const auto& entries = ladder[adapters ? 1 : 0];
  auto entry =
      std::lower_bound(entries.begin(), entries.end(), batch.num_tokens,
                       [](const Entry& e, int32_t tokens) { return e.key.num_tokens < tokens; });
  if (mode != RuntimeMode::kPiecewise) {
    while (entry != entries.end() && entry->key.num_reqs < batch.num_reqs) ++entry;
  }
  if (entry == entries.end()) return nullptr;
  const int32_t tokens = entry->key.num_tokens;
  if (config_.disable_padding && tokens != batch.num_tokens) return nullptr;
  if (mode == RuntimeMode::kPiecewise && config_.max_padding_ratio > 0 &&
      tokens > config_.max_padding_ratio * batch.num_tokens) {
    return nullptr;
  }
  return &*entry;
}

const CudagraphDispatcher::Ladder* CudagraphDispatcher::uniform_ladder(
    const BatchShape& batch) const {
  if (!batch.uniform) return nullptr;
  for (size_t i = 0; i < uniform_.size(); ++i) {
    if (config_.uniform_query_lens[i] * batch.num_reqs == batch.num_tokens) return &uniform_[i];
  }
  return nullptr;
}

std::vector<CudagraphDispatcher::Ladder*> CudagraphDispatcher::ladders(RuntimeMode mode) {
  if (mode == RuntimeMode::kPiecewise) return {&piecewise_};
  std::vector<Ladder*> all = {&mixed_};
  for (Ladder& ladder : uniform_) all.push_back(&ladder);
  return all;
}

Dispatch CudagraphDispatcher::dispatch(const BatchShape& batch) const {
  REFRAIN_CHECK(batch.hidden <= config_.capture_hidden_mode,
                "hidden states are read as {}, and the model's Program leaves them as {}",
                ipc::to_string(batch.hidden), ipc::to_string(config_.capture_hidden_mode));
  Dispatch result{
      RuntimeMode::kNone,
      {batch.num_tokens, batch.num_reqs, false, batch.has_lora, config_.capture_hidden_mode},
      -1};
  if (!captured_ || batch.num_tokens == 0) return result;
  const auto take = [&](const Ladder& ladder, RuntimeMode mode) {
    if (!allows(batch, mode)) return false;
    const Entry* entry = find(ladder, batch, mode);
    if (entry == nullptr) return false;
    result = {mode, entry->key, entry->id};
    return true;
  };
  if (const Ladder* uniform = uniform_ladder(batch);
      uniform != nullptr && take(*uniform, RuntimeMode::kFull))
    return result;
  if (take(mixed_, RuntimeMode::kFull)) return result;
  if (take(piecewise_, RuntimeMode::kPiecewise)) result.key.num_reqs = batch.num_reqs;
  return result;
}

Dispatch CudagraphDispatcher::dispatch_together(std::span<const ipc::StepSize> sizes) const {
  BatchShape all;
  int32_t query_len = 0;  // of uniform ones, which must have the same
  auto least = RuntimeMode::kFull;
  for (const ipc::StepSize& size : sizes) {
    if (size.num_reqs == 0) continue;
    const BatchShape one = batch_shape(size, config_.uniform_query_lens);
    least = std::min(least, dispatch(one).mode);
    const int32_t q = one.uniform ? one.num_tokens / one.num_reqs : 0;
    all.uniform = q > 0 && (all.num_reqs == 0 || q == query_len);
    query_len = all.uniform ? q : 0;
    all.num_tokens = std::max(all.num_tokens, one.num_tokens);
    all.num_reqs = std::max(all.num_reqs, one.num_reqs);
    all.cascade |= one.cascade;
    all.has_lora |= one.has_lora;
    all.allowed_modes &= one.allowed_modes;
  }
  all.allowed_modes &= static_cast<uint8_t>((2U << static_cast<int>(least)) - 1);
  return dispatch(all);
}

void CudagraphDispatcher::drop(RuntimeMode mode, int32_t id) {
  size_t dropped = 0;
  for (Ladder* ladder : ladders(mode)) {
    for (auto& entries : *ladder) {
      dropped += std::erase_if(entries, [id](const Entry& entry) { return entry.id == id; });
    }
  }
  REFRAIN_CHECK(dropped == 1, "no {} key with id {} to drop", ipc::to_string(mode), id);
}

CudagraphMode CudagraphDispatcher::mode_in_force() const {
  const auto any = [](const Ladder& ladder) { return !ladder[0].empty() || !ladder[1].empty(); };
  const bool uniform = std::ranges::any_of(uniform_, any);
  if (any(mixed_)) return CudagraphMode::kFull;
  if (any(piecewise_)) {
    return uniform ? CudagraphMode::kFullAndPiecewise : CudagraphMode::kPiecewise;
  }
  return uniform ? CudagraphMode::kFullDecodeOnly : CudagraphMode::kNone;
}

}  // namespace refrain::worker
