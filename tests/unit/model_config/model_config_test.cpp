// R-14 for config.json and generation_config.json.

#include "runtime/config/model/model_config.h"

#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "tests/temporary_directory.h"

namespace refrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json llama() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152,
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05, "rope_theta": 100000.0, "rope_scaling": null, "hidden_act": "silu",
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2
  })");
}

ModelConfig parse(const json& config) {
  const auto parsed = parse_model_config(config.dump(), "config.json");
  if (!parsed) throw std::runtime_error(parsed.error().message);
  return *parsed;
}

TEST(ModelConfigFile, ErrorsDoNotRepeatBytesThatAreNoUtf8) {
  const auto broken = parse_model_config("{\"hidden_act\": \"\xff\"}", "config.json");
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("config.json: not valid JSON"), std::string::npos);
  EXPECT_EQ(broken.error().message.find('\xff'), std::string::npos);
}

TEST(ModelConfig, ReadsLlama) {
  const ModelConfig config = parse(llama());
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.num_layers, 30);
  EXPECT_EQ(config.num_heads, 9);
  EXPECT_EQ(config.num_kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.rope_theta, 100000.0);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
}

TEST(ModelConfig, AModelWithoutAHeadIsItsArchitecturesOwn) {
  EXPECT_TRUE(parse(llama()).has_head);
  json config = llama();
  config["architectures"] = {"Qwen3Model"};
  EXPECT_EQ(parse(config).architecture, "Qwen3ForCausalLM");
  EXPECT_FALSE(parse(config).has_head);
  EXPECT_TRUE(parse(config).qk_norm);
}

TEST(ModelConfig, EncodersAreRefusedByName) {
  for (const char* name : {"BertModel", "XLMRobertaModel", "T5EncoderModel"}) {
    json config = llama();
    config["architectures"] = {name};
    const auto parsed = parse_model_config(config.dump(), "config.json");
    ASSERT_FALSE(parsed) << name;
    EXPECT_EQ(parsed.error().field, "architectures");
    EXPECT_NE(parsed.error().message.find(name), std::string::npos);
    EXPECT_NE(parsed.error().message.find("encoders"), std::string::npos);
  }
}

TEST(ModelConfig, ReadsMatryoshkaDimensions) {
  json config = llama();
  EXPECT_FALSE(parse(config).is_matryoshka);
  config["matryoshka_dimensions"] = {64, 128};
  EXPECT_TRUE(parse(config).is_matryoshka);
  EXPECT_EQ(parse(config).matryoshka_dimensions, (std::vector<int32_t>{64, 128}));
}

TEST(ModelConfig, KvHeadsDefaultToHeads) {
  json config = llama();
  config.erase("num_key_value_heads");
  EXPECT_EQ(parse(config).num_kv_heads, 9);
}

TEST(ModelConfig, Qwen2AlwaysHasQkvBiasesAndNoOutputBias) {
  json config = llama();
  config["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_TRUE(parse(config).attention_bias);
  EXPECT_FALSE(parse(config).attention_out_bias);
}

TEST(ModelConfig, Qwen3HasQkNormAndItsOwnHeadDim) {
  json config = llama();
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["head_dim"] = 128;
  EXPECT_TRUE(parse(config).qk_norm);
  EXPECT_EQ(parse(config).head_dim, 128);
}

TEST(ModelConfig, RopeScalingInBothStylesIsTheSame) {
  json old_style = llama();
  old_style["rope_theta"] = 500000.0;
  old_style["rope_scaling"] = {{"rope_type", "llama3"},
                               {"factor", 32.0},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0},
                               {"original_max_position_embeddings", 8192}};
  json new_style = llama();
  new_style.erase("rope_theta");
  new_style.erase("rope_scaling");
  new_style["rope_parameters"] = old_style["rope_scaling"];
  new_style["rope_parameters"]["rope_theta"] = 500000.0;
  for (const json& config : {old_style, new_style}) {
    const ModelConfig parsed = parse(config);
    EXPECT_EQ(parsed.rope_theta, 500000.0);
    EXPECT_EQ(parsed.rope_scaling.type, "llama3");
    EXPECT_EQ(parsed.rope_scaling.factor, 32.0);
    EXPECT_EQ(parsed.rope_scaling.original_max_position_embeddings, 8192);
  }
}

TEST(ModelConfig, EosMayBeAList) {
  json config = llama();
  config["eos_token_id"] = {2, 7};
  EXPECT_EQ(parse(config).eos_token_ids, (std::vector<int32_t>{2, 7}));
}

TEST(ModelConfig, DtypeMayStandUnderEitherName) {
  json config = llama();
  config.erase("torch_dtype");
  config["dtype"] = "float32";
  EXPECT_EQ(parse(config).torch_dtype, "float32");
}

// A field, a bad value for it (null: taken out), and a word the error must have besides the names
// of file and field.
struct BadField {
  const char* field;
  json value;
  const char* says;
  const char* named = nullptr;  // the field that the error names, if another
};

class BadConfig : public testing::TestWithParam<BadField> {};

TEST_P(BadConfig, R14_NamesFileAndFieldAndSaysWhatIsNeeded) {
  const BadField& bad = GetParam();
  json config = llama();
  if (bad.value.is_null())
    config.erase(bad.field);
  else
    config[bad.field] = bad.value;
  const auto parsed = parse_model_config(config.dump(), "dir/config.json");
  ASSERT_FALSE(parsed.has_value());
  const std::string named = bad.named != nullptr ? bad.named : bad.field;
  EXPECT_EQ(parsed.error().field, named);
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  for (const std::string& part : {std::string("dir/config.json"), named, std::string(bad.says)})
    EXPECT_NE(parsed.error().message.find(part), std::string::npos) << parsed.error().message;
}

json llama3_rope(const char* field, const json& value) {
  json rope = {{"rope_type", "llama3"},
               {"factor", 8.0},
               {"low_freq_factor", 1.0},
               {"high_freq_factor", 4.0},
               {"original_max_position_embeddings", 64}};
  if (value.is_null())
    rope.erase(field);
  else
    rope[field] = value;
  return rope;
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadConfig,
    testing::Values(
        BadField{"architectures", nullptr, "LlamaForCausalLM"},
        BadField{"architectures", json::array(), "one architecture"},
        BadField{"architectures", "LlamaForCausalLM", "a list of strings"},
        BadField{"architectures", json::array({"MambaForCausalLM"}), "Qwen3ForCausalLM"},
        BadField{"vocab_size", nullptr, "missing"}, BadField{"vocab_size", 0, "from 1"},
        BadField{"vocab_size", -3, "-3"}, BadField{"vocab_size", 1e300, "whole number"},
        BadField{"vocab_size", uint64_t{1} << 63, "9223372036854775808"},
        BadField{"vocab_size", "many", "whole number"}, BadField{"vocab_size", true, "true"},
        BadField{"vocab_size", json::object(), "an object"},
        BadField{"hidden_size", nullptr, "missing"},
        BadField{"hidden_size", int64_t{1} << 40, "whole number"},
        BadField{"hidden_size", 575, "even"}, BadField{"hidden_size", 576.5, "576.5"},
        BadField{"intermediate_size", 0, "from 2"}, BadField{"intermediate_size", 1535, "even"},
        BadField{"num_hidden_layers", 0, "from 1"},
        BadField{"num_hidden_layers", 1000000, "from 1"},
        BadField{"num_attention_heads", nullptr, "missing"},
        BadField{"num_attention_heads", 7, "divide", "num_key_value_heads"},
        BadField{"num_key_value_heads", 2, "divide"}, BadField{"num_key_value_heads", -1, "from 1"},
        BadField{"head_dim", 0, "from 2"}, BadField{"head_dim", 63, "even"},
        BadField{"head_dim", 4096, "1024"}, BadField{"max_position_embeddings", 0, "from 1"},
        BadField{"rms_norm_eps", nullptr, "missing"}, BadField{"rms_norm_eps", 0, "a number"},
        BadField{"rms_norm_eps", -1e-5, "a number"}, BadField{"rms_norm_eps", "x", "a number"},
        BadField{"rope_theta", 0, "a number"}, BadField{"rope_theta", 1e30, "a number"},
        BadField{"rope_scaling", "yarn", "an object"},
        BadField{"rope_scaling", json{{"rope_type", "yarn"}}, "llama3", "rope_scaling.rope_type"},
        BadField{"rope_scaling", json{{"type", "dynamic"}}, "linear", "rope_scaling.type"},
        BadField{"rope_scaling", json{{"rope_type", 3}}, "a string", "rope_scaling.rope_type"},
        BadField{"rope_scaling", llama3_rope("factor", nullptr), "missing", "rope_scaling.factor"},
        BadField{"rope_scaling", llama3_rope("factor", 0.5), "from 1", "rope_scaling.factor"},
        BadField{"rope_scaling", llama3_rope("high_freq_factor", 1.0), "above",
                 "rope_scaling.high_freq_factor"},
        BadField{"rope_scaling", llama3_rope("original_max_position_embeddings", 0), "from 1",
                 "rope_scaling.original_max_position_embeddings"},
        BadField{"partial_rotary_factor", 0.3, "even"},
        BadField{"partial_rotary_factor", 2, "a number"}, BadField{"hidden_act", "gelu", "silu"},
        BadField{"use_sliding_window", true, "no sliding windows"},
        BadField{"layer_types", json::array({"sliding_attention"}), "use_sliding_window"},
        BadField{"layer_types", json::array({"linear_attention"}), "full_attention"},
        BadField{"quantization_config", json{{"quant_method", "gptq"}}, "bfloat16"},
        BadField{"tie_word_embeddings", "yes", "true or false"},
        BadField{"attention_bias", 1, "true or false"}, BadField{"torch_dtype", "int8", "float32"},
        BadField{"dtype", "float64", "float32"}, BadField{"eos_token_id", -1, "from 0"},
        BadField{"eos_token_id", 49152, "49151"},
        BadField{"eos_token_id", json::array({2, "x"}), "a list"},
        BadField{"bos_token_id", 1.5, "whole number"}));

TEST(ModelConfig, R14_NotJsonIsAnErrorWithThePlace) {
  for (const char* text :
       {"", "{", "[]", "{\"vocab_size\": NaN}", "{\"vocab_size\": 1,}", "\xff"}) {
    const auto parsed = parse_model_config(text, "dir/config.json");
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_NE(parsed.error().message.find("dir/config.json"), std::string::npos);
  }
}

TEST(ModelConfig, R14_DeepNestingIsHarmless) {
  const std::string deep(1 << 20, '[');
  EXPECT_FALSE(parse_model_config("{\"a\":" + deep, "config.json").has_value());
}

class ModelDirectory : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { directory_.write(name, text); }

 private:
  tests::TemporaryDirectory directory_;

 protected:
  const fs::path& dir_ = directory_.path();
};

TEST_F(ModelDirectory, GenerationConfigAddsEosIds) {
  write("config.json", llama().dump());
  write("generation_config.json",
        R"({"eos_token_id": [2, 5], "temperature": "sampling is read elsewhere"})");
  const auto config = load_model_config(dir_);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{2, 5}));
}

TEST_F(ModelDirectory, R14_ABadGenerationConfigIsAnErrorThatNamesIt) {
  write("config.json", llama().dump());
  write("generation_config.json", R"({"eos_token_id": "two"})");
  const auto config = load_model_config(dir_);
  ASSERT_FALSE(config.has_value());
  EXPECT_NE(config.error().message.find("generation_config.json"), std::string::npos);
  EXPECT_EQ(config.error().field, "eos_token_id");
}

TEST_F(ModelDirectory, R14_AMissingConfigOrDirectoryIsAnErrorThatNamesIt) {
  const auto config = load_model_config(dir_);
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
  EXPECT_NE(config.error().message.find("config.json"), std::string::npos);
  const auto nowhere = load_model_config(dir_ / "nowhere");
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_EQ(nowhere.error().field, "model");
}

TEST_F(ModelDirectory, DigestChangesWithConfigAndWeightFiles) {
  write("config.json", llama().dump());
  write("model.safetensors", "1234");
  const std::string before = *model_digest(dir_);
  EXPECT_EQ(before.size(), 32U);
  EXPECT_EQ(*model_digest(dir_), before);
  write("notes.txt", "does not count");
  EXPECT_EQ(*model_digest(dir_), before);
  write("model.safetensors", "12345");
  const std::string other_weights = *model_digest(dir_);
  EXPECT_NE(other_weights, before);
  json config = llama();
  config["rope_theta"] = 10000.0;
  write("config.json", config.dump());
  EXPECT_NE(*model_digest(dir_), other_weights);
}

// Two fine-tunes of one shape: every byte of the header is the same (R-4).
TEST_F(ModelDirectory, R4_DigestChangesWithTheWeightsOfAnyTensor) {
  write("config.json", llama().dump());
  constexpr size_t kLarge = 1 << 20, kSmall = 100;
  const std::string header =
      fmt::format(R"({{"__metadata__":{{"format":"pt"}},"a":{{"dtype":"U8","shape":[{0}],)"
                  R"("data_offsets":[0,{0}]}},"b":{{"dtype":"U8","shape":[{1}],)"
                  R"("data_offsets":[{0},{2}]}}}})",
                  kLarge, kSmall, kLarge + kSmall);
  const uint64_t length = header.size();
  const std::string head(reinterpret_cast<const char*>(&length), sizeof length);
  std::string data(kLarge + kSmall, 'w');
  const auto digest = [&] {
    write("model.safetensors", head + header + data);
    return *model_digest(dir_);
  };
  std::set<std::string> seen = {digest()};
  // A fine-tune moves every weight of the tensors that it trains, and may train but one.
  for (const auto& [begin, end] :
       {std::pair<size_t, size_t>(0, kLarge), {kLarge, kLarge + kSmall}}) {
    std::fill(data.begin() + static_cast<ptrdiff_t>(begin),
              data.begin() + static_cast<ptrdiff_t>(end), 'v');
    EXPECT_TRUE(seen.insert(digest()).second);
  }
  // The first and the last byte of a tensor are in its sample, and a small one is read whole.
  for (const size_t at : {size_t{0}, kLarge - 1, kLarge, kLarge + 50, kLarge + kSmall - 1}) {
    data[at] = 'u';
    EXPECT_TRUE(seen.insert(digest()).second) << at;
  }
}

TEST_F(ModelDirectory, R14_ABrokenWeightFileHasADigestToo) {
  write("config.json", llama().dump());
  for (const std::string& broken :
       {std::string(), std::string(8, '\xff'), std::string("\2\0\0\0\0\0\0\0[]", 10),
        std::string("\x2f\0\0\0\0\0\0\0{\"a\":{\"data_offsets\":[0,18446744073709551615]}}   ",
                    55)}) {
    write("model.safetensors", broken);
    EXPECT_TRUE(model_digest(dir_).has_value());
  }
}

TEST(ModelConfig, ReadsTheFixtures) {
  for (const char* name : {"llama-bias-f32", "llama-sharded", "llama3-rope", "qwen2", "qwen3"}) {
    const auto config = load_model_config(fs::path("tests/fixtures/models") / name);
    EXPECT_TRUE(config.has_value()) << config.error().message;
  }
}

}  // namespace
}  // namespace refrain
