// A pool, a buffer and its statistics in C++, without CUDA's headers.
//
//   c++ -std=c++17 stack.cpp -o stack $(pkg-config --cflags --libs millpond) && ./stack sim:1GiB
#include <millpond/millpond.hpp>

#include <cstdio>
#include <vector>

int main(int count, char** arguments) {
  const millpond::device device(count > 1 ? arguments[1] : nullptr);  // the first GPU, or a simulated one
  const millpond::stack pool("cuda+pool", device);
  const millpond::stream stream(device);  // or a CUstream or cudaStream_t of the program's

  millpond::buffer buffer(pool, 1000, stream.get());
  buffer.fill(7);
  std::vector<unsigned char> copy(buffer.size());
  buffer.copy_to_host(copy.data(), copy.size());
  stream.synchronize();
  std::printf("the last byte is %d\n", copy.back());
  std::printf("%llu bytes in use\n", static_cast<unsigned long long>(pool.statistics().bytes_requested));

  try {
    millpond::buffer(pool, std::size_t{1} << 50, stream.get());
  } catch (const millpond::out_of_memory& error) {
    std::printf("%s\n", error.what());
  }
  try {
    millpond::stack("cuda+pol", device);
  } catch (const millpond::error& error) {
    std::printf("%d: %s\n", error.status(), error.what());
  }
}
