//! Containers as arguments of kernels that cudarc launches.

use cudarc::driver::{LaunchArgs, PushKernelArg};
use millpond_core::{DeviceMemoryResource, DevicePtr};

use crate::{CudaBuffer, DeviceBuffer, DeviceScalar, DeviceVec};

/// Returns the address in a place that a kernel's arguments can point to.
fn address_of<R: DeviceMemoryResource>(buffer: &DeviceBuffer<R>) -> &u64 {
    let address: *const DevicePtr = buffer.ptr_ref();
    // SAFETY: a `DevicePtr` is a transparent `u64`, and is borrowed as long as the buffer.
    unsafe { &*address.cast() }
}

/// Lets a kernel launch of cudarc accept shared and unique borrows of a container without events. A launch is
/// unsafe, and does not order streams: launch on the container's stream.
macro_rules! kernel_argument {
    ($container:ident [$($parameter:ident),*], $buffer:expr) => {
        // SAFETY: the argument is the address of the container's memory, which lies in the container and is
        // borrowed as long as the launch refers to it.
        unsafe impl<'a, 'b: 'a, $($parameter,)* R: DeviceMemoryResource>
            PushKernelArg<&'b $container<$($parameter,)* R>> for LaunchArgs<'a>
        {
            #[inline(always)]
            fn arg(&mut self, arg: &'b $container<$($parameter,)* R>) -> &mut Self {
                self.arg(address_of($buffer(&*arg)))
            }
        }

        // SAFETY: as above.
        unsafe impl<'a, 'b: 'a, $($parameter,)* R: DeviceMemoryResource>
            PushKernelArg<&'b mut $container<$($parameter,)* R>> for LaunchArgs<'a>
        {
            #[inline(always)]
            fn arg(&mut self, arg: &'b mut $container<$($parameter,)* R>) -> &mut Self {
                self.arg(address_of($buffer(&*arg)))
            }
        }
    };
}

fn of_scalar<T, R: DeviceMemoryResource>(scalar: &DeviceScalar<T, R>) -> &DeviceBuffer<R> {
    scalar.as_vec().as_buffer()
}

kernel_argument!(DeviceBuffer [], std::convert::identity);
kernel_argument!(DeviceVec[T], DeviceVec::as_buffer);
kernel_argument!(DeviceScalar[T], of_scalar);

// SAFETY: the argument is the address of the buffer's memory. It lies in the buffer, or in the slice that the
// buffer keeps, and is borrowed as long as the launch refers to it.
unsafe impl<'a, 'b: 'a, T, R: DeviceMemoryResource> PushKernelArg<&'b CudaBuffer<T, R>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b CudaBuffer<T, R>) -> &mut Self {
        match arg.tracked() {
            Some(events) => {
                events.reads.are_managed(arg.stream(), arg.stream());
                self.arg(&*events.slice)
            }
            None => self.arg(address_of(arg.as_buffer())),
        }
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T, R: DeviceMemoryResource> PushKernelArg<&'b mut CudaBuffer<T, R>>
    for LaunchArgs<'a>
{
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut CudaBuffer<T, R>) -> &mut Self {
        let (buffer, events) = arg.tracked_mut();
        match events {
            Some(events) => {
                events.reads.become_write(&mut *events.slice);
                self.arg(&mut *events.slice)
            }
            None => self.arg(address_of(buffer)),
        }
    }
}
