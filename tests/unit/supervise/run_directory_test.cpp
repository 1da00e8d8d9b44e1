// The private directory of a run and what becomes of those whose owners were killed (R-5, P-4).
#include "runtime/supervise/run_directory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace refrain {
namespace {

class RunDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    base_ = "/tmp/rdt-" + std::to_string(::getpid());
    std::filesystem::create_directories(base_);
    ::setenv("TMPDIR", base_.c_str(), 1);
    ::unsetenv("XDG_RUNTIME_DIR");
  }
  void TearDown() override { std::filesystem::remove_all(base_); }

  // A pid that no process has.
  static pid_t dead_pid() {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    ::waitpid(pid, nullptr, 0);
    return pid;
  }
  std::string base_;
};

TEST_F(RunDirectoryTest, IsPrivateAndGoesWithItsOwner) {
  std::string path;
  {
    auto directory = RunDirectory::create();
    ASSERT_TRUE(directory.has_value()) << directory.error().message;
    path = directory->path();
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    EXPECT_EQ(directory->address(), "ipc://" + path + "/engine");
    std::ofstream(path + "/something") << "left";
    RunDirectory moved = std::move(*directory);
    EXPECT_EQ(moved.path(), path);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(RunDirectoryTest, RemovesThoseOfDeadOwnersAndNothingElse_P4) {
  const std::string stale = base_ + "/refrain-" + std::to_string(dead_pid()) + "-0000abcd";
  const std::string alive = base_ + "/refrain-" + std::to_string(::getpid()) + "-0000abcd";
  const std::string foreign = base_ + "/refrain-notes";
  const std::string file = base_ + "/refrain-" + std::to_string(dead_pid()) + "-file";
  for (const std::string& path : {stale, alive, foreign}) std::filesystem::create_directory(path);
  std::ofstream(stale + "/engine") << "socket";
  std::ofstream(file) << "a file, no directory";
  const auto directory = RunDirectory::create();
  ASSERT_TRUE(directory.has_value());
  EXPECT_FALSE(std::filesystem::exists(stale));
  for (const std::string& path : {alive, foreign, file})
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
}

TEST_F(RunDirectoryTest, ALockedDirectoryStaysEvenWhenItsPidIsNotFound) {  // another pid namespace
  auto other = RunDirectory::create();
  ASSERT_TRUE(other.has_value());
  const std::string renamed = base_ + "/refrain-" + std::to_string(dead_pid()) + "-0000abcd";
  std::filesystem::rename(other->path(), renamed);
  remove_stale_runs();
  EXPECT_TRUE(std::filesystem::exists(renamed));
  std::filesystem::rename(renamed, other->path());
}

}  // namespace
}  // namespace refrain
