/* Calls CUDA's driver in the ways of a program that opens the library itself: right and wrong.
 *
 * An H100 with driver 580.159 returns the same codes (2026-11-26). The program prints each call whose code is
 * another one, and returns 1 if there is any. The argument "address" finds the functions with
 * cuGetProcAddress_v2 instead of dlsym. The argument "crashes" adds calls that crash in the GPU's driver. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void *handle;

static void *library;
static int (*get_address)(const char *, void **, int, uint64_t, int *);
static int by_address;
static int wrong;
static int calls;

static int missing(void) { return -1; }

/* A function of the driver: its symbol, and the name without the version for cuGetProcAddress. */
static void *function(const char *symbol) {
    char name[64];
    strncpy(name, symbol, sizeof name - 1);
    name[sizeof name - 1] = 0;
    char *version = strstr(name, "_v");
    if (version) *version = 0;
    void *found = dlsym(library, symbol);
    if (by_address) {
        int status = -1;
        int is_create = strcmp(name, "cuCtxCreate") == 0; /* later versions have other arguments */
        int code = get_address(name, &found, is_create ? 11030 : 12000, 0, &status);
        if (code != 0 || status != 0) found = NULL;
    }
    if (found) return found;
    printf("%s: there is no such function\n", symbol);
    return missing;
}

static void check(const char *what, int code, int expected) {
    ++calls;
    if (code != expected) {
        printf("%s: %d instead of %d\n", what, code, expected);
        ++wrong;
    }
}

#define CALL(name, ...) ((int (*)())function(#name))(__VA_ARGS__)
#define CHECK(expected, name, ...) check(#name "(" #__VA_ARGS__ ")", CALL(name, __VA_ARGS__), expected)
#define OK(name, ...) CHECK(0, name, __VA_ARGS__)

/* Arguments without a prototype need their full width. */
#define BYTES(count) ((size_t)(count))
#define STRAY ((handle)0x7f0000001230)
#define NOTHING ((handle)0)

static handle context;
static char place[256];

static void before_init(void) {
    int number;
    CHECK(3, cuDeviceGetCount, &number);
    CHECK(3, cuDeviceGetCount, NOTHING);
    CHECK(3, cuCtxGetCurrent, place);
    CHECK(3, cuMemAlloc_v2, place, BYTES(8));
    CHECK(3, cuStreamCreate, place, 0);
    CHECK(3, cuMemGetInfo_v2, place, place + 8);
    CHECK(3, cuDevicePrimaryCtxRetain, place, 0);
    OK(cuDriverGetVersion, &number);
    CHECK(1, cuDriverGetVersion, NOTHING);
    CHECK(1, cuInit, 7);
    CHECK(3, cuDeviceGetCount, &number);
    OK(cuInit, 0);
    OK(cuInit, 0);
}

static void devices(void) {
    int number = 0, device = -1;
    size_t bytes = 0;
    OK(cuDeviceGetCount, &number);
    CHECK(1, cuDeviceGetCount, NOTHING);
    OK(cuDeviceGet, &device, 0);
    CHECK(101, cuDeviceGet, &device, 99);
    CHECK(101, cuDeviceGet, &device, -1);
    CHECK(1, cuDeviceGet, NOTHING, 0);
    OK(cuDeviceGetName, place, 64, 0);
    OK(cuDeviceGetName, place, 4, 0);
    check("the length of a name", (int)strlen(place), 3);
    CHECK(1, cuDeviceGetName, NOTHING, 64, 0);
    CHECK(101, cuDeviceGetName, place, 64, 99);
    OK(cuDeviceTotalMem_v2, &bytes, 0);
    CHECK(101, cuDeviceTotalMem_v2, &bytes, 99);
    CHECK(1, cuDeviceTotalMem_v2, NOTHING, 0);
    OK(cuDeviceGetUuid_v2, place, 0);
    CHECK(101, cuDeviceGetUuid_v2, place, 99);
    OK(cuDeviceGetAttribute, &number, 75, 0);
    CHECK(101, cuDeviceGetAttribute, &number, 75, 99);
    CHECK(1, cuDeviceGetAttribute, &number, 99999, 0);
    CHECK(1, cuDeviceGetAttribute, NOTHING, 75, 0);
    CHECK(101, cuDeviceCanAccessPeer, &number, 0, 99);
    OK(cuDeviceCanAccessPeer, &number, 0, 0);
    check("a device is not its own peer", number, 0);
}

static void names(void) {
    const char *text = NULL;
    OK(cuGetErrorName, 201, &text);
    check("the name", strcmp(text, "CUDA_ERROR_INVALID_CONTEXT"), 0);
    OK(cuGetErrorName, 0, &text);
    check("the name", strcmp(text, "CUDA_SUCCESS"), 0);
    OK(cuGetErrorString, 1, &text);
    check("the text", strcmp(text, "invalid argument"), 0);
    CHECK(1, cuGetErrorName, 123456, &text);
    check("no name", text == NULL, 1);
}

static void addresses(void) {
    void *found = NULL;
    int status = -1;
#define ADDRESS(expected, how, name, version, flags)                                                         \
    status = -1;                                                                                             \
    check("cuGetProcAddress_v2 of " name, get_address(name, &found, version, flags, &status), expected);     \
    check("the status of " name, status, how)
    ADDRESS(0, 0, "cuMemAlloc", 12000, 0);
    check("the newest version", found == dlsym(library, "cuMemAlloc_v2"), 1);
    ADDRESS(0, 0, "cuMemAllocAsync", 12000, 2);
    check("the thread's stream", found == dlsym(library, "cuMemAllocAsync_ptsz"), 1);
    ADDRESS(0, 0, "cuMemAllocAsync", 12000, 1);
    check("the legacy stream", found == dlsym(library, "cuMemAllocAsync"), 1);
    ADDRESS(0, 0, "cuMemcpyHtoD", 12000, 2);
    check("the thread's stream", found == dlsym(library, "cuMemcpyHtoD_v2_ptds"), 1);
    ADDRESS(0, 0, "cuStreamGetCaptureInfo", 10010, 0);
    check("an old version", found == dlsym(library, "cuStreamGetCaptureInfo"), 1);
    ADDRESS(0, 0, "cuStreamGetCaptureInfo", 11030, 0);
    check("a version", found == dlsym(library, "cuStreamGetCaptureInfo_v2"), 1);
    ADDRESS(0, 0, "cuMemAdvise", 12000, 0);
    check("the first version", found == dlsym(library, "cuMemAdvise"), 1);
    ADDRESS(0, 0, "cuMemAdvise", 12020, 0);
    check("the second version", found == dlsym(library, "cuMemAdvise_v2"), 1);
    ADDRESS(0, 0, "cuGetProcAddress", 12000, 0);
    ADDRESS(0, 1, "cuNoSuchFunction", 12000, 0);
    check("no address", found == NULL, 1);
    ADDRESS(0, 1, "cuMemAlloc_v2", 12000, 0);
    ADDRESS(0, 2, "cuMemGetMemPool", 12000, 0);
    check("no address", found == NULL, 1);
    check("no flags", get_address("cuInit", &found, 12000, 99, &status), 1);
    check("no status", get_address("cuInit", &found, 12000, 0, NULL), 0);
    check("no status", get_address("cuNoSuchFunction", &found, 12000, 0, NULL), 0);
    if (!by_address) {
        OK(cuGetProcAddress, "cuMemAlloc", &found, 11030, (uint64_t)0);
        CHECK(500, cuGetProcAddress, "cuNoSuchFunction", &found, 11030, (uint64_t)0);
    }
}

static void without_a_context(void) {
    handle stream = NULL;
    int number;
    CHECK(201, cuMemAlloc_v2, place, BYTES(8));
    CHECK(201, cuMemAlloc_v2, NOTHING, BYTES(8));
    CHECK(201, cuMemGetInfo_v2, place, place + 8);
    CHECK(1, cuMemFree_v2, STRAY);
    OK(cuMemFree_v2, NOTHING);
    CHECK(201, cuStreamCreate, &stream, 0);
    CHECK(201, cuEventCreate, &stream, 0);
    CHECK(201, cuCtxSynchronize, 0);
    CHECK(201, cuCtxGetDevice, &number);
    CHECK(201, cuCtxPopCurrent_v2, &stream);
    CHECK(201, cuMemHostAlloc, &stream, BYTES(8), 0);
    CHECK(201, cuMemsetD8Async, STRAY, 0, BYTES(8), NOTHING);
    CHECK(201, cuMemcpyHtoD_v2, STRAY, place, BYTES(8));
    CHECK(1, cuPointerGetAttribute, place, 2, STRAY);
    OK(cuCtxGetCurrent, &stream);
    check("no current context", stream == NULL, 1);
    CHECK(1, cuCtxGetCurrent, NOTHING);
    CHECK(201, cuCtxSynchronize, 0);
}

static void contexts(void) {
    handle other = NULL, found = NULL;
    unsigned flags = 9;
    int active = 9;
    uint64_t first = 0, second = 0;
    OK(cuDevicePrimaryCtxGetState, 0, &flags, &active);
    check("the context is not active", active, 0);
    CHECK(101, cuDevicePrimaryCtxGetState, 99, &flags, &active);
    CHECK(1, cuDevicePrimaryCtxGetState, 0, NOTHING, NOTHING);
    CHECK(201, cuDevicePrimaryCtxRelease_v2, 0);
    CHECK(101, cuDevicePrimaryCtxRetain, &context, 99);
    CHECK(1, cuDevicePrimaryCtxRetain, NOTHING, 0);
    OK(cuDevicePrimaryCtxRetain, &context, 0);
    OK(cuDevicePrimaryCtxRetain, &other, 0);
    check("one primary context", context == other, 1);
    OK(cuDevicePrimaryCtxRelease_v2, 0);
    OK(cuDevicePrimaryCtxGetState, 0, &flags, &active);
    check("the context is active", active, 1);
    OK(cuCtxPushCurrent_v2, context);
    OK(cuCtxGetCurrent, &found);
    check("the current context", found == context, 1);
    OK(cuCtxGetId, context, &first);
    OK(cuCtxGetId, NOTHING, &second);
    check("the id of the current context", first == second, 1);
    CHECK(1, cuCtxGetId, context, NOTHING);
    CHECK(201, cuCtxDestroy_v2, context);
    OK(cuCtxCreate_v2, &other, 0, 0);
    OK(cuCtxGetCurrent, &found);
    check("a new context is current", found == other, 1);
    OK(cuCtxGetId, NOTHING, &second);
    check("another id", first != second, 1);
    OK(cuCtxPopCurrent_v2, &found);
    check("the context that was current", found == other, 1);
    OK(cuCtxDestroy_v2, other);
    CHECK(1, cuCtxCreate_v2, NOTHING, 0, 0);
    CHECK(101, cuCtxCreate_v2, &other, 0, 99);
    OK(cuCtxGetCurrent, &found);
    check("the context before is current", found == context, 1);
    OK(cuCtxSetCurrent, NOTHING);
    OK(cuCtxGetCurrent, &found);
    check("no context is current", found == NULL, 1);
    OK(cuCtxSetCurrent, context);
}

/* Each thread has a current context of its own. */
static void *on_a_thread(void *nothing) {
    handle found = NULL;
    CHECK(201, cuMemGetInfo_v2, place, place + 8);
    OK(cuCtxSetCurrent, context);
    OK(cuCtxGetCurrent, &found);
    check("the thread's context", found == context, 1);
    OK(cuMemGetInfo_v2, place, place + 8);
    OK(cuCtxSetCurrent, NOTHING);
    CHECK(201, cuMemGetInfo_v2, place, place + 8);
    return nothing;
}

static void threads(void) {
    pthread_t thread;
    check("a thread", pthread_create(&thread, NULL, on_a_thread, NULL), 0);
    pthread_join(thread, NULL);
    OK(cuMemGetInfo_v2, place, place + 8);
}

static void memory(void) {
    uint64_t ptr = 0, base = 0, second = 0;
    size_t bytes = 0, pitch = 0;
    unsigned kind = 0;
    int number = 0;
    CHECK(1, cuMemAlloc_v2, NOTHING, BYTES(8));
    CHECK(1, cuMemAlloc_v2, &ptr, BYTES(0));
    CHECK(2, cuMemAlloc_v2, &ptr, BYTES(1) << 50);
    OK(cuMemAlloc_v2, &ptr, BYTES(1 << 20));
    OK(cuMemGetAddressRange_v2, &base, &bytes, ptr + 100);
    check("the range", base == ptr && bytes == 1 << 20, 1);
    OK(cuMemGetAddressRange_v2, NOTHING, NOTHING, ptr);
    CHECK(500, cuMemGetAddressRange_v2, &base, &bytes, STRAY);
    OK(cuPointerGetAttribute, &kind, 2, ptr);
    check("memory of a device", (int)kind, 2);
    CHECK(1, cuPointerGetAttribute, &kind, 2, STRAY);
    CHECK(1, cuPointerGetAttribute, NOTHING, 2, ptr);
    CHECK(1, cuPointerGetAttribute, &kind, 999, ptr);
    OK(cuPointerGetAttribute, &number, 9, ptr);
    check("the device", number, 0);
    OK(cuPointerGetAttribute, &base, 11, ptr + 8);
    check("the start", base == ptr, 1);
    int numbers[2] = {2, 9};
    kind = 77;
    void *values[2] = {&kind, &number};
    OK(cuPointerGetAttributes, 2, numbers, values, ptr);
    check("memory of a device", (int)kind, 2);
    OK(cuPointerGetAttributes, 2, numbers, values, STRAY);
    check("unknown memory", (int)kind, 0);
    check("no device", number, -2);
    CHECK(1, cuPointerGetAttributes, 2, NOTHING, values, ptr);
    OK(cuMemsetD8_v2, ptr, 7, BYTES(100));
    OK(cuMemsetD32_v2, ptr + 4, 0x01020304, BYTES(3));
    CHECK(1, cuMemsetD32_v2, ptr + 1, 5, BYTES(3));
    OK(cuMemsetD8_v2, ptr, 7, BYTES(0));
    CHECK(1, cuMemsetD8_v2, NOTHING, 7, BYTES(8));
    OK(cuMemcpyDtoH_v2, place, ptr, BYTES(20));
    check("the bytes", place[0] == 7 && place[4] == 4 && place[15] == 1 && place[16] == 7, 1);
    OK(cuMemcpyHtoD_v2, ptr + 32, "a text", BYTES(7));
    OK(cuMemcpyDtoD_v2, ptr + 64, ptr + 32, BYTES(7));
    OK(cuMemcpy, place, ptr + 64, BYTES(7));
    check("the text", strcmp(place, "a text"), 0);
    OK(cuMemcpyHtoD_v2, NOTHING, NOTHING, BYTES(0));
    CHECK(1, cuMemcpyHtoD_v2, NOTHING, place, BYTES(8));
    CHECK(1, cuMemcpyDtoH_v2, place, NOTHING, BYTES(8));
    CHECK(1, cuMemcpyHtoD_v2, ptr, NOTHING, BYTES(8));
    OK(cuMemFree_v2, ptr);
    CHECK(1, cuMemFree_v2, ptr);
    OK(cuMemFree_v2, NOTHING);
    CHECK(1, cuMemFree_v2, STRAY);
    OK(cuMemGetInfo_v2, &bytes, &pitch);
    OK(cuMemGetInfo_v2, NOTHING, NOTHING);
    OK(cuMemAllocPitch_v2, &ptr, &pitch, BYTES(100), BYTES(10), 4);
    check("the pitch", pitch >= 100, 1);
    OK(cuMemFree_v2, ptr);
    CHECK(1, cuMemAllocPitch_v2, &ptr, &pitch, BYTES(100), BYTES(10), 3);
    CHECK(1, cuMemAllocPitch_v2, &ptr, &pitch, BYTES(0), BYTES(10), 4);
    CHECK(1, cuMemAllocManaged, &second, BYTES(8), 0);
    CHECK(1, cuMemAllocManaged, &second, BYTES(0), 1);
    OK(cuMemAllocManaged, &second, BYTES(4096), 1);
    OK(cuMemPrefetchAsync, second, BYTES(4096), 0, NOTHING);
    OK(cuMemAdvise, second, BYTES(4096), 1, 0);
    CHECK(1, cuMemAdvise, second, BYTES(4096), 99, 0);
    OK(cuMemFree_v2, second);
}

static void host_memory(void) {
    handle ptr = NULL, device = NULL;
    static char own[8192] __attribute__((aligned(4096)));
    CHECK(1, cuMemHostAlloc, NOTHING, BYTES(8), 0);
    OK(cuMemHostAlloc, &ptr, BYTES(0), 0);
    check("no memory", ptr == NULL, 1);
    CHECK(1, cuMemHostAlloc, &ptr, BYTES(8), 99);
    OK(cuMemHostAlloc, &ptr, BYTES(4096), 3);
    OK(cuMemHostGetDevicePointer_v2, &device, ptr, 0);
    CHECK(1, cuMemHostGetDevicePointer_v2, &device, ptr, 7);
    CHECK(1, cuMemHostGetDevicePointer_v2, &device, STRAY, 0);
    OK(cuMemFreeHost, ptr);
    CHECK(1, cuMemFreeHost, ptr);
    OK(cuMemFreeHost, NOTHING);
    OK(cuMemAllocHost_v2, &ptr, BYTES(4096));
    OK(cuMemFreeHost, ptr);
    OK(cuMemHostRegister_v2, own, BYTES(4096), 0);
    CHECK(712, cuMemHostRegister_v2, own, BYTES(4096), 0);
    OK(cuMemHostUnregister, own);
    CHECK(713, cuMemHostUnregister, own);
    CHECK(1, cuMemHostRegister_v2, NOTHING, BYTES(4096), 0);
    CHECK(1, cuMemHostRegister_v2, own, BYTES(0), 0);
}

static void streams(void) {
    handle stream = NULL, event = NULL, found = NULL;
    uint64_t ptr = 0, id = 0;
    int status = 9;
    CHECK(1, cuStreamCreate, NOTHING, 0);
    CHECK(1, cuStreamCreate, &stream, 7);
    OK(cuStreamCreate, &stream, 1);
    OK(cuStreamGetId, stream, &id);
    CHECK(1, cuStreamGetId, stream, NOTHING);
    OK(cuStreamGetCtx, stream, &found);
    check("the stream's context", found == context, 1);
    CHECK(1, cuStreamGetCtx, stream, NOTHING);
    CHECK(1, cuEventCreate, NOTHING, 0);
    CHECK(1, cuEventCreate, &event, 99);
    OK(cuEventCreate, &event, 2);
    OK(cuMemAllocAsync, &ptr, BYTES(1 << 20), stream);
    CHECK(1, cuMemAllocAsync, NOTHING, BYTES(8), stream);
    OK(cuMemAllocAsync, &id, BYTES(0), stream);
    check("no memory", id == 0, 1);
    OK(cuMemsetD8Async, ptr, 1, BYTES(1 << 20), stream);
    OK(cuEventRecord, event, stream);
    OK(cuStreamWaitEvent, NOTHING, event, 0);
    OK(cuEventSynchronize, event);
    OK(cuEventQuery, event);
    OK(cuMemFreeAsync, ptr, stream);
    OK(cuMemFreeAsync, NOTHING, stream);
    CHECK(1, cuMemFreeAsync, STRAY, stream);
    OK(cuStreamSynchronize, stream);
    OK(cuStreamQuery, stream);
    OK(cuStreamQuery, NOTHING);
    OK(cuStreamIsCapturing, stream, &status);
    check("the stream does not capture", status, 0);
    CHECK(1, cuStreamIsCapturing, stream, NOTHING);
    CHECK(400, cuStreamWaitEvent, stream, NOTHING, 0);
    CHECK(400, cuEventRecord, NOTHING, stream);
    CHECK(400, cuEventQuery, NOTHING);
    CHECK(400, cuEventSynchronize, NOTHING);
    CHECK(400, cuEventDestroy_v2, NOTHING);
    CHECK(400, cuStreamDestroy_v2, NOTHING);
    CHECK(400, cuStreamDestroy_v2, (handle)1);
    OK(cuEventDestroy_v2, event);
    OK(cuStreamDestroy_v2, stream);
}

static void captures(void) {
    handle stream = NULL, graph = NULL, nodes[4];
    uint64_t ptr = 0, id = 0;
    size_t count = 0;
    int status = 9, mode = 2, kind = 99;
    OK(cuStreamCreate, &stream, 1);
    OK(cuMemAlloc_v2, &ptr, BYTES(4096));
    CHECK(1, cuStreamBeginCapture_v2, stream, 9);
    OK(cuStreamBeginCapture_v2, stream, 0);
    CHECK(401, cuStreamBeginCapture_v2, stream, 0);
    OK(cuMemsetD8Async, ptr, 1, BYTES(4096), stream);
    OK(cuStreamIsCapturing, stream, &status);
    check("the stream captures", status, 1);
    OK(cuStreamGetCaptureInfo_v2, stream, &status, &id, NOTHING, NOTHING, NOTHING);
    check("the capture has a number", status == 1 && id > 0, 1);
    CHECK(1, cuStreamGetCaptureInfo_v2, stream, NOTHING, &id, NOTHING, NOTHING, NOTHING);
    OK(cuThreadExchangeStreamCaptureMode, &mode);
    check("the mode before", mode, 0);
    OK(cuThreadExchangeStreamCaptureMode, &mode);
    OK(cuStreamEndCapture, stream, &graph);
    handle none = stream;
    CHECK(401, cuStreamEndCapture, stream, &none);
    check("no graph", none == NULL, 1);
    OK(cuGraphGetNodes, graph, NOTHING, &count);
    check("the number of nodes", (int)count, 1);
    count = 4;
    OK(cuGraphGetNodes, graph, nodes, &count);
    check("the number of nodes", (int)count, 1);
    check("no second node", nodes[1] == NULL, 1);
    OK(cuGraphNodeGetType, nodes[0], &kind);
    check("a fill", kind, 2);
    CHECK(1, cuGraphGetNodes, graph, NOTHING, NOTHING);
    OK(cuGraphDestroy, graph);
    OK(cuMemFree_v2, ptr);
    OK(cuStreamBeginCapture_v2, stream, 0);
    CHECK(900, cuStreamSynchronize, stream);
    OK(cuStreamIsCapturing, stream, &status);
    check("the capture is invalid", status, 2);
    CHECK(901, cuStreamEndCapture, stream, &graph);
    CHECK(900, cuStreamBeginCapture_v2, NOTHING, 0);
    OK(cuStreamDestroy_v2, stream);
}

static void pools(void) {
    handle pool = NULL, shared = NULL, stream = NULL, found = NULL;
    int props[24] = {1, 0, 1, 0}, fabric[16];
    int location[2] = {1, 0}, number = 9;
    int access[3] = {1, 0, 3};
    uint64_t value = 1 << 20, ptr = 0;
    OK(cuDeviceGetDefaultMemPool, &pool, 0);
    OK(cuDeviceGetMemPool, &found, 0);
    check("the default pool is current", found == pool, 1);
    CHECK(1, cuDeviceGetDefaultMemPool, NOTHING, 0);
    CHECK(101, cuDeviceGetDefaultMemPool, &pool, 99);
    CHECK(1, cuDeviceGetMemPool, &pool, 99);
    CHECK(1, cuDeviceSetMemPool, 0, NOTHING);
    CHECK(1, cuMemPoolCreate, NOTHING, props);
    CHECK(1, cuMemPoolCreate, &pool, NOTHING);
    OK(cuMemPoolCreate, &pool, props);
    OK(cuMemPoolSetAttribute, pool, 4, &value);
    OK(cuMemPoolGetAttribute, pool, 4, &value);
    check("the threshold", (int)value, 1 << 20);
    CHECK(1, cuMemPoolGetAttribute, pool, 99, &value);
    CHECK(1, cuMemPoolGetAttribute, pool, 4, NOTHING);
    OK(cuMemPoolGetAccess, &number, pool, location);
    check("the access", number, 3);
    OK(cuMemPoolSetAccess, pool, access, BYTES(1));
    CHECK(1, cuMemPoolSetAccess, pool, NOTHING, BYTES(1));
    location[0] = 2;
    OK(cuMemPoolGetAccess, &number, pool, location);
    check("the host's access", number, 0);
    location[0] = 9;
    CHECK(1, cuMemPoolGetAccess, &number, pool, location);
    CHECK(1, cuMemPoolExportToShareableHandle, fabric, pool, 8, BYTES(0));
    props[1] = 8;
    OK(cuMemPoolCreate, &shared, props);
    OK(cuMemPoolExportToShareableHandle, fabric, shared, 8, BYTES(0));
    OK(cuMemPoolImportFromShareableHandle, &found, fabric, 8, BYTES(0));
    check("another pool", found != shared, 1);
    OK(cuMemPoolDestroy, found);
    OK(cuMemPoolDestroy, shared);
    CHECK(1, cuMemPoolImportFromShareableHandle, &found, fabric, 8, BYTES(0));
    CHECK(1, cuMemPoolImportFromShareableHandle, &found, NOTHING, 8, BYTES(0));
    OK(cuStreamCreate, &stream, 1);
    OK(cuMemAllocFromPoolAsync, &ptr, BYTES(1000), pool, stream);
    OK(cuPointerGetAttribute, &found, 17, ptr);
    check("the pool of a block", found == pool, 1);
    OK(cuMemFreeAsync, ptr, stream);
    CHECK(1, cuMemAllocFromPoolAsync, &ptr, BYTES(8), NOTHING, stream);
    OK(cuStreamSynchronize, stream);
    OK(cuMemPoolTrimTo, pool, BYTES(0));
    CHECK(1, cuMemPoolTrimTo, NOTHING, BYTES(0));
    OK(cuMemPoolDestroy, pool);
    CHECK(1, cuMemPoolDestroy, NOTHING);
    OK(cuStreamDestroy_v2, stream);
}

static void mappings(void) {
    int props[12] = {1, 0, 1, 0}, access[3] = {1, 0, 3}, fd = -1;
    size_t bytes = 0;
    uint64_t ptr = 0, memory = 0, other = 0;
    CHECK(1, cuMemGetAllocationGranularity, NOTHING, props, 0);
    CHECK(1, cuMemGetAllocationGranularity, &bytes, NOTHING, 0);
    OK(cuMemGetAllocationGranularity, &bytes, props, 0);
    CHECK(1, cuMemAddressReserve, NOTHING, bytes, BYTES(0), NOTHING, BYTES(0));
    CHECK(1, cuMemAddressReserve, &ptr, BYTES(0), BYTES(0), NOTHING, BYTES(0));
    OK(cuMemAddressReserve, &ptr, bytes, BYTES(0), NOTHING, BYTES(0));
    CHECK(1, cuMemCreate, NOTHING, bytes, props, BYTES(0));
    CHECK(1, cuMemCreate, &memory, bytes, NOTHING, BYTES(0));
    CHECK(1, cuMemCreate, &memory, BYTES(1), props, BYTES(0));
    OK(cuMemCreate, &memory, bytes, props, BYTES(0));
    CHECK(1, cuMemExportToShareableHandle, &fd, memory, 1, BYTES(0));
    OK(cuMemMap, ptr, bytes, BYTES(0), memory, BYTES(0));
    CHECK(1, cuMemSetAccess, ptr, bytes, NOTHING, BYTES(1));
    OK(cuMemSetAccess, ptr, bytes, access, BYTES(1));
    OK(cuMemsetD8_v2, ptr, 3, bytes);
    OK(cuCtxSynchronize, 0);
    OK(cuMemUnmap, ptr, bytes);
    OK(cuMemRelease, memory);
    CHECK(1, cuMemRelease, memory);
    OK(cuMemAddressFree, ptr, bytes);
    props[1] = 1;
    OK(cuMemCreate, &memory, bytes, props, BYTES(0));
    OK(cuMemExportToShareableHandle, &fd, memory, 1, BYTES(0));
    OK(cuMemImportFromShareableHandle, &other, (handle)(size_t)fd, 1);
    OK(cuMemRelease, other);
    OK(cuMemRelease, memory);
}

static void sharing(void) {
    struct { char bytes[64]; } shared;
    uint64_t ptr = 0;
    OK(cuMemAlloc_v2, &ptr, BYTES(1 << 21));
    CHECK(1, cuIpcGetMemHandle, NOTHING, ptr);
    CHECK(1, cuIpcGetMemHandle, &shared, STRAY);
    OK(cuIpcGetMemHandle, &shared, ptr);
    CHECK(1, cuIpcCloseMemHandle, STRAY);
    OK(cuMemFree_v2, ptr);
}

static void reset(void) {
    uint64_t first = 0, second = 0;
    handle again = NULL, stream = NULL;
    unsigned flags;
    int active = 9;
    OK(cuCtxGetId, context, &first);
    CHECK(101, cuDevicePrimaryCtxReset_v2, 99);
    OK(cuDevicePrimaryCtxReset_v2, 0);
    OK(cuDevicePrimaryCtxGetState, 0, &flags, &active);
    check("the context is not active", active, 0);
    CHECK(709, cuStreamCreate, &stream, 0);
    CHECK(709, cuMemAlloc_v2, &second, BYTES(8));
    CHECK(709, cuCtxSynchronize, 0);
    OK(cuDevicePrimaryCtxRetain, &again, 0);
    check("the same handle", again == context, 1);
    OK(cuCtxGetId, context, &second);
    check("another number", first != second, 1);
    OK(cuCtxSynchronize, 0);
    OK(cuDevicePrimaryCtxRelease_v2, 0);
    OK(cuDevicePrimaryCtxRelease_v2, 0);
    OK(cuDevicePrimaryCtxGetState, 0, &flags, &active);
    check("the context is not active", active, 0);
}

/* A GPU's driver crashes here. */
static void crashes(void) {
    void *found;
    int status;
    CHECK(1, cuDeviceGetName, place, 0, 0);
    CHECK(1, cuGetErrorName, 1, NOTHING);
    CHECK(1, cuGetErrorString, 1, NOTHING);
    CHECK(1, cuThreadExchangeStreamCaptureMode, NOTHING);
    CHECK(400, cuMemcpyHtoDAsync_v2, place, place, BYTES(8), STRAY);
    CHECK(400, cuStreamSynchronize, STRAY);
    CHECK(400, cuEventQuery, STRAY);
    check("no name", get_address(NULL, &found, 12000, 0, &status), 1);
    check("no place", get_address("cuInit", NULL, 12000, 0, &status), 1);
}

int main(int count, char **arguments) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        return 1;
    }
    get_address = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    const char *argument = count > 1 ? arguments[1] : "";
    by_address = strcmp(argument, "address") == 0;
    before_init();
    devices();
    names();
    addresses();
    without_a_context();
    contexts();
    threads();
    memory();
    host_memory();
    streams();
    captures();
    pools();
    mappings();
    sharing();
    if (strcmp(argument, "crashes") == 0) crashes();
    reset();
    printf("%d of %d checks failed\n", wrong, calls);
    return wrong > 0;
}
