// An allocation log, and the busy run's plan for it: after each allocation, a kernel of random duration.
// Needs no CUDA. measure/src/busy draws the same durations; change both together. busy_plans.txt shows
// whether they agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace peers {

// Reads an unpacked log with RMM's columns: Thread,Time,Action,Pointer,Size,Stream.
struct Log {
  struct Op {
    uint64_t bytes;
    uint32_t slot, stream;
    bool allocates;
  };

  std::vector<Op> ops;
  std::vector<Op> left;  // allocations that these operations never free
  uint32_t slots = 0;
  std::vector<bool> is_default;  // by stream: whether it is the legacy default stream
  uint64_t peak_bytes = 0;

  // Reads the log's first operations; by default all.
  explicit Log(std::string const& path, size_t first = SIZE_MAX) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line) || line.rfind("Thread,Time,Action,Pointer,Size,Stream", 0) != 0)
      throw std::runtime_error(path + " is not a log with the columns Thread,Time,Action,Pointer,Size,Stream");
    while (ops.size() < first && std::getline(file, line)) {
      std::vector<std::string> columns;
      std::istringstream row(line);
      for (std::string column; std::getline(row, column, ',');) columns.push_back(column);
      if (columns.size() < 6) throw std::runtime_error(path + ": a row has too few columns: " + line);
      add(columns);
    }
    for (auto const& [pointer, op] : live_) left.push_back(op);
  }

 private:
  std::unordered_map<std::string, Op> live_;
  std::unordered_map<std::string, uint32_t> streams_;
  std::vector<uint32_t> unused_;
  uint64_t live_bytes_ = 0;

  void add(std::vector<std::string> const& columns) {
    auto const& action = columns[2];
    auto const& pointer = columns[3];
    auto const [known, is_new] = streams_.emplace(columns[5], static_cast<uint32_t>(streams_.size()));
    if (is_new) is_default.push_back(std::stoull(columns[5], nullptr, 0) == 0);
    auto const stream = known->second;
    auto const bytes = std::stoull(columns[4]);
    if (action == "allocate" && bytes > 0) {
      uint32_t slot = slots;
      if (unused_.empty()) ++slots;
      else slot = unused_.back(), unused_.pop_back();
      ops.push_back({bytes, slot, stream, true});
      live_[pointer] = ops.back();
      peak_bytes = std::max(peak_bytes, live_bytes_ += bytes);
    } else if (action == "free") {
      auto const found = live_.find(pointer);
      if (found == live_.end()) return;
      ops.push_back({found->second.bytes, found->second.slot, stream, false});
      live_bytes_ -= found->second.bytes;
      unused_.push_back(found->second.slot);
      live_.erase(found);
    }
  }
};

// The range of the kernels' durations, in nanoseconds.
struct Kernels {
  uint32_t shortest_ns, longest_ns;

  // Reads a range of microseconds such as 10..100.
  static Kernels parse(std::string const& text) {
    auto const dots = text.find("..");
    if (dots == std::string::npos) throw std::runtime_error(text + " is not a range of microseconds; write one like 10..100");
    auto const us = [](std::string const& part) { return static_cast<uint32_t>(std::stoul(part)) * 1000; };
    return {us(text.substr(0, dots)), us(text.substr(dots + 2))};
  }
};

struct BusyPlan {
  struct Step {
    Log::Op op;
    uint32_t kernel_ns;  // 0 for a free
    bool stays;          // the block is freed on the stream that it was allocated on, or never
  };
  std::vector<Step> steps;

  BusyPlan(Log const& log, Kernels kernels, uint64_t seed) {
    uint64_t x = std::max<uint64_t>(seed, 1);  // xorshift (Marsaglia 2003)
    std::vector<size_t> allocations(log.slots);
    for (auto const& op : log.ops) {
      uint32_t kernel_ns = 0;
      bool stays = true;
      if (op.allocates) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        kernel_ns = kernels.shortest_ns + static_cast<uint32_t>(x % (kernels.longest_ns - kernels.shortest_ns + 1));
        allocations[op.slot] = steps.size();
      } else {
        auto& allocation = steps[allocations[op.slot]];
        stays = allocation.stays = allocation.op.stream == op.stream;
      }
      steps.push_back({op, kernel_ns, stays});
    }
  }

  // FNV-1a over 32-bit numbers: the size, stream and kernel of an allocation; the allocation's number and the
  // stream of a free.
  uint64_t digest(size_t slots) const {
    std::vector<uint32_t> numbers(slots);
    uint32_t allocated = 0;
    uint64_t hash = 0xcbf29ce484222325u;
    auto const add = [&](uint64_t number) { hash = (hash ^ (number & UINT32_MAX)) * 0x100000001b3u; };
    for (auto const& [op, kernel_ns, stays] : steps) {
      if (op.allocates) {
        numbers[op.slot] = allocated++;
        add(op.bytes), add(op.bytes >> 32), add(op.stream), add(kernel_ns);
      } else {
        add(numbers[op.slot]), add(op.stream);
      }
    }
    return hash;
  }
};

}  // namespace peers
