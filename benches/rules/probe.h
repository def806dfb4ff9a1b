#pragma once
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#define OK(x)                                                               \
    do {                                                                    \
        CUresult r_ = (x);                                                  \
        if (r_ != CUDA_SUCCESS) {                                           \
            printf("!! %s:%d %s -> %d\n", __FILE__, __LINE__, #x, (int)r_); \
            fflush(stdout);                                                 \
        }                                                                   \
    } while (0)
static inline double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}
static inline size_t free_bytes() {
    size_t f = 0, t = 0;
    CUresult r = cuMemGetInfo(&f, &t);
    return r ? 0 : f;
}
static inline CUmemAllocationProp vmm_prop(int dev) {
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = dev;
    return p;
}
static inline CUmemAccessDesc vmm_access(int dev) {
    CUmemAccessDesc a;
    a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    a.location.id = dev;
    a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return a;
}
// Runs f in a child process that has not used CUDA; prints a signal or a timeout.
static inline void child(const char *name, std::function<void()> f) {
    printf("-- %s\n", name);
    fflush(stdout);
    pid_t p = fork();
    if (p == 0) {
        f();
        fflush(stdout);
        _exit(0);
    }
    int st = 0;
    for (int i = 0; i < 1200; i++) {
        if (waitpid(p, &st, WNOHANG) == p) {
            if (WIFSIGNALED(st))
                printf("   ended by signal %d\n", WTERMSIG(st));
            fflush(stdout);
            return;
        }
        usleep(50000);
    }
    kill(p, 9);
    waitpid(p, &st, 0);
    printf("   HUNG, killed\n");
    fflush(stdout);
}
