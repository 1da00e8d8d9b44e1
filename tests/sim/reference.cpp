#include "tests/sim/reference.h"

#include <algorithm>
#include <span>

namespace refrain::sim {

ipc::SlotSetup setup_of(const SamplingParams& sampling, uint64_t seed) {
  ipc::SlotSetup setup;
  setup.temperature = static_cast<float>(sampling.temperature);
  setup.repetition_penalty = static_cast<float>(sampling.repetition_penalty);
  setup.presence_penalty = static_cast<float>(sampling.presence_penalty);
  setup.frequency_penalty = static_cast<float>(sampling.frequency_penalty);
  setup.seed = sampling.seed.value_or(seed);
  setup.min_tokens = static_cast<int32_t>(sampling.min_tokens);
  setup.end_tokens = sampling.stop_token_ids;
  if (!sampling.ignore_eos) setup.end_tokens.push_back(0);
  return setup;
}

Reference reference_answer(const GenerateRequest& request, const ipc::SlotSetup& setup,
                           int64_t max_model_len, const SimModel& model,
                           const text::Tokenizer& tokenizer) {
  const SamplingParams& sampling = request.sampling;
  Reference answer;
  std::vector<TokenId> tokens = request.prompt;
  testing::Counts generated;
  bool hidden = false;  // the last token's text is not shown
  while (answer.finish == FinishReason::kNone) {
    const TokenId token = testing::next_allowed(
        tokens, setup, std::ssize(answer.tokens), model.vocab, model.eos_every,
        testing::draw_of(setup) ^ testing::draw_of(request.adapter) ^
            testing::penalty_of(setup, generated));
    tokens.push_back(token);
    ++generated[token];
    answer.tokens.push_back(token);
    const auto count = static_cast<int64_t>(answer.tokens.size());
    const bool eos = token == 0 && !sampling.ignore_eos;
    const bool listed = std::ranges::count(sampling.stop_token_ids, token) > 0;
    if (eos || listed) {
      answer.finish = FinishReason::kStop;
      if (!eos) answer.stop_reason = std::to_string(token);
      hidden = !sampling.include_stop_str_in_output;
    } else if (count >= sampling.max_tokens ||
               static_cast<int64_t>(tokens.size()) >= max_model_len) {
      answer.finish = FinishReason::kLength;
    }
  }
  const auto shown = std::span(answer.tokens).first(answer.tokens.size() - (hidden ? 1 : 0));
  answer.text = tokenizer.decode(shown, sampling.skip_special_tokens);
  return answer;
}

}  // namespace refrain::sim
