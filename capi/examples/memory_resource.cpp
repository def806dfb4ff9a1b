// Shows a pool as a memory resource of CCCL, as RAPIDS and Thrust take it.
#include <millpond/memory_resource.hpp>

#include <cstdio>

int main() {
  millpond::memory_resource pool("cuda+pool", "sim:1GiB");
  // rmm::device_async_resource_ref and rmm::mr::any_resource are these two types.
  cuda::mr::resource_ref<cuda::mr::device_accessible> ref(pool);
  cuda::mr::any_resource<cuda::mr::device_accessible> any(pool);
  const cuda::stream_ref stream{static_cast<cudaStream_t>(nullptr)};
  void* block = ref.allocate(stream, 1000, 256);
  ref.deallocate(stream, block, 1000, 256);
  void* again = any.allocate(stream, 1000, 256);
  std::printf("the same block: %d\n", again == block);
  any.deallocate(stream, again, 1000, 256);
  try {
    ref.allocate_sync(std::size_t{1} << 50, 256);
    return 1;
  } catch (const std::bad_alloc& error) {
    std::printf("%s\n", error.what());
  }
  try {
    millpond::memory_resource wrong("cuda+pol", "sim:1GiB");
    return 1;
  } catch (const millpond::error& error) {
    std::printf("%d: %s\n", error.status(), error.what());
  }
  return pool == millpond::memory_resource(pool) ? 0 : 2;
}
