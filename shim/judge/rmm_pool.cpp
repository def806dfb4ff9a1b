// RMM's pool over cudaMalloc, from the headers and the library of a librmm wheel.
//
// The library holds a static CUDA runtime, which the judge cannot replace. So the functions that call it are
// compiled here from the headers or defined here: the stream-ordered free lists, the destructor that ends
// them, the questions about devices, and the upstream.
#include "allocator.h"

#include <rmm/cuda_device.hpp>
#include <rmm/error.hpp>
#include <rmm/logger.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <cuda_runtime_api.h>

#include <new>

rmm::cuda_device_id rmm::get_current_cuda_device()
{
    int device{};
    cudaGetDevice(&device);
    return rmm::cuda_device_id{device};
}

int rmm::get_num_cuda_devices()
{
    int count{};
    cudaGetDeviceCount(&count);
    return count;
}

rmm::mr::detail::pool_memory_resource_impl::~pool_memory_resource_impl() { release(); }

namespace {

struct upstream {
    void* allocate_sync(std::size_t bytes, std::size_t = 256)
    {
        void* ptr{};
        if (cudaMalloc(&ptr, bytes) != cudaSuccess) {
            cudaGetLastError();
            throw rmm::out_of_memory{"cudaMalloc"};
        }
        return ptr;
    }
    void deallocate_sync(void* ptr, std::size_t, std::size_t = 256) noexcept { cudaFree(ptr); }
    void* allocate(cuda::stream_ref, std::size_t bytes, std::size_t = 256) { return allocate_sync(bytes); }
    void deallocate(cuda::stream_ref, void* ptr, std::size_t bytes, std::size_t = 256) noexcept
    {
        deallocate_sync(ptr, bytes);
    }
    bool operator==(upstream const&) const noexcept { return true; }
    bool operator!=(upstream const&) const noexcept { return false; }
    friend void get_property(upstream const&, cuda::mr::device_accessible) noexcept {}
};

using pool = rmm::mr::detail::pool_memory_resource_impl;

}  // namespace

extern "C" uint32_t judge_traits() { return JUDGE_KEEPS_EVENTS; }

extern "C" int judge_create(void** allocator)
{
    try {
        rmm::default_logger().set_level(rapids_logger::level_enum::off);
        *allocator = new pool{upstream{}, 0, std::nullopt};
        return cudaSuccess;
    } catch (...) {
        return cudaErrorUnknown;
    }
}

extern "C" int judge_allocate(void* allocator, void** ptr, size_t bytes, judge_stream stream)
{
    try {
        *ptr = static_cast<pool*>(allocator)->allocate(cuda::stream_ref{stream}, bytes, 256);
        return cudaSuccess;
    } catch (rmm::out_of_memory const&) {
        return cudaErrorMemoryAllocation;
    } catch (...) {
        return cudaErrorUnknown;
    }
}

extern "C" void judge_deallocate(void* allocator, void* ptr, size_t bytes, judge_stream stream)
{
    static_cast<pool*>(allocator)->deallocate(cuda::stream_ref{stream}, ptr, bytes, 256);
}

extern "C" void judge_destroy(void* allocator) { delete static_cast<pool*>(allocator); }
