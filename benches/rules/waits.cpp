// Which calls wait for all work of the context, even for work of destroyed streams, and even while a stream
// captures? In each cell, W means that the kernel had finished when the call returned, and - that it had not.
// Then follow the results of the call / of ending the capture. The kernel spins for 40 ms on another stream.
// The caller has exchanged its capture mode to relaxed.
#include "probe.h"
static CUcontext ctx;
static CUdevice dev;
static CUfunction spin_fn;
static const char *PTX = R"(
.version 6.4
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns, .param .u64 flag)
{
    .reg .pred %p; .reg .b32 %r<2>; .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [ns];
    ld.param.u64 %rd2, [flag];
    cvta.to.global.u64 %rd2, %rd2;
    mov.u64 %rd3, %globaltimer;
again:
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p, %rd5, %rd1;
    @%p bra again;
    mov.u32 %r1, 1;
    st.volatile.global.u32 [%rd2], %r1;
    ret;
}
)";
struct T {
    const char *name;
    std::function<CUresult()> prepare, call;
};
int main() {
    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    OK(cuDevicePrimaryCtxRetain(&ctx, dev));
    OK(cuCtxSetCurrent(ctx));
    CUmodule mod;
    OK(cuModuleLoadData(&mod, PTX));
    OK(cuModuleGetFunction(&spin_fn, mod, "spin"));
    volatile unsigned *flag;
    OK(cuMemHostAlloc((void **)&flag, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CUdeviceptr dflag;
    OK(cuMemHostGetDevicePointer(&dflag, (void *)flag, 0));
    static CUdeviceptr p = 0, big = 0;
    static void *h = 0;
    static CUstream idle;
    OK(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
    static CUevent ev;
    OK(cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING));
    CUmemAllocationProp prop = vmm_prop(0);
    CUmemAccessDesc acc = vmm_access(0);
    static CUdeviceptr va;
    static CUmemGenericAllocationHandle hd;
    OK(cuMemAddressReserve(&va, 2 << 20, 0, 0, 0));
    std::vector<T> calls = {
        {"nothing", [] { return CUDA_SUCCESS; },
         [] {
             return CUDA_SUCCESS;
         }},
        {"mem_free 256 B", [] { return cuMemAlloc(&p, 256); },
         [] {
             return cuMemFree(p);
         }},
        {"mem_free 4 MiB", [] { return cuMemAlloc(&p, 4 << 20); },
         [] {
             return cuMemFree(p);
         }},
        {"mem_free 1 GiB", [] { return cuMemAlloc(&p, 1 << 30); },
         [] {
             return cuMemFree(p);
         }},
        {"mem_free managed", [] { return cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL); },
         [] {
             return cuMemFree(p);
         }},
        {"mem_alloc 4 MiB", [] { return CUDA_SUCCESS; },
         [] {
             CUresult r = cuMemAlloc(&big, 4 << 20);
             return r;
         }},
        {"mem_free_host 4 KiB", [] { return cuMemHostAlloc(&h, 4096, 0); },
         [] {
             return cuMemFreeHost(h);
         }},
        {"mem_host_alloc 4 KiB", [] { return CUDA_SUCCESS; },
         [] {
             return cuMemHostAlloc(&h, 4096, 0);
         }},
        {"mem_unmap 2 MiB",
         [&] {
             OK(cuMemCreate(&hd, 2 << 20, &prop, 0));
             OK(cuMemMap(va, 2 << 20, 0, hd, 0));
             return cuMemSetAccess(va, 2 << 20, &acc, 1);
         },
         [] {
             CUresult r = cuMemUnmap(va, 2 << 20);
             return r;
         }},
        {"mem_release 2 MiB", [&] { return cuMemCreate(&hd, 2 << 20, &prop, 0); },
         [] {
             return cuMemRelease(hd);
         }},
        {"stream_synchronize idle", [] { return CUDA_SUCCESS; },
         [] {
             return cuStreamSynchronize(idle);
         }},
        {"ctx_synchronize", [] { return CUDA_SUCCESS; },
         [] {
             return cuCtxSynchronize();
         }},
    };
    const char *caps[] = {"none", "Gn", "Gb", "Tn", "Tb", "Rn", "Rb"};
    const char *works[] = {"nb alive", "nb destroyed", "blk alive", "blk destroyed"};
    printf(
        "rows: call x the kernel's stream; columns: active capture (mode, kind of stream), and calling "
        "thread: the capturing one (s) or another one (o)\n%-26s %-14s",
        "call", "work");
    for (auto c : caps)
        printf(" %-12s %-12s", c, "");
    printf("\n");
    for (auto &t : calls)
        for (int w = 0; w < 4; w++) {
            printf("%-26s %-14s", t.name, works[w]);
            for (int c = 0; c < 7; c++)
                for (int own = 0; own < 2; own++) {
                    OK(t.prepare());
                    OK(cuCtxSynchronize());
                    *flag = 0;
                    CUstream ws, cs;
                    OK(cuStreamCreate(&ws, w < 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
                    OK(cuStreamCreate(&cs, c % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
                    unsigned long long ns = 40000000ull;
                    void *args[] = {&ns, &dflag};
                    OK(cuLaunchKernel(spin_fn, 1, 1, 1, 1, 1, 1, 0, ws, args, 0));
                    if (w % 2)
                        OK(cuStreamDestroy(ws));
                    CUstreamCaptureMode m =
                        c == 0 ? CU_STREAM_CAPTURE_MODE_RELAXED : (CUstreamCaptureMode)((c - 1) / 2);
                    if (c)
                        OK(cuStreamBeginCapture(cs, m));
                    CUresult r = CUDA_SUCCESS, e = CUDA_SUCCESS;
                    unsigned done = 0;
                    auto body = [&] {
                        cuCtxSetCurrent(ctx);
                        CUstreamCaptureMode md = CU_STREAM_CAPTURE_MODE_RELAXED;
                        OK(cuThreadExchangeStreamCaptureMode(&md));
                        r = t.call();
                        done = *flag;
                        OK(cuThreadExchangeStreamCaptureMode(&md));
                    };
                    if (own)
                        body();
                    else
                        std::thread(body).join();
                    CUgraph g = 0;
                    if (c)
                        e = cuStreamEndCapture(cs, &g);
                    if (g)
                        cuGraphDestroy(g);
                    printf(" %s%c%d/%-6d", own ? "s" : "o", done ? 'W' : '-', (int)r, (int)e);
                    OK(cuCtxSynchronize());
                    if (big) {
                        cuMemFree(big);
                        big = 0;
                    }
                    if (!(w % 2))
                        cuStreamDestroy(ws);
                    cuStreamDestroy(cs);
                    if (!strcmp(t.name, "mem_unmap 2 MiB"))
                        cuMemRelease(hd);
                    if (!strcmp(t.name, "mem_host_alloc 4 KiB"))
                        cuMemFreeHost(h);
                }
            printf("\n");
            fflush(stdout);
        }
}
