// The tests of the simulation; with --seed N or --seeds FROM-TO those seeds instead (tools/sim).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/sim/simulation.h"

namespace {

using refrain::sim::SimReport;

struct Options {
  uint64_t from = 0, to = 0;  // seeds, both included
  bool asked = false, verbose = false, trace = false, first = false;
};

int usage() {
  std::fputs(
      "usage: test_sim [--seed N | --seeds FROM-TO] [--first] [--verbose | --trace]   or gtest's "
      "options\n"
      "  --first    ends at the first seed that fails\n"
      "  --verbose  the event log of the seeds\n"
      "  --trace    with every closure that ran\n",
      stderr);
  return 2;
}

// False: not for this program alone, gtest's options follow.
bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    char* end = nullptr;
    if (word == "--verbose") {
      options.verbose = true;
    } else if (word == "--first") {
      options.first = true;
    } else if (word == "--trace") {
      options.verbose = options.trace = true;
    } else if ((word == "--seed" || word == "--seeds") && i + 1 < argc) {
      options.asked = true;
      options.from = options.to = std::strtoull(argv[++i], &end, 10);
      if (word == "--seeds" && *end == '-') options.to = std::strtoull(end + 1, &end, 10);
      if (*end != '\0' || options.to < options.from) std::exit(usage());
    } else {
      if (options.asked) std::exit(usage());
      return false;
    }
  }
  return options.asked;
}

void print_log(const SimReport& report, bool trace) {
  for (const std::string& line : report.log) {
    const size_t space = line.find(' ');
    const bool own = line.compare(space + 1, 2, "| ") == 0;
    if (!own && !trace) continue;
    const double seconds = static_cast<double>(std::strtoull(line.c_str(), nullptr, 10)) * 1e-6;
    fmt::print("{:12.6f} s  {}\n", seconds, line.substr(space + (own ? 3 : 1)));
  }
}

int run(const Options& options) {
  uint64_t failed = 0;
  SimReport sum;
  for (uint64_t seed = options.from; seed <= options.to; ++seed) {
    const SimReport report = refrain::sim::run_seed(seed);
    if (options.verbose) print_log(report, options.trace);
    sum.requests += report.requests;
    sum.complete += report.complete;
    sum.aborted += report.aborted;
    sum.errors += report.errors;
    sum.unanswered += report.unanswered;
    sum.refused += report.refused;
    sum.groups_lost += report.groups_lost;
    sum.adoptions += report.adoptions;
    sum.poison += report.poison;
    sum.isolated += report.isolated;
    sum.tokens += report.tokens;
    sum.virtual_seconds += report.virtual_seconds;
    if (options.verbose)
      fmt::print("digest of the event log: {:016x}\n", refrain::sim::digest_of(report.log));
    if (report.faults.empty()) continue;
    ++failed;
    fmt::print("seed {} FAILED\n", seed);
    for (const std::string& fault : report.faults) fmt::print("  {}\n", fault);
    fmt::print("  replay: tools/sim --seed {} --verbose\n", seed);
    std::fflush(stdout);
    if (options.first) break;
  }
  fmt::print(
      "{} seeds, {} failed: {} requests ({} complete, {} cancelled, {} errors, {} without a "
      "coordinator, {} refused), {} tokens, {} groups lost, {} adopted, {} of {} requests that end "
      "their workers isolated, {:.0f} s of virtual time\n",
      options.to - options.from + 1, failed, sum.requests, sum.complete, sum.aborted, sum.errors,
      sum.unanswered, sum.refused, sum.tokens, sum.groups_lost, sum.adoptions, sum.isolated,
      sum.poison, sum.virtual_seconds);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (parse(argc, argv, options)) return run(options);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
