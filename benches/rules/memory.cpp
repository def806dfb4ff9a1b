// Does the driver reclaim the cached memory of a CUDA pool when others run short? How much memory do plain
// allocations take?
#include <signal.h>

#include <algorithm>

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
int main() {
    const size_t G = 1ull << 30;
    for (int own = 0; own < 2; own++)
        for (int how = 0; how < 4; how++) {
            const char *hn[] = {"mem_create 10 GiB", "mem_alloc 10 GiB",
                                "alloc_async 10 GiB from another pool", "mem_create 10 x 1 GiB"};
            std::string name =
                std::string(own ? "own pool" : "default pool") + " caches all but 3 GiB; then " + hn[how];
            child(name.c_str(), [&] {
                init();
                CUmemoryPool mp;
                CUmemPoolProps pp;
                memset(&pp, 0, sizeof pp);
                pp.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
                pp.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
                if (own)
                    OK(cuMemPoolCreate(&mp, &pp));
                else
                    OK(cuDeviceGetDefaultMemPool(&mp, dev));
                cuuint64_t th = ~0ull;
                OK(cuMemPoolSetAttribute(mp, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &th));
                size_t take = (free_bytes() - 3 * G) / G;
                std::vector<CUdeviceptr> v(take);
                for (auto &p : v)
                    OK(cuMemAllocFromPoolAsync(&p, G, mp, 0));
                for (auto &p : v)
                    OK(cuMemFreeAsync(p, 0));
                OK(cuCtxSynchronize());
                cuuint64_t r = 0, u = 0;
                cuMemPoolGetAttribute(mp, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &r);
                cuMemPoolGetAttribute(mp, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &u);
                printf("   cached: reserved %.2f used %.2f free %.2f\n", gib(r), gib(u), gib(free_bytes()));
                double t = now_us();
                CUresult e = CUDA_SUCCESS;
                int n = 0;
                CUmemAllocationProp p = vmm_prop(0);
                CUmemGenericAllocationHandle h;
                CUdeviceptr q;
                if (how == 0)
                    e = cuMemCreate(&h, 10 * G, &p, 0);
                if (how == 1)
                    e = cuMemAlloc(&q, 10 * G);
                if (how == 2) {
                    CUmemoryPool m2;
                    OK(cuMemPoolCreate(&m2, &pp));
                    e = cuMemAllocFromPoolAsync(&q, 10 * G, m2, 0);
                }
                if (how == 3)
                    for (n = 0; n < 10 && !e; n++)
                        e = cuMemCreate(&h, G, &p, 0);
                t = now_us() - t;
                cuMemPoolGetAttribute(mp, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &r);
                printf("   result %d after %d, %.0f us; now reserved %.2f free %.2f\n", e, n, t, gib(r),
                       gib(free_bytes()));
            });
        }
    child("plain: device bytes for each size", [&] {
        init();
        CUdeviceptr warm;
        OK(cuMemAlloc(&warm, 1));  // opens one page
        for (size_t sz :
             {1ul,       256ul,      257ul,      512ul,      513ul,     1024ul,    3000ul,    4096ul,
              4097ul,    20000ul,    33000ul,    65536ul,    65537ul,   102400ul,  131072ul,  131073ul,
              200000ul,  262144ul,   300000ul,   350000ul,   420000ul,  524288ul,  524289ul,  700000ul,
              1048575ul, 1048576ul,  1048577ul,  1048832ul,  1572864ul, 2097152ul, 2097153ul, 3145728ul,
              5242880ul, 33554432ul, 33554433ul, 100000001ul}) {
            int n = sz <= 4096 ? 4096 : sz <= (1 << 20) + 1 ? 256 : 16;
            size_t f0 = free_bytes();
            std::vector<CUdeviceptr> v(n);
            for (auto &p : v)
                OK(cuMemAlloc(&p, sz));
            size_t f1 = free_bytes();
            unsigned long long al = 0;
            for (auto p : v)
                al |= p;
            size_t base = 0, asz = 0;
            CUdeviceptr bb;
            cuMemGetAddressRange(&bb, &asz, v[1]);
            printf(
                "   %4d x %9zu took %8.2f MiB = %.4f of the request, per block %.0f, alignment %llu, "
                "range %zu, distance of two %lld\n",
                n, sz, (f0 - f1) / 1048576.0, (double)(f0 - f1) / n / sz, (double)(f0 - f1) / n, al & -al,
                asz, (long long)(v[2] - v[1]));
            for (auto p : v)
                OK(cuMemFree(p));
            if (free_bytes() != f0)
                printf("      after freeing: %lld bytes missing\n", (long long)(f0 - free_bytes()));
        }
    });
    child("plain: mixture and holes", [&] {
        init();
        std::vector<CUdeviceptr> v;
        size_t f0 = free_bytes();
        for (int i = 0; i < 400; i++) {
            CUdeviceptr p;
            OK(cuMemAlloc(&p, i % 2 ? 100 << 10 : 700 << 10));
            v.push_back(p);
        }
        size_t f1 = free_bytes();
        printf("   200 x 700 KiB and 200 x 100 KiB in turn: %.1f MiB for %.1f MiB\n", (f0 - f1) / 1048576.0,
               200 * 800 / 1024.0);
        for (int i = 0; i < 400; i += 2)
            OK(cuMemFree(v[i]));
        size_t f2 = free_bytes();
        printf("   the 700 KiB blocks freed: %.1f MiB still taken\n", (f0 - f2) / 1048576.0);
        std::vector<CUdeviceptr> w;
        for (int i = 0; i < 200; i++) {
            CUdeviceptr p;
            OK(cuMemAlloc(&p, 300 << 10));
            w.push_back(p);
        }
        size_t f3 = free_bytes();
        printf("   200 x 300 KiB more: %.1f MiB taken in total\n", (f0 - f3) / 1048576.0);
        int lower = 0;
        for (auto p : w)
            if (p < v[399])
                lower++;
        printf("   %d of these lie below the last old block\n", lower);
    });
    child("managed, pinned: device bytes", [&] {
        init();
        size_t f0 = free_bytes();
        CUdeviceptr p;
        OK(cuMemAllocManaged(&p, 100 << 20, CU_MEM_ATTACH_GLOBAL));
        printf("   managed 100 MiB untouched %.1f MiB", (f0 - free_bytes()) / 1048576.0);
        OK(cuMemsetD8(p, 1, 100 << 20));
        OK(cuCtxSynchronize());
        printf(", touched on the device %.1f MiB", (f0 - free_bytes()) / 1048576.0);
        std::vector<CUdeviceptr> v(1000);
        size_t f1 = free_bytes();
        for (auto &q : v)
            OK(cuMemAllocManaged(&q, 1000, CU_MEM_ATTACH_GLOBAL));
        for (auto &q : v)
            OK(cuMemsetD8(q, 1, 1000));
        OK(cuCtxSynchronize());
        printf("; 1000 x 1000 B touched %.1f MiB\n", (f1 - free_bytes()) / 1048576.0);
        size_t f2 = free_bytes();
        void *h;
        OK(cuMemHostAlloc(&h, 100 << 20, 0));
        printf("   pinned 100 MiB: %.1f MiB of device memory\n",
               (double)((long long)(f2 - free_bytes())) / 1048576.0);
    });
    child("memory of a context, streams and events", [&] {
        init();
        size_t f0 = free_bytes();
        std::vector<CUstream> s(64);
        for (auto &x : s)
            OK(cuStreamCreate(&x, 1));
        printf("   64 streams %.1f MiB\n", (f0 - free_bytes()) / 1048576.0);
        f0 = free_bytes();
        std::vector<CUevent> e(10000);
        for (auto &x : e)
            OK(cuEventCreate(&x, 2));
        printf("   10000 events %.1f MiB\n", (f0 - free_bytes()) / 1048576.0);
        f0 = free_bytes();
        CUmemAllocationProp p = vmm_prop(0);
        size_t g1, g2;
        cuMemGetAllocationGranularity(&g1, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        cuMemGetAllocationGranularity(&g2, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        printf("   granularity: minimum %zu, recommended %zu\n", g1, g2);
        int rdma = -1, fd = -1, fab = -1, hd = -1, pg = -1, integ = -1;
        cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, dev);
        cuDeviceGetAttribute(&fd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, dev);
        cuDeviceGetAttribute(&fab, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, dev);
        cuDeviceGetAttribute(&pg, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, dev);
        cuDeviceGetAttribute(&integ, CU_DEVICE_ATTRIBUTE_INTEGRATED, dev);
        printf("   vmm rdma %d, fd %d, fabric %d, pageable %d, integrated %d\n", rdma, fd, fab, pg, integ);
        for (int flags = 0; flags < 4; flags++) {
            CUmemAllocationProp q = vmm_prop(0);
            if (flags & 1)
                q.allocFlags.gpuDirectRDMACapable = 1;
            if (flags & 2)
                q.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            CUmemGenericAllocationHandle h;
            std::vector<double> t;
            CUresult r = CUDA_SUCCESS;
            for (int i = 0; i < 51; i++) {
                double a = now_us();
                r = cuMemCreate(&h, 32 << 20, &q, 0);
                t.push_back(now_us() - a);
                if (!r) {
                    int f = -1;
                    if (i == 0 && flags & 2) {
                        CUresult x = cuMemExportToShareableHandle(
                            &f, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
                        printf("   export %d fd %d\n", x, f);
                        close(f);
                    }
                    cuMemRelease(h);
                }
            }
            std::sort(t.begin(), t.end());
            printf("   create 32 MiB rdma %d fd %d: result %d, %.1f us\n", flags & 1, flags >> 1, r, t[25]);
        }
    });
    child("mem_get_info, and create and release by size", [&] {
        init();
        double t = now_us();
        size_t f = 0;
        for (int i = 0; i < 1000; i++)
            f += free_bytes();
        printf("   mem_get_info %.2f us\n", (now_us() - t) / 1000);
        CUmemAllocationProp p = vmm_prop(0);
        for (size_t b : {2ul << 20, 64ul << 20, 1ul << 30, 60ul << 30, 200ul << 30}) {
            CUmemGenericAllocationHandle h;
            double a = now_us();
            CUresult r = cuMemCreate(&h, b, &p, 0);
            double c = now_us();
            if (!r) {
                cuMemRelease(h);
            }
            printf("   create %zu MiB -> %d, %.0f us, release %.0f us\n", b >> 20, r, c - a, now_us() - c);
        }
    });
}
