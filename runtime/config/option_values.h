#pragma once
// How the values of options are read and checked, beyond what CLI11 knows. Used while parsing.

#include <CLI/CLI.hpp>
#include <cstdint>

namespace refrain {

// A number in [least, most]; unlike CLI::Range it refuses "nan".
CLI::Validator number_in(double least, double most);

// Takes a whole number as vLLM writes it, and gives CLI11 the plain one: 32k is 32,000, 1.5m
// 1,500,000, 2g and 1t; capitals count in powers of two: 32K is 32,768, 1M, 2G, 1T. Then the range.
CLI::Validator human_int(int64_t least, int64_t most);

// Replaces the name of a model ("Qwen/Qwen3-0.6B") by its directory in the Hugging Face cache
// (HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub); directories stay what they are. A name
// that is not there is refused with the command that fetches it.
CLI::Validator model_directory();

}  // namespace refrain
