#pragma once
// The oracle of the passes: runs a Program, plain or rewritten, on one rank or several in lockstep,
// with the simplest loops there are, sums in double. Values are float32, each on its own or placed
// in one arena as a MemoryPlan says, so that a wrong plan gives wrong logits.

#include <map>
#include <memory>
#include <vector>

#include "runtime/config/model/model_config.h"
#include "worker/program/passes/passes.h"
#include "worker/program/program.h"

namespace refrain::worker::test {

// Tokens of a step; slots of a row's whole context are in row_slots, by position.
struct Step {
  std::vector<int32_t> ids, positions, row, logit_index;
  std::vector<int64_t> slots;
  std::vector<std::vector<int64_t>> row_slots;
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t requests() const { return static_cast<int64_t>(logit_index.size()); }
};

// A step of fresh requests with these prompt lengths, tokens drawn from the seed.
Step make_prefill(const std::vector<int>& lengths, int64_t vocab, uint32_t seed);
// One more token for each request of `before`.
Step make_decode(const Step& before, int64_t vocab, uint32_t seed);

enum class Storage { kSeparate, kPlanned };

class Interpreter {
 public:
  Interpreter(const Program& program, const ModelConfig& config, Storage storage,
              int64_t max_tokens, int64_t max_requests);

  void begin(const Step& step);
  void run(const Op& op);

  const Program& program() const { return program_; }
  float* data(ValueId id);
  int64_t rows(ValueId id) const;
  int64_t cols(ValueId id) const { return program_.value(id).cols; }

 private:
  friend struct RunOp;
  void load_weights(const ModelConfig& config);

  const Program& program_;
  Storage storage_;
  MemoryPlan plan_;
  std::vector<std::vector<float>> values_;  // by value; weights, and activations if kSeparate
  std::vector<float> arena_;
  // By cache value: slot -> k then v of every KV head.
  std::map<ValueId, std::map<int64_t, std::vector<float>>> caches_;
  // By state of a slot group: row -> what its tokens left.
  std::map<ValueId, std::map<int32_t, std::vector<float>>> states_;
  Step step_;
};

// Ranks of one model that step together.
class Ranks {
 public:
  Ranks(std::vector<Program> programs, const ModelConfig& config, Storage storage,
        int64_t max_tokens = 64, int64_t max_requests = 16);
  // Logits [R][vocab] of a step; every rank must hold the same.
  std::vector<std::vector<float>> run(const Step& step);

 private:
  template <class O>
  void all_reduce(ValueId O::*in, ValueId O::*out, size_t index);
  void all_gather(size_t index);
  std::vector<Program> programs_;
  std::vector<std::unique_ptr<Interpreter>> ranks_;
};

// Largest absolute difference.
double distance(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b);

}  // namespace refrain::worker::test
