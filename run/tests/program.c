// Uses the driver in one of several ways, and prints its answers.
//
//     program WAY WHAT
//
// WAY is `dlsym`, `proc` (cuGetProcAddress) or `linked`. WHAT names a function below.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long Ptr;

#ifdef LINKED
#define DECLARE(name, arguments) extern int name arguments;
#else
#define DECLARE(name, arguments) static int(*name) arguments;
#endif
#define FUNCTIONS(use)                                                                                       \
    use(cuInit, "cuInit", (unsigned)) use(cuDeviceGet, "cuDeviceGet", (int*, int))                           \
    use(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void**, int))                                 \
    use(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", (int))                                        \
    use(cuDeviceTotalMem_v2, "cuDeviceTotalMem", (size_t*, int))                                             \
    use(cuCtxSetCurrent, "cuCtxSetCurrent", (void*)) use(cuMemAlloc_v2, "cuMemAlloc", (Ptr*, size_t))        \
    use(cuMemFree_v2, "cuMemFree", (Ptr)) use(cuMemGetInfo_v2, "cuMemGetInfo", (size_t*, size_t*))           \
    use(cuIpcGetMemHandle, "cuIpcGetMemHandle", (void*, Ptr))                                                \
    use(cuMemAllocAsync, "cuMemAllocAsync", (Ptr*, size_t, void*))                                           \
    use(cuMemFreeAsync, "cuMemFreeAsync", (Ptr, void*))                                                      \
    use(cuMemCreate, "cuMemCreate", (Ptr*, size_t, void const*, Ptr))                                        \
    use(cuMemRelease, "cuMemRelease", (Ptr))                                                                 \
    use(cuMemAddressReserve, "cuMemAddressReserve", (Ptr*, size_t, size_t, Ptr, Ptr))                        \
    use(cuMemMap, "cuMemMap", (Ptr, size_t, size_t, Ptr, Ptr)) use(cuMemUnmap, "cuMemUnmap", (Ptr, size_t))
#define DECLARATION(symbol, base, arguments) DECLARE(symbol, arguments)
FUNCTIONS(DECLARATION)

static size_t const MIB = 1 << 20;

static void must(int code, char const* what)
{
    if (code != 0) {
        printf("%s: %d\n", what, code);
        exit(3);
    }
}

static void find(char const* way)
{
#ifndef LINKED
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (strcmp(way, "dlsym") == 0) {
#define BY_DLSYM(symbol, base, arguments) *(void**)&symbol = dlsym(driver, #symbol);
        FUNCTIONS(BY_DLSYM)
        return;
    }
    int (*get)(char const*, void**, int, Ptr, int*);
    *(void**)&get = dlsym(driver, "cuGetProcAddress_v2");
    void* own = NULL;
    int status;
    must(get("cuGetProcAddress", &own, 12000, 0, &status), "cuGetProcAddress");
    *(void**)&get = own;
#define BY_NAME(symbol, base, arguments) must(get(base, (void**)&symbol, 12000, 0, &status), base);
    FUNCTIONS(BY_NAME)
#endif
}

static Ptr allocate(size_t bytes)
{
    Ptr ptr = 0;
    must(cuMemAlloc_v2(&ptr, bytes), "cuMemAlloc");
    return ptr;
}

/// Allocates and frees by all calls.
static void blocks(void)
{
    Ptr kept = allocate(10 * MIB), handle, range, ordered;
    for (int i = 0; i < 3; i++) must(cuMemFree_v2(allocate(MIB)), "cuMemFree");
    must(cuMemAllocAsync(&ordered, 3 * MIB, NULL), "cuMemAllocAsync");
    must(cuMemFreeAsync(ordered, NULL), "cuMemFreeAsync");
    int const props[16] = {1, 0, 1, 0};
    must(cuMemCreate(&handle, 4 * MIB, props, 0), "cuMemCreate");
    must(cuMemAddressReserve(&range, 4 * MIB, 0, 0, 0), "cuMemAddressReserve");
    must(cuMemMap(range, 4 * MIB, 0, handle, 0), "cuMemMap");
    must(cuMemRelease(handle), "cuMemRelease");
    must(cuMemUnmap(range, 4 * MIB), "cuMemUnmap");
    must(cuMemFree_v2(kept), "cuMemFree");
}

/// Passes arguments that the driver refuses, and ends without exit handlers.
static void wrong(void)
{
    Ptr ptr;
    size_t bytes;
    printf("%d %d\n", cuMemAlloc_v2(NULL, 8), cuMemAlloc_v2(&ptr, 0));
    printf("%d %d\n", cuMemFree_v2(0x1230), cuMemFree_v2(0));
    printf("%d %d\n", cuMemGetInfo_v2(NULL, NULL), cuMemGetInfo_v2(NULL, &bytes));
    printf("%d %d\n", cuMemCreate(NULL, MIB, NULL, 0), cuMemRelease(99));
    printf("%d %d\n", cuMemAllocAsync(NULL, 8, NULL), cuMemFreeAsync(0x1230, NULL));
    printf("%d %d\n", cuMemMap(0, 0, 0, 0, 0), cuMemUnmap(0x1000, 0));
    printf("%d %d\n", cuMemAlloc_v2(&ptr, (size_t)-1), cuDeviceTotalMem_v2(NULL, 0));
    fflush(stdout);
    _exit(5);
}

/// Allocates until the device is full, frees, and allocates again.
static void fill(void)
{
    Ptr ptrs[1000], ordered, handle;
    int count = 0;
    int const props[16] = {1, 0, 1, 0};
    while (cuMemAlloc_v2(&ptrs[count], 100 * MIB) == 0) count++;
    printf("%d blocks\n", count);
    printf("%d %d\n", cuMemAllocAsync(&ordered, 100 * MIB, NULL), cuMemCreate(&handle, 100 * MIB, props, 0));
    size_t free = 0, total = 0, device = 0;
    must(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    must(cuDeviceTotalMem_v2(&device, 0), "cuDeviceTotalMem");
    printf("%zu of %zu MiB free, the device has %zu MiB\n", free / MIB, total / MIB, device / MIB);
    must(cuMemFree_v2(ptrs[--count]), "cuMemFree");
    ptrs[count++] = allocate(100 * MIB);
    while (count > 0) must(cuMemFree_v2(ptrs[--count]), "cuMemFree");
}

static void* churn(void* context)
{
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (int i = 0; i < 500; i++) must(cuMemFree_v2(allocate(64 << 10)), "cuMemFree");
    return NULL;
}

static void* current;

static void threads(void)
{
    pthread_t workers[8];
    for (int i = 0; i < 8; i++) pthread_create(&workers[i], NULL, churn, current);
    for (int i = 0; i < 8; i++) pthread_join(workers[i], NULL);
}

/// Allocates in a child of fork, where CUDA does not work.
static void forked(void)
{
    allocate(MIB);
    fflush(stdout);
    if (fork() == 0) {
        Ptr ptr;
        cuMemAlloc_v2(&ptr, MIB);
        _exit(7);
    }
    int status;
    wait(&status);
    printf("the child ends with %d\n", WEXITSTATUS(status));
}

static void reset(void)
{
    allocate(7 * MIB);
    must(cuDevicePrimaryCtxReset_v2(0), "cuDevicePrimaryCtxReset");
}

static void killed(void)
{
    for (int i = 0; i < 100; i++) allocate(MIB);
    raise(SIGKILL);
}

/// Closes all descriptors, as daemons do, and opens a file of its own under their numbers.
static void closes(void)
{
    allocate(MIB);
    for (int fd = 3; fd < 64; fd++) close(fd);
    int own = open("own.dat", O_CREAT | O_TRUNC | O_RDWR, 0600);
    for (int fd = own + 1; fd < 64; fd++) dup2(own, fd);
    allocate(MIB);
    printf("%ld bytes\n", (long)lseek(own, 0, SEEK_END));
}

/// Allocates and frees more than the device has, one block at a time, in two ways.
static void loops(void)
{
    for (int i = 0; i < 30; i++) must(cuMemFree_v2(allocate(100 * MIB)), "cuMemFree");
    for (int i = 0; i < 30; i++) {
        Ptr ordered;
        must(cuMemAllocAsync(&ordered, 100 * MIB, NULL), "cuMemAllocAsync");
        must(cuMemFreeAsync(ordered, NULL), "cuMemFreeAsync");
    }
}

/// Prints the time of an allocation and a free (docs/lab/run.md).
static void pairs(void)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < 20000; i++) {
        Ptr ordered;
        must(cuMemAllocAsync(&ordered, MIB, NULL), "cuMemAllocAsync");
        must(cuMemFreeAsync(ordered, NULL), "cuMemFreeAsync");
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
    fprintf(stderr, "%.2f us a pair\n", seconds / 20000 * 1e6);
}

/// Replaces its program twice.
static void again(char* program, char* way, char const* next)
{
    allocate(MIB);
    fflush(stdout);
    execl("/proc/self/exe", program, way, next, NULL);
}

/// Waits for a signal that ends it.
static void waits(void)
{
    allocate(MIB);
    puts("waits");
    fflush(stdout);
    for (;;) pause();
}

/// Shares a block with other processes.
static void shares(void)
{
    char handle[64];
    allocate(MIB);
    printf("%d\n", cuIpcGetMemHandle(handle, allocate(MIB)));
}

/// Holds seven blocks, tells its number, and waits.
static void holds(void)
{
    for (int i = 0; i < 8; i++) {
        Ptr block = allocate(MIB);
        if (i == 0) must(cuMemFree_v2(block), "free");
    }
    printf("holds %d\n", (int)getpid());
    fflush(stdout);
    for (;;) pause();
}

/// Runs itself in a child process that uses CUDA, too.
static void child(char* program, char* way)
{
    allocate(2 * MIB);
    fflush(stdout);
    if (fork() == 0) execl("/proc/self/exe", program, way, "blocks", NULL);
    int status;
    wait(&status);
    printf("the child ends with %d\n", WEXITSTATUS(status));
}

int main(int count, char** arguments)
{
    if (count != 3) return 2;
    char const* what = arguments[2];
    if (strcmp(what, "nothing") == 0) return 9;
    find(arguments[1]);
    must(cuInit(0), "cuInit");
    int device;
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&current, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(current), "cuCtxSetCurrent");
    if (strcmp(what, "blocks") == 0) blocks();
    if (strcmp(what, "wrong") == 0) wrong();
    if (strcmp(what, "fill") == 0) fill();
    if (strcmp(what, "threads") == 0) threads();
    if (strcmp(what, "forked") == 0) forked();
    if (strcmp(what, "reset") == 0) reset();
    if (strcmp(what, "killed") == 0) killed();
    if (strcmp(what, "waits") == 0) waits();
    if (strcmp(what, "holds") == 0) holds();
    if (strcmp(what, "shares") == 0) shares();
    if (strcmp(what, "closes") == 0) closes();
    if (strcmp(what, "loops") == 0) loops();
    if (strcmp(what, "pairs") == 0) pairs();
    if (strcmp(what, "first") == 0) again(arguments[0], arguments[1], "second");
    if (strcmp(what, "second") == 0) again(arguments[0], arguments[1], "blocks");
    if (strcmp(what, "child") == 0) child(arguments[0], arguments[1]);
    printf("%s is over\n", what);
}
