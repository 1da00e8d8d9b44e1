// A profiler that only writes down: loaded by NVTX_INJECTION64_PATH, it appends a line to the file
// NVTX_RECORD for each range that is opened ("+ name") or closed ("-"). tests/gpu/check reads it
// (--nvtx).
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* record;

int push(const char* name) {
  std::fprintf(record, "+ %s\n", name);
  return 0;
}

int pop() {
  std::fputs("-\n", record);
  return 0;
}

}  // namespace

// What NVTX calls at its first range: 1 when callbacks were set.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t export_table) {
  const char* path = std::getenv("NVTX_RECORD");
  if (path == nullptr) return 0;
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) {
    return 0;
  }
  if (size <= NVTX_CBID_CORE_RangePop) return 0;
  record = std::fopen(path, "a");
  if (record == nullptr) return 0;
  std::setvbuf(record, nullptr, _IOLBF, 0);
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}
