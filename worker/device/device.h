#pragma once
// The device seam: memory, streams, events, graphs. Two implementations, host/ and cuda/. One
// device per worker process; every call is made by the worker's device thread, except
// Event::query. Failures of the device throw DeviceError: this process is broken and ends.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/device_kind.h"
#include "kernels/core/hashed_rows.h"
#include "kernels/core/kernel_table.h"
#include "runtime/base/check.h"
#include "runtime/base/result.h"
#include "worker/device/copier.h"
#include "worker/device/copy_piece.h"

namespace refrain::worker {

class DeviceError : public FatalError {
 public:
  using FatalError::FatalError;
};

// Thrown by allocate(), Reservation::back() and end_capture() alone: the caller can go on with less
// (CG-25).
class OutOfMemory : public DeviceError {
 public:
  OutOfMemory(const std::string& message, size_t missing_bytes)
      : DeviceError(message), missing(missing_bytes) {}
  size_t missing;
};

// What memory is for; the device keeps an exact account by tag, shown at start and in metrics.
enum class MemoryTag : uint8_t {
  kWeights,
  kArena,
  kGraphs,
  kCollectives,
  kKvCache,
  kInputs,
  kOther
};
inline constexpr int kNumMemoryTags = 7;
const char* to_string(MemoryTag tag);

// Owned device (or pinned host) memory; freed with the handle. 256-byte aligned. Kernels may read
// and write pinned memory, at the same address.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() const = 0;
  virtual size_t bytes() const = 0;
};

// Owned addresses, with memory behind the first backed() bytes of them. What was recorded over
// addresses without memory runs once they have it. Freed with the handle.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual void* data() const = 0;
  virtual size_t bytes() const = 0;  // addresses
  virtual size_t backed() const = 0;
  // Puts memory behind [backed(), bytes). All of it or, with OutOfMemory, none. The memory holds no
  // particular values.
  virtual void back(size_t bytes) = 0;
  // Gives back what back() calls since then put behind more than `bytes`, an earlier backed().
  virtual void trim(size_t bytes) = 0;
};

// A recorded sequence of launches with fixed addresses and shapes. Destroyed before the
// communicators whose operations it holds.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual int num_nodes() const = 0;
  virtual size_t bytes() const = 0;  // device memory it keeps
  // Of what all ranks of a group record alike, however unequal their shards: on CUDA the exchanges,
  // on the host the names under which launches go and the sizes of their arguments.
  virtual uint64_t digest() const = 0;
  // Of the launches themselves, but no address: the same whenever this rank records the same. On
  // CUDA of the recorded nodes and edges (cuda/graph_nodes.h); on the host as digest().
  virtual uint64_t launch_digest() const = 0;
  // For debugging: the name a node was launched under; empty where the device does not keep it.
  virtual std::string_view node_name(int /*index*/) const { return {}; }
};

// Asked over and over by a waiting device thread; true: do not wait on.
using StopFn = std::function<bool()>;

class Event {
 public:
  virtual ~Event() = default;
  virtual bool query() const = 0;  // done? any thread
  // Waits until it is done, or until `stop` says so (null: never); whether it is done.
  virtual bool wait(const StopFn& stop) = 0;
  void synchronize() { wait({}); }
  // Between two events of record_time() that have happened.
  virtual double seconds_since(const Event& earlier) const = 0;
};

// Counts that an op's kernel keeps on the device and leaves at zero when it ends.
struct KernelCounters {
  const char* owner;  // a literal: the op
  const uint32_t* data;
  size_t count;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual kernels::StreamRef ref() = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;  // stream-ordered, capturable
  // All pieces into place `place`. They lie in pinned memory themselves and are left alone until
  // that has happened; addresses and sizes are multiples of 2. Not capturable.
  virtual void copy_rows(std::span<const CopyRows> pieces, size_t place) = 0;
  virtual void synchronize() = 0;                    // refused while capturing
  virtual std::unique_ptr<Event> record() = 0;       // refused while capturing
  virtual std::unique_ptr<Event> record_time() = 0;  // record(), and the device notes the time
  // Between the two, launches are recorded, not run. Allocation, synchronising and launching a
  // graph are refused with DeviceError, and the capture is dropped.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual bool capturing() const = 0;
  virtual void launch(Graph& graph) = 0;
  // Until it is told otherwise: nobody needs what launches write, and they may be run several times
  // to choose between algorithms.
  virtual void tune(bool /*on*/) {}
  // Kinds of launches that ran a kernel known to be slow because no better one takes them; for the
  // log and warnings.
  virtual std::vector<std::string> slow_launches() const { return {}; }
  // What kernels of this stream count with; all zero between steps.
  virtual std::vector<KernelCounters> counters() const { return {}; }
};

class Communicator;  // worker/comm/communicator.h
struct GroupOptions;

struct MemoryAccount {
  size_t total = 0;  // of the device
  size_t free = 0;
  size_t by_tag[kNumMemoryTags] = {};
};

// Part `index` of `of` equal ones of a device: some of its threads or multiprocessors. What runs on
// streams of different parts runs at the same time (CG-38).
struct DeviceShare {
  int index = 0, of = 1;
  bool whole() const { return of == 1; }
  // Of `count` threads or multiprocessors: [begin(count), begin(count) + size(count)).
  int begin(int count) const { return count * index / of; }
  int size(int count) const { return std::max(1, count * (index + 1) / of - begin(count)); }
};

// Launches that a device has done since it was made, but for those of its parts; any thread reads
// it, even after the device.
struct alignas(64) LaunchCounter {
  std::atomic<uint64_t> done{0};  // written by one thread
};

class Device {
 public:
  virtual ~Device() = default;
  // Null: this device does not count them.
  virtual std::shared_ptr<const LaunchCounter> launch_counter() const { return nullptr; }
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;  // "host (avx512_bf16, 2 threads)", "NVIDIA H200"
  virtual const kernels::KernelTable& kernels() const = 0;
  // From now on kernels() are those whose rows' bits depend on no other row and on no count of them
  // (--batch-invariant); before Programs are lowered. Those of the host are so anyway.
  virtual void make_batch_invariant() {}
  virtual kernels::WeightLayout weight_layout(
      DType dtype) const = 0;  // of linear and embedding weights
  // Bytes of a weight [n, k] in that layout, padding included.
  virtual size_t weight_bytes(DType dtype, int64_t n, int64_t k) const = 0;
  // Puts rows [row_begin, row_begin + rows) of `weight` (its layout, n and k; weight.data unused)
  // in place at `to`, from `source`: row-major [rows, k] of weight.dtype in host memory
  // (allocate_pinned). row_begin is a multiple of 16, and so is rows unless they are the last.
  // Stream-ordered: `source` may be reused after stream.synchronize().
  virtual void upload_weight(Stream& stream, const kernels::Weight& weight, void* to,
                             int64_t row_begin, int64_t rows, const void* source) = 0;
  // Makes the rows on the device, stream-ordered; false: this device does not, the host must.
  virtual bool fill_hashed(Stream& /*stream*/, const kernels::HashedRows& /*rows*/) {
    return false;
  }
  // True: a launch on a stream of the whole device has run when the call returns, so queueing a
  // second step only delays the first's result.
  virtual bool runs_at_once() const { return false; }
  virtual int warmup_runs() const = 0;  // before each capture (CG-21): 0 on the host, ≥ 1 on CUDA
  virtual std::unique_ptr<Buffer> allocate(size_t bytes, MemoryTag tag) = 0;
  virtual std::unique_ptr<Buffer> allocate_pinned(size_t bytes) = 0;  // any thread
  // The same beside running steps, whose launches wait for half a millisecond at most: in one piece
  // 84 MiB hold them up for 45 to 70. A copy() ends at the border of two pieces, kernels do not.
  // Any thread.
  virtual std::unique_ptr<Buffer> allocate_pinned_in_pieces(size_t bytes) {
    return allocate_pinned(bytes);
  }
  // Addresses for `bytes`, without memory (the account does not change).
  virtual std::unique_ptr<Reservation> reserve(size_t bytes, MemoryTag tag) = 0;
  // Launches of a stream are made for its share of the device. One of the whole device is not used
  // at the same time as those of its parts.
  virtual std::unique_ptr<Stream> create_stream(const DeviceShare& share) = 0;
  std::unique_ptr<Stream> create_stream() { return create_stream({}); }
  virtual std::unique_ptr<Copier> create_copier() = 0;
  // Pieces that hold [begin, begin + bytes), in the order of their addresses, for processes that
  // map them (Copier::map). None: what processes of this device can map it does not give out.
  virtual std::vector<SharedPiece> share(const void* /*begin*/, size_t /*bytes*/) { return {}; }
  virtual MemoryAccount memory() const = 0;
  // Named ranges for a profiler around what this thread does; nothing where there is none.
  virtual void push_range(const std::string& /*name*/) {}
  virtual void pop_range() {}
  // Joins the group. Blocks until every rank has come or the timeout has passed (error names who is
  // missing).
  virtual Result<std::unique_ptr<Communicator>> create_communicator(
      const GroupOptions& options) = 0;
};

// Host device. threads ≥ 1 (this thread included); isa empty: the best of this processor.
// The memory limit bounds allocate(); 0: the machine's memory.
struct HostDeviceOptions {
  int threads = 1;
  std::string isa;
  size_t memory_limit = 0;
  bool pin_threads = false;  // thread i on the i-th core the process may use
};
Result<std::unique_ptr<Device>> create_host_device(const HostDeviceOptions& options);

}  // namespace refrain::worker
