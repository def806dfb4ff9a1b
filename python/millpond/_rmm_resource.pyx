# distutils: language = c++
# cython: language_level = 3
"""An RMM resource that takes memory from a millpond stack, from C++ and without the GIL.

`millpond.rmm_bridge` compiles this file against the installed RMM.
"""

from cython.operator cimport dereference
from libc.stdint cimport uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional

from rmm.librmm.memory_resource cimport device_async_resource_ref
from rmm.pylibrmm.memory_resource cimport DeviceMemoryResource

cdef extern from *:
    """
    #include <millpond/memory_resource.hpp>
    #include <rmm/error.hpp>

    // millpond's resource with RMM's own out-of-memory class, which RMM's adaptors expect.
    class millpond_rmm_resource : public millpond::memory_resource {
     public:
      explicit millpond_rmm_resource(std::uintptr_t handle)
          : memory_resource(reinterpret_cast<millpond_resource*>(handle)) {}

      void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
        return as_rmm([&] { return memory_resource::allocate(stream, bytes, alignment); });
      }

      void* allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
        return as_rmm([&] { return memory_resource::allocate_sync(bytes, alignment); });
      }

      friend constexpr void get_property(const millpond_rmm_resource&,
                                         cuda::mr::device_accessible) noexcept {}

     private:
      template <typename Call>
      static void* as_rmm(Call call) {
        try {
          return call();
        } catch (const millpond::out_of_memory& error) {
          throw rmm::out_of_memory(error.what());
        }
      }
    };

    static_assert(cuda::mr::resource_with<millpond_rmm_resource, cuda::mr::device_accessible>);
    """
    cdef cppclass millpond_rmm_resource nogil:
        millpond_rmm_resource(uintptr_t handle)

    optional[device_async_resource_ref] make_device_async_resource_ref(
        millpond_rmm_resource& resource) except + nogil


cdef class MillpondMemoryResource(DeviceMemoryResource):
    """A millpond stack as an RMM resource. The object owns the libmillpond handle that it gets."""

    cdef unique_ptr[millpond_rmm_resource] resource

    def __cinit__(self, uintptr_t handle):
        if not handle:
            raise ValueError("the handle is null; millpond.rmm.resource() makes this object")
        self.resource.reset(new millpond_rmm_resource(handle))
        self.c_ref = make_device_async_resource_ref(dereference(self.resource))

    def __dealloc__(self):
        # The end of a pool may wait for the device, or for a function of the program, so the GIL is released.
        with nogil:
            self.c_ref.reset()
            self.resource.reset()
