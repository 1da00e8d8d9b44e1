// Loading: what lands on the device is what the checkpoint holds, for every layout and type; what
// is wrong with a checkpoint is an error that names it (R-14).

#include <map>

#include "tests/unit/weights/checkpoint_files.h"
#include "tests/unit/weights/row_major_device.h"
#include "worker/models/models.h"
#include "worker/program/passes/passes.h"
#include "worker/weights/weight_source.h"
#include "worker/weights/weights.h"

namespace refrain::worker::test {
namespace {

ModelConfig tiny_config() {
  ModelConfig config;
  config.architecture = "Qwen2ForCausalLM";
  config.vocab_size = 100;
  config.hidden_size = 24;
  config.intermediate_size = 72;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 3;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  config.attention_bias = true;
  return config;
}

Program plain_program(const ModelConfig& config, DType dtype = DType::kFloat32) {
  return *build_model(config,
                      {.activation_dtype = dtype, .kv_dtype = dtype, .weight_dtype = dtype});
}

std::string parent_error(const Result<Weights>& loaded) {
  return loaded ? "" : loaded.error().message;
}

class Load : public CheckpointTest {
 protected:
  // A float32 checkpoint with the numbers of dummy_weights(seed), the tensors spread over files.
  void write_checkpoint(const Program& plain, uint64_t seed, int files) {
    const auto source = dummy_weights(seed);
    std::vector<TensorWriter> writers(static_cast<size_t>(files));
    nlohmann::json map = nlohmann::json::object();
    size_t next = 0;
    for (const Value& value : plain.values)
      for (const WeightPart& part : value.parts) {
        std::vector<float> numbers(static_cast<size_t>(part.tensor_rows * part.tensor_cols));
        ASSERT_TRUE(source->read(part, 0, part.tensor_rows, DType::kFloat32, numbers.data()));
        std::vector<int64_t> shape = {part.tensor_rows, part.tensor_cols};
        if (value.use == WeightUse::kVector) shape.pop_back();
        const size_t file = next++ % writers.size();
        writers[file].add(part.tensor, "F32", shape, numbers);
        map[part.tensor] = shard_name(file);
      }
    if (files == 1) return write("model.safetensors", writers[0].file());
    for (size_t i = 0; i < writers.size(); ++i) write(shard_name(i), writers[i].file());
    write("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  }
  static std::string shard_name(size_t i) { return "shard-" + std::to_string(i) + ".safetensors"; }

  Result<Weights> load(const Program& program) {
    return load_weights(program, config_, dir_, device_, stream_, {});
  }
  Result<Weights> dummy(const Program& program, uint64_t seed) {
    return make_dummy_weights(program, config_, seed, device_, stream_, {});
  }

  ModelConfig config_ = tiny_config();
  RowMajorDevice device_;
  EagerStream stream_;
};

void expect_equal(const Program& program, const Weights& a, const Weights& b) {
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (value.kind != ValueKind::kWeight) continue;
    const bool matrix = value.use == WeightUse::kMatrix;
    const auto bytes = static_cast<size_t>(value.rows.scale * value.cols) * size_of(value.dtype);
    const void* left = matrix ? a.by_value[i].matrix.data : a.by_value[i].vector;
    const void* right = matrix ? b.by_value[i].matrix.data : b.by_value[i].vector;
    ASSERT_NE(left, nullptr);
    EXPECT_EQ(std::memcmp(left, right, bytes), 0) << value.name;
    if (matrix) {
      EXPECT_EQ(a.by_value[i].matrix.n, value.rows.scale);
      EXPECT_EQ(a.by_value[i].matrix.k, value.cols);
    }
  }
}

TEST_F(Load, EveryRankHoldsItsPartOfTheCheckpoint) {
  const Program plain = plain_program(config_);
  write_checkpoint(plain, 5, 1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (int size = 1; size <= 3; ++size)
      for (int rank = 0; rank < size; ++rank) {
        const Program program = *shard(fuse(plain_program(config_, dtype)), rank, size);
        const auto loaded = load(program), expected = dummy(program, 5);
        ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
        expect_equal(program, *loaded, *expected);
      }
}

TEST_F(Load, ShardedCheckpointsAreTheSame) {
  const Program plain = plain_program(config_);
  write_checkpoint(plain, 5, 4);
  const auto loaded = load(plain);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  expect_equal(plain, *loaded, *dummy(plain, 5));
}

// Rows of a fused and sharded value, put back by tensor, row and column.
TEST_F(Load, DummyWeightsAreOneModelForEveryLayout) {
  using Element = std::pair<std::string, std::pair<int64_t, int64_t>>;
  std::map<Element, float> seen;
  for (int size = 1; size <= 3; ++size)
    for (int rank = 0; rank < size; ++rank) {
      const Program program = *shard(fuse(plain_program(config_)), rank, size);
      const Weights weights = *dummy(program, 9);
      for (size_t i = 0; i < program.values.size(); ++i) {
        const auto* data = program.values[i].use == WeightUse::kMatrix
                               ? static_cast<const float*>(weights.by_value[i].matrix.data)
                               : weights.by_value[i].vector;
        for (const WeightPart& part : program.values[i].parts) {
          for (int64_t r = part.row_begin; r < part.row_end; ++r)
            for (int64_t c = part.col_begin; c < part.col_end; ++c) {
              const float value = *data++;
              const auto [at, fresh] = seen.try_emplace({part.tensor, {r, c}}, value);
              ASSERT_TRUE(fresh || at->second == value) << part.tensor;
            }
          for (int64_t pad = 0; pad < part.pad_rows * program.values[i].cols; ++pad)
            ASSERT_EQ(*data++, 0.0f);
        }
      }
    }
  EXPECT_GT(seen.size(), 10000U);
}

TEST_F(Load, DummyWeightsDifferBySeedAndTensor) {
  const Program plain = plain_program(config_);
  const Weights one = *dummy(plain, 1), other = *dummy(plain, 2);
  const auto first = [](const Weights& weights, size_t i) {
    return *static_cast<const float*>(weights.by_value[i].matrix.data);
  };
  std::map<float, int> firsts;
  for (size_t i = 0; i < plain.values.size(); ++i) {
    if (plain.values[i].kind != ValueKind::kWeight) continue;
    if (plain.values[i].use != WeightUse::kMatrix) continue;
    EXPECT_NE(first(one, i), first(other, i));
    EXPECT_EQ(firsts[first(one, i)]++, 0) << plain.values[i].name;
  }
}

TEST_F(Load, LargeMatricesTravelInChunksAndProgressIsTold) {
  config_.vocab_size = 30001;
  config_.hidden_size = 96;
  const Program plain = plain_program(config_);  // embeddings of 11.5 MB
  write_checkpoint(plain, 3, 1);
  std::vector<std::pair<size_t, size_t>> told;
  const auto loaded =
      load_weights(plain, config_, dir_, device_, stream_,
                   [&](size_t done, size_t total) { told.emplace_back(done, total); });
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  const int uploads = device_.uploads;
  expect_equal(plain, *loaded, *dummy(plain, 3));
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().first, told.back().second);
  for (size_t i = 1; i < told.size(); ++i) EXPECT_GT(told[i].first, told[i - 1].first);
  int matrices = 0;
  for (const Value& value : plain.values)
    matrices += value.kind == ValueKind::kWeight && value.use == WeightUse::kMatrix;
  EXPECT_EQ(uploads, matrices + 2);  // embeddings and head in two chunks each
}

TEST_F(Load, ReadsTheShardedFixture) {
  const std::filesystem::path dir = "tests/fixtures/models/llama-sharded";
  const ModelConfig config = *load_model_config(dir);
  const Program program = fuse(plain_program(config, DType::kBFloat16));
  const auto loaded = load_weights(program, config, dir, device_, stream_, {});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_GT(loaded->bytes, 0U);
}

TEST_F(Load, R14_AMissingTensorIsNamed) {
  Program plain = plain_program(config_);
  write_checkpoint(plain, 5, 1);
  config_.num_layers = 3;
  const std::string error = parent_error(load(plain_program(config_)));
  EXPECT_NE(error.find("model.layers.2.input_layernorm.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("missing"), std::string::npos) << error;
}

TEST_F(Load, R14_AWrongShapeIsNamedWithBothShapes) {
  write_checkpoint(plain_program(config_), 5, 1);
  config_.intermediate_size = 80;
  const std::string error = parent_error(load(plain_program(config_)));
  EXPECT_NE(error.find("[72, 24]"), std::string::npos) << error;
  EXPECT_NE(error.find("[80, 24]"), std::string::npos) << error;
  EXPECT_NE(error.find("gate_proj"), std::string::npos) << error;
}

TEST_F(Load, R14_ATypeThatIsNoFloatIsNamed) {
  TensorWriter writer;
  writer.add<int8_t>("model.embed_tokens.weight", "I8", {100, 24}, std::vector<int8_t>(2400));
  write("model.safetensors", writer.file());
  const std::string error = parent_error(load(plain_program(config_)));
  EXPECT_NE(error.find("model.embed_tokens.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("I8"), std::string::npos) << error;
}

TEST_F(Load, R14_AnEmptyDirectoryIsAnErrorThatSaysWhatIsMissing) {
  const std::string error = parent_error(load(plain_program(config_)));
  EXPECT_NE(error.find("model.safetensors"), std::string::npos) << error;
}

struct BadIndex {
  const char* name;
  const char* text;
  const char* says;
};

class BrokenIndex : public Load, public testing::WithParamInterface<BadIndex> {};

TEST_P(BrokenIndex, R14_IsAnErrorThatNamesTheFile) {
  TensorWriter a, b;
  a.add<float>("a", "F32", {1}, {1.0f});
  b.add<float>("b", "F32", {1}, {1.0f}).add<float>("a", "F32", {1}, {2.0f});
  write("a.safetensors", a.file());
  write("b.safetensors", b.file());
  write("cut.safetensors", a.file().substr(0, 20));
  write("model.safetensors.index.json", GetParam().text);
  const auto opened = open_checkpoint(dir_);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(exit_code(opened.error().code), kExitConfig);
  EXPECT_NE(opened.error().message.find(GetParam().says), std::string::npos)
      << opened.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, BrokenIndex,
    testing::Values(
        BadIndex{"NotJson", "{", "index.json: is not valid JSON"},
        BadIndex{"AList", "[]", "\"weight_map\" is missing"},
        BadIndex{"NoMap", R"({"metadata":{}})", "\"weight_map\" is missing"},
        BadIndex{"MapIsAList", R"({"weight_map":["a.safetensors"]})", "\"weight_map\" is missing"},
        BadIndex{"MapIsEmpty", R"({"weight_map":{}})", "\"weight_map\" is empty"},
        BadIndex{"NameIsANumber", R"({"weight_map":{"a":1}})", "same directory"},
        BadIndex{"NameIsEmpty", R"({"weight_map":{"a":""}})", "same directory"},
        BadIndex{"LeavesTheDirectory", R"({"weight_map":{"a":"../a.safetensors"}})",
                 "same directory"},
        BadIndex{"AbsolutePath", R"({"weight_map":{"a":"/etc/passwd"}})", "same directory"},
        BadIndex{"ParentDirectory", R"({"weight_map":{"a":".."}})", "same directory"},
        BadIndex{"NulInName", R"({"weight_map":{"a":"a\u0000b"}})", "same directory"},
        BadIndex{"MissingShard", R"({"weight_map":{"a":"c.safetensors"}})",
                 "shard c.safetensors is missing"},
        BadIndex{"BrokenShard", R"({"weight_map":{"a":"cut.safetensors"}})", "cut.safetensors"},
        BadIndex{"NotInThatShard", R"({"weight_map":{"c":"a.safetensors"}})",
                 "tensor \"c\" is not in a.safetensors"},
        BadIndex{"InTwoShards", R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})",
                 "tensor \"a\" is in"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace refrain::worker::test
