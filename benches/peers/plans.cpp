// Prints the digest of the plans for each case of a quick run: the lines of plans.txt. Needs no CUDA.
#include "plan.hpp"

#include <cstdio>

int main(int count, char** words) try {
  auto const options = peers::Options::parse(count, words);
  for (auto const& c : peers::cases(options.threads)) {
    if (c.is("pair")) continue;
    uint64_t hash = 0xcbf29ce484222325u;
    for (auto const& plan : peers::plans(c, options.seed, peers::quick)) hash = plan.digest(hash);
    std::printf("%s threads=%u streams=%u live=%u freed=%u %016llx\n", c.workload.c_str(), c.threads, c.streams,
                c.live, c.freed_percent, static_cast<unsigned long long>(hash));
  }
} catch (std::exception const& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
