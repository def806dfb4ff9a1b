// PyTorch's caching allocator, which serves the requests of another process.
//
// The program is compiled against the headers and the libraries of an installed PyTorch. It reads requests from
// the standard input, and writes answers to the standard output. `mod.rs` has the other side.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <unordered_map>

// PyTorch's other libraries install this function, so its headers do not declare it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(DeviceIndex));
}

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

enum request : uint64_t { ALLOCATE, FREE, TRIM };
enum answer : uint64_t { SERVED, REFUSED, FAILED, ALLOCATED, RELEASED, MAPPED, UNMAPPED };

struct message {
    uint64_t kind, first, second;
};

void send(message const& sent)
{
    if (std::fwrite(&sent, sizeof sent, 1, stdout) != 1) std::_Exit(1);
}

// Sends what happened to a segment since the last answer.
void on_trace(allocator::TraceEntry const& entry)
{
    using Action = allocator::TraceEntry::Action;
    switch (entry.action_) {
    case Action::SEGMENT_ALLOC: return send({ALLOCATED, entry.addr_, entry.size_});
    case Action::SEGMENT_FREE: return send({RELEASED, entry.addr_, entry.size_});
    case Action::SEGMENT_MAP: return send({MAPPED, entry.addr_, entry.size_});
    case Action::SEGMENT_UNMAP: return send({UNMAPPED, entry.addr_, entry.size_});
    default: return;
    }
}

// Sends the end of an answer: an address, and the bytes that are reserved.
void end(answer kind, void* ptr)
{
    auto const reserved = allocator::getDeviceStats(0).reserved_bytes[0].current;
    send({kind, reinterpret_cast<uint64_t>(ptr), static_cast<uint64_t>(reserved)});
    std::fflush(stdout);
}

void fail(std::string const& why)
{
    send({FAILED, why.size(), 0});
    std::fwrite(why.data(), 1, why.size(), stdout);
    std::fflush(stdout);
}

// The stream with a number; 0 is the legacy default stream.
c10::cuda::CUDAStream stream(uint64_t number)
{
    static std::unordered_map<uint64_t, cudaStream_t> made;
    if (number == 0) return c10::cuda::getDefaultCUDAStream(0);
    auto const [found, is_new] = made.try_emplace(number);
    if (is_new) C10_CUDA_CHECK(cudaStreamCreateWithFlags(&found->second, cudaStreamNonBlocking));
    return c10::cuda::getStreamFromExternal(found->second, 0);
}

void serve(message const& asked)
{
    switch (asked.kind) {
    case ALLOCATE: {
        auto const on = stream(asked.second);
        try {
            return end(SERVED, allocator::raw_alloc_with_stream(asked.first, on.stream()));
        } catch (c10::OutOfMemoryError const&) {
            return end(REFUSED, nullptr);
        }
    }
    case FREE: {
        // A program calls `record_stream` for a tensor that another stream used.
        auto* const ptr = reinterpret_cast<void*>(asked.first);
        at::DataPtr tensor{ptr, ptr, allocator::get()->raw_deleter(), {c10::kCUDA, 0}};
        return allocator::recordStream(tensor, stream(asked.second));
    }
    default: allocator::emptyCache(); return end(SERVED, nullptr);
    }
}

// Limits the allocator to a number of bytes. PyTorch multiplies the fraction with the device's memory.
void limit(uint64_t bytes)
{
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    double fraction = static_cast<double>(bytes) / static_cast<double>(total);
    while (static_cast<uint64_t>(fraction * static_cast<double>(total)) < bytes) {
        fraction = std::nextafter(fraction, 1.0);
    }
    allocator::setMemoryFraction(std::min(fraction, 1.0), 0);
}

}  // namespace

int main(int count, char** arguments)
{
    try {
        c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
        C10_CUDA_CHECK(cudaSetDevice(0));
        c10::cuda::detail::init_p2p_access_cache(1);
        allocator::init(1);
        if (count > 1) limit(std::strtoull(arguments[1], nullptr, 10));
        allocator::get()->attachAllocatorTraceTracker(on_trace);
        end(SERVED, nullptr);
        for (message asked; std::fread(&asked, sizeof asked, 1, stdin) == 1;) serve(asked);
    } catch (c10::Error const& error) {
        fail(error.what_without_backtrace());
    } catch (std::exception const& error) {
        fail(error.what());
    }
    std::_Exit(0);
}
