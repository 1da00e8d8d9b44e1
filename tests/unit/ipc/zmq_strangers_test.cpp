// Peers on tcp that are no workers: what they can make the coordinator hold.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>

#include "ipc/transport/endpoint.h"
#include "runtime/base/unique_handle.h"
#include "tests/unit/ipc/loop.h"

namespace refrain::ipc {
namespace {

// A stranger on tcp who speaks ZMTP and begins a frame of so many bytes.
class Stranger {
 public:
  Stranger(const std::string& address, uint64_t claimed) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
      throw std::runtime_error("no connection");
    std::string greeting("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16);
    greeting.resize(64);
    const std::string ready(
        "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
        "DEALER",
        30);
    std::string frame(1, '\x02');
    for (int shift = 56; shift >= 0; shift -= 8) frame += static_cast<char>(claimed >> shift);
    for (const std::string& part : {greeting, ready, frame}) send(part);
  }
  // Until the server takes no more.
  size_t push(size_t bytes) {
    const std::string block(64 << 10, 'x');
    size_t pushed = 0;
    while (pushed < bytes && send(block)) pushed += block.size();
    return pushed;
  }

 private:
  bool send(const std::string& data) {
    return ::send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(data.size());
  }
  UniqueFd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(ZmqStrangers, UnfinishedFramesHoldLittleMemory_R5) {
  Loop loop;
  EndpointOptions limited;
  limited.curve.insecure_tcp = true;
  limited.address = "tcp://127.0.0.1:*";
  limited.max_receive_bytes = 256 << 10;
  Inbox inbox;
  std::unique_ptr<Endpoint> server = loop.call([&] {
    auto made = make_zmq_server(loop.io(), limited, loop.strand());
    if (!made) throw std::runtime_error(made.error().message);
    (*made)->start(inbox.handler());
    return std::move(*made);
  });
  const std::string address = loop.call([&] { return server->address(); });
  const int64_t before = resident_bytes();
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(std::make_unique<Stranger>(address, 15 << 20));
    EXPECT_LT(strangers.back()->push(15 << 20), size_t{15} << 20) << "the line was not cut";
  }
  EXPECT_LT(resident_bytes() - before, int64_t{100} << 20);
  EndpointOptions known;
  known.curve.insecure_tcp = true;
  known.address = address;
  known.identity = "rank-0";
  std::unique_ptr<Endpoint> client = loop.call([&] {
    auto made = make_zmq_client(loop.io(), known, loop.strand());
    if (!made) throw std::runtime_error(made.error().message);
    EXPECT_TRUE((*made)->send({}, as_frame("hello")));
    return std::move(*made);
  });
  EXPECT_EQ(inbox.wait(1).size(), 1u);
  loop.call([&] {
    client.reset();
    server.reset();
  });
}

}  // namespace
}  // namespace refrain::ipc
