// What an incident record says, and that it never takes more room than it should.
#include "runtime/supervise/incident.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/json.h"
#include "tests/temporary_directory.h"

namespace refrain {
namespace {

using ipc::FlightPhase;
using testing::HasSubstr;

RankFlight flight(int rank, StepId done, StepId taken, StepId submitted = 0) {
  RankFlight flight;
  flight.rank = rank;
  flight.pid = 100 + rank;
  for (StepId step = 1; step <= taken; ++step) {
    flight.records.push_back({.epoch = 5, .step = step, .phase = FlightPhase::kTaken});
    if (step <= submitted)
      flight.records.push_back({.epoch = 5, .step = step, .phase = FlightPhase::kSubmitted});
    if (step <= done)
      flight.records.push_back({.epoch = 5, .step = step, .phase = FlightPhase::kDone, .mode = 2});
  }
  return flight;
}

Incident incident(std::vector<RankFlight> flights) {
  Incident incident;
  incident.process = "rank 1 (pid 101)";
  incident.rank = 1;
  incident.flights = std::move(flights);
  return incident;
}

TEST(Incident, TheLaggingRankHasDoneLeastThenTakenLeast_R12) {
  EXPECT_EQ(lagging_rank(incident({flight(0, 8, 9), flight(1, 9, 9)})), 0);
  EXPECT_EQ(lagging_rank(incident({flight(0, 8, 9), flight(1, 8, 8)})), 1);
  EXPECT_EQ(lagging_rank(incident({flight(0, 8, 9), flight(1, 8, 9)})), -1);
  EXPECT_EQ(lagging_rank(incident({})), -1);
}

// The others' collectives wait for one that takes its steps and submits none.
TEST(Incident, OfEqualStepsDoneTheRankThatSubmittedLeastLags_R12_I8) {
  EXPECT_EQ(lagging_rank(incident({flight(0, 8, 9, 9), flight(1, 8, 9, 8)})), 1);
  Incident failed = incident({flight(0, 8, 10, 8), flight(1, 8, 10, 10)});
  failed.flights[1].ended = "exit code 70";
  EXPECT_EQ(lagging_rank(failed), 0);
}

TEST(Incident, AmongEqualRanksTheOneThatEndedOrWasNamedLags_R12) {
  Incident ended = incident({flight(0, 8, 9), flight(1, 8, 9)});
  ended.flights[1].ended = "signal 9 (Killed)";
  EXPECT_EQ(lagging_rank(ended), 1);
  Incident named = incident({flight(0, 8, 9), flight(1, 8, 9)});
  named.loss.emplace().ranks = {0};
  EXPECT_EQ(lagging_rank(named), 0);
  // It ended because its peer was gone, and the coordinator missed it first.
  named.flights[1].ended = "signal 9 (Killed)";
  EXPECT_EQ(lagging_rank(named), 1);
  named.flights[0].ended = "exit code 70";
  EXPECT_EQ(lagging_rank(named), 1);
}

// One that drops steps has taken more than one that waits for it in the step before.
TEST(Incident, InAHangTheRankThatTheCoordinatorNamedLags_R12_I8) {
  Incident hang = incident({flight(0, 8, 9), flight(1, 8, 10)});
  EXPECT_EQ(lagging_rank(hang), 0) << "by the rings alone";
  GroupLoss& loss = hang.loss.emplace();
  loss.ranks = {1};
  for (const char* detector : {"progress", "step deadline", "heartbeat"}) {
    loss.detector = detector;
    EXPECT_EQ(lagging_rank(hang), 1) << detector;
  }
  loss.detector = "worker";  // the one whose collective failed
  EXPECT_EQ(lagging_rank(hang), 0);
}

TEST(Incident, StepsOfAnEarlierEpochDoNotCount_R12) {
  RankFlight again = flight(0, 40, 40);
  for (auto& record : again.records) record.epoch = 4;
  again.records.push_back({.epoch = 5, .step = 2, .phase = FlightPhase::kTaken});
  EXPECT_EQ(lagging_rank(incident({again, flight(1, 3, 3)})), 0);
}

TEST(Incident, TheRecordNamesProcessStepDetectorAndRequests_I8) {
  Incident lost = incident({flight(0, 8, 9), flight(1, 7, 8)});
  lost.ended = "signal 9 (Killed)";
  GroupLoss& loss = lost.loss.emplace();
  loss.detector = "process";
  loss.reason = "the process of rank 1 ended \xff";  // not UTF-8
  loss.requests = {3, 4};
  loss.num_requests = 2;
  const auto json = nlohmann::json::parse(incident_json(lost));
  EXPECT_EQ(json["process"], "rank 1 (pid 101)");
  EXPECT_EQ(json["ended"], "signal 9 (Killed)");
  EXPECT_EQ(json["step"], 8);
  EXPECT_EQ(json["lagging_rank"], 1);
  EXPECT_EQ(json["detector"], "process");
  EXPECT_EQ(json["requests_in_flight"], (std::vector<int>{3, 4}));
  EXPECT_EQ(json["ranks"][0]["last_step_done"], 8);
  EXPECT_EQ(json["ranks"][1]["records"].back()["phase"], "taken");
  EXPECT_EQ(json["ranks"][1]["records"][13]["mode"], "FULL");
}

TEST(Incident, AnAuditIsNamedAndLosesNobody_CG41_R12) {
  Incident found;
  found.process = "a step";
  found.flights = {flight(0, 8, 9), flight(1, 9, 9)};
  found.audit = AuditFinding{8, 3, "rank 1, program p, key FULL 8 (8 requests): sample"};
  const auto json = nlohmann::json::parse(incident_json(found));
  EXPECT_EQ(json["detector"], "audit");
  EXPECT_EQ(json["step"], 8);
  EXPECT_EQ(json["differences"], 3);
  EXPECT_EQ(json["reason"], found.audit->first);
  EXPECT_TRUE(json["lagging_rank"].is_null());
  EXPECT_EQ(json["ranks"].size(), 2u);
  EXPECT_THAT(describe(found), HasSubstr("audit of step 8 found 3 differences, the first: rank 1"));
}

TEST(Incident, OnlyTheNewestRecordsAreKept_R12) {
  const tests::TemporaryDirectory temporary;
  const auto& directory = temporary.path();
  temporary.write("other.json", "not ours");
  for (int i = 0; i < 40; ++i)
    temporary.write(fmt::format("incident-2000-01-01T0000{:02}.000Z-1.json", i), "{}");
  const auto path = write_incident(directory, incident({flight(0, 1, 1)}));
  ASSERT_TRUE(path.has_value()) << path.error().message;
  size_t records = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    records += entry.path().filename().string().starts_with("incident-");
  EXPECT_EQ(records, kIncidentsKept);
  EXPECT_TRUE(std::filesystem::exists(*path));
  EXPECT_TRUE(std::filesystem::exists(directory / "other.json"));
  EXPECT_FALSE(std::filesystem::exists(directory / "incident-2000-01-01T000000.000Z-1.json"));
}

TEST(Incident, AFullDiskIsAnErrorThatNamesIt_R12) {
  const auto full = write_incident("/dev/full/incidents", incident({}));
  ASSERT_FALSE(full.has_value());
  EXPECT_THAT(full.error().message, HasSubstr("/dev/full"));
}

}  // namespace
}  // namespace refrain
