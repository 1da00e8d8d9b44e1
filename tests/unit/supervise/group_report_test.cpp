// What a coordinator tells its supervisor, as lines.
#include "runtime/supervise/group_report.h"

#include <gtest/gtest.h>

namespace refrain {
namespace {

TEST(GroupReport, SurvivesItsLine) {
  GroupReport report;
  report.ready = true;
  const auto plain = decode_report(encode_report(report));
  ASSERT_TRUE(plain.has_value());
  EXPECT_TRUE(plain->ready);
  EXPECT_FALSE(plain->lost.has_value() || plain->isolation.has_value());

  report.isolation = Isolation{true, 2};
  report.audit = AuditFinding{7, 3, "rank 0, program p, key FULL 8: op"};
  report.lost = GroupLoss{};
  report.lost->reason = "rank 1 \"went\"\naway";
  report.lost->ranks = {1};
  const std::string line = encode_report(report);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto full = decode_report(line);
  ASSERT_TRUE(full.has_value());
  ASSERT_TRUE(full->isolation.has_value() && full->lost.has_value());
  EXPECT_TRUE(full->isolation->on);
  EXPECT_EQ(full->isolation->explained, 2);
  ASSERT_TRUE(full->audit.has_value());
  EXPECT_EQ(full->audit->step, 7u);
  EXPECT_EQ(full->audit->differences, 3);
  EXPECT_EQ(full->audit->first, report.audit->first);
  EXPECT_EQ(full->lost->reason, report.lost->reason);
  EXPECT_EQ(full->lost->ranks, report.lost->ranks);
}

TEST(GroupReport, WhatIsNoReportIsAnError) {
  for (const char* line : {"", "{", "{}", R"({"ready": 3})", R"({"ready": true, "isolation": {}})"})
    EXPECT_FALSE(decode_report(line).has_value()) << line;
}

}  // namespace
}  // namespace refrain
