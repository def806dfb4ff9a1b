// Shared by all programs here: error checks, a host clock, order statistics, calls for virtual memory.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CU(call)                                                                 \
    do {                                                                         \
        CUresult r_ = (call);                                                    \
        if (r_ != CUDA_SUCCESS) {                                                \
            const char* name_ = "?";                                             \
            cuGetErrorName(r_, &name_);                                          \
            printf("FAILED\t%s:%d\t%s\t%s\n", __FILE__, __LINE__, #call, name_); \
            fflush(stdout);                                                      \
            exit(3);                                                             \
        }                                                                        \
    } while (0)
#define RT(call)                                                                                \
    do {                                                                                        \
        cudaError_t r_ = (call);                                                                \
        if (r_ != cudaSuccess) {                                                                \
            printf("FAILED\t%s:%d\t%s\t%s\n", __FILE__, __LINE__, #call, cudaGetErrorName(r_)); \
            fflush(stdout);                                                                     \
            exit(3);                                                                            \
        }                                                                                       \
    } while (0)

using Handle = CUmemGenericAllocationHandle;
using ull = unsigned long long;
constexpr size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB, TiB = 1024 * GiB;

static inline uint64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

static inline const char* error_name(CUresult r) {
    const char* s = "?";
    cuGetErrorName(r, &s);
    return s;
}

// Host times in ns. `row` prints min, median, p99 and max, each divided by `per` (operations per sample).
struct Sample {
    std::vector<uint64_t> v;
    template <class F>
    void time(F&& f) {
        uint64_t t = now();
        f();
        v.push_back(now() - t);
    }
    double at(double q) {
        std::sort(v.begin(), v.end());
        size_t i = size_t(q * double(v.size() - 1) + 0.5);
        return double(v[i]);
    }
    void row(const char* section, const std::string& what, const std::string& param, double per = 1) {
        if (v.empty()) return;
        printf("%s\t%s\t%s\tn=%zu\tmin=%.0f\tmedian=%.0f\tp99=%.0f\tmax=%.0f\n", section, what.c_str(),
               param.c_str(), v.size(), at(0) / per, at(0.5) / per, at(0.99) / per, at(1) / per);
        fflush(stdout);
    }
};

static CUdevice device;
static CUcontext context;
static CUmemAllocationProp prop;
static CUmemAccessDesc rw;

static inline void start() {
    RT(cudaSetDevice(0));
    RT(cudaFree(nullptr));
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuCtxGetCurrent(&context));
    prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = 0;
    rw = {};
    rw.location = prop.location;
    rw.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static inline Handle create(size_t bytes) {
    Handle h;
    CU(cuMemCreate(&h, bytes, &prop, 0));
    return h;
}
static inline CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr p;
    CU(cuMemAddressReserve(&p, bytes, 0, 0, 0));
    return p;
}
static inline void map(CUdeviceptr at, Handle h, size_t bytes) { CU(cuMemMap(at, bytes, 0, h, 0)); }
static inline void access(CUdeviceptr at, size_t bytes) { CU(cuMemSetAccess(at, bytes, &rw, 1)); }

static inline std::string mib(size_t bytes) { return std::to_string(bytes / MiB) + "MiB"; }

static __device__ __forceinline__ ull globaltimer() {
    ull t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
