#include "worker/runner/context_captures.h"

#include <algorithm>
#include <cstring>

#include "ipc/protocol/manifest_mode.h"

namespace refrain::worker {

CaptureResult ContextCaptures::run() {
  capture(context_.model(), "");
  if (context_.draft() != nullptr) capture(*context_.draft(), std::string(ipc::kDraftMode));
  return std::move(result_);
}

// A batch as large as the key, in slots nobody has yet; every block is the reserved one.
void ContextCaptures::prepare_batch(const BatchDescriptor& key) {
  const kernels::StepLayout& layout = context_.buffers->layout();
  uint8_t* block = context_.buffers->next().block;
  context_.stream->synchronize();  // a run before may still be reading it
  std::memset(block, 0, layout.total);
  const auto put = [block](size_t offset, int32_t row, int32_t value) {
    reinterpret_cast<int32_t*>(block + offset)[row] = value;
  };
  const int32_t longest = options_.config.max_model_len;
  const int32_t per_row =
      key.uniform ? key.num_tokens / key.num_reqs : std::min(key.num_tokens, longest);
  int32_t rows = 0;
  for (int32_t left = key.num_tokens; left > 0 && rows < key.num_reqs; ++rows) {
    const int32_t tokens = std::min(left, per_row);
    put(layout.row_slot, rows, rows);
    put(layout.row_query_len, rows, tokens);
    // Decodes attend over a context; a prompt starts from none.
    put(layout.row_context, rows,
        key.uniform ? std::max(0, std::min(options_.config.block_size, longest - tokens)) : 0);
    block[layout.row_flags + static_cast<size_t>(rows)] = kernels::kRowSamples;
    left -= tokens;
  }
  kernels::StepHeader header;
  header.num_tokens = key.uniform ? key.num_tokens : std::min(key.num_tokens, per_row * rows);
  header.num_reqs = rows;
  std::memcpy(block + layout.header, &header, sizeof header);
  planner_.plan(layout, block, rows, context_.buffers->begin_turn(), *context_.stream);
}

// One size of every range of rows beyond the largest graph for a prompt, and of every range of
// requests.
std::vector<BatchDescriptor> ContextCaptures::uncaptured_sizes(const HostedProgram& program) const {
  const auto planned_rows = device_.kernels().planned_rows;
  std::vector<BatchDescriptor> sizes;
  if (planned_rows == nullptr) return sizes;
  int32_t rows = 0;
  for (const auto mode : {ipc::RuntimeMode::kPiecewise, ipc::RuntimeMode::kFull}) {
    for (const BatchDescriptor& key : program.dispatcher->keys(mode)) {
      if (!key.uniform) rows = std::max(rows, key.num_tokens);
    }
  }
  const auto ranges = [planned_rows](int32_t begin, int32_t end) {  // the most rows of each
    std::vector<int32_t> most;
    while (begin < end) most.push_back(begin = std::min(planned_rows(begin + 1), end));
    return most;
  };
  const ipc::WorkerConfig& config = options_.config;
  for (const int32_t tokens : ranges(rows, config.max_num_batched_tokens))
    sizes.push_back({tokens, std::min(tokens, config.max_num_seqs)});
  // What is of requests is launched for fewer of them than a step of many tokens may have. Kernels
  // of adapters, too, differ by rows.
  int32_t few = 0;  // rows that other lowerings take
  for (const auto& form : program.for_keys) few = std::max(few, form->lora ? 0 : form->rows);
  const int32_t many = std::min(planned_rows(few + 1), config.max_num_batched_tokens);
  for (const int32_t reqs :
       ranges(0, std::min(config.max_num_seqs, config.max_num_batched_tokens))) {
    sizes.push_back({std::max(many, reqs), reqs});
    if (program.lora != nullptr) sizes.push_back({std::max(many, reqs), reqs, false, true});
  }
  // Many rows with adapters: what linears choose is chosen by then, so one size will do.
  if (program.lora != nullptr)
    sizes.push_back({config.max_num_batched_tokens, config.max_num_seqs, false, true});
  for (const auto& form : program.for_keys) {
    if (!form->lora) continue;
    for (const int32_t tokens : ranges(0, planned_rows(form->rows)))
      if (tokens <= config.max_num_batched_tokens)
        sizes.push_back({tokens, std::min(tokens, config.max_num_seqs), false, true});
  }
  return sizes;
}

// `prefix` of what is told of it.
void ContextCaptures::capture(HostedProgram& program, const std::string& prefix) {
  CaptureHooks<BatchDescriptor> hooks;
  hooks.prepare = [this, &program](const BatchDescriptor& key) {
    prepare_batch(key);
    // What the language model passes to others its first ops have made.
    if (&program != &context_.model()) launch_ops(context_.model().context, {0, 2}, key);
  };
  if (context_.communicator->size() > 1 || context_.replicas != nullptr) {
    hooks.any_rank_failed = [this](bool failed) { return context_.any_rank_failed(failed); };
  }
  hooks.progress = [this, &prefix](const CaptureProgress& progress) {
    if (progress_)
      progress_(
          {ipc::StartPhase::kCapture, progress.done, progress.total, prefix + progress.detail});
  };
  const std::vector<BatchDescriptor> uncaptured = uncaptured_sizes(program);
  for (Lowering* lowering : program.lowerings()) {
    std::vector<int32_t>& brought = lowering->request_sizes;
    brought.clear();
    const auto bring = [&](const BatchDescriptor& key) {
      if (lowering == &program.lowering(key)) brought.push_back(key.num_reqs);
    };
    std::ranges::for_each(program.dispatcher->keys(ipc::RuntimeMode::kPiecewise), bring);
    std::ranges::for_each(uncaptured, bring);
    std::ranges::sort(brought);
  }
  const CaptureJob<BatchDescriptor> job{
      [&program](const BatchDescriptor& key) -> const Lowering& { return program.lowering(key); },
      std::max(device_.warmup_runs(), options_.config.cudagraph_num_of_warmups),
      options_.config.debug_cudagraph, uncaptured};
  CaptureResult result =
      capture_all(job, hooks, *context_.pool, *program.dispatcher, program.executables);
  for (ipc::ManifestEntry& entry : result.manifest) {
    entry.mode = prefix + entry.mode;
    result_.manifest.push_back(std::move(entry));
  }
  for (const std::string& warning : result.warnings) result_.warnings.push_back(prefix + warning);
}

}  // namespace refrain::worker
