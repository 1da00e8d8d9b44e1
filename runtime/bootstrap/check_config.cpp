#include "runtime/bootstrap/check_config.h"

#include "runtime/config/options.h"
#include "worker/dispatch/attention_names.h"
#include "worker/dispatch/dispatcher.h"
#include "worker/dispatch/splitting_ops.h"

namespace refrain {

Status check_config(EngineConfig& config, const ModelConfig& model) {
  REFRAIN_RETURN_IF_ERROR(finish_engine_config(config, model));
  REFRAIN_RETURN_IF_ERROR(
      worker::check_attention_backend(config.worker.attention_backend, config.device));
  REFRAIN_RETURN_IF_ERROR(worker::check_splitting_ops(config.worker.splitting_ops));
  // What an attention backend cannot capture only downgrades the mode (CG-3 to CG-6).
  for (const Group& group : config.groups()) {
    const auto graphs = worker::resolve_cudagraph_config(
        worker::cudagraph_options(config.worker_of(group)), {}, true);
    if (!graphs) return forward_error(graphs.error());
  }
  return {};
}

}  // namespace refrain
