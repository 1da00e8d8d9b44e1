#include <algorithm>

#include "worker/bench/kinds.h"

namespace refrain::worker {
namespace {

struct Kernel {
  const AttentionBackend* backend;  // the first of them
  std::string names;                // of all that use it
};

// Backends that differ only in what graphs may hold them are one kernel, measured once.
Result<std::vector<Kernel>> kernels_of(const std::string& name, const Device& device) {
  std::vector<Kernel> kernels;
  if (name != "auto") {
    REFRAIN_ASSIGN_OR_RETURN(const AttentionBackend* one, find_attention_backend(name, device));
    kernels.push_back({one, one->name});
    return kernels;
  }
  for (const AttentionBackend* backend : attention_backends(device.kind())) {
    const auto same = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& kernel) {
      return kernel.backend->kernel == backend->kernel;
    });
    if (same == kernels.end()) {
      kernels.push_back({backend, backend->name});
    } else {
      same->names += std::string(", ") + backend->name;
    }
  }
  return kernels;
}

const AttentionOp* first_attention(const Program& program) {
  for (const Op& op : program.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op)) return attention;
  }
  return nullptr;
}

}  // namespace

void AttentionBench::measure(const AttentionOp& op, const AttentionBackend& backend,
                             const std::string& names, const Batch& batch, const Limits& limits) {
  BenchDevice& device = s_.device;
  const Program& program = s_.program;
  const int32_t block = s_.options.config.block_size;
  const int32_t blocks = (batch.length() + block - 1) / block,
                tokens = batch.requests * batch.query;
  const DType cache_dtype = program.value(op.cache).dtype, q_dtype = program.value(op.q).dtype;
  const auto row_bytes =
      static_cast<size_t>(2 * op.kv_heads * op.head_dim) * size_of(cache_dtype);  // of a token
  const size_t cache_bytes = static_cast<size_t>(batch.requests) * blocks * block * row_bytes;
  const int64_t cols = op.q_heads * op.head_dim;
  const auto q_bytes = static_cast<size_t>(tokens * cols) * size_of(q_dtype);
  const Pool caches(device, s_.options.pool_bytes, cache_bytes);
  const auto q = device.numbers(q_bytes), out = device.scratch(q_bytes);

  std::vector<int32_t> table, slots, lens, starts = {0};
  for (int32_t request = 0; request < batch.requests; ++request) {
    for (int32_t i = 0; i < blocks; ++i)
      table.push_back(i * batch.requests + (i < batch.shared / block ? 0 : request));
    slots.push_back(request);
    lens.push_back(batch.length());
    starts.push_back((request + 1) * batch.query);
  }
  const auto table_at = device.put(table), slots_at = device.put(slots);
  const auto lens_at = device.put(lens), starts_at = device.put(starts);
  kernels::AttentionArgs args;
  args.q = {q->data(), q_dtype, cols};
  args.out = {out->data(), q_dtype, cols};
  args.cache_dtype = cache_dtype;
  args.inputs.query_start = static_cast<int32_t*>(starts_at->data());
  args.inputs.seq_lens = static_cast<int32_t*>(lens_at->data());
  args.inputs.row_slot = static_cast<int32_t*>(slots_at->data());
  args.block_table = static_cast<int32_t*>(table_at->data());
  args.max_blocks = blocks;
  args.q_heads = static_cast<int32_t>(op.q_heads);
  args.kv_heads = static_cast<int32_t>(op.kv_heads);
  args.head_dim = static_cast<int32_t>(op.head_dim);
  args.block_size = block;
  args.sliding_window = static_cast<int32_t>(op.sliding_window);
  args.scale = op.scale;
  args.tokens = {tokens, nullptr};
  args.reqs = {batch.requests, nullptr};
  const bool decode = batch.query == 1;
  args.uniform_query_len = decode ? 1 : 0;
  const auto kind = batch.cascade ? kernels::AttentionPlanKind::kUnits : backend.plan;
  std::unique_ptr<Buffer> plan_at, parts;
  if (kind != kernels::AttentionPlanKind::kNone) {
    const auto make_plan = kind == kernels::AttentionPlanKind::kUnits
                               ? kernels::make_attention_plan
                               : kernels::make_flashinfer_plan;
    const kernels::AttentionPlanShape shape{tokens, batch.requests, 1, args.q_heads / args.kv_heads,
                                            blocks};
    std::vector<int32_t> plan(static_cast<size_t>(shape.ints()));
    const std::vector<int32_t> queries(slots.size(), batch.query),
        contexts(slots.size(), batch.context);
    make_plan(shape,
              {slots, queries, contexts, batch.cascade ? batch.shared : 0,
               batch.cascade ? batch.requests : 0, args.sliding_window},
              plan.data());
    plan_at = device.put(plan);
    parts = device.scratch(static_cast<size_t>(shape.max_parts() * op.q_heads) *
                           static_cast<size_t>(op.head_dim + 2) * sizeof(float));
    args.planned = {static_cast<int32_t*>(plan_at->data()), static_cast<float*>(parts->data()),
                    shape, shape.max_units(tokens, batch.requests, batch.cascade)};
  }
  const auto kernel = batch.cascade ? &kernels::KernelTable::cascade_attention : backend.kernel;
  std::unique_ptr<Buffer> shares;  // once a step, for all layers: not in the time
  if (device.kernels().share_keys != nullptr) {
    shares =
        device.scratch(static_cast<size_t>(device.kernels().key_shares_ints) * sizeof(int32_t));
    auto* at = static_cast<int32_t*>(shares->data());
    device.kernels().share_keys(device.stream().ref(), kernels::share_keys_for(args, at));
    args.shares = at;
  }
  const auto seconds = device.time([&](int i) {
    args.cache = caches.part(cache_bytes, i);
    (device.kernels().*kernel)(device.stream().ref(), args);
  });

  // Keys that a query sees: its own and those before it, at most the window.
  double pairs = 0, keys = 0;
  const int32_t window = args.sliding_window > 0 ? args.sliding_window : batch.length();
  for (int32_t i = 0; i < batch.query; ++i) pairs += std::min(batch.context + i + 1, window);
  keys = std::min(batch.length(), window + batch.query - 1);
  const double read =
      batch.cascade ? batch.shared + batch.requests * (keys - batch.shared) : batch.requests * keys;
  const double bytes = read * static_cast<double>(row_bytes) + 2 * static_cast<double>(q_bytes);
  s_.cases.write_launch(
      limits, seconds, bytes, 4.0 * batch.requests * pairs * static_cast<double>(cols),
      {{"what", fmt::format("{} {}/{} x {}{}", decode ? "decode" : "prefill", op.q_heads,
                            op.kv_heads, op.head_dim, batch.cascade ? " cascade" : "")},
       {"phase", decode ? "decode" : "prefill"},
       {"backends", names},
       {"batch", batch.requests},
       {"context", batch.length()},
       {"shared_prefix", batch.shared},
       {"cascade", batch.cascade},
       {"q_heads", op.q_heads},
       {"kv_heads", op.kv_heads},
       {"head_dim", op.head_dim}});
}

Status AttentionBench::run() {
  const Program& program = s_.program;
  const AttentionOp* op = first_attention(program);
  REFRAIN_CHECK(op != nullptr, "{} has no attention", program.name);
  REFRAIN_ASSIGN_OR_RETURN(const std::vector<Kernel> kernels,
                           kernels_of(s_.options.config.attention_backend, s_.device.device()));
  std::vector<Batch> batches;
  for (const int32_t requests : s_.options.batches) {
    for (const int32_t context : s_.options.contexts) {
      const int32_t block = s_.options.config.block_size;
      const int32_t shared = std::min(s_.options.shared_prefix, context - 1) / block * block;
      batches.push_back({requests, 1, context - 1, shared});
      if (shared > 0) batches.push_back({requests, 1, context - 1, shared, true});
    }
  }
  for (const int32_t length : s_.options.lengths) batches.push_back({1, length, 0});
  const DType type = program.value(op->q).dtype;
  Limits limits;
  {
    const Pool pool(s_.device, s_.options.pool_bytes, 0);
    limits = measure_limits(s_.device, pool, {type, type});
  }
  for (const Kernel& kernel : kernels) {
    const DType cache = program.value(op->cache).dtype;
    if (!takes_heads(*kernel.backend, cache, type, op->head_dim)) continue;
    for (const Batch& batch : batches) {
      if (batch.cascade && kernel.backend->cascade_bytes == 0) continue;
      measure(*op, *kernel.backend, kernel.names, batch, limits);
    }
  }
  return {};
}

}  // namespace refrain::worker
