// Speed of the host kernels: every op and shape of a SmolLM2-135M step beside the measured memory
// bandwidth and arithmetic rate. Options: --threads N, --isa NAME, --activations and --weights
// float32|bfloat16, --runs N, --cases TEXT (only those whose name holds it), --json, --cpu-time (of
// the calling thread: for one thread on a busy machine).
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/host/pack.h"
#include "tests/bench/kernels/limits.h"
#include "tests/bench/kernels/smollm_bench.h"

namespace refrain::kernels {
namespace {

struct Options {
  int threads = 2;
  int runs = 15;
  HostIsa isa = best_host_isa();
  DType activations = DType::kBFloat16;
  DType weights = DType::kBFloat16;
  std::string cases;  // run only cases whose name holds this
  bool json = false;
  bool cpu_time = false;
};

struct Line {
  std::string name;
  Timing timing;  // seconds
  double bytes = 0;
  double flops = 0;
  double tokens = 0;
};

std::optional<DType> parse_dtype(std::string_view name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  return std::nullopt;
}

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--json" || name == "--cpu-time") {
      (name == "--json" ? options.json : options.cpu_time) = true;
      continue;
    }
    if (i + 1 >= argc) return std::nullopt;
    const std::string value = argv[++i];
    const auto isa = parse_host_isa(value);
    const auto dtype = parse_dtype(value);
    if (name == "--cases") {
      options.cases = value;
    } else if (name == "--isa" && isa && has_host_isa(*isa)) {
      options.isa = *isa;
    } else if (name == "--activations" && dtype) {
      options.activations = *dtype;
    } else if (name == "--weights" && dtype) {
      options.weights = *dtype;
    } else if (name == "--threads" && std::atoi(value.c_str()) > 0) {
      options.threads = std::atoi(value.c_str());
    } else if (name == "--runs" && std::atoi(value.c_str()) > 0) {
      options.runs = std::atoi(value.c_str());
    } else {
      return std::nullopt;
    }
  }
  return options;
}

constexpr const char* kLinearNames[] = {"qkv", "o", "gate_up", "down", "head"};

// One kind of linear over all layers' weights, so that each is read from memory, not from cache.
Line linear_line(BenchTeam& team, SmolBench& model, const Options& options, int which, int32_t m) {
  const Weight first = which < 4 ? model.weight(0, which) : model.head();
  const Buffer in(static_cast<size_t>(m * first.k) * size_of(options.activations));
  const Buffer out(static_cast<size_t>(m * first.n) * size_of(options.activations));
  const int layers = which < 4 ? model.shape().layers : 1;
  const Timing timing = measure(team, options.runs, [&] {
    for (int layer = 0; layer < layers; ++layer) {
      const Weight& weight = which < 4 ? model.weight(layer, which) : model.head();
      host_kernel_table(options.isa)
          .linear(team.stream(), {{in.as<void>(), options.activations, weight.k},
                                  weight,
                                  nullptr,
                                  {},
                                  {out.as<void>(), options.activations, weight.n},
                                  {m, nullptr}});
    }
  });
  Line line{fmt::format("linear {} M={} N={} K={}", kLinearNames[which], m, first.n, first.k),
            {timing.median / layers, timing.least / layers}};
  line.bytes = static_cast<double>(tiled16_bytes(first.n, first.k, first.dtype));
  line.flops = 2.0 * m * static_cast<double>(first.n * first.k);
  return line;
}

// One row of sampling over the model's vocabulary, logits spread as a model's are.
Line sample_line(BenchTeam& team, const SmolBench& model, const Options& options,
                 const std::string& name, const SlotParams& params) {
  const auto vocab = model.shape().vocab;
  std::vector<float> logits(vocab), scratch(vocab), floats(1 + kMaxLogprobs);
  std::vector<int32_t> ints(4 + kMaxLogprobs), count(vocab);
  std::vector<uint8_t> prompt(vocab);
  for (int32_t i = 0; i < vocab; ++i) {
    logits[i] = static_cast<float>(i * 7919 % vocab) / 4000.0f;
    count[i] = i % 100 == 0;
  }
  SlotParams slot = params;
  uint8_t flags = kRowSamples;
  SampleArgs args;
  args.logits = logits.data();
  args.shard_cols = args.vocab_size = vocab;
  args.inputs.row_slot = &ints[0];
  args.inputs.seq_lens = &ints[1];
  args.inputs.row_flags = &flags;
  args.slots.vocab_size = vocab;
  args.slots.last_token = &ints[2];
  args.slots.params = &slot;
  args.slots.output_count = count.data();
  args.slots.in_prompt = prompt.data();
  uint32_t turn = 0;
  args.inputs.turn = &turn;
  for (SampleOutputs& out : args.outputs) {
    out = {&turn, &ints[3], &floats[0], &ints[4], &floats[1]};
  }
  args.scratch = scratch.data();
  args.rows = {1, nullptr};
  const auto& table = host_kernel_table(options.isa);
  Line line{"sample " + name,
            measure(team, options.runs, [&] { table.sample(team.stream(), args); })};
  line.bytes = static_cast<double>(vocab) * sizeof(float);
  return line;
}

void add_sampling(std::vector<Line>& lines, BenchTeam& team, const SmolBench& model,
                  const Options& options) {
  SlotParams p;
  p.temperature = 0;
  lines.push_back(sample_line(team, model, options, "greedy", p));
  p.num_logprobs = 20;
  lines.push_back(sample_line(team, model, options, "greedy, 20 logprobs", p));
  p.num_logprobs = -1;
  p.temperature = 1;
  lines.push_back(sample_line(team, model, options, "temperature", p));
  p.top_p = 0.9f;
  lines.push_back(sample_line(team, model, options, "top-p 0.9", p));
  p.top_k = 50;
  lines.push_back(sample_line(team, model, options, "top-k 50, top-p 0.9", p));
  p.uses_history = 1;
  p.frequency_penalty = 0.1f;
  lines.push_back(sample_line(team, model, options, "top-k, top-p, penalties", p));
  p = SlotParams{};
  p.min_p = 0.05f;
  lines.push_back(sample_line(team, model, options, "min-p 0.05", p));
}

// A whole step, then what of it each op takes.
void add_step(std::vector<Line>& lines, BenchTeam& team, SmolBench& model, const Options& options,
              const SmolStep& step, const std::string& name) {
  model.record(step);
  Line line{name, measure(team, options.runs, [&] { team.replay(); })};
  line.bytes = model.weight_bytes();
  line.flops = model.flops(step);
  line.tokens = static_cast<double>(step.rows) * step.query_len;
  lines.push_back(line);
  for (const auto& [op, seconds] : team.replay_timed()) {
    lines.push_back({fmt::format("    {}", op), {seconds, seconds}});
  }
}

void print_json(const Options& options, const Limits& limits, const std::vector<Line>& lines) {
  fmt::print(
      "{{\"device\": \"host\", \"isa\": \"{}\", \"threads\": {}, \"activations\": \"{}\", "
      "\"weights\": \"{}\",\n \"limits\": {{\"read_gb_s\": {:.2f}, \"fma_gflop_s\": {:.1f}, "
      "\"dot_gflop_s\": {:.1f}}},\n \"cases\": [\n",
      to_string(options.isa), options.threads, to_string(options.activations),
      to_string(options.weights), limits.read_gb_s, limits.fma_gflop_s, limits.dot_gflop_s);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Line& l = lines[i];
    const size_t name_at = l.name.find_first_not_of(' ');
    fmt::print(
        "  {{\"case\": \"{}\", \"part\": {}, \"runs\": {}, \"median_us\": {:.2f}, "
        "\"min_us\": {:.2f}, \"gb_s\": {:.2f}, \"gflop_s\": {:.1f}, \"tokens_per_s\": "
        "{:.1f}}}{}\n",
        l.name.substr(name_at), name_at > 0, name_at > 0 ? 1 : options.runs, l.timing.median * 1e6,
        l.timing.least * 1e6, l.bytes / l.timing.median * 1e-9, l.flops / l.timing.median * 1e-9,
        l.tokens / l.timing.median, i + 1 < lines.size() ? "," : "");
  }
  fmt::print(" ]}}\n");
}

void print_table(const Options& options, const Limits& limits, const std::vector<Line>& lines) {
  fmt::print(
      "host {}, {} threads, activations {}, weights {}, median of {} runs\n"
      "limits measured: memory {:.1f} GB/s, float32 {:.0f} GFLOP/s, bfloat16 dot {:.0f} "
      "GFLOP/s\n\n",
      to_string(options.isa), options.threads, to_string(options.activations),
      to_string(options.weights), options.runs, limits.read_gb_s, limits.fma_gflop_s,
      limits.dot_gflop_s);
  fmt::print("{:<38} {:>11} {:>11} {:>8} {:>9} {:>9}\n", "case", "median us", "min us", "GB/s",
             "GFLOP/s", "tokens/s");
  for (const Line& l : lines) {
    const auto rate = [&](double amount, double scale) {
      return amount == 0 ? std::string("-")
                         : fmt::format("{:.1f}", amount / l.timing.median * scale);
    };
    fmt::print("{:<38} {:>11.1f} {:>11.1f} {:>8} {:>9} {:>9}\n", l.name, l.timing.median * 1e6,
               l.timing.least * 1e6, rate(l.bytes, 1e-9), rate(l.flops, 1e-9), rate(l.tokens, 1));
  }
}

struct Case {
  std::string name;
  std::function<void(std::vector<Line>&)> run;
};

std::vector<Case> all_cases(BenchTeam& team, SmolBench& model, const Options& options) {
  std::vector<Case> cases;
  for (const int32_t m : {1, 4, 16, 512}) {
    for (int which = 0; which < 5; ++which) {
      if (which == 4 && m > 16) continue;  // only sampled tokens reach the head
      cases.push_back({fmt::format("linear {} M={}", kLinearNames[which], m),
                       [&, m, which](std::vector<Line>& lines) {
                         lines.push_back(linear_line(team, model, options, which, m));
                       }});
    }
  }
  cases.push_back(
      {"sample", [&](std::vector<Line>& lines) { add_sampling(lines, team, model, options); }});
  const std::pair<const char*, SmolStep> steps[] = {{"decode batch 1, context 128", {1, 1, 128}},
                                                    {"decode batch 1, context 2048", {1, 1, 2048}},
                                                    {"decode batch 16, context 128", {16, 1, 128}},
                                                    {"prefill 512", {1, 512, 0}}};
  for (const auto& [name, step] : steps) {
    cases.push_back({name, [&, name = name, step = step](std::vector<Line>& lines) {
                       add_step(lines, team, model, options, step, name);
                     }});
  }
  return cases;
}

int run(const Options& options) {
  BenchTeam team(options.threads, options.cpu_time ? BenchClock::kThread : BenchClock::kWall);
  const Limits limits = measure_limits(team);
  SmolBench model(team, options.isa, options.activations, options.weights);
  std::vector<Line> lines;
  for (const Case& c : all_cases(team, model, options)) {
    if (c.name.find(options.cases) != std::string::npos) c.run(lines);
  }
  options.json ? print_json(options, limits, lines) : print_table(options, limits, lines);
  return 0;
}

}  // namespace
}  // namespace refrain::kernels

int main(int argc, char** argv) {
  const auto options = refrain::kernels::parse(argc, argv);
  if (!options) {
    std::fputs(
        "kernel_bench [--threads N] [--isa scalar|avx2|avx512|avx512_bf16] [--activations "
        "float32|bfloat16] [--weights float32|bfloat16] [--runs N] [--cases TEXT] [--json] "
        "[--cpu-time]\n",
        stderr);
    return 64;
  }
  return refrain::kernels::run(*options);
}
