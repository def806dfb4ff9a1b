// Allocates with cudaMalloc, cudaMallocAsync and cudaMallocManaged, and prints what a kernel wrote.
#include <chrono>
#include <cstdio>
#include <cuda_runtime.h>

__global__ void fill(unsigned* values, size_t count, unsigned seed)
{
    for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
        values[i] = (unsigned)i * 2654435761u + seed;
}

static void check(cudaError_t error, int line)
{
    if (error != cudaSuccess) {
        printf("line %d: %s\n", line, cudaGetErrorString(error));
        exit(3);
    }
}
#define CHECK(call) check(call, __LINE__)

int main()
{
    size_t const count = 1 << 22, bytes = count * sizeof(unsigned);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    unsigned *kept, *managed, sum = 0;
    CHECK(cudaMalloc(&kept, 512u << 20));
    CHECK(cudaMallocManaged(&managed, bytes));
    auto start = std::chrono::steady_clock::now();
    for (int run = 0; run < 2000; run++) {
        if (run == 200) start = std::chrono::steady_clock::now();
        unsigned *plain, *ordered, last;
        if (run % 20 == 0) CHECK(cudaMalloc(&plain, bytes));
        CHECK(cudaMallocAsync(&ordered, bytes, stream));
        fill<<<64, 256, 0, stream>>>(ordered, count, run);
        CHECK(cudaMemcpyAsync(&last, ordered + count - 1, sizeof last, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaFreeAsync(ordered, stream));
        CHECK(cudaStreamSynchronize(stream));
        if (run % 20 == 0) CHECK(cudaFree(plain));
        sum += last;
    }
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fprintf(stderr, "loop %.6f\n", seconds);
    printf("%08x\n", sum);
    cudaMalloc(nullptr, 8);
    cudaFree((void*)0x1230);
    printf("%d\n", (int)cudaGetLastError());
    fflush(stdout);
    _Exit(0);
}
