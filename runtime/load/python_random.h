#pragma once
// The generator of Python's `random` module: a seed gives the requests that a script in Python
// makes from it, so that two load generators can be compared on the same work. Plain value.

#include <cstdint>
#include <random>

namespace refrain {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  double random();                                  // in [0, 1), 53 bits
  int64_t randrange(int64_t from, int64_t to);      // in [from, to); less than 2^32 numbers
  double expovariate(double rate);                  // mean 1 / rate
  double lognormvariate(double mu, double sigma);   // of the normal distribution underneath
  double gammavariate(double shape, double scale);  // by the standard library, not Python's way

 private:
  double normalvariate(double mu, double sigma);

  std::mt19937 engine_;
};

}  // namespace refrain
