// The workloads of `millpond-replay bench`, for allocators with a C++ interface: the same plans from the same
// seed (plan.hpp), measured in the same way. measure/src/bench/mod.rs documents the method; change both
// together.
//
// A subject is a class with these functions:
//   void* allocate(size_t bytes, cudaStream_t stream);  // null or an exception if memory runs out
//   void free(void* block, size_t bytes, cudaStream_t stream) noexcept;
//   std::optional<uint64_t> reserved();  // the most bytes taken from the driver, if known
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "plan.hpp"

namespace peers {

using Clock = std::chrono::steady_clock;

inline double nanoseconds(Clock::duration time) {
  return std::chrono::duration<double, std::nano>(time).count();
}

inline void check(cudaError_t status, char const* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

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

// The cost of measuring: the least of several tries with empty steps.
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
  double filling_ns = 0;  // of all threads together, before the clock starts
  size_t filled = 0;

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
  Request of;
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
  Churn(Subject& subject, std::vector<Plan> const& plans, std::vector<cudaStream_t> const& streams,
        bool hands_over, Effort const& effort)
      : subject_(subject), plans_(plans), streams_(streams), hands_over_(hands_over), effort_(effort),
        shelves_(plans.size()), barrier_(static_cast<ptrdiff_t>(plans.size())), workers_(plans.size()) {}

  Timing run() {
    std::vector<std::thread> threads;
    for (size_t me = 0; me < plans_.size(); ++me) threads.emplace_back([this, me] { work(me); });
    for (auto& thread : threads) thread.join();
    Timing timing;
    for (auto& worker : workers_) {
      if (worker.error) std::rethrow_exception(worker.error);
      timing.laps.push_back(std::move(worker.laps));
      timing.samples.insert(timing.samples.end(), worker.samples.begin(), worker.samples.end());
      timing.filling_ns += worker.filling_ns;
      timing.filled += worker.filled;
    }
    return timing;
  }

 private:
  struct Worker {
    std::vector<Lap> laps;
    std::vector<double> samples;
    double filling_ns = 0;
    size_t filled = 0;
    std::exception_ptr error;
  };

  // Waits for the other threads even after an error, so that no thread waits forever.
  void work(size_t me) {
    guarded(me, [&] { prepare(me); });
    for (size_t round = 0; round < plans_[me].rounds.size(); ++round) {
      // Threads set `stop_` only between the second barrier and the first barrier of the next round.
      barrier_.arrive_and_wait();
      if (stop_.load(std::memory_order_relaxed)) break;
      barrier_.arrive_and_wait();
      guarded(me, [&] { workers_[me].laps.push_back(one_round(me, round)); });
    }
    barrier_.arrive_and_wait();
    // Frees from the highest address down. In any other order, RMM's pool takes minutes for many blocks.
    std::sort(shelves_[me].begin(), shelves_[me].end(), [](Block const& one, Block const& other) {
      return std::greater<void*>{}(one.address, other.address);
    });
    for (auto& block : shelves_[me])
      if (block.address != nullptr) free(block);
  }

  template <class Phase>
  void guarded(size_t me, Phase&& phase) {
    try {
      phase();
    } catch (...) {
      workers_[me].error = std::current_exception();
      stop_.store(true, std::memory_order_relaxed);
    }
  }

  void prepare(size_t me) {
    check(cudaSetDevice(0), "cudaSetDevice");
    auto const& plan = plans_[me];
    auto& shelf = shelves_[me];
    fill(me, plan.fragments);
    for (auto const index : plan.freed) free(shelf[index]);
    std::erase_if(shelf, [](Block const& block) { return block.address == nullptr; });
    auto const left = static_cast<ptrdiff_t>(shelf.size());
    fill(me, plan.fill);
    // Slots come first. The fragments after them stay until the end.
    std::rotate(shelf.begin(), shelf.begin() + left, shelf.end());
    std::vector<double> samples;
    measured(plan.warm_up.size(), effort_.warming_ns, samples,
             [&](size_t i) { replace(shelf, plan.warm_up[i]); });
  }

  void fill(size_t me, std::vector<Request> const& requests) {
    auto& shelf = shelves_[me];
    auto const begin = Clock::now();
    shelf.reserve(shelf.size() + requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      shelf.push_back(allocate(requests[i]));
      if (i % 64 == 0 && nanoseconds(Clock::now() - begin) > effort_.preparing_ns)
        throw Skip("allocating the first blocks took too long");
    }
    workers_[me].filling_ns += nanoseconds(Clock::now() - begin);
    workers_[me].filled += requests.size();
  }

  Lap one_round(size_t me, size_t round) {
    auto& worker = workers_[me];
    // A thread that hands over blocks leaves its shelf to its neighbour.
    auto& shelf = shelves_[hands_over_ ? (me + round + 1) % plans_.size() : me];
    double const spent = worker.laps.empty() ? 0 : nanoseconds(Clock::now() - worker.laps[0].start);
    auto const& steps = plans_[me].rounds[round];
    auto const lap = measured(steps.size(), std::max(0.0, effort_.measured_ns - spent), worker.samples,
                              [&](size_t i) { replace(shelf, steps[i]); });
    if (lap.steps < steps.size()) stop_.store(true, std::memory_order_relaxed);
    return lap;
  }

  void replace(std::vector<Block>& shelf, Replacement const& step) {
    auto& slot = shelf[step.slot];
    free(slot);
    slot = allocate(step.by);
  }

  Block allocate(Request const& of) { return {must_allocate(subject_, of.bytes, streams_[of.stream]), of}; }

  // Frees on the stream that allocated the block.
  void free(Block& slot) {
    auto const block = slot;
    slot.address = nullptr;
    subject_.free(block.address, block.of.bytes, streams_[block.of.stream]);
  }

  Subject& subject_;
  std::vector<Plan> const& plans_;
  std::vector<cudaStream_t> const& streams_;
  bool hands_over_;
  Effort effort_;
  std::vector<std::vector<Block>> shelves_;
  std::barrier<> barrier_;
  std::atomic<bool> stop_{false};
  std::vector<Worker> workers_;
};

// ---- cases ----

// Non-blocking streams. The destructor destroys them.
class Streams {
 public:
  explicit Streams(size_t count) {
    while (count-- > 0) {
      cudaStream_t stream{};
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      all.push_back(stream);
    }
  }
  Streams(Streams const&) = delete;
  Streams& operator=(Streams const&) = delete;
  ~Streams() {
    for (auto const stream : all) cudaStreamDestroy(stream);
  }

  std::vector<cudaStream_t> all;
};

inline void print_number(char const* name, std::optional<double> value, int digits = 0) {
  if (value) std::printf(",\"%s\":%.*f", name, digits, *value);
  else std::printf(",\"%s\":null", name);
}

inline void print_setback(std::string reason) {
  reason.resize(std::min<size_t>(reason.size(), 200));
  for (auto& letter : reason)
    if (letter == '"' || letter == '\\' || static_cast<unsigned char>(letter) < ' ') letter = ' ';
  std::printf(",\"status\":\"skipped\",\"reason\":\"%s\"", reason.c_str());
}

template <class Make>
void run_case(Case const& c, std::vector<Plan> const& plans, uint64_t bytes, Options const& options, Make&& make) {
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  if (bytes > free_bytes) throw Skip("more bytes are live at once than the device has free");
  if (c.live > options.most_live) throw Skip("this allocator is too slow with this many live blocks");
  Streams const streams(c.streams);
  auto const subject = make();
  auto const& effort = options.effort();
  Timing timing = plans.empty()
                      ? pairs(*subject, c, streams.all[0], effort)
                      : Churn(*subject, plans, streams.all, c.is("cross_thread_free"), effort).run();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  print_number("steps", timing.steps());
  print_number("ns_per_step", timing.ns_per_step(), 2);
  print_number("p99_ns", timing.p99_ns());
  print_number("steps_per_second", timing.steps_per_second());
  std::optional<double> fill;
  if (timing.filled > 0) fill = timing.filling_ns / static_cast<double>(timing.filled);
  print_number("ns_per_fill", fill, 2);
  print_number("reserved_bytes", subject->reserved());
}

// Builds a subject for each workload with `make`, runs the workload on it, and prints a line of JSON.
template <class Make>
void run_all(std::string const& stack, Options const& options, Make&& make) {
  check(cudaSetDevice(0), "cudaSetDevice");
  for (auto const& c : cases(options.threads)) {
    if (!options.wants(c)) continue;
    auto const of_threads = plans(c, options.seed, options.effort());
    uint64_t bytes = of_threads.empty() ? c.sizes.largest : 0;
    for (auto const& plan : of_threads) bytes += plan.peak_bytes;
    std::printf("{\"workload\":\"%s\",\"stack\":\"%s\",\"threads\":%u,\"streams\":%u,\"live\":%u,"
                "\"freed_percent\":%u,\"bytes\":%llu",
                c.workload.c_str(), stack.c_str(), c.threads, c.streams, c.live, c.freed_percent,
                static_cast<unsigned long long>(bytes));
    try {
      run_case(c, of_threads, bytes, options, make);
    } catch (std::exception const& error) {
      print_setback(error.what());
    }
    std::printf("}\n");
    std::fflush(stdout);
  }
}

}  // namespace peers
