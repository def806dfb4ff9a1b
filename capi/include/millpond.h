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
 * - A handle that a function returns belongs to the caller, who frees it with the _free function of
 *   its type. The _free functions ignore a null handle; other functions refuse it.
 * - A stream is a cudaStream_t or a CUstream. Null is the legacy default stream. A stream must
 *   belong to the device, and must be alive during the call.
 * - Every function may be called on any thread. No function throws, except those that say so.
 * - In a forked child, functions that use a device fail.
 *
 * C++ programs have classes over these functions: millpond/millpond.hpp, for CCCL
 * millpond/memory_resource.hpp, and for Thrust millpond/thrust.hpp.
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

/// Returns the version of the library, such as `0.1.0`. Never free it.
const char *millpond_version(void);

/// Returns the version of this interface. It grows by 1 with each change that breaks programs. A
/// new function alone does not change it.
uint32_t millpond_abi_version(void);

/* ================================================================================================
 * Errors
 *
 * Each thread keeps the error of its last failing call.
 * ============================================================================================= */

/// The outcome of a call.
typedef enum millpond_status {
  /// The call succeeded.
  MILLPOND_STATUS_OK = 0,
  /// No free block is large enough, even after waiting for the device.
  MILLPOND_STATUS_OUT_OF_MEMORY = 1,
  /// An argument is invalid. More free memory would not help.
  MILLPOND_STATUS_INVALID_ARGUMENT = 2,
  /// The text of a stack is malformed, or names a layer or an option that does not exist.
  MILLPOND_STATUS_INVALID_STACK = 3,
  /// There is no CUDA driver, or no such device.
  MILLPOND_STATUS_NO_DEVICE = 4,
  /// The driver or the device does not support the operation.
  MILLPOND_STATUS_UNSUPPORTED = 5,
  /// The driver reported an error.
  MILLPOND_STATUS_DRIVER = 6,
  /// The driver cannot recover from an earlier error, or the device's context was reset.
  MILLPOND_STATUS_POISONED = 7,
  /// Reading or writing a file failed.
  MILLPOND_STATUS_IO = 8,
  /// A bug in millpond. Please report it.
  MILLPOND_STATUS_INTERNAL = 9,
  /// Another thread's call holds a single-threaded resource, and does not end.
  MILLPOND_STATUS_BUSY = 10,
} millpond_status;

/// Returns the reason of the last failed call on this thread, and advice. The text is valid until
/// the thread's next failing call.
const char *millpond_error_message(void);

/// Returns a report of the memory at the last failed call on this thread, and advice, as text.
/// Returns null if the call did not run out of memory, or if there is no report. The text is valid
/// until the thread's next failing call.
const char *millpond_error_report(void);

/// Returns the report of `millpond_error_report` as JSON.
const char *millpond_error_report_json(void);

/// Returns the driver's code (`CUresult`) of the last failed call on this thread. Returns 0 if the
/// driver reported no error.
int32_t millpond_error_driver_code(void);

/// Frees a text from this library. Does nothing for null.
///
/// Requires: `text` is null, or comes from a function whose documentation names this function.
/// `text` is not used again.
void millpond_string_free(char *text);

/* ================================================================================================
 * Devices
 * ============================================================================================= */

/// A device. A simulated device lives as long as its handles, resources and blocks.
typedef struct millpond_device millpond_device;

/// Opens a device: `cuda:0`, or a new simulated device, such as `sim:h200`, `sim:8GiB` or
/// `sim:FILE.toml`. Null opens the default device of the process, which is always the same one. The
/// library chooses the default device by the first rule that applies: `MILLPOND_DEVICE` names it;
/// `LOCAL_RANK` selects it, if CUDA sees several devices; `cuda:0`; a simulated H200. A handle
/// alone uses no memory of a CUDA device. The first stack or call on the device creates the
/// device's context.
///
/// Requires: `name` is null or a string; `device` is valid for writes.
millpond_status millpond_device_open(const char *name, millpond_device **device);

/// Opens the device with this number: CUDA's `ordinal`, or the number of an open simulated device.
///
/// Requires: `device` is valid for writes.
millpond_status millpond_device_find(uint32_t ordinal, bool is_simulated, millpond_device **device);

/// Opens the calling thread's current device: the device of CUDA's current context. If there is no
/// such context, opens the default device, as `millpond_device_open` does for null. If CUDA cannot
/// be used, a simulated device must be open.
///
/// Requires: `device` is valid for writes.
millpond_status millpond_device_current(millpond_device **device);

/// Frees a handle. Does nothing for null.
///
/// Requires: `device` is null, or a handle from this library, and is not used again.
void millpond_device_free(millpond_device *device);

/// Returns the number of the device, or -1 for null.
///
/// Requires: `device` is null or a handle from this library.
int32_t millpond_device_ordinal(const millpond_device *device);

/// Returns whether the device is simulated; `false` for null.
///
/// Requires: `device` is null or a handle from this library.
bool millpond_device_is_simulated(const millpond_device *device);

/// Writes the name of the device, such as `NVIDIA H200`, to `name`; free it with
/// `millpond_string_free`.
///
/// Requires: `device` is a handle from this library; `name` is valid for writes.
millpond_status millpond_device_name(const millpond_device *device, char **name);

/// Writes the free and total bytes of the device.
///
/// Requires: `device` is a handle from this library; both numbers are valid for writes.
millpond_status millpond_device_memory_info(const millpond_device *device, uint64_t *free_bytes,
                                            uint64_t *total_bytes);

/// Waits for all work on the device.
///
/// Requires: `device` is a handle from this library.
millpond_status millpond_device_synchronize(const millpond_device *device);

/// Returns whether CUDA can be used. If it can, device numbers are CUDA's numbers, also in
/// `millpond_malloc`.
bool millpond_cuda_is_available(void);

/* ================================================================================================
 * Streams
 * ============================================================================================= */

/// Makes a stream of the device. Destroy it with `millpond_stream_destroy`.
///
/// Requires: `device` is a handle from this library; `stream` is valid for writes.
millpond_status millpond_stream_create(const millpond_device *device, bool is_non_blocking,
                                       void **stream);

/// Destroys a stream. Work that was submitted to it still runs.
///
/// Requires: `device` is a handle from this library; the stream is from `millpond_stream_create`
/// with this device.
millpond_status millpond_stream_destroy(const millpond_device *device, void *stream);

/// Waits for all work on a stream.
///
/// Requires: `device` is a handle from this library; the stream is alive.
millpond_status millpond_stream_synchronize(const millpond_device *device, void *stream);

/// Sets `is_done` to whether all work of a stream is done.
///
/// Requires: `device` is a handle from this library; the stream is alive; `is_done` is valid for
/// writes.
millpond_status millpond_stream_query(const millpond_device *device, void *stream, bool *is_done);

/// Makes later work of `stream` wait for the work submitted to `other`.
///
/// Requires: `device` is a handle from this library; both streams are alive.
millpond_status millpond_stream_wait(const millpond_device *device, void *stream, void *other);

/// Opens the device of a stream's context. For a default stream (0, 1 or 2), or without CUDA, opens
/// the calling thread's current device.
///
/// Requires: The stream is alive; `device` is valid for writes.
millpond_status millpond_stream_device(void *stream, millpond_device **device);

/* ================================================================================================
 * Copies
 * ============================================================================================= */

/// Copies from the host to the device in stream order.
///
/// Requires: `device` is a handle from this library; the stream is alive; `bytes` bytes can be read
/// from `source` until the stream has finished the copy, and can be written to `target` in stream
/// order.
millpond_status millpond_copy_to_device(const millpond_device *device, void *target,
                                        const void *source, uint64_t bytes, void *stream);

/// Copies from the device to the host in stream order.
///
/// Requires: The rules of `millpond_copy_to_device` hold, with host and device exchanged.
millpond_status millpond_copy_to_host(const millpond_device *device, void *target,
                                      const void *source, uint64_t bytes, void *stream);

/// Copies within the device in stream order.
///
/// Requires: `device` is a handle from this library; the stream is alive; the ranges hold `bytes`
/// bytes and can be used in stream order.
millpond_status millpond_copy_on_device(const millpond_device *device, void *target,
                                        const void *source, uint64_t bytes, void *stream);

/// Copies to the device in stream order, from device memory or host memory. Like
/// `cudaMemcpyDefault`, it finds out which memory the source is. Memory that the driver does not
/// know counts as host memory.
///
/// Requires: As for `millpond_copy_on_device`. Pinned host memory stays as it is until the stream
/// has finished the copy.
millpond_status millpond_copy_from_anywhere(const millpond_device *device, void *target,
                                            const void *source, uint64_t bytes, void *stream);

/// Copies from another device to this one in stream order, and waits for the copy. Neither device
/// needs access to the other's memory. If the devices belong to two machines, as simulated devices
/// do, the bytes go through host memory.
///
/// Requires: Both devices are handles from this library; the stream belongs to `device` and is
/// alive; the ranges hold `bytes` bytes; the work on the source is done, and the target can be used
/// in stream order.
millpond_status millpond_copy_from_device(const millpond_device *device, void *target,
                                          const millpond_device *source_device, const void *source,
                                          uint64_t bytes, void *stream);

/// Sets each byte of a range of the device's memory in stream order.
///
/// Requires: The rules of `millpond_copy_on_device` hold.
millpond_status millpond_fill(const millpond_device *device, void *target, uint8_t value,
                              uint64_t bytes, void *stream);

/// Moves managed memory to the device or to the host in stream order. Fails for memory that is not
/// managed.
///
/// Requires: `device` is a handle from this library; the stream is alive; the range holds `bytes`
/// bytes.
millpond_status millpond_prefetch(const millpond_device *device, void *target, uint64_t bytes,
                                  bool to_host, void *stream);

/* ================================================================================================
 * Stacks of resources
 *
 * The base of a stack decides which memory it allocates: device, managed or pinned host memory.
 * ============================================================================================= */

/// A resource with all layers below it. It lives as long as one of its handles, or a resource on
/// top of it.
typedef struct millpond_resource millpond_resource;

/// Builds a stack from text, such as `cuda+pool:initial=1GiB+statistics`, on a device. If `device`
/// is null, builds on the default device, as in `millpond_device_open`.
///
/// Requires: `device` is null or a handle from this library; `stack` is a string; `resource` is
/// valid for writes.
millpond_status millpond_resource_new(const millpond_device *device, const char *stack,
                                      millpond_resource **resource);

/// Builds layers from text, such as `pool:initial=1GiB+statistics`, on a resource, which the caller
/// still owns.
///
/// Requires: `upstream` is a handle from this library; `layer` is a string; `resource` is valid for
/// writes.
millpond_status millpond_resource_layer(const millpond_resource *upstream, const char *layer,
                                        millpond_resource **resource);

/// Builds layers from text on a resource, which the caller still owns. The outermost layer gets
/// `path` as the value of its option `key`, for example `file` of `logging`. The path is not parsed
/// as part of the stack's text, so it may contain any byte except zero. Names in braces are
/// replaced; for example, `{pid}` becomes the process's number.
///
/// Requires: `upstream` is a handle from this library; `layer`, `key` and `path` are strings;
/// `resource` may be written.
millpond_status millpond_resource_layer_file(const millpond_resource *upstream, const char *layer,
                                             const char *key, const char *path,
                                             millpond_resource **resource);

/// Puts bins on a resource. Bin `i` serves requests up to `sizes[i]` bytes that the next smaller
/// bin cannot serve. These requests go to `resources[i]`. If `resources[i]` is null, fixed-size
/// blocks from `upstream` serve them. The caller still owns all handles.
///
/// Requires: `upstream` is a handle from this library. `sizes` and `resources` hold `count` values
/// each. Each resource is null or a handle from this library. `resource` is valid for writes.
millpond_status millpond_resource_binning(const millpond_resource *upstream, const uint64_t *sizes,
                                          const millpond_resource *const *resources, size_t count,
                                          millpond_resource **resource);

/// Makes a resource over a driver pool (`CUmemoryPool`) that the caller still owns.
///
/// Requires: `device` is a handle from this library; the pool belongs to this device's context and
/// lives as long as the resource and its blocks; `resource` is valid for writes.
millpond_status millpond_resource_async_view(const millpond_device *device, void *pool,
                                             millpond_resource **resource);

/// Makes another handle of the same resource.
///
/// Requires: `resource` is a handle from this library; `clone` is valid for writes.
millpond_status millpond_resource_clone(const millpond_resource *resource,
                                        millpond_resource **clone);

/// Frees a handle. The resource lives as long as it has another owner (see
/// `millpond_resource_owners`). Does nothing for null.
///
/// Requires: `resource` is null, or a handle from this library, and is not used again.
void millpond_resource_free(millpond_resource *resource);

/// Returns whether either resource can free the other resource's blocks. Returns `false` if one of
/// them is null.
///
/// Requires: `one` and `other` are null or handles from this library.
bool millpond_resource_is_equal(const millpond_resource *one, const millpond_resource *other);

/// Returns the number of owners of a resource: its handles, the resources on top of it, and the
/// registry of defaults. Returns 0 for null.
///
/// Requires: `resource` is null or a handle from this library.
size_t millpond_resource_owners(const millpond_resource *resource);

/// Writes the text of the stack, with its base first. Free the text with `millpond_string_free`.
///
/// Requires: `resource` is a handle from this library; `text` is valid for writes.
millpond_status millpond_resource_text(const millpond_resource *resource, char **text);

/// Writes the name of the outermost layer, as in a stack's text, to `name`. Free it with
/// `millpond_string_free`.
///
/// Requires: `resource` is a handle from this library; `name` is valid for writes.
millpond_status millpond_resource_name(const millpond_resource *resource, char **name);

/// Writes the resource below the outermost layer, as a handle that the caller owns. Writes null if
/// the outermost layer is a base.
///
/// Requires: `resource` is a handle from this library; `upstream` is valid for writes.
millpond_status millpond_resource_upstream(const millpond_resource *resource,
                                           millpond_resource **upstream);

/// Writes the device of a resource, as a handle that the caller owns.
///
/// Requires: `resource` is a handle from this library; `device` is valid for writes.
millpond_status millpond_resource_device(const millpond_resource *resource,
                                         millpond_device **device);

/// Writes two results about the resource's memory: whether the device can access it at its address,
/// and whether the host can.
///
/// Requires: `resource` is a handle from this library. Both results are valid for writes.
millpond_status millpond_resource_accessibility(const millpond_resource *resource, bool *by_device,
                                                bool *by_host);

/// Writes the driver's pool (`CUmemoryPool`) of the base `cuda_async`, `cuda_async_view`,
/// `cuda_async_managed` or `cuda_async_pinned`.
///
/// Requires: `resource` is a handle from this library; `pool` is valid for writes.
millpond_status millpond_async_pool(const millpond_resource *resource, void **pool);

/// Reads an amount of memory from text. For a size, such as `4GiB`, writes the number of bytes. For
/// a share of the free memory, such as `50%`, writes the percentage. The other result is set to 0.
/// A small number without a unit is refused.
///
/// Requires: `size` is a string; both results are valid for writes.
millpond_status millpond_parse_size(const char *size, uint64_t *bytes, double *percent);

/// Writes the layers that a stack's text can name to `json`, as a JSON object. It maps each layer's
/// name to an object, which maps each option of the layer to a line of help. Free the text with
/// `millpond_string_free`.
///
/// Requires: `json` is valid for writes.
millpond_status millpond_layers_json(char **json);

/* ================================================================================================
 * The driver's pools
 *
 * Pools of CUDA's stream-ordered allocator, and their blocks in other processes.
 * ============================================================================================= */

/// A pool of the driver. If this library made the pool, it destroys the pool when the last handle,
/// resource and imported block over the pool are freed, and the pool is not current. Blocks that
/// are live then stay valid until they are freed. Other pools belong to the driver, or to the
/// library that made them.
typedef struct millpond_memory_pool millpond_memory_pool;

/// The properties of a pool, with CUDA's numbers (`CUmemPoolProps`). A structure of zeros describes
/// a pool of device memory without a limit, which other processes cannot import.
typedef struct millpond_memory_pool_properties {
  /// The location of the memory (`CUmemLocationType`): 0 or 1 is the device; 2 is the host, and 3
  /// is one NUMA node of the host.
  uint32_t location_type;
  /// The NUMA node. The other locations ignore it.
  int32_t location_id;
  /// The types of handles with which other processes can import the pool
  /// (`CUmemAllocationHandleType`): 0 for none, 1 for file descriptors, 8 for fabric handles, 9 for
  /// both.
  uint32_t handle_types;
  /// Whether the memory is managed, so that host and device share it.
  bool is_managed;
  /// Whether the device's decompression engine can use the memory.
  bool hw_decompress;
  /// The most bytes that the pool may hold. With 0, the system decides, as in CUDA: the pool may
  /// hold all memory of its location.
  uint64_t max_bytes;
} millpond_memory_pool_properties;

/// An attribute of a pool, with CUDA's number (`CUmemPool_attribute`).
typedef enum millpond_memory_pool_attribute {
  /// Whether the driver may reuse memory that another stream freed, if an event orders the free
  /// before the request (0 or 1).
  MILLPOND_MEMORY_POOL_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
  /// Whether the driver may reuse memory that another stream freed, if the free is already done (0
  /// or 1).
  MILLPOND_MEMORY_POOL_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC = 2,
  /// Whether the driver may make a stream wait for another one, to reuse its memory (0 or 1).
  MILLPOND_MEMORY_POOL_ATTRIBUTE_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
  /// How many bytes the pool may keep at a synchronisation.
  MILLPOND_MEMORY_POOL_ATTRIBUTE_RELEASE_THRESHOLD = 4,
  /// The bytes that the pool holds; read-only.
  MILLPOND_MEMORY_POOL_ATTRIBUTE_RESERVED_CURRENT = 5,
  /// The highest number of bytes that the pool has held. Set it to 0 to restart it.
  MILLPOND_MEMORY_POOL_ATTRIBUTE_RESERVED_HIGH = 6,
  /// The bytes of the live blocks; read-only.
  MILLPOND_MEMORY_POOL_ATTRIBUTE_USED_CURRENT = 7,
  /// The highest number of bytes that were live. Set it to 0 to restart it.
  MILLPOND_MEMORY_POOL_ATTRIBUTE_USED_HIGH = 8,
} millpond_memory_pool_attribute;

/// Makes a pool of a device.
///
/// Requires: `device` is a handle from this library; `properties` can be read; `pool` is valid for
/// writes.
millpond_status millpond_memory_pool_new(const millpond_device *device,
                                         const millpond_memory_pool_properties *properties,
                                         millpond_memory_pool **pool);

/// Returns the device's current pool (`cuDeviceGetMemPool`), as a handle that the caller owns.
///
/// Requires: `device` is a handle from this library; `pool` is valid for writes.
millpond_status millpond_memory_pool_current(const millpond_device *device,
                                             millpond_memory_pool **pool);

/// Returns the device's default pool (`cuDeviceGetDefaultMemPool`), as a handle that the caller
/// owns.
///
/// Requires: `device` is a handle from this library; `pool` is valid for writes.
millpond_status millpond_memory_pool_default(const millpond_device *device,
                                             millpond_memory_pool **pool);

/// Returns the default pool of a location and a kind of memory (`cuMemGetDefaultMemPool`), as a
/// handle that the caller owns. A pool other than the device's default pool needs CUDA 13.0.
/// `location_type` and `location_id` have the same meaning as in `millpond_memory_pool_properties`.
///
/// Requires: `device` is a handle from this library; `pool` is valid for writes.
millpond_status millpond_memory_pool_default_for(const millpond_device *device,
                                                 uint32_t location_type, int32_t location_id,
                                                 bool is_managed, millpond_memory_pool **pool);

/// Returns a handle of a pool that other code made and must destroy.
///
/// Requires: `device` is a handle from this library. The pool `raw` (`CUmemoryPool`) belongs to
/// this device's context, and outlives the handle and the resources over it. `pool` is valid for
/// writes.
millpond_status millpond_memory_pool_from_raw(const millpond_device *device, void *raw,
                                              millpond_memory_pool **pool);

/// Returns the pool at the base of a stack, as a handle that the caller owns. Returns
/// `MILLPOND_STATUS_UNSUPPORTED` if the stack has no such base.
///
/// Requires: `resource` is a handle from this library; `pool` is valid for writes.
millpond_status millpond_memory_pool_of_resource(const millpond_resource *resource,
                                                 millpond_memory_pool **pool);

/// Frees a handle. Does nothing for null.
///
/// Requires: `pool` is null, or a handle from this library, and is not used again.
void millpond_memory_pool_free(millpond_memory_pool *pool);

/// Makes a resource that allocates from a pool: the base `cuda_async_view`. The resource keeps the
/// pool.
///
/// Requires: `pool` is a handle from this library; `resource` is valid for writes.
millpond_status millpond_memory_pool_resource(const millpond_memory_pool *pool,
                                              millpond_resource **resource);

/// Makes a pool its device's current pool, from which `cuMemAllocAsync` allocates in the whole
/// process. The pool is not destroyed while it is current.
///
/// Requires: `pool` is a handle from this library.
millpond_status millpond_memory_pool_set_current(const millpond_memory_pool *pool);

/// Writes the driver's handle of a pool (`CUmemoryPool`).
///
/// Requires: `pool` is a handle from this library; `raw` is valid for writes.
millpond_status millpond_memory_pool_raw(const millpond_memory_pool *pool, void **raw);

/// Writes the pool's device, as a handle that the caller owns.
///
/// Requires: `pool` is a handle from this library; `device` is valid for writes.
millpond_status millpond_memory_pool_device(const millpond_memory_pool *pool,
                                            millpond_device **device);

/// Returns whether the pool was imported from another process; `false` for null.
///
/// Requires: `pool` is null or a handle from this library.
bool millpond_memory_pool_is_imported(const millpond_memory_pool *pool);

/// Writes the properties of a pool. For a pool that other code made, the driver must support CUDA
/// 13.2.
///
/// Requires: `pool` is a handle from this library; `properties` is valid for writes.
millpond_status millpond_memory_pool_get_properties(const millpond_memory_pool *pool,
                                                    millpond_memory_pool_properties *properties);

/// Writes the value of an attribute, one of `millpond_memory_pool_attribute`.
///
/// Requires: `pool` is a handle from this library; `value` is valid for writes.
millpond_status millpond_memory_pool_get_attribute(const millpond_memory_pool *pool,
                                                   uint32_t attribute, uint64_t *value);

/// Sets an attribute, one of `millpond_memory_pool_attribute`.
/// `MILLPOND_MEMORY_POOL_ATTRIBUTE_RESERVED_HIGH` and `MILLPOND_MEMORY_POOL_ATTRIBUTE_USED_HIGH`
/// can only be set to 0.
///
/// Requires: `pool` is a handle from this library.
millpond_status millpond_memory_pool_set_attribute(const millpond_memory_pool *pool,
                                                   uint32_t attribute, uint64_t value);

/// Releases free memory to the device until the pool holds at most `keep_bytes`, after a wait for
/// the device. Writes the number of released bytes.
///
/// Requires: `pool` is a handle from this library; `released_bytes` is valid for writes.
millpond_status millpond_memory_pool_trim(const millpond_memory_pool *pool, uint64_t keep_bytes,
                                          uint64_t *released_bytes);

/// Writes a device's access to the pool's memory (`CUmemAccess_flags`): 0 for none, 1 for reading,
/// 3 for reading and writing.
///
/// Requires: `pool` and `device` are handles from this library; `access` is valid for writes.
millpond_status millpond_memory_pool_get_access(const millpond_memory_pool *pool,
                                                const millpond_device *device, uint32_t *access);

/// Sets a device's access to the pool's memory, with the numbers of
/// `millpond_memory_pool_get_access`. The setting also holds for memory that the pool allocates
/// later.
///
/// Requires: `pool` and `device` are handles from this library.
millpond_status millpond_memory_pool_set_access(const millpond_memory_pool *pool,
                                                const millpond_device *device, uint32_t access);

/// Writes the host's access to the pool's memory, with the numbers of
/// `millpond_memory_pool_get_access`. The location has CUDA's numbers (`CUmemLocationType`): type 2
/// is the host, 3 is the NUMA node `location_id` of the host, and 4 is the NUMA node of the calling
/// thread.
///
/// Requires: `pool` is a handle from this library; `access` is valid for writes.
millpond_status millpond_memory_pool_get_host_access(const millpond_memory_pool *pool,
                                                     uint32_t location_type, int32_t location_id,
                                                     uint32_t *access);

/// Sets the host's access to the pool's memory, with the numbers of
/// `millpond_memory_pool_get_host_access`. Returns `MILLPOND_STATUS_INVALID_ARGUMENT` if the driver
/// refuses this access.
///
/// Requires: `pool` is a handle from this library.
millpond_status millpond_memory_pool_set_host_access(const millpond_memory_pool *pool,
                                                     uint32_t location_type, int32_t location_id,
                                                     uint32_t access);

/// A block of another process, opened in this process. The handle keeps the imported pool.
typedef struct millpond_imported_allocation millpond_imported_allocation;

/// Writes a file descriptor with which another process can import the pool (with
/// `millpond_memory_pool_import_fd`). The caller owns the descriptor. The pool must have been made
/// with the handle type 1.
///
/// Requires: `pool` is a handle from this library; `fd` is valid for writes.
millpond_status millpond_memory_pool_export_fd(const millpond_memory_pool *pool, int32_t *fd);

/// Imports a pool of another process, the exporter. The caller still owns the descriptor. The
/// imported pool cannot allocate, be trimmed or be current. It opens blocks with
/// `millpond_memory_pool_import_pointer`.
///
/// Requires: `device` is a handle from this library; `fd` is an open file descriptor; `pool` is
/// valid for writes. This process uses a block only after the exporter's allocation is done on the
/// device. It frees the block, and its work on the block is done, before the exporter frees the
/// block.
millpond_status millpond_memory_pool_import_fd(const millpond_device *device, int32_t fd,
                                               millpond_memory_pool **pool);

/// Writes the 64 bytes of a fabric handle with which another process can import the pool (with
/// `millpond_memory_pool_import_fabric`), also on another machine of the same NVLink domain. The
/// pool must have been made with the handle type 8.
///
/// Requires: `pool` is a handle from this library; 64 bytes can be written to `handle`.
millpond_status millpond_memory_pool_export_fabric(const millpond_memory_pool *pool,
                                                   uint8_t *handle);

/// Imports a pool of another process, as `millpond_memory_pool_import_fd` does, from the 64 bytes
/// of `millpond_memory_pool_export_fabric`. Returns `MILLPOND_STATUS_UNSUPPORTED` if this process
/// cannot open the exporter's IMEX channel.
///
/// Requires: `device` is a handle from this library; 64 bytes can be read from `handle`; `pool` is
/// valid for writes. The rules of `millpond_memory_pool_import_fd` for blocks hold.
millpond_status millpond_memory_pool_import_fabric(const millpond_device *device,
                                                   const uint8_t *handle,
                                                   millpond_memory_pool **pool);

/// Writes 64 bytes that describe a block of the pool to a process that imported the pool.
///
/// Requires: `pool` is a handle from this library; 64 bytes can be written to `data`.
millpond_status millpond_memory_pool_export_pointer(const millpond_memory_pool *pool, void *block,
                                                    uint8_t *data);

/// Opens a block of an imported pool, from the 64 bytes of `millpond_memory_pool_export_pointer`.
/// Writes a handle that the caller owns, and the block's address in this process.
///
/// Requires: `pool` is a handle from this library; 64 bytes can be read from `data`; the results
/// are valid for writes.
millpond_status millpond_memory_pool_import_pointer(const millpond_memory_pool *pool,
                                                    const uint8_t *data,
                                                    millpond_imported_allocation **allocation,
                                                    void **address);

/// Frees an imported block in this process in stream order. After the stream's work is done, this
/// process may tell the exporter so. The handle must still be freed. After an error, and on a
/// second call, the block is already free.
///
/// Requires: `allocation` is a handle from this library that no other thread uses; the stream is
/// alive.
millpond_status millpond_imported_allocation_free_on(millpond_imported_allocation *allocation,
                                                     void *stream);

/// Frees the handle of an imported block. If the block is not free, waits for the device and then
/// frees it. Does nothing for null.
///
/// Requires: `allocation` is null, or a handle from this library, and is not used again.
void millpond_imported_allocation_free(millpond_imported_allocation *allocation);

/// The memory that the graphs of a device allocate in their own nodes. All sizes are in bytes.
typedef struct millpond_graph_memory_counts {
  /// Bytes that graphs use now.
  uint64_t used_bytes;
  /// The highest `used_bytes` so far.
  uint64_t used_high;
  /// Bytes that the driver reserves for graphs now.
  uint64_t reserved_bytes;
  /// The highest `reserved_bytes` so far.
  uint64_t reserved_high;
} millpond_graph_memory_counts;

/// Writes the counts of the memory that the device's graphs allocate
/// (`cuDeviceGetGraphMemAttribute`). No resource of this library makes nodes that allocate.
///
/// Requires: `device` is a handle from this library; `counts` is valid for writes.
millpond_status millpond_graph_memory(const millpond_device *device,
                                      millpond_graph_memory_counts *counts);

/// Restarts both highs of `millpond_graph_memory` from the bytes of now.
///
/// Requires: `device` is a handle from this library.
millpond_status millpond_graph_memory_reset_highs(const millpond_device *device);

/// Releases the memory that the driver reserves for graphs and no graph uses
/// (`cuDeviceGraphMemTrim`).
///
/// Requires: `device` is a handle from this library.
millpond_status millpond_graph_memory_trim(const millpond_device *device);

/* ================================================================================================
 * Allocating and freeing
 * ============================================================================================= */

/// Allocates a block for use on `stream`. The address is a multiple of `alignment` (at least 256; 0
/// means 256). For 0 bytes, the result is a null pointer.
///
/// Requires: `resource` is a handle from this library; the stream is alive and belongs to the
/// device; `ptr` is valid for writes.
millpond_status millpond_allocate(const millpond_resource *resource, uint64_t bytes,
                                  uint64_t alignment, void *stream, void **ptr);

/// Frees a block in the order of `stream`. Does nothing for a null pointer. The resource refuses a
/// block if it is foreign, already free, or has another size. Then the call returns
/// `MILLPOND_STATUS_INVALID_ARGUMENT`, reports `millpond::misuse`, and counts the misuse.
///
/// Requires: `resource` is a handle from this library. `millpond_allocate` returned the block for
/// this resource, with these bytes and this alignment. The block is freed once, and all work that
/// uses it is ordered before the stream's next work. The stream is alive and belongs to the device.
millpond_status millpond_deallocate(const millpond_resource *resource, void *ptr, uint64_t bytes,
                                    uint64_t alignment, void *stream);

/// Allocates a block that any stream may use at once. Waits for the device if necessary.
///
/// Requires: `resource` is a handle from this library; `ptr` is valid for writes.
millpond_status millpond_allocate_sync(const millpond_resource *resource, uint64_t bytes,
                                       uint64_t alignment, void **ptr);

/// Frees a block that no work uses any more, whichever streams used it.
///
/// Requires: The rules of `millpond_deallocate` hold, and all work that uses the block is done.
millpond_status millpond_deallocate_sync(const millpond_resource *resource, void *ptr,
                                         uint64_t bytes, uint64_t alignment);

/// Releases free memory to the device until the resource holds at most `keep_bytes`. Writes the
/// number of released bytes to `freed_bytes`, unless `freed_bytes` is null.
///
/// Requires: `resource` is a handle from this library; `freed_bytes` is null or valid for writes.
millpond_status millpond_resource_trim(const millpond_resource *resource, uint64_t keep_bytes,
                                       uint64_t *freed_bytes);

/* ================================================================================================
 * Statistics
 * ============================================================================================= */

/// The counters of a resource. All sizes are in bytes.
typedef struct millpond_statistics {
  /// Bytes in live blocks, after rounding.
  uint64_t bytes_in_use;
  /// Bytes in live blocks, as requested.
  uint64_t bytes_requested;
  /// The highest `bytes_in_use` so far.
  uint64_t peak_bytes_in_use;
  /// Bytes allocated from the upstream, in use and free.
  uint64_t bytes_reserved;
  /// The highest `bytes_in_use` so far.
  uint64_t peak_bytes_reserved;
  /// The size of the largest free block.
  uint64_t largest_free_block;
  /// The number of live blocks.
  uint64_t blocks_in_use;
  /// The number of free blocks.
  uint64_t blocks_free;
  /// Successful allocations so far.
  uint64_t allocations;
  /// Accepted deallocations so far.
  uint64_t deallocations;
  /// Refused deallocations so far.
  uint64_t misuses;
} millpond_statistics;

/// Writes the counters of the outermost layer that counts. Returns `MILLPOND_STATUS_UNSUPPORTED` if
/// no layer counts.
///
/// Requires: `resource` is a handle from this library; `statistics` is valid for writes.
millpond_status millpond_resource_statistics(const millpond_resource *resource,
                                             millpond_statistics *statistics);

/// Writes the free bytes, including the memory that the resource could reuse, and the total bytes.
///
/// Requires: `resource` is a handle from this library; both numbers are valid for writes.
millpond_status millpond_resource_memory_info(const millpond_resource *resource,
                                              uint64_t *free_bytes, uint64_t *total_bytes);

/// Restarts the peaks and totals of all layers.
///
/// Requires: `resource` is a handle from this library.
millpond_status millpond_resource_clear_counters(const millpond_resource *resource);

/// The counters of one level of the adaptor `statistics`. They are signed, because a level may
/// count the free of a block that is older than the level.
typedef struct millpond_level_counters {
  /// Bytes in use.
  int64_t current_bytes;
  /// The highest `current_bytes` in the level.
  int64_t peak_bytes;
  /// The sum of all allocations in bytes.
  int64_t total_bytes;
  /// The number of blocks in use.
  int64_t current_count;
  /// The highest `current_count` in the level.
  int64_t peak_count;
  /// The number of all allocations.
  int64_t total_count;
} millpond_level_counters;

/// Writes the counters of the newest level of the adaptor `statistics`.
///
/// Requires: `resource` is a handle from this library; `counters` is valid for writes.
millpond_status millpond_statistics_counters(const millpond_resource *resource,
                                             millpond_level_counters *counters);

/// Starts a level with all counters at zero. Writes the counters of the level that was the newest
/// until this call.
///
/// Requires: `resource` is a handle from this library; `counters` is valid for writes.
millpond_status millpond_statistics_push(const millpond_resource *resource,
                                         millpond_level_counters *counters);

/// Ends the newest level. Writes the counters of this level, and adds them to the level below.
///
/// Requires: `resource` is a handle from this library; `counters` is valid for writes.
millpond_status millpond_statistics_pop(const millpond_resource *resource,
                                        millpond_level_counters *counters);

/// Writes the live bytes of the adaptor `limiting`, and its limit in bytes.
///
/// Requires: `resource` is a handle from this library; both numbers are valid for writes.
millpond_status millpond_limiting_counts(const millpond_resource *resource,
                                         uint64_t *allocated_bytes, uint64_t *limit_bytes);

/// Describes the bins of the adaptor `binning`, which must be the outermost layer. Writes the
/// number of bins to `count`. For the bin with index `bin`, writes the largest request in bytes
/// that the bin serves. Also writes the resource that was given for this bin, as a handle that the
/// caller owns. The handle is null if the bin allocates its own blocks or if `bin` is past the last
/// bin.
///
/// Requires: `resource` is a handle from this library; the results are valid for writes.
millpond_status millpond_binning_bin(const millpond_resource *resource, size_t bin, size_t *count,
                                     uint64_t *bytes, millpond_resource **of_bin);

/* ================================================================================================
 * Reports and logs
 * ============================================================================================= */

/// Writes a report of the stack's memory now, as text for people or as JSON. Free the report with
/// `millpond_string_free`.
///
/// Requires: `resource` is a handle from this library; `report` is valid for writes.
millpond_status millpond_resource_memory_report(const millpond_resource *resource, bool as_json,
                                                char **report);

/// Writes everything that the layers know about the live block that starts at `ptr`, as JSON.
/// Writes null if no layer knows the block. Free the text with `millpond_string_free`.
///
/// Requires: `resource` is a handle from this library; `block` is valid for writes.
millpond_status millpond_resource_block_at(const millpond_resource *resource, void *ptr,
                                           char **block);

/// Shows a stack in metrics under a name, for as long as the stack lives. Metrics keep no stack
/// alive. If the stack already has a name, this call renames it. If another stack of the device has
/// this name, that stack loses it. The default resource of each device has the name `default`
/// without this call. The figures of a resource that several stacks share appear once, with the
/// names of all these stacks: `etl + train`. Fails if the name is empty or `default` or contains `
/// + `, or if the stack keeps no figures, like `cuda`; then add the layer `statistics`.
///
/// Requires: `resource` is a handle from this library; `name` is a string that ends in NUL.
millpond_status millpond_metrics_register(const millpond_resource *resource, const char *name);

/// Writes all metrics as text for Prometheus, in the OpenMetrics format 1.0. Free the text with
/// `millpond_string_free`.
///
/// Requires: `text` is valid for writes.
millpond_status millpond_metrics_text(char **text);

/// Writes metrics as JSON: a list of objects with `name`, `prometheus_name`, `kind`, `unit`, `help`
/// and `samples`. `name` is the OpenTelemetry name of one metric, for example
/// `millpond.memory.live`, or null for all metrics. Free the text with `millpond_string_free`.
///
/// Requires: `name` is null, or a string that ends in NUL; `text` is valid for writes.
millpond_status millpond_metrics_json(const char *name, char **text);

/// Writes the live allocations of the adaptor `tracking` as text. Writes the sum of their sizes to
/// `bytes`. Free the text with `millpond_string_free`.
///
/// Requires: `resource` is a handle from this library; both results are valid for writes.
millpond_status millpond_tracking_outstanding(const millpond_resource *resource, uint64_t *bytes,
                                              char **text);

/// Writes the path of the file of the stack's outermost log to `path`, with the names in braces
/// replaced. Writes null if the log has no file. Returns `MILLPOND_STATUS_UNSUPPORTED` if no layer
/// logs. Free the result with `millpond_string_free`.
///
/// Requires: `resource` is a handle from this library; `path` is valid for writes.
millpond_status millpond_logging_file(const millpond_resource *resource, char **path);

/// Flushes the adaptor `logging`: writes all buffered rows to the file.
///
/// Requires: `resource` is a handle from this library.
millpond_status millpond_logging_flush(const millpond_resource *resource);

/// Sets the lowest level that the log writes. 0 is `trace`, followed by `debug`, `info`, `warn`,
/// `error` and `critical`; 6 is `off`, which writes nothing.
millpond_status millpond_set_logging_level(int32_t level);

/// Writes the lowest level that the log writes to `level`, as a number of
/// `millpond_set_logging_level`.
///
/// Requires: `level` is valid for writes.
millpond_status millpond_logging_level(int32_t *level);

/// Flushes the log. The library passes each line to the operating system at once, so this call
/// helps only if the system buffers lines.
millpond_status millpond_flush_logger(void);

/* ================================================================================================
 * Memory snapshots in PyTorch's format
 * ============================================================================================= */

/// Captures the calling thread's call stack, and returns the call stack's number. Equal call stacks
/// have the same number. The number 0 means that there is no call stack. The library calls this
/// function in each recorded call, on any thread, without a lock.
typedef uint64_t (*millpond_capture_function)(void);

/// Receives one frame of a call stack: the function, the file and the line.
typedef void (*millpond_add_frame_function)(void *list, const char *name, const char *file,
              uint64_t line);

/// Calls `add` with `list` and each frame of a captured call stack, the innermost frame first.
typedef void (*millpond_frames_function)(uint64_t stack, void *list,
              millpond_add_frame_function add);

/// Sets the functions that capture the call stacks of the history and return their frames. Without
/// them, the history has native call stacks. The library may call the functions on any thread until
/// the process ends. If `frames` waits for a lock that a forking thread holds, the fork may take up
/// to a second longer.
///
/// Requires: Both functions can be called until the process ends, and do not unwind.
void millpond_set_stack_source(millpond_capture_function capture, millpond_frames_function frames);

/// Starts to record the last `events` allocations, frees, segments and failed requests of this
/// process, for `millpond_memory_snapshot`. `stacks` selects the events whose call stack is
/// captured: 0 for none, 1 for allocations of live blocks, 2 for all allocations, 3 for frees, too.
/// Each bit of `skipped` leaves out one action. The lowest bit stands for `alloc`. The next bits
/// stand for `free_requested`, `free_completed`, `segment_alloc`, `segment_free`, `segment_map`,
/// `segment_unmap` and `oom`. If the history already has these options, the call changes nothing.
/// But if `is_new` is set, the history begins anew.
millpond_status millpond_record_history(size_t events, int32_t stacks, uint32_t skipped,
                                        bool is_new);

/// Stops recording, and discards the history.
millpond_status millpond_stop_history(void);

/// Writes a snapshot of memory, as a pickle in the format of PyTorch's
/// `torch.cuda.memory._dump_snapshot`. Also writes the size of the pickle in bytes. If `resource`
/// is null, the snapshot shows all memory behind `millpond_malloc`. The snapshot has the events of
/// the resource's adaptor `recording`. Without that adaptor, it has the events of the history. Free
/// the bytes with `millpond_bytes_free`. Returns `MILLPOND_STATUS_UNSUPPORTED` if no layer of the
/// resource knows its blocks.
///
/// Requires: `resource` is null or a handle from this library; `bytes` and `size` are valid for
/// writes.
millpond_status millpond_memory_snapshot(const millpond_resource *resource, uint8_t **bytes,
                                         size_t *size);

/// Frees bytes from this library. Does nothing for null.
///
/// Requires: `bytes` is null, or comes from a function whose documentation names this function.
/// `size` is the size that this function wrote. `bytes` is not used again.
void millpond_bytes_free(uint8_t *bytes, size_t size);

/* ================================================================================================
 * The default resource of each device
 * ============================================================================================= */

/// Writes the default resource of the calling thread's current device (see
/// `millpond_device_current`).
///
/// Requires: `resource` is valid for writes.
millpond_status millpond_get_current_device_resource(millpond_resource **resource);

/// Writes the default resource of a device. If no default was set, this is the stack whose text is
/// in the environment variable `MILLPOND_STACK`, or else plain CUDA memory.
///
/// Requires: `device` is a handle from this library; `resource` is valid for writes.
millpond_status millpond_get_per_device_resource(const millpond_device *device,
                                                 millpond_resource **resource);

/// Makes a resource the default of its device. Writes the previous default to `previous`, unless
/// `previous` is null. If the device had no default yet, writes null. Blocks from the previous
/// default still return to it.
///
/// Requires: `resource` is a handle from this library, and the caller still owns it; `previous` is
/// null or valid for writes.
millpond_status millpond_set_per_device_resource(const millpond_resource *resource,
                                                 millpond_resource **previous);

/// Restores the initial default resource of a device.
///
/// Requires: `device` is a handle from this library.
millpond_status millpond_reset_per_device_resource(const millpond_device *device);

/* ================================================================================================
 * Resources and handlers of the program's own
 * ============================================================================================= */

/// Returns a block, or null if there is no memory.
typedef void *(*millpond_allocate_function)(void *context, uint64_t bytes, uint64_t alignment,
               void *stream);

/// Frees a block.
typedef void (*millpond_deallocate_function)(void *context, void *ptr, uint64_t bytes,
              uint64_t alignment, void *stream);

/// Frees memory that the program can spare for a request of `bytes`. Returns whether the library
/// tries the request again.
typedef bool (*millpond_failure_function)(void *context, uint64_t bytes);

/// Frees memory of a budget, because another budget's request of `bytes` needs its guarantee.
typedef void (*millpond_call_back_function)(void *context, uint64_t bytes);

/// Returns whether the calling thread must end its wait.
typedef bool (*millpond_interrupt_function)(void);

/// Frees a context. The pointer may be null.
typedef void (*millpond_end_function)(void *context);

/// Makes a resource from two functions. The library calls `end` with `context` after the resource
/// is destroyed, or if this call fails.
///
/// Requires: `device` is a handle from this library; `resource` is valid for writes. The functions
/// can be called on any thread, do not unwind, and keep the contract of a resource. Their blocks do
/// not overlap, belong to the device, have the requested bytes, start at a multiple of the
/// alignment, and are ordered for the stream. A function may submit work that uses a block to that
/// stream, unless the stream captures a graph.
millpond_status millpond_resource_callback(const millpond_device *device,
                                           millpond_allocate_function allocate,
                                           millpond_deallocate_function deallocate, void *context,
                                           millpond_end_function end, millpond_resource **resource);

/// Adds a failure handler to a resource. When there is no memory for a request, the library calls
/// `handle`. `handle` frees memory that the program can spare, and returns whether the library
/// tries the request again. The library calls `end` with `context` after the resource is destroyed,
/// or if this call fails.
///
/// Requires: `upstream` is a handle from this library; `resource` is valid for writes. The
/// functions can be called on any thread, and do not unwind.
millpond_status millpond_resource_failure_callback(const millpond_resource *upstream,
                                                   millpond_failure_function handle, void *context,
                                                   millpond_end_function end,
                                                   millpond_resource **resource);

/// Sets the function that frees memory of the outermost budget of a stack, when another budget
/// calls back its guarantee. A request calls the function once at most, on its own thread. The
/// function may use the stack, and should return soon. It replaces an earlier function of the same
/// budget; null removes the earlier one. The library calls `end` with `context` when the budget
/// needs the function no more, or if this call fails.
///
/// Requires: `resource` is a handle from this library. The functions can be called on any thread,
/// several times at once, and do not unwind.
millpond_status millpond_budget_on_call_back(const millpond_resource *resource,
                                             millpond_call_back_function call_back, void *context,
                                             millpond_end_function end);

/// Sets the function that the library calls from time to time while a thread waits for memory. The
/// library calls it on the waiting thread. Null removes the function. If the function returns
/// `true`, the wait ends and the request fails. The function must be callable on any thread, and
/// must not unwind.
void millpond_set_interrupt(millpond_interrupt_function ask);

/* ================================================================================================
 * malloc and free for frameworks
 *
 * PyTorch and CuPy call these. They use the default resource of the device.
 * ============================================================================================= */

/// Allocates `bytes` for use on `stream` from the default resource of the device with this number.
/// If that fails, returns null, and `millpond_error_message` returns the reason.
///
/// Requires: The stream belongs to the device, and stays alive as long as the block.
void *millpond_malloc(size_t bytes, int32_t device, void *stream);

/// Frees a block in the order of the stream that it was allocated on. The free also waits for all
/// work on the streams that `millpond_record_stream` named for the block. Ignores a null pointer.
/// In a forked child, ignores every block. Ignores `bytes`, `device` and `stream`, because the
/// library knows them.
///
/// Requires: The block is from `millpond_malloc`. If unrecorded streams use the block, their work
/// is ordered before the next work of the stream that the block was allocated on.
void millpond_free(void *ptr, size_t bytes, int32_t device, void *stream);

/// Announces that work on `stream` uses a block. After the program frees the block, the library
/// reuses its memory only when that work is done.
///
/// Requires: The stream belongs to the block's device, and stays alive until the block is freed. If
/// the stream captures a graph at the time of the free, it must stay alive after the free, too.
millpond_status millpond_record_stream(void *ptr, void *stream);

/// Writes the size of the live `millpond_malloc` block that starts at `ptr` to `bytes`.
///
/// Requires: `bytes` is valid for writes.
millpond_status millpond_block_size(void *ptr, uint64_t *bytes);

/// Returns free memory to the driver: trims the default resource of every device from which memory
/// was requested.
millpond_status millpond_empty_cache(void);

/// Returns the number of ignored frees. A free is ignored if a reset of the device's context
/// destroyed its block, and a newer block has the same address.
uint64_t millpond_stale_frees(void);

/// Works like `millpond_malloc`, but throws `std::runtime_error` with the text of the error. If
/// there is no memory, the text begins with PyTorch's own words, `CUDA out of memory.`. Some
/// libraries look for these words, and retry with a smaller batch.
///
/// Requires: The rules of `millpond_malloc` hold. The caller is C++, or lets C++ exceptions pass.
void *millpond_malloc_or_throw(size_t bytes, int32_t device, void *stream);

/// Allocates for CuPy's `CFunctionAllocator`, on the legacy default stream. If there is no memory,
/// throws `std::bad_alloc`, which CuPy turns into a `MemoryError`. `parameter` is not used.
///
/// Requires: The rules of `millpond_malloc` hold. The caller is C++, or lets C++ exceptions pass.
void *millpond_cupy_malloc(void *parameter, size_t bytes, int32_t device);

/// Frees a block that `millpond_cupy_malloc` allocated.
///
/// Requires: The rules of `millpond_free` hold.
void millpond_cupy_free(void *parameter, void *ptr, int32_t device);

/* ================================================================================================
 * The pools of PyTorch's captured graphs
 * ============================================================================================= */

/// PyTorch's name of a pool: `c10::MempoolId_t`, a `std::pair` of these two numbers, which C passes
/// in the same way.
typedef struct millpond_graph_pool_id {
  /// Not 0 if a graph made the pool for itself.
  uint64_t first;
  /// Not 0 if the program named the pool.
  uint64_t second;
} millpond_graph_pool_id;

/// From now on, serves the streams of the calling thread's next capture on the device from a pool.
/// This function is for PyTorch's `set_begin_allocate_to_pool`. It throws `std::runtime_error` if
/// it fails.
///
/// Requires: The caller is C++, or lets C++ exceptions pass. `filter` is not used.
void millpond_begin_allocate_to_pool(int32_t device, millpond_graph_pool_id pool,
                                     const void *filter);

/// Ends the effect of `millpond_begin_allocate_to_pool`, after the capture has ended. The pool
/// keeps the allocated memory. This function is for PyTorch's `set_end_allocate_to_pool_fn`.
void millpond_end_allocate_to_pool(int32_t device, millpond_graph_pool_id pool);

/// Releases a graph's use of a pool. After the last release, the library frees the pool's memory
/// when the device has finished all work. This function is for PyTorch's `set_release_pool`.
void millpond_release_pool(int32_t device, millpond_graph_pool_id pool);

/* ================================================================================================
 * Memory managers (NBEP 7) and handles for other processes
 *
 * Numba uses this interface.
 * ============================================================================================= */

/// A memory manager. It uses the resource that is its device's default at the manager's first
/// allocation.
typedef struct millpond_manager millpond_manager;

/// Memory of a manager. A reset of the manager frees the memory, but the handle must still be
/// freed.
typedef struct millpond_memory millpond_memory;

/// While this handle exists, the manager defers its cleanup.
typedef struct millpond_deferral millpond_deferral;

/// Makes a memory manager on the device's default resource.
///
/// Requires: `device` is a handle from this library; `manager` is valid for writes.
millpond_status millpond_manager_new(const millpond_device *device, millpond_manager **manager);

/// Frees the handle of a manager. Memory from the manager stays valid until it is freed. Does
/// nothing for null.
///
/// Requires: `manager` is null, or a handle from this library, and is not used again.
void millpond_manager_free(millpond_manager *manager);

/// Prepares the manager. Call this function again after a reset.
///
/// Requires: `manager` is a handle from this library.
millpond_status millpond_manager_initialize(const millpond_manager *manager);

/// Allocates on `stream`. Returns the address, and the handle that frees the memory. The address is
/// null for 0 bytes.
///
/// Requires: `manager` is a handle from this library. The stream is alive and belongs to the
/// manager's device. Both results are valid for writes.
millpond_status millpond_manager_allocate(const millpond_manager *manager, uint64_t bytes,
                                          void *stream, uint64_t *address,
                                          millpond_memory **memory);

/// Frees memory. Works on any thread, also after a reset of the manager or of the device's context.
/// Does nothing for null.
///
/// Requires: `memory` is null, or a handle from this library, and is not used again.
void millpond_memory_free(millpond_memory *memory);

/// Returns whether the memory is valid. Returns `false` after a reset of the manager or of the
/// device's context, and for null.
///
/// Requires: `memory` is null or a handle from this library.
bool millpond_memory_is_live(const millpond_memory *memory);

/// Announces that work on `stream` uses the memory. After the program frees the memory, the library
/// reuses it only when that work is done.
///
/// Requires: `manager` and `memory` are handles from this library. The stream is alive and belongs
/// to the device.
millpond_status millpond_manager_record_stream(const millpond_manager *manager,
                                               const millpond_memory *memory, void *stream);

/// Writes the free bytes, including the memory that the manager's stack could reuse, and the total
/// bytes.
///
/// Requires: `manager` is a handle from this library; both numbers are valid for writes.
millpond_status millpond_manager_memory_info(const millpond_manager *manager, uint64_t *free_bytes,
                                             uint64_t *total_bytes);

/// Writes CUDA's legacy handle (64 bytes), through which another process can open the memory. Also
/// writes the offset of the memory from the start of the allocation that the handle names.
///
/// Requires: `manager` and `memory` are handles from this library. `handle` is valid for writes of
/// 64 bytes, and `offset` for writes of a number.
millpond_status millpond_manager_ipc_handle(const millpond_manager *manager,
                                            const millpond_memory *memory, uint8_t *handle,
                                            uint64_t *offset);

/// Frees all memory of the manager.
///
/// Requires: `manager` is a handle from this library.
millpond_status millpond_manager_reset(const millpond_manager *manager);

/// Defers the manager's cleanup until `millpond_deferral_free`: freed memory is kept until that
/// call.
///
/// Requires: `manager` is a handle from this library; `deferral` is valid for writes.
millpond_status millpond_manager_defer(const millpond_manager *manager,
                                       millpond_deferral **deferral);

/// Ends a deferral. Does nothing for null.
///
/// Requires: `deferral` is null, or a handle from this library, and is not used again.
void millpond_deferral_free(millpond_deferral *deferral);

/* ================================================================================================
 * For bindings to other languages
 *
 * The first functions keep the order of streams before and after a use of memory. The others serve
 * callers that hold a lock, such as Python's.
 * ============================================================================================= */

/// Waits for all work on the device, like `millpond_device_synchronize`, without ending a capture.
///
/// Requires: `device` is a handle from this library.
millpond_status millpond_device_wait(const millpond_device *device);

/// Waits for all work that was submitted to the stream, like `millpond_stream_synchronize`, without
/// ending a capture. If the stream captures a graph, the call waits for the device instead. This
/// completes all work from before the capture; captured work does not run yet.
///
/// Requires: `device` is a handle from this library; the stream is alive.
millpond_status millpond_stream_synchronize_beside_captures(const millpond_device *device,
                                                            void *stream);

/// Writes the identity of a stream, by which `millpond_stream_follow_if_alive` recognises the
/// stream later.
///
/// Requires: `device` is a handle from this library; the stream is alive; `id` is valid for writes.
millpond_status millpond_stream_id(const millpond_device *device, void *stream, uint64_t *id);

/// Makes later work of `stream` wait for the work submitted to `other`, like
/// `millpond_stream_wait`. If the driver refuses, the host waits for `other`. If one of the two
/// streams captures a graph, the host waits for the device. This completes all work from before the
/// capture; captured work does not run yet. If both streams belong to one capture, the graph also
/// gets the order. The call ends no capture.
///
/// Requires: `device` is a handle from this library; both streams are alive.
millpond_status millpond_stream_follow(const millpond_device *device, void *stream, void *other);

/// Works like `millpond_stream_follow`, but `other` may have been destroyed since an earlier call.
/// `id` is the identity that `millpond_stream_id` wrote for `other` at that time. The host waits
/// for the device in two cases: the library does not know whether `other` is alive, or one of the
/// two streams captures a graph. The call ends no capture.
///
/// Requires: `device` is a handle from this library; `stream` is alive.
millpond_status millpond_stream_follow_if_alive(const millpond_device *device, void *stream,
                                                void *other, uint64_t id);

/// Releases the caller's lock before a call that may wait, as `PyEval_SaveThread` does. Returns the
/// state that the caller needs to take the lock again.
typedef void *(*millpond_leave_function)(void);

/// Takes the lock again after the call, as `PyEval_RestoreThread` does.
typedef void (*millpond_enter_function)(void*);

/// Works like `millpond_malloc`, for a caller that holds a lock. If the thread's cache has a block,
/// the call returns the block at once. Otherwise the call releases the lock while it works.
///
/// Requires: The rules of `millpond_malloc` hold. Both functions can be called and do not unwind.
void *millpond_malloc_unlocked(size_t bytes, int32_t device, void *stream,
                               millpond_leave_function leave, millpond_enter_function enter);

/// Works like `millpond_free`, for a caller that holds a lock, as `millpond_malloc_unlocked` does.
///
/// Requires: The rules of `millpond_free` hold. Both functions can be called and do not unwind.
void millpond_free_unlocked(void *ptr, millpond_leave_function leave,
                            millpond_enter_function enter);

/// Allocates a block from the calling thread's cache for a default stream (0, 1 or 2). Returns
/// `false` in three cases: the cache has no such block; the outermost layer is not a pool;
/// `if_default` is set, and the resource is not the default resource of the thread's current
/// device.
///
/// Requires: `resource` is a handle from this library; `ptr` is valid for writes.
bool millpond_allocate_cached(const millpond_resource *resource, bool if_default, uint64_t bytes,
                              void *stream, void **ptr);

/// Frees a block into the calling thread's cache for a default stream (0, 1 or 2). If the cache
/// does not accept the block, returns `false`, and the block is still live.
///
/// Requires: The rules of `millpond_deallocate` hold, with no alignment. If the function returns
/// `false`, the block is still live.
bool millpond_deallocate_cached(const millpond_resource *resource, void *ptr, uint64_t bytes,
                                void *stream);

#ifdef __cplusplus
}
#endif

#endif
