/* A small pool in the manner of RMM's, for the judge's own tests.
 *
 * Each stream has a list of free blocks, and an event that is recorded after each free. A stream takes a block
 * of another list after it waits for that list's event. If no list has a block that is large enough, the
 * stream merges all lists into its own, and then allocates. A stream that captures a graph takes new memory,
 * and the pool keeps the blocks that it frees until the end.
 *
 * FAULT plants a fault:
 *   1  the merge does not record the taker's event again (RMM's issue 2489)
 *   2  a stream takes another list's block without waiting
 *   3  a block that is freed stays in use: it is handed out twice
 *   4  the lock is released before the event is recorded, so that another thread may come between
 *   5  a merged block grows by one byte beyond its end
 *   6  a block that is freed in a capture is handed out again
 *   7  a call that captures forbid is made without the relaxed mode */
#include "../judge/allocator.h"

#include <pthread.h>
#include <stdlib.h>

#ifndef FAULT
#define FAULT 0
#endif

enum { MOST_LISTS = 1024, MOST_BLOCKS = 4096, OUT_OF_MEMORY = 2, UNKNOWN = 999 };

typedef struct CUevent_st *event_type;

int cudaMalloc(void **ptr, size_t bytes);
int cudaFree(void *ptr);
int cudaEventCreateWithFlags(event_type *event, unsigned flags);
int cudaEventDestroy(event_type event);
int cudaEventRecord(event_type event, judge_stream stream);
int cudaStreamWaitEvent(judge_stream stream, event_type event, unsigned flags);
int cudaStreamIsCapturing(judge_stream stream, int *status);
int cudaThreadExchangeStreamCaptureMode(int *mode);
int cudaStreamGetId(judge_stream stream, unsigned long long *id);

struct block {
    char *ptr;
    size_t bytes;
    int list;
};

struct list {
    unsigned long long id;
    event_type event;
    int is_recorded;
};

struct pool {
    pthread_mutex_t lock;
    struct list lists[MOST_LISTS];
    int list_count;
    struct block free[MOST_BLOCKS];
    int free_count;
    struct block captured[MOST_BLOCKS];
    int captured_count;
};

/* Locks the pool, and lets the thread make every call while streams capture; returns the mode before. */
static int enter(struct pool *pool)
{
    int mode = 2;
    pthread_mutex_lock(&pool->lock);
    if (FAULT != 7) cudaThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

static void leave(struct pool *pool, int mode)
{
    if (FAULT != 7) cudaThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_unlock(&pool->lock);
}

static int captures(judge_stream stream)
{
    int status = 0;
    return cudaStreamIsCapturing(stream, &status) != 0 || status != 0;
}

static size_t rounded(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

static int list_of(struct pool *pool, judge_stream stream)
{
    unsigned long long id = 0;
    if (cudaStreamGetId(stream, &id) != 0) return -1;
    for (int at = 0; at < pool->list_count; at++)
        if (pool->lists[at].id == id) return at;
    if (pool->list_count == MOST_LISTS) return -1;
    struct list *made = &pool->lists[pool->list_count];
    made->id = id;
    made->is_recorded = 0;
    if (cudaEventCreateWithFlags(&made->event, 2) != 0) return -1;
    return pool->list_count++;
}

static void wait_for(struct list *list, judge_stream stream)
{
    if (list->is_recorded) cudaStreamWaitEvent(stream, list->event, 0);
}

static void record(struct list *list, judge_stream stream)
{
    if (cudaEventRecord(list->event, stream) == 0) list->is_recorded = 1;
}

/* Takes a free block of these bytes from the list, or from any other list. */
static char *take(struct pool *pool, size_t bytes, int own, int from_others, judge_stream stream)
{
    for (int at = 0; at < pool->free_count; at++) {
        struct block *found = &pool->free[at];
        if (found->bytes != bytes || (found->list != own) != from_others) continue;
        if (from_others && FAULT != 2) wait_for(&pool->lists[found->list], stream);
        char *ptr = found->ptr;
        if (FAULT != 3 || from_others) *found = pool->free[--pool->free_count];
        return ptr;
    }
    return NULL;
}

static void merge(struct pool *pool, int own, judge_stream stream)
{
    int is_merged = 0;
    for (int at = 0; at < pool->free_count; at++) {
        if (pool->free[at].list == own) continue;
        wait_for(&pool->lists[pool->free[at].list], stream);
        pool->free[at].list = own;
        if (FAULT == 5) pool->free[at].bytes += 256;
        is_merged = 1;
    }
    if (is_merged && FAULT != 1) record(&pool->lists[own], stream);
}

static void free_all(struct pool *pool)
{
    while (pool->free_count > 0) cudaFree(pool->free[--pool->free_count].ptr);
}

uint32_t judge_traits(void) { return JUDGE_WORKS_IN_CAPTURES; }

int judge_create(void **allocator)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return UNKNOWN;
    pthread_mutex_init(&pool->lock, NULL);
    *allocator = pool;
    return 0;
}

int judge_allocate(void *allocator, void **ptr, size_t bytes, judge_stream stream)
{
    struct pool *pool = allocator;
    int mode = enter(pool);
    bytes = rounded(bytes);
    if (captures(stream)) {
        int made = cudaMalloc(ptr, bytes);
        leave(pool, mode);
        return made;
    }
    int own = list_of(pool, stream);
    int result = own < 0 ? UNKNOWN : 0;
    *ptr = NULL;
    if (result == 0) *ptr = take(pool, bytes, own, 0, stream);
    if (result == 0 && *ptr == NULL) *ptr = take(pool, bytes, own, 1, stream);
    if (result == 0 && *ptr == NULL) {
        merge(pool, own, stream);
        result = cudaMalloc(ptr, bytes);
        if (result == OUT_OF_MEMORY) {
            free_all(pool);
            result = cudaMalloc(ptr, bytes);
        }
    }
    leave(pool, mode);
    return result;
}

void judge_deallocate(void *allocator, void *ptr, size_t bytes, judge_stream stream)
{
    struct pool *pool = allocator;
    int mode = enter(pool);
    if (FAULT != 6 && captures(stream) && pool->captured_count < MOST_BLOCKS) {
        pool->captured[pool->captured_count++] = (struct block){ptr, rounded(bytes), -1};
        leave(pool, mode);
        return;
    }
    int own = list_of(pool, stream);
    if (own < 0 || pool->free_count == MOST_BLOCKS) {
        cudaFree(ptr);
    } else {
        pool->free[pool->free_count++] = (struct block){ptr, rounded(bytes), own};
        if (FAULT == 4) {
            leave(pool, mode);
            record(&pool->lists[own], stream);
            return;
        }
        record(&pool->lists[own], stream);
    }
    leave(pool, mode);
}

void judge_destroy(void *allocator)
{
    struct pool *pool = allocator;
    free_all(pool);
    while (pool->captured_count > 0) cudaFree(pool->captured[--pool->captured_count].ptr);
    while (pool->list_count > 0) cudaEventDestroy(pool->lists[--pool->list_count].event);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
