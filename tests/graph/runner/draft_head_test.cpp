// CG-40 with EAGLE and EAGLE-3 heads: drafts are those of a reference, in every mode, after chunks
// and drafts that were wrong; rows give the tokens of a runner that decodes one by one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ipc/protocol/manifest_mode.h"
#include "tests/graph/head_reference.h"
#include "tests/graph/runner/session.h"

namespace refrain::tests::draft_head {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<TokenId>;

constexpr int32_t kDrafts = 3;
#ifdef REFRAIN_TSAN  // threads do the same in all of them
constexpr const char* kModes[] = {"FULL_AND_PIECEWISE"};
#else
constexpr const char* kModes[] = {"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY",
                                  "FULL_AND_PIECEWISE"};
#endif

const TinyModel& target() {
  static const TinyModel tiny({.layers = 6});
  return tiny;
}

std::vector<int> some_tokens() {
  std::vector<int> tokens;
  for (int i = 0; i < 32; ++i) tokens.push_back(3 + 7 * i);
  return tokens;
}

TinyHeadShape shape_of(ipc::DraftHead kind) {
  TinyHeadShape shape{.kind = kind};
  if (kind == ipc::DraftHead::kEagle3) shape.targets = some_tokens();
  return shape;
}

const TinyHead& eagle() {
  static const TinyHead head(shape_of(ipc::DraftHead::kEagle));
  return head;
}
const TinyHead& eagle3() {
  static const TinyHead head(shape_of(ipc::DraftHead::kEagle3));
  return head;
}
// Further traits of published heads: two layers and a bias of fc; layers by name, all tokens.
const TinyHead& deep_eagle() {
  static const TinyHead head({.layers = 2, .heads = 2, .kv_heads = 2, .fc_bias = true});
  return head;
}
const TinyHead& full_eagle3() {
  static const TinyHead head({.kind = ipc::DraftHead::kEagle3, .reads = {5, 0, 3}, .seed = 12});
  return head;
}

SessionOptions options_of(const char* mode, const TinyHead* head) {
  SessionOptions options;
  options.config.cudagraph_mode = mode;
  if (head == nullptr) return options;
  options.config.num_speculative_tokens = kDrafts;
  options.config.draft_head = head->shape().kind;
  options.draft = head->directory();
  return options;
}

// The drafts that the last step left in a slot.
Tokens drafts_of(Session& session, SlotId slot) {
  const worker::HostedProgram& hosted = session.runner().hosted();
  const auto of_slot = [&](const std::string& name) {
    const auto found = std::ranges::find(hosted.program.values, name, &worker::Value::name);
    const auto id = static_cast<worker::ValueId>(found - hosted.program.values.begin());
    const auto* memory = static_cast<const int32_t*>(hosted.context.address(id));
    const auto cols = static_cast<size_t>(found->cols);
    return session.read(memory + static_cast<size_t>(slot) * cols, cols);
  };
  Tokens drafts = of_slot("slots.drafts");
  drafts.back() = of_slot("slots.draft_token").front();
  return drafts;
}

std::vector<Row> prompts() { return {{0, prompt(6, 0), 0}, {1, prompt(9, 1), 0}}; }

Row verification(SlotId slot, size_t known) {
  return {slot, Tokens(1 + kDrafts, kTokenOnDevice), static_cast<int32_t>(known) + 2 * kDrafts,
          true};
}

void add(const ipc::StepResult& result, size_t row, Tokens& tokens) {
  tokens.insert(tokens.end(), result.tokens.begin() + result.token_offsets[row],
                result.tokens.begin() + result.token_offsets[row + 1]);
}

class Heads : public ::testing::TestWithParam<const TinyHead& (*)()> {
 protected:
  const TinyHead& head() const { return GetParam()(); }
};

TEST_P(Heads, CG40DraftsAreThoseOfTheReferenceInEveryMode) {
  const HeadReference reference(target().directory(), head());
  for (const char* mode : kModes) {
    const auto session = started(options_of(mode, &head()), target());
    Tokens tokens[2] = {prompt(6, 0), prompt(9, 1)};
    ipc::StepResult result = session->run(prompts());
    for (int step = 0; step < 5; ++step) {
      for (SlotId slot : {0, 1}) {
        add(result, static_cast<size_t>(slot), tokens[slot]);
        EXPECT_EQ(drafts_of(*session, slot), reference.drafts(tokens[slot], kDrafts))
            << mode << " step " << step << " slot " << slot;
      }
      result = session->run({verification(0, tokens[0].size()), verification(1, tokens[1].size())});
    }
  }
}

TEST_P(Heads, CG35KeysLeaveWhatTheHeadReadsOfEveryToken) {
  using enum ipc::CaptureHiddenMode;
  for (const char* mode : kModes) {
    const auto session = started(options_of(mode, &head()), target());
    for (const ipc::ManifestEntry& entry : session->ready.manifest)
      EXPECT_EQ(entry.hidden, entry.mode.starts_with(ipc::kDraftMode) ? kNull : kFull)
          << entry.mode;
    EXPECT_EQ(session->run(prompts()).key_hidden, kFull) << mode;
  }
  EXPECT_EQ(started(options_of("FULL", nullptr), target())->run(prompts()).key_hidden, kNull);
}

// The last token of a chunk is kept with the first of the next one.
TEST_P(Heads, CG40DraftsAreThoseOfTheReferenceAfterChunks) {
  const HeadReference reference(target().directory(), head());
  const auto session = started(options_of("FULL_AND_PIECEWISE", &head()), target());
  Tokens tokens = prompt(20, 5);
  for (const int end : {7, 13}) {
    const int begin = end == 7 ? 0 : 7;
    ipc::Step step =
        session->make_step({{0, {tokens.begin() + begin, tokens.begin() + end}, begin}});
    step.runs[0].rows.flags[0] = ipc::kContinues;
    step.runs[0].rows.next_tokens = {tokens[static_cast<size_t>(end)]};
    session->runner().submit(step);
    session->runner().wait();
  }
  add(session->run({{0, {tokens.begin() + 13, tokens.end()}, 13}}), 0, tokens);
  EXPECT_EQ(drafts_of(*session, 0), reference.drafts(tokens, kDrafts));
  add(session->run({verification(0, tokens.size())}), 0, tokens);
  EXPECT_EQ(drafts_of(*session, 0), reference.drafts(tokens, kDrafts));
}

TEST_P(Heads, CG40NoDraftChangesAToken) {
  for (const float temperature : {0.0f, 1.0f}) {
    const auto plain = started(options_of("NONE", nullptr), target());
    plain->setup().temperature = temperature;
    Tokens expected[2];
    ipc::StepResult result = plain->run(prompts());
    for (int32_t i = 0; expected[0].size() < 14; ++i) {
      for (SlotId slot : {0, 1}) add(result, static_cast<size_t>(slot), expected[slot]);
      result = plain->run({{0, {kTokenOnDevice}, 6 + i}, {1, {kTokenOnDevice}, 9 + i}});
    }
    for (const char* mode : kModes) {
      SessionOptions options = options_of(mode, &head());
      options.poison_padding = true;  // CG-27
      const auto session = started(options, target());
      session->setup().temperature = temperature;
      Tokens tokens[2];
      result = session->run(prompts());
      for (int step = 0; step < 5; ++step) {
        for (SlotId slot : {0, 1}) add(result, static_cast<size_t>(slot), tokens[slot]);
        result =
            session->run({verification(0, tokens[0].size()), verification(1, tokens[1].size())});
        EXPECT_THAT(result.drafted, ::testing::Each(kDrafts));
      }
      for (SlotId slot : {0, 1}) {
        const size_t count = std::min(tokens[slot].size(), expected[slot].size());
        EXPECT_GE(count, 5u);
        EXPECT_TRUE(std::equal(tokens[slot].begin(),
                               tokens[slot].begin() + static_cast<long>(count),
                               expected[slot].begin()))
            << mode << " temperature " << temperature << " slot " << slot;
      }
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<const TinyHead& (*)()>& info) {
  constexpr const char* kNames[] = {"eagle", "eagle3", "deep_eagle", "full_eagle3"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Kinds, Heads,
                         ::testing::Values(&eagle, &eagle3, &deep_eagle, &full_eagle3), name_of);

void expect_refused(const TinyHeadShape& shape, const std::string& what) {
  const TinyHead head(shape);
  try {
    Session session(target().directory(), options_of("NONE", &head));
    session.start();
    FAIL() << "it was taken";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), HasSubstr(what));
  }
}

// errors name file and tensor, or what of config.json is wrong.
TEST(DraftHead, R14ABrokenOneIsRefused) {
  const auto eagle = shape_of(ipc::DraftHead::kEagle), eagle3 = shape_of(ipc::DraftHead::kEagle3);
  TinyHeadShape shape = eagle;
  shape.vocab = 300;
  expect_refused(shape, "a vocabulary of 300 tokens, the model one of 259");
  shape = eagle;
  shape.hidden = 32;
  expect_refused(shape, "has hidden_size 32, the model 64");
  shape = eagle3;
  shape.reads = {0, 6, 1};
  expect_refused(shape, "reads what goes into layer 6, of a model of 6 layers");
  shape = eagle3;
  shape.without = "midlayer.hidden_norm.weight";
  expect_refused(shape, "model.safetensors: tensor \"midlayer.hidden_norm.weight\" is missing");
  shape = eagle3;
  shape.targets[5] = 259;
  expect_refused(shape, "tensor \"d2t\" has 254 at 5, which is none of 259 tokens");
  shape = eagle;
  shape.without = "fc.weight";
  expect_refused(shape, "tensor \"fc.weight\" is missing");
}

TEST(DraftHead, R14AHeadOfTheOtherKindIsRefused) {
  SessionOptions options = options_of("NONE", &eagle());
  options.config.draft_head = ipc::DraftHead::kEagle3;
  try {
    Session session(target().directory(), options);
    session.start();
    FAIL() << "it was taken";
  } catch (const FatalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor \"fc.weight\" has shape [64, 128]"));
  }
}

// Embeddings and, of EAGLE, the table of the logits are the model's: a head has no copy.
TEST(DraftHead, SharesTheModelsTables) {
  const auto bytes = [](const TinyHead* head) {
    SessionOptions options = options_of("NONE", head);
    Session session(target().directory(), options);
    return session.runner().load()->weight_bytes;
  };
  const int64_t table = int64_t{259} * 64 * 4, layer = int64_t{64} * (4 * 64 + 3 * 96) * 4;
  EXPECT_LT(bytes(&eagle()) - bytes(nullptr), layer + 2 * 64 * 64 * 4 + table);
}

}  // namespace
}  // namespace refrain::tests::draft_head
