// Rank, size and coordinator as launchers tell them.
#include "worker/worker/launcher_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace refrain::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Environment of(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

TEST(LauncherEnvironment, EveryLauncherSaysRankAndSize) {
  const std::pair<const char*, const char*> launchers[] = {
      {"RANK", "WORLD_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE"},
  };
  for (const auto& [rank, size] : launchers) {
    const Environment environment = of({{rank, "3"}, {size, "8"}});
    EXPECT_EQ(rank_from(environment).value(), 3) << rank;
    EXPECT_EQ(size_from(environment).value(), 8) << size;
  }
  EXPECT_EQ(rank_from(of({{"PMIX_RANK", "2"}})).value(), 2);
}

TEST(LauncherEnvironment, NobodySaysAnything) {
  EXPECT_EQ(rank_from(of({})).value(), std::nullopt);
  EXPECT_EQ(size_from(of({{"WORLD_SIZE", ""}})).value(), std::nullopt);
  EXPECT_EQ(coordinator_from(of({})), "");
}

TEST(LauncherEnvironment, TwoThatAgreeAreOne) {
  EXPECT_EQ(rank_from(of({{"SLURM_PROCID", "1"}, {"PMIX_RANK", "1"}})).value(), 1);
}

TEST(LauncherEnvironment, TwoThatDisagreeAreBothNamed) {
  const auto rank = rank_from(of({{"RANK", "0"}, {"SLURM_PROCID", "1"}}));
  ASSERT_FALSE(rank);
  EXPECT_EQ(exit_code(rank.error().code), kExitConfig);
  EXPECT_THAT(rank.error().message,
              AllOf(HasSubstr("0 (RANK)"), HasSubstr("1 (SLURM_PROCID)"), HasSubstr("--rank")));
  const auto size = size_from(of({{"WORLD_SIZE", "2"}, {"LWS_GROUP_SIZE", "4"}}));
  ASSERT_FALSE(size);
  EXPECT_THAT(size.error().message,
              AllOf(HasSubstr("2 (WORLD_SIZE)"), HasSubstr("4 (LWS_GROUP_SIZE)")));
}

TEST(LauncherEnvironment, WhatIsNoNumberIsNamed) {
  for (const char* text : {"one", "-1", "1.5", "99999999999", "1 "}) {
    const auto rank = rank_from(of({{"PMIX_RANK", text}}));
    ASSERT_FALSE(rank) << text;
    EXPECT_THAT(rank.error().message, AllOf(HasSubstr(text), HasSubstr("(PMIX_RANK)"))) << text;
  }
}

TEST(LauncherEnvironment, TheCoordinatorIsWhereItIsSaidOrOnTheLeadersHost) {
  EXPECT_EQ(coordinator_from(of({{"REFRAIN_COORDINATOR", "ipc:///a/b"}, {"MASTER_ADDR", "c"}})),
            "ipc:///a/b");
  EXPECT_EQ(coordinator_from(of({{"MASTER_ADDR", "10.0.0.5"}, {"MASTER_PORT", "29500"}})),
            "tcp://10.0.0.5:29500");
  EXPECT_EQ(coordinator_from(of({{"LWS_LEADER_ADDRESS", "group-0.llm.default"}})),
            "tcp://group-0.llm.default:5555");
  EXPECT_EQ(coordinator_from(of({{"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"}})),
            "tcp://10.0.0.7:5555");
  EXPECT_EQ(coordinator_from(of({{"MASTER_ADDR", "fe80::1"}})), "tcp://[fe80::1]:5555");
}

}  // namespace
}  // namespace refrain::worker
