// Shared by costs.cu and memory.cu: kernels that keep the device busy, and the cost of each call.
#pragma once
#include <atomic>
#include <functional>
#include <thread>

#include "common.cuh"

__global__ void k_spin(volatile int* flags, ull ns, volatile uint32_t* touch) {
    flags[0] = 1;
    __threadfence_system();
    ull t = globaltimer();
    uint32_t v = 0;
    while (!flags[1] && globaltimer() - t < ns)
        if (touch) *touch = v++;
}
__global__ void k_short(ull ns) {
    ull t = globaltimer();
    while (globaltimer() - t < ns) {}
}
__global__ void k_nothing() {}
__global__ void k_fill(uint4* p, size_t n, uint32_t v) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        p[i] = make_uint4(v, v, v, v);
}
__global__ void k_nonzero(const uint4* p, size_t n, ull* out) {
    ull bad = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
         i += size_t(gridDim.x) * blockDim.x) {
        uint4 v = p[i];
        bad += (v.x | v.y | v.z | v.w) != 0;
    }
    if (bad) atomicAdd(out, bad);
}
__global__ void k_latency(volatile uint32_t* p, size_t step_words, int n, ull* ns) {
    for (int i = 0; i < n; i++) {
        long long t = clock64();
        uint32_t v = p[i * step_words];
        if (v == 0xDEADBEEF) p[0] = 1;
        ns[i] = ull(clock64() - t);
    }
}

static CUstream s1, s2;
static int* flags;

struct Spin {  // a kernel that runs until `end`, or for `ns` at most
    explicit Spin(ull ns, CUdeviceptr touch = 0) {
        flags[0] = flags[1] = 0;
        k_spin<<<1, 1, 0, s2>>>(flags, ns, (uint32_t*)touch);
        RT(cudaGetLastError());
        uint64_t t = now();
        while (!*(volatile int*)flags && now() - t < 1000000000) {}
    }
    bool running() { return cuStreamQuery(s2) == CUDA_ERROR_NOT_READY; }
    void end() {
        ((volatile int*)flags)[1] = 1;
        CU(cuStreamSynchronize(s2));
    }
};

struct Set {
    Sample create, map, access, map2, access2, again, unmap2, unmap, release;
};

static inline void rows(Set& t, const char* section, const std::string& p, double per = 1) {
    t.create.row(section, "create", p, per);
    t.map.row(section, "map", p, per);
    t.access.row(section, "set_access", p, per);
    t.map2.row(section, "map, second address", p, per);
    t.access2.row(section, "set_access, second address", p, per);
    t.again.row(section, "set_access, accessible already", p, per);
    t.unmap2.row(section, "unmap, second address", p, per);
    t.unmap.row(section, "unmap", p, per);
    t.release.row(section, "release", p, per);
}

// Creates n handles, each at a fresh address, and keeps all until the end.
static inline void held(const char* section, size_t bytes, int n, const std::string& param) {
    Set t;
    CUdeviceptr home = reserve(bytes * n), view = reserve(bytes * n);
    std::vector<Handle> h(n);
    for (int i = 0; i < n; i++) {
        CUdeviceptr a = home + i * bytes;
        t.create.time([&] { h[i] = create(bytes); });
        t.map.time([&] { map(a, h[i], bytes); });
        t.access.time([&] { access(a, bytes); });
    }
    for (int i = 0; i < n; i++) {
        CUdeviceptr b = view + i * bytes;
        t.map2.time([&] { map(b, h[i], bytes); });
        t.access2.time([&] { access(b, bytes); });
        t.again.time([&] { access(b, bytes); });
    }
    for (int i = 0; i < n; i++) t.unmap2.time([&] { CU(cuMemUnmap(view + i * bytes, bytes)); });
    for (int i = 0; i < n; i++) {
        t.unmap.time([&] { CU(cuMemUnmap(home + i * bytes, bytes)); });
        t.release.time([&] { CU(cuMemRelease(h[i])); });
    }
    CU(cuMemAddressFree(home, bytes * n));
    CU(cuMemAddressFree(view, bytes * n));
    rows(t, section, param);
}

// Maps at the same address again and again.
static inline void churn(const char* section, size_t bytes, int n, const std::string& param) {
    Set t;
    CUdeviceptr a = reserve(2 * bytes), b = a + bytes;
    for (int i = 0; i < n; i++) {
        Handle h;
        t.create.time([&] { h = create(bytes); });
        t.map.time([&] { map(a, h, bytes); });
        t.access.time([&] { access(a, bytes); });
        t.map2.time([&] { map(b, h, bytes); });
        t.access2.time([&] { access(b, bytes); });
        t.unmap2.time([&] { CU(cuMemUnmap(b, bytes)); });
        t.unmap.time([&] { CU(cuMemUnmap(a, bytes)); });
        t.release.time([&] { CU(cuMemRelease(h)); });
    }
    CU(cuMemAddressFree(a, 2 * bytes));
    rows(t, section, param);
}

struct Load {  // launches short kernels, one after another, from another thread
    std::atomic<bool> stop{false};
    std::thread t;
    explicit Load(ull ns)
        : t([this, ns] {
              CU(cuCtxSetCurrent(context));
              CUevent e[16];
              for (auto& x : e) CU(cuEventCreate(&x, CU_EVENT_DISABLE_TIMING));
              for (ull k = 0; !stop; k++) {
                  if (k >= 16) CU(cuEventSynchronize(e[k % 16]));
                  k_short<<<1, 32, 0, s2>>>(ns);
                  CU(cuEventRecord(e[k % 16], s2));
              }
              CU(cuStreamSynchronize(s2));
          }) {}
    ~Load() {
        stop = true;
        t.join();
    }
};

static inline void pause_ns(uint64_t ns) {
    for (uint64_t end = now() + ns; now() < end;) {}
}

static inline void mapper(size_t bytes, const std::atomic<int>& stop, Set* t, uint64_t pace = 0) {
    CUdeviceptr a = reserve(bytes);
    while (!stop) {
        Handle h;
        auto in = [&](Sample Set::* m, const std::function<void()>& f) {
            if (t) (t->*m).time(f);
            else f();
        };
        in(&Set::create, [&] { h = create(bytes); });
        in(&Set::map, [&] { map(a, h, bytes); });
        in(&Set::access, [&] { access(a, bytes); });
        in(&Set::unmap, [&] { CU(cuMemUnmap(a, bytes)); });
        in(&Set::release, [&] { CU(cuMemRelease(h)); });
        if (pace) pause_ns(pace);
    }
    CU(cuMemAddressFree(a, bytes));
}

static inline void begin() {
    start();
    CU(cuStreamCreate(&s1, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&s2, CU_STREAM_NON_BLOCKING));
    RT(cudaHostAlloc(&flags, 8, cudaHostAllocMapped));
    for (CUstream s : {s1, s2}) {
        flags[0] = flags[1] = 1;
        k_spin<<<1, 1, 0, s>>>(flags, 1, nullptr);
        k_short<<<1, 1, 0, s>>>(1);
        k_nothing<<<1, 1, 0, s>>>();
        RT(cudaDeviceSynchronize());
    }
}

// Runs the section that the command line names; all sections if it names none.
struct Sections {
    std::string only;
    Sections(int argc, char** argv) : only(argc > 1 ? argv[1] : "") {}
    template <class F>
    void run(const char* name, F&& body) {
        if (!only.empty() && only != name) return;
        uint64_t t = now();
        body();
        printf("time\t%s\t%.1f s\n", name, double(now() - t) / 1e9);
        fflush(stdout);
    }
};
