// a process is known by boot, pid namespace, pid and start time, and a pid that means another
// process by now is not watched for it.
#include "runtime/base/process_identity.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/actor/io_context.h"

namespace refrain {
namespace {

// What a function says in a process of its own; empty: it could not.
template <class Function>
std::string in_child(Function function) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string said = function();
    const bool whole =
        ::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    ::_exit(whole ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t length = ::read(ends[0], text.data(), text.size());
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  return text;
}

TEST(ProcessIdentity, IsTheSameWheneverItIsAskedFor_R29) {
  const ProcessIdentity self = own_process();
  ASSERT_FALSE(self.realm.empty());
  EXPECT_EQ(self.pid, ::getpid());
  EXPECT_EQ(own_process(), self);
  EXPECT_EQ(process_start(self.pid), self.start);
}

TEST(ProcessIdentity, AChildIsOfTheSameRealmAndAnotherProcess_R29) {
  const ProcessIdentity self = own_process();
  const std::string realm = in_child([] { return own_process().realm; });
  EXPECT_EQ(realm, self.realm);
  EXPECT_NE(in_child([] { return std::to_string(own_process().pid); }), std::to_string(self.pid));
}

TEST(ProcessIdentity, RealmsThatDifferOrAreNotKnownAreNeverTheSame_R29) {
  const ProcessIdentity here{"boot pid:[1]", 7, 100};
  EXPECT_TRUE(here.same_realm({"boot pid:[1]", 8, 5}));
  EXPECT_FALSE(here.same_realm({"boot pid:[2]", 7, 100})) << "another container of this machine";
  EXPECT_FALSE(here.same_realm({"other pid:[1]", 7, 100})) << "another machine of this name";
  EXPECT_FALSE((ProcessIdentity{"", 7, 100}.same_realm({"", 7, 100})));
}

// A user's own namespaces, where the kernel lets one have them; a container's are made the same
// way.
TEST(ProcessIdentity, AProcessInAnotherPidNamespaceIsOfNoRealmOfOurs_R29) {
  const std::string realm = in_child([]() -> std::string {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
      return std::string("no: ") + std::strerror(errno);
    return in_child([] { return "realm " + own_process().realm; });  // the first of its namespace
  });
  if (realm.starts_with("no: ")) {
    RecordProperty("without_unshare", realm);
    EXPECT_FALSE((ProcessIdentity{"b pid:[1]", 1, 1}.same_realm({"b pid:[2]", 1, 1})));
    return;
  }
  ASSERT_TRUE(realm.starts_with("realm ")) << realm;
  // Its /proc is still ours and knows other processes by its pids, so that nobody can be watched.
  EXPECT_NE(realm, "realm " + own_process().realm);
}

// The pid was used again: what is watched is who was meant, and that one is gone.
TEST(ProcessIdentity, AnotherProcessWithThePidIsTakenForTheEndOfTheOneMeant_R29) {
  IoContext io;
  const auto strand = io.make_strand();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ProcessIdentity meant = own_process();
  meant.pid = child;
  meant.start = *process_start(child);
  ProcessIdentity before = meant;
  --before.start;
  int calls = 0, calls_before = 0;
  EXPECT_TRUE(io.on_process_exit(before, strand, [&] { ++calls_before; }));
  EXPECT_TRUE(io.on_process_exit(meant, strand, [&] {
    ++calls;
    strand->post([&] { io.stop(); });
  }));
  strand->post([&] {
    EXPECT_EQ(calls_before, 1) << "at once";
    EXPECT_EQ(calls, 0);
    ::kill(child, SIGKILL);
  });
  const auto watchdog = strand->post_after(std::chrono::seconds(20), [&] { io.stop(); });
  io.run();
  strand->cancel(watchdog);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(calls_before, 1) << "once";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace refrain
