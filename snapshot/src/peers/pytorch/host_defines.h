// What CUDA's runtime headers need of `crt/host_defines.h`, which PyTorch's packages lack. A C++ compiler for
// the host sees nothing else of it.
#pragma once

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ __inline__ __attribute__((always_inline))
