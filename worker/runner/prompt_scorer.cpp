#include "worker/runner/prompt_scorer.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "worker/graph/interpreter.h"

namespace refrain::worker {

using kernels::kMaxLogprobs;

PromptScorer::PromptScorer(Device& device, Stream& stream, ScoringLowering& scoring,
                           int32_t num_slots)
    : stream_(stream),
      scoring_(scoring),
      own_(scoring.program.values.size()),
      num_top_(static_cast<size_t>(num_slots), -1),
      prompt_len_(static_cast<size_t>(num_slots), 0) {
  const ScoringValues& ids = scoring_.values;
  const auto place = [&](std::byte* base) {
    size_t used = 0;
    for (const ValueId id : {ids.index, ids.tokens, ids.num_top, ids.logprobs, ids.ranks,
                             ids.top_tokens, ids.top_logprobs}) {
      own_[static_cast<size_t>(id)].fill(base == nullptr ? nullptr : base + used);
      const Value& value = scoring_.program.value(id);
      used += static_cast<size_t>(value.rows.resolve({}) * value.cols) * size_of(value.dtype);
    }
    return used;
  };
  const size_t bytes = place(nullptr);
  memory_ = device.allocate_pinned(bytes);
  std::memset(memory_->data(), 0, bytes);
  place(static_cast<std::byte*>(memory_->data()));
}

Status PromptScorer::bind(const Weights& weights, void* arena, const std::vector<void*>& caches,
                          const std::vector<Addresses>& own) {
  const size_t count = scoring_.program.values.size();
  std::vector<void*> cache_of(count, nullptr);
  std::vector<Addresses> addresses = own_;
  weights_.by_value.resize(count);
  for (size_t i = 0; i < count; ++i) {
    if (scoring_.hosted[i] == kNoValue) continue;
    const auto same = static_cast<size_t>(scoring_.hosted[i]);
    if (same < weights.by_value.size()) weights_.by_value[i] = weights.by_value[same];
    if (same < caches.size()) cache_of[i] = caches[same];
    if (same < own.size()) addresses[i] = own[same];
  }
  scoring_.context.weights = &weights_;
  return bind_values(scoring_.context, scoring_.plan, arena, cache_of, addresses);
}

void PromptScorer::set_up(const ipc::SlotSetup& setup) {
  const auto slot = static_cast<size_t>(setup.slot);
  num_top_[slot] = std::min(setup.num_prompt_logprobs, kMaxLogprobs);
  prompt_len_[slot] = setup.prompt_len;
}

bool PromptScorer::scores(const ipc::Step& step) {
  return std::ranges::any_of(rows_of(step).flags,
                             [](uint8_t flags) { return (flags & ipc::kScores) != 0; });
}

std::vector<PromptScorer::Wanted> PromptScorer::wanted_of(const ipc::Step& step) const {
  std::vector<Wanted> wanted;
  const ipc::Rows& rows = rows_of(step);
  int32_t first = 0;
  auto next = rows.next_tokens.begin();
  for (size_t row = 0; row < rows.slot.size(); first += rows.num_tokens[row++]) {
    if ((rows.flags[row] & ipc::kScores) == 0) continue;
    REFRAIN_CHECK(next != rows.next_tokens.end(), "step {} row {}: scores without a next token",
                  step.step, row);
    const auto slot = static_cast<size_t>(rows.slot[row]);
    const TokenId after = *next++;
    REFRAIN_CHECK(num_top_[slot] >= 0, "step {} row {}: slot {} asked for no prompt_logprobs",
                  step.step, row, slot);
    const int32_t count =
        std::min(rows.num_tokens[row], prompt_len_[slot] - 1 - rows.computed[row]);
    for (int32_t i = 0; i < count; ++i) {
      const bool last = i + 1 == rows.num_tokens[row];
      const TokenId token =
          last ? after : rows.token_ids[static_cast<size_t>(first) + static_cast<size_t>(i) + 1];
      REFRAIN_CHECK(token >= 0 && token < scoring_.program.vocab_size,
                    "step {} row {}: scores token {} of a vocabulary of {}", step.step, row, token,
                    scoring_.program.vocab_size);
      wanted.push_back({first + i, token, num_top_[slot]});
    }
  }
  return wanted;
}

ipc::PromptScores PromptScorer::run(const ipc::Step& step, const BatchShape& batch) {
  const BatchDescriptor key{batch.num_tokens, batch.num_reqs};
  const OpRange all = scoring_.all_ops(), chunk = scoring_.values.chunk;
  launch_ops(scoring_.context, {all.begin, chunk.begin}, key, &batch);
  const std::vector<Wanted> wanted = wanted_of(step);
  ipc::PromptScores scores;
  if (!wanted.empty()) scores.top_offsets.push_back(0);
  const auto most = static_cast<size_t>(scoring_.values.rows);
  for (size_t begin = 0; begin < wanted.size(); begin += most) {
    const auto part = std::span(wanted).subspan(begin, std::min(most, wanted.size() - begin));
    run_chunk(part, key);
    add_chunk(part, scores);
  }
  launch_ops(scoring_.context, {chunk.end, all.end}, key, &batch);
  return scores;
}

void PromptScorer::run_chunk(std::span<const Wanted> wanted, const BatchDescriptor& key) {
  const ScoringValues& ids = scoring_.values;
  for (size_t i = 0; i < static_cast<size_t>(ids.rows); ++i) {
    const bool has = i < wanted.size();
    at<int32_t>(ids.index)[i] = has ? wanted[i].row : 0;
    at<int32_t>(ids.tokens)[i] = has ? wanted[i].token : -1;
    at<int32_t>(ids.num_top)[i] = has ? wanted[i].num_top : 0;
  }
  launch_ops(scoring_.context, ids.chunk, key);
  stream_.synchronize();
}

void PromptScorer::add_chunk(std::span<const Wanted> wanted, ipc::PromptScores& scores) const {
  const ScoringValues& ids = scoring_.values;
  for (size_t i = 0; i < wanted.size(); ++i) {
    scores.logprobs.push_back(at<float>(ids.logprobs)[i]);
    scores.ranks.push_back(at<int32_t>(ids.ranks)[i]);
    const size_t first = i * size_t{kMaxLogprobs};
    for (size_t top = first; top < first + static_cast<size_t>(wanted[i].num_top); ++top) {
      if (at<int32_t>(ids.top_tokens)[top] < 0) break;
      scores.top_tokens.push_back(at<int32_t>(ids.top_tokens)[top]);
      scores.top_logprobs.push_back(at<float>(ids.top_logprobs)[top]);
    }
    scores.top_offsets.push_back(static_cast<int32_t>(scores.top_tokens.size()));
  }
}

void PromptScorer::warm_up() {
  run_chunk({}, {1, 1});
  const std::vector<Wanted> one = {{0, 0, 1}};  // of whatever the arena holds
  run_chunk(one, {1, 1});
}

}  // namespace refrain::worker
