#include "runtime/engine/chunk_pace.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace refrain {

void ChunkPace::sent(const ipc::Step& step, TimePoint now) {
  Sent sent{now, static_cast<int32_t>(step.token_ids.size()), 0};
  for (const int32_t tokens : step.row_num_tokens)
    if (tokens > 1) sent.prompt_tokens += tokens;
  in_flight_.push_back(sent);
}

// A step begins when it is sent, or when the one before it is done.
void ChunkPace::answered(TimePoint now) {
  REFRAIN_CHECK(!in_flight_.empty(), "an answer to no step");
  const Sent step = in_flight_.front();
  in_flight_.pop_front();
  const double seconds = seconds_between(std::max(step.at, last_answer_), now);
  last_answer_ = now;
  if (step.prompt_tokens < kEnoughTokens) return;
  const double sample = seconds / step.tokens;
  seconds_a_token_ =
      seconds_a_token_ ? *seconds_a_token_ + kWeight * (sample - *seconds_a_token_) : sample;
}

void ChunkPace::restart() { in_flight_.clear(); }

int32_t ChunkPace::prompt_tokens() const {
  if (!seconds_a_token_) return std::min(most_, kUnknownTokens);
  const double fit = kLongestStep / std::max(*seconds_a_token_, 1e-9);
  if (fit >= most_) return most_;
  const auto tokens = static_cast<int32_t>(fit) / kLeastTokens * kLeastTokens;
  return std::min(most_, std::max(tokens, kLeastTokens));
}

}  // namespace refrain
