#pragma once
// What runs beside another execution context of a worker (CG-38): a stream over a share of the
// device, with the counters of its kernels; an arena; the inputs and outputs of its steps; a
// communicator with exchange buffers; and its Programs, whose executables were captured for it.
// Weights, blocks and slots are the worker's. A slot takes part in the steps of one context at a
// time. Device thread.

#include <memory>

#include "worker/graph/graph_pool.h"
#include "worker/runner/adapter_places.h"
#include "worker/runner/hosted_program.h"
#include "worker/runner/input_buffers.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/program_values.h"

namespace refrain::worker {

struct ExecutionContext {
  // Joins the communicator: all ranks open the same contexts in the same order. `programs` are
  // planned and bound to nothing. Errors name the option.
  static Result<std::unique_ptr<ExecutionContext>> open(const RunnerOptions& options,
                                                        Device& device, const DeviceShare& share,
                                                        HostedPrograms programs);
  // The same Programs as planned for another role, with the weights and blocks of those before; the
  // rest is to be allocated and bound anew.
  void change_programs(Device& device, HostedPrograms next);
  // Arena, step buffers and values of a draft model. Throws OutOfMemory.
  void allocate(Device& device, const SlotStates& slots, int32_t block_size);
  // Fixes the addresses of all values of the Programs, which have their caches. `adapters`: null
  // where there are none.
  Status bind(const AdapterPlaces* adapters);
  // A sum over ranks and replicas of "failed here", so that all of them do the same.
  bool any_rank_failed(bool failed_here);

  HostedProgram& model() const { return *programs.front(); }
  HostedProgram* draft() const { return programs.size() > 1 ? programs[1].get() : nullptr; }

  void set_ops();

  // Destroyed last to first: executables, then buffers, then the communicator.
  DeviceShare share;
  Device* ranges = nullptr;  // that names what ops launch; null: nobody asked
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Communicator> replicas;  // null: the group steps by itself
  std::unique_ptr<Stream> stream;
  std::unique_ptr<InputBuffers> buffers;
  std::unique_ptr<ProgramValues> draft_values;          // null: no draft model
  std::unique_ptr<Buffer> agreement, agreement_pinned;  // one float; null: nobody to agree with
  std::unique_ptr<GraphPool> pool;
  HostedPrograms programs;
};

}  // namespace refrain::worker
