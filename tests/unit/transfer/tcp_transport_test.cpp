// What a rank reads of another one over tcp: bytes of regions, and whole words of flags.
#include "worker/transfer/tcp_transport.h"

#include <gtest/gtest.h>

#include "kernels/core/layer_flag.h"
#include "tests/unit/transfer/shards.h"
#include "worker/device/factory/factory.h"

namespace refrain::worker {
namespace {

class TcpTransportTest : public ::testing::Test {
 protected:
  struct End {
    explicit End(const KvMemory& memory)
        : device(create_host_device({}).value()),
          copier(device->create_copier()),
          pinned(device->allocate_pinned(TcpTransport::kChunk)),
          transport(TcpTransport::listen("tcp://127.0.0.1:*", memory, *copier, *pinned).value()),
          own(export_of(memory)) {
      transport->describe(own);
    }
    std::unique_ptr<Device> device;
    std::unique_ptr<Copier> copier;
    std::unique_ptr<Buffer> pinned;
    std::unique_ptr<TcpTransport> transport;
    ipc::KvExport own;
  };

  TcpTransportTest() {
    EXPECT_TRUE(owner_.transport->import(1, reader_.own).has_value());
    EXPECT_TRUE(reader_.transport->import(2, owner_.own).has_value());
  }

  // How the read ended.
  std::string read(const Read& what) {
    reader_.transport->post(++reads_, 2, {what});
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      owner_.transport->poll(std::chrono::milliseconds(1));
      for (const Transport::Progress& progress :
           reader_.transport->poll(std::chrono::milliseconds(1)))
        if (progress.id == reads_ && progress.ended) return progress.error;
    }
    return "it does not end";
  }

  Shard there_{Shape{}, 0, 1, 1}, here_{Shape{}, 0, 1, 2};
  End owner_{there_.memory}, reader_{here_.memory};
  ReadId reads_ = 0;
};

TEST_F(TcpTransportTest, FlagsAreReadInWholeWords) {
  const size_t flags = there_.memory.regions.size();
  there_.pass(1, 77);
  uint64_t words[2] = {5, 5};
  auto* to = reinterpret_cast<std::byte*>(words);
  EXPECT_EQ(read({flags, 0, to, sizeof words}), "");
  EXPECT_EQ(words[0], 0u);
  EXPECT_EQ(words[1], kernels::layer_flag(77));
  EXPECT_NE(read({flags, 4, to, sizeof(uint64_t)}), "") << "from the middle of a word";
  EXPECT_NE(read({flags, 0, to, 4}), "") << "half of a word";
  EXPECT_EQ(read({0, 3, to, 5}), "") << "of blocks any bytes are read";
}

}  // namespace
}  // namespace refrain::worker
