#pragma once
// The kinds of benchmarks, one class each: run() measures and writes its cases. Main thread.

#include "runtime/config/model/model_config.h"
#include "worker/bench/case_writer.h"
#include "worker/graph/attention_backend.h"
#include "worker/runner/hosted_program.h"

namespace refrain::worker {

// What every kind is given; outlives it.
struct BenchSetting {
  const RankOptions& options;
  BenchDevice& device;
  const CaseWriter& cases;
};
struct ModelSetting : BenchSetting {
  const ModelConfig& model;
  const Program& program;  // this rank's share
};

// The linears of the model at each batch, each with weights that take turns through the pool: the
// plain kernel, and the one for few rows where the device has it.
class GemmBench {
 public:
  explicit GemmBench(const ModelSetting& setting) : s_(setting) {}
  Status run();

 private:
  struct Shape {
    std::string name;
    int64_t n = 0, k = 0;
    LinearTypes types;
    DType out = DType::kBFloat16;
    bool bias = false, residual = false, per_request = false;
    int count = 0;  // of such linears in the model
    bool operator==(const Shape& other) const;
  };
  std::vector<Shape> shapes() const;
  void measure(const Shape& shape, int32_t rows, const Pool& pool, const Limits& limits);

  ModelSetting s_;
};

// Attention over paged caches: one new token for each of a batch's requests at each context, with
// and without cascade attention where they share a prefix, and whole prompts of each length.
class AttentionBench {
 public:
  explicit AttentionBench(const ModelSetting& setting) : s_(setting) {}
  Status run();

 private:
  struct Batch {
    int32_t requests = 1, query = 1, context = 0;  // context: tokens cached before the query
    int32_t shared = 0;    // of the context: tokens that are the same blocks in all requests
    bool cascade = false;  // which are read once
    int32_t length() const { return context + query; }
  };
  void measure(const AttentionOp& op, const AttentionBackend& backend, const std::string& names,
               const Batch& batch, const Limits& limits);

  ModelSetting s_;
};

// Sums over ranks inside a graph, in each way the device has for the size.
class AllReduceBench {
 public:
  explicit AllReduceBench(const BenchSetting& setting) : s_(setting) {}
  Status run();

 private:
  struct Sample {
    int64_t bytes = 0;
    std::string way;
    std::vector<double> seconds;
  };
  double copy_to_next_rank(size_t bytes);  // bytes a second, all ranks at once
  std::vector<double> time_sum(void* data, int64_t bytes, const std::string& way);
  void write(const Sample& sample, double latency, double copied) const;

  BenchSetting s_;
};

// Weights from the checkpoint's files, which the page cache holds, or made up, to the device; every
// rank its share, all at once.
class LoadBench {
 public:
  explicit LoadBench(const ModelSetting& setting) : s_(setting) {}
  Status run();

 private:
  struct Copied {
    double limit = 0;  // bytes a second
    std::string source;
    nlohmann::json more = nlohmann::json::object();
  };
  Result<double> load_once(size_t& bytes);  // seconds
  Result<Copied> copy_limit();

  ModelSetting s_;
};

}  // namespace refrain::worker
