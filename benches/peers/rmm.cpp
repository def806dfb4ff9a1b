// RMM's resources: `rmm pool|arena|binning`. See README.md.
#include <cuda/memory_resource>
#include <rmm/cuda_device.hpp>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>

#include "logs.hpp"

namespace {

constexpr size_t alignment = 256;

// The pool starts small and grows like millpond, so that their memory can be compared. An arena takes all its
// memory when it is created.
constexpr size_t initial_bytes = 1 << 20;
size_t arena_bytes() { return rmm::available_device_memory().first / 5 * 4 / alignment * alignment; }

// Owns the resources; the outermost one serves the requests.
class Rmm {
 public:
  explicit Rmm(std::string const& name) {
    if (name == "rmm arena") {
      serve(arena_.emplace(upstream_, arena_bytes()));
      return;
    }
    auto& pool = pool_.emplace(upstream_, initial_bytes);
    if (name == "rmm pool") {
      serve(pool);
    } else {
      auto& binning = binning_.emplace(pool);
      for (int power = 18; power <= 22; ++power) binning.add_bin(size_t{1} << power);
      serve(binning);
    }
  }

  void* allocate(size_t bytes, cudaStream_t stream) {
    return resource_->allocate(rmm::cuda_stream_view{stream}, bytes, alignment);
  }
  void free(void* block, size_t bytes, cudaStream_t stream) noexcept {
    resource_->deallocate(rmm::cuda_stream_view{stream}, block, bytes, alignment);
  }
  std::optional<uint64_t> reserved() {
    if (arena_) return {};
    return static_cast<uint64_t>(upstream_.get_bytes_counter().peak);
  }

 private:
  template <class Resource>
  void serve(Resource& resource) {
    resource_.emplace(resource);
  }

  rmm::mr::statistics_resource_adaptor upstream_{rmm::mr::cuda_memory_resource{}};
  std::optional<rmm::mr::pool_memory_resource> pool_;
  std::optional<rmm::mr::arena_memory_resource> arena_;
  std::optional<rmm::mr::binning_memory_resource> binning_;
  std::optional<rmm::device_async_resource_ref> resource_;
};

}  // namespace

int main(int count, char** words) try {
  auto const options = peers::Options::parse(count, words);
  for (auto const& name : options.names) {
    if (name != "pool" && name != "arena" && name != "binning")
      throw std::runtime_error(name + " is not a resource; use pool, arena or binning");
    auto const stack = "rmm " + name;
    peers::run(stack, options, [&] { return std::make_unique<Rmm>(stack); });
  }
} catch (std::exception const& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
