// Tests which handles, address ranges and pools survive cuDevicePrimaryCtxReset. Each case runs in its own
// process.
#include <signal.h>

#include "probe.h"
static CUdevice dev;
static CUcontext ctx;
static void init() {
    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    OK(cuDevicePrimaryCtxRetain(&ctx, dev));
    OK(cuCtxSetCurrent(ctx));
}
static double gib(size_t b) {
    return b / 1073741824.0;
}
static void reinit() {
    CUcontext c2 = 0;
    CUcontext cur = 0;
    CUresult r0 = cuCtxGetCurrent(&cur);
    CUresult r = cuDevicePrimaryCtxRetain(&c2, dev);
    unsigned long long i = 0;
    printf("   current after reset %d %p; retain -> %d, same pointer %d", r0, (void *)cur, r, c2 == ctx);
    CUresult ri = cuCtxGetId(c2, &i);
    printf("; set current %d", cuCtxSetCurrent(c2));
    printf("; id %d %llu\n", ri, i);
    ctx = c2;
}
struct V {
    CUdeviceptr va;
    CUmemGenericAllocationHandle h;
};
static std::vector<V> vmm(int n, size_t b) {
    std::vector<V> v;
    CUmemAllocationProp p = vmm_prop(0);
    CUmemAccessDesc a = vmm_access(0);
    for (int i = 0; i < n; i++) {
        V x;
        OK(cuMemAddressReserve(&x.va, b, 0, 0, 0));
        OK(cuMemCreate(&x.h, b, &p, 0));
        OK(cuMemMap(x.va, b, 0, x.h, 0));
        OK(cuMemSetAccess(x.va, b, &a, 1));
        v.push_back(x);
    }
    return v;
}
static void state(const char *w) {
    unsigned f;
    int a = -1;
    cuDevicePrimaryCtxGetState(dev, &f, &a);
    CUcontext c = 0;
    cuCtxGetCurrent(&c);
    printf("   %-34s active %d current %p free %.3f GiB\n", w, a, (void *)c, gib(free_bytes()));
}
int main(int argc, char **argv) {
    const size_t G = 1ull << 30;
    child("vmm 10 x 1 GiB mapped, reset, then unmap, release, free addresses", [&] {
        init();
        unsigned long long i0 = 0;
        cuCtxGetId(ctx, &i0);
        printf("   id before %llu\n", i0);
        state("start");
        auto v = vmm(10, G);
        OK(cuMemsetD8(v[0].va, 1, G));
        state("mapped");
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        state("after reset");
        printf("   old handles with the old context current: unmap %d\n", cuMemUnmap(v[0].va, G));
        reinit();
        state("after retain");
        CUmemAccessDesc a = vmm_access(0);
        printf("   memset on old mapping in new context %d; ", cuMemsetD8(v[1].va, 1, 4096));
        printf("sync %d; set_access again %d; ", cuCtxSynchronize(), cuMemSetAccess(v[1].va, G, &a, 1));
        printf("memset again %d sync %d\n", cuMemsetD8(v[1].va, 1, 4096), cuCtxSynchronize());
        for (size_t k = 0; k < v.size(); k++) {
            int u = cuMemUnmap(v[k].va, G), r = cuMemRelease(v[k].h), f = cuMemAddressFree(v[k].va, G);
            if (k < 3)
                printf("   unmap %d release %d address_free %d free %.3f\n", u, r, f, gib(free_bytes()));
        }
        state("end");
    });
    child("vmm: reset, new context, new vmm while old is kept", [&] {
        init();
        auto v = vmm(4, G);
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        reinit();
        state("after retain");
        auto w = vmm(4, G);
        printf("   overlap of addresses %d\n", w[0].va == v[0].va);
        printf("   memset new %d sync %d\n", cuMemsetD8(w[0].va, 1, G), cuCtxSynchronize());
        for (auto &x : v) {
            int u = cuMemUnmap(x.va, G), r = cuMemRelease(x.h), f = cuMemAddressFree(x.va, G);
            printf("   old: unmap %d release %d address_free %d\n", u, r, f);
        }
        state("old released");
        printf("   new still works %d sync %d\n", cuMemsetD8(w[0].va, 2, G), cuCtxSynchronize());
    });
    child("plain memory 4 GiB: reset", [&] {
        init();
        state("start");
        CUdeviceptr p;
        OK(cuMemAlloc(&p, 4 * G));
        state("allocated");
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        reinit();
        state("after retain");
        CUdeviceptr q;
        OK(cuMemAlloc(&q, 4 * G));
        printf("   new address is the old one: %d; free of the old pointer %d\n", q == p,
               q == p ? -1 : (int)cuMemFree(p));
        state("end");
    });
    child("managed and pinned: reset", [&] {
        init();
        state("start");
        CUdeviceptr p;
        OK(cuMemAllocManaged(&p, G, CU_MEM_ATTACH_GLOBAL));
        OK(cuMemsetD8(p, 1, G));
        void *h;
        OK(cuMemHostAlloc(&h, 64 << 20, 0));
        OK(cuCtxSynchronize());
        state("touched");
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        reinit();
        state("after retain");
        printf("   free managed %d, free host %d\n", cuMemFree(p), cuMemFreeHost(h));
    });
    child("default pool: cached 3 GiB, live 1 GiB, reset", [&] {
        init();
        state("start");
        CUmemoryPool mp;
        OK(cuDeviceGetDefaultMemPool(&mp, dev));
        cuuint64_t th = ~0ull;
        OK(cuMemPoolSetAttribute(mp, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &th));
        CUdeviceptr a, b;
        OK(cuMemAllocAsync(&a, 3 * G, 0));
        OK(cuMemAllocAsync(&b, G, 0));
        OK(cuMemFreeAsync(a, 0));
        OK(cuCtxSynchronize());
        state("cached");
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        reinit();
        state("after retain");
        CUmemoryPool mp2;
        OK(cuDeviceGetDefaultMemPool(&mp2, dev));
        cuuint64_t r = 0, t = 0;
        CUresult e1 = cuMemPoolGetAttribute(mp2, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &r),
                 e2 = cuMemPoolGetAttribute(mp2, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &t);
        printf("   same default pool handle %d; reserved %d %.3f; threshold %d %llu\n", mp == mp2, e1,
               gib(r), e2, (unsigned long long)t);
        CUdeviceptr c = 0;
        printf("   alloc_async %d sync %d; ", cuMemAllocAsync(&c, G, 0), cuCtxSynchronize());
        printf("free_async of the old block %d\n", cuMemFreeAsync(b, 0));
        printf("   trim %d\n", cuMemPoolTrimTo(mp2, 0));
        state("end");
    });
    child("own pool: cached 3 GiB, live 1 GiB, reset, destroy", [&] {
        init();
        state("start");
        CUmemoryPool mp;
        CUmemPoolProps pp;
        memset(&pp, 0, sizeof pp);
        pp.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        pp.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        OK(cuMemPoolCreate(&mp, &pp));
        cuuint64_t th = ~0ull;
        OK(cuMemPoolSetAttribute(mp, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &th));
        CUdeviceptr a, b;
        OK(cuMemAllocFromPoolAsync(&a, 3 * G, mp, 0));
        OK(cuMemAllocFromPoolAsync(&b, G, mp, 0));
        OK(cuMemFreeAsync(a, 0));
        OK(cuCtxSynchronize());
        state("cached");
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        reinit();
        state("after retain");
        cuuint64_t r = 0;
        CUresult e1 = cuMemPoolGetAttribute(mp, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &r);
        printf("   old pool reserved %d %.3f; ", e1, gib(r));
        CUdeviceptr c = 0;
        printf("alloc from it %d; trim %d; destroy %d\n", cuMemAllocFromPoolAsync(&c, G, mp, 0),
               cuMemPoolTrimTo(mp, 0), cuMemPoolDestroy(mp));
        state("end");
    });
    child("old stream and event after reset: query", [&] {
        init();
        CUstream s;
        CUevent e;
        OK(cuStreamCreate(&s, 1));
        OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
        OK(cuEventRecord(e, s));
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        reinit();
        printf("   stream_query %d\n", cuStreamQuery(s));
        fflush(stdout);
        printf("   event_query %d\n", cuEventQuery(e));
        fflush(stdout);
        printf("   event_destroy %d\n", cuEventDestroy(e));
        fflush(stdout);
        printf("   stream_destroy %d\n", cuStreamDestroy(s));
        fflush(stdout);
    });
    child("release of the primary context after reset, without retain", [&] {
        init();
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        printf("   release %d\n", cuDevicePrimaryCtxRelease(dev));
        reinit();
        state("after retain");
        printf("   release %d\n", cuDevicePrimaryCtxRelease(dev));
        state("after release");
    });
    child("old context pushed after reset; runtime-like retain by another library", [&] {
        init();
        CUcontext old = ctx;
        printf("   reset %d\n", cuDevicePrimaryCtxReset(dev));
        printf("   push old %d; mem_get_info %zu\n", cuCtxPushCurrent(old), free_bytes());
        CUdeviceptr p = 0;
        printf("   mem_alloc with the old context current %d\n", cuMemAlloc(&p, 4096));
        CUcontext c2 = 0;
        printf("   retain %d same %d\n", cuDevicePrimaryCtxRetain(&c2, dev), c2 == old);
        printf("   push same value again %d mem_alloc %d\n", cuCtxPushCurrent(old), cuMemAlloc(&p, 4096));
        unsigned long long i;
        printf("   ctx_get_id(old) %d", cuCtxGetId(old, &i));
        printf(" %llu\n", i);
    });
    child("ten resets with 10 GiB of vmm, released before each", [&] {
        init();
        state("start");
        for (int k = 0; k < 10; k++) {
            auto v = vmm(10, G);
            OK(cuMemsetD8(v[0].va, 1, G));
            cuDevicePrimaryCtxReset(dev);
            CUcontext c2;
            OK(cuDevicePrimaryCtxRetain(&c2, dev));
            OK(cuCtxSetCurrent(c2));
            int bad = 0;
            for (auto &x : v) {
                bad |= cuMemUnmap(x.va, G);
                bad |= cuMemRelease(x.h);
                bad |= cuMemAddressFree(x.va, G);
            }
            printf("   %d: free %.3f bad %d\n", k, gib(free_bytes()), bad);
        }
    });
    child("ten resets with 10 GiB of vmm, never released", [&] {
        init();
        state("start");
        for (int k = 0; k < 10; k++) {
            auto v = vmm(10, G);
            cuDevicePrimaryCtxReset(dev);
            CUcontext c2;
            OK(cuDevicePrimaryCtxRetain(&c2, dev));
            OK(cuCtxSetCurrent(c2));
            printf("   %d: free %.3f\n", k, gib(free_bytes()));
        }
    });
}
