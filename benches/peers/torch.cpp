// PyTorch's caching allocator: `torch`. PYTORCH_ALLOC_CONF=expandable_segments:True selects its second mode.
// See README.md.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "logs.hpp"

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct Torch {
  Torch() { allocator::resetPeakStats(0); }
  ~Torch() { allocator::emptyCache(); }

  void* allocate(size_t bytes, cudaStream_t stream) { return allocator::raw_alloc_with_stream(bytes, stream); }
  void free(void* block, size_t, cudaStream_t) noexcept { allocator::raw_delete(block); }

  std::optional<uint64_t> reserved() {
    auto const statistics = allocator::getDeviceStats(0);
    return static_cast<uint64_t>(statistics.reserved_bytes[0].peak);  // 0: all pools together
  }
};

}  // namespace

int main(int count, char** words) try {
  auto const options = peers::Options::parse(count, words);
  peers::check(cudaSetDevice(0), "cudaSetDevice");
  allocator::init(c10::cuda::device_count());
  auto const* mode = std::getenv("PYTORCH_ALLOC_CONF");
  bool const expandable = mode != nullptr && std::strstr(mode, "expandable_segments:True") != nullptr;
  peers::run(expandable ? "torch expandable" : "torch", options, [] { return std::make_unique<Torch>(); });
} catch (std::exception const& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
