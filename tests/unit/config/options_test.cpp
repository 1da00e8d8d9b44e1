#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "tests/temporary_directory.h"
#include "tests/unit/config/command_line.h"

namespace refrain {
namespace {

using testing::HasSubstr;

struct OptionCase {
  std::vector<std::string> words;
  std::function<bool(const EngineConfig&)> took;
};

std::vector<OptionCase> model_cases() {
  using C = const EngineConfig&;
  return {
      {{"--model", "m"}, [](C c) { return c.model == "m"; }},
      {{"m"}, [](C c) { return c.model == "m"; }},
      {{"--tokenizer", "t"}, [](C c) { return c.tokenizer == "t"; }},
      {{"--served-model-name", "a,b"},
       [](C c) {
         return c.served_model_names == std::vector<std::string>{"a", "b"};
       }},
      {{"--chat-template", "f.jinja"}, [](C c) { return c.chat_template == "f.jinja"; }},
      {{"--generation-config", "vllm"}, [](C c) { return c.generation_config == "vllm"; }},
      {{"--override-generation-config", "{}"},
       [](C c) { return c.override_generation_config == "{}"; }},
      {{"--tool-call-parser", "hermes"}, [](C c) { return c.tool_call_parser == "hermes"; }},
      {{"--enable-auto-tool-choice"}, [](C c) { return c.enable_auto_tool_choice; }},
      {{"--reasoning-parser", "qwen3"}, [](C c) { return c.reasoning_parser == "qwen3"; }},
      {{"--trust-request-chat-template"}, [](C c) { return c.trust_request_chat_template; }},
      {{"--runner", "pooling"}, [](C c) { return c.runner == "pooling"; }},
      {{"--convert", "embed"}, [](C c) { return c.convert == "embed"; }},
      {{"--task", "embed"}, [](C c) { return c.convert == "embed" && c.runner == "auto"; }},
      {{"--task", "generate"}, [](C c) { return c.runner == "generate"; }},
      {{"--pooler-config", "{}"}, [](C c) { return c.pooler_config == "{}"; }},
      {{"--override-pooler-config", "{}"}, [](C c) { return c.pooler_config == "{}"; }},
      {{"--max-logprobs", "5"}, [](C c) { return c.max_logprobs == 5; }},
      {{"--logprobs-mode", "processed_logits"},
       [](C c) { return c.worker.logprobs_mode == "processed_logits"; }},
      {{"--dtype", "float32"}, [](C c) { return c.worker.dtype == "float32"; }},
      {{"--load-format", "dummy"}, [](C c) { return c.load_format == "dummy"; }},
      {{"--max-model-len", "77"}, [](C c) { return c.worker.max_model_len == 77; }},
      {{"--max-model-len", "1.5k"}, [](C c) { return c.worker.max_model_len == 1500; }},
      {{"--seed", "5"}, [](C c) { return c.worker.seed == 5; }},
      {{"--tensor-parallel-size", "3"}, [](C c) { return c.worker.tensor_parallel_size == 3; }},
      {{"--data-parallel-size", "2"}, [](C c) { return c.data_parallel_size == 2; }},
      {{"--dp", "2"}, [](C c) { return c.num_workers() == 2; }},
      {{"--dp-size", "2"}, [](C c) { return c.data_parallel_size == 2; }},
      {{"-dp", "2"}, [](C c) { return c.data_parallel_size == 2; }},
      {{"--prefill-groups", "2"}, [](C c) { return c.prefill_groups == 2; }},
      {{"--decode-groups", "3"}, [](C c) { return c.decode_groups == 3; }},
      {{"--prefill-tensor-parallel-size", "2"},
       [](C c) { return c.prefill_tensor_parallel_size == 2; }},
      {{"--decode-tensor-parallel-size", "4"},
       [](C c) { return c.decode_tensor_parallel_size == 4; }},
      {{"--kv-transfer-timeout", "2.5"}, [](C c) { return c.kv_transfer_timeout == 2.5; }},
      {{"--kv-transfer-policy", "always"}, [](C c) { return c.kv_transfer_policy == "always"; }},
      {{"--kv-transfer-backend", "ucx"}, [](C c) { return c.worker.kv_transfer_backend == "ucx"; }},
      {{"--disaggregation-transfer-backend", "tcp"},
       [](C c) { return c.worker.kv_transfer_backend == "tcp"; }},
      {{"--tp", "2"}, [](C c) { return c.worker.tensor_parallel_size == 2; }},
      {{"--device", "host"}, [](C c) { return c.device == "host"; }},
      {{"--host-threads", "4"}, [](C c) { return c.host_threads == 4; }},
      {{"--host-isa", "avx2"}, [](C c) { return c.host_isa == "avx2"; }},
      {{"--log-level", "debug"}, [](C c) { return c.log_level == "debug"; }},
      {{"--start-timeout", "9"}, [](C c) { return c.start_timeout == 9; }},
      {{"--heartbeat-timeout", "1.5"}, [](C c) { return c.heartbeat_timeout == 1.5; }},
      {{"--max-restarts", "9"}, [](C c) { return c.max_restarts == 9; }},
      {{"--fault", "kind=spin"}, [](C c) { return c.fault == "kind=spin"; }},
      {{"--incident-dir", "d"}, [](C c) { return c.incident_dir == "d"; }},
      {{"--dump-values", "d"}, [](C c) { return c.debug.dump_values == "d"; }},
      {{"--dump-steps", "3"}, [](C c) { return c.debug.dump_steps == 3; }},
      {{"--check-weights"}, [](C c) { return c.debug.check_weights; }},
      {{"--nvtx"}, [](C c) { return c.debug.nvtx; }},
      {{"--time-steps"}, [](C c) { return c.debug.time_steps; }},
      {{"--disable-custom-all-reduce"}, [](C c) { return c.worker.disable_custom_all_reduce; }},
      {{"--collective-timeout-ms", "70"}, [](C c) { return c.worker.collective_timeout_ms == 70; }},
  };
}

std::vector<OptionCase> engine_cases() {
  using C = const EngineConfig&;
  return {
      {{"--max-num-seqs", "9"}, [](C c) { return c.worker.max_num_seqs == 9; }},
      {{"--max-num-batched-tokens=99"}, [](C c) { return c.worker.max_num_batched_tokens == 99; }},
      {{"--max-num-batched-tokens", "8K"},
       [](C c) { return c.worker.max_num_batched_tokens == 8192; }},
      {{"--kv-cache-memory-bytes", "2G"},
       [](C c) { return c.worker.kv_cache_memory_bytes == int64_t{2} << 30; }},
      {{"--mem-fraction-static", "0.5"},
       [](C c) { return c.worker.gpu_memory_utilization == 0.5; }},
      {{"--disable-cuda-graph"}, [](C c) { return c.worker.enforce_eager; }},
      {{"--cuda-graph-bs", "1", "2", "4"},
       [](C c) {
         return c.worker.cudagraph_capture_sizes == std::vector<int32_t>{1, 2, 4};
       }},
      {{"--cuda-graph-max-bs", "64"},
       [](C c) { return c.worker.max_cudagraph_capture_size == 64; }},
      {{"--disable-cuda-graph-padding"}, [](C c) { return c.worker.disable_padding; }},
      {{"--max-queue", "3"}, [](C c) { return c.max_queue == 3; }},
      {{"--max-queue-wait", "1.5"}, [](C c) { return c.max_queue_wait == 1.5; }},
      {{"--api-key-file", "k"}, [](C c) { return c.api_key_file == "k"; }},
      {{"--ssl-certfile", "c"}, [](C c) { return c.ssl_certfile == "c"; }},
      {{"--ssl-keyfile", "k"}, [](C c) { return c.ssl_keyfile == "k"; }},
      {{"--no-enable-prefix-caching"}, [](C c) { return !c.enable_prefix_caching; }},
      {{"--enable-prefix-caching=false"}, [](C c) { return !c.enable_prefix_caching; }},
      {{"--no-async-scheduling"}, [](C c) { return !c.async_scheduling; }},
      {{"--split-prefill", "4"}, [](C c) { return c.worker.split_prefill == 4; }},
      {{"--long-prefill-token-threshold", "1k"},
       [](C c) { return c.long_prefill_token_threshold == 1000; }},
      {{"--scheduling-policy", "priority"}, [](C c) { return c.scheduling_policy == "priority"; }},
      {{"--audit-rate", "0.02"}, [](C c) { return c.audit_rate == 0.02; }},
      {{"--schedule-lead-ms", "2.5"}, [](C c) { return c.schedule_lead_ms == 2.5; }},
      {{"--enable-lora"}, [](C c) { return c.enable_lora; }},
      {{"--max-loras", "4"}, [](C c) { return c.max_loras == 4; }},
      {{"--max-loras-per-batch", "4"}, [](C c) { return c.max_loras == 4; }},
      {{"--max-lora-rank", "64"}, [](C c) { return c.max_lora_rank == 64; }},
      {{"--max-cpu-loras", "8"}, [](C c) { return c.max_cpu_loras == 8; }},
      {{"--lora-modules", "a=/x", R"({"name": "b", "path": "/y=z"})"},
       [](C c) {
         return c.lora.modules == std::vector<LoraModule>{{"a", "/x"}, {"b", "/y=z"}};
       }},
      {{"--lora-paths", "a=/x"},
       [](C c) {
         return c.lora.modules == std::vector<LoraModule>{{"a", "/x"}};
       }},
      {{"--lora-dir", "/x"}, [](C c) { return c.lora.directory == "/x"; }},
      {{"--block-size", "32"}, [](C c) { return c.worker.block_size == 32; }},
      {{"--kv-cache-dtype", "float32"}, [](C c) { return c.worker.kv_cache_dtype == "float32"; }},
      {{"--kv-cache-memory-bytes", "1000000"},
       [](C c) { return c.worker.kv_cache_memory_bytes == 1000000; }},
      {{"--gpu-memory-utilization", "0.5"},
       [](C c) { return c.worker.gpu_memory_utilization == 0.5; }},
      {{"--num-gpu-blocks-override", "12"},
       [](C c) { return c.worker.num_gpu_blocks_override == 12; }},
      {{"--enforce-eager"}, [](C c) { return c.worker.enforce_eager; }},
      {{"--cudagraph-mode", "FULL"}, [](C c) { return c.worker.cudagraph_mode == "FULL"; }},
      {{"--cudagraph-capture-sizes", "1,2,4"},
       [](C c) {
         return c.worker.has_capture_sizes &&
                c.worker.cudagraph_capture_sizes == std::vector<int32_t>{1, 2, 4};
       }},
      {{"--max-cudagraph-capture-size", "64"},
       [](C c) { return c.worker.max_cudagraph_capture_size == 64; }},
      {{"--splitting-ops", "attention,linear"},
       [](C c) { return c.worker.has_splitting_ops && c.worker.splitting_ops.size() == 2; }},
      {{"--compilation-config", R"({"cudagraph_mode": "NONE"})"},
       [](C c) { return c.worker.cudagraph_mode == "NONE"; }},
      {{"--speculative-config", R"({"method": "ngram", "num_speculative_tokens": 4})"},
       [](C c) {
         return c.worker.num_speculative_tokens == 4 && c.worker.prompt_lookup_min == 5 &&
                c.worker.prompt_lookup_max == 5;
       }},
      {{"--disable-padding"}, [](C c) { return c.worker.disable_padding; }},
      {{"--max-padding-ratio", "2.5"}, [](C c) { return c.worker.max_padding_ratio == 2.5; }},
      {{"--attention-backend", "x"}, [](C c) { return c.worker.attention_backend == "x"; }},
      {{"--disable-cascade-attn"}, [](C c) { return c.worker.disable_cascade_attn; }},
      {{"--batch-invariant"}, [](C c) { return c.worker.batch_invariant; }},
      {{"--debug-cudagraph"}, [](C c) { return c.worker.debug_cudagraph; }},
      {{"--host", "0.0.0.0"}, [](C c) { return c.host == "0.0.0.0"; }},
      {{"--port", "0"}, [](C c) { return c.port == 0; }},
      {{"--api-key", "k,1", "--api-key", "k2"},  // a comma is part of a key
       [](C c) {
         return c.api_keys == std::vector<std::string>{"k,1", "k2"};
       }},
      {{"--allowed-origins", R"(["https://a:1", "null"])"},
       [](C c) {
         return c.cors.allowed_origins == std::vector<std::string>{"https://a:1", "null"};
       }},
      {{"--allowed-origins", "*"},
       [](C c) { return c.cors.allowed_origins == std::vector<std::string>{"*"}; }},
      {{"--allow-credentials"}, [](C c) { return c.cors.allow_credentials; }},
      {{"--allowed-methods", R"(["GET"])"},
       [](C c) { return c.cors.allowed_methods == std::vector<std::string>{"GET"}; }},
      {{"--allowed-headers", "x-a,x-b"},
       [](C c) {
         return c.cors.allowed_headers == std::vector<std::string>{"x-a", "x-b"};
       }},
      {{"--sse-keep-alive-interval", "2"}, [](C c) { return c.sse_keep_alive_interval == 2; }},
      {{"--api-server-count", "0"}, [](C c) { return c.api_server_count == 0; }},
      {{"--drain-timeout", "1.5"}, [](C c) { return c.drain_timeout == 1.5; }},
      {{"--control-key", "k"}, [](C c) { return c.control_key == "k"; }},
      {{"--vllm-metrics"}, [](C c) { return c.vllm_metrics; }},
      {{"--disable-log-stats"}, [](C c) { return c.disable_log_stats; }},
      {{"--trace-file", "t.json"}, [](C c) { return c.trace_file == "t.json"; }},
      {{"--log-stats-interval", "0"}, [](C c) { return c.log_stats_interval == 0; }},
  };
}

class EachOption : public testing::TestWithParam<OptionCase> {};

TEST_P(EachOption, ReachesTheConfiguration) {
  const Parsed parsed = parse_words(GetParam().words);
  ASSERT_TRUE(parsed.outcome) << parsed.error();
  EXPECT_TRUE(GetParam().took(parsed.config)) << GetParam().words.front();
  EXPECT_FALSE(GetParam().took(parse_words({}).config)) << "the default is the same";
}

INSTANTIATE_TEST_SUITE_P(Model, EachOption, testing::ValuesIn(model_cases()));
INSTANTIATE_TEST_SUITE_P(Engine, EachOption, testing::ValuesIn(engine_cases()));

TEST(Options, SGLangsPiecewiseSwitchIsAMode) {
  EXPECT_EQ(parse_words({"--enable-piecewise-cuda-graph"}).config.worker.cudagraph_mode,
            "FULL_AND_PIECEWISE");
  EXPECT_THAT(parse_words({"--enable-piecewise-cuda-graph", "--cudagraph-mode", "FULL"}).error(),
              HasSubstr("excludes"));
}

TEST(Options, WhatIsNotHereIsExplainedAndNotHintedAsSomethingElse) {
  EXPECT_THAT(parse_words({"--pipeline-parallel-size", "2"}).error(),
              testing::AllOf(HasSubstr("unknown option --pipeline-parallel-size"),
                             testing::Not(HasSubstr("did you mean"))));
  EXPECT_THAT(parse_words({"--max-parallel-loading-workers", "2"}).error(),
              testing::Not(HasSubstr("did you mean")));
}

TEST(Options, AHuggingFaceNameIsFoundInTheCacheOrTheCommandThatFetchesIt) {
  const tests::TemporaryDirectory cache;
  const auto model = cache.path() / "hub/models--owner--name";
  std::filesystem::create_directories(model / "snapshots/abc");
  std::filesystem::create_directories(model / "snapshots/def");
  std::filesystem::create_directories(model / "refs");
  ASSERT_EQ(setenv("HF_HOME", cache.path().c_str(), 1), 0);
  const std::string unclear = parse_words({"owner/name"}).error();
  std::ofstream(model / "refs/main") << "def";
  const Parsed found = parse_words({"owner/name"});
  const std::string missing = parse_words({"--model", "owner/other"}).error();
  ASSERT_EQ(unsetenv("HF_HOME"), 0);
  EXPECT_THAT(unclear, HasSubstr("hf download owner/name"));
  EXPECT_EQ(found.config.model, (model / "snapshots/def").string());
  EXPECT_THAT(missing, HasSubstr("hf download owner/other"));
  EXPECT_EQ(parse_words({"plain"}).config.model, "plain");
  EXPECT_EQ(parse_words({"/a/b"}).config.model, "/a/b");
}

TEST(Options, StructuredOutputHasOneBackend) {
  for (const char* backend : {"auto", "xgrammar"}) {
    EXPECT_EQ(parse_words({"--guided-decoding-backend", backend}).error(), "");
    const std::string json = std::string(R"({"backend": ")") + backend + "\"}";
    EXPECT_EQ(parse_words({"--structured-outputs-config", json}).error(), "");
  }
  EXPECT_THAT(parse_words({"--guided-decoding-backend", "outlines"}).error(),
              testing::AllOf(HasSubstr("--guided-decoding-backend"), HasSubstr("'outlines'"),
                             HasSubstr("made by xgrammar")));
  for (const char* wrong : {R"({"backend": "guidance"})", R"({"disable_fallback": true})", "[]"})
    EXPECT_THAT(parse_words({"--structured-outputs-config", wrong}).error(),
                HasSubstr("--structured-outputs-config"))
        << wrong;
}

TEST(Options, MistakesInModulesOfAdaptersAreNamed) {
  for (const char* wrong :
       {"a", "=x", "a=", "{", R"({"name": "a"})", R"({"name": "a", "path": "x", "rank": 3})"})
    EXPECT_THAT(parse_words({"--lora-modules", wrong}).error(), HasSubstr("--lora-modules"))
        << wrong;
  EXPECT_THAT(parse_words({"--lora-modules", "a=x", "a=y"}).error(), HasSubstr("named twice"));
  EXPECT_THAT(parse_words({"--max-lora-rank", "0"}).error(), HasSubstr("--max-lora-rank"));
}

TEST(Options, EveryDeclaredOptionHasACaseAbove) {
  std::string tested =
      "--config --help --enable-piecewise-cuda-graph --guided-decoding-backend "
      "--structured-outputs-config "
      "--kv-transfer-config --disaggregation-mode";  // group_options_test.cpp
  for (const auto& cases : {model_cases(), engine_cases()}) {
    for (const OptionCase& one : cases) tested += " " + one.words.front();
  }
  EngineConfig config;
  CLI::App app;
  add_engine_options(app, config, {});
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      EXPECT_THAT(tested, HasSubstr(name)) << "no case parses --" << name;
    }
  }
}

TEST(Options, TheLastOfTwoWins) {
  EXPECT_EQ(parse_words({"--max-num-seqs", "3", "--max-num-seqs", "5"}).config.worker.max_num_seqs,
            5);
}

TEST(Options, UnknownOneSuggestsTheNearest) {
  EXPECT_THAT(parse_words({"--max-num-seq", "4"}).error(),
              testing::AllOf(HasSubstr("--max-num-seq"), HasSubstr("did you mean --max-num-seqs")));
  EXPECT_THAT(parse_words({"--tensor_parallel_size", "4"}).error(),
              HasSubstr("did you mean --tensor-parallel-size"));
  const std::string far = parse_words({"--zebra-crossing-of-the-north"}).error();
  EXPECT_THAT(far, HasSubstr("unknown option --zebra-crossing-of-the-north"));
  EXPECT_THAT(far, testing::Not(HasSubstr("did you mean")));
}

TEST(Options, ValuesOutOfRangeNameTheOption) {
  const std::vector<std::vector<std::string>> bad = {
      {"--port", "65536"},           {"--port", "-1"},
      {"--max-num-seqs", "0"},       {"--max-num-seqs", "many"},
      {"--max-num-seqs", "1e9"},     {"--max-model-len", "99999999999999"},
      {"--dtype", "float16"},        {"--gpu-memory-utilization", "nan"},
      {"--block-size", "17"},        {"--host-isa", "mmx"},
      {"--max-padding-ratio", "-1"}, {"--cudagraph-capture-sizes", "1,x"},
      {"--compilation-config", "{"}, {"--max-model-len", "1.0001k"},
      {"--max-model-len", "20M"},    {"--max-model-len", "k"}};
  for (const auto& words : bad) {
    EXPECT_THAT(parse_words(words).error(), HasSubstr(words[0])) << words[1];
  }
}

TEST(Options, WhatIsNoOriginMethodOrHeaderIsRefused) {
  for (const char* bad : {"example.com", "https://a/", "https://a/path", "https://*.a", "[\"x\"",
                          "[1]", "{\"a\": 1}", "https://a b", "https://a\r\nX: y", "://a"}) {
    EXPECT_THAT(parse_words({"--allowed-origins", bad}).error(), HasSubstr("--allowed-origins"))
        << bad;
  }
  EXPECT_THAT(parse_words({"--allowed-methods", R"(["G T"])"}).error(), HasSubstr("\"G T\""));
  EXPECT_THAT(parse_words({"--allowed-headers", R"(["x:y"])"}).error(), HasSubstr("\"x:y\""));
  const Parsed none = parse_words({"--allowed-origins", "[]"});
  EXPECT_TRUE(none.outcome && none.config.cors.allowed_origins.empty());
}

TEST(Options, AMissingValueNamesTheOption) {
  EXPECT_THAT(parse_words({"--port"}).error(), HasSubstr("--port"));
  EXPECT_THAT(parse_words({"--config"}).error(), HasSubstr("--config"));
}

TEST(Options, ProgramsWithoutAServerTakeNoServerOptions) {
  EXPECT_THAT(parse_words({"--port", "1"}, {.server = false}).error(), HasSubstr("--port"));
  EXPECT_THAT(parse_words({"word"}, {.positional_model = false}).error(), HasSubstr("word"));
}

TEST(Options, KeysComeFromTheEnvironmentToo) {
  ASSERT_EQ(setenv("REFRAIN_API_KEY", "from-outside", 1), 0);
  const auto keys = parse_words({}).config.api_keys;
  ASSERT_EQ(unsetenv("REFRAIN_API_KEY"), 0);
  EXPECT_EQ(keys, std::vector<std::string>{"from-outside"});
}

}  // namespace
}  // namespace refrain
