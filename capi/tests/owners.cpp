// What owners of millpond.hpp do when they are copied, moved and assigned, and at errors.
#include <millpond/millpond.hpp>

#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>

static_assert(!std::is_copy_constructible_v<millpond::buffer>);
static_assert(!std::is_copy_constructible_v<millpond::stream>);
static_assert(std::is_nothrow_move_constructible_v<millpond::buffer>);
static_assert(std::is_nothrow_copy_constructible_v<millpond::stack>);
static_assert(std::is_nothrow_copy_constructible_v<millpond::error>);
static_assert(std::is_nothrow_copy_constructible_v<millpond::out_of_memory>);

static int line_of_failure = 0;
#define EXPECT(condition) \
  if (!(condition) && line_of_failure == 0) line_of_failure = __LINE__

static void buffers(const millpond::stack& pool, void* stream) {
  millpond::buffer first(pool, 1000, stream);
  void* const data = first.data();
  millpond::buffer second(std::move(first));
  EXPECT(second.data() == data && second.size() == 1000 && second.stream() == stream);
  EXPECT(pool.statistics().blocks_in_use == 1);
  millpond::buffer third(pool, 2000);
  EXPECT(pool.statistics().blocks_in_use == 2);
  third = std::move(second);
  EXPECT(third.data() == data && pool.statistics().blocks_in_use == 1);
  millpond::buffer none(pool, 0);
  none.fill(1);
  EXPECT(none.data() == nullptr);
  const int number = 5;
  int back = 0;
  third.copy_from_host(&number, sizeof number);
  third.copy_to_host(&back, sizeof back);
  pool.device().synchronize();
  EXPECT(back == 5);
  bool is_refused = false;
  try {
    third.copy_from_host(&number, 1001);
  } catch (const std::out_of_range&) {
    is_refused = true;
  }
  EXPECT(is_refused);
}

static void errors(const millpond::stack& pool) {
  try {
    pool.deallocate(&line_of_failure, 8);
    EXPECT(false);
  } catch (const millpond::error& error) {
    EXPECT(error.status() == MILLPOND_STATUS_INVALID_ARGUMENT && *error.what() != 0);
    EXPECT(error.driver_code() == 0);
  }
  try {
    static_cast<void>(pool.allocate(std::size_t{1} << 50));
    EXPECT(false);
  } catch (const std::bad_alloc& caught) {
    const auto* error = dynamic_cast<const millpond::out_of_memory*>(&caught);
    EXPECT(error != nullptr && *error->report() != 0 && *error->what() != 0);
  }
}

int main() {
  const millpond::device device("sim:1GiB");
  EXPECT(device.is_simulated() && !device.name().empty());
  const millpond::stack pool("cuda+pool", device);
  millpond::stream stream(device);
  stream = millpond::stream(device);
  buffers(pool, stream.get());
  EXPECT(pool.statistics().blocks_in_use == 0);
  errors(pool);

  const millpond::stack copy(pool);
  EXPECT(copy == pool && copy.text() == "cuda+pool" && copy != millpond::stack("cuda", device));
  const millpond::stack layered = pool.with("statistics");
  EXPECT(layered.text() == "cuda+pool+statistics" && layered.device().ordinal() == device.ordinal());
  layered.make_current();
  EXPECT(millpond::stack::current(device) == layered);
  EXPECT(pool.memory_report(true).front() == '{');
  EXPECT(pool.trim() > 0 && pool.statistics().bytes_reserved == 0);
  if (line_of_failure != 0) {
    std::printf("line %d failed\n", line_of_failure);
    return EXIT_FAILURE;
  }
  std::printf("every owner freed its memory\n");
}
