// millpond's own pool through its C library, whose driver of CUDA finds the shim as libcuda.so.1. STACK is the
// stack's text.
//
// The library has one driver for device 0, whichever driver the judge entered. So the programs must run one
// after another (--workers 1).
#include "allocator.h"

#include "millpond.h"

namespace {

int code(millpond_status status)
{
    switch (status) {
        case MILLPOND_STATUS_OK: return 0;
        case MILLPOND_STATUS_OUT_OF_MEMORY: return 2;
        default: return 999;
    }
}

millpond_resource* resource(void* allocator) { return static_cast<millpond_resource*>(allocator); }

}  // namespace

extern "C" uint32_t judge_traits() { return JUDGE_SURVIVES_FAULTS | JUDGE_WORKS_IN_CAPTURES; }

extern "C" int judge_create(void** allocator)
{
    millpond_device* device;
    if (auto status = millpond_device_open("cuda:0", &device)) return code(status);
    millpond_resource* made = nullptr;
    auto const status = millpond_resource_new(device, STACK, &made);
    millpond_device_free(device);
    *allocator = made;
    return code(status);
}

extern "C" int judge_allocate(void* allocator, void** ptr, size_t bytes, judge_stream stream)
{
    return code(millpond_allocate(resource(allocator), bytes, 0, stream, ptr));
}

extern "C" void judge_deallocate(void* allocator, void* ptr, size_t bytes, judge_stream stream)
{
    millpond_deallocate(resource(allocator), ptr, bytes, 0, stream);
}

extern "C" void judge_destroy(void* allocator) { millpond_resource_free(resource(allocator)); }
