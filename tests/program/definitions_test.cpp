// What holds of every op's definition (worker/program/op_def.h).

#include <gtest/gtest.h>

#include <set>

#include "tests/program/tiny_models.h"
#include "worker/program/passes/passes.h"
#include "worker/program/printer.h"

namespace refrain::worker::test {
namespace {

TEST(Definitions, HaveNamesOfTheirOwnAndOperandsInPlacesOfTheirOwn) {
  std::set<std::string> names;
  for (const OpDef* def : definitions()) {
    EXPECT_TRUE(names.insert(def->name).second) << def->name;
    std::set<std::string> operands;
    std::set<size_t> places;
    for (const Operand& operand : def->operands) {
      EXPECT_TRUE(operands.insert(operand.name).second) << def->name << " " << operand.name;
      EXPECT_TRUE(places.insert(operand.offset).second) << def->name << " " << operand.name;
    }
    for (const Operand& operand : def->operands) {
      if (operand.access != Access::kInPlace) continue;
      EXPECT_TRUE(places.contains(operand.in_place_of)) << def->name << " " << operand.name;
    }
  }
}

// Of ops that hold ids and numbers: what is no operand is no id, so a fresh op names no value.
TEST(Definitions, AFreshOpNamesNoValue) {
  const auto check = []<class... Os>(const std::variant<Os...>* /*type*/) {
    (([] {
       const Op op = Os{};
       visit_operands(op, [&](ValueId id, const Operand& operand) {
         EXPECT_EQ(id, kNoValue) << op_name(op) << " " << operand.name;
       });
     }()),
     ...);
  };
  check(static_cast<const Op*>(nullptr));
}

// Every row of the step is counted by an extent whose live count an op writes.
TEST(Definitions, CG36EveryExtentOfAModelHasALiveCountThatPrepareInputsWrites) {
  for (const ModelConfig& config : tiny_models()) {
    for (int size = 1; size <= 2; ++size) {
      const Program program = *shard(fuse(build(config)), size - 1, size);
      ASSERT_EQ(program.extents.size(), 2u);
      const std::vector<ValueId> written = writes(program.ops.front());
      for (const Extent& extent : program.extents) {
        EXPECT_NE(std::find(written.begin(), written.end(), extent.live), written.end())
            << extent.name;
      }
      EXPECT_EQ(program.value(program.extents[kTokens].live).name, "live_tokens");
      EXPECT_EQ(program.value(program.extents[kRequests].live).name, "live_reqs");
    }
  }
}

// What an op reads of the step stands in its line: nothing is read behind the Program's back.
TEST(Definitions, AttentionAndSampleListWhatTheyReadOfTheStep) {
  const Program program = fuse(build(tiny_llama()));
  std::string attention, sample;
  for (const Op& op : program.ops) {
    if (std::holds_alternative<AttentionOp>(op)) attention = print(program, op);
    if (std::holds_alternative<SampleOp>(op)) sample = print(program, op);
  }
  EXPECT_NE(attention.find("query_start=query_start, seq_lens=seq_lens, row_slot=row_slot, "
                           "block_table=slots.block_table"),
            std::string::npos)
      << attention;
  EXPECT_NE(sample.find("params=slots.params"), std::string::npos) << sample;
  EXPECT_NE(sample.find("sampled int32 [R, 1]"), std::string::npos) << sample;
}

}  // namespace
}  // namespace refrain::worker::test
