#pragma once
// The parts of sampling that do not depend on the instruction set: the random draw, the logits'
// penalties, the choice among candidates. Called by one thread for one row; nothing is allocated.

#include <cstdint>

#include "kernels/core/op_args.h"
#include "kernels/core/sample_args.h"

namespace refrain::kernels {

// Four random words of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", 2011): key = seed, counter = (position, 0), both low word first.
struct PhiloxWords {
  uint32_t word[4];
};
PhiloxWords philox(uint64_t seed, uint64_t position);

// The draw of (seed, position), in [0, 1): the first 53 of the 64 bits word[1] : word[0].
double uniform_draw(uint64_t seed, uint64_t position);

struct Candidate {
  float logit = 0;
  int32_t token = 0;
};

// Whether the host has made what `ready` stands for, for this turn; waits for it, in patience.
bool wait_for_grammar(const uint32_t* ready, uint32_t turn);

// Copies a row's logits out of the shards.
void copy_logits(const SampleArgs& args, int64_t row, float* logits);  // [vocab_size]

// Copies them, then, in vLLM's order: allowed-token mask, logit bias,
// repetition penalty, frequency and presence penalties.
void process_logits(const SampleArgs& args, int64_t row, const SlotParams& params,
                    float* logits);  // [vocab_size]

// Keeps of `count` candidates, given in ascending order of their tokens, those that top-k, then
// top-p leave, and returns their number, at least 1. Top-k or top-p leave them most likely first
// (ties: lowest token first). Candidates tied with the k-th all stay, as in vLLM. `total`: the sum
// of exp((logit - highest) / temperature) over all tokens that top-p counts; 0: the sum over the
// candidates left by top-k.
int64_t keep_top(Candidate* candidates, int64_t count, const SlotParams& params, float highest,
                 double total);

// Makes of a row's processed logits those that it draws from: over the temperature, and -inf for
// each token that is no candidate, or no number.
void leave_candidates(const Candidate* candidates, int64_t count, float temperature, float* logits,
                      int64_t vocab);
// As above, where every token is a candidate.
void scale_logits(float temperature, float* logits, int64_t vocab);

// Inverse CDF over the candidates in their order.
int32_t draw_candidate(const Candidate* candidates, int64_t count, float highest, float temperature,
                       double uniform);

// The `n` best tokens, best first (ties: lowest token first), into tokens and logits.
void top_tokens(const float* logits, int64_t count, int n, Candidate* best);

}  // namespace refrain::kernels
