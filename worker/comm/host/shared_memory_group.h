#pragma once
// A group whose ranks share memory: posts and data lie in one segment, which has no name any more
// once every rank has come.

#include <memory>
#include <string>

#include "ipc/shm/segment.h"
#include "worker/comm/host/host_group.h"
#include "worker/device/host/wait.h"

namespace refrain::worker {

struct GroupSegment;  // the layout in shared memory; shared_memory_group.cpp
struct RankState;

// Which shared memory this process sees: the machine's boot and the file system behind /dev/shm;
// empty where that cannot be told. Processes that name the same one share it.
std::string shared_memory_name();

class SharedMemoryGroup final : public HostGroup {
 public:
  static Result<std::unique_ptr<HostGroup>> join(const GroupOptions& options, int threads);
  ~SharedMemoryGroup() override;

  bool shares_memory() const override { return true; }
  size_t bytes() const override { return segment_->bytes(); }
  std::string find_missing() override;

 private:
  SharedMemoryGroup(const GroupOptions& options, std::unique_ptr<ipc::SharedSegment> segment);
  Status enter(int threads, Deadline deadline);
  Status await_everyone(Deadline deadline);
  void count_cores();
  void exchange(const Post& post, Deadline deadline) override;
  const Post& post_of(int peer) const override;
  void tell(const std::string& reason) override;
  GroupSegment& shared() const { return *static_cast<GroupSegment*>(segment_->data()); }
  bool gone(int peer) const;
  void await(int peer, const Post& post, Deadline deadline);
  std::string told_by(uint32_t by) const;

  std::unique_ptr<ipc::SharedSegment> segment_;
  bool entered_ = false;
};

}  // namespace refrain::worker
