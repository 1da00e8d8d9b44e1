#include "runtime/config/absent_options.h"

#include <map>
#include <sstream>

namespace refrain {
namespace {

struct Absent {
  const char* why;
  const char* names;  // without their dashes
};

constexpr Absent kAbsent[] = {
    {"a model is shared by --tensor-parallel-size workers alone",
     "pipeline-parallel-size pp-size prefill-context-parallel-size decode-context-parallel-size "
     "cp-kv-cache-interleave-size dcp-kv-cache-interleave-size dcp-comm-backend ubatch-size "
     "enable-dbo dbo-decode-token-threshold dbo-prefill-token-threshold"},
    {"one server starts all groups of --data-parallel-size and routes requests to them",
     "data-parallel-address data-parallel-backend "
     "data-parallel-external-lb data-parallel-hybrid-lb data-parallel-rank data-parallel-rpc-port "
     "data-parallel-size-local data-parallel-start-rank disable-nccl-for-dp-synchronization"},
    {"all workers of a group are on one host", "nnodes node-rank master-addr master-port headless"},
    {"there are no mixtures of experts yet",
     "enable-expert-parallel all2all-backend enable-eplb eplb-config expert-placement-strategy "
     "enable-elastic-ep enable-ep-weight-filter moe-backend enable-return-routed-experts"},
    {"weights are bfloat16 or float32",
     "quantization allow-deprecated-quantization calculate-kv-scales"},
    {"the option is --speculative-config "
     "'{\"method\": \"ngram\", \"num_speculative_tokens\": 4}', or method draft_model, eagle or "
     "eagle3 and \"model\": \"DIRECTORY\"",
     "speculative-algorithm speculative-num-steps speculative-num-draft-tokens "
     "speculative-draft-model-path speculative-draft-model"},
    {"LoRA adapters have the model's type and sharding and every target that is there",
     "lora-dtype lora-target-modules fully-sharded-loras specialize-active-lora default-mm-loras "
     "enable-tower-connector-lora"},
    {"it is always on: leave the option out", "enable-chunked-prefill"},
    {"any number of prompts share a step: leave the option out", "max-num-partial-prefills"},
    {"long prompts run in order of arrival, short ones beside them; which are long says "
     "--long-prefill-token-threshold",
     "max-long-partial-prefills"},
    {"a model's own code is never run: leave the option out",
     "trust-remote-code code-revision model-impl"},
    {"preempted requests are computed again: leave the option out", "swap-space"},
    {"weights stay on the device",
     "cpu-offload-gb cpu-offload-params offload-backend offload-group-size offload-num-in-group "
     "offload-params offload-prefetch-step"},
    {"name the directory of the revision with --model", "revision hf-config-path"},
    {"a tokenizer's directory is named with --tokenizer", "tokenizer-revision"},
    {"the tokenizer is tokenizer.json, read by this program: leave the option out",
     "tokenizer-mode skip-tokenizer-init tokens-only renderer-num-workers"},
    {"config.json says what the model is: change it there",
     "hf-overrides config-format override-attention-dtype disable-sliding-window"},
    {"models lie in a directory or in the Hugging Face cache; downloading is another program's "
     "work (docs/quickstart.md)",
     "download-dir hf-token ignore-patterns"},
    {"weights are read from safetensors files in one way: leave the option out",
     "max-parallel-loading-workers model-loader-extra-config pt-load-map-location "
     "safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads "
     "use-tqdm-on-load weight-transfer-config"},
    {"the option is --model", "model-path"},
    {"the option is --max-model-len", "context-length"},
    {"the option is --max-num-seqs", "max-running-requests"},
    {"the option is --max-num-batched-tokens", "chunked-prefill-size"},
    {"the option is --num-gpu-blocks-override (blocks of --block-size)", "max-total-tokens"},
    {"the option is --no-enable-prefix-caching", "disable-radix-cache"},
    {"the option is --cudagraph-mode PIECEWISE", "disable-cuda-graph-for-decode"},
    {"the option is --log-level",
     "uvicorn-log-level log-config-file enable-logging-iteration-details aggregate-engine-logging "
     "log-error-stack"},
    {"requests are not written to the log: leave the option out",
     "enable-log-requests disable-log-requests enable-log-outputs enable-log-deltas max-log-len "
     "disable-uvicorn-access-log disable-access-log-for-endpoints"},
    {"the option is --drain-timeout", "shutdown-timeout"},
    {"the option is --collective-timeout-ms", "distributed-timeout-seconds"},
    {"workers are processes of this program: leave the option out",
     "distributed-executor-backend worker-cls worker-extension-cls scheduler-cls "
     "ray-workers-use-nsight numa-bind numa-bind-cpus numa-bind-nodes grpc"},
    {"only text models are served: leave the option out",
     "language-model-only allowed-local-media-path allowed-media-domains disable-chunked-mm-input "
     "enable-mm-embeds interleave-mm-strings limit-mm-per-prompt media-io-kwargs "
     "mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path "
     "mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-only "
     "mm-encoder-tp-mode mm-processor-cache-gb mm-processor-cache-type mm-processor-kwargs "
     "mm-shm-cache-max-object-size-mb mm-tensor-ipc skip-mm-profiling video-pruning-rate "
     "enable-prompt-embeds"},
    {"prompts are pooled to one vector, by the server itself: leave the option out",
     "io-processor-plugin enable-flash-late-interaction"},
    {"groups of --prefill-groups and --decode-groups find each other through the server",
     "disaggregation-transfer-backend disaggregation-bootstrap-port disaggregation-ib-device "
     "disaggregation-decode-tp disaggregation-decode-dp disaggregation-prefill-pp"},
    {"blocks of the cache go to decode groups (--decode-groups) and nowhere else",
     "ec-transfer-config kv-events-config kv-offloading-backend "
     "kv-offloading-size kv-sharing-fast-prefill"},
    {"there are no state-space models yet",
     "mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds "
     "mamba-ssm-cache-dtype enable-mamba-cache-stochastic-rounding gdn-prefill-backend"},
    {"a library or a class of Python has no place here",
     "logits-processors middleware reasoning-parser-plugin tool-parser-plugin tool-server "
     "additional-config"},
    {"the device chooses its kernels; --attention-backend, --compilation-config and "
     "--debug-cudagraph say what may be chosen",
     "attention-config kernel-config ir-op-priority optimization-level performance-mode "
     "enable-flashinfer-autotune"},
    {"the cache is laid out by the model alone: leave the option out",
     "kv-cache-dtype-skip-layers disable-hybrid-kv-cache-manager prefix-caching-hash-algo "
     "scheduler-reserve-full-isl"},
    {"/metrics has what is measured: leave the option out",
     "collect-detailed-traces cudagraph-metrics enable-mfu-metrics kv-cache-metrics "
     "kv-cache-metrics-sample show-hidden-metrics-for-version enable-server-load-tracking "
     "otlp-traces-endpoint profiler-config enable-layerwise-nvtx-tracing"},
    {"the HTTP server has limits of its own (docs/serving.md): leave the option out",
     "h11-max-header-count h11-max-incomplete-event-size disable-fastapi-docs enable-offline-docs "
     "root-path uds"},
    {"TLS takes --ssl-certfile and --ssl-keyfile; clients' certificates are not asked for",
     "ssl-ca-certs ssl-cert-reqs ssl-ciphers enable-ssl-refresh"},
    {"answers always have it where a request can ask for it: leave the option out",
     "enable-prompt-tokens-details enable-request-id-headers"},
    {"a request asks for it with a field of its own: leave the option out",
     "return-tokens-as-token-ids enable-force-include-usage default-chat-template-kwargs "
     "stream-interval"},
    {"answers and prompts have one form here: leave the option out",
     "response-role chat-template-content-format exclude-tools-when-tool-choice-none "
     "enable-tokenizer-info-endpoint reasoning-config fingerprint-mode fingerprint-value "
     "fail-on-environ-validation"},
    {"workers never sleep: stop the server instead", "enable-sleep-mode"},
};

std::map<std::string, const char*> by_name() {
  std::map<std::string, const char*> all;
  for (const Absent& absent : kAbsent) {
    std::istringstream names(absent.names);
    for (std::string name; names >> name;) all.emplace("--" + name, absent.why);
  }
  return all;
}

}  // namespace

const char* absent_option(const std::string& name) {
  static const std::map<std::string, const char*> all = by_name();
  auto at = all.find(name);
  if (at == all.end() && name.starts_with("--no-")) at = all.find("--" + name.substr(5));
  return at == all.end() ? nullptr : at->second;
}

}  // namespace refrain
