#pragma once
// What transports have in common that read the memory of another process of this machine by
// themselves: which process it is, and jobs that get on in turns, a slice in each poll. Transfer
// thread.

#include <deque>
#include <string>
#include <vector>

#include "worker/transfer/transport.h"

namespace refrain::worker {

class SlicedTransport : public Transport {
 public:
  void forget(PeerId peer) final;
  void post(ReadId id, PeerId peer, std::vector<Read> reads) final;
  void cancel(ReadId id) final;
  std::vector<Progress> poll(std::chrono::milliseconds wait) final;  // a slice; never waits

 protected:
  // Says whose memory has `regions`, and lets ranks of this machine read it: where only who has
  // leave may (Yama), the children of this process's parent, which one supervisor started.
  static void describe_process(const std::vector<uint64_t>& regions, ipc::KvExport& own);
  static void let_siblings_read();
  // kUnavailable: the process is on another machine, or has ended.
  static Status check_process(const ipc::KvExport& other);

  struct Job {
    ReadId id = 0;
    PeerId peer = 0;
    std::vector<Read> reads;
    size_t next = 0;
    std::string error;  // it ends with this
  };

 private:
  virtual void drop(PeerId peer) = 0;
  // Reads some of what is left, all of it when it returns: bytes that came, or the job's error.
  virtual int64_t read_slice(Job& job) = 0;

  std::deque<Job> jobs_;
};

}  // namespace refrain::worker
