/* millpond's memory for Thrust: an allocator, a vector and execution policies with RMM's names. */

#ifndef MILLPOND_THRUST_HPP
#define MILLPOND_THRUST_HPP

#include <millpond/millpond.hpp>

#if !__has_include(<thrust/version.h>)
#error "millpond/thrust.hpp needs the headers of Thrust, which CCCL contains"
#endif

#include <thrust/device_malloc_allocator.h>
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/memory.h>

#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
#include <thrust/detail/execute_with_allocator.h>
#include <thrust/system/cuda/execution_policy.h>
#endif

#include <cstddef>
#include <limits>
#include <type_traits>

// cudaStream_t and CUstream are pointers to this type.
struct CUstream_st;

namespace millpond {
namespace mr {

/// Allocates from a stack in the order of a stream. Memory stays with the stack and the stream of its
/// allocation: swaps and move assignments of vectors exchange allocators, copy assignments do not.
///
/// The allocator keeps its stack and the stack's device, also when the default resource or the current device
/// changes. The stream must outlive all memory of the allocator. Work on other streams must be ordered before
/// the stream's next work when the memory is freed.
///
/// Throws out_of_memory, which is a std::bad_alloc, or error.
template <typename T>
class thrust_allocator : public thrust::device_malloc_allocator<T> {
 public:
  using Base = thrust::device_malloc_allocator<T>;
  using pointer = typename Base::pointer;
  using size_type = typename Base::size_type;
  using is_always_equal = std::false_type;
  using propagate_on_container_copy_assignment = std::false_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  template <typename U>
  struct rebind {
    using other = thrust_allocator<U>;
  };

  /// The default stream, and the default resource of the current device.
  thrust_allocator() : thrust_allocator(nullptr) {}

  /// The default resource of the current device.
  explicit thrust_allocator(void* stream) : thrust_allocator(stream, millpond::stack::current()) {}

  thrust_allocator(void* stream, const millpond::stack& stack) : stack_(stack), stream_(named(stream)) {}

  // A move is a copy, because a moved-from allocator still allocates.
  thrust_allocator(const thrust_allocator&) = default;
  thrust_allocator& operator=(const thrust_allocator&) = default;
  ~thrust_allocator() = default;

  template <typename U>
  thrust_allocator(const thrust_allocator<U>& other) noexcept
      : stack_(other.get_upstream_resource()), stream_(other.stream()) {}

  /// Allocates uninitialized memory for elements. Thrust's vectors first use it on the default stream, so the
  /// default stream waits for earlier work of this allocator's stream.
  pointer allocate(size_type count) {
    const pointer ptr = allocate_on_stream(count);
    void* const vector_stream = named(nullptr);
    if (stream_ != vector_stream && count > 0) {
      const millpond_status status = millpond_stream_wait(stack_.device().get(), vector_stream, stream_);
      if (status != MILLPOND_STATUS_OK) {
        const millpond::error failed(status);
        deallocate(ptr, count);
        throw failed;
      }
    }
    return ptr;
  }

  /// Allocates uninitialized memory for use on this allocator's stream.
  pointer allocate_on_stream(size_type count) {
    // No stack has the largest number of bytes, so that a count that is too large is out of memory, too.
    const std::size_t bytes =
        count > this->max_size() ? std::numeric_limits<std::size_t>::max() : count * sizeof(T);
    return thrust::device_pointer_cast(static_cast<T*>(stack_.allocate(bytes, stream_, alignment)));
  }

  void deallocate(pointer ptr, size_type count) noexcept {
    // The library counts a refusal, and logs it.
    millpond_deallocate(stack_.get(), thrust::raw_pointer_cast(ptr), count * sizeof(T), alignment, stream_);
  }

  [[nodiscard]] const millpond::stack& get_upstream_resource() const noexcept { return stack_; }
  [[nodiscard]] CUstream_st* stream() const noexcept { return static_cast<CUstream_st*>(stream_); }

  /// Whether each allocator's stack can free the other's blocks.
  friend bool operator==(const thrust_allocator& one, const thrust_allocator& other) noexcept {
    return one.stack_ == other.stack_;
  }
  friend bool operator!=(const thrust_allocator& one, const thrust_allocator& other) noexcept {
    return !(one == other);
  }

 private:
  static constexpr std::size_t alignment = alignof(T) < 256 ? 256 : alignof(T);

  millpond::stack stack_;
  void* stream_;
};

}  // namespace mr

/// A vector whose memory comes from a stack: pass a thrust_allocator, or use the default resource.
template <typename T>
using device_vector = thrust::device_vector<T, mr::thrust_allocator<T>>;

#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA

namespace detail {

/// Allocates what an algorithm needs while it runs. All its work is on the policy's stream.
class temporary_allocator : public mr::thrust_allocator<char> {
 public:
  using mr::thrust_allocator<char>::thrust_allocator;
  pointer allocate(size_type count) { return allocate_on_stream(count); }
};

}  // namespace detail

using thrust_exec_policy_t =
    thrust::detail::execute_with_allocator<detail::temporary_allocator,
                                           thrust::cuda_cub::execute_on_stream_base>;

/// Runs Thrust's algorithms on a stream, with temporary memory from a stack. An algorithm returns when the
/// stream has completed it.
class exec_policy : public thrust_exec_policy_t {
 public:
  explicit exec_policy(void* stream = nullptr, const millpond::stack& stack = millpond::stack::current())
      : exec_policy(detail::temporary_allocator(stream, stack)) {}

 private:
  explicit exec_policy(const detail::temporary_allocator& allocator)
      : thrust_exec_policy_t(
            thrust::cuda_cub::execute_on_stream_base<thrust_exec_policy_t>(allocator.stream()), allocator) {}
};

using thrust_exec_policy_nosync_t =
    thrust::detail::execute_with_allocator<detail::temporary_allocator,
                                           thrust::cuda_cub::execute_on_stream_nosync_base>;

/// Like exec_policy, but an algorithm that returns no value may return before the stream has completed it.
class exec_policy_nosync : public thrust_exec_policy_nosync_t {
 public:
  explicit exec_policy_nosync(void* stream = nullptr,
                              const millpond::stack& stack = millpond::stack::current())
      : exec_policy_nosync(detail::temporary_allocator(stream, stack)) {}

 private:
  explicit exec_policy_nosync(const detail::temporary_allocator& allocator)
      : thrust_exec_policy_nosync_t(
            thrust::cuda_cub::execute_on_stream_nosync_base<thrust_exec_policy_nosync_t>(allocator.stream()),
            allocator) {}
};

#endif

}  // namespace millpond

#endif
