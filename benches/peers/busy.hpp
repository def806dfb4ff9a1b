// Replays logs with work in flight, as `millpond-replay busy` does: each allocation launches a kernel on its
// stream. measure/src/busy/mod.rs documents the method and the figures; change both together. The driver
// compiles the kernel from PTX, so no nvcc is needed.
#pragma once

#include <dlfcn.h>

#include "log.hpp"
#include "workloads.hpp"

namespace peers {

// The text of measure/src/busy/spin.ptx; a test compares the two.
inline constexpr char const* spin_ptx = R"(
// spin(ns): one thread that does nothing until the device's clock is ns nanoseconds further on.
.version 6.0
.target sm_50
.address_size 64

.visible .entry spin(.param .u64 ns)
{
    .reg .u64 %duration, %start, %now, %passed;
    .reg .pred %waits;

    ld.param.u64 %duration, [ns];
    mov.u64 %start, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %passed, %now, %start;
    setp.lt.u64 %waits, %passed, %duration;
    @%waits bra AGAIN;
    ret;
}
)";

// The kernel. It is loaded into the current context, and stays loaded.
class Spin {
 public:
  Spin() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error("libcuda.so.1 cannot be loaded; install the NVIDIA driver");
    auto const load = function<int (*)(void**, void const*)>(library, "cuModuleLoadData");
    auto const get = function<int (*)(void**, void*, char const*)>(library, "cuModuleGetFunction");
    launch_ = function<Launch>(library, "cuLaunchKernel");
    void* module = nullptr;
    check(load(&module, spin_ptx), "cuModuleLoadData");
    check(get(&spin_, module, "spin"), "cuModuleGetFunction");
  }

  void launch(cudaStream_t stream, uint64_t ns) const {
    void* arguments[] = {&ns};
    check(launch_(spin_, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
  }

 private:
  using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                         void**, void**);

  template <class Function>
  static Function function(void* library, char const* name) {
    void* const found = dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function>(found);
  }

  static void check(int code, char const* what) {
    if (code != 0) throw std::runtime_error(std::string(what) + ": error " + std::to_string(code));
  }

  Launch launch_ = nullptr;
  void* spin_ = nullptr;
};

enum class Host { ahead, level, sync };

inline Host host_of(std::string const& name) {
  if (name == "ahead") return Host::ahead;
  if (name == "level") return Host::level;
  if (name == "sync") return Host::sync;
  throw std::runtime_error(name + " is not a host mode; use ahead, level or sync");
}

// The most kernels of one stream in flight with the host `level`.
inline constexpr size_t level_kernels = 4;

// Events without timing. The destructor destroys them.
class Events {
 public:
  explicit Events(size_t count) : all(count) {
    for (auto& event : all)
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  Events(Events const&) = delete;
  Events& operator=(Events const&) = delete;
  ~Events() {
    for (auto const event : all) cudaEventDestroy(event);
  }

  std::vector<cudaEvent_t> all;
};

// Maps each stream of the log to a non-blocking stream, and the legacy default stream to itself.
inline std::vector<cudaStream_t> streams_of(Log const& log, Streams const& made) {
  auto streams = made.all;
  for (size_t i = 0; i < streams.size(); ++i)
    if (log.is_default[i]) streams[i] = nullptr;
  return streams;
}

inline std::string name_of_log(std::string const& path) {
  auto const name = path.substr(path.find_last_of('/') + 1);
  return name.substr(0, name.find('.'));
}

// Limits how far the host runs ahead of each stream.
class Pace {
 public:
  Pace(Host host, std::vector<cudaStream_t> const& streams)
      : host_(host), streams_(streams), launched_(streams.size()),
        ends_(host == Host::level ? streams.size() * level_kernels : 0) {}

  // The host `level` waits until the stream has room for one more kernel.
  void before(uint32_t stream) const {
    if (host_ == Host::level && launched_[stream] >= level_kernels)
      check(cudaEventSynchronize(end(stream)), "cudaEventSynchronize");
  }

  void after(uint32_t stream) {
    if (host_ == Host::level) {
      check(cudaEventRecord(end(stream), streams_[stream]), "cudaEventRecord");
      ++launched_[stream];
    } else if (host_ == Host::sync) {
      check(cudaStreamSynchronize(streams_[stream]), "cudaStreamSynchronize");
    }
  }

 private:
  // The end of the kernel that was launched level_kernels before the next one.
  cudaEvent_t end(uint32_t stream) const {
    return ends_.all[stream * level_kernels + launched_[stream] % level_kernels];
  }

  Host host_;
  std::vector<cudaStream_t> const& streams_;
  std::vector<size_t> launched_;
  Events ends_;
};

// Reads a capacity such as 3GiB, or 120% of the live bytes. measure/src/busy/capacity.rs knows more units.
inline uint64_t capacity_of(std::string const& text, uint64_t peak_live_bytes) {
  size_t end = 0;
  double const number = std::stod(text, &end);
  auto const unit = text.substr(end);
  if (unit == "%") return static_cast<uint64_t>(static_cast<double>(peak_live_bytes) * number / 100);
  if (unit.empty()) return static_cast<uint64_t>(number);
  if (unit == "MiB") return static_cast<uint64_t>(number * (1 << 20));
  if (unit == "GiB") return static_cast<uint64_t>(number * (1 << 30));
  throw std::runtime_error(text + " is not a capacity; write one like 120%, 800MiB or 3GiB");
}

// A reservation of all device memory except a part, in whole pages. The destructor frees it.
class Reservation {
 public:
  explicit Reservation(uint64_t left) {
    constexpr size_t page_bytes = 2 << 20;
    size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    if (free_bytes < left) throw std::runtime_error("--capacity is larger than the free device memory");
    size_t const bytes = (free_bytes - left) / page_bytes * page_bytes;
    if (bytes > 0) check(cudaMalloc(&block_, bytes), "cudaMalloc");
  }
  Reservation(Reservation const&) = delete;
  Reservation& operator=(Reservation const&) = delete;
  ~Reservation() { cudaFree(block_); }

 private:
  void* block_ = nullptr;
};

// Returns null if memory runs out. Any other error shows at the next launch.
template <class Subject>
void* try_allocate(Subject& subject, uint64_t bytes, cudaStream_t stream) {
  void* block = nullptr;
  try {
    block = subject.allocate(bytes, stream);
  } catch (std::exception const&) {
  }
  if (block == nullptr) cudaGetLastError();  // clears the error
  return block;
}

// Nanoseconds of one pass: to the last operation on the host, and to the end of all streams. With a capacity,
// failures are counted; without one, the first failure ends the run.
struct BusyPass {
  double host_ns, end_ns;
  uint64_t failures;
};

template <class Subject>
BusyPass busy_pass(Subject& subject, BusyPlan const& plan, Log const& log, std::vector<cudaStream_t> const& streams,
                   std::vector<cudaEvent_t> const& uses, Pace& pace, Spin const& spin, bool counts_failures) {
  auto const synchronize = [&] {
    for (auto const stream : streams) check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  };
  std::vector<void*> slots(log.slots);
  uint64_t failures = 0;
  auto const free = [&](Log::Op const& op) {
    if (slots[op.slot] != nullptr) subject.free(slots[op.slot], op.bytes, streams[op.stream]);
  };
  auto const start = Clock::now();
  for (auto const& [op, kernel_ns, stays] : plan.steps) {
    auto const stream = streams[op.stream];
    if (op.allocates) {
      pace.before(op.stream);
      slots[op.slot] = counts_failures ? try_allocate(subject, op.bytes, stream)
                                       : must_allocate(subject, op.bytes, stream);
      failures += slots[op.slot] == nullptr;
      spin.launch(stream, kernel_ns);
      if (!stays) check(cudaEventRecord(uses[op.slot], stream), "cudaEventRecord");
      pace.after(op.stream);
    } else {
      if (!stays) check(cudaStreamWaitEvent(stream, uses[op.slot], 0), "cudaStreamWaitEvent");
      free(op);
    }
  }
  double const host_ns = nanoseconds(Clock::now() - start);
  synchronize();
  double const end_ns = nanoseconds(Clock::now() - start);
  for (auto const& op : log.left) free(op);
  synchronize();
  return {host_ns, end_ns, failures};
}

// Builds a subject, runs the passes of one log on it, and prints them.
template <class Make>
void busy_case(Log const& log, Kernels kernels, Host host, Options const& options, Spin const& spin, Make&& make) {
  BusyPlan const plan(log, kernels, options.seed);
  Streams const made(log.is_default.size());
  auto const streams = streams_of(log, made);
  bool const all_stay = std::all_of(plan.steps.begin(), plan.steps.end(), [](auto const& step) { return step.stays; });
  Events const uses(all_stay ? 0 : log.slots);
  Pace pace(host, streams);
  std::optional<uint64_t> capacity;
  std::optional<Reservation> reserved;
  if (!options.capacity.empty()) reserved.emplace(*(capacity = capacity_of(options.capacity, log.peak_bytes)));
  auto const subject = make();
  std::string passes;
  for (uint32_t i = 0; i < options.passes.value_or(3); ++i) {
    auto const pass = busy_pass(*subject, plan, log, streams, uses.all, pace, spin, capacity.has_value());
    auto const taken = subject->reserved();
    passes += i > 0 ? ",{" : "{";
    passes += "\"end_ns\":" + std::to_string(static_cast<uint64_t>(pass.end_ns));
    passes += ",\"host_ns\":" + std::to_string(static_cast<uint64_t>(pass.host_ns));
    passes += ",\"peak_taken_bytes\":" + (taken ? std::to_string(*taken) : "null");
    passes += ",\"failures\":" + std::to_string(pass.failures) + "}";
  }
  print_number("operations", log.ops.size());
  print_number("peak_live_bytes", log.peak_bytes);
  print_number("capacity_bytes", capacity);
  std::printf(",\"passes\":[%s]", passes.c_str());
}

// Builds a subject for each case, runs the logs on it, and prints a line of JSON for each case.
template <class Make>
void run_busy(std::string const& stack, Options const& options, Make&& make) {
  check(cudaSetDevice(0), "cudaSetDevice");
  check(cudaFree(nullptr), "cudaFree");  // creates the context
  Spin const spin;
  for (auto const& path : options.logs) {
    Log const log(path, options.first);
    for (auto const& range : options.kernels) {
      for (auto const& host : options.hosts) {
        auto const kernels = Kernels::parse(range);
        std::printf("{\"workload\":\"busy\",\"log\":\"%s\",\"stack\":\"%s\",\"shortest_ns\":%u,"
                    "\"longest_ns\":%u,\"host\":\"%s\"",
                    name_of_log(path).c_str(), stack.c_str(), kernels.shortest_ns, kernels.longest_ns, host.c_str());
        try {
          busy_case(log, kernels, host_of(host), options, spin, make);
        } catch (std::exception const& error) {
          print_setback(error.what());
        }
        std::printf("}\n");
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace peers
