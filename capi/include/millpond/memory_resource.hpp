/* millpond's memory resources for CCCL's concept (cuda::mr), and so for RAPIDS in C++ and for Thrust. */

#ifndef MILLPOND_MEMORY_RESOURCE_HPP
#define MILLPOND_MEMORY_RESOURCE_HPP

#include <millpond/millpond.hpp>

#if !__has_include(<cuda/memory_resource>)
#error "millpond/memory_resource.hpp needs the headers of CCCL 3.2 or later"
#endif

#include <cuda/__cccl_config>
#include <cuda/memory_resource>
#include <cuda/stream_ref>

static_assert(CCCL_VERSION >= 3002000,
              "millpond/memory_resource.hpp needs CCCL 3.2 or later: earlier versions have another concept");

#include <cstddef>
#include <cstdint>

namespace millpond {

/// A stack of resources, shared by its copies.
class memory_resource {
 public:
  /// Builds a stack from text, such as "cuda+pool:initial=1GiB", on a device, such as "cuda:0".
  explicit memory_resource(const char* stack, const char* device = nullptr)
      : stack_(stack, millpond::device(device)) {}

  /// Shares a stack with its other owners.
  explicit memory_resource(const millpond::stack& stack) : stack_(stack) {}

  /// Takes ownership of a handle.
  explicit memory_resource(millpond_resource* handle) : stack_(handle) {}

  /// Returns the default resource of a CUDA device.
  static memory_resource per_device(int ordinal) {
    millpond_device* found = nullptr;
    check(millpond_device_find(static_cast<std::uint32_t>(ordinal), false, &found));
    return memory_resource(millpond::stack::current(millpond::device(found)));
  }

  [[nodiscard]] millpond_resource* get() const noexcept { return stack_.get(); }

  /// The stack of this resource, as millpond's other classes take it.
  operator const millpond::stack&() const noexcept { return stack_; }

  void* allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
    return stack_.allocate(bytes, raw(stream), at_least_256(alignment));
  }

  void deallocate(::cuda::stream_ref stream, void* ptr, std::size_t bytes,
                  std::size_t alignment = 256) noexcept {
    millpond_deallocate(get(), ptr, bytes, at_least_256(alignment), raw(stream));
  }

  void* allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
    void* ptr = nullptr;
    check(millpond_allocate_sync(get(), bytes, at_least_256(alignment), &ptr));
    return ptr;
  }

  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t alignment = 256) noexcept {
    millpond_deallocate_sync(get(), ptr, bytes, at_least_256(alignment));
  }

  friend bool operator==(const memory_resource& one, const memory_resource& other) noexcept {
    return one.stack_ == other.stack_;
  }
  friend bool operator!=(const memory_resource& one, const memory_resource& other) noexcept {
    return !(one == other);
  }

  friend constexpr void get_property(const memory_resource&, ::cuda::mr::device_accessible) noexcept {}
  using default_queries = ::cuda::mr::properties_list<::cuda::mr::device_accessible>;

 private:
  static std::size_t at_least_256(std::size_t alignment) noexcept {
    return alignment < 256 ? 256 : alignment;
  }
  static void* raw(::cuda::stream_ref stream) noexcept {
    return named(reinterpret_cast<void*>(stream.get()));
  }

  millpond::stack stack_;
};

static_assert(::cuda::mr::resource_with<memory_resource, ::cuda::mr::device_accessible>);

}  // namespace millpond

#endif
