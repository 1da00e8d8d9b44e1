// Limits of processor time as control groups of both versions write them down.
#include "runtime/base/processors.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/temporary_directory.h"

namespace refrain {
namespace {

class Processors : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const auto file = root_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  int32_t paid(const std::string& groups) { return paid_processors(root_.path(), groups); }

  tests::TemporaryDirectory root_;
};

TEST_F(Processors, WithoutAQuotaThereIsNoLimit) {
  EXPECT_EQ(paid(""), 0);
  EXPECT_EQ(paid("0::/\n"), 0);
  write("cpu.max", "max 100000");
  write("a/cpu.max", "max 100000");
  write("cpu/cpu.cfs_quota_us", "-1");
  write("cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(paid("0::/a\n1:cpu:/\nno line of it\n"), 0);
  write("cpu.max", "100000");
  EXPECT_EQ(paid("0::/\n"), 0) << "no period";
}

TEST_F(Processors, AContainersQuotaStandsAtTheRoot) {
  write("cpu.max", "400000 100000");
  EXPECT_EQ(paid("0::/somewhere/else\n"), 4);
  write("cpu.max", "50000 100000");
  EXPECT_EQ(paid(""), 1) << "half a processor is one";
}

TEST_F(Processors, TheGroupOfTheProcessCountsInBothVersions) {
  write("user/one/cpu.max", "300000 100000");
  EXPECT_EQ(paid("0::/user/one\n"), 3);
  EXPECT_EQ(paid("0::/user/two\n"), 0);
  write("cpu/docker/17/cpu.cfs_quota_us", "200000");
  write("cpu/docker/17/cpu.cfs_period_us", "100000");
  EXPECT_EQ(paid("9:memory:/docker/18\n4:cpu,cpuacct:/docker/17\n0::/user/one\n"), 2);
  EXPECT_EQ(paid("4:cpuacct:/docker/17\n"), 0) << "another controller's";
}

TEST_F(Processors, ThisProcessHasOne) { EXPECT_GE(usable_processors(), 1); }

}  // namespace
}  // namespace refrain
