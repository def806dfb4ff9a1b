// Thrust's vectors and algorithms with memory from a stack.
//
//   nvcc -std=c++17 -arch=native thrust.cu -o thrust $(pkg-config --cflags --libs millpond) && ./thrust
#include <millpond/thrust.hpp>

#include <thrust/count.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/logical.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <cstdio>
#include <cstdlib>

static constexpr int count = 10'000'000;

static void expect(bool condition, const char* what) {
  std::printf("%s: %s\n", what, condition ? "right" : "WRONG");
  if (!condition) std::exit(EXIT_FAILURE);
}

static unsigned long long allocations(const millpond::stack& stack) {
  millpond_level_counters counters;
  millpond::check(millpond_statistics_counters(stack.get(), &counters));
  return static_cast<unsigned long long>(counters.total_count);
}

// A permutation of the indices, because 7,777,777 and the count have no common divisor.
struct scrambled {
  __host__ __device__ int operator()(int index) const {
    return static_cast<int>(index * 7'777'777LL % count);
  }
};

// Thrust sums in the type of its input, and the sums need 64 bits.
struct widened {
  __host__ __device__ long long operator()(int value) const { return value; }
};

struct is_index {
  const int* values;
  __device__ bool operator()(int index) const { return values[index] == index; }
};

// Sort, reduce, transform and scan; Policy is exec_policy or exec_policy_nosync.
template <typename Policy>
static void algorithms(const millpond::stack& stack, cudaStream_t stream) {
  const Policy policy(stream, stack);
  millpond::device_vector<int> values(count, millpond::mr::thrust_allocator<int>(stream, stack));
  millpond::device_vector<long long> sums(count, millpond::mr::thrust_allocator<long long>(stream, stack));
  const auto vectors = allocations(stack);
  const auto indices = thrust::make_counting_iterator(0);

  thrust::transform(policy, indices, indices + count, values.begin(), scrambled{});
  thrust::sort(policy, values.begin(), values.end());
  const is_index check{thrust::raw_pointer_cast(values.data())};
  expect(thrust::all_of(policy, indices, indices + count, check), "sort");
  const long long sum = thrust::reduce(policy, values.begin(), values.end(), 0LL, thrust::plus<long long>());
  expect(sum == static_cast<long long>(count) * (count - 1) / 2, "reduce");
  const auto wide = thrust::make_transform_iterator(values.begin(), widened{});
  thrust::inclusive_scan(policy, wide, wide + count, sums.begin(), thrust::plus<long long>());
  cudaStreamSynchronize(stream);
  const thrust::host_vector<long long> host(sums);
  bool is_right = true;
  for (long long index = 0; index < count; ++index) is_right &= host[index] == index * (index + 1) / 2;
  expect(is_right, "scan");
  const auto temporaries = allocations(stack) - vectors;
  expect(temporaries >= 3, "temporary memory comes from the stack");
  std::printf("%llu allocations for vectors, %llu for algorithms\n", vectors, temporaries);
}

__global__ void write_later(int* values, int size, long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
  for (int index = 0; index < size; ++index) values[index] = 1;
}

// A vector gets a block that a kernel on its stream still writes. Its zeros must come after the kernel.
static void order(const millpond::stack& stack, cudaStream_t stream) {
  const int size = 1000;
  millpond::mr::thrust_allocator<int> allocator(stream, stack);
  const auto block = allocator.allocate(size);
  write_later<<<1, 1, 0, stream>>>(thrust::raw_pointer_cast(block), size, 200'000'000);
  allocator.deallocate(block, size);
  const millpond::device_vector<int> zeros(size, allocator);
  expect(zeros.data() == block, "the same block");
  cudaStreamSynchronize(stream);
  expect(thrust::count(zeros.begin(), zeros.end(), 0) == size, "a vector's first use follows its stream");
}

int main() {
  const millpond::stack stack("cuda+pool+statistics", millpond::device("cuda:0"));
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return EXIT_FAILURE;

  algorithms<millpond::exec_policy>(stack, nullptr);
  algorithms<millpond::exec_policy>(stack, stream);
  algorithms<millpond::exec_policy_nosync>(stack, stream);
  order(stack, stream);

  bool is_out_of_memory = false;
  try {
    millpond::mr::thrust_allocator<int>(stream, stack).allocate(std::size_t{1} << 48);
  } catch (const std::bad_alloc& error) {
    is_out_of_memory = true;
    std::printf("%s\n", error.what());
  }
  expect(is_out_of_memory, "out of memory");

  stack.make_current();
  {
    const millpond::device_vector<int> values(count, 1);
    const int sum = thrust::reduce(millpond::exec_policy(), values.begin(), values.end());
    expect(sum == count, "the default resource");
    int devices = 0, device = -1;
    cudaGetDeviceCount(&devices);
    if (devices > 1) {
      cudaSetDevice(1);
      millpond::mr::thrust_allocator<int> allocator(nullptr, stack);
      const auto block = allocator.allocate(count);
      cudaPointerAttributes attributes{};
      cudaPointerGetAttributes(&attributes, thrust::raw_pointer_cast(block));
      cudaGetDevice(&device);
      expect(attributes.device == 0 && device == 1, "memory of another device");
      allocator.deallocate(block, count);
      cudaSetDevice(0);
    }
  }
  expect(cudaStreamDestroy(stream) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess, "no CUDA error");
  expect(stack.statistics().bytes_requested == 0, "every vector freed its memory");
}
