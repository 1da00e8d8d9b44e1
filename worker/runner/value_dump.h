#pragma once
// --dump-values: runs steps op by op, without graphs, and writes what every op wrote, so that
// tools/compare_values can find the first op in which two runs differ. Device thread.
//
// DIRECTORY/rank0/step1/index.json lists the ops in order, each with its arrays; an array is a .npy
// file of the live rows: float32 (bfloat16 widened exactly), int32 or int64.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ipc/protocol/messages.h"
#include "worker/graph/interpreter.h"

namespace refrain::worker {

class ValueDump {
 public:
  ValueDump(const std::filesystem::path& directory, int rank, int32_t steps, Device& device);

  bool more() const { return left_ > 0; }  // steps to write
  // Runs every op of the Program at `key`, for the step whose inputs lie on the device. Throws
  // FatalError when a file cannot be written.
  void run(const OpContext& context, const BatchDescriptor& key, const ipc::Step& step,
           int32_t num_tokens, uint32_t turn);

 private:
  struct Array {
    std::string name;
    DType dtype = DType::kFloat32;
    int64_t rows = 0, cols = 0;
    std::vector<std::byte> data;  // row-major, dtype
  };
  struct Live {
    ExtentSizes sizes{};
    uint32_t turn = 0;
  };

  std::vector<Array> outputs(const OpContext& context, const Op& op, const BatchDescriptor& key,
                             const Live& live);
  Array read_value(const OpContext& context, ValueId id, const BatchDescriptor& key,
                   const Live& live);
  Array read_cache_rows(const OpContext& context, ValueId cache, int64_t tokens);
  std::vector<std::byte> read(Stream& stream, const void* from, size_t bytes);
  // Returns the file's name.
  std::string write(const std::filesystem::path& folder, int op, const char* op_name,
                    const Array& array) const;

  std::filesystem::path directory_;
  int32_t left_;
  Device& device_;
};

}  // namespace refrain::worker
