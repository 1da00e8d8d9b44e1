// usage: program_dump MODEL_DIRECTORY...
// Every Program that a model becomes (plain, fused, each rank of 1 and 2, the lowerings for few
// rows) as printed text, with the place of every value in the arena, the pieces and what a warm-up
// runs. tools/compare_programs holds two dumps against each other.

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "worker/models/models.h"
#include "worker/program/passes/passes.h"
#include "worker/program/printer.h"

namespace refrain::worker {
namespace {

constexpr int64_t kTokens = 640, kRequests = 12, kFewTokens = 4;

kernels::FewRows few_rows_device() {
  return {.max_rows = kFewTokens,
          .max_norm_cols = 8192,
          .max_norm_elements = 16384,
          .max_group = 8,
          .max_ranks = 2,
          .takes_head_dim = [](int64_t, int64_t) { return true; }};
}

void dump(const std::string& title, const Program& program, int64_t tokens, int64_t requests) {
  fmt::print("== {}\n{}", title, print(program));
  const MemoryPlan plan = plan_memory(program, {tokens, requests});
  fmt::print("arena {} bytes, {} without reuse\n", plan.bytes, plan.bytes_without_reuse);
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (plan.offsets[i] >= 0) fmt::print("at {} {}\n", program.values[i].name, plan.offsets[i]);
  }
  const auto pieces = split_program(program, default_splitting_ops());
  for (const PieceRange& piece : pieces.value()) {
    fmt::print("piece {} {}..{}{}\n", piece.index, piece.ops.begin, piece.ops.end,
               piece.splitting ? " splitting" : "");
  }
  for (const OpRange& range : distinct_pieces(program)) {
    fmt::print("warm up {}..{}\n", range.begin, range.end);
  }
}

int run(const std::filesystem::path& directory) {
  const auto config = load_model_config(directory);
  if (!config) {
    fmt::print(stderr, "{}: {}\n", directory.string(), config.error().message);
    return 1;
  }
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const auto plain = build_model(*config, {.activation_dtype = dtype,
                                             .kv_dtype = dtype,
                                             .weight_dtype = dtype,
                                             .max_positions = config->max_position_embeddings});
    const std::string name = directory.filename().string() + " " + to_string(dtype);
    dump(name + " plain", plain.value(), kTokens, kRequests);
    for (int size = 1; size <= std::min(2, static_cast<int>(config->num_kv_heads)); ++size) {
      for (int rank = 0; rank < size; ++rank) {
        const std::string of = fmt::format("{} rank {} of {}", name, rank, size);
        const Program sharded = shard(fuse(plain.value()), rank, size).value();
        dump(of, sharded, kTokens, kRequests);
        for (const bool decode : {false, true}) {
          dump(of + (decode ? " few rows, decode" : " few rows"),
               lower_few_rows(sharded, few_rows_device(), decode), kFewTokens, kFewTokens);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace refrain::worker

int main(int argc, char** argv) {
  int status = argc < 2 ? 64 : 0;
  for (int i = 1; i < argc; ++i) status |= refrain::worker::run(argv[i]);
  return status;
}
