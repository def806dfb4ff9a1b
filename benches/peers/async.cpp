// CUDA's own allocators: `async cudaMallocAsync` and `async cudaMalloc`. See README.md.
#include "logs.hpp"

namespace {

struct Async {
  Async() {
    // The pool keeps freed memory, as every other pool does.
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
    uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
    uint64_t none = 0;  // resets the peak
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &none), "cudaMemPoolSetAttribute");
  }
  ~Async() {
    cudaDeviceSynchronize();
    cudaMemPoolTrimTo(pool, 0);
  }

  void* allocate(size_t bytes, cudaStream_t stream) {
    void* block = nullptr;
    return cudaMallocAsync(&block, bytes, stream) == cudaSuccess ? block : nullptr;
  }
  void free(void* block, size_t, cudaStream_t stream) noexcept { cudaFreeAsync(block, stream); }

  std::optional<uint64_t> reserved() {
    uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &bytes), "cudaMemPoolGetAttribute");
    return bytes;
  }

 private:
  static void check(cudaError_t status, char const* what) { peers::check(status, what); }
  cudaMemPool_t pool{};
};

struct Plain {
  void* allocate(size_t bytes, cudaStream_t) {
    void* block = nullptr;
    return cudaMalloc(&block, bytes) == cudaSuccess ? block : nullptr;
  }
  void free(void* block, size_t, cudaStream_t) noexcept { cudaFree(block); }
  std::optional<uint64_t> reserved() { return {}; }
};

}  // namespace

int main(int count, char** words) try {
  auto const options = peers::Options::parse(count, words);
  for (auto const& name : options.names) {
    if (name == "cudaMallocAsync") {
      peers::run(name, options, [] { return std::make_unique<Async>(); });
    } else if (name == "cudaMalloc") {
      peers::run(name, options, [] { return std::make_unique<Plain>(); });
    } else {
      throw std::runtime_error(name + " is neither cudaMallocAsync nor cudaMalloc");
    }
  }
} catch (std::exception const& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
