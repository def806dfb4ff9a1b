/* Shows how to build a pool on a device, use a block of it, and handle an out-of-memory error.
 *
 *   cc pool.c -o pool $(pkg-config --cflags --libs millpond) && ./pool sim:1GiB
 */
#include <millpond.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, millpond_error_message());
  return 1;
}

int main(int count, char **arguments) {
  const char *name = count > 1 ? arguments[1] : NULL; /* the first GPU, or a simulated one */
  millpond_device *device = NULL;
  if (millpond_device_open(name, &device)) return failed("no device");
  millpond_resource *pool = NULL;
  if (millpond_resource_new(device, "cuda+pool+statistics", &pool)) return failed("no pool");

  void *stream = NULL, *block = NULL;
  if (millpond_stream_create(device, true, &stream)) return failed("no stream");
  if (millpond_allocate(pool, 1000, 0, stream, &block)) return failed("no block");
  if (millpond_fill(device, block, 7, 1000, stream)) return failed("no fill");
  unsigned char copy[1000];
  if (millpond_copy_to_host(device, copy, block, sizeof copy, stream)) return failed("no copy");
  if (millpond_stream_synchronize(device, stream)) return failed("no wait");
  if (millpond_deallocate(pool, block, 1000, 0, stream)) return failed("no free");
  printf("the last byte is %d\n", copy[999]);

  if (millpond_allocate(pool, (uint64_t)1 << 50, 0, stream, &block) != MILLPOND_STATUS_OUT_OF_MEMORY) return 1;
  printf("%s\n", millpond_error_message());

  millpond_level_counters counters;
  if (millpond_statistics_counters(pool, &counters)) return failed("no counters");
  printf("peak %lld bytes\n", (long long)counters.peak_bytes);
  millpond_resource_free(pool);
  if (millpond_stream_destroy(device, stream)) return failed("no end of the stream");
  millpond_device_free(device);
  return 0;
}
