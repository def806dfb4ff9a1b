// Is it sound to map one physical handle at two addresses at once? Every test counts wrong words. Planted
// faults (canaries) show that each check can fail. The exit code is 1 if a test that must pass had a wrong
// word.
#include <atomic>
#include <thread>

#include "alias.cuh"

static CUstream st_[4];

static void disjoint(size_t bytes) {
    Maps m({bytes}, {0});
    CUdeviceptr third = reserve(bytes);
    map(third, m.h[0], bytes);
    access(third, bytes);
    ull* wrong;
    Gate* g;
    RT(cudaMalloc(&wrong, 8));
    RT(cudaMalloc(&g, sizeof(Gate)));
    size_t words = bytes / 4;
    std::vector<uint32_t> host(words);
    struct Form {
        const char* name;
        uint32_t stripe;
        int cut;
    };
    const Form forms[] = {{"halves", 0, 1},
                          {"random 512 B border", 0, 2},
                          {"512 B stripes", 128, 0},
                          {"128 B stripes (finer than promised)", 32, 0},
                          {"32 B stripes (finer)", 8, 0},
                          {"16 B stripes (finer)", 4, 0},
                          {"4 B stripes (finer)", 1, 0}};
    for (const Form& f : forms) {
        RT(cudaMemset(wrong, 0, 8));
        uint32_t last = 0;
        int rounds = bytes > 64 * MiB ? 10 : bytes > 8 * MiB ? 40 : 200, together = 0;
        ull host_wrong = 0;
        for (int r = 0; r < rounds; r++) {
            uint32_t seed = uint32_t(rng());
            size_t cut = f.cut == 1 ? words / 2 : below(words / 128 + 1) * 128;
            int passes = 4;
            Gate init{0, {~0ull, ~0ull}, {0, 0}}, got;
            RT(cudaMemcpy(g, &init, sizeof init, cudaMemcpyHostToDevice));
            RT(cudaMemset((void*)m.home, 0xEE, bytes));
            RT(cudaDeviceSynchronize());
            k_pair<<<66, 256, 0, st_[0]>>>((uint32_t*)m.home, words, cut, f.stripe, 0, seed, passes, g,
                                           wrong);
            k_pair<<<66, 256, 0, st_[1]>>>((uint32_t*)m.view, words, cut, f.stripe, 1, seed, passes, g,
                                           wrong);
            RT(cudaDeviceSynchronize());
            last = seed + (passes - 1) * 2;
            for (CUdeviceptr p : {m.home, m.view, third})
                k_pair_check<<<264, 256>>>((uint32_t*)p, words, cut, f.stripe, last, wrong);
            RT(cudaMemcpy(&got, g, sizeof got, cudaMemcpyDeviceToHost));
            together += std::min(got.end[0], got.end[1]) > std::max(got.start[0], got.start[1]);
            if (r < (bytes > 64 * MiB ? 1 : 2)) {  // check once more without a kernel
                RT(cudaMemcpy(host.data(), (void*)(r ? third : m.home), bytes, cudaMemcpyDeviceToHost));
                for (size_t i = 0; i < words; i++) {
                    bool who = f.stripe ? (i / f.stripe) & 1 : i >= cut;
                    host_wrong += host[i] != value(last + who, uint32_t(i));
                }
            }
        }
        ull w;
        RT(cudaMemcpy(&w, wrong, 8, cudaMemcpyDeviceToHost));
        verdict("disjoint " + mib(bytes) + ", " + f.name, rounds, w + host_wrong, true,
                "overlapping rounds: " + std::to_string(together) + " of " + std::to_string(rounds));
        if (together * 10 < rounds * 9) {
            printf("alias\ttoo few rounds overlapped\tFAIL\n");
            failures++;
        }
        if (f.stripe == 128) {
            RT(cudaMemset(wrong, 0, 8));
            k_poke<<<1, 1>>>((uint32_t*)m.view + below(words));
            k_pair_check<<<264, 256>>>((uint32_t*)m.home, words, 0, f.stripe, last, wrong);
            RT(cudaMemcpy(&w, wrong, 8, cudaMemcpyDeviceToHost));
            canary("one word changed", w, 1);
        }
    }
    RT(cudaFree(wrong));
    RT(cudaFree(g));
    CU(cuMemUnmap(third, bytes));
    CU(cuMemAddressFree(third, bytes));
}

static void hand_over(const char* name, Maps& m, int rounds, int streams, bool swap) {
    Chain c(m.total);
    for (int r = 0; r < rounds; r++) {
        size_t o, len;
        draw(0, m.total, o, len);
        Side a = m.at_home(o, len), b = m.in_view(o, len);
        if (swap && below(2)) std::swap(a, b);
        round_trip(c, a, b, len / 4, st_[0], streams > 1 ? st_[1] : st_[0]);
    }
    verdict(std::string("hand-over ") + name + (streams > 1 ? ", two streams" : ", one stream"), rounds,
            c.take(), true, kinds(c));
    if (streams == 1) {  // the check at home must see a wrong word planted through the view
        size_t words = m.total / 4;
        Want w = write(c, m.in_view(0, m.total), words, KERNEL, st_[0]);
        k_poke<<<1, 1, 0, st_[0]>>>((uint32_t*)m.view + below(words));
        check(c, m.at_home(0, m.total), w, 0, st_[0]);
        check_copy(c, m.at_home(0, m.total), words, w, st_[0]);
        canary("one word changed through the view", c.take(), 2);
    }
    CU(cuMemFree(c.scratch));
}

static void graphs(const char* name, Maps& m, int count, int trips, int replays, bool fork) {
    Chain c(m.total);
    for (int g = 0; g < count; g++) {
        CUgraph graph;
        CUgraphExec exec;
        CU(cuStreamBeginCapture(st_[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        k_bump<<<1, 1, 0, st_[0]>>>(c.base);
        for (int r = 0; r < trips; r++) {
            size_t o, len;
            draw(0, m.total, o, len);
            Side a = m.at_home(o, len), b = m.in_view(o, len);
            if (below(2)) std::swap(a, b);
            round_trip(c, a, b, len / 4, st_[0], fork ? st_[1] : st_[0]);
        }
        CU(cuStreamEndCapture(st_[0], &graph));
        CU(cuGraphInstantiate(&exec, graph, 0));
        for (int i = 0; i < replays; i++) CU(cuGraphLaunch(exec, st_[0]));
        RT(cudaDeviceSynchronize());
        CU(cuGraphExecDestroy(exec));
        CU(cuGraphDestroy(graph));
    }
    verdict(std::string("hand-over in a graph, ") + name + (fork ? ", fork and join" : ", one chain"),
            ull(count) * trips * replays, c.take(), true, kinds(c));
    CU(cuMemFree(c.scratch));
}

// Two blocks of one handle change owners at the same time, on the two sides of a moving border.
static void two_chains(size_t bytes, int borders, int trips) {
    Maps m({bytes}, {0});
    Chain x(bytes), y(bytes);
    for (int k = 0; k < borders; k++) {
        size_t cut = (1 + below(bytes / 512 - 1)) * 512, o, len;
        for (int r = 0; r < trips; r++) {
            draw(0, cut, o, len);
            round_trip(x, m.at_home(o, len), m.in_view(o, len), len / 4, st_[0], st_[1]);
            draw(cut, bytes, o, len);
            round_trip(y, m.in_view(o, len), m.at_home(o, len), len / 4, st_[2], st_[3]);
        }
        RT(cudaDeviceSynchronize());
    }
    verdict("two chains at once on the two sides of a border, " + mib(bytes), 2ull * borders * trips,
            x.take() + y.take(), true);
    CU(cuMemFree(x.scratch));
    CU(cuMemFree(y.scratch));
}

// One handle at many accessible addresses; the block moves from one address to the next.
static void many(size_t bytes, int n, int rounds) {
    Handle h = create(bytes);
    std::vector<CUdeviceptr> at;
    for (int i = 0; i < n; i++) {
        at.push_back(reserve(bytes));
        map(at[i], h, bytes);
        access(at[i], bytes);
    }
    Chain c(bytes);
    for (int r = 0; r < rounds; r++) {
        size_t o, len;
        draw(0, bytes, o, len);
        Side a{{at[r % n] + o, len / 4, 0}}, b{{at[below(n)] + o, len / 4, 0}};
        round_trip(c, a, b, len / 4, st_[0], st_[r & 1]);
    }
    verdict("one " + mib(bytes) + " handle at " + std::to_string(n) + " addresses", rounds, c.take(), true);
    for (CUdeviceptr p : at) {
        CU(cuMemUnmap(p, bytes));
        CU(cuMemAddressFree(p, bytes));
    }
    CU(cuMemRelease(h));
    CU(cuMemFree(c.scratch));
}

// Maps, uses and unmaps views while kernels use the other half of the same handles.
static void map_under_load(int n, size_t each, int views) {
    std::vector<int> order(n);
    for (int i = 0; i < n; i++) order[i] = i;
    Maps m(std::vector<size_t>(n, each), order);
    Chain busy(each), c(each);
    std::atomic<bool> stop{false};
    std::atomic<ull> behind{0};
    std::thread load([&] {
        CU(cuCtxSetCurrent(context));
        std::mt19937_64 mine(7);
        CUevent done[8];
        for (auto& d : done) CU(cuEventCreate(&d, CU_EVENT_DISABLE_TIMING));
        for (ull k = 0; !stop; k++) {
            int i = int(mine() % n);
            size_t words = each / 8;  // the lower half
            uint32_t* a = (uint32_t*)(m.home + i * each);
            uint32_t* b = (uint32_t*)(m.view + i * each);
            if (mine() & 1) std::swap(a, b);
            Want w1{busy.base, uint32_t(mine()), 0}, w2{busy.base, uint32_t(mine()), 0};
            k_write<<<33, 256, 0, st_[2]>>>(a, words, 0, w1);
            k_check_write<<<33, 256, 0, st_[2]>>>(b, words, 0, w1, w2, busy.wrong);
            k_check<<<33, 256, 0, st_[2]>>>(a, words, 0, w2, 0, busy.wrong);
            if (k >= 8) CU(cuEventSynchronize(done[k % 8]));
            CU(cuEventRecord(done[k % 8], st_[2]));
            behind++;
        }
    });
    CUdeviceptr view = reserve(n * each);
    for (int v = 0; v < views; v++) {
        std::shuffle(order.begin(), order.end(), rng);
        int k = 1 + int(below(n));
        for (int i = 0; i < k; i++) map(view + i * each, m.h[order[i]], each);
        access(view, k * each);
        for (int r = 0; r < 4; r++) {
            int i = int(below(k));
            size_t o, len;
            draw(each / 2, each, o, len);
            Side a{{m.home + order[i] * each + o, len / 4, 0}}, b{{view + i * each + o, len / 4, 0}};
            if (below(2)) std::swap(a, b);
            round_trip(c, a, b, len / 4, st_[0], st_[1]);
        }
        CU(cuStreamSynchronize(st_[0]));
        CU(cuMemUnmap(view, k * each));
    }
    stop = true;
    load.join();
    ull rounds = behind;
    verdict("views mapped, used and unmapped under load, " + std::to_string(n) + " x " + mib(each),
            views * 4ull + rounds, c.take() + busy.take(), true,
            "rounds of the load: " + std::to_string(rounds));
    CU(cuMemAddressFree(view, n * each));
    CU(cuMemFree(c.scratch));
    CU(cuMemFree(busy.scratch));
}

// Kernels that overlap through programmatic dependent launch: the reader is resident before the writer
// writes.
__global__ void k_pdl_write(uint32_t* p, size_t n, Want w) {
    cudaTriggerProgrammaticLaunchCompletion();
    ull t = globaltimer();
    while (globaltimer() - t < 5000) {}
    EACH(i, n) st(p + i, w(uint32_t(i)));
}
__global__ void k_pdl_check(const uint32_t* p, size_t n, Want w, int early, int wait, ull* wrong) {
    uint32_t sum = 0;
    if (early) EACH(i, n) sum += ld_ca(p + i);  // leaves old lines in the first-level cache
    if (wait) cudaGridDependencySynchronize();
    ull bad = 0;
    EACH(i, n) bad += ld_ca(p + i) != w(uint32_t(i));
    if (bad || sum == 0xFFFFFFFFu) atomicAdd(wrong, bad);
    cudaGridDependencySynchronize();
}
static void programmatic(int early, int wait, bool alias, bool must) {
    Maps m({2 * MiB}, {0});
    Chain c(512);
    int rounds = 2000;
    for (int r = 0; r < rounds; r++) {
        size_t words = 128 * (1 + below(512));
        unsigned blocks = 16;
        Want w{c.base, c.salt++, 0};
        uint32_t* a = (uint32_t*)m.home;
        uint32_t* b = (uint32_t*)(alias ? m.view : m.home);
        if (r & 1) std::swap(a, b);
        k_pdl_write<<<blocks, 256, 0, st_[0]>>>(a, words, w);
        cudaLaunchConfig_t cfg{};
        cfg.gridDim = blocks;
        cfg.blockDim = 256;
        cfg.stream = st_[0];
        cudaLaunchAttribute at{};
        at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        at.val.programmaticStreamSerializationAllowed = 1;
        cfg.attrs = &at;
        cfg.numAttrs = 1;
        RT(cudaLaunchKernelEx(&cfg, k_pdl_check, (const uint32_t*)b, words, w, early, wait, c.wrong));
    }
    ull wrong = c.take();
    std::string name = std::string("programmatic dependent launch, ") +
                       (alias ? "other address" : "same address") + (early ? ", reads before" : "") +
                       (wait ? ", waits" : ", does not wait");
    if (!wait) canary(name, wrong, 1);
    else verdict(name, rounds, wrong, must);
}

// Cases without a guarantee: a kernel that already runs, and one thread that uses both addresses.
__global__ void k_resident(const uint32_t* p, const uint32_t* other, volatile int* flags, ull* out) {
    uint32_t before = ld_ca(p + threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) {
        flags[0] = 1;  // no fence here: a fence drops the contents of the first-level cache
        ull t = globaltimer();
        while (!flags[1] && globaltimer() - t < 500000000) {}
    }
    __syncthreads();
    uint32_t plain = ld_ca(p + threadIdx.x), rel, there = ld_ca(other + threadIdx.x);
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(rel) : "l"(p + threadIdx.x) : "memory");
    if (plain == before) atomicAdd(out, 1);           // the plain load returned the old value
    if (rel != 0xABABABABu) atomicAdd(out + 1, 1);    // the relaxed load missed the new value
    if (there != 0xABABABABu) atomicAdd(out + 2, 1);  // the writer's address lacks the new value
}
__global__ void k_set(uint32_t* p) { st(p + threadIdx.x, 0xABABABABu); }
__global__ void k_one_thread(uint32_t* a, uint32_t* b, int fence, ull* out) {
    for (uint32_t i = 0; i < 1024; i++) {
        uint32_t old = ld_ca(b + i);
        st(a + i, old + 1);
        if (fence) __threadfence();
        if (ld_ca(b + i) != old + 1) atomicAdd(out, 1);
    }
}
static void notes() {
    Maps m({2 * MiB}, {0});
    ull* out;
    int* flags;
    RT(cudaHostAlloc(&out, 24, cudaHostAllocMapped));
    RT(cudaHostAlloc(&flags, 8, cudaHostAllocMapped));
    for (int other = 0; other < 2; other++) {
        ull sum[3] = {0, 0, 0};
        for (int r = 0; r < 20; r++) {
            RT(cudaMemset((void*)m.home, 0, 2 * MiB));
            out[0] = out[1] = out[2] = 0;
            flags[0] = flags[1] = 0;
            RT(cudaDeviceSynchronize());
            uint32_t* w = (uint32_t*)(other ? m.view : m.home);
            k_resident<<<1, 64, 0, st_[0]>>>((uint32_t*)m.home, w, flags, out);
            uint64_t t = now();
            while (!*(volatile int*)flags && now() - t < 400000000) {}
            k_set<<<1, 128, 0, st_[1]>>>(w);
            CU(cuStreamSynchronize(st_[1]));
            ((volatile int*)flags)[1] = 1;
            RT(cudaDeviceSynchronize());
            for (int i = 0; i < 3; i++) sum[i] += out[i];
        }
        std::string n = std::string("resident kernel, written by another through ") +
                        (other ? "the other" : "the same") + " address: ";
        verdict(n + "old value by plain load (of 64 words)", 20, sum[0], false);
        verdict(n + "old value by relaxed load", 20, sum[1], false);
        verdict(n + "old value by plain load at the writer's address", 20, sum[2], false);
    }
    for (int k = 0; k < 4; k++) {
        *out = 0;
        k_one_thread<<<1, 1, 0, st_[0]>>>((uint32_t*)m.home, (uint32_t*)(k & 2 ? m.view : m.home), k & 1,
                                          out);
        RT(cudaDeviceSynchronize());
        verdict(std::string("one thread: read b, write a, ") + (k & 1 ? "fence, " : "") + "read b; b is " +
                    (k & 2 ? "the other address" : "the same address") + " (of 1024 words)",
                1, *out, false);
    }
}

int main(int argc, char** argv) {
    if (argc > 1) rng.seed(strtoull(argv[1], nullptr, 10));
    start();
    for (auto& s : st_) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    uint64_t t0 = now();
    for (size_t b : {2 * MiB, 32 * MiB, 128 * MiB}) disjoint(b);
    printf("time\tdisjoint\t%.1f s\n", double(now() - t0) / 1e9);
    t0 = now();
    for (size_t b : {2 * MiB, 32 * MiB, 128 * MiB}) {
        Maps m({b}, {0});
        std::string n = mib(b);
        int rounds = b > 64 * MiB ? 1500 : 4000;
        hand_over(n.c_str(), m, rounds, 1, true);
        hand_over(n.c_str(), m, rounds, 2, true);
        graphs(n.c_str(), m, 4, 40, b > 64 * MiB ? 15 : 40, false);
        graphs(n.c_str(), m, 4, 40, b > 64 * MiB ? 15 : 40, true);
    }
    {
        Maps m({4 * MiB, 2 * MiB, 16 * MiB, 2 * MiB, 8 * MiB, 6 * MiB}, {3, 0, 5, 2, 1, 4});
        const char* n = "view over 6 handles in another order";
        hand_over(n, m, 3000, 1, true);
        hand_over(n, m, 3000, 2, true);
        graphs(n, m, 4, 40, 30, false);
        graphs(n, m, 4, 40, 30, true);
    }
    printf("time\thand-over\t%.1f s\n", double(now() - t0) / 1e9);
    t0 = now();
    two_chains(2 * MiB, 40, 50);
    two_chains(32 * MiB, 40, 50);
    many(2 * MiB, 64, 2000);
    many(32 * MiB, 16, 2000);
    map_under_load(8, 8 * MiB, 300);
    printf("time\tat once\t%.1f s\n", double(now() - t0) / 1e9);
    programmatic(0, 0, true, false);
    programmatic(0, 1, true, true);
    programmatic(1, 1, true, false);
    programmatic(1, 1, false, false);
    notes();
    printf("alias\tfailures\t%d\n", failures);
    return failures ? 1 : 0;
}
