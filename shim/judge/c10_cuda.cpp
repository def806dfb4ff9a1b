// PyTorch's caching allocator, from the headers and the libraries of a torch wheel.
//
// A process has one such allocator, and its lists belong to device 0, whichever driver the judge entered. So
// the programs must run one after another (--workers 1). At a program's end, the adapter frees all live
// blocks, also after a broken rule, and empties the cache.
#include "allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cuda_runtime_api.h>

#include <mutex>
#include <set>

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

struct live_blocks {
    void add(void* ptr)
    {
        std::lock_guard guard{lock_};
        blocks_.insert(ptr);
    }
    void remove(void* ptr)
    {
        std::lock_guard guard{lock_};
        blocks_.erase(ptr);
    }
    ~live_blocks()
    {
        for (void* ptr : blocks_) allocator::raw_delete(ptr);
        allocator::emptyCache();
    }

private:
    std::mutex lock_;
    std::set<void*> blocks_;
};

}  // namespace

// The allocator knows the stream of a block only from the allocation.
extern "C" uint32_t judge_traits() { return JUDGE_FREES_ON_OWN_STREAM; }

extern "C" int judge_create(void** made)
{
    try {
        static bool const is_initialised = (allocator::init(1), true);
        *made = is_initialised ? new live_blocks : nullptr;
        return cudaSuccess;
    } catch (...) {
        return cudaErrorUnknown;
    }
}

extern "C" int judge_allocate(void* live, void** ptr, size_t bytes, judge_stream stream)
{
    try {
        *ptr = allocator::raw_alloc_with_stream(bytes, stream);
        static_cast<live_blocks*>(live)->add(*ptr);
        return cudaSuccess;
    } catch (c10::OutOfMemoryError const&) {
        return cudaErrorMemoryAllocation;
    } catch (...) {
        return cudaErrorUnknown;
    }
}

extern "C" void judge_deallocate(void* live, void* ptr, size_t, judge_stream)
{
    static_cast<live_blocks*>(live)->remove(ptr);
    allocator::raw_delete(ptr);
}

extern "C" void judge_destroy(void* live) { delete static_cast<live_blocks*>(live); }
