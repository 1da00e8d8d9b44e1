// The prompts of tests/golden/smollm2-135m.json: plain text and conversations come to the ids that
// transformers gave for SmolLM2's own tokenizer and template.
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/base/json.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/detokenizer.h"
#include "runtime/text/tokenizer.h"
#include "tests/oracle/fixtures.h"

namespace refrain::text {
namespace {

using nlohmann::ordered_json;

TEST(GoldenPrompts, ComeToTheirIdsAndBack) {
  ASSERT_FALSE(fixtures_dir().empty()) << how_to_make_fixtures();
  const auto dir = fixtures_dir() / "tokenizers/smollm2";
  const auto tokenizer = Tokenizer::load(dir);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto chat = ChatTemplate::load(dir);
  ASSERT_TRUE(chat) << chat.error().message;
  std::ifstream file("tests/golden/smollm2-135m.json");
  ASSERT_TRUE(file) << "run from the repository's root";
  const auto golden = ordered_json::parse(file);
  ASSERT_EQ(golden.size(), 12U);
  for (const auto& entry : golden) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    std::string prompt = entry.value("prompt", "");
    if (entry.contains("messages")) {
      const auto text = chat->render(
          ordered_json{{"messages", entry["messages"]}, {"add_generation_prompt", true}});
      ASSERT_TRUE(text) << text.error().message;
      prompt = *text;
    }
    const auto ids = tokenizer->encode(prompt, false);
    ASSERT_TRUE(ids);
    EXPECT_EQ(*ids, entry["prompt_ids"].get<std::vector<TokenId>>());
    IncrementalDetokenizer detokenizer(*tokenizer);
    std::string text;
    for (const auto& id : entry["output_ids"]) text += detokenizer.push(id.get<TokenId>());
    EXPECT_EQ(text + detokenizer.flush(), entry["output_text"].get<std::string>());
  }
}

}  // namespace
}  // namespace refrain::text
