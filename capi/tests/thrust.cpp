// What thrust_allocator and device_vector do when they are rebound, copied, moved, swapped and at errors.
// Runs on simulated devices: Thrust's host backend works on managed memory.
#define THRUST_DEVICE_SYSTEM THRUST_DEVICE_SYSTEM_CPP
#include <millpond/thrust.hpp>

#include <thrust/copy.h>
#include <thrust/fill.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

template <typename T>
using allocator = millpond::mr::thrust_allocator<T>;
using vector = millpond::device_vector<int>;
using traits = std::allocator_traits<allocator<int>>;

static_assert(std::is_same_v<traits::rebind_alloc<double>, allocator<double>>);
static_assert(std::is_same_v<vector::allocator_type, allocator<int>>);
static_assert(std::is_nothrow_copy_constructible_v<allocator<int>>);
static_assert(std::is_nothrow_move_assignable_v<vector>);
static_assert(!traits::is_always_equal::value && !traits::propagate_on_container_copy_assignment::value);
static_assert(traits::propagate_on_container_move_assignment::value);
static_assert(traits::propagate_on_container_swap::value);

static int line_of_failure = 0;
#define EXPECT(condition) \
  if (!(condition) && line_of_failure == 0) line_of_failure = __LINE__

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
static void* const default_stream = reinterpret_cast<void*>(std::uintptr_t{2});
#else
static void* const default_stream = nullptr;
#endif

static std::uint64_t bytes_in(const millpond::stack& stack) { return stack.statistics().bytes_requested; }

static void rebinding(const millpond::stack& stack, const millpond::stack& other, void* stream) {
  allocator<int> ints(stream, stack);
  allocator<double> doubles(ints);
  EXPECT(doubles.get_upstream_resource() == stack && doubles.stream() == stream);
  EXPECT(allocator<int>(doubles) == ints && ints == allocator<int>(nullptr, stack));
  EXPECT(ints != allocator<int>(stream, other));
  allocator<int> moved(std::move(ints));
  EXPECT(ints == moved && ints.stream() == stream);
  const auto block = doubles.allocate(3);
  EXPECT(bytes_in(stack) == 3 * sizeof(double));
  allocator<double>(moved).deallocate(block, 3);
  EXPECT(bytes_in(stack) == 0);
  EXPECT(ints.allocate(0).get() == nullptr);
  ints.deallocate(nullptr, 0);

  struct alignas(512) wide {
    char bytes[512];
  };
  allocator<wide> wides(ints);
  const auto wide_block = wides.allocate(1);
  EXPECT(reinterpret_cast<std::uintptr_t>(wide_block.get()) % 512 == 0);
  wides.deallocate(wide_block, 1);
}

static void vectors(const millpond::stack& stack, const millpond::stack& other, void* stream) {
  vector one(1000, 7, allocator<int>(stream, stack));
  EXPECT(bytes_in(stack) == 4000 && thrust::reduce(one.begin(), one.end()) == 7000);
  vector copy(one);
  EXPECT(copy == one && copy.get_allocator().stream() == stream && bytes_in(stack) == 8000);
  vector elsewhere(10, 1, allocator<int>(nullptr, other));
  elsewhere = one;
  EXPECT(elsewhere.get_allocator().get_upstream_resource() == other && elsewhere == one);
  EXPECT(bytes_in(other) == 4000 && elsewhere.get_allocator().stream() == default_stream);

  const int* const data = thrust::raw_pointer_cast(one.data());
  elsewhere.swap(one);
  EXPECT(thrust::raw_pointer_cast(elsewhere.data()) == data);
  EXPECT(elsewhere.get_allocator().get_upstream_resource() == stack);
  EXPECT(elsewhere.get_allocator().stream() == stream);
  EXPECT(one.get_allocator().get_upstream_resource() == other);
  one = std::move(elsewhere);
  EXPECT(thrust::raw_pointer_cast(one.data()) == data && bytes_in(other) == 0);
  EXPECT(one.get_allocator().get_upstream_resource() == stack);
  elsewhere.resize(5);
  EXPECT(elsewhere.size() == 5 && elsewhere[4] == 0);

  millpond::device_vector<double> converted(copy.begin(), copy.end(), allocator<double>(stream, other));
  EXPECT(converted[999] == 7.0 && bytes_in(other) == 8000);
  const vector empty(0, allocator<int>(stream, stack));
  EXPECT(empty.data().get() == nullptr);

  thrust::sequence(copy.rbegin(), copy.rend());
  thrust::sort(copy.begin(), copy.end());
  copy.push_back(1000);
  const thrust::host_vector<int> host(copy);
  EXPECT(host.size() == 1001 && host[0] == 0 && host[500] == 500 && host[1000] == 1000);
}

static void errors(const millpond::stack& stack) {
  vector kept(10, 3, allocator<int>(nullptr, stack));
  const std::size_t most = SIZE_MAX / sizeof(int);
  for (const std::size_t size : {std::size_t{1} << 50, most, most + 1, SIZE_MAX}) {
    try {
      allocator<int>(nullptr, stack).allocate(size);
      EXPECT(false);
    } catch (const std::bad_alloc& caught) {
      const auto* error = dynamic_cast<const millpond::out_of_memory*>(&caught);
      EXPECT(error != nullptr && std::string(error->what()).find("out of memory for") == 0);
    }
  }
  try {
    kept.resize(std::size_t{1} << 50);
    EXPECT(false);
  } catch (const std::bad_alloc&) {
    EXPECT(kept.size() == 10 && kept[9] == 3 && bytes_in(stack) == 40);
  }
}

// The pool gives a freed block at once to the stream of its free, and to no other stream without a wait.
static void streams(const millpond::device& device) {
  const millpond::stack pool("managed+pool", device);
  const millpond::stream stream(device), other(device);
  allocator<char> own(stream.get(), pool), others(other.get(), pool);
  const auto block = own.allocate(1 << 20);
  // Another stream uses the block; the allocator's stream waits for it before the free.
  stream.wait_for(other.get());
  own.deallocate(block, 1 << 20);
  const auto again = own.allocate(1 << 20);
  EXPECT(again == block);
  const auto unrelated = others.allocate(1 << 20);
  EXPECT(unrelated != block);
  others.deallocate(unrelated, 1 << 20);
  own.deallocate(again, 1 << 20);
  EXPECT(allocator<char>(nullptr, pool).stream() == default_stream);
  EXPECT(millpond::buffer(pool, 1).stream() == default_stream);
}

static void defaults(const millpond::stack& stack, const millpond::stack& other) {
  stack.make_current();
  {
    vector first(10, 1);
    EXPECT(bytes_in(stack) == 40);
    other.make_current();
    vector second(10, 2);
    EXPECT(bytes_in(other) == 40);
    first.resize(20);
    EXPECT(bytes_in(stack) == 80 && bytes_in(other) == 40);
    // The vectors keep their stacks alive after the default is gone.
    millpond::check(millpond_reset_per_device_resource(stack.device().get()));
  }
  EXPECT(bytes_in(stack) == 0 && bytes_in(other) == 0);
}

// The current device is the default device; the vector's memory belongs to another one.
static void devices() {
  millpond_device* found = nullptr;
  millpond::check(millpond_device_current(&found));
  const int before = millpond::device(found).ordinal();
  const millpond::device far("sim:1GiB");
  EXPECT(far.ordinal() != before);
  std::uint64_t free_bytes = 0, free_after = 0, total_bytes = 0;
  millpond::check(millpond_device_memory_info(far.get(), &free_bytes, &total_bytes));
  {
    vector there(1 << 20, 5, allocator<int>(nullptr, millpond::stack("managed", far)));
    millpond::check(millpond_device_current(&found));
    EXPECT(millpond::device(found).ordinal() == before);
    EXPECT(there.get_allocator().get_upstream_resource().device().ordinal() == far.ordinal());
  }
  millpond::check(millpond_device_current(&found));
  EXPECT(millpond::device(found).ordinal() == before);
  millpond::check(millpond_device_memory_info(far.get(), &free_after, &total_bytes));
  EXPECT(free_after == free_bytes);
}

int main() {
  const millpond::device device("sim:1GiB");
  const millpond::stream stream(device);
  const millpond::stack stack("managed+pool+statistics", device), other("managed+pool+statistics", device);
  defaults(stack, other);
  rebinding(stack, other, stream.get());
  vectors(stack, other, stream.get());
  errors(stack);
  streams(device);
  devices();
  EXPECT(bytes_in(stack) == 0 && bytes_in(other) == 0);
  if (line_of_failure != 0) {
    std::printf("line %d failed\n", line_of_failure);
    return EXIT_FAILURE;
  }
  std::printf("every vector freed its memory\n");
}
