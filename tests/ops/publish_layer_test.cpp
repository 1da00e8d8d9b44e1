// publish_layer: the number of the step that runs, out of the step block of its turn, in one word.
#include "kernels/core/layer_flag.h"
#include "tests/ops/harness.h"

namespace refrain::kernels {
namespace {

class PublishLayerTest : public OpsTest {};

TEST_P(PublishLayerTest, StoresTheNumberOfTheStepOfItsTurnIntoItsOwnWord) {
  constexpr size_t kHeader = 64;
  std::vector<uint64_t> words(3, 0);
  PublishLayerArgs args;
  args.header = kHeader;
  uint64_t* flags = harness().put(words);
  args.flag = flags + 1;
  for (const uint32_t turn : {6u, 7u}) {
    for (uint32_t t = 0; t < kTurns; ++t) {
      StepHeader header;
      header.step = 1000 + t;
      std::vector<uint8_t> block(kHeader + sizeof header, 0xff);
      std::memcpy(block.data() + kHeader, &header, sizeof header);
      args.blocks[t] = harness().put(block);
    }
    args.turn = harness().put(std::vector<uint32_t>{turn});
    table().publish_layer(stream(), args);
    const auto got = harness().get(flags, 3);
    EXPECT_EQ(got[0], 0u);
    EXPECT_EQ(got[1], layer_flag(1000 + turn % kTurns));
    EXPECT_EQ(got[2], 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PublishLayerTest, testing::ValuesIn(all_harnesses()),
                         choice_name);

}  // namespace
}  // namespace refrain::kernels
