// Where a step's time goes: the step through the runner, its graph launched back to back, and each
// kind of op in a graph of its own, over all layers, so that weights come from memory as they do in
// a step. Dummy weights; --device by REFRAIN_TEST_DEVICE.
// usage: step_bench MODEL_DIRECTORY CONTEXT BATCH...      decode, two steps in flight, of CONTEXT
//        tokens in the mean (at least 70)
//        step_bench MODEL_DIRECTORY prefill TOKENS...     a prompt's only step
//        step_bench MODEL_DIRECTORY lora ADAPTERS CONTEXT BATCH...   the same with LoRA adapters
//        step_bench MODEL_DIRECTORY mixed CONTEXT BATCH TOKENS...   decode rows beside prompts of
//        230
//                                   in sum TOKENS, default mode and sizes, two steps in flight;
//                                   of the last TOKENS each kind of op, too
//        step_bench MODEL_DIRECTORY verify CONTEXT DRAFTS HEAD|MODEL|- BATCH...   a step that
//        checks so many
//                                   drafts a row beside a step of one token, drafts from the text
//                                   (-), or from an EAGLE-3 head or a draft model of that directory

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "tests/graph/runner/session.h"

namespace refrain::tests {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begun) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begun).count();
}

// us of one launch, from the difference of two runs.
double time_graph(worker::Stream& stream, worker::Graph& graph) {
  const auto run = [&](int launches) {
    stream.synchronize();
    const auto begun = Clock::now();
    for (int i = 0; i < launches; ++i) stream.launch(graph);
    stream.synchronize();
    return us_since(begun);
  };
  const bool slow = run(3) > 3 * 1000;
  const int few = slow ? 2 : 10, many = slow ? 8 : 40;
  std::vector<double> samples;
  samples.reserve(5);
  for (int i = 0; i < 5; ++i) samples.push_back((run(many) - run(few)) / (many - few));
  std::sort(samples.begin(), samples.end());
  return samples[2];
}

worker::ValueId weight_of(const worker::Op& op) {
  if (const auto* linear = std::get_if<worker::LinearOp>(&op)) return linear->weight;
  if (const auto* lora = std::get_if<worker::LoraLinearOp>(&op)) return lora->weight;
  const auto* fused = std::get_if<worker::FusedLinearOp>(&op);
  return fused == nullptr ? worker::kNoValue : fused->weight;
}

// What tells ops of a name apart: a linear's weight, or an adapter's matrix.
std::string tensor_of(const worker::Program& program, const worker::Op& op) {
  if (const auto* shrink = std::get_if<worker::LoraShrinkOp>(&op))
    return program.value(shrink->a).name;
  if (const auto* expand = std::get_if<worker::LoraExpandOp>(&op))
    return program.value(expand->b).name;
  const worker::ValueId weight = weight_of(op);
  return weight == worker::kNoValue ? "" : program.value(weight).parts.front().tensor;
}

// "linear mlp.down_proj.weight": the op and its tensor without the layer's name.
std::string kind_of(const worker::Program& program, const worker::Op& op) {
  std::string kind = worker::op_name(op);
  const std::string tensor = tensor_of(program, op);
  if (tensor.empty()) return kind;
  const size_t layers = tensor.find("layers.");
  if (layers == std::string::npos) return kind + " " + tensor;
  return kind + " " + tensor.substr(tensor.find('.', layers + 7) + 1);
}

double weight_bytes(const worker::Program& program, const worker::Op& op) {
  const worker::ValueId id = weight_of(op);
  if (id == worker::kNoValue) return 0;
  const worker::Value& weight = program.value(id);
  return static_cast<double>(weight.rows.scale * weight.cols) *
         static_cast<double>(size_of(weight.dtype));
}

// `batch`: the real sizes of the last step, for ops run eagerly; null: as captured.
void profile(Session& session, const worker::BatchDescriptor& key,
             const worker::BatchShape* batch = nullptr) {
  const worker::Lowering& lowering = session.runner().hosted().lowering(key);
  const worker::Program& program = lowering.program;
  worker::Stream& stream = *lowering.context.stream;
  std::map<std::string, std::vector<const worker::Op*>> kinds;
  for (const worker::Op& op : program.ops) kinds[kind_of(program, op)].push_back(&op);
  double sum = 0;
  for (const auto& [kind, ops] : kinds) {
    for (const worker::Op& op : program.ops) {  // what it reads, as in a step
      if (&op == ops.front()) break;
      worker::launch_op(lowering.context, op, key, batch);
    }
    stream.begin_capture();
    for (const worker::Op* op : ops) worker::launch_op(lowering.context, *op, key, batch);
    const auto graph = stream.end_capture();
    const double us = time_graph(stream, *graph);
    double bytes = 0;
    for (const worker::Op* op : ops) bytes += weight_bytes(program, *op);
    std::printf("  %-44s %4zu ops %9.1f us %8.2f us each", kind.c_str(), ops.size(), us,
                us / static_cast<double>(ops.size()));
    if (bytes > 0) std::printf(" %7.0f GB/s", bytes / us * 1e-3);
    std::printf("\n");
    sum += us;
  }
  std::printf("  %-44s %18.1f us\n", "sum", sum);
}

SessionOptions bench_options(const std::string& mode, int batch, int max_model_len, int size) {
  SessionOptions options;
  options.keep_logits = false;  // as when serving
  options.config.dtype = "bfloat16";
  options.config.load_dummy = true;
  options.config.max_num_seqs = batch;
  options.config.max_num_batched_tokens = std::max(2048, size);
  options.config.max_model_len = max_model_len;
  options.config.block_size = 16;
  options.config.cudagraph_mode = mode;
  options.config.cudagraph_capture_sizes = {size};
  options.num_blocks = 1 + int64_t{batch} * ((max_model_len + 15) / 16);
  return options;
}

// The FULL graph of `size` tokens and its ops.
void report(Session& session, const std::string& what, int size, double runner_us) {
  worker::HostedProgram& hosted = session.runner().hosted();
  const auto keys = hosted.dispatcher->keys(ipc::RuntimeMode::kFull);
  for (size_t id = 0; id < keys.size(); ++id) {
    if (keys[id].num_tokens != size ||
        (session.options().config.max_loras > 0 && !keys[id].has_lora))
      continue;
    const auto& executable =
        hosted.executables.at(ipc::RuntimeMode::kFull, static_cast<int32_t>(id));
    auto& graph = *std::get<worker::GraphPiece>(executable.pieces.front()).graph;
    std::printf("%s on %s: step through the runner %.1f us; graph of %d nodes %.1f us\n",
                what.c_str(), session.device().name().c_str(), runner_us, graph.num_nodes(),
                time_graph(*hosted.context.stream, graph));
    profile(session, keys[id]);
  }
}

// us a step, two in flight: of steps `few` to `many` of a run; step(i) is the i-th.
double time_steps(Session& session, const std::function<ipc::Step(int)>& step, int few, int many) {
  const auto steps = [&](int count) {
    std::vector<ipc::Step> prepared;
    prepared.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) prepared.push_back(step(i));
    const auto begun = Clock::now();
    session.runner().submit(prepared[0]);
    for (int i = 1; i < count; ++i) {
      session.runner().submit(prepared[static_cast<size_t>(i)]);
      session.runner().wait();
    }
    session.runner().wait();
    return us_since(begun);
  };
  steps(few);
  const double first = steps(few), second = steps(many);
  return (second - first) / (many - few);
}

constexpr int32_t kLoraRank = 16;

// All places have adapters of that rank, of zeros: the products are computed as of any numbers.
// Where a place has no rank they are left out, as most adapters have none for embedding and head.
void fill_places(worker::HostedProgram& hosted) {
  const worker::OpContext& context = hosted.lora->context;
  const worker::ValueId id = hosted.lora_program->ranks;
  const worker::Value& value = context.program->value(id);
  std::vector<int32_t> ranks(static_cast<size_t>(value.rows.scale * value.cols));
  std::vector<worker::LoraLinear> linears;
  for (const worker::Op& op : context.program->ops) {
    if (const auto* shrink = std::get_if<worker::LoraShrinkOp>(&op)) linears.push_back(shrink->of);
  }
  linears.pop_back();  // the head's
  for (int64_t place = 0; place < value.rows.scale; ++place) {
    for (const worker::LoraLinear& of : linears)
      std::fill_n(ranks.begin() + place * value.cols + of.first, of.parts, kLoraRank);
  }
  context.stream->copy(context.address(id), ranks.data(), ranks.size() * sizeof ranks[0]);
  context.stream->synchronize();
}

// `adapters`: places that the rows take in turns; 0: none.
void bench_decode(const std::string& model, int context, int batch, int adapters) {
  SessionOptions options = bench_options("FULL_DECODE_ONLY", batch, context + 512, batch);
  options.config.max_loras = adapters;
  options.config.max_lora_rank = kLoraRank;
  Session session(model, options);
  session.start();
  if (adapters > 0) fill_places(session.runner().hosted());
  constexpr int kFew = 20, kMany = 120, kMiddle = (kFew + kMany) / 2;
  const int first = std::max(1, context - kMiddle);
  const auto step_of = [&](const std::vector<Row>& rows) {
    ipc::Step step = session.make_step(rows);
    step.has_lora = adapters > 0;
    for (ipc::SlotSetup& setup : step.setups)
      setup.adapter = adapters > 0 ? setup.slot % adapters : -1;
    return step;
  };
  for (int slot = 0; slot < batch; ++slot) {
    session.runner().submit(step_of({{slot, prompt(first, slot), 0}}));
    session.runner().wait();
  }
  const auto step = [&](int i) {
    std::vector<Row> rows;
    rows.reserve(static_cast<size_t>(batch));
    for (int slot = 0; slot < batch; ++slot) rows.push_back({slot, {kTokenOnDevice}, first + i});
    return step_of(rows);
  };
  const double us = time_steps(session, step, kFew, kMany);
  // What the graph and its ops are timed with: launches take the inputs of all turns.
  for (size_t turn = 0; turn < worker::ModelRunner::kMaxInFlight; ++turn) {
    session.runner().submit(step(kMiddle));
    session.runner().wait();
  }
  report(session, "batch " + std::to_string(batch) + " context " + std::to_string(context), batch,
         us);
}

// Median of a prompt's only step through the runner.
double prefill_us(Session& session, int tokens) {
  std::vector<double> samples;
  samples.reserve(20);
  for (int i = 0; i < 20; ++i) {
    const ipc::Step step = session.make_step({{0, prompt(tokens, 0), 0}});
    const auto begun = Clock::now();
    session.runner().submit(step);
    session.runner().wait();
    samples.push_back(us_since(begun));
  }
  std::sort(samples.begin(), samples.end());
  return samples[10];
}

void bench_prefill(const std::string& model, int tokens) {
  for (const char* mode : {"NONE", "PIECEWISE", "FULL"}) {
    Session session(model, bench_options(mode, 1, tokens + 16, tokens));
    session.start();
    const double us = prefill_us(session, tokens);
    std::printf("prompt of %d, %s: step through the runner %.1f us\n", tokens, mode, us);
    if (std::string_view(mode) == "FULL") {
      report(session, "prompt of " + std::to_string(tokens), tokens, us);
    }
  }
}

// Decode rows beside prompts that begin anew in each step, as under arrivals.
void bench_mixed(const std::string& model, int context, int batch,
                 const std::vector<int>& prompt_tokens) {
  constexpr int kPromptTokens = 230, kMostPrompts = 40, kDefaultRequests = 256;
  const int requests = batch + kMostPrompts, longest = context + 512;
  SessionOptions options =
      bench_options("FULL_AND_PIECEWISE", std::max(requests, kDefaultRequests), longest, 512);
  options.config.max_num_batched_tokens = 8192;
  options.config.has_capture_sizes = false;
  options.num_blocks = 1 + int64_t{requests} * ((longest + 15) / 16);
  Session session(model, options);
  session.start();
  for (int slot = 0; slot < batch; ++slot) session.run({{slot, prompt(context, slot), 0}});
  for (const int tokens : prompt_tokens) {
    const auto step = [&](int i) {
      std::vector<Row> rows;
      rows.reserve(static_cast<size_t>(batch + kMostPrompts));
      for (int slot = 0; slot < batch; ++slot)
        rows.push_back({slot, {kTokenOnDevice}, context + i});
      for (int left = tokens, slot = batch; left > 0; left -= kPromptTokens, ++slot)
        rows.push_back({slot, prompt(std::min(left, kPromptTokens), slot), 0});
      return session.make_step(rows);
    };
    const double us = time_steps(session, step, 4, 14);
    const int total = batch + tokens;
    std::printf("mixed: %d rows of context %d, %d prompt tokens, %d in all: %.1f us a step\n",
                batch, context, tokens, total, us);
    if (tokens != prompt_tokens.back()) continue;
    constexpr int kOne[] = {1};
    const worker::BatchShape shape = worker::batch_shape(step(0), kOne);
    const worker::BatchDescriptor key{shape.num_tokens, shape.num_reqs, false, false};
    profile(session, key, &shape);
  }
}

// Steps of one token a row and steps that check `drafts` drafts a row, two in flight.
void bench_verify(const std::string& model, int context, int drafts, const std::string& draft,
                  int batch) {
  constexpr int kFew = 5, kMany = 25, kSteps = 2 * kFew + kMany;
  const int q = 1 + drafts;
  const int most = context + 16 + kSteps * (q + 1) + 3 * drafts;
  SessionOptions options = bench_options("FULL_DECODE_ONLY", batch, most, batch * q);
  options.config.cudagraph_capture_sizes = {batch, batch * q};
  options.config.num_speculative_tokens = drafts;
  options.config.prompt_lookup_max = 3;
  const char* from = "no head";
  if (draft != "-") {
    const bool is_head = load_model_config(draft)->architecture.find("Eagle3") != std::string::npos;
    if (is_head) options.config.draft_head = ipc::DraftHead::kEagle3;
    options.draft = draft;
    from = is_head ? "EAGLE-3 head" : "draft model";
  }
  Session session(model, options);
  session.start();
  for (int slot = 0; slot < batch; ++slot) session.run({{slot, prompt(context, slot), 0}});
  int bound = context;
  const auto steps_of = [&](int tokens) {
    return time_steps(
        session,
        [&, tokens](int /*i*/) {
          std::vector<Row> rows;
          rows.reserve(static_cast<size_t>(batch));
          for (int slot = 0; slot < batch; ++slot)
            rows.push_back({slot, std::vector<TokenId>(static_cast<size_t>(tokens), kTokenOnDevice),
                            bound, tokens > 1});
          bound += tokens;
          return session.make_step(rows);
        },
        kFew, kMany);
  };
  const double one = steps_of(1), verified = steps_of(q);
  std::printf("batch %d context %d, %s: 1 token a row %.1f us, %d tokens %.1f us, ratio %.3f\n",
              batch, context, from, one, q, verified, verified / one);
}

}  // namespace
}  // namespace refrain::tests

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: step_bench MODEL_DIRECTORY CONTEXT|prefill BATCH|TOKENS...\n");
    return 64;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string what = argv[2];
  if (what == "mixed" && argc > 5) {
    std::vector<int> tokens;
    for (int i = 5; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
    refrain::tests::bench_mixed(argv[1], std::atoi(argv[3]), std::atoi(argv[4]), tokens);
    return 0;
  }
  if (what == "verify" && argc > 6) {
    for (int i = 6; i < argc; ++i)
      refrain::tests::bench_verify(argv[1], std::atoi(argv[3]), std::atoi(argv[4]), argv[5],
                                   std::atoi(argv[i]));
    return 0;
  }
  if (what == "lora" && argc > 5) {
    for (int i = 5; i < argc; ++i)
      refrain::tests::bench_decode(argv[1], std::atoi(argv[4]), std::atoi(argv[i]),
                                   std::atoi(argv[3]));
    return 0;
  }
  for (int i = 3; i < argc; ++i) {
    if (what == "prefill") {
      refrain::tests::bench_prefill(argv[1], std::atoi(argv[i]));
    } else {
      refrain::tests::bench_decode(argv[1], std::atoi(argv[2]), std::atoi(argv[i]), 0);
    }
  }
  return 0;
}
