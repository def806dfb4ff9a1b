// Measures addresses, fresh memory and other ways to get memory; queries pointers into mapped memory.
#include "costs.cuh"

static void reservations() {
    for (size_t bytes : {64 * MiB, 64 * GiB, TiB, 16 * TiB, 64 * TiB, 100 * TiB, 128 * TiB}) {
        Sample r, f;
        CUresult e = CUDA_SUCCESS;
        for (int i = 0; i < 20 && e == CUDA_SUCCESS; i++) {
            CUdeviceptr p = 0;
            r.time([&] { e = cuMemAddressReserve(&p, bytes, 0, 0, 0); });
            if (e == CUDA_SUCCESS) f.time([&] { CU(cuMemAddressFree(p, bytes)); });
        }
        std::string p = std::to_string(bytes / MiB) + "MiB";
        r.row("reserve", std::string("reserve: ") + error_name(e), p);
        f.row("reserve", "free", p);
    }
    Handle h = create(2 * MiB);
    for (size_t bytes : {64 * MiB, 64 * GiB, 16 * TiB}) {
        CUdeviceptr p = reserve(bytes);
        for (int where = 0; where < 3; where++) {
            Sample first, m, a, u;
            size_t at = where == 0 ? 0 : where == 1 ? bytes / 2 : bytes - 2 * MiB;
            for (int i = 0; i < 51; i++) {
                uint64_t t = now();
                m.time([&] { map(p + at, h, 2 * MiB); });
                a.time([&] { access(p + at, 2 * MiB); });
                if (i == 0) first.v.push_back(now() - t);
                u.time([&] { CU(cuMemUnmap(p + at, 2 * MiB)); });
            }
            std::string s = mib(bytes) + (where == 0   ? " at the start"
                                          : where == 1 ? " in the middle"
                                                       : " at the end");
            first.row("reserve", "map+set_access inside, first", s);
            m.row("reserve", "map inside", s);
            a.row("reserve", "set_access inside", s);
            u.row("reserve", "unmap inside", s);
        }
        CU(cuMemAddressFree(p, bytes));
    }
    std::vector<CUdeviceptr> many;
    Sample r, m, a, u, f;
    for (int i = 0; i < 500; i++) r.time([&] { many.push_back(reserve(64 * GiB)); });
    for (CUdeviceptr p : many) {
        m.time([&] { map(p, h, 2 * MiB); });
        a.time([&] { access(p, 2 * MiB); });
    }
    for (CUdeviceptr p : many) u.time([&] { CU(cuMemUnmap(p, 2 * MiB)); });
    for (CUdeviceptr p : many) f.time([&] { CU(cuMemAddressFree(p, 64 * GiB)); });
    std::string s = "500 reservations of 64 GiB, one handle mapped in all of them";
    r.row("reserve", "reserve", s);
    m.row("reserve", "map", s);
    a.row("reserve", "set_access", s);
    u.row("reserve", "unmap", s);
    f.row("reserve", "free", s);
    CU(cuMemRelease(h));
}

static double kernel_us(const std::function<void()>& f) {
    static CUevent e[2] = {};
    if (!e[0])
        for (auto& x : e) CU(cuEventCreate(&x, 0));
    CU(cuEventRecord(e[0], s1));
    f();
    CU(cuEventRecord(e[1], s1));
    CU(cuEventSynchronize(e[1]));
    float ms;
    CU(cuEventElapsedTime(&ms, e[0], e[1]));
    return ms * 1e3;
}

static void first_touch() {
    ull *out, *cycles;
    RT(cudaMalloc(&out, 8));
    RT(cudaHostAlloc(&cycles, 64 * 8, cudaHostAllocMapped));
    for (size_t bytes : {2 * MiB, 32 * MiB, 512 * MiB}) {
        Sample pass[3];
        ull nonzero = 0, looked = 0;
        CUdeviceptr a = reserve(bytes);
        for (int r = 0; r < 12; r++) {
            Handle h = create(bytes);
            map(a, h, bytes);
            access(a, bytes);
            RT(cudaMemset(out, 0, 8));
            RT(cudaDeviceSynchronize());
            if (r % 2) {  // half of the rounds look for old contents, half time the first writes
                k_nonzero<<<1056, 256, 0, s1>>>((uint4*)a, bytes / 16, out);
                RT(cudaDeviceSynchronize());
                ull w;
                RT(cudaMemcpy(&w, out, 8, cudaMemcpyDeviceToHost));
                nonzero += w;
                looked += bytes / 16;
            }
            for (int k = 0; k < 3; k++) {
                double us =
                    kernel_us([&] { k_fill<<<1056, 256, 0, s1>>>((uint4*)a, bytes / 16, 0xA5A5A5A5u + r); });
                if (r % 2 == 0) pass[k].v.push_back(uint64_t(us * 1e3));
            }
            CU(cuMemUnmap(a, bytes));
            CU(cuMemRelease(h));
        }
        for (int k = 0; k < 3; k++)
            pass[k].row("first touch", "write kernel, ns on the GPU, pass " + std::to_string(k + 1),
                        mib(bytes));
        printf("first touch\t16 B words not zero in fresh memory\t%s\t%llu of %llu\n", mib(bytes).c_str(),
               nonzero, looked);
        CU(cuMemAddressFree(a, bytes));
    }
    const int n = 64;
    CUdeviceptr a = reserve(n * 2 * MiB), b = reserve(n * 2 * MiB);
    std::vector<Handle> h;
    for (int i = 0; i < n; i++) {
        h.push_back(create(2 * MiB));
        map(a + i * 2 * MiB, h[i], 2 * MiB);
    }
    access(a, n * 2 * MiB);
    for (int k = 0; k < 4; k++) {
        if (k == 2) {
            for (int i = 0; i < n; i++) map(b + i * 2 * MiB, h[i], 2 * MiB);
            access(b, n * 2 * MiB);
        }
        k_latency<<<1, 1, 0, s1>>>((uint32_t*)(k < 2 ? a : b), 2 * MiB / 4, n, cycles);
        RT(cudaDeviceSynchronize());
        Sample s;
        for (int i = 0; i < n; i++) s.v.push_back(cycles[i]);
        const char* what[] = {"first read of fresh 2MiB handles", "again",
                              "first read through a second address", "again, second address"};
        s.row("first touch", "latency, SM cycles", what[k]);
    }
    CU(cuMemUnmap(a, n * 2 * MiB));
    CU(cuMemUnmap(b, n * 2 * MiB));
    for (Handle x : h) CU(cuMemRelease(x));
    CU(cuMemAddressFree(a, n * 2 * MiB));
    CU(cuMemAddressFree(b, n * 2 * MiB));

    // With all memory except about 1 GiB taken, a new handle gets the memory that was just released.
    std::vector<std::pair<Handle, size_t>> held_;
    size_t free_bytes, total;
    CU(cuMemGetInfo(&free_bytes, &total));
    for (size_t piece = 64 * GiB; piece >= 256 * MiB; piece /= 2)
        while (true) {
            CU(cuMemGetInfo(&free_bytes, &total));
            if (free_bytes < piece + 1280 * MiB) break;
            Handle x;
            Sample t;
            CUresult r = CUDA_SUCCESS;
            t.time([&] { r = cuMemCreate(&x, piece, &prop, 0); });
            if (r != CUDA_SUCCESS) break;
            t.row("first touch", "create, filling the device", mib(piece));
            held_.push_back({x, piece});
        }
    CU(cuMemGetInfo(&free_bytes, &total));
    for (size_t bytes : {2 * MiB, 32 * MiB, 512 * MiB}) {
        Sample c, rel;
        ull nonzero = 0, looked = 0;
        CUdeviceptr p = reserve(bytes);
        for (int r = 0; r < 20; r++) {
            Handle x;
            CUresult e = CUDA_SUCCESS;
            c.time([&] { e = cuMemCreate(&x, bytes, &prop, 0); });
            if (e != CUDA_SUCCESS) {
                printf("first touch\ttight create\t%s\t%s\n", mib(bytes).c_str(), error_name(e));
                break;
            }
            map(p, x, bytes);
            access(p, bytes);
            RT(cudaMemset(out, 0, 8));
            RT(cudaDeviceSynchronize());
            k_nonzero<<<1056, 256, 0, s1>>>((uint4*)p, bytes / 16, out);
            k_fill<<<1056, 256, 0, s1>>>((uint4*)p, bytes / 16, 0x5A5A5A5Au);
            RT(cudaDeviceSynchronize());
            ull w;
            RT(cudaMemcpy(&w, out, 8, cudaMemcpyDeviceToHost));
            nonzero += w;
            looked += bytes / 16;
            CU(cuMemUnmap(p, bytes));
            rel.time([&] { CU(cuMemRelease(x)); });
        }
        std::string s = mib(bytes) + " with " + mib(free_bytes) + " free";
        c.row("first touch", "create", s);
        rel.row("first touch", "release", s);
        printf("first touch\t16 B words not zero in fresh memory\t%s\t%llu of %llu\n", s.c_str(), nonzero,
               looked);
        CU(cuMemAddressFree(p, bytes));
    }
    for (auto& x : held_) CU(cuMemRelease(x.first));
    RT(cudaFree(out));
}

static void others() {
    for (size_t bytes : {2 * MiB, 16 * MiB, 32 * MiB, 64 * MiB, 128 * MiB}) {
        const int n = 48;
        std::vector<CUdeviceptr> p(n);
        Sample a, f;
        for (int i = 0; i < n; i++) a.time([&] { CU(cuMemAlloc(&p[i], bytes)); });
        for (int i = 0; i < n; i++) f.time([&] { CU(cuMemFree(p[i])); });
        a.row("others", "cuMemAlloc, fresh, all kept", mib(bytes));
        f.row("others", "cuMemFree", mib(bytes));
        CUmemPoolProps pp{};
        pp.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        pp.location = prop.location;
        CUmemoryPool pool;
        CU(cuMemPoolCreate(&pool, &pp));
        cuuint64_t most = ~0ull;
        CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &most));
        Sample grow, back, again, trim;
        for (int i = 0; i < n; i++) grow.time([&] { CU(cuMemAllocFromPoolAsync(&p[i], bytes, pool, s1)); });
        cuuint64_t reserved = 0, used = 0;
        CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
        CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
        for (int i = 0; i < n; i++) back.time([&] { CU(cuMemFreeAsync(p[i], s1)); });
        CU(cuStreamSynchronize(s1));
        for (int i = 0; i < n; i++) again.time([&] { CU(cuMemAllocFromPoolAsync(&p[i], bytes, pool, s1)); });
        for (int i = 0; i < n; i++) CU(cuMemFreeAsync(p[i], s1));
        CU(cuStreamSynchronize(s1));
        trim.time([&] { CU(cuMemPoolTrimTo(pool, 0)); });
        grow.row("others", "AllocFromPoolAsync, pool grows", mib(bytes));
        again.row("others", "AllocFromPoolAsync, in the pool", mib(bytes));
        back.row("others", "FreeAsync", mib(bytes));
        trim.row("others", "PoolTrimTo 0, ns for each of 48", mib(bytes), n);
        printf("others\tpool after 48\t%s\tused=%llu reserved=%llu\n", mib(bytes).c_str(), (ull)used,
               (ull)reserved);
        if (bytes == 32 * MiB) {  // the first small requests to an empty pool
            Sample small;
            for (int i = 0; i < n; i++)
                small.time([&] { CU(cuMemAllocFromPoolAsync(&p[i], 1 * MiB, pool, s1)); });
            small.row("others", "AllocFromPoolAsync, 1 MiB each, empty pool", "1MiB");
            for (int i = 0; i < n; i++) CU(cuMemFreeAsync(p[i], s1));
        }
        CU(cuStreamSynchronize(s1));
        CU(cuMemPoolDestroy(pool));
    }
    // Does an exportable handle cost more?
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    held("others", 2 * MiB, 300, "2MiB, exportable as a file descriptor");
    held("others", 32 * MiB, 100, "32MiB, exportable as a file descriptor");
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
}

static void slow(Sample& s, const char* what, const std::string& p) {
    size_t ms = 0, us100 = 0;
    uint64_t sum = 0;
    for (uint64_t x : s.v) {
        ms += x > 1000000;
        us100 += x > 100000;
        sum += x;
    }
    printf("extra\t%s\t%s\tover 100 us: %zu, over 1 ms: %zu, of %zu; mean ns %llu\n", what, p.c_str(), us100,
           ms, s.v.size(), (ull)(sum / s.v.size()));
    s.row("extra", what, p);
}

static void extra() {
    {  // after one access call over a range with a hole: is the part behind the hole accessible?
        CUdeviceptr a = reserve(16 * MiB);
        std::vector<Handle> h;
        for (int i = 0; i < 8; i++) h.push_back(create(2 * MiB));
        for (int i = 0; i < 8; i++)
            if (i != 3) map(a + i * 2 * MiB, h[i], 2 * MiB);
        CUresult r = cuMemSetAccess(a, 16 * MiB, &rw, 1);
        ull got[8] = {};
        for (int i = 0; i < 8; i++) {
            CUmemLocation where = prop.location;
            CUresult g = cuMemGetAccess(&got[i], &where, a + i * 2 * MiB);
            if (g != CUDA_SUCCESS) got[i] = 99;
        }
        printf("extra\tset_access over 8 with a hole at 3\t%s\taccess:", error_name(r));
        for (ull g : got) printf(" %llu", g);
        r = cuMemSetAccess(a + 6 * MiB, 10 * MiB, &rw, 1);
        printf("\tbeginning in the hole: %s", error_name(r));
        r = cuMemUnmap(a, 16 * MiB);
        printf("\tunmap over the hole: %s\n", error_name(r));
        if (r != CUDA_SUCCESS)
            for (int i = 0; i < 8; i++)
                if (i != 3) CU(cuMemUnmap(a + i * 2 * MiB, 2 * MiB));
        for (Handle x : h) CU(cuMemRelease(x));
        CU(cuMemAddressFree(a, 16 * MiB));
    }
    {  // which set_access calls cost more when addresses advance by 2 MiB through cold space
        CUdeviceptr big = reserve(4 * TiB), a = (big + TiB) & ~(4 * GiB - 1);
        Handle h = create(2 * MiB);
        const int n = 2048;
        std::vector<uint64_t> t(n);
        for (int i = 0; i < n; i++) {
            map(a + i * 2 * MiB, h, 2 * MiB);
            uint64_t x = now();
            access(a + i * 2 * MiB, 2 * MiB);
            t[i] = now() - x;
        }
        printf("extra\tset_access over 25 us at 2 MiB steps (index:ns)\t");
        for (int i = 0; i < n; i++)
            if (t[i] > 25000) printf("%d:%llu ", i, (ull)t[i]);
        printf("\n");
        CU(cuMemUnmap(a, n * 2 * MiB));
        // The same addresses after everything was unmapped; then with one page per 512 MiB still mapped.
        for (int keep = 0; keep < 2; keep++) {
            if (keep)
                for (int i = 0; i < 8; i++) {
                    map(a + i * 512 * MiB, h, 2 * MiB);
                    access(a + i * 512 * MiB, 2 * MiB);
                }
            Sample s;
            for (int r = 0; r < 25; r++)
                for (int i = 0; i < 8; i++) {
                    CUdeviceptr p = a + i * 512 * MiB + 64 * MiB;
                    map(p, h, 2 * MiB);
                    s.time([&] { access(p, 2 * MiB); });
                    CU(cuMemUnmap(p, 2 * MiB));
                }
            s.row("extra", "set_access, one per 512 MiB",
                  keep ? "another page of the 512 MiB is mapped" : "nothing else is mapped there");
            if (keep)
                for (int i = 0; i < 8; i++) CU(cuMemUnmap(a + i * 512 * MiB, 2 * MiB));
        }
        CU(cuMemRelease(h));
        CU(cuMemAddressFree(big, 4 * TiB));
    }
    // Is a create slow when the device must first clear released memory? Releases 100 GiB, then creates them
    // again.
    for (size_t each : {32 * MiB, 512 * MiB}) {
        int n = int(100 * GiB / each);
        std::vector<Handle> h(n);
        for (int round = 0; round < 3; round++) {
            Sample c, r;
            for (int i = 0; i < n; i++) c.time([&] { h[i] = create(each); });
            std::string p = mib(each) + ", 100 GiB, round " + std::to_string(round);
            slow(c, "create", p);
            for (int i = 0; i < n; i++) r.time([&] { CU(cuMemRelease(h[i])); });
            slow(r, "release", p);
        }
    }
    for (size_t each : {2 * MiB, 32 * MiB, 512 * MiB}) {
        Sample c;
        for (int i = 0; i < 1000; i++) {
            Handle x;
            c.time([&] { x = create(each); });
            CU(cuMemRelease(x));
        }
        slow(c, "create, released at once", mib(each));
    }
}

static void attributes() {
    CUdeviceptr a = reserve(4 * MiB), v = reserve(4 * MiB);
    Handle h[2] = {create(2 * MiB), create(2 * MiB)};
    for (int i = 0; i < 2; i++) {
        map(a + i * 2 * MiB, h[i], 2 * MiB);
        map(v + i * 2 * MiB, h[1 - i], 2 * MiB);
    }
    access(a, 4 * MiB);
    access(v, 4 * MiB);
    struct At {
        const char* name;
        CUpointer_attribute a;
    };
    const At all[] = {{"CONTEXT", CU_POINTER_ATTRIBUTE_CONTEXT},
                      {"MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE},
                      {"DEVICE_POINTER", CU_POINTER_ATTRIBUTE_DEVICE_POINTER},
                      {"BUFFER_ID", CU_POINTER_ATTRIBUTE_BUFFER_ID},
                      {"DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
                      {"IS_LEGACY_CUDA_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE},
                      {"RANGE_START_ADDR", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR},
                      {"RANGE_SIZE", CU_POINTER_ATTRIBUTE_RANGE_SIZE},
                      {"MAPPED", CU_POINTER_ATTRIBUTE_MAPPED},
                      {"ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES},
                      {"MEMPOOL_HANDLE", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE},
                      {"MAPPING_BASE_ADDR", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR},
                      {"MAPPING_SIZE", CU_POINTER_ATTRIBUTE_MAPPING_SIZE}};
    for (CUdeviceptr p : {a + 2 * MiB + 512, v + 2 * MiB + 512}) {
        std::string who = p < v || p >= v + 4 * MiB ? "home" : "view";
        for (const At& x : all) {
            ull value[2] = {0, 0};
            CUresult r = cuPointerGetAttribute(value, x.a, p);
            printf("attributes\t%s\t%s\t%s\tvalue=%llx\n", who.c_str(), x.name, error_name(r), value[0]);
        }
        CUdeviceptr base = 0;
        size_t size = 0;
        CUresult r = cuMemGetAddressRange(&base, &size, p);
        printf("attributes\t%s\tcuMemGetAddressRange\t%s\toffset=%llu size=%zu\n", who.c_str(), error_name(r),
               (ull)(p - base), size);
        CUipcMemHandle ipc;
        printf("attributes\t%s\tcuIpcGetMemHandle\t%s\n", who.c_str(),
               error_name(cuIpcGetMemHandle(&ipc, p & ~(2 * MiB - 1))));
        Handle back = 0;
        r = cuMemRetainAllocationHandle(&back, (void*)p);
        printf("attributes\t%s\tcuMemRetainAllocationHandle\t%s\tsame_handle=%d,%d\n", who.c_str(),
               error_name(r), back == h[0], back == h[1]);
        if (r == CUDA_SUCCESS) CU(cuMemRelease(back));
        r = cuMemcpyDtoD(a, p - 512, 1 * MiB);
        printf("attributes\t%s\tcuMemcpyDtoD\t%s\n", who.c_str(), error_name(r));
        r = cuMemsetD2D8(p - 2 * MiB - 512 + MiB, 4096, 1, 1024, 512);
        printf("attributes\t%s\tcuMemsetD2D8 over a border of handles\t%s\n", who.c_str(), error_name(r));
        r = cuMemcpyPeer(p - MiB, context, p - MiB, context, 4096);
        printf("attributes\t%s\tcuMemcpyPeer within the device\t%s\n", who.c_str(), error_name(r));
    }
    RT(cudaDeviceSynchronize());
    // Releases the handle while it is mapped: the memory stays until the last unmap.
    size_t f0, f1, f2, total;
    CUdeviceptr big = reserve(256 * MiB);
    Handle x = create(256 * MiB);
    map(big, x, 256 * MiB);
    CU(cuMemGetInfo(&f0, &total));
    CU(cuMemRelease(x));
    CU(cuMemGetInfo(&f1, &total));
    Sample u;
    u.time([&] { CU(cuMemUnmap(big, 256 * MiB)); });
    CU(cuMemGetInfo(&f2, &total));
    printf("attributes\trelease while mapped frees MiB\t%zd\tthe last unmap frees MiB\t%zd\n",
           ssize_t(f1 - f0) / ssize_t(MiB), ssize_t(f2 - f1) / ssize_t(MiB));
    u.row("attributes", "last unmap of a released handle", "256MiB");
    for (Sample* s : {&u}) s->v.clear();
}

static void info() {
    int version;
    CU(cuDriverGetVersion(&version));
    char name[100];
    CU(cuDeviceGetName(name, 100, device));
    size_t least, best;
    CU(cuMemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CU(cuMemGetAllocationGranularity(&best, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    printf("info\t%s\tdriver API %d\tgranularity %zu, recommended %zu\n", name, version, least, best);
    Sample timer;
    for (int i = 0; i < 10000; i++) timer.time([] {});
    timer.row("info", "timer", "included in every figure");
    attributes();
}

int main(int argc, char** argv) {
    begin();
    Sections sections(argc, argv);
    sections.run("info", info);
    sections.run("reserve", reservations);
    sections.run("touch", first_touch);
    sections.run("extra", extra);
    sections.run("others", others);
    return 0;
}
