// Measures the host's cost of calls for virtual memory management: alone, in batches, while kernels run, and
// from several threads.
#include "costs.cuh"

static void batched(const std::vector<size_t>& sizes, int reps, const std::string& param) {
    Set t;
    int n = int(sizes.size());
    size_t total = 0;
    for (size_t s : sizes) total += s;
    CUdeviceptr home = reserve(total * reps), view = reserve(total * reps);
    std::vector<Handle> h(n);
    for (int r = 0; r < reps; r++) {
        CUdeviceptr a = home + r * total, b = view + r * total;
        auto map_all = [&](CUdeviceptr p) {
            for (int i = 0; i < n; i++) {
                map(p, h[i], sizes[i]);
                p += sizes[i];
            }
        };
        t.create.time([&] {
            for (int i = 0; i < n; i++) h[i] = create(sizes[i]);
        });
        t.map.time([&] { map_all(a); });
        t.access.time([&] { access(a, total); });
        t.map2.time([&] { map_all(b); });
        t.access2.time([&] { access(b, total); });
        t.again.time([&] { access(b, total); });
        t.unmap2.time([&] { CU(cuMemUnmap(b, total)); });
        t.unmap.time([&] { CU(cuMemUnmap(a, total)); });
        t.release.time([&] {
            for (Handle x : h) CU(cuMemRelease(x));
        });
    }
    CU(cuMemAddressFree(home, total * reps));
    CU(cuMemAddressFree(view, total * reps));
    rows(t, "batched, ns a handle", param, n);
}

static void partly(size_t bytes) {
    Sample all_half, only_new, all_old, hole;
    const int n = 16;
    CUresult over_hole = CUDA_SUCCESS, unmapped = CUDA_SUCCESS;
    for (int r = 0; r < 30; r++) {
        CUdeviceptr a = reserve(n * bytes);
        unmapped = cuMemSetAccess(a, bytes, &rw, 1);
        std::vector<Handle> h;
        for (int i = 0; i < n; i++) {
            h.push_back(create(bytes));
            map(a + i * bytes, h[i], bytes);
        }
        access(a, n / 2 * bytes);
        if (r & 1) only_new.time([&] { access(a + n / 2 * bytes, n / 2 * bytes); });
        else all_half.time([&] { access(a, n * bytes); });
        all_old.time([&] { access(a, n * bytes); });
        CU(cuMemUnmap(a + 7 * bytes, bytes));
        over_hole = cuMemSetAccess(a, n * bytes, &rw, 1);
        CU(cuMemUnmap(a, 7 * bytes));
        CU(cuMemUnmap(a + 8 * bytes, 8 * bytes));
        for (Handle x : h) CU(cuMemRelease(x));
        CU(cuMemAddressFree(a, n * bytes));
    }
    std::string p = "16 x " + mib(bytes);
    all_half.row("partly", "set_access over 16, 8 already accessible", p);
    only_new.row("partly", "set_access over the 8 new ones", p);
    all_old.row("partly", "set_access over 16, all accessible", p);
    printf("partly\tset_access over a hole\t%s\t%s\n", p.c_str(), error_name(over_hole));
    printf("partly\tset_access over nothing mapped\t%s\t%s\n", p.c_str(), error_name(unmapped));
}

static void filled(size_t total, size_t each, bool twice) {
    int n = int(total / each);
    CUdeviceptr a = reserve(total), b = reserve(total);
    std::vector<Handle> h(n);
    uint64_t t = now();
    for (int i = 0; i < n; i++) {
        h[i] = create(each);
        map(a + i * each, h[i], each);
    }
    for (int i = 0; i < n; i += 512) access(a + i * each, std::min<size_t>(512, n - i) * each);
    if (twice) {
        for (int i = 0; i < n; i++) map(b + i * each, h[i], each);
        for (int i = 0; i < n; i += 512) access(b + i * each, std::min<size_t>(512, n - i) * each);
    }
    t = now() - t;
    std::string p = std::to_string(total / GiB) + " GiB in " + mib(each) +
                    (twice ? " handles, mapped twice" : " handles");
    printf("filled\tall of it\t%s\tms=%.1f\n", p.c_str(), double(t) / 1e6);
    held("filled", 2 * MiB, 200, "2MiB in addition to " + p);
    held("filled", 32 * MiB, 60, "32MiB in addition to " + p);
    t = now();
    if (twice) CU(cuMemUnmap(b, total));
    CU(cuMemUnmap(a, total));
    uint64_t u = now();
    for (Handle x : h) CU(cuMemRelease(x));
    printf("filled\tunmap all in one call, then release\t%s\tms=%.1f, %.1f\n", p.c_str(), double(u - t) / 1e6,
           double(now() - u) / 1e6);
    CU(cuMemAddressFree(a, total));
    CU(cuMemAddressFree(b, total));
}

// Makes each call while a kernel has 40 ms left to run. A call that waits for the kernel takes 40 ms.
static void stalls(size_t bytes, bool touches) {
    const ull ns = 40000000;
    struct Row {
        std::string what;
        Sample t;
        int still = 0;
    };
    std::vector<Row> rows_;
    CUdeviceptr a = reserve(8 * bytes), home = reserve(bytes);
    Handle used = create(bytes);  // the running kernel writes through this handle's home
    map(home, used, bytes);
    access(home, bytes);
    auto with = [&](size_t k, const char* what, const std::function<void()>& f) {
        if (rows_.size() <= k) rows_.push_back({what, {}, 0});
        Spin spin(ns, touches ? home : 0);
        rows_[k].t.time(f);
        rows_[k].still += spin.running();
        spin.end();
    };
    const int reps = 5;
    for (int r = 0; r < reps; r++) {
        Handle h;
        CUdeviceptr v = 0, p = 0, q = 0;
        size_t k = 0;
        with(k++, "nothing", [&] {});
        with(k++, "create", [&] { h = create(bytes); });
        with(k++, "map", [&] { map(a, h, bytes); });
        with(k++, "set_access", [&] { access(a, bytes); });
        with(k++, "map, second address", [&] { map(a + bytes, h, bytes); });
        with(k++, "set_access, second address", [&] { access(a + bytes, bytes); });
        with(k++, "map the handle in use at a second address", [&] { map(a + 2 * bytes, used, bytes); });
        with(k++, "set_access at the second address of the handle in use",
             [&] { access(a + 2 * bytes, bytes); });
        with(k++, "set_access again at the first address of the handle in use", [&] { access(home, bytes); });
        with(k++, "unmap the second address of the handle in use",
             [&] { CU(cuMemUnmap(a + 2 * bytes, bytes)); });
        with(k++, "unmap, second address", [&] { CU(cuMemUnmap(a + bytes, bytes)); });
        with(k++, "unmap", [&] { CU(cuMemUnmap(a, bytes)); });
        with(k++, "release", [&] { CU(cuMemRelease(h)); });
        with(k++, "reserve 64 GiB", [&] { v = reserve(64 * GiB); });
        with(k++, "free 64 GiB of addresses", [&] { CU(cuMemAddressFree(v, 64 * GiB)); });
        with(k++, "cuMemAlloc", [&] { CU(cuMemAlloc(&p, bytes)); });
        with(k++, "cuMemFree", [&] { CU(cuMemFree(p)); });
        with(k++, "cuMemAllocAsync, first of its size", [&] { CU(cuMemAllocAsync(&q, bytes, s1)); });
        with(k++, "cuMemFreeAsync", [&] { CU(cuMemFreeAsync(q, s1)); });
        CUmemoryPool pool;
        CU(cuDeviceGetDefaultMemPool(&pool, device));
        with(k++, "cuMemPoolTrimTo 0", [&] { CU(cuMemPoolTrimTo(pool, 0)); });
    }
    CU(cuMemUnmap(home, bytes));
    CU(cuMemRelease(used));
    CU(cuMemAddressFree(home, bytes));
    CU(cuMemAddressFree(a, 8 * bytes));
    for (Row& r : rows_)
        r.t.row("stalls",
                r.what + (r.still == reps
                              ? " [does not wait]"
                              : " [kernel finished on return: " + std::to_string(reps - r.still) + " of 5]"),
                mib(bytes) + (touches ? ", kernel writes through the handle" : ""));
}

static void threads(size_t bytes, int n, int each) {
    std::atomic<int> ready{0}, phase{0}, done{0};
    std::vector<std::thread> ts;
    std::vector<Set> sets(n);
    for (int k = 0; k < n; k++)
        ts.emplace_back([&, k] {
            CU(cuCtxSetCurrent(context));
            CUdeviceptr a = reserve(bytes * each);
            std::vector<Handle> h(each);
            ready++;
            while (!phase) {}
            for (int i = 0; i < each; i++) {
                sets[k].create.time([&] { h[i] = create(bytes); });
                sets[k].map.time([&] { map(a + i * bytes, h[i], bytes); });
                sets[k].access.time([&] { access(a + i * bytes, bytes); });
            }
            done++;
            while (phase < 2) {}
            CU(cuMemUnmap(a, bytes * each));
            for (Handle x : h) CU(cuMemRelease(x));
            CU(cuMemAddressFree(a, bytes * each));
        });
    while (ready < n) {}
    uint64_t t = now();
    phase = 1;
    while (done < n) {}
    t = now() - t;
    phase = 2;
    for (auto& x : ts) x.join();
    std::string p = std::to_string(n) + " threads, " + mib(bytes);
    printf("threads\tcreate+map+set_access, wall over all operations\t%s\tn=%d\tns=%.0f\n", p.c_str(),
           n * each, double(t) / (n * each));
    Set all;
    for (Set& s : sets) {
        all.create.v.insert(all.create.v.end(), s.create.v.begin(), s.create.v.end());
        all.map.v.insert(all.map.v.end(), s.map.v.begin(), s.map.v.end());
        all.access.v.insert(all.access.v.end(), s.access.v.begin(), s.access.v.end());
    }
    rows(all, "threads", p);
}

// Measures calls from threads that map now and then, like the misses of a pool.
static void paced(int n) {
    std::atomic<int> stop{0};
    std::vector<Set> sets(n);
    std::vector<std::thread> ts;
    for (int k = 0; k < n; k++)
        ts.emplace_back([&, k] {
            CU(cuCtxSetCurrent(context));
            mapper(2 * MiB, stop, &sets[k], 200000);
        });
    pause_ns(300000000);
    stop = 1;
    for (auto& x : ts) x.join();
    Set all;
    for (Set& s : sets)
        for (Sample Set::* m : {&Set::create, &Set::map, &Set::access, &Set::unmap, &Set::release})
            (all.*m).v.insert((all.*m).v.end(), (s.*m).v.begin(), (s.*m).v.end());
    rows(all, "paced", std::to_string(n) + " threads, 2MiB, pausing 200 us");
}

// Measures launches and event records while other threads map.
static void disturbed(int mappers, size_t bytes, uint64_t pace, bool with_async) {
    std::atomic<int> stop{0};
    std::vector<std::thread> ts;
    for (int k = 0; k < mappers; k++)
        ts.emplace_back([&] {
            CU(cuCtxSetCurrent(context));
            mapper(bytes, stop, nullptr, pace);
        });
    Sample launch, record, query, wait, async;
    CUevent e;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    uint64_t end = now() + 300000000;
    while (now() < end) {
        launch.time([&] { k_nothing<<<1, 1, 0, s1>>>(); });
        record.time([&] { CU(cuEventRecord(e, s1)); });
        query.time([&] { cuEventQuery(e); });
        wait.time([&] { CU(cuStreamWaitEvent(s2, e, 0)); });
        CUdeviceptr p;
        if (with_async)
            async.time([&] {
                CU(cuMemAllocAsync(&p, 1 * MiB, s1));
                CU(cuMemFreeAsync(p, s1));
            });
        uint64_t pause = now() + 10000;
        while (now() < pause) {}
    }
    stop = 1;
    for (auto& x : ts) x.join();
    CU(cuEventDestroy(e));
    std::string p =
        std::to_string(mappers) + " threads that map " + mib(bytes) + (pace ? ", pausing 200 us" : "");
    launch.row("disturbed", "kernel launch", p);
    record.row("disturbed", "event record", p);
    query.row("disturbed", "event query", p);
    wait.row("disturbed", "stream wait", p);
    async.row("disturbed", "AllocAsync and FreeAsync", p);
}

// Does the GPU itself slow down while the host maps? Measures a kernel that writes 256 MiB.
static void slows_gpu() {
    size_t bytes = 256 * MiB;
    CUdeviceptr a = reserve(bytes);
    Handle h[128];
    for (int i = 0; i < 128; i++) {
        h[i] = create(2 * MiB);
        map(a + i * 2 * MiB, h[i], 2 * MiB);
    }
    access(a, bytes);
    for (int mappers = 0; mappers < 3; mappers++) {
        std::atomic<int> stop{0};
        std::vector<std::thread> ts;
        Set t;
        if (mappers)
            ts.emplace_back([&] {
                CU(cuCtxSetCurrent(context));
                if (mappers == 1) mapper(2 * MiB, stop, &t);
                else {  // second mappings of the handles that the kernel uses
                    CUdeviceptr v = reserve(bytes);
                    while (!stop) {
                        for (int i = 0; i < 128; i++) map(v + i * 2 * MiB, h[127 - i], 2 * MiB);
                        access(v, bytes);
                        CU(cuMemUnmap(v, bytes));
                    }
                    CU(cuMemAddressFree(v, bytes));
                }
            });
        Sample ns;
        CUevent e[2];
        for (auto& x : e) CU(cuEventCreate(&x, 0));
        for (int i = 0; i < 600; i++) {
            CU(cuEventRecord(e[0], s1));
            for (int k = 0; k < 4; k++) k_fill<<<1056, 256, 0, s1>>>((uint4*)a, bytes / 16, i);
            CU(cuEventRecord(e[1], s1));
            CU(cuEventSynchronize(e[1]));
            float ms;
            CU(cuEventElapsedTime(&ms, e[0], e[1]));
            ns.v.push_back(uint64_t(ms * 1e6 / 4));
        }
        stop = 1;
        for (auto& x : ts) x.join();
        const char* what[] = {"no thread maps", "one thread maps its own 2MiB handles",
                              "one thread maps the same handles at a second address"};
        ns.row("gpu", "kernel writes 256 MiB (128 handles)", what[mappers]);
        rows(t, "gpu, during that kernel", "2MiB");
    }
    CU(cuMemUnmap(a, bytes));
    for (Handle x : h) CU(cuMemRelease(x));
    CU(cuMemAddressFree(a, bytes));
}

int main(int argc, char** argv) {
    begin();
    Sections sections(argc, argv);
    const size_t sizes[] = {2 * MiB, 4 * MiB, 8 * MiB, 16 * MiB, 32 * MiB, 64 * MiB, 128 * MiB, 512 * MiB};
    auto count = [](size_t b) { return int(std::min<size_t>(600, 40 * GiB / b)); };
    sections.run("single", [&] {
        held("warm-up", 2 * MiB, 50, "2MiB");
        for (size_t b : sizes) held("held", b, count(b), mib(b));
        for (size_t b : sizes) churn("churn", b, 200, mib(b));
    });
    sections.run("batched", [&] {
        for (size_t b : {2 * MiB, 32 * MiB})
            for (int n : {1, 2, 4, 8, 16, 64, 256})
                batched(std::vector<size_t>(n, b), n >= 64 ? 10 : 60, std::to_string(n) + " x " + mib(b));
        batched({2 * MiB, 32 * MiB, 8 * MiB, 2 * MiB, 64 * MiB, 16 * MiB, 4 * MiB, 128 * MiB}, 60,
                "8 of 2..128MiB");
        partly(2 * MiB);
        partly(32 * MiB);
    });
    sections.run("filled", [&] {
        filled(20 * GiB, 2 * MiB, false);
        filled(20 * GiB, 2 * MiB, true);
        filled(80 * GiB, 32 * MiB, false);
    });
    sections.run("stalls", [&] {
        for (size_t b : {2 * MiB, 64 * MiB}) stalls(b, false);
        {
            Spin spin(3000000000ull);
            held("one kernel runs", 2 * MiB, 300, "2MiB");
            held("one kernel runs", 32 * MiB, 100, "32MiB");
            printf("stalls\tthe long kernel still runs after 400 handles were created and released\t%s\n",
                   spin.running() ? "yes" : "NO");
            spin.end();
        }
        {
            Load load(20000);
            held("kernels of 20 us from another thread", 2 * MiB, 400, "2MiB");
            held("kernels of 20 us from another thread", 32 * MiB, 200, "32MiB");
            churn("kernels of 20 us from another thread, churn", 2 * MiB, 300, "2MiB");
        }
        slows_gpu();
        stalls(2 * MiB, true);
    });
    sections.run("threads", [&] {
        for (size_t b : {2 * MiB, 32 * MiB})
            for (int n : {1, 2, 4}) threads(b, n, 200);
        for (int n : {0, 1, 3})
            for (bool async : {false, true}) disturbed(n, 2 * MiB, 0, async);
        for (int n : {1, 3}) disturbed(n, 2 * MiB, 200000, true);
        for (int n : {1, 2, 4, 8}) paced(n);
    });
    return 0;
}
