// Steps for the interpreter.

#include <random>

#include "tests/program/interpreter.h"

namespace refrain::worker::test {

Step make_prefill(const std::vector<int>& lengths, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  Step step;
  int64_t slot = 16;
  for (size_t row = 0; row < lengths.size(); ++row) {
    step.row_slots.emplace_back();
    for (int i = 0; i < lengths[row]; ++i) {
      step.ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
      step.positions.push_back(i);
      step.row.push_back(static_cast<int32_t>(row));
      step.slots.push_back(slot);
      step.row_slots.back().push_back(slot++);
    }
    step.logit_index.push_back(static_cast<int32_t>(step.ids.size()) - 1);
  }
  return step;
}

Step make_decode(const Step& before, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  Step step;
  int64_t slot = 1000;
  for (size_t row = 0; row < before.row_slots.size(); ++row) {
    step.row_slots.push_back(before.row_slots[row]);
    step.ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
    step.positions.push_back(static_cast<int32_t>(before.row_slots[row].size()));
    step.row.push_back(static_cast<int32_t>(row));
    step.slots.push_back(slot);
    step.row_slots.back().push_back(slot++);
    step.logit_index.push_back(static_cast<int32_t>(row));
  }
  return step;
}

}  // namespace refrain::worker::test
