// Speed of the CUDA kernels at the shapes of 1B, 8B and 70B (four-way parallel) models:
// microseconds and bytes a second beside the reading rate measured in the same run. Every kernel
// runs in a chain captured as a graph, its weights or cache taking turns through a pool larger than
// the cache. Options: --cases TEXT (only cases whose name holds it), --pool-gib N, --json PATH.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>

#include "tests/bench/kernels_cuda/bench_device.h"

namespace refrain::kernels {
namespace {

constexpr DType kBf16 = DType::kBFloat16;

struct Options {
  std::string cases, json;
  size_t pool_gib = 6;
};

class Report {
 public:
  Report(BenchDevice& device, const Options& options) : device_(device), options_(options) {
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    limit_ = device.read_gbps();
    fmt::print("{}, reading {:.0f} GB/s\n{:<34}{:>9}{:>17}{:>8}{:>7}{:>9}\n", properties.name,
               limit_, "case", "us", "lowest..highest", "GB/s", "%", "TFLOP/s");
    json_ = fmt::format("{{\"device\": \"{}\", \"read_gbps\": {:.1f}, \"cases\": [",
                        properties.name, limit_);
  }
  bool wants(const std::string& name) const {
    return name.find(options_.cases) != std::string::npos;
  }
  void add(const std::string& name, const Spread& t, double bytes, double flops) {
    const double gbps = bytes / t.median * 1e-3, tflops = flops / t.median * 1e-6;
    fmt::print("{:<34}{:>9.2f}{:>8.1f}..{:<7.1f}{:>8.0f}{:>7.1f}{:>9.1f}\n", name, t.median,
               t.lowest, t.highest, gbps, 100 * gbps / limit_, tflops);
    std::fflush(stdout);
    json_ += fmt::format(
        "{}\n{{\"case\": \"{}\", \"us\": {:.3f}, \"low\": {:.3f}, \"high\": {:.3f}, \"gbps\": "
        "{:.1f}, \"tflops\": {:.2f}}}",
        json_.ends_with('[') ? "" : ",", name, t.median, t.lowest, t.highest, gbps, tflops);
  }
  void finish() {
    if (options_.json.empty()) return;
    std::FILE* file = std::fopen(options_.json.c_str(), "w");
    if (file == nullptr) throw std::runtime_error("cannot write " + options_.json);
    fmt::print(file, "{}\n]}}\n", json_);
    std::fclose(file);
  }

 private:
  BenchDevice& device_;
  const Options& options_;
  double limit_ = 0;
  std::string json_;
};

// A chain long enough that launches of 1 … 250 us are timed to a per cent, and that the pool turns.
int chain(double bytes) { return std::clamp(static_cast<int>(2e9 / bytes), 8, 64); }

void bench_linear(BenchDevice& device, Report& report) {
  struct Shape {
    const char* name;
    int64_t n, k;
    bool residual, logits;
  };
  constexpr Shape kShapes[] = {
      {"1B qkv", 3072, 2048, false, false},         {"1B o", 2048, 2048, true, false},
      {"1B gate_up", 16384, 2048, false, false},    {"1B down", 2048, 8192, true, false},
      {"8B qkv", 6144, 4096, false, false},         {"8B o", 4096, 4096, true, false},
      {"8B gate_up", 28672, 4096, false, false},    {"8B down", 4096, 14336, true, false},
      {"8B lm_head", 128256, 4096, false, true},    {"8B/4 qkv", 1536, 4096, false, false},
      {"8B/4 o", 4096, 1024, false, false},         {"8B/4 down", 4096, 3584, false, false},
      {"70B/4 qkv", 2560, 8192, false, false},      {"70B/4 o", 8192, 2048, false, false},
      {"70B/4 gate_up", 14336, 8192, false, false}, {"70B/4 down", 8192, 7168, false, false},
  };
  for (const Shape& s : kShapes) {
    for (const int m : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
      const std::string name = fmt::format("linear {} m {}", s.name, m);
      if (!report.wants(name)) continue;
      LinearArgs args;
      args.in = {device.part(static_cast<size_t>(m * s.k * 2), 0), kBf16, s.k};
      const DType out = s.logits ? DType::kFloat32 : kBf16;
      args.out = {device.allocate(static_cast<size_t>(m * s.n) * size_of(out)), out, s.n};
      if (s.residual) args.residual = args.out;
      args.rows = {m, nullptr};
      const auto bytes = static_cast<size_t>(s.n * s.k * 2);
      const Spread t = device.time(chain(static_cast<double>(bytes)), [&](int i) {
        args.weight = {device.part(bytes, i), kBf16, WeightLayout::kRowMajor, s.n, s.k};
        cuda_kernel_table().linear(device.stream(), args);
      });
      report.add(name, t, static_cast<double>(bytes),
                 2.0 * static_cast<double>(m) * static_cast<double>(s.n * s.k));
    }
  }
}

struct Heads {
  const char* name;
  int32_t q, kv, dim;
};
struct Batch {
  int32_t rows, query, context;
};

// But for sharing keys out, which a step does once for all its layers.
void time_attention(BenchDevice& device, Report& report, const std::string& name, const Heads& h,
                    const Batch& b, Kernel<AttentionArgs> kernel) {
  const int32_t length = b.context + b.query, tokens = b.rows * b.query;
  const int32_t block = 16, blocks = (length + block - 1) / block;
  const size_t row_bytes = size_t{2} * static_cast<size_t>(h.kv * h.dim) * 2;  // of a token
  const size_t cache = static_cast<size_t>(b.rows * blocks * block) * row_bytes;
  std::vector<int32_t> table, slots, lens, starts = {0};
  for (int32_t r = 0; r < b.rows; ++r) {
    for (int32_t i = 0; i < blocks; ++i) table.push_back(i * b.rows + r);
    slots.push_back(r);
    lens.push_back(length);
    starts.push_back((r + 1) * b.query);
  }
  AttentionArgs args;
  const int32_t cols = h.q * h.dim;
  args.q = {device.part(static_cast<size_t>(tokens * cols * 2), 0), kBf16, cols};
  args.out = {device.allocate(static_cast<size_t>(tokens * cols * 2)), kBf16, cols};
  args.cache_dtype = kBf16;
  args.inputs.query_start = device.put(starts);
  args.inputs.seq_lens = device.put(lens);
  args.inputs.row_slot = device.put(slots);
  args.block_table = device.put(table);
  args.max_blocks = blocks;
  args.q_heads = h.q;
  args.kv_heads = h.kv;
  args.head_dim = h.dim;
  args.scale = 1.0f / std::sqrt(static_cast<float>(h.dim));
  args.tokens = {tokens, nullptr};
  args.reqs = {b.rows, nullptr};
  args.uniform_query_len = b.query == 1 ? 1 : 0;
  auto* shares = device.put(std::vector<int32_t>(cuda_kernel_table().key_shares_ints));
  cuda_kernel_table().share_keys(device.stream(), share_keys_for(args, shares));
  args.shares = shares;
  const Spread t = device.time(std::min(32, chain(static_cast<double>(cache))), [&](int i) {
    args.cache = device.part(cache, i);
    kernel(device.stream(), args);
  });
  const double pairs = static_cast<double>(b.rows) * b.query * (b.context + (b.query + 1) / 2.0);
  report.add(name, t, static_cast<double>(b.rows) * length * static_cast<double>(row_bytes),
             4.0 * pairs * cols);
}

void bench_attention(BenchDevice& device, Report& report) {
  constexpr Heads kHeads[] = {{"32/8", 32, 8, 128}, {"8/2", 8, 2, 128}};
  constexpr Batch kDecodes[] = {
      {1, 1, 512},    {1, 1, 4096},  {1, 1, 32768}, {8, 1, 512},    {8, 1, 1024},  {32, 1, 320},
      {32, 1, 512},   {32, 1, 1024}, {32, 1, 4096}, {128, 1, 320},  {128, 1, 512}, {128, 1, 1024},
      {128, 1, 4096}, {256, 1, 320}, {256, 1, 512}, {256, 1, 1024},
  };
  // 8B, 8B and 70B on four GPUs, 1B.
  constexpr Heads kPrefillHeads[] = {
      {"32/8", 32, 8, 128}, {"8/2", 8, 2, 128}, {"16/2", 16, 2, 128}, {"32/8 of 64", 32, 8, 64}};
  constexpr Batch kPrefills[] = {{1, 512, 0},     {1, 2048, 0},   {1, 8192, 0},  {4, 2048, 0},
                                 {1, 2048, 6144}, {16, 64, 1024}, {1, 20, 4096}, {1, 64, 0}};
  const auto name_of = [](const char* way, const Heads& h, const Batch& b) {
    return fmt::format("{} {} b {} q {} ctx {}", way, h.name, b.rows, b.query, b.context);
  };
  const KernelTable& table = cuda_kernel_table();
  for (const Heads& h : kHeads) {
    for (const Batch& b : kDecodes) {
      const std::string name = name_of("attention", h, b);
      if (report.wants(name)) time_attention(device, report, name, h, b, table.attention);
    }
  }
  for (const Heads& h : kPrefillHeads) {
    for (const Batch& b : kPrefills) {
      const std::string name = name_of("prefill", h, b), plain = name_of("prefill plain", h, b);
      if (report.wants(name)) time_attention(device, report, name, h, b, table.attention);
      if (report.wants(plain)) time_attention(device, report, plain, h, b, table.plain_attention);
    }
  }
}

void bench_rows(BenchDevice& device, Report& report) {
  const int32_t cols = 4096, wide = 14336;
  const auto* weight = static_cast<const float*>(device.allocate(cols * 4));
  for (const int32_t m : {1, 8, 32, 128, 2048}) {
    const Rows rows{m, nullptr};
    const auto bytes = static_cast<size_t>(m) * cols * 2;
    const Matrix a{device.part(bytes, 0), kBf16, cols}, b{device.part(bytes, 1), kBf16, cols};
    const Matrix out{device.allocate(bytes), kBf16, cols};
    std::string name = fmt::format("add_rms_norm {} m {}", cols, m);
    if (report.wants(name)) {
      const Spread t = device.time(64, [&](int) {
        cuda_kernel_table().add_rms_norm(device.stream(), {a, b, weight, out, cols, 1e-5f, rows});
      });
      report.add(name, t, 4.0 * static_cast<double>(bytes), 0);
    }
    name = fmt::format("silu_mul {} m {}", wide, m);
    if (report.wants(name)) {
      const Matrix in{device.part(static_cast<size_t>(m) * wide * 4, 0), kBf16, wide * 2};
      const Matrix to{device.allocate(static_cast<size_t>(m) * wide * 2), kBf16, wide};
      const Spread t = device.time(64, [&](int) {
        cuda_kernel_table().silu_mul(device.stream(), {in, to, wide, rows});
      });
      report.add(name, t, 6.0 * static_cast<double>(m) * wide, 0);
    }
  }
}

// A row of logits: "flat" uniform over 4, most tokens stay; "normal" with spread 2.5; "peaked" with
// a few tokens far above the others, as trained models give.
std::vector<float> logits_of(std::string_view kind, int32_t vocab) {
  std::vector<float> row(static_cast<size_t>(vocab));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> flat(0, 4);
  std::normal_distribution<float> normal(0, 2.5f);
  for (float& x : row) x = kind == "flat" ? flat(random) : normal(random);
  for (int i = 0; kind == "peaked" && i < 30; ++i) {
    row[random() % row.size()] = 20.0f - 0.3f * static_cast<float>(i);
  }
  return row;
}

void bench_sample(BenchDevice& device, Report& report) {
  const int32_t vocab = 128256;
  struct Mode {
    const char* name;
    float temperature, top_p;
    int32_t top_k;
    const char* logits;
  };
  constexpr Mode kModes[] = {{"greedy", 0, 1, 0, "normal"},
                             {"all", 0.8f, 1, 0, "normal"},
                             {"top-p flat", 0.8f, 0.95f, 0, "flat"},
                             {"top-p normal", 0.8f, 0.95f, 0, "normal"},
                             {"top-p peaked", 0.8f, 0.95f, 0, "peaked"},
                             {"top-k 50", 0.8f, 1, 50, "normal"},
                             {"top-k 50 top-p flat", 0.8f, 0.95f, 50, "flat"},
                             {"top-k 50 top-p", 0.8f, 0.95f, 50, "normal"},
                             {"top-k 2000 top-p", 0.8f, 0.95f, 2000, "normal"}};
  for (const Mode& mode : kModes) {
    const std::vector<float> base = logits_of(mode.logits, vocab);
    for (const int32_t rows : {1, 32, 128}) {
      const std::string name = fmt::format("sample {} rows {}", mode.name, rows);
      if (!report.wants(name)) continue;
      std::vector<float> logits;
      for (int32_t r = 0; r < rows; ++r) {
        const auto turn = base.begin() + r * 977 % vocab;
        logits.insert(logits.end(), turn, base.end());
        logits.insert(logits.end(), base.begin(), turn);
      }
      SlotParams params;
      params.temperature = mode.temperature;
      params.top_p = mode.top_p;
      params.top_k = mode.top_k;
      const auto n = static_cast<size_t>(rows);
      std::vector<int32_t> slots(n);
      for (int32_t r = 0; r < rows; ++r) slots[static_cast<size_t>(r)] = r;
      SampleArgs args;
      args.logits = device.put(logits);
      args.shard_cols = vocab;
      args.shard_stride = int64_t{rows} * vocab;
      args.vocab_size = vocab;
      args.inputs.row_slot = device.put(slots);
      args.inputs.seq_lens = device.put(slots);
      args.inputs.row_flags = device.put(std::vector<uint8_t>(n, kRowSamples));
      args.slots.params = device.put(std::vector<SlotParams>(n, params));
      args.slots.last_token = device.put(slots);
      args.inputs.turn = device.put(std::vector<uint32_t>{0});
      SampleOutputs& out = args.outputs[0];
      out.turn = static_cast<uint32_t*>(device.allocate(4));
      out.tokens = static_cast<int32_t*>(device.allocate(n * 4));
      out.logprobs = static_cast<float*>(device.allocate(n * 4));
      out.top_tokens = static_cast<int32_t*>(device.allocate(n * 4 * kMaxLogprobs));
      out.top_logprobs = static_cast<float*>(device.allocate(n * 4 * kMaxLogprobs));
      args.outputs[1] = out;
      args.rows = {rows, nullptr};
      const Spread t =
          device.time(16, [&](int) { cuda_kernel_table().sample(device.stream(), args); });
      report.add(name, t, 4.0 * static_cast<double>(rows) * vocab, 0);
    }
  }
}

// Eight adapters of rank 16 beside linears of 8B: each product by itself, the linear, all.
void bench_lora(BenchDevice& device, Report& report) {
  struct Shape {
    const char* name;
    int32_t k, parts;
    int32_t ends[kMaxLoraParts];
  };
  constexpr Shape kShapes[] = {{"qkv", 4096, 3, {4096, 5120, 6144}},
                               {"o", 4096, 1, {4096}},
                               {"gate_up", 4096, 2, {14336, 28672}},
                               {"down", 14336, 1, {4096}}};
  constexpr int32_t kAdapters = 8, kRank = 16;
  const KernelTable& table = cuda_kernel_table();
  for (const Shape& s : kShapes) {
    for (const int32_t m : {32, 128, 256, 2048}) {
      const int32_t n = s.ends[s.parts - 1], width = s.parts * kRank;
      std::vector<int32_t> adapter;
      for (int32_t row = 0; row < m; ++row)
        adapter.push_back(m > 256 ? row * kAdapters / m : row % kAdapters);
      LoraShrinkArgs shrink;
      shrink.in = {device.part(static_cast<size_t>(m * s.k * 2), 0), kBf16, s.k};
      shrink.adapter = device.put(adapter);
      shrink.places = {
          device.put(std::vector<int32_t>(static_cast<size_t>(kAdapters * s.parts), kRank)),
          s.parts, s.parts, kRank, kAdapters};
      shrink.out = static_cast<float*>(device.allocate(static_cast<size_t>(m * width * 4)));
      shrink.cols = s.k;
      shrink.rows = {m, nullptr};
      LoraExpandArgs expand;
      expand.in = shrink.out;
      expand.adapter = shrink.adapter;
      expand.places = shrink.places;
      std::copy(s.ends, s.ends + s.parts, expand.part_end);
      expand.out = {device.allocate(static_cast<size_t>(m * n * 2)), kBf16, n};
      expand.rows = shrink.rows;
      LinearArgs linear;
      linear.in = shrink.in;
      linear.out = expand.out;
      linear.rows = shrink.rows;
      const auto a_bytes = static_cast<size_t>(kAdapters * width * s.k * 2);
      const auto b_bytes = static_cast<size_t>(kAdapters * kRank * n * 2);
      const auto bytes = static_cast<size_t>(n) * static_cast<size_t>(s.k) * 2;
      LoraLinearArgs fused;
      fused.adapter = shrink.adapter;
      fused.places = shrink.places;
      std::copy(s.ends, s.ends + s.parts, fused.part_end);
      fused.shrunk = device.allocate(static_cast<size_t>(m * width * kAdapters * 2));
      fused.silu_mul = s.parts == 2;
      const auto add = [&](const char* what, bool shrinks, bool multiplies, bool expands) {
        const std::string name = fmt::format("lora {} {} m {}", s.name, what, m);
        if (!report.wants(name)) return;
        const size_t read =
            (shrinks ? a_bytes : 0) + (multiplies ? bytes : 0) + (expands ? b_bytes : 0);
        const Spread t = device.time(32, [&](int i) {
          shrink.a = device.part(a_bytes, 3 * i);
          expand.b = device.part(b_bytes, 3 * i + 1);
          linear.weight = {device.part(bytes, i), kBf16, WeightLayout::kRowMajor, n, s.k};
          if (shrinks) table.lora_shrink(device.stream(), shrink);
          if (multiplies) table.linear(device.stream(), linear);
          if (expands) table.lora_expand(device.stream(), expand);
        });
        report.add(name, t, static_cast<double>(read), 0);
      };
      add("shrink", true, false, false);
      add("expand", false, false, true);
      add("linear", false, true, false);
      add("all", true, true, true);
      const std::string name = fmt::format("lora {} one op m {}", s.name, m);
      if (m > table.few_rows.max_plain_rows || !report.wants(name)) continue;
      const Spread t = device.time(32, [&](int i) {
        fused.a = device.part(a_bytes, 3 * i);
        fused.b = device.part(b_bytes, 3 * i + 1);
        fused.linear = linear;
        fused.linear.weight = {device.part(bytes, i), kBf16, WeightLayout::kRowMajor, n, s.k};
        table.lora_linear(device.stream(), fused);
      });
      report.add(name, t, static_cast<double>(bytes + a_bytes + b_bytes), 0);
    }
  }
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--cases") {
      options.cases = argv[i + 1];
    } else if (name == "--json") {
      options.json = argv[i + 1];
    } else if (name == "--pool-gib") {
      options.pool_gib = std::stoul(argv[i + 1]);
    } else {
      fmt::print(stderr, "unknown option {}; options: --cases TEXT --pool-gib N --json PATH\n",
                 name);
      return 64;
    }
  }
  BenchDevice device(options.pool_gib << 30);
  Report report(device, options);
  bench_linear(device, report);
  bench_attention(device, report);
  bench_rows(device, report);
  bench_sample(device, report);
  bench_lora(device, report);
  report.finish();
  return 0;
}

}  // namespace
}  // namespace refrain::kernels

int main(int argc, char** argv) { return refrain::kernels::run(argc, argv); }
