/* millpond's stacks, buffers, devices and streams as C++17 classes. Header only; needs no CUDA headers. */

#ifndef MILLPOND_MILLPOND_HPP
#define MILLPOND_MILLPOND_HPP

#include <millpond.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace millpond {

/// A call failed. what() says why, and what to do.
class error : public std::runtime_error {
 public:
  /// The last error of the calling thread.
  explicit error(millpond_status status)
      : std::runtime_error(millpond_error_message()),
        status_(status),
        driver_code_(millpond_error_driver_code()) {}

  [[nodiscard]] millpond_status status() const noexcept { return status_; }
  /// The driver's code (CUresult); 0 if the driver reported no error.
  [[nodiscard]] int driver_code() const noexcept { return driver_code_; }

 private:
  millpond_status status_;
  int driver_code_;
};

/// Memory is out. what() says why, and report() says what would help.
class out_of_memory : public std::bad_alloc {
 public:
  /// The last error of the calling thread.
  out_of_memory() : message_(millpond_error_message()), report_(text_or_empty(millpond_error_report())) {}

  [[nodiscard]] millpond_status status() const noexcept { return MILLPOND_STATUS_OUT_OF_MEMORY; }
  [[nodiscard]] const char* what() const noexcept override { return message_.what(); }
  /// The state of memory at the error; empty if nothing is known.
  [[nodiscard]] const char* report() const noexcept { return report_.what(); }

 private:
  static const char* text_or_empty(const char* text) noexcept { return text == nullptr ? "" : text; }

  // Copies of an exception must not throw; a copy of runtime_error does not, a copy of string may.
  std::runtime_error message_;
  std::runtime_error report_;
};

/// Throws out_of_memory or error unless the status is MILLPOND_STATUS_OK.
inline void check(millpond_status status) {
  if (status == MILLPOND_STATUS_OK) return;
  if (status == MILLPOND_STATUS_OUT_OF_MEMORY) throw out_of_memory();
  throw error(status);
}

/// Takes ownership of a text that the library returned.
inline std::string taken(char* text) {
  const std::unique_ptr<char, decltype(&millpond_string_free)> owner(text, millpond_string_free);
  return text == nullptr ? std::string() : std::string(text);
}

/// The stream that a program's null means: the calling thread's own default stream if the program is compiled
/// for per-thread default streams (nvcc --default-stream per-thread), or else the legacy default stream.
inline void* named(void* stream) noexcept {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
  constexpr std::uintptr_t per_thread = 2;  // cudaStreamPerThread
  return stream == nullptr ? reinterpret_cast<void*>(per_thread) : stream;
#else
  return stream;
#endif
}

/// A device. Copies refer to the same device.
class device {
 public:
  /// Opens a device such as "cuda:0", or "sim:8GiB" without a GPU. Null is the default device.
  explicit device(const char* name = nullptr) {
    millpond_device* opened = nullptr;
    check(millpond_device_open(name, &opened));
    handle_.reset(opened, millpond_device_free);
  }

  /// Takes ownership of a handle.
  explicit device(millpond_device* handle) : handle_(handle, millpond_device_free) {}

  [[nodiscard]] millpond_device* get() const noexcept { return handle_.get(); }
  [[nodiscard]] int ordinal() const noexcept { return millpond_device_ordinal(get()); }
  [[nodiscard]] bool is_simulated() const noexcept { return millpond_device_is_simulated(get()); }

  [[nodiscard]] std::string name() const {
    char* text = nullptr;
    check(millpond_device_name(get(), &text));
    return taken(text);
  }

  /// Waits for all work on the device.
  void synchronize() const { check(millpond_device_synchronize(get())); }

 private:
  std::shared_ptr<millpond_device> handle_;
};

/// The default device of the process. Some versions of nvcc reject `device()` as a default argument below.
inline device default_device() { return device(); }

/// A stream that this class makes and destroys. Functions take any CUstream or cudaStream_t in its place.
class stream {
 public:
  explicit stream(const millpond::device& device, bool is_non_blocking = true) : device_(device) {
    check(millpond_stream_create(device_.get(), is_non_blocking, &handle_));
  }
  stream(stream&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  stream& operator=(stream other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~stream() {
    if (handle_ != nullptr) millpond_stream_destroy(device_.get(), handle_);
  }

  [[nodiscard]] void* get() const noexcept { return handle_; }

  /// Waits for the work of the stream.
  void synchronize() const { check(millpond_stream_synchronize(device_.get(), handle_)); }

  /// Makes later work of this stream wait for the work that was submitted to another stream.
  void wait_for(void* other) const { check(millpond_stream_wait(device_.get(), handle_, named(other))); }

 private:
  millpond::device device_;
  void* handle_ = nullptr;
};

/// A stack of resources. Copies refer to the same stack. It lives as long as a copy or a buffer from it.
class stack {
 public:
  /// Builds a stack from text, such as "cuda+pool:initial=1GiB".
  explicit stack(const char* text, const millpond::device& device = default_device()) : device_(device) {
    millpond_resource* made = nullptr;
    check(millpond_resource_new(device.get(), text, &made));
    handle_.reset(made, millpond_resource_free);
  }

  /// Takes ownership of a handle.
  explicit stack(millpond_resource* handle)
      : handle_(handle, millpond_resource_free), device_(device_of(handle)) {}

  /// The default resource of the calling thread's current device.
  static stack current() {
    millpond_resource* found = nullptr;
    check(millpond_get_current_device_resource(&found));
    return stack(found);
  }

  /// The default resource of a device.
  static stack current(const millpond::device& device) {
    millpond_resource* found = nullptr;
    check(millpond_get_per_device_resource(device.get(), &found));
    return stack(found);
  }

  /// Makes this stack the default of its device.
  void make_current() const { check(millpond_set_per_device_resource(get(), nullptr)); }

  /// Builds layers on this stack from text, such as "limiting:limit=1GiB+statistics".
  [[nodiscard]] stack with(const char* layers) const {
    millpond_resource* made = nullptr;
    check(millpond_resource_layer(get(), layers, &made));
    return stack(made);
  }

  [[nodiscard]] millpond_resource* get() const noexcept { return handle_.get(); }
  [[nodiscard]] const millpond::device& device() const noexcept { return device_; }

  [[nodiscard]] std::string text() const {
    char* text = nullptr;
    check(millpond_resource_text(get(), &text));
    return taken(text);
  }

  /// Allocates for use on a stream. For 0 bytes, the result is a null pointer.
  [[nodiscard]] void* allocate(std::size_t bytes, void* stream = nullptr, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    check(millpond_allocate(get(), bytes, alignment, named(stream), &ptr));
    return ptr;
  }

  /// Frees a block in the order of a stream, with the bytes and alignment of its allocation.
  void deallocate(void* ptr, std::size_t bytes, void* stream = nullptr, std::size_t alignment = 0) const {
    check(millpond_deallocate(get(), ptr, bytes, alignment, named(stream)));
  }

  /// Releases free memory to the device until the stack holds at most keep_bytes. Returns the bytes released.
  std::uint64_t trim(std::uint64_t keep_bytes = 0) const {
    std::uint64_t freed_bytes = 0;
    check(millpond_resource_trim(get(), keep_bytes, &freed_bytes));
    return freed_bytes;
  }

  /// The counters of the outermost layer that counts.
  [[nodiscard]] millpond_statistics statistics() const {
    millpond_statistics counted{};
    check(millpond_resource_statistics(get(), &counted));
    return counted;
  }

  /// The memory of the whole stack now, for people or as JSON.
  [[nodiscard]] std::string memory_report(bool as_json = false) const {
    char* report = nullptr;
    check(millpond_resource_memory_report(get(), as_json, &report));
    return taken(report);
  }

  /// Whether each stack can free the other's blocks.
  friend bool operator==(const stack& one, const stack& other) noexcept {
    return millpond_resource_is_equal(one.get(), other.get());
  }
  friend bool operator!=(const stack& one, const stack& other) noexcept { return !(one == other); }

 private:
  static millpond::device device_of(millpond_resource* handle) {
    millpond_device* found = nullptr;
    check(millpond_resource_device(handle, &found));
    return millpond::device(found);
  }

  std::shared_ptr<millpond_resource> handle_;
  millpond::device device_;
};

/// Memory of a stack. The destructor frees it in the order of the buffer's stream.
class buffer {
 public:
  /// Allocates for use on a stream, which must outlive the buffer.
  buffer(const millpond::stack& stack, std::size_t bytes, void* stream = nullptr)
      : stack_(stack), data_(stack.allocate(bytes, stream)), bytes_(bytes), stream_(named(stream)) {}
  buffer(buffer&& other) noexcept
      : stack_(other.stack_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        stream_(other.stream_) {}
  buffer& operator=(buffer other) noexcept {
    std::swap(stack_, other.stack_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~buffer() {
    // A destructor cannot throw. The library counts a refusal, and logs it.
    millpond_deallocate(stack_.get(), data_, bytes_, 0, stream_);
  }

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] void* stream() const noexcept { return stream_; }
  [[nodiscard]] const millpond::stack& stack() const noexcept { return stack_; }

  /// Sets the stream in whose order the memory is freed. It must already follow all work on the buffer.
  void set_stream(void* stream) noexcept { stream_ = named(stream); }

  /// Copies from host memory, which must stay valid until the stream has completed the copy.
  void copy_from_host(const void* source, std::size_t bytes) {
    check_range(bytes);
    check(millpond_copy_to_device(stack_.device().get(), data_, source, bytes, stream_));
  }

  /// Copies to host memory. The data is there when the stream has completed the copy.
  void copy_to_host(void* target, std::size_t bytes) const {
    check_range(bytes);
    check(millpond_copy_to_host(stack_.device().get(), target, data_, bytes, stream_));
  }

  /// Sets each byte.
  void fill(std::uint8_t value) {
    if (bytes_ > 0) check(millpond_fill(stack_.device().get(), data_, value, bytes_, stream_));
  }

 private:
  void check_range(std::size_t bytes) const {
    if (bytes > bytes_) {
      throw std::out_of_range("a copy of " + std::to_string(bytes) + " bytes does not fit into a buffer of " +
                              std::to_string(bytes_) + " bytes");
    }
  }

  millpond::stack stack_;
  void* data_;
  std::size_t bytes_;
  void* stream_;
};

}  // namespace millpond

#endif
