// Prints the digest of the busy run's plan for each log, seed (42 and 7) and range of kernels: the lines of
// busy_plans.txt. Needs no CUDA.
#include "log.hpp"

#include <cstdio>

int main(int count, char** words) try {
  for (int i = 1; i < count; ++i) {
    for (uint64_t const seed : {42, 7}) {
      for (size_t const first : {SIZE_MAX, size_t{1000}}) {
        peers::Log const log(words[i], first);
        for (char const* range : {"5..25", "10..100"}) {
          peers::BusyPlan const plan(log, peers::Kernels::parse(range), seed);
          std::printf("seed=%llu operations=%zu kernels=%s live=%llu %016llx\n",
                      static_cast<unsigned long long>(seed), plan.steps.size(), range,
                      static_cast<unsigned long long>(log.peak_bytes),
                      static_cast<unsigned long long>(plan.digest(log.slots)));
        }
      }
    }
  }
} catch (std::exception const& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
