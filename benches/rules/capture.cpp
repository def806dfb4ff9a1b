// Tests each driver call while a stream captures a graph.
// Prints a row for each call, and a column for each capture mode (G global, T thread-local, R relaxed),
// capturing stream (n non-blocking, b blocking), calling thread (o another one, s the capturing one) and
// exchange (- none, x the caller exchanged its mode to relaxed). A cell is the result of the call / the
// result of ending the capture.
#include <signal.h>

#include "probe.h"
static CUdevice dev;
static CUcontext ctx;
struct Env {
    CUstream cap, other, otherb, victim;
    CUevent ev_out, ev_in, ev_fresh, ev_capout;
    CUdeviceptr plain, plain2, va, va2, mapped, async_other;
    CUmemGenericAllocationHandle h, h2;
    CUmemoryPool pool;
    void *host;
    CUdeviceptr managed;
};
static const size_t P = 2 << 20;
struct Call {
    const char *name;
    std::function<CUresult(Env &)> f;
};
static void setup(Env &e, bool blocking) {
    memset(&e, 0, sizeof e);
    OK(cuStreamCreate(&e.cap, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&e.other, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&e.otherb, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&e.victim, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e.ev_out, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&e.ev_in, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&e.ev_fresh, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&e.ev_capout, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&e.plain, 4 << 20));
    OK(cuMemAlloc(&e.plain2, 4 << 20));
    CUmemAllocationProp p = vmm_prop(0);
    CUmemAccessDesc a = vmm_access(0);
    OK(cuMemAddressReserve(&e.va, 4 * P, 0, 0, 0));
    OK(cuMemAddressReserve(&e.va2, P, 0, 0, 0));
    OK(cuMemCreate(&e.h, P, &p, 0));
    OK(cuMemCreate(&e.h2, P, &p, 0));
    e.mapped = e.va + P;
    OK(cuMemMap(e.mapped, P, 0, e.h2, 0));
    OK(cuMemSetAccess(e.mapped, P, &a, 1));
    CUmemPoolProps pp;
    memset(&pp, 0, sizeof pp);
    pp.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pp.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cuMemPoolCreate(&e.pool, &pp));
    OK(cuMemAllocAsync(&e.async_other, 1 << 20, e.other));
    OK(cuMemsetD8Async(e.plain, 1, 4096, e.other));
    OK(cuEventRecord(e.ev_out, e.other));
    OK(cuEventRecord(e.ev_capout, e.cap));
    OK(cuMemHostAlloc(&e.host, 4096, 0));
    OK(cuMemAllocManaged(&e.managed, 4096, CU_MEM_ATTACH_GLOBAL));
    OK(cuCtxSynchronize());
}
static std::vector<Call> calls = {
    {"nothing",
     [](Env &) {
         return CUDA_SUCCESS;
     }},
    {"mem_alloc",
     [](Env &) {
         CUdeviceptr p = 0;
         CUresult r = cuMemAlloc(&p, 4 << 20);
         return r;
     }},
    {"mem_free(plain)",
     [](Env &e) {
         CUresult r = cuMemFree(e.plain2);
         if (!r)
             e.plain2 = 0;
         return r;
     }},
    {"mem_alloc_managed",
     [](Env &) {
         CUdeviceptr p = 0;
         return cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL);
     }},
    {"mem_free(managed)",
     [](Env &e) {
         return cuMemFree(e.managed);
     }},
    {"mem_host_alloc",
     [](Env &) {
         void *p;
         return cuMemHostAlloc(&p, 4096, 0);
     }},
    {"mem_free_host",
     [](Env &e) {
         return cuMemFreeHost(e.host);
     }},
    {"mem_get_info",
     [](Env &) {
         size_t a, b;
         return cuMemGetInfo(&a, &b);
     }},
    {"mem_get_address_range",
     [](Env &e) {
         CUdeviceptr b;
         size_t s;
         return cuMemGetAddressRange(&b, &s, e.plain);
     }},
    {"pointer_get_attribute",
     [](Env &e) {
         unsigned t;
         return cuPointerGetAttribute(&t, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, e.plain);
     }},
    {"mem_address_reserve",
     [](Env &) {
         CUdeviceptr p;
         return cuMemAddressReserve(&p, P, 0, 0, 0);
     }},
    {"mem_address_free",
     [](Env &e) {
         return cuMemAddressFree(e.va2, P);
     }},
    {"mem_create",
     [](Env &) {
         CUmemGenericAllocationHandle h;
         CUmemAllocationProp p = vmm_prop(0);
         return cuMemCreate(&h, P, &p, 0);
     }},
    {"mem_map",
     [](Env &e) {
         return cuMemMap(e.va, P, 0, e.h, 0);
     }},
    {"mem_map+set_access",
     [](Env &e) {
         CUresult r = cuMemMap(e.va, P, 0, e.h, 0);
         if (r)
             return r;
         CUmemAccessDesc a = vmm_access(0);
         return cuMemSetAccess(e.va, P, &a, 1);
     }},
    {"mem_unmap",
     [](Env &e) {
         return cuMemUnmap(e.mapped, P);
     }},
    {"mem_release",
     [](Env &e) {
         return cuMemRelease(e.h);
     }},
    {"mem_alloc_async(other)",
     [](Env &e) {
         CUdeviceptr p;
         return cuMemAllocAsync(&p, 4096, e.other);
     }},
    {"mem_alloc_async(legacy)",
     [](Env &) {
         CUdeviceptr p;
         return cuMemAllocAsync(&p, 4096, CU_STREAM_LEGACY);
     }},
    {"mem_alloc_async(capturing)",
     [](Env &e) {
         CUdeviceptr p;
         return cuMemAllocAsync(&p, 4096, e.cap);
     }},
    {"mem_free_async(other)",
     [](Env &e) {
         return cuMemFreeAsync(e.async_other, e.other);
     }},
    {"mem_pool_create",
     [](Env &) {
         CUmemoryPool q;
         CUmemPoolProps pp;
         memset(&pp, 0, sizeof pp);
         pp.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
         pp.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
         return cuMemPoolCreate(&q, &pp);
     }},
    {"mem_pool_destroy",
     [](Env &e) {
         CUresult r = cuMemPoolDestroy(e.pool);
         if (!r)
             e.pool = 0;
         return r;
     }},
    {"mem_pool_trim_to",
     [](Env &e) {
         return cuMemPoolTrimTo(e.pool, 0);
     }},
    {"mem_pool_get_attribute",
     [](Env &e) {
         cuuint64_t v;
         return cuMemPoolGetAttribute(e.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v);
     }},
    {"stream_create",
     [](Env &) {
         CUstream s;
         return cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
     }},
    {"stream_destroy(other)",
     [](Env &e) {
         CUresult r = cuStreamDestroy(e.victim);
         if (!r)
             e.victim = 0;
         return r;
     }},
    {"stream_get_id(other)",
     [](Env &e) {
         unsigned long long i;
         return cuStreamGetId(e.other, &i);
     }},
    {"stream_is_capturing(other)",
     [](Env &e) {
         CUstreamCaptureStatus s;
         return cuStreamIsCapturing(e.other, &s);
     }},
    {"stream_is_capturing(legacy)",
     [](Env &) {
         CUstreamCaptureStatus s;
         return cuStreamIsCapturing(CU_STREAM_LEGACY, &s);
     }},
    {"stream_is_capturing(capturing)",
     [](Env &e) {
         CUstreamCaptureStatus s;
         return cuStreamIsCapturing(e.cap, &s);
     }},
    {"stream_synchronize(other nb)",
     [](Env &e) {
         return cuStreamSynchronize(e.other);
     }},
    {"stream_synchronize(other blocking)",
     [](Env &e) {
         return cuStreamSynchronize(e.otherb);
     }},
    {"stream_synchronize(legacy)",
     [](Env &) {
         return cuStreamSynchronize(CU_STREAM_LEGACY);
     }},
    {"stream_synchronize(capturing)",
     [](Env &e) {
         return cuStreamSynchronize(e.cap);
     }},
    {"stream_query(other)",
     [](Env &e) {
         return cuStreamQuery(e.other);
     }},
    {"stream_query(legacy)",
     [](Env &) {
         return cuStreamQuery(CU_STREAM_LEGACY);
     }},
    {"stream_query(capturing)",
     [](Env &e) {
         return cuStreamQuery(e.cap);
     }},
    {"ctx_synchronize",
     [](Env &) {
         return cuCtxSynchronize();
     }},
    {"event_create",
     [](Env &) {
         CUevent v;
         return cuEventCreate(&v, CU_EVENT_DISABLE_TIMING);
     }},
    {"event_destroy(idle)",
     [](Env &e) {
         CUresult r = cuEventDestroy(e.ev_fresh);
         if (!r)
             e.ev_fresh = 0;
         return r;
     }},
    {"event_destroy(in capture)",
     [](Env &e) {
         CUresult r = cuEventDestroy(e.ev_in);
         if (!r)
             e.ev_in = 0;
         return r;
     }},
    {"event_record(other)",
     [](Env &e) {
         return cuEventRecord(e.ev_fresh, e.other);
     }},
    {"event_record(other blocking)",
     [](Env &e) {
         return cuEventRecord(e.ev_fresh, e.otherb);
     }},
    {"event_record(legacy)",
     [](Env &e) {
         return cuEventRecord(e.ev_fresh, CU_STREAM_LEGACY);
     }},
    {"event_record(capturing)",
     [](Env &e) {
         return cuEventRecord(e.ev_fresh, e.cap);
     }},
    {"event_query(outside)",
     [](Env &e) {
         return cuEventQuery(e.ev_out);
     }},
    {"event_query(on cap before capture)",
     [](Env &e) {
         return cuEventQuery(e.ev_capout);
     }},
    {"event_query(in capture)",
     [](Env &e) {
         return cuEventQuery(e.ev_in);
     }},
    {"event_synchronize(outside)",
     [](Env &e) {
         return cuEventSynchronize(e.ev_out);
     }},
    {"event_synchronize(in capture)",
     [](Env &e) {
         return cuEventSynchronize(e.ev_in);
     }},
    {"stream_wait_event(other,outside)",
     [](Env &e) {
         return cuStreamWaitEvent(e.other, e.ev_out, 0);
     }},
    {"stream_wait_event(other,cap before)",
     [](Env &e) {
         return cuStreamWaitEvent(e.other, e.ev_capout, 0);
     }},
    {"stream_wait_event(capturing,outside)",
     [](Env &e) {
         return cuStreamWaitEvent(e.cap, e.ev_out, 0);
     }},
    {"stream_wait_event(legacy,outside)",
     [](Env &e) {
         return cuStreamWaitEvent(CU_STREAM_LEGACY, e.ev_out, 0);
     }},
    {"stream_wait_event(other,in capture)",
     [](Env &e) {
         return cuStreamWaitEvent(e.other, e.ev_in, 0);
     }},
    {"memcpy_dtoh_async(other)",
     [](Env &e) {
         static char b[64];
         return cuMemcpyDtoHAsync(b, e.plain, 64, e.other);
     }},
    {"memcpy_dtoh(sync)",
     [](Env &e) {
         static char b[64];
         return cuMemcpyDtoH(b, e.plain, 64);
     }},
    {"memset_d8_async(other)",
     [](Env &e) {
         return cuMemsetD8Async(e.plain, 2, 64, e.other);
     }},
    {"memset_d8_async(other blocking)",
     [](Env &e) {
         return cuMemsetD8Async(e.plain, 2, 64, e.otherb);
     }},
    {"memset_d8_async(legacy)",
     [](Env &e) {
         return cuMemsetD8Async(e.plain, 2, 64, CU_STREAM_LEGACY);
     }},
    {"ipc_get_mem_handle",
     [](Env &e) {
         CUipcMemHandle h;
         return cuIpcGetMemHandle(&h, e.plain);
     }},
};
int main() {
    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    OK(cuDevicePrimaryCtxRetain(&ctx, dev));
    OK(cuCtxSetCurrent(ctx));
    const char *mn = "GTR";
    CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                   CU_STREAM_CAPTURE_MODE_RELAXED};
    printf(
        "each cell: result of the call / result of end_capture; 0 means success. Columns: mode G|T|R, "
        "capturing stream n|b, calling thread o(ther)|s(ame), exchange -|x\n%-38s",
        "call");
    for (int m = 0; m < 3; m++)
        for (int b = 0; b < 2; b++)
            for (int s = 0; s < 2; s++)
                for (int x = 0; x < 2; x++)
                    printf(" %c%c%c%c   ", mn[m], "nb"[b], "os"[s], "-x"[x]);
    printf("\n");
    for (auto &c : calls) {
        printf("%-38s", c.name);
        for (int m = 0; m < 3; m++)
            for (int b = 0; b < 2; b++)
                for (int s = 0; s < 2; s++)
                    for (int x = 0; x < 2; x++) {
                        Env e;
                        setup(e, b);
                        OK(cuStreamBeginCapture(e.cap, modes[m]));
                        OK(cuMemsetD8Async(e.plain, 3, 256, e.cap));
                        OK(cuEventRecord(e.ev_in, e.cap));
                        CUresult r = CUDA_SUCCESS, r2;
                        auto body = [&] {
                            if (s == 0)
                                cuCtxSetCurrent(ctx);
                            CUstreamCaptureMode md = CU_STREAM_CAPTURE_MODE_RELAXED;
                            if (x)
                                OK(cuThreadExchangeStreamCaptureMode(&md));
                            r = c.f(e);
                            if (x)
                                OK(cuThreadExchangeStreamCaptureMode(&md));
                        };
                        if (s)
                            body();
                        else
                            std::thread(body).join();
                        CUgraph g = 0;
                        r2 = cuStreamEndCapture(e.cap, &g);
                        printf(" %3d/%-3d", (int)r, (int)r2);
                        if (g)
                            cuGraphDestroy(g);
                        cuCtxSynchronize();
                        cuMemUnmap(e.va, P);
                        cuMemUnmap(e.mapped, P);
                        cuMemRelease(e.h);
                        cuMemRelease(e.h2);
                        cuMemAddressFree(e.va, 4 * P);
                        cuMemAddressFree(e.va2, P);
                        if (e.plain2)
                            cuMemFree(e.plain2);
                        cuMemFree(e.plain);
                        cuMemFreeAsync(e.async_other, e.other);
                        cuMemFreeHost(e.host);
                        cuMemFree(e.managed);
                        if (e.pool)
                            cuMemPoolDestroy(e.pool);
                        cuCtxSynchronize();
                        for (CUevent v : {e.ev_out, e.ev_in, e.ev_fresh, e.ev_capout})
                            if (v)
                                cuEventDestroy(v);
                        for (CUstream v : {e.cap, e.other, e.otherb, e.victim})
                            if (v)
                                cuStreamDestroy(v);
                        CUresult z = cuCtxSynchronize();
                        if (z) {
                            printf(" STICKY %d\n", z);
                            return 1;
                        }
                    }
        printf("\n");
        fflush(stdout);
    }
    // Measures the exchange and other cheap calls.
    auto cost = [&](const char *n, std::function<void()> f) {
        for (int i = 0; i < 1000; i++)
            f();
        double t = now_us();
        const int N = 20000;
        for (int i = 0; i < N; i++)
            f();
        printf("cost %-34s %8.1f ns\n", n, (now_us() - t) / N * 1e3);
    };
    cost("thread_exchange_capture_mode x2", [] {
        CUstreamCaptureMode md = CU_STREAM_CAPTURE_MODE_RELAXED;
        cuThreadExchangeStreamCaptureMode(&md);
        cuThreadExchangeStreamCaptureMode(&md);
    });
    cost("mem_get_info", [] {
        size_t a, b;
        cuMemGetInfo(&a, &b);
    });
    cost("ctx_get_id", [] {
        unsigned long long i;
        cuCtxGetId(ctx, &i);
    });
    cost("primary_ctx_get_state", [] {
        unsigned f;
        int a;
        cuDevicePrimaryCtxGetState(dev, &f, &a);
    });
    CUstream s;
    cuStreamCreate(&s, 1);
    CUstreamCaptureStatus st;
    cost("stream_is_capturing", [&] { cuStreamIsCapturing(s, &st); });
    cost("stream_is_capturing legacy", [&] { cuStreamIsCapturing(CU_STREAM_LEGACY, &st); });
    cost("ctx_synchronize idle", [&] { cuCtxSynchronize(); });
    cost("stream_synchronize idle", [&] { cuStreamSynchronize(s); });
}
