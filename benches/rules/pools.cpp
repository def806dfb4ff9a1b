// What does the driver answer about pools: fabric handles, the access of host and devices, default pools, and
// the attributes of imported pools? Each line is a question and the driver's code; 0 is success.
#include <signal.h>

#include "probe.h"
static CUdevice dev;
static CUcontext ctx;
static const char *code(CUresult r) {
    static char text[8][80];
    static int at;
    const char *name = nullptr;
    cuGetErrorName(r, &name);
    at = (at + 1) % 8;
    snprintf(text[at], sizeof text[at], "%d %s", (int)r, r ? (name ? name : "?") : "ok");
    return text[at];
}
#define SAY(...) (printf("   " __VA_ARGS__), printf("\n"), fflush(stdout))
static void init() {
    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    OK(cuDevicePrimaryCtxRetain(&ctx, dev));
    OK(cuCtxSetCurrent(ctx));
}

static const CUmemLocationType HOST = (CUmemLocationType)2, NUMA = (CUmemLocationType)3,
                               CURRENT = (CUmemLocationType)4;
struct Place {
    const char *name;
    CUmemLocationType type;
    int id;
};
static const Place PLACES[] = {{"device", CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               {"host", HOST, 0},
                               {"host with id 5", HOST, 5},
                               {"host_numa 0", NUMA, 0},
                               {"host_numa 99", NUMA, 99},
                               {"host_numa_current", CURRENT, 0}};
static const char *TYPES[] = {"none", "fd", "?", "?", "?", "?", "?", "?", "fabric", "fd+fabric"};

static CUresult make(CUmemoryPool *pool, const Place &at, int handles, bool managed = false) {
    CUmemPoolProps props;
    memset(&props, 0, sizeof props);
    props.allocType = managed ? (CUmemAllocationType)2 : CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = (CUmemAllocationHandleType)handles;
    props.location.type = at.type;
    props.location.id = at.id;
    return cuMemPoolCreate(pool, &props);
}

static void attributes(CUmemoryPool pool) {
    for (int number = 1; number <= 14; number++) {
        cuuint64_t value = 0;
        CUresult r = cuMemPoolGetAttribute(pool, (CUmemPool_attribute)number, &value);
        SAY("  get attribute %d: %s, value %llu", number, code(r), (unsigned long long)value);
    }
    for (int number = 1; number <= 8; number++) {
        cuuint64_t value = 0;
        CUresult r = cuMemPoolSetAttribute(pool, (CUmemPool_attribute)number, &value);
        SAY("  set attribute %d to 0: %s", number, code(r));
    }
}

static void access(CUmemoryPool pool) {
    for (const Place &from : PLACES) {
        CUmemLocation location;
        memset(&location, 0, sizeof location);
        location.type = from.type;
        location.id = from.id;
        auto get = [&] {
            CUmemAccess_flags flags = (CUmemAccess_flags)77;
            CUresult r = cuMemPoolGetAccess(&flags, pool, &location);
            SAY("  access of %s: %s, flags %d", from.name, code(r), (int)flags);
        };
        get();
        for (int flags : {1, 3, 0, 3}) {
            CUmemAccessDesc desc;
            memset(&desc, 0, sizeof desc);
            desc.location = location;
            desc.flags = (CUmemAccess_flags)flags;
            CUresult r = cuMemPoolSetAccess(pool, &desc, 1);
            SAY("  set access of %s to %d: %s", from.name, flags, code(r));
            if (r == CUDA_SUCCESS)
                get();
        }
    }
}

// Whether the host can read and write memory of the pool: a child that ends by a signal cannot.
static void touch(CUmemoryPool pool) {
    CUdeviceptr ptr = 0;
    CUresult r = cuMemAllocFromPoolAsync(&ptr, 4096, pool, 0);
    SAY("  allocate: %s", code(r));
    if (r)
        return;
    OK(cuStreamSynchronize(0));
    volatile char *bytes = (volatile char *)ptr;
    bytes[0] = 7;
    SAY("  the host wrote and read %d", bytes[0]);
    SAY("  the device fills: %s, then %s", code(cuMemsetD8Async(ptr, 9, 4096, 0)),
        code(cuStreamSynchronize(0)));
    SAY("  the host reads %d", bytes[0]);
    OK(cuMemFreeAsync(ptr, 0));
}

// What crosses to the importing process; descriptors do not.
struct Share {
    int type;
    int fd;
    char fabric[64];
    CUmemPoolPtrExportData data;
};

static void import(const Share &share, bool elsewhere) {
    CUmemoryPool pool = nullptr;
    void *handle = share.type == 1 ? (void *)(intptr_t)share.fd : (void *)share.fabric;
    CUresult r = cuMemPoolImportFromShareableHandle(&pool, handle, (CUmemAllocationHandleType)share.type, 0);
    SAY("import of %s in %s process: %s", TYPES[share.type], elsewhere ? "another" : "the same", code(r));
    if (r)
        return;
    CUdeviceptr ptr = 0;
    CUmemPoolPtrExportData data = share.data;
    r = cuMemPoolImportPointer(&ptr, pool, &data);
    SAY("  import pointer: %s", code(r));
    if (!r) {
        unsigned char byte = 0;
        CUresult copied = cuMemcpyDtoH(&byte, ptr, 1);
        SAY("  copy of it: %s, byte %d", code(copied), byte);
    }
    attributes(pool);
    access(pool);
    SAY("  trim: %s", code(cuMemPoolTrimTo(pool, 0)));
    CUdeviceptr other = 0;
    SAY("  allocate: %s", code(cuMemAllocFromPoolAsync(&other, 4096, pool, 0)));
    int fd = -1;
    char fabric[64];
    SAY("  export again, fd: %s, fabric: %s",
        code(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)),
        code(cuMemPoolExportToShareableHandle(fabric, pool, (CUmemAllocationHandleType)8, 0)));
    if (ptr)
        SAY("  free: %s, %s", code(cuMemFreeAsync(ptr, 0)), code(cuStreamSynchronize(0)));
    SAY("  destroy: %s", code(cuMemPoolDestroy(pool)));
}

static void shares(const Place &at, int handles) {
    std::string name = std::string("export and import: pool in ") + at.name + ", handles " + TYPES[handles];
    child(name.c_str(), [&] {
        int pipes[2];
        if (pipe(pipes))
            return;
        fflush(stdout);
        pid_t exporter = fork();
        if (exporter == 0) {
            init();
            CUmemoryPool pool = nullptr;
            CUresult r = make(&pool, at, handles);
            SAY("create: %s", code(r));
            Share share;
            memset(&share, 0, sizeof share);
            CUdeviceptr ptr = 0;
            if (!r) {
                OK(cuMemAllocFromPoolAsync(&ptr, 1 << 20, pool, 0));
                OK(cuMemsetD8Async(ptr, 42, 1 << 20, 0));
                OK(cuStreamSynchronize(0));
                SAY("export of a pointer before any export of the pool: %s",
                    code(cuMemPoolExportPointer(&share.data, ptr)));
            }
            for (int type : {1, 8}) {
                if (r)
                    break;
                CUresult x = cuMemPoolExportToShareableHandle(
                    type == 1 ? (void *)&share.fd : (void *)share.fabric, pool,
                    (CUmemAllocationHandleType)type, 0);
                SAY("export as %s: %s", TYPES[type], code(x));
                if (x == CUDA_ERROR_NOT_PERMITTED)
                    break; // the next export of this pool does not return
                if (x)
                    continue;
                if (type == 8)
                    for (int at = 0; at < 64; at += 16) {
                        printf("     ");
                        for (int i = at; i < at + 16; i++)
                            printf("%02x ", (unsigned char)share.fabric[i]);
                        printf("\n");
                    }
                share.type = type;
                SAY("export of a pointer: %s", code(cuMemPoolExportPointer(&share.data, ptr)));
                import(share, false);
            }
            if (write(pipes[1], &share, sizeof share) != (ssize_t)sizeof share)
                printf("!! write\n");
            fflush(stdout);
            sleep(6);
            _exit(0);
        }
        Share share;
        if (read(pipes[0], &share, sizeof share) == (ssize_t)sizeof share && share.type == 8) {
            init();
            import(share, true);
            for (int i = 0; i < 3; i++) {
                Share wrong = share;
                memset(wrong.fabric, i == 0 ? 0 : 0xa5, i == 2 ? 8 : 64);
                CUmemoryPool pool = nullptr;
                CUresult r = cuMemPoolImportFromShareableHandle(&pool, wrong.fabric,
                                                                (CUmemAllocationHandleType)8, 0);
                SAY("import of a wrong fabric handle %d: %s", i, code(r));
            }
        }
        kill(exporter, SIGKILL);
        waitpid(exporter, nullptr, 0);
    });
}

int main() {
    child("attributes of the device", [&] {
        init();
        int version = 0;
        OK(cuDriverGetVersion(&version));
        SAY("version %d", version);
        struct {
            const char *name;
            int number;
        } asked[] = {{"pools' handle types", 119}, {"fabric handles", 128},     {"host's NUMA node", 134},
                     {"VMM on host_numa", 141},    {"pools on host_numa", 142}, {"IPC of host_numa", 143},
                     {"pools on host", 144},       {"VMM on host", 145}};
        for (auto &one : asked) {
            int value = -1;
            CUresult r = cuDeviceGetAttribute(&value, (CUdevice_attribute)one.number, dev);
            SAY("%s (%d): %s, %d", one.name, one.number, code(r), value);
        }
        SAY("file /dev/nvidia-caps-imex-channels/channel0: %s",
            ::access("/dev/nvidia-caps-imex-channels/channel0", R_OK | W_OK) ? "no" : "yes");
    });
    child("making pools", [&] {
        init();
        for (const Place &at : PLACES)
            for (int managed = 0; managed < 2; managed++)
                for (int handles : {0, 1, 8, 9}) {
                    CUmemoryPool pool = nullptr;
                    CUresult r = make(&pool, at, handles, managed);
                    SAY("%s, %s, handles %s: %s", at.name, managed ? "managed" : "pinned", TYPES[handles],
                        code(r));
                    if (!r)
                        OK(cuMemPoolDestroy(pool));
                }
    });
    child("default and current pools", [&] {
        init();
        CUmemoryPool device = nullptr;
        OK(cuDeviceGetDefaultMemPool(&device, dev));
        void *entry[2] = {};
        CUdriverProcAddressQueryResult found;
        cuGetProcAddress("cuMemGetDefaultMemPool", &entry[0], 13000, 0, &found);
        cuGetProcAddress("cuMemGetMemPool", &entry[1], 13000, 0, &found);
        typedef CUresult (*Get)(CUmemoryPool *, CUmemLocation *, int);
        for (const Place &at : PLACES)
            for (int kind = 1; kind <= 2; kind++)
                for (int which = 0; which < 2; which++) {
                    CUmemLocation location;
                    memset(&location, 0, sizeof location);
                    location.type = at.type;
                    location.id = at.id;
                    CUmemoryPool pool = nullptr;
                    CUresult r = entry[which] ? ((Get)entry[which])(&pool, &location, kind)
                                              : CUDA_ERROR_NOT_FOUND;
                    SAY("%s pool of %s, %s: %s%s", which ? "current" : "default", at.name,
                        kind == 1 ? "pinned" : "managed", code(r),
                        pool && pool == device ? ", the device's default pool" : "");
                }
    });
    for (int managed = 0; managed < 2; managed++)
        for (const Place &at : {PLACES[0], PLACES[1], PLACES[3]}) {
            std::string name = std::string("access: pool of ") + (managed ? "managed" : "pinned") +
                               " memory in " + at.name;
            child(name.c_str(), [&] {
                init();
                CUmemoryPool pool = nullptr;
                CUresult r = make(&pool, at, 0, managed);
                SAY("create: %s", code(r));
                if (r)
                    return;
                access(pool);
                touch(pool);
            });
        }
    child("access: the device's default pool", [&] {
        init();
        CUmemoryPool pool = nullptr;
        OK(cuDeviceGetDefaultMemPool(&pool, dev));
        access(pool);
    });
    for (const Place &at : {PLACES[0], PLACES[1], PLACES[3]})
        for (int handles : {1, 8, 9})
            shares(at, handles);
    return 0;
}
