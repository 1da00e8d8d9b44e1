#pragma once
// What a coordinator does for the ranks of a test that find each other: in memory that the forked
// processes of run_ranks share.

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/check.h"
#include "tests/unit/comm/ranks.h"
#include "worker/comm/communicator.h"
#include "worker/device/device.h"

namespace refrain::worker {

class Rendezvous {
 public:
  Rendezvous() {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REFRAIN_CHECK(memory != MAP_FAILED, "no memory to share");
    board_ = new (memory) Board;
  }
  ~Rendezvous() { munmap(board_, sizeof(Board)); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Of ranks that say that they share no memory.
  GroupOptions options(int rank, int size, int timeout_ms) {
    GroupOptions options{token_, rank, size, timeout_ms};
    options.listen_on = "tcp://127.0.0.1:*";
    options.meet = [this, rank, size](ipc::RankAddress mine) {
      mine.memory = "of rank " + std::to_string(rank);
      return meet(rank, size, std::move(mine));
    };
    return options;
  }
  Result<std::vector<ipc::RankAddress>> meet(int rank, int size, const ipc::RankAddress& mine) {
    Place& place = board_->places[rank];
    put(mine.memory, place.memory);
    put(mine.address, place.address);
    put(mine.key, place.key);
    ++board_->come;
    while (board_->come < size) std::this_thread::yield();
    std::vector<ipc::RankAddress> all;
    for (int r = 0; r < size; ++r) {
      const Place& each = board_->places[r];
      all.push_back({each.memory, each.address, each.key});
    }
    return all;
  }

 private:
  static constexpr size_t kText = 256;
  struct Place {
    char memory[kText], address[kText], key[kText];
  };
  struct Board {
    std::atomic<int> come{0};
    Place places[8] = {};
  };
  static void put(const std::string& text, char (&to)[kText]) {
    REFRAIN_CHECK(text.size() < kText, "{} is too long", text);
    std::memcpy(to, text.c_str(), text.size() + 1);
  }

  const std::string token_ = fresh_token();
  Board* board_;
};

}  // namespace refrain::worker
