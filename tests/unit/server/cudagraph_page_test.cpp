// What the page of graphs says of steps and audits (CG-32, CG-41).
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

TEST(CudagraphPage, SumsUpStepsAndSaysWhyNoneRan_CG32) {
  EngineStats stats;
  stats.graph_uses = {{"FULL", 3, 4, 30}, {"NONE", 20, 20, 8}, {"NONE", 6, 6, 2}};
  const auto page = [&stats] { return cudagraph_page(stats); };
  EXPECT_THAT(page(), HasSubstr("before anything was captured"));
  stats.ready.emplace_back();
  EXPECT_THAT(page(), HasSubstr("nothing is captured"));
  stats.ready[0].manifest.emplace_back();
  stats.ready[0].capture_sizes = {4, 16, 8};
  EXPECT_THAT(page(),
              HasSubstr("40 steps · FULL 75.0 % · NONE 25.0 % · padding 25.0 % of the rows"));
  EXPECT_THAT(page(), HasSubstr("<tr><th>all<th>262<th>292<th>30<th>40<"));
  EXPECT_THAT(page(), HasSubstr("<td>20<td>20<td>0<td>8<td class=left><span class=bar "
                                "style=\"width:20.0%\" title=\"20.0 %\"></span><td class=left>more "
                                "tokens than the largest size, 16<"));
  EXPECT_THAT(page(), HasSubstr("<td class=left>a prompt's log-probabilities"));
  EXPECT_THAT(page(), HasSubstr("no graph ran; the last column says why"));
}

}  // namespace
}  // namespace refrain
