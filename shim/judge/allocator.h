/* The functions that an allocator's library exports for the judge.
 *
 * The judge calls them from any thread. It makes one allocator for each simulated device, and destroys the
 * allocator before the device ends. A stream is a cudaStream_t. */
#ifndef MILLPOND_JUDGE_ALLOCATOR_H
#define MILLPOND_JUDGE_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *judge_stream;

/* What an allocator does and demands; judge_traits returns the sum. */
enum {
    /* It frees a block in the order of the stream that allocated it, whatever stream the caller names. */
    JUDGE_FREES_ON_OWN_STREAM = 1,
    /* It never destroys its events of per-thread default streams. */
    JUDGE_KEEPS_EVENTS = 2,
    /* It stays correct when driver calls fail. */
    JUDGE_SURVIVES_FAULTS = 4,
    /* It works while streams capture graphs. */
    JUDGE_WORKS_IN_CAPTURES = 8,
    /* It waits for the streams of its blocks when it is destroyed. */
    JUDGE_ENDS_BEFORE_STREAMS = 16,
    /* It serves captures only from scopes. */
    JUDGE_CAPTURES_IN_SCOPES = 32,
};

/* judge_create and judge_allocate return a code of CUDA's runtime: 0 for success, 2 if memory is short. */
uint32_t judge_traits(void);
int judge_create(void **allocator);
int judge_allocate(void *allocator, void **ptr, size_t bytes, judge_stream stream);
void judge_deallocate(void *allocator, void *ptr, size_t bytes, judge_stream stream);
void judge_destroy(void *allocator);

/* An allocator may keep memory for captured graphs in scopes: all of these functions, or none. A scope serves
 * the streams for which it is open, and the streams in their captures. Its memory belongs to its graphs until
 * judge_scope_free. judge_capture tells that a capture begins (1), or that it has ended (0). */
int judge_scope_new(void *allocator, void **scope);
int judge_scope_open(void *scope, judge_stream stream);
void judge_scope_close(void *scope, judge_stream stream);
void judge_scope_free(void *scope);
void judge_capture(void *allocator, int begins);

#ifdef __cplusplus
}
#endif
#endif
