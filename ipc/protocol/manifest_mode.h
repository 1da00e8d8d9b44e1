#pragma once
// ManifestEntry::mode of a draft model's graphs: the runtime mode behind this.

#include <string_view>

namespace refrain::ipc {

inline constexpr std::string_view kDraftMode = "draft ";

}  // namespace refrain::ipc
