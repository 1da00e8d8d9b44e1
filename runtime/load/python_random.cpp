#include "runtime/load/python_random.h"

#include <array>
#include <bit>
#include <cmath>
#include <sstream>
#include <vector>

#include "runtime/base/check.h"

namespace refrain {
namespace {

constexpr size_t kStateWords = 624;  // of the state of MT19937

// init_by_array of the generator's authors: seeding by several words.
std::array<uint32_t, kStateWords> seeded_state(const std::vector<uint32_t>& key) {
  std::array<uint32_t, kStateWords> state{};
  state[0] = 19650218;
  for (size_t i = 1; i < kStateWords; ++i) {
    state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + static_cast<uint32_t>(i);
  }
  size_t i = 1, j = 0;
  const auto next = [&] {
    if (++i == kStateWords) {
      state[0] = state[kStateWords - 1];
      i = 1;
    }
  };
  for (size_t k = std::max(kStateWords, key.size()); k > 0; --k) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1664525U)) + key[j] +
               static_cast<uint32_t>(j);
    next();
    j = (j + 1) % key.size();
  }
  for (size_t k = kStateWords - 1; k > 0; --k) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * 1566083941U)) -
               static_cast<uint32_t>(i);
    next();
  }
  state[0] = 0x80000000U;
  return state;
}

}  // namespace

PythonRandom::PythonRandom(uint64_t seed) {
  std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
  if ((seed >> 32) != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  std::stringstream text;  // the only way that the standard gives into the state
  for (const uint32_t word : seeded_state(key)) text << word << ' ';
  text << kStateWords;
  text >> engine_;
  REFRAIN_CHECK(!text.fail(), "the standard library writes its mt19937 in another form");
}

double PythonRandom::random() {
  const uint64_t high = engine_() >> 5;
  const uint64_t low = engine_() >> 6;
  return static_cast<double>((high << 26) + low) / 9007199254740992.0;
}

int64_t PythonRandom::randrange(int64_t from, int64_t to) {
  const int64_t count = to - from;
  REFRAIN_CHECK(count > 0 && count < (int64_t{1} << 32), "randrange({}, {})", from, to);
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(count)));
  int64_t number = count;
  while (number >= count) number = static_cast<int64_t>(engine_() >> (32 - bits));
  return from + number;
}

double PythonRandom::expovariate(double rate) { return -std::log(1.0 - random()) / rate; }

// Kinderman and Monahan, ACM Trans. Math. Software 3 (1977), as Python does it.
double PythonRandom::normalvariate(double mu, double sigma) {
  const double magic = 4 * std::exp(-0.5) / std::sqrt(2.0);
  while (true) {
    const double u1 = random();
    const double u2 = 1.0 - random();
    const double z = magic * (u1 - 0.5) / u2;
    if (z * z / 4.0 <= -std::log(u2)) return mu + z * sigma;
  }
}

double PythonRandom::lognormvariate(double mu, double sigma) {
  return std::exp(normalvariate(mu, sigma));
}

double PythonRandom::gammavariate(double shape, double scale) {
  return std::gamma_distribution<double>(shape, scale)(engine_);
}

}  // namespace refrain
