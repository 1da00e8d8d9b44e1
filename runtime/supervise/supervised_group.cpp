#include "runtime/supervise/supervised_group.h"

#include <utility>

#include "runtime/base/log.h"

namespace refrain {

SupervisedGroup::SupervisedGroup(int number, bool only,
                                 std::vector<std::vector<std::string>> commands, int max_restarts,
                                 uint64_t seed)
    : index(number),
      alone(only),
      workers(std::move(commands)),
      restarts(max_restarts, seed + static_cast<uint64_t>(number)) {
  last_run.resize(workers.size());
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    last_run[rank].rank = static_cast<int>(rank);
    if (!alone) last_run[rank].group = index;
    auto fd = ipc::FlightRing::create();
    auto ring = fd ? ipc::FlightRing::map(fd->get()) : forward_error(fd.error());
    if (!ring)
      log::warn("{} has no flight recorder: {}", name_of(static_cast<int>(rank)),
                ring.error().message);
    flight_fds_.push_back(fd ? std::move(*fd) : UniqueFd());
    flights_.push_back(ring ? std::move(*ring) : ipc::FlightRing());
  }
}

std::string SupervisedGroup::name_of(int rank) const {
  return alone ? fmt::format("rank {}", rank) : fmt::format("group {} rank {}", index, rank);
}

std::string SupervisedGroup::name_of(int rank, int64_t pid) const {
  return fmt::format("{} (pid {})", name_of(rank), pid);
}

std::vector<std::string> SupervisedGroup::begin(size_t rank, std::vector<int>& pass) {
  const int flight = flight_fds_[rank].get();
  flights_[rank].clear();
  std::vector<std::string> argv = workers[rank];
  if (flight >= 0) argv.insert(argv.end(), {"--flight-fd", std::to_string(flight)});
  pass = {flight};
  return argv;
}

std::vector<RankFlight> SupervisedGroup::flights_now() const {
  std::vector<RankFlight> flights = last_run;
  for (size_t i = 0; i < flights_.size(); ++i)
    flights[i].records = flights_[i].read(ipc::FlightRing::kRecords);
  return flights;
}

Incident SupervisedGroup::make_incident(std::string process, std::string ended, int rank) {
  Incident made;
  made.process = std::move(process);
  made.ended = std::move(ended);
  made.rank = rank;
  made.loss = std::exchange(early, std::nullopt);
  made.flights = flights_now();
  if (!alone) made.group = index;
  return made;
}

}  // namespace refrain
