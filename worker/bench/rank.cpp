#include "worker/bench/rank.h"

#include "worker/bench/kinds.h"

namespace refrain::worker {

Status run_rank(const RankOptions& options) {
  REFRAIN_ASSIGN_OR_RETURN(const auto device, BenchDevice::open(options));
  const CaseWriter cases(options, device->device().name());
  const BenchSetting alone{options, *device, cases};
  if (options.kind == "all-reduce") return AllReduceBench(alone).run();
  REFRAIN_ASSIGN_OR_RETURN(const ModelConfig model, load_model_config(options.model));
  REFRAIN_ASSIGN_OR_RETURN(const auto hosted,
                           plan_program(model, options.config, options.rank, device->device()));
  const ModelSetting setting{alone, model, hosted->program};
  if (options.kind == "gemm") return GemmBench(setting).run();
  if (options.kind == "attention") return AttentionBench(setting).run();
  if (options.kind == "load") return LoadBench(setting).run();
  return fail_field("kind", "\"{}\" is not one of gemm, attention, all-reduce, load", options.kind);
}

}  // namespace refrain::worker
