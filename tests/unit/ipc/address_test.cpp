// What a server may bind, and what it leaves behind: R-5.
#include "ipc/transport/address.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "ipc/transport/endpoint.h"
#include "tests/unit/ipc/loop.h"

namespace refrain::ipc {
namespace {

namespace fs = std::filesystem;

class ServerAddress : public testing::Test {
 protected:
  Result<std::unique_ptr<Endpoint>> serve(const std::string& address, bool wildcard = false) {
    EndpointOptions options;
    options.address = address;
    options.allow_wildcard = wildcard;
    options.curve.insecure_tcp = true;
    return make_zmq_server(io_, options);
  }
  std::string refusal(const std::string& address) {
    const auto made = serve(address);
    if (made) return "accepted";
    EXPECT_EQ(made.error().field, "address");
    EXPECT_EQ(exit_code(made.error().code), kExitConfig);
    return made.error().message;
  }

  TemporaryDirectory directory_;
  std::string path_ = (directory_.path() / "run/socket").string();
  IoContext io_;
};

void expect_mentions(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(ServerAddress, WildcardsAreRefusedUnlessForced_R5) {
  for (const char* address : {"tcp://*:5577", "tcp://0.0.0.0:5577", "tcp://[::]:5577", "tcp://*:*"})
    expect_mentions(refusal(address), "every interface");
  EXPECT_TRUE(serve("tcp://*:*", true));
}

TEST_F(ServerAddress, MalformedOnesAreRefusedByReason) {
  expect_mentions(refusal("udp://1.2.3.4:5"), "ipc:// or tcp://");
  expect_mentions(refusal("ipc://relative/path"), "absolute");
  expect_mentions(refusal("ipc://*"), "absolute");
  expect_mentions(refusal("ipc:///" + std::string(120, 'x')), "at most");
  expect_mentions(refusal("tcp://127.0.0.1"), "host and a port");
  expect_mentions(refusal("tcp://:55"), "host and a port");
  expect_mentions(refusal("tcp://127.0.0.1:99999"), "not a port");
  expect_mentions(refusal("tcp://127.0.0.1:x"), "not a port");
  expect_mentions(refusal("tcp://203.0.113.77:5577"), "cannot be bound");
  expect_mentions(refusal("ipc://" + (directory_.path() / "a/b/socket").string()),
                  "cannot be made");
}

TEST_F(ServerAddress, TcpPortInUseIsRefused) {
  const auto first = serve("tcp://127.0.0.1:0");
  ASSERT_TRUE(first) << first.error().message;
  expect_mentions(refusal((*first)->address()), "cannot be bound");
}

TEST_F(ServerAddress, DirectoryIsMadePrivateAndGivenBack_R5) {
  auto made = serve("ipc://" + path_);
  ASSERT_TRUE(made) << made.error().message;
  struct stat info {};
  ASSERT_EQ(::stat((directory_.path() / "run").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(fs::exists(path_));
  (*made)->close();
  EXPECT_FALSE(fs::exists(directory_.path() / "run"));
  EXPECT_TRUE(fs::exists(directory_.path()));
}

TEST_F(ServerAddress, DirectoryThatWasThereStays) {
  fs::create_directory(directory_.path() / "run");
  fs::permissions(directory_.path() / "run", fs::perms::owner_all);
  { ASSERT_TRUE(serve("ipc://" + path_)); }
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_TRUE(fs::exists(directory_.path() / "run"));
}

TEST_F(ServerAddress, DirectoryOpenToOthersIsRefusedByServerAndClient_R5) {
  fs::create_directory(directory_.path() / "run");
  fs::permissions(directory_.path() / "run", fs::perms(0755));
  expect_mentions(refusal("ipc://" + path_), "0700");
  EndpointOptions options;
  options.address = "ipc://" + path_;
  options.identity = "rank-0";
  const auto client = make_zmq_client(io_, options);
  ASSERT_FALSE(client);
  expect_mentions(client.error().message, "0700");
}

TEST_F(ServerAddress, StaleSocketOfADeadProcessIsReplaced) {
  fs::create_directory(directory_.path() / "run");
  fs::permissions(directory_.path() / "run", fs::perms::owner_all);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path_.c_str());
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);
  ASSERT_TRUE(fs::exists(path_));
  const auto made = serve("ipc://" + path_);
  EXPECT_TRUE(made) << made.error().message;
}

TEST_F(ServerAddress, LiveSocketIsReportedInUseAndGoesOn) {
  auto first = serve("ipc://" + path_);
  ASSERT_TRUE(first) << first.error().message;
  expect_mentions(refusal("ipc://" + path_), "in use");
  EXPECT_TRUE(fs::exists(path_));
  expect_mentions(refusal("ipc://" + path_), "in use");
}

TEST_F(ServerAddress, FileThatIsNoSocketIsLeftAlone) {
  fs::create_directory(directory_.path() / "run");
  fs::permissions(directory_.path() / "run", fs::perms::owner_all);
  std::ofstream(path_) << "precious";
  expect_mentions(refusal("ipc://" + path_), "not a socket");
  EXPECT_EQ(fs::file_size(path_), 8u);
}

TEST(ClientAddress, NeedsAHostAPortAndAnIdentity) {
  IoContext io;
  EndpointOptions options;
  options.curve.insecure_tcp = true;
  options.address = "tcp://127.0.0.1:0";
  options.identity = "rank-0";
  EXPECT_EQ(make_zmq_client(io, options).error().field, "address");
  options.address = "tcp://127.0.0.1:5577";
  options.identity = "";
  EXPECT_EQ(make_zmq_client(io, options).error().field, "identity");
  options.identity = "a b";
  EXPECT_EQ(make_zmq_client(io, options).error().field, "identity");
}

// Tells when connections of a ZeroMQ socket end.
class Disconnections {
 public:
  Disconnections(void* context, void* socket) : monitor_(zmq_socket(context, ZMQ_PAIR)) {
    const int patience_ms = 10'000;
    zmq_setsockopt(monitor_, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    EXPECT_EQ(zmq_socket_monitor(socket, "inproc://monitor", ZMQ_EVENT_DISCONNECTED), 0);
    EXPECT_EQ(zmq_connect(monitor_, "inproc://monitor"), 0);
  }
  ~Disconnections() { zmq_close(monitor_); }
  bool wait() {  // for the next one
    char event[64], peer[256];
    return zmq_recv(monitor_, event, sizeof event, 0) > 0 &&
           zmq_recv(monitor_, peer, sizeof peer, 0) >= 0;
  }

 private:
  void* monitor_;
};

// with the filter set to another user, nothing of ours gets in; with ours, it does.
TEST(IpcFilter, LetsInOnlyTheAllowedUser_R5) {
  TemporaryDirectory directory;
  Loop loop;
  Inbox inbox;
  EndpointOptions options;
  options.address = "ipc://" + (directory.path() / "socket").string();
  std::unique_ptr<Endpoint> server;
  const auto serve = [&](int64_t uid) {
    options.allowed_uid = uid;
    loop.call([&] {
      server.reset();
      server = std::move(*make_zmq_server(loop.io(), options, loop.strand()));
      server->start(inbox.handler());
    });
  };
  void* context = zmq_ctx_new();
  void* client = zmq_socket(context, ZMQ_DEALER);
  zmq_setsockopt(client, ZMQ_ROUTING_ID, "rank-0", 6);
  {
    Disconnections ended(context, client);
    serve(::geteuid() + 12345);
    ASSERT_EQ(zmq_connect(client, options.address.c_str()), 0);
    ASSERT_EQ(zmq_send(client, "hello", 5, 0), 5);
    ASSERT_TRUE(ended.wait()) << "it was not turned away";
    EXPECT_EQ(inbox.size(), 0u);
    zmq_socket_monitor(client, nullptr, 0);
  }
  serve(-1);
  EXPECT_EQ(inbox.wait(1).size(), 1u);
  zmq_close(client);
  zmq_ctx_term(context);
  loop.call([&] { server.reset(); });
}

TEST(ListenAddress, TakesAHostWithOrWithoutAPort) {
  EXPECT_EQ(listen_address("10.0.0.5").value(), "tcp://10.0.0.5:*");
  EXPECT_EQ(listen_address("10.0.0.5:7000").value(), "tcp://10.0.0.5:7000");
  EXPECT_EQ(listen_address("[::1]").value(), "tcp://[::1]:*");
  EXPECT_EQ(listen_address("[::1]:7000").value(), "tcp://[::1]:7000");
}

TEST(ListenAddress, RefusesWildcardsAndWhatIsNoHost) {
  for (const char* text : {"*", "0.0.0.0", "0.0.0.0:7000", "[::]", ":7000", "host:port"}) {
    const auto address = listen_address(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().field, "local-addr") << text;
  }
}

TEST(ListenAddress, IsTheOneFromWhichTheCoordinatorIsReached) {
  EXPECT_EQ(listen_address_towards("tcp://127.0.0.1:5555").value(), "tcp://127.0.0.1:*");
}

}  // namespace
}  // namespace refrain::ipc
