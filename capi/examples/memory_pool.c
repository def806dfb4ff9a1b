/* Shows how to make a pool of the driver, allocate from it, and share a block with another process.
 *
 *   cc memory_pool.c -o memory_pool $(pkg-config --cflags --libs millpond) && ./memory_pool sim:1GiB
 *
 * On a simulated device, this process also stands for the other one.
 */
#include <millpond.h>
#include <stdio.h>
#include <unistd.h>

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, millpond_error_message());
  return 1;
}

/* The other process: it got the descriptor and the 64 bytes over a Unix socket. */
static int read_block(millpond_device *device, int fd, const uint8_t *data, void *stream) {
  millpond_memory_pool *pool = NULL;
  millpond_imported_allocation *block = NULL;
  void *address = NULL;
  unsigned char copy[1000];
  if (millpond_memory_pool_import_fd(device, fd, &pool)) return failed("no import");
  if (millpond_memory_pool_import_pointer(pool, data, &block, &address)) return failed("no block");
  if (millpond_copy_to_host(device, copy, address, sizeof copy, stream)) return failed("no copy");
  if (millpond_imported_allocation_free_on(block, stream)) return failed("no free");
  if (millpond_stream_synchronize(device, stream)) return failed("no wait");
  printf("the last byte is %d\n", copy[999]);
  millpond_imported_allocation_free(block);
  if (!millpond_memory_pool_is_imported(pool)) return 1;
  millpond_resource *none = NULL;
  if (millpond_memory_pool_resource(pool, &none) != MILLPOND_STATUS_UNSUPPORTED) return 1;
  printf("%s\n", millpond_error_message());
  millpond_memory_pool_free(pool);
  return 0;
}

/* A fabric handle also reaches other machines. Without a channel of IMEX, no such pool is made. */
static int share_by_fabric(millpond_device *device) {
  millpond_memory_pool_properties properties = {0};
  properties.handle_types = 8;
  millpond_memory_pool *pool = NULL, *imported = NULL;
  uint8_t handle[64];
  millpond_status status = millpond_memory_pool_new(device, &properties, &pool);
  if (!status) status = millpond_memory_pool_export_fabric(pool, handle);
  if (status) {
    printf("%s\n", millpond_error_message());
    millpond_memory_pool_free(pool);
    return status != MILLPOND_STATUS_UNSUPPORTED;
  }
  if (millpond_memory_pool_import_fabric(device, handle, &imported)) return failed("no import");
  printf("64 bytes shared the pool\n");
  millpond_memory_pool_free(imported);
  millpond_memory_pool_free(pool);
  return 0;
}

int main(int count, char **arguments) {
  const char *name = count > 1 ? arguments[1] : NULL; /* the first GPU, or a simulated one */
  millpond_device *device = NULL;
  if (millpond_device_open(name, &device)) return failed("no device");

  /* A pool that other processes can import, with at most 64 MiB. */
  millpond_memory_pool_properties properties = {0};
  properties.handle_types = 1;
  properties.max_bytes = 64 << 20;
  millpond_memory_pool *pool = NULL;
  if (millpond_memory_pool_new(device, &properties, &pool)) return failed("no pool");
  if (millpond_memory_pool_set_attribute(pool, MILLPOND_MEMORY_POOL_ATTRIBUTE_RELEASE_THRESHOLD, 1 << 20))
    return failed("no threshold");
  if (millpond_memory_pool_set_attribute(pool, MILLPOND_MEMORY_POOL_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC, 0))
    return failed("no switch");
  if (millpond_memory_pool_set_attribute(pool, 99, 0) != MILLPOND_STATUS_INVALID_ARGUMENT) return 1;

  millpond_resource *resource = NULL;
  if (millpond_memory_pool_resource(pool, &resource)) return failed("no resource");
  void *stream = NULL, *block = NULL;
  if (millpond_stream_create(device, true, &stream)) return failed("no stream");
  if (millpond_allocate(resource, 1000, 0, stream, &block)) return failed("no block");
  if (millpond_fill(device, block, 7, 1000, stream)) return failed("no fill");
  if (millpond_stream_synchronize(device, stream)) return failed("no wait");

  int fd = -1;
  uint8_t data[64];
  if (millpond_memory_pool_export_fd(pool, &fd)) return failed("no descriptor");
  if (millpond_memory_pool_export_pointer(pool, block, data)) return failed("no description");
  if (read_block(device, fd, data, stream)) return 1;
  close(fd);
  if (share_by_fabric(device)) return 1;

  if (millpond_deallocate(resource, block, 1000, 0, stream)) return failed("no free");
  uint64_t used = 1, high = 0, threshold = 0, is_on = 1;
  if (millpond_memory_pool_get_attribute(pool, MILLPOND_MEMORY_POOL_ATTRIBUTE_USED_CURRENT, &used) ||
      millpond_memory_pool_get_attribute(pool, MILLPOND_MEMORY_POOL_ATTRIBUTE_USED_HIGH, &high) ||
      millpond_memory_pool_get_attribute(pool, MILLPOND_MEMORY_POOL_ATTRIBUTE_RELEASE_THRESHOLD, &threshold) ||
      millpond_memory_pool_get_attribute(pool, MILLPOND_MEMORY_POOL_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC, &is_on))
    return failed("no attribute");
  printf("%llu bytes in use, at most %llu; threshold %llu, reuse %llu\n", (unsigned long long)used,
         (unsigned long long)high, (unsigned long long)threshold, (unsigned long long)is_on);

  /* The host accesses pools of host memory, and the device does once it is allowed to. */
  millpond_memory_pool *host = NULL, *default_pool = NULL;
  uint32_t of_host = 9, of_device = 9, of_numa = 9;
  if (millpond_memory_pool_default_for(device, 2, 0, false, &host)) return failed("no pool of the host");
  if (millpond_memory_pool_set_access(host, device, 3)) return failed("no access");
  if (millpond_memory_pool_get_access(host, device, &of_device) ||
      millpond_memory_pool_get_host_access(host, 2, 0, &of_host) ||
      millpond_memory_pool_get_host_access(pool, 3, 0, &of_numa))
    return failed("no answer");
  printf("the host's pool: device %u, host %u; the device's: host %u\n", of_device, of_host, of_numa);
  if (millpond_memory_pool_set_host_access(host, 2, 0, 3)) return failed("no access");
  if (millpond_memory_pool_set_host_access(pool, 2, 0, 3) != MILLPOND_STATUS_INVALID_ARGUMENT) return 1;
  if (millpond_memory_pool_set_host_access(pool, 1, 0, 3) != MILLPOND_STATUS_INVALID_ARGUMENT) return 1;
  if (millpond_memory_pool_default_for(device, 1, 0, false, &default_pool)) return failed("no default pool");
  millpond_memory_pool_free(default_pool);
  millpond_memory_pool_free(host);

  /* A current pool lives without its handles. */
  millpond_memory_pool *before = NULL, *current = NULL;
  if (millpond_memory_pool_current(device, &before)) return failed("no current pool");
  if (millpond_memory_pool_set_current(pool)) return failed("not current");
  millpond_resource_free(resource);
  millpond_memory_pool_free(pool);
  if (millpond_memory_pool_current(device, &current)) return failed("no current pool");
  if (millpond_memory_pool_get_properties(current, &properties)) return failed("no properties");
  printf("the current pool has at most %llu bytes\n", (unsigned long long)properties.max_bytes);
  if (millpond_memory_pool_set_current(before)) return failed("not current");
  millpond_memory_pool_free(current);
  millpond_memory_pool_free(before);
  if (millpond_stream_destroy(device, stream)) return failed("no end of the stream");
  millpond_device_free(device);
  return 0;
}
