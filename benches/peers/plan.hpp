// The plans of `millpond-replay bench`: the random choices of each workload, which depend only on the seed.
// measure/src/bench/mod.rs documents the workloads. Change these files and cupy_bench.py together; plans.txt
// shows whether all three agree.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace peers {

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

// Sizes in bytes, log-uniform.
struct Sizes {
  uint32_t smallest, largest;

  uint32_t draw(Random& random) const {
    double const low = smallest, high = largest;
    auto const bytes = static_cast<uint32_t>(low * std::exp(random.unit() * std::log(high / low)));
    return std::clamp(bytes, smallest, largest);
  }
};

struct Request {
  uint32_t bytes, stream;
};

struct Replacement {
  uint32_t slot;
  Request by;
};

struct Effort {
  size_t steps, warm_up;
  double warming_ns, measured_ns, preparing_ns;
};

inline constexpr Effort full{200'000, 4'000'000, 4e9, 1e9, 10e9};
inline constexpr Effort quick{20'000, 5'000, 50e6, 50e6, 3e9};
inline constexpr size_t replacements = 4;  // of each block before the clock starts, on average

inline constexpr Sizes small{256, 1 << 20}, large{1 << 20, 64 << 20}, other{64 << 10, 4 << 20};
inline constexpr uint32_t fragments = 20'000;

struct Case {
  std::string workload;
  uint32_t threads, streams, live;
  Sizes sizes;
  uint32_t freed_percent = 0;

  bool is(char const* name) const { return workload == name; }

  std::pair<uint32_t, uint32_t> streams_of(uint32_t thread) const {
    if (threads == 1) return {0, streams};
    return streams == 1 ? std::pair{0u, 1u} : std::pair{thread, thread + 1};
  }
};

inline std::vector<Case> cases(std::vector<uint32_t> const& threads) {
  std::vector<Case> all;
  for (uint32_t const bytes : {256, 4 << 10, 64 << 10, 1 << 20, 64 << 20})
    all.push_back({"pair", 1, 1, 1, {bytes, bytes}});
  for (uint32_t const live : {100, 1000, 10'000, 100'000, 1'000'000})
    all.push_back({"churn", 1, 1, live, small});
  all.push_back({"churn_large", 1, 1, 2000, large});
  for (uint32_t const streams : {1, 4, 16, 64, 256}) all.push_back({"streams", 1, streams, 10'000, small});
  for (uint32_t const freed : {0, 25, 50, 75, 90}) all.push_back({"fragmented", 1, 1, 4000, other, freed});
  for (auto const count : threads) all.push_back({"threads_own_stream", count, count, 1000, small});
  for (auto const count : threads) all.push_back({"threads_one_stream", count, 1, 1000, small});
  uint32_t last = 0;
  for (auto const count : threads) {  // at least two threads
    if (std::max(count, 2u) == last) continue;
    last = std::max(count, 2u);
    all.push_back({"cross_thread_free", last, last, 1000, small});
  }
  return all;
}

// The work of one thread.
struct Plan {
  std::vector<Request> fragments;
  std::vector<uint32_t> freed;  // of the fragments
  std::vector<Request> fill;
  std::vector<Replacement> warm_up;
  std::vector<std::vector<Replacement>> rounds;
  uint64_t peak_bytes = 0;

  Plan(Case const& c, uint32_t thread, uint64_t seed, Effort const& effort)
      : random_(seed, static_cast<uint64_t>(c.live) << 16 | thread), case_(&c), streams_(c.streams_of(thread)) {
    size_t const steps = c.is("churn_large") ? effort.steps / 4 : effort.steps;
    if (c.is("fragmented")) break_up();
    for (uint32_t i = 0; i < c.live; ++i) fill.push_back(request(c.sizes));
    auto const warm_up_steps = std::min(c.live * replacements, effort.warm_up);
    for (size_t i = 0; i < warm_up_steps; ++i) warm_up.push_back(any());
    if (c.is("cross_thread_free")) {
      for (size_t i = 0; i < steps / c.live; ++i) rounds.push_back(sweep());
    } else {
      rounds.emplace_back();
      for (size_t i = 0; i < steps; ++i) rounds[0].push_back(any());
    }
    peak_bytes = most_bytes();
  }

  // FNV-1a over 32-bit numbers.
  uint64_t digest(uint64_t hash) const {
    auto const add = [&](uint32_t number) { hash = (hash ^ number) * 0x100000001b3u; };
    auto const request = [&](Request const& of) { add(of.bytes), add(of.stream); };
    auto const replacement = [&](Replacement const& step) { add(step.slot), request(step.by); };
    std::for_each(fragments.begin(), fragments.end(), request);
    std::for_each(freed.begin(), freed.end(), add);
    std::for_each(fill.begin(), fill.end(), request);
    std::for_each(warm_up.begin(), warm_up.end(), replacement);
    for (auto const& round : rounds) std::for_each(round.begin(), round.end(), replacement);
    return hash;
  }

 private:
  Random random_;
  Case const* case_;
  std::pair<uint32_t, uint32_t> streams_;

  Request request(Sizes sizes) {
    auto const bytes = sizes.draw(random_);
    auto const [first, end] = streams_;
    // A single stream needs no random number.
    return {bytes, end - first > 1 ? first + static_cast<uint32_t>(random_.below(end - first)) : first};
  }

  Replacement any() {
    auto const slot = static_cast<uint32_t>(random_.below(case_->live));
    return {slot, request(case_->sizes)};
  }

  void break_up() {
    for (uint32_t i = 0; i < peers::fragments; ++i) fragments.push_back(request(small));
    for (uint32_t i = 0; i < peers::fragments; ++i) freed.push_back(i);
    uint32_t const count = peers::fragments * case_->freed_percent / 100;
    for (uint32_t at = 0; at < count; ++at)
      std::swap(freed[at], freed[at + random_.below(peers::fragments - at)]);
    freed.resize(count);
  }

  std::vector<Replacement> sweep() {
    std::vector<Replacement> steps;
    for (uint32_t slot = 0; slot < case_->live; ++slot) steps.push_back({slot, request(case_->sizes)});
    for (uint64_t last = case_->live - 1; last > 0; --last)
      std::swap(steps[last], steps[random_.below(last + 1)]);
    return steps;
  }

  uint64_t most_bytes() const {
    auto slots = fill;
    uint64_t live = 0;
    for (auto const& of : fragments) live += of.bytes;
    uint64_t most = live;
    for (auto const index : freed) live -= fragments[index].bytes;
    for (auto const& of : slots) live += of.bytes;
    most = std::max(most, live);
    auto const replay = [&](std::vector<Replacement> const& steps) {
      for (auto const& step : steps) {
        live = live - slots[step.slot].bytes + step.by.bytes;
        slots[step.slot] = step.by;
        most = std::max(most, live);
      }
    };
    replay(warm_up);
    for (auto const& round : rounds) replay(round);
    return most;
  }
};

// Returns a plan for each thread; pairs need no plan.
inline std::vector<Plan> plans(Case const& c, uint64_t seed, Effort const& effort) {
  std::vector<Plan> all;
  if (c.is("pair")) return all;
  for (uint32_t me = 0; me < c.threads; ++me) all.emplace_back(c, me, seed, effort);
  return all;
}

// The command line of each program.
struct Options {
  bool is_quick = false;
  uint64_t seed = 42;
  std::vector<uint32_t> threads{1, 2, 4, 8, 16};
  uint64_t most_live = UINT64_MAX;   // for allocators that are slow with many blocks
  std::vector<std::string> workloads;  // empty: all
  std::vector<std::string> logs;
  std::vector<std::string> names;  // the other arguments
  std::optional<uint32_t> passes;  // passes of each log
  // For logs with work in flight.
  bool is_busy = false;
  std::vector<std::string> kernels{"5..25", "10..100"}, hosts{"ahead", "level", "sync"};
  uint64_t first = UINT64_MAX;  // operations of each log
  std::string capacity;         // memory left on the device, like 3GiB or 120%; empty: all

  static Options parse(int count, char** words) {
    Options options;
    std::vector<std::string> all(words + 1, words + count);
    for (size_t i = 0; i < all.size(); ++i) {  // --name=value means --name value
      auto const equals = all[i].find('=');
      if (all[i].rfind("--", 0) != 0 || equals == std::string::npos) continue;
      all.insert(all.begin() + static_cast<ptrdiff_t>(i) + 1, all[i].substr(equals + 1));
      all[i].resize(equals);
    }
    auto const value = [&](size_t& i) {
      if (i + 1 >= all.size()) throw std::runtime_error(all[i] + " needs a value");
      return all[++i];
    };
    for (size_t i = 0; i < all.size(); ++i) {
      auto const& word = all[i];
      if (word == "--quick") {
        options.is_quick = true;
        options.threads = {2};
      } else if (word == "--seed") {
        options.seed = std::stoull(value(i));
      } else if (word == "--threads") {
        options.threads.clear();
        for (auto const& number : split(value(i)))
          options.threads.push_back(static_cast<uint32_t>(std::stoul(number)));
      } else if (word == "--workload") {
        options.workloads = split(value(i));
      } else if (word == "--most-live") {
        options.most_live = std::stoull(value(i));
      } else if (word == "--log") {
        options.logs.push_back(value(i));
      } else if (word == "--busy") {
        options.is_busy = true;
      } else if (word == "--kernels") {
        options.kernels = split(value(i));
      } else if (word == "--host") {
        options.hosts = split(value(i));
      } else if (word == "--passes") {
        options.passes = std::max(1u, static_cast<uint32_t>(std::stoul(value(i))));
      } else if (word == "--first") {
        options.first = std::stoull(value(i));
      } else if (word == "--capacity") {
        options.capacity = value(i);
      } else if (word.rfind("-", 0) == 0) {
        throw std::runtime_error(word + " is unknown; use --quick, --seed, --threads, --workload, "
                                 "--most-live, --log and --passes, or --busy with --kernels, --host, "
                                 "--first and --capacity");
      } else {
        options.names.push_back(word);
      }
    }
    return options;
  }

  Effort const& effort() const { return is_quick ? quick : full; }

  bool wants(Case const& c) const {
    return workloads.empty() || std::find(workloads.begin(), workloads.end(), c.workload) != workloads.end();
  }

 private:
  static std::vector<std::string> split(std::string const& list) {
    std::vector<std::string> parts;
    for (size_t at = 0; at <= list.size();) {
      auto const comma = std::min(list.find(',', at), list.size());
      parts.push_back(list.substr(at, comma - at));
      at = comma + 1;
    }
    return parts;
  }
};

}  // namespace peers
