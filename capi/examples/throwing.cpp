// Shows the functions that PyTorch and CuPy call. They report errors as C++ exceptions.
#include <millpond.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>

int main() {
  // If CUDA cannot be used, device 0 is the first simulated device.
  millpond_device* device = nullptr;
  if (millpond_device_open("sim:1GiB", &device) != MILLPOND_STATUS_OK) return 1;
  const int ordinal = millpond_device_ordinal(device);
  void* block = millpond_malloc_or_throw(1000, ordinal, nullptr);
  std::printf("a block: %d\n", block != nullptr);
  millpond_free(block, 1000, ordinal, nullptr);
  bool is_thrown = false;
  try {
    millpond_malloc_or_throw(std::size_t{1} << 50, ordinal, nullptr);
  } catch (const std::runtime_error& error) {
    is_thrown = std::strstr(error.what(), "out of memory for 1024TiB") != nullptr || std::strstr(error.what(), "1PiB");
    std::printf("%s\n", error.what());
  }
  try {
    millpond_cupy_malloc(nullptr, std::size_t{1} << 50, ordinal);
    is_thrown = false;
  } catch (const std::bad_alloc&) {
    std::printf("std::bad_alloc\n");
  }
  millpond_device_free(device);
  return is_thrown ? 0 : 2;
}
