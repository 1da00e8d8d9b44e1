#pragma once
// What a request must answer when it runs alone and nothing goes wrong (I3): the rules of an answer
// written down a second time. Pure functions.

#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/request.h"
#include "runtime/text/tokenizer.h"
#include "tests/sim/worker_process.h"

namespace refrain::sim {

struct Reference {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::string stop_reason;
};

// How the mock device is set up for these parameters; without a seed, with the one that the engine
// chose.
ipc::SlotSetup setup_of(const SamplingParams& sampling, uint64_t seed = 0);

// Without its stop strings: those cut the text of this answer.
Reference reference_answer(const GenerateRequest& request, const ipc::SlotSetup& setup,
                           int64_t max_model_len, const SimModel& model,
                           const text::Tokenizer& tokenizer);

}  // namespace refrain::sim
