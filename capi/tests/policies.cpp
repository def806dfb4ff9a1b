// What Thrust's algorithms ask of an execution policy: its stream, and temporary memory.
// Needs CUDA's headers, but neither nvcc nor a GPU.
#include <millpond/thrust.hpp>

#include <cstdio>

template <typename Policy>
static bool serves_algorithms(const millpond::stack& stack, const millpond::stream& stream) {
  Policy policy(stream.get(), stack);
  Policy copy(policy);
  const auto block = thrust::detail::get_temporary_buffer<int>(copy, 10);
  const bool is_counted = block.second == 10 && stack.statistics().bytes_requested == 40;
  thrust::detail::return_temporary_buffer(policy, block.first, block.second);
  try {
    thrust::detail::get_temporary_buffer<int>(policy, std::ptrdiff_t{1} << 50);
    return false;
  } catch (const millpond::out_of_memory&) {
  }
  stack.make_current();
  Policy by_default;
  return is_counted && get_stream(policy) == stream.get() && stack.statistics().bytes_requested == 0 &&
         by_default.get_allocator().get_upstream_resource() == stack &&
         get_stream(by_default) == millpond::named(nullptr);
}

int main() {
  const millpond::device device("sim:1GiB");
  const millpond::stack stack("cuda+pool+statistics", device);
  const millpond::stream stream(device);
  const bool is_served = serves_algorithms<millpond::exec_policy>(stack, stream);
  const bool is_served_nosync = serves_algorithms<millpond::exec_policy_nosync>(stack, stream);
  std::printf("exec_policy %d, exec_policy_nosync %d\n", is_served, is_served_nosync);
}
