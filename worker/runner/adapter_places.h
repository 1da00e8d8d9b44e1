#pragma once
// LoRA adapters of a worker: those it knows, in pinned memory in the form of their places, and the
// places on the device, at addresses that graphs have recorded. A place takes an adapter by copies
// in stream order, so no step that uses the one before is still to run. Device thread, but for
// read().

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "worker/device/device.h"
#include "worker/graph/op_context.h"
#include "worker/program/passes/lora.h"
#include "worker/weights/peft_adapter.h"

namespace refrain::worker {

class AdapterPlaces {
 public:
  struct Adapter {
    std::span<const CopyRows> rows;  // of all of it, in its memory
    std::unique_ptr<Buffer> memory;
  };

  // Memory for the values that add_lora() put behind the first `num_values`; `folded`: of the
  // model's weights. Throws OutOfMemory.
  AdapterPlaces(Device& device, Stream& stream, LoraProgram lora, size_t num_values,
                std::map<ValueId, std::vector<float>> folded);

  // By ValueId; null for what is not here.
  const std::vector<Addresses>& addresses() const { return addresses_; }
  // This rank's share of the adapter; any thread. A tensor that the model has no place for is an
  // error that names file and tensor. `open_model` is called where the adapter has base weights. By
  // `threads`, of which the calling one is one.
  using OpenModel = std::function<Result<std::unique_ptr<WeightSource>>()>;
  Result<Adapter> read(const PeftAdapter& adapter, const OpenModel& open_model, int threads) const;
  void add(AdapterId id, Adapter adapter);
  void unload(AdapterId id, Stream& stream);
  bool knows(AdapterId id) const { return adapters_.contains(id); }
  int32_t num_places() const { return static_cast<int32_t>(in_place_.size()); }

  // In front of a step: the place takes the adapter.
  void place(int32_t place, AdapterId id, Stream& stream);
  // 0: none.
  AdapterId at(int32_t place) const { return in_place_[static_cast<size_t>(place)]; }
  // A group's next coordinator has other ids and puts its adapters into places anew.
  void forget_all(Stream& stream);

 private:
  struct Part {  // of one target, in the adapter's memory
    const LoraTarget* target;
    size_t a, b;  // offsets of [rank, columns] (by token: [columns, rank]) and
                  // [rows and padding, rank]
  };

  Status check(const PeftAdapter& adapter) const;
  Status check_base(const PeftAdapter& adapter, const OpenModel& open_model) const;
  Status read_part(const PeftAdapter& adapter, const LoraTarget& target, const Part& part,
                   std::byte* memory) const;
  Status read_parts(const PeftAdapter& adapter, const std::vector<Part>& parts, std::byte* memory,
                    int threads) const;
  std::span<const CopyRows> list_rows(size_t rank, const std::vector<Part>& parts,
                                      const std::byte* memory, CopyRows* list) const;
  const Value& value(ValueId id) const { return lora_.program.value(id); }
  std::byte* address(ValueId id) const {
    return static_cast<std::byte*>(addresses_[static_cast<size_t>(id)][0]);
  }

  Device& device_;
  const LoraProgram lora_;
  const std::map<ValueId, std::vector<float>> folded_;
  std::unique_ptr<Buffer> memory_;
  std::vector<Addresses> addresses_;
  std::vector<AdapterId> in_place_;
  std::map<AdapterId, Adapter> adapters_;
};

}  // namespace refrain::worker
