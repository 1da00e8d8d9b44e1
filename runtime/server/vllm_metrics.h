#pragma once
// Metrics under vLLM's names, for the dashboards that are made for them. Pure function of a text.

#include <string>

namespace refrain {

// The lines of a Prometheus text, ours, that vLLM has too, with its prefix "vllm:".
std::string under_vllm_names(const std::string& text);

}  // namespace refrain
