// PyTorch's caching allocator, from the headers and the libraries of a torch wheel.
//
// A process has one such allocator, and its lists belong to device 0, whichever driver the judge entered. So
// the programs must run one after another (--workers 1). At a program's end, the adapter frees all live
// blocks, also after a broken rule, and empties the cache.
#include "allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <c10/util/Logging.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

// PyTorch has no header with this function: its own caller declares it, too.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(DeviceIndex));
}

#ifndef PLANTED
#define PLANTED 0
#endif

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
    void free_all()
    {
        for (void* ptr : blocks_) allocator::raw_delete(ptr);
        allocator::emptyCache();
        // A segment whose first mapping failed keeps its addresses until a request maps it.
        for (auto const& segment : allocator::getExpandableSegmentSizes(0)) {
            auto const bytes = segment.is_small_pool ? 1 : c10::CachingAllocator::kSmallSize + 1;
            allocator::raw_delete(allocator::raw_alloc_with_stream(bytes, segment.stream));
            allocator::emptyCache();
        }
    }

private:
    std::mutex lock_;
    std::set<void*> blocks_;
};

// getExpandableSegmentSizes leaves out the segments of stream 0, so the legacy default stream has its other
// handle.
judge_stream named(judge_stream stream) { return stream ? stream : cudaStreamLegacy; }

// A private pool. As with several CUDAGraphs of one pool, each opening counts as a use of the pool.
struct scope {
    std::set<judge_stream> open;
    int uses = 0;
    c10::MempoolId_t id;
};

std::mutex scopes_lock;
std::map<judge_stream, scope*> scopes;  // the streams for which a scope is open

unsigned long long capture_of(judge_stream stream)
{
    cudaStreamCaptureStatus status{};
    unsigned long long id{};
    bool const answers = cudaStreamGetCaptureInfo(stream, &status, &id) == cudaSuccess;
    return answers && status == cudaStreamCaptureStatusActive ? id : 0;
}

// Whether the scope is open for the stream, or for a stream of its capture.
bool serves(scope const* asked, judge_stream stream)
{
    if (PLANTED) return false;  // captured blocks then come from the allocator's common lists
    std::lock_guard guard{scopes_lock};
    if (auto own = scopes.find(stream); own != scopes.end()) return own->second == asked;
    auto const capture = capture_of(stream);
    auto const is_mate = [&](judge_stream other) { return capture_of(other) == capture; };
    return capture != 0 && std::any_of(asked->open.begin(), asked->open.end(), is_mate);
}

}  // namespace

// The allocator knows the stream of a block only from the allocation. It waits for that stream before it
// unmaps an expandable segment.
extern "C" uint32_t judge_traits()
{
    bool const expands = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::expandable_segments();
    return JUDGE_FREES_ON_OWN_STREAM | JUDGE_WORKS_IN_CAPTURES | JUDGE_CAPTURES_IN_SCOPES |
           (expands ? JUDGE_ENDS_BEFORE_STREAMS : 0);
}

extern "C" int judge_create(void** made)
{
    try {
        static std::once_flag once;
        std::call_once(once, [] {
            FLAGS_caffe2_log_level = c10::GLOG_ERROR;  // else it reports each time that memory is short
            c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
            c10::cuda::detail::init_p2p_access_cache(1);
            allocator::init(1);
        });
        *made = new live_blocks;
        return cudaSuccess;
    } catch (...) {
        return cudaErrorUnknown;
    }
}

extern "C" int judge_allocate(void* live, void** ptr, size_t bytes, judge_stream stream)
{
    try {
        c10::cuda::CUDAStreamGuard current{c10::cuda::getStreamFromExternal(stream, 0)};
        *ptr = allocator::raw_alloc_with_stream(bytes, named(stream));
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

extern "C" void judge_destroy(void* destroyed)
{
    auto* const live = static_cast<live_blocks*>(destroyed);
    try {
        live->free_all();
    } catch (...) {
        // A broken rule may leave a capture open. The judge reports that rule, and the memory that is left.
    }
    delete live;
}

extern "C" int judge_scope_new(void*, void** made)
{
    static std::atomic<unsigned long long> count;
    *made = new scope{{}, 0, {0, ++count}};
    return cudaSuccess;
}

extern "C" int judge_scope_open(void* opened, judge_stream stream)
{
    auto* const own = static_cast<scope*>(opened);
    try {
        if (own->open.empty()) {
            allocator::beginAllocateToPool(0, own->id, [own](judge_stream of) { return serves(own, of); });
            own->uses++;
        }
        std::lock_guard guard{scopes_lock};
        own->open.insert(named(stream));
        scopes[named(stream)] = own;
        return cudaSuccess;
    } catch (...) {
        return cudaErrorUnknown;
    }
}

extern "C" void judge_scope_close(void* closed, judge_stream stream)
{
    auto* const own = static_cast<scope*>(closed);
    {
        std::lock_guard guard{scopes_lock};
        own->open.erase(named(stream));
        scopes.erase(named(stream));
    }
    if (own->open.empty()) allocator::endAllocateToPool(0, own->id);
}

extern "C" void judge_scope_free(void* freed)
{
    auto* const own = static_cast<scope*>(freed);
    for (; own->uses > 0; own->uses--) allocator::releasePool(0, own->id);
    delete own;
}

extern "C" void judge_capture(void*, int begins)
{
    begins ? allocator::markCaptureBegin(0) : allocator::markCaptureEnd(0);
}
