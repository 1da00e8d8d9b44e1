#pragma once
// `refrain bench`: decode, prefill, serve and capture, measured end to end through the engine and
// its workers; the kinds of device_bench.h, of the device alone. Each case becomes one JSON object
// and one row of a table.

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/engine_config.h"

namespace refrain {

struct BenchOptions {
  EngineConfig config;
  std::string kind;  // decode | prefill | serve | capture, or one of device_bench.h
  bool json = false;
  std::vector<int32_t> batches = {1};
  std::vector<int32_t> lengths = {512};         // prefill, attention: prompt tokens
  std::vector<int32_t> contexts = {512, 2048};  // attention: tokens of a decoding request
  int32_t shared_prefix = 0;           // attention: of them so many are the same in all requests
  std::vector<int64_t> message_bytes;  // all-reduce
  int32_t pool_mib = 512;              // gemm, attention: what weights and caches take turns in
  int32_t prompt_len = 128;
  int32_t first_tokens = 64;  // decode: ms = (t(last) - t(first)) / (last - first)
  int32_t last_tokens = 320;
  int32_t runs = 3;
  int32_t num_requests = 64;       // serve
  double request_rate = 0;         // serve: Poisson arrivals a second; 0: all at once
  int32_t output_len = 64;         // serve
  std::vector<std::string> modes;  // graph modes to compare; empty: the configured one
};

int run_bench(const BenchOptions& options);

}  // namespace refrain
