// The workloads of `millpond-replay bench`, for allocators with a C++ interface: the same plans from the same
// seed, measured in the same way. What each workload does, and how it is measured, is written at
// replay/src/bench/mod.rs; a change here belongs there too.
//
// A subject is a class with
//   void* allocate(size_t bytes, cudaStream_t stream);  // null or an exception if there is no memory
//   void free(void* block, size_t bytes, cudaStream_t stream) noexcept;
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace peers {

using Clock = std::chrono::steady_clock;

inline double nanoseconds(Clock::duration time) {
  return std::chrono::duration<double, std::nano>(time).count();
}

inline void check(cudaError_t status, char const* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
class Random {
 public:
  Random(uint64_t seed, uint64_t lane) : state_(mix(seed ^ mix(lane + 1))) {}

  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }

  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

  double unit() { return static_cast<double>(next() >> 11) / 9007199254740992.0; }

 private:
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  uint64_t state_;
};

// Log-uniform, in bytes.
struct Sizes {
  uint64_t smallest, largest;

  uint64_t draw(Random& random) const {
    double const low = static_cast<double>(smallest), high = static_cast<double>(largest);
    auto const bytes = static_cast<uint64_t>(low * std::exp(random.unit() * std::log(high / low)));
    return std::clamp(bytes, smallest, largest);
  }
};

struct Replacement {
  uint32_t slot;
  uint64_t bytes;
};

struct Case {
  char const* workload;
  int threads;
  uint64_t live;
  Sizes sizes;
  bool sweeps;  // each block once in a round, handed over to another thread between rounds
  bool own_streams;
};

struct Effort {
  size_t steps, warm_up;
  double measured_ns, preparing_ns;
};

inline constexpr Effort full{200'000, 2'000'000, 3e9, 120e9};
inline constexpr Effort quick{20'000, 5'000, 50e6, 4e9};

struct Plan {
  std::vector<uint64_t> fill;
  std::vector<Replacement> warm_up;
  std::vector<std::vector<Replacement>> rounds;
  uint64_t peak_bytes = 0;

  Plan(Random random, Case const& c, size_t warm_up_steps, size_t steps) {
    for (uint64_t i = 0; i < c.live; ++i) fill.push_back(c.sizes.draw(random));
    auto const any = [&] {
      auto const slot = static_cast<uint32_t>(random.below(c.live));
      return Replacement{slot, c.sizes.draw(random)};
    };
    for (size_t i = 0; i < warm_up_steps; ++i) warm_up.push_back(any());
    if (c.sweeps) {
      for (size_t i = 0; i < steps / c.live; ++i) rounds.push_back(sweep(random, c));
    } else {
      rounds.emplace_back();
      for (size_t i = 0; i < steps; ++i) rounds[0].push_back(any());
    }
    peak_bytes = most_bytes();
  }

 private:
  static std::vector<Replacement> sweep(Random& random, Case const& c) {
    std::vector<Replacement> steps;
    for (uint32_t slot = 0; slot < c.live; ++slot) steps.push_back({slot, c.sizes.draw(random)});
    for (uint64_t last = c.live - 1; last > 0; --last) std::swap(steps[last], steps[random.below(last + 1)]);
    return steps;
  }

  uint64_t most_bytes() const {
    auto slots = fill;
    uint64_t live = 0;
    for (auto bytes : slots) live += bytes;
    uint64_t most = live;
    auto const replay = [&](std::vector<Replacement> const& steps) {
      for (auto const& step : steps) {
        live = live - slots[step.slot] + step.bytes;
        slots[step.slot] = step.bytes;
        most = std::max(most, live);
      }
    };
    replay(warm_up);
    for (auto const& round : rounds) replay(round);
    return most;
  }
};

// ---- measuring ----

inline constexpr size_t sample_every = 16;

struct Lap {
  Clock::time_point start;
  double ns;
  size_t steps;

  Clock::time_point end() const {
    return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::nano>(ns));
  }
};

template <class Step>
std::pair<Clock::time_point, size_t> run_steps(size_t count, double limit_ns, std::vector<double>& samples,
                                               Step&& step) {
  samples.reserve(samples.size() + count / sample_every + 1);
  auto const start = Clock::now();
  size_t done = 0;
  while (done < count) {
    auto const before = Clock::now();
    step(done);
    auto const after = Clock::now();
    samples.push_back(nanoseconds(after - before));
    auto const group_end = std::min(done + sample_every, count);
    for (size_t i = done + 1; i < group_end; ++i) step(i);
    done = group_end;
    if (nanoseconds(after - start) > limit_ns) break;
  }
  return {start, done};
}

// What measuring costs: the least of several tries on steps that do nothing.
struct Cost {
  double sample_ns = 1e30, group_ns = 1e30;

  static Cost const& get() {
    static Cost const cost = [] {
      Cost least;
      constexpr size_t groups = 2000;
      for (int i = 0; i < 10; ++i) {
        std::vector<double> samples;
        auto const nothing = [](size_t index) { asm volatile("" : : "r"(index) : "memory"); };
        auto const start = run_steps(groups * sample_every, 1e30, samples, nothing).first;
        least.group_ns = std::min(least.group_ns, nanoseconds(Clock::now() - start) / groups);
        least.sample_ns = std::min(least.sample_ns, *std::min_element(samples.begin(), samples.end()));
      }
      return least;
    }();
    return cost;
  }
};

template <class Step>
Lap measured(size_t count, double limit_ns, std::vector<double>& samples, Step&& step) {
  auto const& cost = Cost::get();
  auto const before = samples.size();
  auto const [start, done] = run_steps(count, limit_ns, samples, step);
  double const ns = nanoseconds(Clock::now() - start);
  for (size_t i = before; i < samples.size(); ++i) samples[i] = std::max(0.0, samples[i] - cost.sample_ns);
  double const measuring = static_cast<double>(samples.size() - before) * cost.group_ns;
  return {start, std::max(0.0, ns - measuring), done};
}

struct Timing {
  std::vector<std::vector<Lap>> laps;  // by thread, then by round
  std::vector<double> samples;

  size_t steps() const {
    size_t sum = 0;
    for (auto const& thread : laps)
      for (auto const& lap : thread) sum += lap.steps;
    return sum;
  }

  double ns_per_step() const {
    double ns = 0;
    for (auto const& thread : laps)
      for (auto const& lap : thread) ns += lap.ns;
    return ns / static_cast<double>(std::max<size_t>(steps(), 1));
  }

  double steps_per_second() const {
    size_t rounds = laps.empty() ? 0 : laps[0].size();
    for (auto const& thread : laps) rounds = std::min(rounds, thread.size());
    double wall = 0;
    for (size_t round = 0; round < rounds; ++round) {
      auto start = laps[0][round].start, end = laps[0][round].end();
      for (auto const& thread : laps) {
        start = std::min(start, thread[round].start);
        end = std::max(end, thread[round].end());
      }
      wall += nanoseconds(end - start);
    }
    return static_cast<double>(steps()) * 1e9 / std::max(wall, 1.0);
  }

  double p99_ns() {
    if (samples.empty()) return 0;
    auto const at = samples.begin() + static_cast<ptrdiff_t>(samples.size() * 99 / 100);
    std::nth_element(samples.begin(), at, samples.end());
    return *at;
  }
};

// ---- running ----

struct Block {
  void* address;
  uint64_t bytes;
};

struct Skip : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class Subject>
void* must_allocate(Subject& subject, uint64_t bytes, cudaStream_t stream) {
  void* const block = subject.allocate(bytes, stream);
  if (block == nullptr) throw Skip("out of memory");
  return block;
}

template <class Subject>
Timing pairs(Subject& subject, Case const& c, cudaStream_t stream, Effort const& effort) {
  auto const bytes = c.sizes.largest;
  auto const pair = [&](size_t) { subject.free(must_allocate(subject, bytes, stream), bytes, stream); };
  for (size_t i = 0; i < 100; ++i) pair(i);
  Timing timing;
  timing.laps = {{measured(effort.steps, effort.measured_ns, timing.samples, pair)}};
  return timing;
}

// Threads that keep blocks live and replace them.
template <class Subject>
class Churn {
 public:
  Churn(Subject& subject, Case const& c, std::vector<Plan> const& plans, std::vector<cudaStream_t> streams,
        Effort const& effort)
      : subject_(subject), case_(c), plans_(plans), streams_(std::move(streams)), effort_(effort),
        shelves_(plans.size()), barrier_(static_cast<ptrdiff_t>(plans.size())), errors_(plans.size()),
        laps_(plans.size()), samples_(plans.size()) {}

  Timing run() {
    std::vector<std::thread> threads;
    for (size_t me = 0; me < plans_.size(); ++me) threads.emplace_back([this, me] { work(me); });
    for (auto& thread : threads) thread.join();
    for (auto const& error : errors_)
      if (error) std::rethrow_exception(error);
    Timing timing{std::move(laps_), {}};
    for (auto const& samples : samples_)
      timing.samples.insert(timing.samples.end(), samples.begin(), samples.end());
    return timing;
  }

 private:
  // It meets the others whatever happens, so that none waits for ever.
  void work(size_t me) {
    guarded(me, [&] { prepare(me); });
    for (size_t round = 0; round < plans_[me].rounds.size(); ++round) {
      // Stopping is only asked for between the second meeting and the first of the next round.
      barrier_.arrive_and_wait();
      if (stop_.load(std::memory_order_relaxed)) break;
      barrier_.arrive_and_wait();
      guarded(me, [&] { laps_[me].push_back(one_round(me, round)); });
    }
    barrier_.arrive_and_wait();
    for (auto const& block : shelves_[me])
      if (block.address != nullptr) subject_.free(block.address, block.bytes, streams_[me]);
  }

  template <class Phase>
  void guarded(size_t me, Phase&& phase) {
    try {
      phase();
    } catch (...) {
      errors_[me] = std::current_exception();
      stop_.store(true, std::memory_order_relaxed);
    }
  }

  void prepare(size_t me) {
    check(cudaSetDevice(0), "cudaSetDevice");
    auto const& plan = plans_[me];
    auto const stream = streams_[me];
    auto& shelf = shelves_[me];
    shelf.reserve(plan.fill.size());
    auto const begin = Clock::now();
    for (auto const bytes : plan.fill) {
      shelf.push_back({must_allocate(subject_, bytes, stream), bytes});
      if (shelf.size() % 64 == 0 && nanoseconds(Clock::now() - begin) > effort_.preparing_ns)
        throw Skip("allocating the first blocks took too long");
    }
    std::vector<double> samples;
    measured(plan.warm_up.size(), effort_.measured_ns, samples,
             [&](size_t i) { replace(shelf, plan.warm_up[i], stream, stream); });
  }

  Lap one_round(size_t me, size_t round) {
    auto const threads = plans_.size();
    // Who hands over leaves a shelf to his neighbour, who frees each block on its stream.
    auto& shelf = shelves_[case_.sweeps ? (me + round + 1) % threads : me];
    auto const theirs = streams_[case_.sweeps ? (me + 1) % threads : me], mine = streams_[me];
    double const spent = laps_[me].empty() ? 0 : nanoseconds(Clock::now() - laps_[me][0].start);
    auto const& steps = plans_[me].rounds[round];
    auto const lap = measured(steps.size(), std::max(0.0, effort_.measured_ns - spent), samples_[me],
                              [&](size_t i) { replace(shelf, steps[i], theirs, mine); });
    if (lap.steps < steps.size()) stop_.store(true, std::memory_order_relaxed);
    return lap;
  }

  void replace(std::vector<Block>& shelf, Replacement step, cudaStream_t freed_on, cudaStream_t allocated_on) {
    auto& slot = shelf[step.slot];
    subject_.free(slot.address, slot.bytes, freed_on);
    slot.address = nullptr;
    slot = {must_allocate(subject_, step.bytes, allocated_on), step.bytes};
  }

  Subject& subject_;
  Case const& case_;
  std::vector<Plan> const& plans_;
  std::vector<cudaStream_t> streams_;
  Effort effort_;
  std::vector<std::vector<Block>> shelves_;
  std::barrier<> barrier_;
  std::atomic<bool> stop_{false};
  std::vector<std::exception_ptr> errors_;
  std::vector<std::vector<Lap>> laps_;
  std::vector<std::vector<double>> samples_;
};

// ---- what runs ----

struct Options {
  bool is_quick = false;
  uint64_t seed = 42;
  std::vector<int> threads{1, 2, 4, 8, 16};
  uint64_t most_live = UINT64_MAX;  // for allocators that get slow with many blocks
  std::vector<std::string> names;   // what is left of the command line

  static Options parse(int count, char** words) {
    Options options;
    auto const value = [&](int& i) -> std::string {
      if (i + 1 >= count) throw std::runtime_error(std::string(words[i]) + " needs a value");
      return words[++i];
    };
    for (int i = 1; i < count; ++i) {
      std::string const word = words[i];
      if (word == "--quick") {
        options.is_quick = true;
        options.threads = {2};
      } else if (word == "--seed") {
        options.seed = std::stoull(value(i));
      } else if (word == "--threads") {
        options.threads.clear();
        auto const list = value(i);
        for (size_t at = 0; at <= list.size();) {
          auto const comma = std::min(list.find(',', at), list.size());
          options.threads.push_back(std::stoi(list.substr(at, comma - at)));
          at = comma + 1;
        }
      } else if (word == "--most-live") {
        options.most_live = std::stoull(value(i));
      } else {
        options.names.push_back(word);
      }
    }
    return options;
  }
};

inline std::vector<Case> cases(std::vector<int> const& threads) {
  constexpr Sizes small{256, 1 << 20}, large{1 << 20, 64 << 20};
  std::vector<Case> all;
  for (uint64_t const bytes : {256ul, 4096ul, 65536ul, 1ul << 20, 64ul << 20})
    all.push_back({"pair", 1, 1, {bytes, bytes}, false, true});
  for (uint64_t const live : {1000ul, 10'000ul, 100'000ul, 1'000'000ul})
    all.push_back({"churn", 1, live, small, false, true});
  all.push_back({"churn_large", 1, 2000, large, false, true});
  for (int const count : threads) all.push_back({"threads_own_stream", count, 1000, small, false, true});
  for (int const count : threads) all.push_back({"threads_one_stream", count, 1000, small, false, false});
  int last = 0;
  for (int const count : threads) {  // it takes two
    if (std::max(count, 2) != last) all.push_back({"cross_thread_free", last = std::max(count, 2), 1000, small,
                                                   true, true});
  }
  return all;
}

inline std::vector<Plan> plans(Case const& c, uint64_t seed, Effort const& effort) {
  std::vector<Plan> all;
  if (std::strcmp(c.workload, "pair") == 0) return all;
  size_t const steps = std::strcmp(c.workload, "churn_large") == 0 ? effort.steps / 4 : effort.steps;
  size_t const warm_up = std::min<size_t>(c.live * 2, effort.warm_up);
  for (int me = 0; me < c.threads; ++me) {
    all.emplace_back(Random(seed, c.live << 16 | static_cast<uint64_t>(me)), c, warm_up, steps);
  }
  return all;
}

// Runs every workload on a subject, made anew for each by `make`, and prints a line of JSON for each.
template <class Make>
void run_all(std::string const& stack, Options const& options, Make&& make) {
  check(cudaSetDevice(0), "cudaSetDevice");
  auto const& effort = options.is_quick ? quick : full;
  for (auto const& c : cases(options.threads)) {
    auto const of_threads = plans(c, options.seed, effort);
    uint64_t bytes = of_threads.empty() ? c.sizes.largest : 0;
    for (auto const& plan : of_threads) bytes += plan.peak_bytes;
    std::printf("{\"workload\":\"%s\",\"stack\":\"%s\",\"threads\":%d,\"live\":%llu,\"bytes\":%llu", c.workload,
                stack.c_str(), c.threads, static_cast<unsigned long long>(c.live),
                static_cast<unsigned long long>(bytes));
    std::vector<cudaStream_t> streams(static_cast<size_t>(c.threads));
    std::string reason;
    try {
      size_t free_bytes = 0, total_bytes = 0;
      check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
      if (bytes > free_bytes) throw Skip("more bytes are live at once than the device has free");
      if (c.live > options.most_live) throw Skip("so many blocks take this allocator too long");
      for (auto& stream : streams)
        if (&stream == &streams[0] || c.own_streams)
          check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        else
          stream = streams[0];
      {
        auto subject = make();
        Timing timing = of_threads.empty() ? pairs(*subject, c, streams[0], effort)
                                           : Churn(*subject, c, of_threads, streams, effort).run();
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        std::printf(",\"steps\":%zu,\"ns_per_step\":%.2f,\"p99_ns\":%.0f,\"steps_per_second\":%.0f}\n",
                    timing.steps(), timing.ns_per_step(), timing.p99_ns(), timing.steps_per_second());
      }
      for (size_t i = 0; i < (c.own_streams ? streams.size() : 1); ++i) cudaStreamDestroy(streams[i]);
    } catch (std::exception const& error) {
      reason = error.what();
    }
    if (!reason.empty()) {
      for (auto& letter : reason)
        if (letter == '"' || letter == '\\' || static_cast<unsigned char>(letter) < ' ') letter = ' ';
      std::printf(",\"status\":\"skipped\",\"reason\":\"%s\"}\n", reason.c_str());
    }
    std::fflush(stdout);
  }
}

}  // namespace peers
