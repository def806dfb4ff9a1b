// Replays allocation logs, as `millpond-replay --threads 1 --repeat N` does: one thread replays N passes in
// the log's order on one resource. After each pass, it frees the blocks that the log leaves live. With
// --busy, it replays as `millpond-replay busy` does.
#pragma once

#include "busy.hpp"

namespace peers {

// Returns the nanoseconds of one pass, without the final frees of live blocks.
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
  return ns;
}

// Runs the passes of one subject on one log; prints millpond's fields for a stack.
template <class Subject>
void replay(Subject& subject, Log const& log, std::vector<cudaStream_t> const& streams, uint32_t count) {
  double first = 0, best = 0;
  std::optional<uint64_t> first_taken, taken;
  std::string passes;
  for (uint32_t i = 0; i < count; ++i) {
    double const ns = pass(subject, log, streams);
    taken = subject.reserved();
    if (i == 0) first = best = ns, first_taken = taken;
    best = std::min(best, ns);
    passes += i > 0 ? ",{" : "{";
    passes += "\"peak_taken_bytes\":" + (taken ? std::to_string(*taken) : "null");
    passes += ",\"ns\":" + std::to_string(static_cast<uint64_t>(ns)) + "}";
  }
  auto const per_op = [&](double ns) { return ns / static_cast<double>(std::max<size_t>(log.ops.size(), 1)); };
  auto const over_live = [&](std::optional<uint64_t> bytes) -> std::optional<double> {
    if (!bytes || log.peak_bytes == 0) return {};
    return static_cast<double>(*bytes) / static_cast<double>(log.peak_bytes);
  };
  print_number("operations", log.ops.size());
  print_number("ns_per_op_first", per_op(first), 2);
  print_number("ns_per_op_best", per_op(best), 2);
  print_number("peak_live_bytes", log.peak_bytes);
  print_number("peak_reserved_bytes_first", first_taken);
  print_number("peak_reserved_bytes_last", taken);
  print_number("reserved_over_live_first", over_live(first_taken), 6);
  print_number("reserved_over_live_last", over_live(taken), 6);
  std::printf(",\"passes\":[%s]", passes.c_str());
}

// Builds a subject for each log, replays the log on it, and prints a line of JSON.
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
      replay(*subject, log, streams, options.passes.value_or(5));
    } catch (std::exception const& error) {
      print_setback(error.what());
    }
    std::printf("}\n");
    std::fflush(stdout);
  }
}

// Each program calls this for each of its subjects.
template <class Make>
void run(std::string const& stack, Options const& options, Make&& make) {
  if (options.is_busy) run_busy(stack, options, make);
  else if (options.logs.empty()) run_all(stack, options, make);
  else replay_all(stack, options, make);
}

}  // namespace peers
