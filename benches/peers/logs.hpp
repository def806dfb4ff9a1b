// Replays allocation logs, as `millpond-replay --threads 1` does: one thread, in the log's order, five passes
// on one resource; what a log never frees is freed after each pass. Reads RMM's columns, unpacked:
// Thread,Time,Action,Pointer,Size,Stream.
#pragma once

#include <fstream>
#include <sstream>
#include <unordered_map>

#include "workloads.hpp"

namespace peers {

struct Log {
  struct Op {
    uint64_t bytes;
    uint32_t slot, stream;
    bool allocates;
  };

  std::vector<Op> ops;
  std::vector<Op> left;  // allocations that the log never frees
  uint32_t slots = 0;
  std::vector<bool> is_default;  // by stream: the legacy default stream
  uint64_t peak_bytes = 0;

  explicit Log(std::string const& path) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line) || line.rfind("Thread,Time,Action,Pointer,Size,Stream", 0) != 0)
      throw std::runtime_error(path + " is no log with the columns Thread,Time,Action,Pointer,Size,Stream");
    while (std::getline(file, line)) {
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

template <class Subject>
double pass(Subject& subject, Log const& log, std::vector<cudaStream_t> const& streams) {
  std::vector<void*> slots(log.slots);
  auto const start = Clock::now();
  for (auto const& op : log.ops) {
    if (op.allocates) slots[op.slot] = must_allocate(subject, op.bytes, streams[op.stream]);
    else subject.free(slots[op.slot], op.bytes, streams[op.stream]);
  }
  double const ns = nanoseconds(Clock::now() - start);
  for (auto const& op : log.left) subject.free(slots[op.slot], op.bytes, streams[op.stream]);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return ns / static_cast<double>(std::max<size_t>(log.ops.size(), 1));
}

// Replays the logs on a subject, made anew for each, and prints a line of JSON for each.
template <class Make>
void replay_all(std::string const& stack, Options const& options, Make&& make) {
  check(cudaSetDevice(0), "cudaSetDevice");
  for (auto const& path : options.logs) {
    auto name = path.substr(path.find_last_of('/') + 1);
    name = name.substr(0, name.find('.'));
    std::printf("{\"workload\":\"replay\",\"log\":\"%s\",\"stack\":\"%s\"", name.c_str(), stack.c_str());
    try {
      Log const log(path);
      Streams const made(log.is_default.size());
      auto streams = made.all;
      for (size_t i = 0; i < streams.size(); ++i)
        if (log.is_default[i]) streams[i] = nullptr;
      auto const subject = make();
      double const first = pass(*subject, log, streams);
      double best = first;
      auto const reserved = subject->reserved();
      for (int i = 1; i < (options.is_quick ? 2 : 5); ++i) best = std::min(best, pass(*subject, log, streams));
      print_number("operations", log.ops.size());
      print_number("ns_per_op_first", first, 2);
      print_number("ns_per_op_best", best, 2);
      print_number("peak_reserved_bytes", reserved);
      print_number("peak_live_bytes", log.peak_bytes);
    } catch (std::exception const& error) {
      print_setback(error.what());
    }
    std::printf("}\n");
    std::fflush(stdout);
  }
}

// What each program does with each of its subjects.
template <class Make>
void run(std::string const& stack, Options const& options, Make&& make) {
  if (options.logs.empty()) run_all(stack, options, make);
  else replay_all(stack, options, make);
}

}  // namespace peers
