// For alias.cu: kernels that write and check, blocks at two addresses, and a change of owner.
#pragma once
#include <cstring>
#include <map>
#include <random>

#include "common.cuh"

static int failures = 0;
static void verdict(const std::string& name, ull rounds, ull wrong, bool must, const std::string& note = "") {
    printf("alias\t%s\trounds=%llu\twrong_words=%llu\t%s\t%s\n", name.c_str(), rounds, wrong,
           !must ? "note" : (wrong ? "FAIL" : "ok"), note.c_str());
    fflush(stdout);
    if (must && wrong) failures++;
}
static void canary(const std::string& name, ull wrong, ull expected_at_least) {
    bool ok = wrong >= expected_at_least;
    printf("alias\tcanary: %s\twrong_words=%llu\tat_least=%llu\t%s\n", name.c_str(), wrong, expected_at_least,
           ok ? "ok" : "FAIL");
    fflush(stdout);
    if (!ok) failures++;
}

// ---- kernels
// -------------------------------------------------------------------------------------------------------
__host__ __device__ inline uint32_t value(uint32_t seed, uint32_t i) {
    uint32_t h = seed * 0x9E3779B9u + i;
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    h ^= h >> 16;
    return h;
}
__device__ __forceinline__ uint32_t ld_ca(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t ld_nc(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void st(uint32_t* p, uint32_t v) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// The values that a step writes or expects. The seed is *base + salt; base is on the device, so a replayed
// graph sees new values. If flat is set, every word is the same, as after a memset.
struct Want {
    const uint32_t* base;
    uint32_t salt, flat;
    __device__ uint32_t operator()(uint32_t i) const {
        return value((flat ? 0 : *base) + salt, flat ? 0 : i);
    }
};
#define EACH(i, n)                                                          \
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < (n); \
         i += size_t(gridDim.x) * blockDim.x)

__global__ void k_write(uint32_t* p, size_t n, uint32_t first, Want w) {
    EACH(i, n) st(p + i, w(first + uint32_t(i)));
}
__global__ void k_check(const uint32_t* p, size_t n, uint32_t first, Want w, int nc, ull* wrong) {
    ull bad = 0;
    EACH(i, n) bad += (nc ? ld_nc(p + i) : ld_ca(p + i)) != w(first + uint32_t(i));
    if (bad) atomicAdd(wrong, bad);
}
__global__ void k_check_write(uint32_t* p, size_t n, uint32_t first, Want r, Want w, ull* wrong) {
    ull bad = 0;
    EACH(i, n) {
        bad += ld_ca(p + i) != r(first + uint32_t(i));
        st(p + i, w(first + uint32_t(i)));
    }
    if (bad) atomicAdd(wrong, bad);
}
// The same with bulk copies (asynchronous proxy) of 512 B to 4 KiB each, and with atomics.
constexpr int CHUNK = 1024;
__device__ __forceinline__ uint32_t shared_at(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__global__ void k_write_bulk(uint32_t* p, size_t n, uint32_t first, Want w) {
    __shared__ alignas(128) uint32_t buf[CHUNK];
    for (size_t at = blockIdx.x * size_t(CHUNK); at < n; at += gridDim.x * size_t(CHUNK)) {
        uint32_t m = uint32_t(n - at < CHUNK ? n - at : CHUNK);
        for (uint32_t i = threadIdx.x; i < m; i += blockDim.x) buf[i] = w(first + uint32_t(at) + i);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(p + at),
                         "r"(shared_at(buf)), "r"(m * 4)
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
        __syncthreads();
    }
}
__global__ void k_check_bulk(const uint32_t* p, size_t n, uint32_t first, Want w, ull* wrong) {
    __shared__ alignas(128) uint32_t buf[CHUNK];
    __shared__ alignas(8) uint64_t bar;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(&bar)) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    ull bad = 0;
    uint32_t phase = 0;
    for (size_t at = blockIdx.x * size_t(CHUNK); at < n; at += gridDim.x * size_t(CHUNK)) {
        uint32_t m = uint32_t(n - at < CHUNK ? n - at : CHUNK);
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(&bar)),
                         "r"(m * 4)
                         : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                    "r"(shared_at(buf)),
                "l"(p + at), "r"(m * 4), "r"(shared_at(&bar))
                : "memory");
        }
        uint32_t done = 0;
        while (!done)
            asm volatile(
                "{ .reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2; selp.u32 %0, 1, 0, q; "
                "}"
                : "=r"(done)
                : "r"(shared_at(&bar)), "r"(phase)
                : "memory");
        phase ^= 1;
        for (uint32_t i = threadIdx.x; i < m; i += blockDim.x) bad += buf[i] != w(first + uint32_t(at) + i);
        __syncthreads();
    }
    if (bad) atomicAdd(wrong, bad);
}
__global__ void k_write_atomic(uint32_t* p, size_t n, uint32_t first, Want w) {
    EACH(i, n) atomicExch(p + i, w(first + uint32_t(i)));
}
__global__ void k_bump(uint32_t* base) { *base += 1000003; }
__global__ void k_poke(uint32_t* p) { *p ^= 1; }

// Two of these run at the same time on one handle, each through its own address and on its own words.
struct Gate {
    unsigned here;
    ull start[2], end[2];
};
__device__ __forceinline__ bool mine(size_t i, size_t cut, uint32_t stripe, unsigned who) {
    return (stripe ? (i / stripe) & 1 : i >= cut) == who;
}
__global__ void k_pair(uint32_t* p, size_t n, size_t cut, uint32_t stripe, unsigned who, uint32_t seed,
                       int passes, Gate* g, ull* wrong) {
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) atomicAdd(&g->here, 1);
        ull t = globaltimer();
        while (*(volatile unsigned*)&g->here < 2 && globaltimer() - t < 5000000) {}
        atomicMin(&g->start[who], globaltimer());
    }
    __syncthreads();
    ull bad = 0;
    for (int k = 0; k < passes; k++) {
        EACH(i, n) if (mine(i, cut, stripe, who)) st(p + i, value(seed + k * 2 + who, uint32_t(i)));
        EACH(i, n)
        if (mine(i, cut, stripe, who)) bad += ld_ca(p + i) != value(seed + k * 2 + who, uint32_t(i));
    }
    if (bad) atomicAdd(wrong, bad);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(&g->end[who], globaltimer());
}
__global__ void k_pair_check(const uint32_t* p, size_t n, size_t cut, uint32_t stripe, uint32_t seed,
                             ull* wrong) {
    ull bad = 0;
    EACH(i, n) bad += ld_ca(p + i) != value(seed + mine(i, cut, stripe, 1), uint32_t(i));
    if (bad) atomicAdd(wrong, bad);
}

// ---- set-up
// --------------------------------------------------------------------------------------------------------
struct Piece {
    CUdeviceptr p;
    size_t words;
    uint32_t first;
};
using Side = std::vector<Piece>;  // the bytes of one block, in block order, at one of its addresses

struct Maps {  // handles side by side at `home`, and in another order at `view`
    std::vector<size_t> size;
    std::vector<Handle> h;
    std::vector<int> order;
    CUdeviceptr home = 0, view = 0;
    size_t total = 0;
    Maps(std::vector<size_t> sizes, std::vector<int> perm) : size(sizes), order(perm) {
        for (size_t s : size) {
            h.push_back(create(s));
            total += s;
        }
        home = reserve(total);
        view = reserve(total);
        size_t at = 0;
        for (size_t i = 0; i < h.size(); i++) {
            map(home + at, h[i], size[i]);
            at += size[i];
        }
        access(home, total);
        at = 0;
        for (int i : order) {
            map(view + at, h[i], size[i]);
            at += size[i];
        }
        access(view, total);
    }
    size_t home_offset(int i) const {
        size_t at = 0;
        for (int k = 0; k < i; k++) at += size[k];
        return at;
    }
    // Returns the bytes [o, o + len) of the view as pieces at home.
    Side at_home(size_t o, size_t len) const {
        Side side;
        size_t at = 0;
        uint32_t first = 0;
        for (int i : order) {
            size_t lo = std::max(o, at), hi = std::min(o + len, at + size[i]);
            if (lo < hi) {
                side.push_back({home + home_offset(i) + (lo - at), (hi - lo) / 4, first});
                first += uint32_t((hi - lo) / 4);
            }
            at += size[i];
        }
        return side;
    }
    Side in_view(size_t o, size_t len) const { return {{view + o, len / 4, 0}}; }
    ~Maps() {
        RT(cudaDeviceSynchronize());
        CU(cuMemUnmap(home, total));
        CU(cuMemUnmap(view, total));
        for (Handle x : h) CU(cuMemRelease(x));
        CU(cuMemAddressFree(home, total));
        CU(cuMemAddressFree(view, total));
    }
};

static std::mt19937_64 rng(20261121);
static size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(rng); }
// Draws a range in units of 512 B with a log-uniform length; one draw in 16 gives the whole range.
static void draw(size_t lo, size_t hi, size_t& o, size_t& len) {
    size_t units = (hi - lo) / 512;
    double u = std::uniform_real_distribution<double>(0, 1)(rng);
    size_t k = below(16) == 0 ? units : std::min(units, size_t(std::exp2(u * std::log2(double(units) + 1))));
    k = std::max<size_t>(k, 1);
    len = k * 512;
    o = lo + below(units - k + 1) * 512;
}

struct Chain {  // one chain of work: scratch memory, counters, events
    CUdeviceptr scratch;
    size_t scratch_bytes;
    uint32_t* base;
    ull* wrong;
    uint32_t* pinned;
    static constexpr size_t pinned_bytes = 256 * KiB;
    CUevent e[2];
    uint32_t salt = 1;
    std::map<std::string, ull> kinds;
    explicit Chain(size_t bytes) : scratch_bytes(bytes) {
        CU(cuMemAlloc(&scratch, bytes));
        RT(cudaMalloc(&base, 4));
        RT(cudaMemset(base, 0, 4));
        RT(cudaMalloc(&wrong, 8));
        RT(cudaMemset(wrong, 0, 8));
        RT(cudaHostAlloc(&pinned, pinned_bytes, 0));
        for (auto& x : e) CU(cuEventCreate(&x, CU_EVENT_DISABLE_TIMING));
    }
    ull take() {
        ull w;
        RT(cudaDeviceSynchronize());
        RT(cudaMemcpy(&w, wrong, 8, cudaMemcpyDeviceToHost));
        RT(cudaMemset(wrong, 0, 8));
        RT(cudaDeviceSynchronize());
        return w;
    }
};
static unsigned grid(size_t words) {
    static const unsigned g[] = {528, 132, 7, 2, 1};
    return g[below(words > 256 * KiB ? 2 : words > 16 * KiB ? 3 : 5)];
}
static void hop(Chain& c, int k, CUstream from, CUstream to) {
    if (from == to) return;
    CU(cuEventRecord(c.e[k], from));
    CU(cuStreamWaitEvent(to, c.e[k], 0));
}

enum Writer { KERNEL, MEMSET, COPY_D, COPY_H, BULK, ATOMIC, WRITERS };
static const char* writer_name[] = {"kernel", "memset", "copy_dtod", "copy_htod", "bulk", "atomic"};

// Writes w to every word of the side, with the given writer. The scratch copy holds the block in block order.
static Want write(Chain& c, const Side& side, size_t words, Writer how, CUstream s) {
    Want w{c.base, c.salt++, how == MEMSET};
    if (how == COPY_D || how == COPY_H)
        k_write<<<grid(words), 256, 0, s>>>(how == COPY_D ? (uint32_t*)c.scratch : c.pinned, words, 0, w);
    for (const Piece& x : side) {
        switch (how) {
            case KERNEL:
                k_write<<<grid(x.words), 256, 0, s>>>((uint32_t*)x.p, x.words, x.first, w);
                break;
            case BULK:
                k_write_bulk<<<grid(x.words), 256, 0, s>>>((uint32_t*)x.p, x.words, x.first, w);
                break;
            case ATOMIC:
                k_write_atomic<<<grid(x.words), 256, 0, s>>>((uint32_t*)x.p, x.words, x.first, w);
                break;
            case MEMSET:
                CU(cuMemsetD32Async(x.p, value(w.salt, 0), x.words, s));
                break;
            case COPY_D:
                CU(cuMemcpyDtoDAsync(x.p, c.scratch + 4 * size_t(x.first), x.words * 4, s));
                break;
            default:
                CU(cuMemcpyHtoDAsync(x.p, c.pinned + x.first, x.words * 4, s));
        }
    }
    return w;
}
enum Reader { PLAIN, READ_ONLY, BULK_COPY, READERS };
static int reader() { return int(below(READERS)); }
static void check(Chain& c, const Side& side, Want w, int how, CUstream s) {
    for (const Piece& x : side)
        if (how == BULK_COPY)
            k_check_bulk<<<grid(x.words), 256, 0, s>>>((uint32_t*)x.p, x.words, x.first, w, c.wrong);
        else
            k_check<<<grid(x.words), 256, 0, s>>>((uint32_t*)x.p, x.words, x.first, w, how == READ_ONLY,
                                                  c.wrong);
}
static void check_copy(Chain& c, const Side& side, size_t words, Want w, CUstream s) {
    bool host = words * 4 <= Chain::pinned_bytes && below(2);
    for (const Piece& x : side)
        if (host) CU(cuMemcpyDtoHAsync(c.pinned + x.first, x.p, x.words * 4, s));
        else CU(cuMemcpyDtoDAsync(c.scratch + 4 * size_t(x.first), x.p, x.words * 4, s));
    k_check<<<grid(words), 256, 0, s>>>(host ? c.pinned : (uint32_t*)c.scratch, words, 0, w, 0, c.wrong);
}

// One change of owner: writes through a, reads and writes through b, reads through a, and copies back with
// memcpy. The checks through a before b writes leave a's lines in the caches; later reads must not find these
// old lines.
static void round_trip(Chain& c, const Side& a, const Side& b, size_t words, CUstream s1, CUstream s2) {
    auto pick = [&] {
        Writer w = Writer(below(WRITERS));
        if (w == COPY_H && words * 4 > Chain::pinned_bytes) w = KERNEL;
        c.kinds[writer_name[w]]++;
        return w;
    };
    Want w1 = write(c, a, words, pick(), s1);
    check(c, a, w1, reader(), s1);
    hop(c, 0, s1, s2);
    Want w2;
    if (below(2)) {
        w2 = Want{c.base, c.salt++, 0};
        for (const Piece& x : b)
            k_check_write<<<grid(x.words), 256, 0, s2>>>((uint32_t*)x.p, x.words, x.first, w1, w2, c.wrong);
    } else {
        check(c, b, w1, reader(), s2);
        w2 = write(c, b, words, pick(), s2);
    }
    hop(c, 1, s2, s1);
    check(c, a, w2, reader(), s1);
    check_copy(c, a, words, w2, s1);
    check(c, b, w2, reader(), s1);
    RT(cudaGetLastError());
}

static std::string kinds(const Chain& c) {
    std::string s = "writers:";
    for (auto& k : c.kinds) s += " " + k.first + "=" + std::to_string(k.second);
    return s;
}
