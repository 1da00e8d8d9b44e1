// Encrypted endpoints: keys and their files, peers without the key.
#include "ipc/transport/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <filesystem>
#include <fstream>

#include "ipc/transport/endpoint.h"
#include "tests/unit/ipc/loop.h"

namespace refrain::ipc {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path, std::ios::trunc) << text;
  ASSERT_EQ(::chmod(path.c_str(), mode), 0);
}

mode_t mode_of(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

class CurveFiles : public testing::Test {
 protected:
  std::string refusal(const std::string& key_file_text, mode_t mode = 0600) {
    write(file_, key_file_text, mode);
    const auto key = load_curve_key(file_);
    if (key) return "accepted";
    EXPECT_EQ(key.error().field, "--curve-key");
    EXPECT_THAT(key.error().message, HasSubstr(file_.string()));
    return key.error().message;
  }
  std::string list_refusal(const std::string& text) {
    write(file_, text);
    const auto keys = load_curve_allow_list(file_);
    if (keys) return "accepted";
    EXPECT_EQ(keys.error().field, "--curve-allow");
    return keys.error().message;
  }

  TemporaryDirectory temporary_;
  fs::path directory_ = temporary_.path() / "keys";
  fs::path file_ = temporary_.path() / "file";
};

TEST_F(CurveFiles, KeygenMakesPrivatePairsAndListsTheirPublicKeys_R5) {
  ASSERT_TRUE(add_curve_keys(directory_, {"worker"}));
  EXPECT_EQ(mode_of(directory_), 0700u);
  for (const char* name : {"coordinator.key", "worker.key", "coordinator.allow", "worker.allow"})
    EXPECT_EQ(mode_of(directory_ / name), 0600u) << name;
  const auto coordinator = load_curve_key(directory_ / "coordinator.key");
  const auto worker = load_curve_key(directory_ / "worker.key");
  ASSERT_TRUE(coordinator && worker);
  EXPECT_NE(coordinator->secret_key, worker->secret_key);
  EXPECT_EQ(*load_curve_allow_list(directory_ / "worker.allow"),
            std::vector{coordinator->public_key});
  EXPECT_EQ(*load_curve_allow_list(directory_ / "coordinator.allow"),
            std::vector{worker->public_key});
}

TEST_F(CurveFiles, KeygenAddsAWorkerAndOverwritesNothing) {
  ASSERT_TRUE(add_curve_keys(directory_, {"host-a"}));
  const std::string before = load_curve_key(directory_ / "coordinator.key")->public_key;
  const auto again = add_curve_keys(directory_, {"host-a"});
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("host-a.key is there already"));
  ASSERT_TRUE(add_curve_keys(directory_, {"host-b"}));
  EXPECT_EQ(load_curve_key(directory_ / "coordinator.key")->public_key, before);
  EXPECT_EQ(*load_curve_allow_list(directory_ / "coordinator.allow"),
            (std::vector{load_curve_key(directory_ / "host-a.key")->public_key,
                         load_curve_key(directory_ / "host-b.key")->public_key}));
  for (const char* name : {"", "../x", "a/b", "coordinator", ".hidden", "a b"})
    EXPECT_FALSE(add_curve_keys(directory_, {name})) << name;
  ASSERT_EQ(::chmod(directory_.c_str(), 0777), 0);
  EXPECT_THAT(add_curve_keys(directory_, {"host-c"}).error().message, HasSubstr("0777"));
}

TEST_F(CurveFiles, BrokenKeyFilesAreRefusedWithoutRepeatingSecrets_R14) {
  const auto pair = make_curve_key_pair();
  const auto other = make_curve_key_pair();
  ASSERT_TRUE(pair && other);
  const std::string good =
      "# mine\n\npublic " + pair->public_key + " me\nsecret " + pair->secret_key + "\n";
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_THAT(refusal(good, 0640), HasSubstr("0640"));
  EXPECT_THAT(refusal(""), HasSubstr("must hold a public and a secret key"));
  EXPECT_THAT(refusal("public " + pair->public_key), HasSubstr("must hold"));
  EXPECT_THAT(refusal(good + "secret " + other->secret_key), HasSubstr("more than one secret"));
  EXPECT_THAT(refusal("public " + other->public_key + "\nsecret " + pair->secret_key),
              HasSubstr("not that of the secret key"));
  const std::string bare = refusal(pair->secret_key);
  EXPECT_THAT(bare, HasSubstr("line 1"));
  EXPECT_EQ(bare.find(pair->secret_key), std::string::npos);
  const std::string cut = refusal("secret " + pair->secret_key.substr(1));
  EXPECT_THAT(cut, HasSubstr("40 characters"));
  EXPECT_EQ(cut.find(pair->secret_key.substr(1)), std::string::npos);
  EXPECT_THAT(refusal(std::string(2 << 20, 'x')), HasSubstr("larger than"));
  fs::remove(file_);
  EXPECT_THAT(load_curve_key(file_).error().message, HasSubstr("cannot be read"));
  EXPECT_THAT(load_curve_key(temporary_.path()).error().message, HasSubstr("no regular file"));
}

TEST_F(CurveFiles, BrokenAllowListsAreRefused_R14) {
  const auto pair = make_curve_key_pair();
  const std::string line = "public " + pair->public_key + "\n";
  EXPECT_EQ(list_refusal(line), "accepted");
  EXPECT_THAT(list_refusal("# none\n"), HasSubstr("lists no key"));
  EXPECT_THAT(list_refusal(line + line), HasSubstr("twice"));
  EXPECT_THAT(list_refusal("secret " + pair->secret_key), HasSubstr("public keys only"));
  EXPECT_THAT(list_refusal("public short"), HasSubstr("line 1"));
}

class Curve : public testing::Test {
 protected:
  Curve() {
    if (!add_curve_keys(ours_, {"worker"}) || !add_curve_keys(strange_, {"worker"}))
      throw std::runtime_error("no keys");
  }
  ~Curve() override {
    loop_.call([this] { endpoints_.clear(); });
  }

  EndpointOptions options(const fs::path& own, const fs::path& allow) {
    EndpointOptions options;
    options.address = address_;
    options.identity = "rank-0";
    options.curve = {own, allow, false};
    return options;
  }
  Endpoint& keep(Result<std::unique_ptr<Endpoint>> made) {
    if (!made) throw std::runtime_error(made.error().message);
    endpoints_.push_back(std::move(*made));
    return *endpoints_.back();
  }
  Endpoint& server() {
    Endpoint& made = *loop_.call([this] {
      return &keep(make_zmq_server(loop_.io(),
                                   options(ours_ / "coordinator.key", ours_ / "coordinator.allow"),
                                   loop_.strand()));
    });
    loop_.call([&] { made.start(inbox_.handler()); });
    address_ = made.address();
    return made;
  }
  Endpoint& client(const EndpointOptions& options) {
    return *loop_.call(
        [&, this] { return &keep(make_zmq_client(loop_.io(), options, loop_.strand())); });
  }
  bool wait_refused(Endpoint& endpoint, uint64_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      if (loop_.call([&] { return endpoint.refused(); }) >= count) return true;
      std::this_thread::yield();
    }
    return false;
  }
  // Of a peer that is being refused: once it has been, there is no line for a frame to wait on.
  static void try_to_send(Endpoint& peer, const char* text) {
    const auto status = peer.send({}, as_frame(text));
    if (!status) {
      EXPECT_EQ(status.error().code, ErrorCode::kOverloaded) << status.error().message;
    }
  }
  // The line is open to those with the key, after whatever was tried.
  void expect_served() {
    Endpoint& good = client(options(ours_ / "worker.key", ours_ / "worker.allow"));
    loop_.call([&] { EXPECT_TRUE(good.send({}, as_frame("hello"))); });
    const auto received = inbox_.wait(1);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].second, "hello");
  }

  TemporaryDirectory temporary_;
  fs::path ours_ = temporary_.path() / "ours";
  fs::path strange_ = temporary_.path() / "strange";
  std::string address_ = "tcp://127.0.0.1:0";
  Inbox inbox_;
  Loop loop_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

TEST_F(Curve, PeersWithKeysTalk_R5) {
  Endpoint& bound = server();
  Endpoint& peer = client(options(ours_ / "worker.key", ours_ / "worker.allow"));
  Inbox at_peer;
  loop_.call([&] {
    peer.start(at_peer.handler());
    EXPECT_TRUE(peer.send({}, as_frame("hello")));
  });
  const auto received = inbox_.wait(1);
  ASSERT_EQ(received.size(), 1u);
  loop_.call([&] { EXPECT_TRUE(bound.send(received[0].first, as_frame("welcome"))); });
  ASSERT_EQ(at_peer.wait(1).size(), 1u);
  EXPECT_EQ(at_peer.wait(1)[0].second, "welcome");
  EXPECT_EQ(loop_.call([&] { return bound.refused() + peer.refused(); }), 0u);
}

TEST_F(Curve, KeyThatIsNotAllowedIsRefusedCountedAndTold_R5) {
  Endpoint& bound = server();
  auto stranger = options(strange_ / "worker.key", ours_ / "worker.allow");
  std::promise<Error> told;
  stranger.on_refused = [&](const Error& error) { told.set_value(error); };
  Endpoint& peer = client(stranger);
  loop_.call([&] { try_to_send(peer, "let me in"); });
  auto error = told.get_future();
  ASSERT_EQ(error.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_THAT(error.get().message, HasSubstr("refuses the key"));
  EXPECT_TRUE(wait_refused(bound, 1));
  expect_served();
  EXPECT_EQ(inbox_.size(), 1u);
}

TEST_F(Curve, ServerThatIsNotTheNamedOneIsNotTalkedTo_R5) {
  Endpoint& bound = server();
  Endpoint& peer = client(options(ours_ / "worker.key", strange_ / "worker.allow"));
  loop_.call([&] { try_to_send(peer, "secret"); });
  EXPECT_TRUE(wait_refused(bound, 1));
  EXPECT_TRUE(wait_refused(peer, 1));
  expect_served();
  EXPECT_EQ(inbox_.size(), 1u);
}

// A peer without any key sends whole frames; the server's handler never sees one.
TEST_F(Curve, FramesWithoutTheKeyAreNeverSeen_R6) {
  Endpoint& bound = server();
  EndpointOptions bare;
  bare.address = address_;
  bare.identity = "rank-0";
  bare.curve.insecure_tcp = true;
  Endpoint& peer = client(bare);
  loop_.call([&] {
    for (int i = 0; i < 100; ++i) try_to_send(peer, "frame");
  });
  EXPECT_TRUE(wait_refused(bound, 1));
  expect_served();
  EXPECT_EQ(inbox_.size(), 1u);
  EXPECT_EQ(loop_.call([&] { return bound.discarded(); }), 0u);
}

TEST_F(Curve, TcpWithoutKeysOrWithHalfOfThemIsRefused_R5) {
  const auto refusal = [this](CurveOptions curve) {
    EndpointOptions options;
    options.address = address_;
    options.curve = std::move(curve);
    const auto made = make_zmq_server(loop_.io(), options, loop_.strand());
    return made ? "accepted" : made.error().message;
  };
  const std::string key = ours_ / "coordinator.key";
  const std::string allow = ours_ / "coordinator.allow";
  loop_.call([&] {
    EXPECT_THAT(refusal({}), HasSubstr("needs --curve-key"));
    EXPECT_THAT(refusal({key, "", false}), HasSubstr("go together"));
    EXPECT_THAT(refusal({"", allow, false}), HasSubstr("go together"));
    EXPECT_THAT(refusal({key, allow, true}), HasSubstr("contradicts"));
    EXPECT_THAT(refusal({allow, key, false}), HasSubstr("must hold a public and a secret key"));
    EXPECT_EQ(refusal({key, allow, false}), "accepted");
    EXPECT_EQ(refusal({"", "", true}), "accepted");
  });
  ASSERT_TRUE(add_curve_keys(ours_, {"other"}));
  address_ = "tcp://127.0.0.1:5577";
  const auto client = make_zmq_client(loop_.io(), options(ours_ / "worker.key", allow));
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message, HasSubstr("the coordinator's alone"));
}

}  // namespace
}  // namespace refrain::ipc
