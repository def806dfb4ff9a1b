/* millpond's memory resources for CCCL's concept (cuda::mr), and so for RAPIDS in C++ and for Thrust. */

#ifndef MILLPOND_MEMORY_RESOURCE_HPP
#define MILLPOND_MEMORY_RESOURCE_HPP

#include <millpond.h>

#if !__has_include(<cuda/memory_resource>)
#error "millpond/memory_resource.hpp needs the headers of CCCL 3.2 or later"
#endif

#include <cuda/__cccl_config>
#include <cuda/memory_resource>
#include <cuda/stream_ref>

static_assert(CCCL_VERSION >= 3002000,
              "millpond/memory_resource.hpp needs CCCL 3.2 or later: earlier versions have another concept");

#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace millpond {

/// An error of the library, with its text and status.
class error : public std::runtime_error {
 public:
  explicit error(millpond_status status)
      : std::runtime_error(millpond_error_message()), status_(status) {}
  [[nodiscard]] millpond_status status() const noexcept { return status_; }

 private:
  millpond_status status_;
};

/// Memory is out; what() gives the reason and advice.
class out_of_memory : public std::bad_alloc {
 public:
  out_of_memory() : text_(millpond_error_message()) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

inline void check(millpond_status status) {
  if (status == MILLPOND_STATUS_OK) return;
  if (status == MILLPOND_STATUS_OUT_OF_MEMORY) throw out_of_memory();
  throw error(status);
}

/// A stack of resources, shared by its copies.
class memory_resource {
 public:
  /// Builds a stack from text, such as "cuda+pool:initial=1GiB", on a device, such as "cuda:0".
  explicit memory_resource(const char* stack, const char* device = nullptr) {
    millpond_device* opened = nullptr;
    check(millpond_device_open(device, &opened));
    const millpond_status made = millpond_resource_new(opened, stack, &handle_);
    millpond_device_free(opened);
    check(made);
  }

  /// Returns the default resource of a CUDA device.
  static memory_resource per_device(int ordinal) {
    millpond_device* found = nullptr;
    check(millpond_device_find(static_cast<uint32_t>(ordinal), false, &found));
    millpond_resource* handle = nullptr;
    const millpond_status got = millpond_get_per_device_resource(found, &handle);
    millpond_device_free(found);
    check(got);
    return memory_resource(handle);
  }

  /// Takes ownership of a handle.
  explicit memory_resource(millpond_resource* handle) noexcept : handle_(handle) {}

  memory_resource(const memory_resource& other) {
    check(millpond_resource_clone(other.handle_, &handle_));
  }
  memory_resource(memory_resource&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  memory_resource& operator=(memory_resource other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~memory_resource() { millpond_resource_free(handle_); }

  [[nodiscard]] millpond_resource* get() const noexcept { return handle_; }

  void* allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
    void* ptr = nullptr;
    check(millpond_allocate(handle_, bytes, at_least_256(alignment), raw(stream), &ptr));
    return ptr;
  }

  void deallocate(::cuda::stream_ref stream, void* ptr, std::size_t bytes,
                  std::size_t alignment = 256) noexcept {
    millpond_deallocate(handle_, ptr, bytes, at_least_256(alignment), raw(stream));
  }

  void* allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
    void* ptr = nullptr;
    check(millpond_allocate_sync(handle_, bytes, at_least_256(alignment), &ptr));
    return ptr;
  }

  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t alignment = 256) noexcept {
    millpond_deallocate_sync(handle_, ptr, bytes, at_least_256(alignment));
  }

  friend bool operator==(const memory_resource& one, const memory_resource& other) noexcept {
    return millpond_resource_is_equal(one.handle_, other.handle_);
  }
  friend bool operator!=(const memory_resource& one, const memory_resource& other) noexcept {
    return !(one == other);
  }

  friend constexpr void get_property(const memory_resource&, ::cuda::mr::device_accessible) noexcept {}
  using default_queries = ::cuda::mr::properties_list<::cuda::mr::device_accessible>;

 private:
  static std::size_t at_least_256(std::size_t alignment) noexcept { return alignment < 256 ? 256 : alignment; }
  static void* raw(::cuda::stream_ref stream) noexcept { return reinterpret_cast<void*>(stream.get()); }

  millpond_resource* handle_ = nullptr;
};

static_assert(::cuda::mr::resource_with<memory_resource, ::cuda::mr::device_accessible>);

}  // namespace millpond

#endif
