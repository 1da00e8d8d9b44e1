// What the page of graphs says of audits (CG-41).
#include "runtime/server/cudagraph_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refrain {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CudagraphPage, TellsOfAudits_CG41) {
  EngineStats stats;
  EXPECT_THAT(cudagraph_page(stats), Not(HasSubstr("audited")));
  EXPECT_EQ(cudagraph_json(stats)["audit"]["steps"], 0);
  EXPECT_TRUE(cudagraph_json(stats)["audit"]["first"].is_null());
  stats.audited_steps = 40;
  stats.audit_differences = 2;
  stats.audit_worst_logit = 0.5;
  stats.audit_worst_kv = 0.25;
  stats.audit_first = "rank 0, key <FULL 8>";
  const Json audit = cudagraph_json(stats)["audit"];
  EXPECT_EQ(audit["steps"], 40);
  EXPECT_EQ(audit["differences"], 2);
  EXPECT_EQ(audit["worst_logit"], 0.5);
  EXPECT_EQ(audit["worst_kv"], 0.25);
  EXPECT_EQ(audit["first"], stats.audit_first);
  EXPECT_THAT(cudagraph_page(stats), HasSubstr("40 steps, 2 differences"));
  EXPECT_THAT(cudagraph_page(stats), HasSubstr("key &lt;FULL 8&gt;"));
  EXPECT_THAT(cudagraph_text(stats), HasSubstr("worst distance of logits 0.5"));
}

}  // namespace
}  // namespace refrain
