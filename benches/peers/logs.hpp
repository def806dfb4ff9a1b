// Replays allocation logs, as `millpond-replay --threads 1` does: one thread, in the log's order, five passes
// on one resource; what a log never frees is freed after each pass. With --busy, as `millpond-replay busy`.
#pragma once

#include "busy.hpp"

namespace peers {

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
    auto const name = name_of_log(path);
    std::printf("{\"workload\":\"replay\",\"log\":\"%s\",\"stack\":\"%s\"", name.c_str(), stack.c_str());
    try {
      Log const log(path);
      Streams const made(log.is_default.size());
      auto const streams = streams_of(log, made);
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
  if (options.is_busy) run_busy(stack, options, make);
  else if (options.logs.empty()) run_all(stack, options, make);
  else replay_all(stack, options, make);
}

}  // namespace peers
