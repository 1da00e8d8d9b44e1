#pragma once
// How ranks come to LoRA adapters and lose them. Part of messages.h.

#include <string>

#include "runtime/base/ids.h"

namespace refrain::ipc {

// Every rank reads the adapter into host memory and answers AdapterLoaded, in the order of the
// messages. `name` is one of the worker's own --lora-modules or of a folder in its --lora-dir.
struct LoadAdapter {
  AdapterId id = 0;  // > 0, never given twice by a coordinator
  std::string name;
  std::string digest;  // of the files as the coordinator has them
};

struct AdapterLoaded {
  AdapterId id = 0;
  std::string error;  // names file and tensor; empty: it is there
};

struct UnloadAdapter {  // no step names it any more
  AdapterId id = 0;
};

// A place takes a LoRA adapter, in front of the step.
struct AdapterPlacement {
  int32_t place = 0;
  AdapterId adapter = 0;  // of a LoadAdapter that all ranks have answered

  bool operator==(const AdapterPlacement&) const = default;
};

}  // namespace refrain::ipc
