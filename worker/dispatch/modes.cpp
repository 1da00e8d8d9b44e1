#include "worker/dispatch/modes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace refrain::worker {
namespace {

constexpr std::array<std::pair<CudagraphMode, const char*>, 5> kModeNames = {{
    {CudagraphMode::kNone, "NONE"},
    {CudagraphMode::kPiecewise, "PIECEWISE"},
    {CudagraphMode::kFull, "FULL"},
    {CudagraphMode::kFullDecodeOnly, "FULL_DECODE_ONLY"},
    {CudagraphMode::kFullAndPiecewise, "FULL_AND_PIECEWISE"},
}};

constexpr std::array<std::pair<AttentionCGSupport, const char*>, 4> kSupportNames = {{
    {AttentionCGSupport::kNever, "NEVER"},
    {AttentionCGSupport::kUniformSingleTokenDecode, "UNIFORM_SINGLE_TOKEN_DECODE"},
    {AttentionCGSupport::kUniformBatch, "UNIFORM_BATCH"},
    {AttentionCGSupport::kAlways, "ALWAYS"},
}};

template <class Table>
std::string names_of(const Table& table) {
  std::string names;
  for (const auto& [value, name] : table) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

}  // namespace

const char* to_string(CudagraphMode mode) { return kModeNames[static_cast<size_t>(mode)].second; }

Result<CudagraphMode> parse_cudagraph_mode(std::string_view name) {
  for (const auto& [mode, text] : kModeNames) {
    if (name == text) return mode;
  }
  return fail_field("cudagraph_mode", "cudagraph_mode \"{}\" is unknown; it must be one of {}",
                    name, names_of(kModeNames));
}

RuntimeMode decode_mode(CudagraphMode mode) {
  switch (mode) {
    case CudagraphMode::kNone:
      return RuntimeMode::kNone;
    case CudagraphMode::kPiecewise:
      return RuntimeMode::kPiecewise;
    case CudagraphMode::kFull:
    case CudagraphMode::kFullDecodeOnly:
    case CudagraphMode::kFullAndPiecewise:
      return RuntimeMode::kFull;
  }
  return RuntimeMode::kNone;
}

RuntimeMode mixed_mode(CudagraphMode mode) {
  switch (mode) {
    case CudagraphMode::kNone:
    case CudagraphMode::kFullDecodeOnly:
      return RuntimeMode::kNone;
    case CudagraphMode::kPiecewise:
    case CudagraphMode::kFullAndPiecewise:
      return RuntimeMode::kPiecewise;
    case CudagraphMode::kFull:
      return RuntimeMode::kFull;
  }
  return RuntimeMode::kNone;
}

bool separates_decode_keys(CudagraphMode mode) {
  return mode == CudagraphMode::kFullDecodeOnly || mode == CudagraphMode::kFullAndPiecewise;
}

bool needs_splittable_program(CudagraphMode mode) {
  return mode == CudagraphMode::kPiecewise || mode == CudagraphMode::kFullAndPiecewise;
}

const char* to_string(AttentionCGSupport support) {
  return kSupportNames[static_cast<size_t>(support)].second;
}

Result<AttentionCGSupport> parse_attention_support(std::string_view name) {
  for (const auto& [support, text] : kSupportNames) {
    if (name == text) return support;
  }
  return fail_field("attention_support",
                    "attention support \"{}\" is unknown; it must be one of {}", name,
                    names_of(kSupportNames));
}

ResolvedMode resolve_cudagraph_mode(CudagraphMode configured,
                                    const std::vector<AttentionGroupSupport>& groups,
                                    int uniform_query_len, bool splittable) {
  ResolvedMode resolved{configured, {}};
  AttentionGroupSupport least{"", AttentionCGSupport::kAlways};
  for (const auto& group : groups) {
    if (group.support < least.support) least = group;
  }
  const auto degrade = [&](CudagraphMode to, const std::string& why) {
    resolved.warnings.push_back(fmt::format("cudagraph_mode {} becomes {}: {}",
                                            to_string(resolved.mode), to_string(to), why));
    resolved.mode = to;
  };
  const auto support_text = [&](const char* needed) {
    return fmt::format("{} declares {}, and {} needs {}", least.op, to_string(least.support),
                       to_string(resolved.mode), needed);
  };
  const auto split_or = [&](CudagraphMode split, CudagraphMode whole) {
    return splittable ? split : whole;
  };

  if (mixed_mode(resolved.mode) == RuntimeMode::kFull &&
      least.support != AttentionCGSupport::kAlways) {  // CG-3
    const CudagraphMode to =
        least.support == AttentionCGSupport::kNever
            ? split_or(CudagraphMode::kPiecewise, CudagraphMode::kNone)
            : split_or(CudagraphMode::kFullAndPiecewise, CudagraphMode::kFullDecodeOnly);
    degrade(to, support_text("ALWAYS"));
  }
  if (decode_mode(resolved.mode) == RuntimeMode::kFull &&
      least.support == AttentionCGSupport::kNever) {  // CG-4
    degrade(split_or(CudagraphMode::kPiecewise, CudagraphMode::kNone),
            support_text("at least UNIFORM_SINGLE_TOKEN_DECODE"));
  }
  if (decode_mode(resolved.mode) == RuntimeMode::kFull && uniform_query_len > 1 &&
      least.support < AttentionCGSupport::kUniformBatch) {  // CG-5
    degrade(
        split_or(CudagraphMode::kPiecewise, CudagraphMode::kNone),
        support_text(fmt::format("at least UNIFORM_BATCH for {} tokens a decode", uniform_query_len)
                         .c_str()));
  }
  if (needs_splittable_program(resolved.mode) && !splittable) {  // CG-6
    degrade(resolved.mode == CudagraphMode::kPiecewise ? CudagraphMode::kNone
                                                       : CudagraphMode::kFullDecodeOnly,
            "the program has no splitting op to cut it at");
  }
  return resolved;
}

}  // namespace refrain::worker
