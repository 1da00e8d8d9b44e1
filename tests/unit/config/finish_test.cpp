#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "runtime/config/compilation_config.h"
#include "runtime/config/options.h"

namespace refrain {
namespace {

using testing::HasSubstr;

class FinishConfig : public testing::Test {
 protected:
  FinishConfig() {
    model_.torch_dtype = "bfloat16";
    model_.max_position_embeddings = 2048;
    model_.num_heads = 9;
    model_.num_kv_heads = 3;
    config_.model = "/models/Some-Model/";
    config_.worker.dtype = "auto";
    config_.worker.max_model_len = 0;
  }
  std::string error() {
    const Status status = finish_engine_config(config_, model_);
    return status ? "" : status.error().field + ": " + status.error().message;
  }
  ModelConfig model_;
  EngineConfig config_;
};

TEST_F(FinishConfig, FillsWhatDependsOnTheModel) {
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.worker.max_model_len, 2048);
  EXPECT_EQ(config_.worker.dtype, "bfloat16");
  EXPECT_EQ(config_.served_model_names, std::vector<std::string>{"Some-Model"});
  EXPECT_EQ(config_.tokenizer, config_.model);
  EXPECT_GE(config_.host_threads, 1);
}

TEST_F(FinishConfig, ModelsThatPoolKeepNoBlocksOfHiddenStates) {
  model_.hidden_size = 64;
  config_.convert = "embed";
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.worker.pooling, "LAST");
  EXPECT_TRUE(config_.pooling_normalize);
  EXPECT_TRUE(config_.enable_prefix_caching);
  config_.pooler_config = R"({"pooling_type": "MEAN", "normalize": false, "dimensions": 8})";
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.worker.pooling, "MEAN");
  EXPECT_FALSE(config_.pooling_normalize);
  EXPECT_EQ(config_.pooling_dimensions, 8);
  EXPECT_FALSE(config_.enable_prefix_caching);
}

TEST_F(FinishConfig, ModelsThatGenerateDoNotPoolUnasked) {
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.worker.pooling, "");
  model_.has_head = false;
  model_.hidden_size = 64;
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.worker.pooling, "LAST");
  config_.worker.max_num_seqs = config_.worker.max_num_batched_tokens = 70000;
  EXPECT_THAT(error(), HasSubstr("--max-num-seqs 70000 is too much"));
}

TEST_F(FinishConfig, KeepsWhatWasGiven) {
  config_.worker.max_model_len = 100;
  config_.worker.dtype = "float32";
  config_.served_model_names = {"x"};
  config_.tokenizer = "t";
  config_.host_threads = 3;
  config_.load_format = "dummy";
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.worker.max_model_len, 100);
  EXPECT_EQ(config_.worker.dtype, "float32");
  EXPECT_EQ(config_.served_model_names, std::vector<std::string>{"x"});
  EXPECT_EQ(config_.tokenizer, "t");
  EXPECT_EQ(config_.host_threads, 3);
  EXPECT_TRUE(config_.worker.load_dummy);
}

TEST_F(FinishConfig, ThreadsAreSharedOutOverTheRanksAndNeverNone) {
  config_.worker.tensor_parallel_size = 3;
  ASSERT_EQ(error(), "");
  EXPECT_GE(config_.host_threads, 1);
}

TEST_F(FinishConfig, RefusesMoreRanksThanHeads) {
  config_.worker.tensor_parallel_size = 10;
  EXPECT_THAT(error(),
              testing::AllOf(HasSubstr("--tensor-parallel-size"), HasSubstr("9 attention heads")));
}

TEST_F(FinishConfig, RefusesAContextWithoutRoomForAPromptAndAnAnswer) {
  config_.worker.max_model_len = 1;
  EXPECT_THAT(error(), HasSubstr("--max-model-len 1"));
  config_.worker.max_model_len = 2;
  EXPECT_EQ(error(), "");
  config_.worker.max_model_len = 0;
  model_.max_position_embeddings = 1;
  EXPECT_THAT(error(), HasSubstr("--max-model-len"));
}

TEST_F(FinishConfig, AVeryLongContextHasToBeAskedFor) {
  model_.max_position_embeddings = 16'000'000;
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("--max-model-len"),
                                      HasSubstr("max_position_embeddings is 16000000")));
  config_.worker.max_model_len = 4096;
  EXPECT_EQ(error(), "");
  EXPECT_EQ(config_.worker.max_model_len, 4096);
}

TEST_F(FinishConfig, RefusesAContextLongerThanTheModels) {
  config_.worker.max_model_len = 2049;
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("--max-model-len"), HasSubstr("2048")));
}

TEST_F(FinishConfig, RunsAsManyRequestsAtOnceAsTheDeviceWants) {
  for (const auto& [device, tokens, wanted] :
       {std::tuple("host", 2048, 256), {"cuda", 2048, 512}, {"cuda", 300, 300}, {"host", 16, 16}}) {
    config_.device = device;
    config_.worker.max_num_batched_tokens = tokens;
    config_.worker.max_num_seqs = 0;
    ASSERT_EQ(error(), "");
    EXPECT_EQ(config_.worker.max_num_seqs, wanted) << device << " " << tokens;
  }
  config_.worker.max_num_seqs = 7;
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.worker.max_num_seqs, 7);
}

TEST_F(FinishConfig, RefusesAStepTooSmallForItsRequests) {
  config_.worker.max_num_seqs = 64;
  config_.worker.max_num_batched_tokens = 63;
  EXPECT_THAT(error(), HasSubstr("--max-num-batched-tokens"));
}

TEST_F(FinishConfig, ToolChoiceNeedsAParserOfCalls) {
  config_.enable_auto_tool_choice = true;
  EXPECT_THAT(error(), HasSubstr("--tool-call-parser"));
  config_.tool_call_parser = "hermes";
  EXPECT_EQ(error(), "");
}

TEST_F(FinishConfig, SamplingDefaultsAreRead) {
  config_.override_generation_config = R"({"top_k": 7})";
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.generation_defaults.top_k, 7);
  config_.generation_config = "/nowhere";
  EXPECT_THAT(error(), HasSubstr("--generation-config"));
}

TEST_F(FinishConfig, RefusesAPaddingRatioBelowOne) {
  config_.worker.max_padding_ratio = 0.5;
  EXPECT_THAT(error(), HasSubstr("--max-padding-ratio"));
}

// R-1: these lists travel to the workers. A longer one used to end the coordinator while it
// welcomed them.
TEST_F(FinishConfig, RefusesListsThatNoFrameHolds) {
  config_.worker.cudagraph_capture_sizes.assign(2049, 8);
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("--cudagraph-capture-sizes"), HasSubstr("2048")));
  config_.worker.cudagraph_capture_sizes.clear();
  config_.worker.splitting_ops.assign(65, "attention");
  EXPECT_THAT(error(), testing::AllOf(HasSubstr("--splitting-ops"), HasSubstr("64")));
  config_.worker.splitting_ops = {std::string(513, 'x')};
  EXPECT_THAT(error(), HasSubstr("--splitting-ops"));
  config_.worker.splitting_ops.clear();
  config_.worker.attention_backend = std::string(513, 'x');
  EXPECT_THAT(error(), HasSubstr("--attention-backend"));
  config_.worker.attention_backend = "auto";
  EXPECT_EQ(error(), "");
}

std::string compilation_error(const std::string& json) {
  ipc::WorkerConfig config;
  const auto status = apply_compilation_config(json, config);
  return status ? "" : status.error().field + ": " + status.error().message;
}

TEST(CompilationConfig, TakesVllmsKeys) {
  ipc::WorkerConfig config;
  const auto status = apply_compilation_config(
      R"({"cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [8, 1],
          "max_cudagraph_capture_size": 8, "splitting_ops": ["attention"]})",
      config);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(config.cudagraph_mode, "PIECEWISE");
  EXPECT_TRUE(config.has_capture_sizes);
  EXPECT_EQ(config.cudagraph_capture_sizes, (std::vector<int32_t>{8, 1}));
  EXPECT_EQ(config.max_cudagraph_capture_size, 8);
  ASSERT_TRUE(apply_compilation_config(R"({"cudagraph_num_of_warmups": 2})", config));
  EXPECT_EQ(config.cudagraph_num_of_warmups, 2);
  EXPECT_THAT(compilation_error(R"({"cudagraph_num_of_warmups": -1})"), HasSubstr("from 0 to 100"));
  EXPECT_TRUE(config.has_splitting_ops);
  EXPECT_EQ(config.splitting_ops, std::vector<std::string>{"attention"});
}

// The object of vLLM's own pages, and what its programs print.
TEST(CompilationConfig, SaysWhichOfVllmsKeysItIgnoresAndWhy) {
  ipc::WorkerConfig config;
  const auto ignored = apply_compilation_config(
      R"({"mode": 3, "cudagraph_mode": "FULL", "cudagraph_num_of_warmups": 1, "cache_dir": null,
          "compile_sizes": [1, 2], "inductor_compile_config": {}, "custom_ops": ["none"],
          "pass_config": {"fuse_norm_quant": true},
          "splitting_ops": ["vllm::unified_attention", "vllm::unified_attention_with_output"]})",
      config);
  ASSERT_TRUE(ignored) << ignored.error().message;
  EXPECT_EQ(config.cudagraph_mode, "FULL");
  EXPECT_EQ(config.splitting_ops, std::vector<std::string>{"attention"});
  EXPECT_THAT(*ignored, testing::UnorderedElementsAre(
                            HasSubstr("mode is ignored: nothing is compiled"),
                            HasSubstr("compile_sizes"), HasSubstr("inductor_compile_config"),
                            HasSubstr("custom_ops"), HasSubstr("pass_config")));
}

TEST(CompilationConfig, IsWrittenInVllmsOtherWaysToo) {
  using Words = std::vector<std::string>;
  const auto joined = [](Words words) { return join_compilation_config(std::move(words)); };
  EXPECT_EQ(joined({"--seed", "3", "-O3"}), (Words{"--seed", "3", "-O3"}));
  for (const Words& words :
       {Words{"-cc.cudagraph_mode=none"}, Words{"-O.cudagraph_mode", "none"},
        Words{"--compilation-config.cudagraph_mode=none"},
        Words{"-cc", R"({"cudagraph_mode":"none"})"}, Words{R"(-cc={"cudagraph_mode":"none"})"}})
    EXPECT_EQ(joined(words), (Words{"--compilation-config", R"({"cudagraph_mode":"none"})"}));
  EXPECT_EQ(joined({"-cc.pass_config.fuse_norm_quant=true", "--seed", "3", "-O",
                    R"({"mode": 3, "pass_config": {"x": 1}})", "-cc.mode", "0",
                    "-cc.pass_config.fuse_norm_quant=false"}),
            (Words{"--seed", "3", "--compilation-config",
                   R"({"mode":0,"pass_config":{"fuse_norm_quant":false,"x":1}})"}));
  EXPECT_EQ(joined({"-cc.cudagraph_mode=FULL", "-cc", "[1]"}),
            (Words{"--compilation-config", "[1]"}))
      << "its error comes when it is read";
  EXPECT_EQ(joined({"-cc.a=1", "-cc.a.b=2"}), (Words{"--compilation-config", R"({"a":{"b":2}})"}));
  EXPECT_EQ(joined({"-cc.a"}), (Words{"--compilation-config", R"({"a":""})"}));
  ipc::WorkerConfig config;
  ASSERT_TRUE(apply_compilation_config(R"({"cudagraph_mode": "full_decode_only"})", config));
  EXPECT_EQ(config.cudagraph_mode, "FULL_DECODE_ONLY");
}

TEST(CompilationConfig, AListOfSizesSaysMoreThanALargerMaximum) {
  ipc::WorkerConfig config;
  const auto ignored = apply_compilation_config(
      R"({"cudagraph_capture_sizes": [1, 256, 8], "max_cudagraph_capture_size": 512})", config);
  ASSERT_TRUE(ignored) << ignored.error().message;
  EXPECT_THAT(*ignored, testing::ElementsAre(testing::AllOf(HasSubstr("512"), HasSubstr("256"))));
  EXPECT_EQ(config.max_cudagraph_capture_size, 0);
}

TEST(CompilationConfig, TakesALevelAndTheOlderSwitches) {
  ipc::WorkerConfig config;
  EXPECT_THAT(*apply_compilation_config("3", config), testing::SizeIs(1));
  ASSERT_TRUE(
      apply_compilation_config(R"({"use_cudagraph": true, "full_cuda_graph": false})", config));
  EXPECT_EQ(config.cudagraph_mode, ipc::WorkerConfig().cudagraph_mode);
  ASSERT_TRUE(apply_compilation_config(R"({"full_cuda_graph": true})", config));
  EXPECT_EQ(config.cudagraph_mode, "FULL");
  ASSERT_TRUE(apply_compilation_config(R"({"use_cudagraph": false})", config));
  EXPECT_EQ(config.cudagraph_mode, "NONE");
}

TEST(CompilationConfig, CG15SpecialisationOfKeysWithAdaptersCanBeOff) {
  ipc::WorkerConfig config;
  ASSERT_TRUE(apply_compilation_config(R"({"cudagraph_specialize_lora": false})", config));
  EXPECT_FALSE(config.cudagraph_specialize_lora);
  EXPECT_THAT(compilation_error(R"({"cudagraph_specialize_lora": 1})"),
              HasSubstr("cudagraph_specialize_lora"));
}

TEST(CompilationConfig, AnEmptyListIsGivenAllTheSame) {
  ipc::WorkerConfig config;
  ASSERT_TRUE(apply_compilation_config(R"({"splitting_ops": []})", config));
  EXPECT_TRUE(config.has_splitting_ops);
  EXPECT_TRUE(config.splitting_ops.empty());
}

TEST(CompilationConfig, MistakesNameTheKey) {
  EXPECT_THAT(compilation_error("{"), HasSubstr("JSON object"));
  EXPECT_THAT(compilation_error("4"), HasSubstr("JSON object"));
  EXPECT_THAT(compilation_error(R"({"use_cudagraph": 1})"), HasSubstr("use_cudagraph"));
  EXPECT_THAT(compilation_error(R"({"cudagraph_mod": 1})"), HasSubstr("cudagraph_mod"));
  EXPECT_THAT(compilation_error(R"({"cudagraph_mode": 1})"), HasSubstr("cudagraph_mode"));
  EXPECT_THAT(compilation_error(R"({"splitting_ops": [1]})"), HasSubstr("splitting_ops"));
  EXPECT_THAT(compilation_error(R"({"splitting_ops": "a"})"), HasSubstr("splitting_ops"));
  for (const char* sizes : {"1", "[0]", "[-1]", "[1.5]", "[\"1\"]", "[9999999999]", "[null]",
                            "[18446744073709551615]"}) {
    EXPECT_THAT(compilation_error(std::string(R"({"cudagraph_capture_sizes": )") + sizes + "}"),
                HasSubstr("cudagraph_capture_sizes"))
        << sizes;
  }
}

TEST_F(FinishConfig, AModelOfTheHuggingFaceCacheIsServedUnderItsName) {
  config_.model = "/cache/hub/models--Qwen--Qwen3-0.6B/snapshots/0123abc";
  EXPECT_EQ(error(), "");
  EXPECT_EQ(config_.served_model_names, std::vector<std::string>{"Qwen/Qwen3-0.6B"});
}

TEST(NearestName, IsNoneWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("--prot", {"--port", "--host"}), "--port");
  EXPECT_EQ(nearest_name("--unrelated-thing", {"--port", "--host"}), "");
  EXPECT_EQ(nearest_name("--x", {}), "");
}

TEST_F(FinishConfig, GroupsWithRolesNeedEachOther) {
  config_.prefill_groups = 1;
  EXPECT_THAT(error(), HasSubstr("--decode-groups is missing"));
  config_.decode_groups = 2;
  ASSERT_EQ(error(), "");
  EXPECT_TRUE(config_.worker.kv_transfer);
  config_.prefill_tensor_parallel_size = 2;
  ASSERT_EQ(error(), "");
  EXPECT_EQ(config_.num_workers(), 2 + 1 + 1);
  EXPECT_EQ(config_.groups()[2].first_worker, 3);
  EXPECT_EQ(config_.worker_of(config_.groups()[0]).tensor_parallel_size, 2);
  config_.decode_tensor_parallel_size = 10;
  EXPECT_THAT(error(), HasSubstr("--decode-tensor-parallel-size 10 is more than the model's 9"));
  config_.decode_tensor_parallel_size = 0;
  config_.worker.tensor_parallel_size = 10;
  EXPECT_THAT(
      error(),
      HasSubstr("--tensor-parallel-size: --tensor-parallel-size 10 is more than the model's 9"));
  config_.worker.tensor_parallel_size = 1;
  config_.data_parallel_size = 2;
  EXPECT_THAT(error(), HasSubstr("leave it out"));
  config_.data_parallel_size = 1;
  config_.worker.pooling = "LAST";
  config_.convert = "embed";
  model_.hidden_size = 64;
  EXPECT_THAT(error(), HasSubstr("--prefill-groups: a model that pools"));
}

TEST_F(FinishConfig, RanksOfARoleNeedGroupsOfIt) {
  config_.prefill_tensor_parallel_size = 2;
  EXPECT_THAT(error(), HasSubstr("needs --prefill-groups and --decode-groups"));
}

}  // namespace
}  // namespace refrain
