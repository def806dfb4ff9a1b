/*
 * millpond: memory resources for GPUs.
 *
 * A stack of resources is built from text, such as "cuda+pool:initial=1GiB+statistics", and hands
 * out blocks of device memory in the order of a stream:
 *
 *     millpond_device *device;
 *     millpond_resource *pool;
 *     void *block;
 *     if (millpond_device_open("cuda:0", &device) ||
 *         millpond_resource_new(device, "cuda+pool", &pool) ||
 *         millpond_allocate(pool, 1000, 0, stream, &block))
 *       return puts(millpond_error_message()), 1;
 *     millpond_deallocate(pool, block, 1000, 0, stream);
 *     millpond_resource_free(pool);
 *     millpond_device_free(device);
 *
 * Rules for all functions:
 *
 * - A function that can fail returns a millpond_status. It writes its results only if it succeeds.
 * - A handle that a function returns belongs to the caller, who ends it with the _free function of
 *   its type. The _free functions ignore null; other functions refuse it.
 * - A stream is a cudaStream_t or a CUstream. Null is the legacy default stream. A stream has to
 *   belong to the device and to live during the call.
 * - Every function may be called on any thread. No function throws, except those that say so.
 * - In a forked child, functions that use a device fail.
 *
 * C++ programs have classes over these functions: millpond/millpond.hpp, and for CCCL
 * millpond/memory_resource.hpp.
 *
 * The declarations come from capi/src, and everything else from capi/millpond.h.in: edit those.
 */

#ifndef MILLPOND_H
#define MILLPOND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ================================================================================================
 * Version
 *
 * The macros are the version of this header; the functions are the version of the loaded library.
 * ============================================================================================= */

#define MILLPOND_VERSION "0.1.0"
#define MILLPOND_VERSION_MAJOR 0
#define MILLPOND_VERSION_MINOR 1
#define MILLPOND_VERSION_PATCH 0
#define MILLPOND_ABI_VERSION 0

/// The version of the library, as `0.1.0`. Never freed.
const char *millpond_version(void);

/// The version of this interface. It grows by 1 with each change that breaks programs; functions
/// may be added without one.
uint32_t millpond_abi_version(void);

/* ================================================================================================
 * Errors
 *
 * Each thread keeps the error of its last failing call.
 * ============================================================================================= */

/// The outcome of a call.
typedef enum millpond_status {
  /// The call did what it says.
  MILLPOND_STATUS_OK = 0,
  /// There is no free block of that size, even after waiting for the device.
  MILLPOND_STATUS_OUT_OF_MEMORY = 1,
  /// An argument is invalid in any state of memory.
  MILLPOND_STATUS_INVALID_ARGUMENT = 2,
  /// The text of a stack cannot be read, or names something that does not exist.
  MILLPOND_STATUS_INVALID_STACK = 3,
  /// There is no CUDA driver, or no such device.
  MILLPOND_STATUS_NO_DEVICE = 4,
  /// The driver or the device cannot do it.
  MILLPOND_STATUS_UNSUPPORTED = 5,
  /// The driver reported an error.
  MILLPOND_STATUS_DRIVER = 6,
  /// An earlier error of the driver cannot be recovered from, or the device's context was reset.
  MILLPOND_STATUS_POISONED = 7,
  /// Reading or writing a file failed.
  MILLPOND_STATUS_IO = 8,
  /// A fault of millpond itself. Please report it.
  MILLPOND_STATUS_INTERNAL = 9,
  /// Another thread's call is in a resource that lets one thread in at a time, and does not end.
  MILLPOND_STATUS_BUSY = 10,
} millpond_status;

/// What was wrong at the last failing call on this thread, and what to do about it. Valid until the
/// thread's next failing call.
const char *millpond_error_message(void);

/// The state of memory at the last failing call on this thread, and what would have helped, as
/// text. Null if the call did not run out of memory, or nothing is known. Valid until the thread's
/// next failing call.
const char *millpond_error_report(void);

/// The same as JSON.
const char *millpond_error_report_json(void);

/// The code of the driver (`CUresult`) at the last failing call on this thread; 0 if it was no
/// error of the driver.
int32_t millpond_error_driver_code(void);

/// Ends a text that this library handed out. Does nothing for null.
///
/// Requires: `text` is null, or from a function of this library that says so, and ends here.
void millpond_string_free(char *text);

/* ================================================================================================
 * Devices
 * ============================================================================================= */

/// A device. A simulated one lives as long as its handles, resources and blocks.
typedef struct millpond_device millpond_device;

/// Opens a device: `cuda:0`, or a simulated one, as `sim:h200`, `sim:8GiB` or `sim:FILE.toml`,
/// which is a new one each time. Null is the default device of the process, which is one device:
/// the one of `MILLPOND_DEVICE`; else that of `LOCAL_RANK`, if CUDA sees several; else `cuda:0`;
/// else a simulated H200. A handle alone uses no memory of a CUDA device: the first stack or call
/// there makes its context.
///
/// Requires: `name` is null or a string; `device` may be written.
millpond_status millpond_device_open(const char *name, millpond_device **device);

/// Opens the device with this number: `ordinal` of CUDA's, or that of a simulated device that is
/// open.
///
/// Requires: `device` may be written.
millpond_status millpond_device_find(uint32_t ordinal, bool is_simulated, millpond_device **device);

/// Opens the calling thread's current device: that of CUDA's current context, else the default
/// device, as `millpond_device_open` says of null. If CUDA cannot be used, a simulated device has
/// to be open.
///
/// Requires: `device` may be written.
millpond_status millpond_device_current(millpond_device **device);

/// Ends a handle. Does nothing for null.
///
/// Requires: `device` is null, or a handle of this library's that ends here.
void millpond_device_free(millpond_device *device);

/// The number of the device; -1 for null.
///
/// Requires: `device` is null or a handle of this library's.
int32_t millpond_device_ordinal(const millpond_device *device);

/// Whether the device is simulated; `false` for null.
///
/// Requires: `device` is null or a handle of this library's.
bool millpond_device_is_simulated(const millpond_device *device);

/// The name of the device, as `NVIDIA H200`; ended by `millpond_string_free`.
///
/// Requires: `device` is a handle of this library's; `name` may be written.
millpond_status millpond_device_name(const millpond_device *device, char **name);

/// The free and total bytes of the device.
///
/// Requires: `device` is a handle of this library's; both numbers may be written.
millpond_status millpond_device_memory_info(const millpond_device *device, uint64_t *free_bytes,
                                            uint64_t *total_bytes);

/// Waits for all work on the device.
///
/// Requires: `device` is a handle of this library's.
millpond_status millpond_device_synchronize(const millpond_device *device);

/// Whether CUDA can be used: then the numbers of devices are CUDA's, in `millpond_malloc`, too.
bool millpond_cuda_is_available(void);

/* ================================================================================================
 * Streams
 * ============================================================================================= */

/// Makes a stream of the device. Ended by `millpond_stream_destroy`.
///
/// Requires: `device` is a handle of this library's; `stream` may be written.
millpond_status millpond_stream_create(const millpond_device *device, bool is_non_blocking,
                                       void **stream);

/// Ends a stream; its work goes on to its end.
///
/// Requires: `device` is a handle of this library's; the stream is from `millpond_stream_create`
/// with this device.
millpond_status millpond_stream_destroy(const millpond_device *device, void *stream);

/// Waits for the work of a stream.
///
/// Requires: `device` is a handle of this library's; the stream is alive.
millpond_status millpond_stream_synchronize(const millpond_device *device, void *stream);

/// Whether the work of a stream is done.
///
/// Requires: `device` is a handle of this library's; the stream is alive; `is_done` may be written.
millpond_status millpond_stream_query(const millpond_device *device, void *stream, bool *is_done);

/// Makes the later work of `stream` wait for what was submitted to `other`.
///
/// Requires: `device` is a handle of this library's; both streams are alive.
millpond_status millpond_stream_wait(const millpond_device *device, void *stream, void *other);

/// Opens the device of a stream: that of its context, and for a default stream (0, 1 or 2), or
/// without CUDA, the calling thread's current device.
///
/// Requires: The stream is alive; `device` may be written.
millpond_status millpond_stream_device(void *stream, millpond_device **device);

/* ================================================================================================
 * Copies
 * ============================================================================================= */

/// Copies from the host to the device, in the order of the stream.
///
/// Requires: `device` is a handle of this library's; the stream is alive; `bytes` bytes may be read
/// from `source` until the stream has passed the copy, and written to `target` in the order of the
/// stream.
millpond_status millpond_copy_to_device(const millpond_device *device, void *target,
                                        const void *source, uint64_t bytes, void *stream);

/// Copies from the device to the host, in the order of the stream.
///
/// Requires: As `millpond_copy_to_device`, with host and device exchanged.
millpond_status millpond_copy_to_host(const millpond_device *device, void *target,
                                      const void *source, uint64_t bytes, void *stream);

/// Copies on the device, in the order of the stream.
///
/// Requires: `device` is a handle of this library's; the stream is alive; the ranges hold `bytes`
/// bytes and may be used in the order of the stream.
millpond_status millpond_copy_on_device(const millpond_device *device, void *target,
                                        const void *source, uint64_t bytes, void *stream);

/// Copies from another device to this one, in the order of the stream, and waits for it. Neither
/// device needs access to the other's memory. Between devices of two machines, as simulated ones
/// are, the host passes the bytes on.
///
/// Requires: Both devices are handles of this library's; the stream is of `device`, and alive; the
/// ranges hold `bytes` bytes; the work on the source is done, and the target may be used in the
/// order of the stream.
millpond_status millpond_copy_from_device(const millpond_device *device, void *target,
                                          const millpond_device *source_device, const void *source,
                                          uint64_t bytes, void *stream);

/// Sets each byte of a range of the device's memory, in the order of the stream.
///
/// Requires: As `millpond_copy_on_device`.
millpond_status millpond_fill(const millpond_device *device, void *target, uint8_t value,
                              uint64_t bytes, void *stream);

/// Moves managed memory to the device, or to the host, in the order of the stream. Memory that is
/// not managed is refused.
///
/// Requires: `device` is a handle of this library's; the stream is alive; the range holds `bytes`
/// bytes.
millpond_status millpond_prefetch(const millpond_device *device, void *target, uint64_t bytes,
                                  bool to_host, void *stream);

/* ================================================================================================
 * Stacks of resources
 *
 * Device, managed and pinned host memory come from resources alike: the base of a stack decides.
 * ============================================================================================= */

/// A resource, with all that stands below it. It lives as long as one of its handles, or a resource
/// on it.
typedef struct millpond_resource millpond_resource;

/// Builds a stack from text, as `cuda+pool:initial=1GiB+statistics`, on a device; null is the
/// default device, as in `millpond_device_open`.
///
/// Requires: `device` is null or a handle of this library's; `stack` is a string; `resource` may be
/// written.
millpond_status millpond_resource_new(const millpond_device *device, const char *stack,
                                      millpond_resource **resource);

/// Builds layers from text, as `pool:initial=1GiB+statistics`, on a resource, which stays the
/// caller's.
///
/// Requires: `upstream` is a handle of this library's; `layer` is a string; `resource` may be
/// written.
millpond_status millpond_resource_layer(const millpond_resource *upstream, const char *layer,
                                        millpond_resource **resource);

/// Builds layers from text on a resource, which stays the caller's; the outermost layer gets a file
/// as the value of `key`, for example `file` of `logging`. The path is data: any bytes but zero,
/// and no part of it is read as a stack. Names in braces in it stand for something else, as `{pid}`
/// for the process.
///
/// Requires: `upstream` is a handle of this library's; `layer`, `key` and `path` are strings;
/// `resource` may be written.
millpond_status millpond_resource_layer_file(const millpond_resource *upstream, const char *layer,
                                             const char *key, const char *path,
                                             millpond_resource **resource);

/// Puts bins on a resource: requests up to `sizes[i]` bytes, beyond the next smaller bin, go to
/// `resources[i]`, or to fixed-size blocks from `upstream` where that is null. All handles stay the
/// caller's.
///
/// Requires: `upstream` is a handle of this library's; `sizes` and `resources` hold `count` values,
/// and the latter are null or handles of this library's; `resource` may be written.
millpond_status millpond_resource_binning(const millpond_resource *upstream, const uint64_t *sizes,
                                          const millpond_resource *const *resources, size_t count,
                                          millpond_resource **resource);

/// Makes a resource over a pool of the driver's (`CUmemoryPool`) that stays the caller's.
///
/// Requires: `device` is a handle of this library's; the pool is of this device's context and lives
/// as long as the resource and its blocks; `resource` may be written.
millpond_status millpond_resource_async_view(const millpond_device *device, void *pool,
                                             millpond_resource **resource);

/// Makes another handle of the same resource.
///
/// Requires: `resource` is a handle of this library's; `clone` may be written.
millpond_status millpond_resource_clone(const millpond_resource *resource,
                                        millpond_resource **clone);

/// Ends a handle; the resource ends with its last one. Does nothing for null.
///
/// Requires: `resource` is null, or a handle of this library's that ends here.
void millpond_resource_free(millpond_resource *resource);

/// Whether a block of one may be given back to the other; `false` if one is null.
///
/// Requires: Both are null or handles of this library's.
bool millpond_resource_is_equal(const millpond_resource *one, const millpond_resource *other);

/// The number of owners of a resource: handles of it, resources on it, and the registry of
/// defaults. 0 for null.
///
/// Requires: `resource` is null or a handle of this library's.
size_t millpond_resource_owners(const millpond_resource *resource);

/// The text of the stack, base first; ended by `millpond_string_free`.
///
/// Requires: `resource` is a handle of this library's; `text` may be written.
millpond_status millpond_resource_text(const millpond_resource *resource, char **text);

/// The name of the outermost layer, as in a stack's text. Ended by `millpond_string_free`.
///
/// Requires: `resource` is a handle of this library's; `name` may be written.
millpond_status millpond_resource_name(const millpond_resource *resource, char **name);

/// The resource that the outermost layer stands on, as a handle of the caller's; null if it is a
/// base.
///
/// Requires: `resource` is a handle of this library's; `upstream` may be written.
millpond_status millpond_resource_upstream(const millpond_resource *resource,
                                           millpond_resource **upstream);

/// The device of a resource, as a handle of the caller's.
///
/// Requires: `resource` is a handle of this library's; `device` may be written.
millpond_status millpond_resource_device(const millpond_resource *resource,
                                         millpond_device **device);

/// What reaches the memory at its address: the device, and the host.
///
/// Requires: `resource` is a handle of this library's; both may be written.
millpond_status millpond_resource_accessibility(const millpond_resource *resource, bool *by_device,
                                                bool *by_host);

/// The driver's pool (`CUmemoryPool`) of the base `cuda_async`, `cuda_async_view` or
/// `cuda_async_managed`.
///
/// Requires: `resource` is a handle of this library's; `pool` may be written.
millpond_status millpond_async_pool(const millpond_resource *resource, void **pool);

/// Reads an amount of memory, as `4GiB`: its bytes, or its percentage of the free memory if it is
/// one, as `50%`; the other is 0. A small number without a unit is refused.
///
/// Requires: `size` is a string; both results may be written.
millpond_status millpond_parse_size(const char *size, uint64_t *bytes, double *percent);

/* ================================================================================================
 * Allocating and freeing
 * ============================================================================================= */

/// Hands out a block for use on `stream`, at a multiple of `alignment` (at least 256; 0 is that,
/// too). No bytes are a null pointer.
///
/// Requires: `resource` is a handle of this library's; the stream is alive and of the device; `ptr`
/// may be written.
millpond_status millpond_allocate(const millpond_resource *resource, uint64_t bytes,
                                  uint64_t alignment, void *stream, void **ptr);

/// Takes a block back, in the order of `stream`. Does nothing for a null pointer. A block that the
/// resource refuses (foreign, free already, of another size) is an invalid argument; it is reported
/// as `millpond::misuse`, and counted.
///
/// Requires: `resource` is a handle of this library's; the block is from `millpond_allocate` of it
/// with these bytes and this alignment, comes back once, and all work that uses it is ordered
/// before the stream's next work; the stream is alive and of the device.
millpond_status millpond_deallocate(const millpond_resource *resource, void *ptr, uint64_t bytes,
                                    uint64_t alignment, void *stream);

/// Hands out a block that any stream may use at once; waits for the device if it has to.
///
/// Requires: `resource` is a handle of this library's; `ptr` may be written.
millpond_status millpond_allocate_sync(const millpond_resource *resource, uint64_t bytes,
                                       uint64_t alignment, void **ptr);

/// Takes a block back that nothing uses any more, whichever streams used it.
///
/// Requires: As for `millpond_deallocate`, and all work that uses the block is done.
millpond_status millpond_deallocate_sync(const millpond_resource *resource, void *ptr,
                                         uint64_t bytes, uint64_t alignment);

/// Gives free memory back to the device until at most `keep_bytes` are held. `freed_bytes` may be
/// null.
///
/// Requires: `resource` is a handle of this library's; `freed_bytes` is null or may be written.
millpond_status millpond_resource_trim(const millpond_resource *resource, uint64_t keep_bytes,
                                       uint64_t *freed_bytes);

/* ================================================================================================
 * Statistics
 * ============================================================================================= */

/// What a resource counts. All sizes are in bytes.
typedef struct millpond_statistics {
  /// Bytes in blocks handed out, after rounding.
  uint64_t bytes_in_use;
  /// Bytes in blocks handed out, as asked for.
  uint64_t bytes_requested;
  /// The highest `bytes_in_use` so far.
  uint64_t peak_bytes_in_use;
  /// Bytes held from below: in use and free.
  uint64_t bytes_reserved;
  /// The highest `bytes_reserved` so far.
  uint64_t peak_bytes_reserved;
  /// The largest free block.
  uint64_t largest_free_block;
  /// Blocks handed out now.
  uint64_t blocks_in_use;
  /// Free blocks held.
  uint64_t blocks_free;
  /// Successful allocations so far.
  uint64_t allocations;
  /// Accepted deallocations so far.
  uint64_t deallocations;
  /// Deallocations refused.
  uint64_t misuses;
} millpond_statistics;

/// What the nearest layer counts that keeps counts. `MILLPOND_STATUS_UNSUPPORTED` if none does.
///
/// Requires: `resource` is a handle of this library's; `statistics` may be written.
millpond_status millpond_resource_statistics(const millpond_resource *resource,
                                             millpond_statistics *statistics);

/// The bytes that are free, with what the resource could hand out again, and the total bytes.
///
/// Requires: `resource` is a handle of this library's; both numbers may be written.
millpond_status millpond_resource_memory_info(const millpond_resource *resource,
                                              uint64_t *free_bytes, uint64_t *total_bytes);

/// Begins the peaks and totals of all layers anew.
///
/// Requires: `resource` is a handle of this library's.
millpond_status millpond_resource_clear_counters(const millpond_resource *resource);

/// The counters of one level of the adaptor `statistics`; signed, since blocks may be older than
/// the level.
typedef struct millpond_level_counters {
  /// Bytes in use.
  int64_t current_bytes;
  /// The most of them in the level.
  int64_t peak_bytes;
  /// The sum of all allocations.
  int64_t total_bytes;
  /// Blocks in use.
  int64_t current_count;
  /// The most of them in the level.
  int64_t peak_count;
  /// All allocations.
  int64_t total_count;
} millpond_level_counters;

/// The counters of the present level of the adaptor `statistics`.
///
/// Requires: `resource` is a handle of this library's; `counters` may be written.
millpond_status millpond_statistics_counters(const millpond_resource *resource,
                                             millpond_level_counters *counters);

/// Starts a level with all counters at zero; `counters` are those of the level below.
///
/// Requires: `resource` is a handle of this library's; `counters` may be written.
millpond_status millpond_statistics_push(const millpond_resource *resource,
                                         millpond_level_counters *counters);

/// Ends the present level, whose counters are returned and go into the level below.
///
/// Requires: `resource` is a handle of this library's; `counters` may be written.
millpond_status millpond_statistics_pop(const millpond_resource *resource,
                                        millpond_level_counters *counters);

/// The bytes that the adaptor `limiting` has handed out, and its limit in bytes.
///
/// Requires: `resource` is a handle of this library's; both numbers may be written.
millpond_status millpond_limiting_counts(const millpond_resource *resource,
                                         uint64_t *allocated_bytes, uint64_t *limit_bytes);

/// The number of bins of the adaptor `binning`, which is the outermost layer, and one of them: the
/// largest request that it serves in bytes, and the resource that was given for it, as a handle of
/// the caller's; null if the bin has blocks of its own, or if `bin` is past the last one.
///
/// Requires: `resource` is a handle of this library's; the results may be written.
millpond_status millpond_binning_bin(const millpond_resource *resource, size_t bin, size_t *count,
                                     uint64_t *bytes, millpond_resource **of_bin);

/* ================================================================================================
 * Reports and logs
 * ============================================================================================= */

/// The memory of the whole stack now, as text for people, or as JSON; ended by
/// `millpond_string_free`.
///
/// Requires: `resource` is a handle of this library's; `report` may be written.
millpond_status millpond_resource_memory_report(const millpond_resource *resource, bool as_json,
                                                char **report);

/// The block in use that starts at `ptr`, as JSON: what the layers know of it. Null if none knows
/// it. Ended by `millpond_string_free`.
///
/// Requires: `resource` is a handle of this library's; `block` may be written.
millpond_status millpond_resource_block_at(const millpond_resource *resource, void *ptr,
                                           char **block);

/// The allocations that the adaptor `tracking` knows and that were not given back, as text; their
/// bytes go to `bytes`. Ended by `millpond_string_free`.
///
/// Requires: `resource` is a handle of this library's; both results may be written.
millpond_status millpond_tracking_outstanding(const millpond_resource *resource, uint64_t *bytes,
                                              char **text);

/// The file that the outermost log of a stack writes, with the names in braces replaced; null if
/// the log has no file. `MILLPOND_STATUS_UNSUPPORTED` if no layer logs. Ended by
/// `millpond_string_free`.
///
/// Requires: `resource` is a handle of this library's; `path` may be written.
millpond_status millpond_logging_file(const millpond_resource *resource, char **path);

/// Writes all rows that the adaptor `logging` holds.
///
/// Requires: `resource` is a handle of this library's.
millpond_status millpond_logging_flush(const millpond_resource *resource);

/// Sets the least grave level of lines that are written: 0 is `trace`, then `debug`, `info`,
/// `warn`, `error`, `critical`, and 6 is `off`.
millpond_status millpond_set_logging_level(int32_t level);

/// The least grave level of lines that are written, as a number of `millpond_set_logging_level`.
///
/// Requires: `level` may be written.
millpond_status millpond_logging_level(int32_t *level);

/// Writes the lines that wait. Each line is handed to the system at once, so this is for files
/// whose system keeps lines back.
millpond_status millpond_flush_logger(void);

/* ================================================================================================
 * The default resource of each device
 * ============================================================================================= */

/// The default resource of the calling thread's current device, as of `millpond_device_current`.
///
/// Requires: `resource` may be written.
millpond_status millpond_get_current_device_resource(millpond_resource **resource);

/// The default resource of a device: the one that was set, or else the stack of the environment
/// variable `MILLPOND_STACK`, or else plain CUDA.
///
/// Requires: `device` is a handle of this library's; `resource` may be written.
millpond_status millpond_get_per_device_resource(const millpond_device *device,
                                                 millpond_resource **resource);

/// Makes a resource the default of its device. The one before goes to `previous`, unless that is
/// null; it is null if the device had no default yet. Blocks still go back to the resource that
/// they came from.
///
/// Requires: `resource` is a handle of this library's, and stays the caller's; `previous` is null
/// or may be written.
millpond_status millpond_set_per_device_resource(const millpond_resource *resource,
                                                 millpond_resource **previous);

/// Restores the initial default of a device.
///
/// Requires: `device` is a handle of this library's.
millpond_status millpond_reset_per_device_resource(const millpond_device *device);

/* ================================================================================================
 * Resources and handlers of the program's own
 * ============================================================================================= */

/// Hands out a block, or null if memory is out.
typedef void *(*millpond_allocate_function)(void *context, uint64_t bytes, uint64_t alignment,
               void *stream);

/// Takes a block back.
typedef void (*millpond_deallocate_function)(void *context, void *ptr, uint64_t bytes,
              uint64_t alignment, void *stream);

/// Frees memory that the program can spare for a request of `bytes`; whether to try the request
/// again.
typedef bool (*millpond_failure_function)(void *context, uint64_t bytes);

/// Whether the calling thread is to end its wait.
typedef bool (*millpond_interrupt_function)(void);

/// Ends a context. May be null.
typedef void (*millpond_end_function)(void *context);

/// Makes a resource of two functions. `end` gets `context` when the resource has ended, also if
/// this call fails.
///
/// Requires: `device` is a handle of this library's; `resource` may be written. The functions may
/// be called on any thread, do not unwind, and keep the contract of a resource: blocks do not
/// overlap, are of the device, hold the bytes, start at a multiple of the alignment, and are
/// ordered for the stream. A function may submit work that uses a block to that stream, unless the
/// stream captures a graph.
millpond_status millpond_resource_callback(const millpond_device *device,
                                           millpond_allocate_function allocate,
                                           millpond_deallocate_function deallocate, void *context,
                                           millpond_end_function end, millpond_resource **resource);

/// Puts a handler on a resource: when memory is out, `handle` frees what the program can spare, and
/// says whether to try again. `end` gets `context` when the resource has ended, also if this call
/// fails.
///
/// Requires: `upstream` is a handle of this library's; `resource` may be written. The functions may
/// be called on any thread, and do not unwind.
millpond_status millpond_resource_failure_callback(const millpond_resource *upstream,
                                                   millpond_failure_function handle, void *context,
                                                   millpond_end_function end,
                                                   millpond_resource **resource);

/// Sets the function that a wait for memory calls from time to time, on the thread that waits; null
/// sets none. If it returns `true`, the wait ends, and the request fails. The function may be
/// called on any thread, and does not unwind.
void millpond_set_interrupt(millpond_interrupt_function ask);

/* ================================================================================================
 * malloc and free for frameworks
 *
 * PyTorch and CuPy call these. They use the default resource of the device.
 * ============================================================================================= */

/// Allocates `bytes` for use on `stream` from the default resource of the device with this number.
/// Null if that fails: `millpond_error_message` says why.
///
/// Requires: The stream is alive and of the device, as long as the block.
void *millpond_malloc(size_t bytes, int32_t device, void *stream);

/// Frees a block, in the order of the stream that it was allocated on, and after all work on the
/// streams that `millpond_record_stream` named. A null pointer is ignored, and so is every block in
/// a forked copy of the process. What `bytes`, `device` and `stream` say is not looked at: the
/// block knows it.
///
/// Requires: The block is from `millpond_malloc`; all work that uses it, on other streams than
/// those recorded, is ordered before the next work of the stream that it was allocated on.
void millpond_free(void *ptr, size_t bytes, int32_t device, void *stream);

/// Announces that work on `stream` uses a block, which then goes back only after that work.
///
/// Requires: The stream is alive, and of the block's device, until the block is freed; if it
/// captures a graph then, it lives on.
millpond_status millpond_record_stream(void *ptr, void *stream);

/// The block of `millpond_malloc` in which an address lies is found by its start: `bytes` is its
/// size.
///
/// Requires: `bytes` may be written.
millpond_status millpond_block_size(void *ptr, uint64_t *bytes);

/// Gives the free memory of the default resources of all devices that were asked for memory back to
/// the driver.
millpond_status millpond_empty_cache(void);

/// How many frees were ignored since their blocks had been lost in a reset of the device's context,
/// and another block had their address.
uint64_t millpond_stale_frees(void);

/// `millpond_malloc`, but throws `std::runtime_error` with the text of the error. If memory is out,
/// the text begins as PyTorch's own does, `CUDA out of memory.`: libraries that try a smaller batch
/// then look for it.
///
/// Requires: As for `millpond_malloc`; the caller is C++, or lets its exceptions pass.
void *millpond_malloc_or_throw(size_t bytes, int32_t device, void *stream);

/// Allocates for CuPy's `CFunctionAllocator`, on the legacy default stream; throws `std::bad_alloc`
/// if memory is out, which CuPy makes a `MemoryError`. `parameter` is not used.
///
/// Requires: As for `millpond_malloc`; the caller is C++, or lets its exceptions pass.
void *millpond_cupy_malloc(void *parameter, size_t bytes, int32_t device);

/// Frees a block of `millpond_cupy_malloc`.
///
/// Requires: As for `millpond_free`.
void millpond_cupy_free(void *parameter, void *ptr, int32_t device);

/* ================================================================================================
 * The pools of PyTorch's captured graphs
 * ============================================================================================= */

/// PyTorch's name of a pool (`c10::MempoolId_t`, a `std::pair` of these numbers, which is passed
/// like this).
typedef struct millpond_graph_pool_id {
  /// Not 0 for a pool that a graph made for itself.
  uint64_t first;
  /// Not 0 for a pool that the program named.
  uint64_t second;
} millpond_graph_pool_id;

/// Begins to serve the streams of the next capture on the device from a pool: the capture that the
/// calling thread begins after this call. For PyTorch's `set_begin_allocate_to_pool`; throws
/// `std::runtime_error`.
///
/// Requires: The caller is C++, or lets its exceptions pass. `filter` is not used.
void millpond_begin_allocate_to_pool(int32_t device, millpond_graph_pool_id pool,
                                     const void *filter);

/// Ends that, once the capture has ended. What was allocated stays with the pool. For PyTorch's
/// `set_end_allocate_to_pool_fn`.
void millpond_end_allocate_to_pool(int32_t device, millpond_graph_pool_id pool);

/// Releases a graph's use of a pool. With the last one the pool's memory goes back, once the device
/// has passed all work. For PyTorch's `set_release_pool`.
void millpond_release_pool(int32_t device, millpond_graph_pool_id pool);

/* ================================================================================================
 * Memory managers (NBEP 7) and handles for other processes
 *
 * Numba uses this interface.
 * ============================================================================================= */

/// A memory manager over the default resource of its device, whichever that is when it first
/// allocates.
typedef struct millpond_manager millpond_manager;

/// Memory of a manager. A manager's reset ends the memory, and leaves the handle to be freed.
typedef struct millpond_memory millpond_memory;

/// Cleanup that is deferred until this is freed.
typedef struct millpond_deferral millpond_deferral;

/// Makes a memory manager over the device's default resource.
///
/// Requires: `device` is a handle of this library's; `manager` may be written.
millpond_status millpond_manager_new(const millpond_device *device, millpond_manager **manager);

/// Ends a handle. Memory of the manager stays until it is freed. Does nothing for null.
///
/// Requires: `manager` is null, or a handle of this library's that ends here.
void millpond_manager_free(millpond_manager *manager);

/// Makes the manager ready, again after a reset.
///
/// Requires: `manager` is a handle of this library's.
millpond_status millpond_manager_initialize(const millpond_manager *manager);

/// Allocates on `stream`, and returns the address and what frees it. No bytes are a null address.
///
/// Requires: `manager` is a handle of this library's; the stream is alive and of its device; both
/// results may be written.
millpond_status millpond_manager_allocate(const millpond_manager *manager, uint64_t bytes,
                                          void *stream, uint64_t *address,
                                          millpond_memory **memory);

/// Frees memory, on any thread, also after a reset of the manager or of the device's context. Does
/// nothing for null.
///
/// Requires: `memory` is null, or a handle of this library's that ends here.
void millpond_memory_free(millpond_memory *memory);

/// Whether the memory is there, and no reset has ended it; `false` for null.
///
/// Requires: `memory` is null or a handle of this library's.
bool millpond_memory_is_live(const millpond_memory *memory);

/// Announces that work on `stream` uses the memory, so that it goes back only after that work.
///
/// Requires: Both are handles of this library's; the stream is alive and of the device.
millpond_status millpond_manager_record_stream(const millpond_manager *manager,
                                               const millpond_memory *memory, void *stream);

/// The free bytes, with what the manager's stack could hand out again, and the total bytes.
///
/// Requires: `manager` is a handle of this library's; both numbers may be written.
millpond_status millpond_manager_memory_info(const millpond_manager *manager, uint64_t *free_bytes,
                                             uint64_t *total_bytes);

/// CUDA's legacy handle of the memory for another process: 64 bytes, and where the memory starts
/// inside of what the handle names.
///
/// Requires: Both are handles of this library's; 64 bytes may be written at `handle`, and a number
/// at `offset`.
millpond_status millpond_manager_ipc_handle(const millpond_manager *manager,
                                            const millpond_memory *memory, uint8_t *handle,
                                            uint64_t *offset);

/// Ends all memory of the manager.
///
/// Requires: `manager` is a handle of this library's.
millpond_status millpond_manager_reset(const millpond_manager *manager);

/// Puts cleanup off until `millpond_deferral_free`: memory that is freed meanwhile is kept.
///
/// Requires: `manager` is a handle of this library's; `deferral` may be written.
millpond_status millpond_manager_defer(const millpond_manager *manager,
                                       millpond_deferral **deferral);

/// Ends a deferral. Does nothing for null.
///
/// Requires: `deferral` is null, or a handle of this library's that ends here.
void millpond_deferral_free(millpond_deferral *deferral);

/* ================================================================================================
 * For bindings to other languages
 *
 * The first functions keep the order of streams around a use of memory; the others serve callers
 * that hold a lock, such as Python's.
 * ============================================================================================= */

/// Waits for all work on the device, as `millpond_device_synchronize`, and ends no capture of a
/// graph.
///
/// Requires: `device` is a handle of this library's.
millpond_status millpond_device_wait(const millpond_device *device);

/// The identity of a stream, by which `millpond_stream_follow_if_alive` knows it again.
///
/// Requires: `device` is a handle of this library's; the stream is alive; `id` may be written.
millpond_status millpond_stream_id(const millpond_device *device, void *stream, uint64_t *id);

/// Makes the later work of `stream` wait for what was submitted to `other`, as
/// `millpond_stream_wait`. If the driver refuses that, the host waits for `other`. If one of the
/// two captures a graph to which the other does not belong, the host waits for the device: work
/// from before the capture runs, and captured work does not yet. No capture ends by it.
///
/// Requires: `device` is a handle of this library's; both streams are alive.
millpond_status millpond_stream_follow(const millpond_device *device, void *stream, void *other);

/// The same for a stream of an earlier call, which may have ended since: `id` is what
/// `millpond_stream_id` said of it then. If the stream is not known to live, or one of the two
/// captures a graph, the host waits for the device. No capture ends by it.
///
/// Requires: `device` is a handle of this library's; `stream` is alive.
millpond_status millpond_stream_follow_if_alive(const millpond_device *device, void *stream,
                                                void *other, uint64_t id);

/// Releases a lock of the caller's before a call that may wait; returns what the caller needs to
/// take it again, as `PyEval_SaveThread`.
typedef void *(*millpond_leave_function)(void);

/// Takes that lock again after the call, as `PyEval_RestoreThread`.
typedef void (*millpond_enter_function)(void*);

/// `millpond_malloc` for a caller that holds a lock: a block that the thread has cached is handed
/// out at once, and for all else the lock is released meanwhile.
///
/// Requires: As for `millpond_malloc`; both functions may be called, and do not unwind.
void *millpond_malloc_unlocked(size_t bytes, int32_t device, void *stream,
                               millpond_leave_function leave, millpond_enter_function enter);

/// `millpond_free` for a caller that holds a lock, in the same way.
///
/// Requires: As for `millpond_free`; both functions may be called, and do not unwind.
void millpond_free_unlocked(void *ptr, millpond_leave_function leave,
                            millpond_enter_function enter);

/// Hands out a block that the calling thread has cached for a default stream (0, 1 or 2). `false`
/// if it has none, if the outermost layer is no pool, or if `if_default` is set and the resource is
/// not (or no longer) the default of the thread's current device.
///
/// Requires: `resource` is a handle of this library's; `ptr` may be written.
bool millpond_allocate_cached(const millpond_resource *resource, bool if_default, uint64_t bytes,
                              void *stream, void **ptr);

/// Takes a block back into the calling thread's cache for a default stream (0, 1 or 2). `false` if
/// the cache does not take it: the block is still handed out then.
///
/// Requires: As for `millpond_deallocate`, with no alignment; if it returns `false`, the block has
/// not come back.
bool millpond_deallocate_cached(const millpond_resource *resource, void *ptr, uint64_t bytes,
                                void *stream);

#ifdef __cplusplus
}
#endif

#endif
