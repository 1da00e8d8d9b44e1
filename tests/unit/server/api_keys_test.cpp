#include "runtime/server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "tests/temporary_directory.h"

namespace refrain {
namespace {

using testing::HasSubstr;
using testing::Not;

class KeyFile {
 public:
  explicit KeyFile(const std::string& text) : path_(directory_.write("keys.json", text)) {}
  Result<ApiKeys> load(std::vector<std::string> more = {}) const {
    EngineConfig config;
    config.api_key_file = path_;
    config.api_keys = std::move(more);
    return ApiKeys::load(config);
  }

 private:
  tests::TemporaryDirectory directory_;
  std::string path_;
};

ApiKeys keys_of(std::vector<std::string> secrets) {
  EngineConfig config;
  config.api_keys = std::move(secrets);
  return *ApiKeys::load(config);
}

TEST(ApiKeys, WithoutKeysEverybodyIsTheNamelessOne) {
  const ApiKeys keys = keys_of({});
  ASSERT_TRUE(keys.find(""));
  EXPECT_EQ(keys.find("Bearer x"), keys.find(""));
  EXPECT_EQ(keys.find("")->cache_salt(), "");
}

TEST(ApiKeys, FindsOnlyTheWholeKeyBehindBearer_R16) {
  const ApiKeys keys = keys_of({"alpha", "beta"});
  ASSERT_TRUE(keys.find("Bearer alpha"));
  ASSERT_TRUE(keys.find("Bearer beta"));
  EXPECT_NE(keys.find("Bearer alpha")->cache_salt(), keys.find("Bearer beta")->cache_salt());
  for (const char* wrong : {"", "Bearer", "Bearer ", "alpha", "bearer alpha", "Bearer alph",
                            "Bearer alphaa", "Bearer  alpha", "Bearer alpha ", "Basic alpha"}) {
    EXPECT_FALSE(keys.find(wrong)) << wrong;
  }
}

TEST(ApiKeys, AnOperatorsKeyIsNoClients) {
  EngineConfig config;
  EXPECT_FALSE(ApiKeys::load(config)->is_operator("Bearer "));
  config.api_keys = {"alpha"};
  config.control_key = "omega";
  const ApiKeys keys = *ApiKeys::load(config);
  EXPECT_TRUE(keys.is_operator("Bearer omega"));
  EXPECT_FALSE(keys.is_operator("Bearer alpha"));
  EXPECT_FALSE(keys.is_operator("omega"));
  EXPECT_FALSE(keys.find("Bearer omega"));
  for (const char* wrong : {"alpha", "with space"}) {
    config.control_key = wrong;
    const auto refused = ApiKeys::load(config);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().field, "--control-key");
  }
}

TEST(ApiKeys, AFileGivesNamesAndLimits_R16) {
  const KeyFile file(R"({"keys": [{"key": "one", "name": "alice", "max_concurrency": 2},
                                  {"key": "two"}]})");
  const auto keys = file.load({"three"});
  ASSERT_TRUE(keys) << keys.error().message;
  EXPECT_EQ(keys->find("Bearer one")->name(), "alice");
  std::set<std::string> salts;
  for (const char* key : {"one", "two", "three"}) {
    salts.insert(keys->find(std::string("Bearer ") + key)->cache_salt());
  }
  EXPECT_EQ(salts.size(), 3u);
}

TEST(ApiKeys, MistakesInAFileNameTheEntryAndNeverTheKey_R16) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not valid JSON"},
      {R"({"keys": [{"key": "s3cret"})", "not valid JSON"},
      {"[]", "\"keys\""},
      {R"({"keys": []})", "at least one"},
      {R"({"keys": ["s3cret"]})", "keys[0] is no object"},
      {R"({"keys": [{"name": "a"}]})", "keys[0]"},
      {R"({"keys": [{"key": "s3cret s3cret"}]})", "without spaces"},
      {R"({"keys": [{"key": "s3cret"}, {"key": "s3cret"}]})", "keys[1]: the key is there twice"},
      {R"({"keys": [{"key": "s3cret", "name": "a"}, {"key": "x", "name": "a"}]})", "'a' is there"},
      {R"({"keys": [{"key": "s3cret", "s3cret": 1}]})", "unknown field"},
      {R"({"keys": [{"key": "s3cret", "max_concurrency": 0}]})", "max_concurrency"},
      {R"({"keys": [{"key": "s3cret", "max_concurrency": -1}]})", "max_concurrency"},
      {R"({"keys": [{"key": "s3cret", "max_concurrency": 1.5}]})", "max_concurrency"},
      {R"({"keys": [{"key": "s3cret", "max_concurrency": "s3cret"}]})", "max_concurrency"},
      {R"({"keys": [{"key": "s3cret", "name": 5}]})", "name"},
  };
  for (const auto& [text, part] : cases) {
    const auto keys = KeyFile(text).load();
    ASSERT_FALSE(keys) << text;
    EXPECT_THAT(keys.error().message, HasSubstr(part)) << text;
    EXPECT_THAT(keys.error().message, Not(HasSubstr("s3cret"))) << text;
  }
  EngineConfig config;
  config.api_key_file = "/no/such/file";
  EXPECT_THAT(ApiKeys::load(config).error().message, HasSubstr("/no/such/file"));
}

TEST(KeyLease, CountsUpToTheLimitAndGivesBack_R16) {
  const auto key = std::make_shared<ApiKey>("k", 3);
  std::optional<KeyLease> first(key);
  ASSERT_TRUE(first->take(1));
  ASSERT_TRUE(first->take(2));  // two in all
  KeyLease second(key), third(key);
  ASSERT_TRUE(second.take(1));
  EXPECT_EQ(third.take(1).error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(key->in_use(), 3);
  KeyLease moved(std::move(*first));
  first.reset();
  EXPECT_EQ(key->in_use(), 3) << "the moved one holds them";
  moved.release();
  moved.release();
  EXPECT_EQ(key->in_use(), 1);
  EXPECT_TRUE(third.take(2));
  EXPECT_EQ(KeyLease(key).take(4).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(key->in_use(), 3);
}

}  // namespace
}  // namespace refrain
