#include "runtime/launch/check_config.h"

#include "runtime/config/options.h"
#include "worker/graph/dispatcher.h"

namespace refrain {

Status check_config(EngineConfig& config, const ModelConfig& model) {
  REFRAIN_RETURN_IF_ERROR(finish_engine_config(config, model));
  // What an attention backend cannot capture only downgrades the mode (CG-3 to CG-6).
  const auto graphs =
      worker::resolve_cudagraph_config(worker::cudagraph_options(config.worker), {}, true);
  if (!graphs) return forward_error(graphs.error());
  return {};
}

}  // namespace refrain
