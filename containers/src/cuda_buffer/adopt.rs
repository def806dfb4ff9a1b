//! Takes over the memory of a `CudaSlice`, and gives it back.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::CudaSlice;
use millpond_core::Result;

use super::CudaBuffer;
use crate::{AdoptedSlice, ConversionError, DeviceBuffer, RawParts};

/// Memory that cudarc allocated.
impl<T: Any> CudaBuffer<T, AdoptedSlice<T>> {
    /// Takes a slice over, on its own stream and without a copy. [`into_vec`](Self::into_vec) makes a vector
    /// of it. When the container is dropped, cudarc frees the memory on the slice's stream, after all work
    /// that the container knows of; [`give_back`](Self::give_back) returns the slice instead.
    ///
    /// Uses of the slice on other streams come first, as far as cudarc has tracked them: it remembers the
    /// last read and the last write of a slice, and nothing while its tracking is off. A slice on the
    /// per-thread default stream waits for the device, since cudarc does not say of which thread.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the slice begins inside of an
    /// allocation (not at a multiple of 256 bytes), or is of a context that is not the device's primary one;
    /// those of the driver, and one that cudarc stored before. The error returns the slice.
    ///
    /// ```no_run
    /// use millpond_containers::CudaBuffer;
    /// use millpond_core::StreamRef;
    /// use millpond_driver::cuda::cudarc::driver::CudaContext;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let slice = stream.clone_htod(&[1_u32, 2, 3])?;
    ///
    /// let numbers = CudaBuffer::adopt(slice)?.into_vec(StreamRef::LEGACY)?;
    /// assert_eq!(numbers.to_host()?, [1, 2, 3]);
    ///
    /// let slice = CudaBuffer::from_vec(numbers, &stream)?.give_back()?;
    /// assert_eq!(stream.clone_dtoh(&slice)?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn adopt(slice: CudaSlice<T>) -> Result<Self, ConversionError<CudaSlice<T>>> {
        let (stream, len) = (Arc::clone(slice.stream()), slice.len());
        let resource = AdoptedSlice::new(slice)?;
        let (ptr, layout, home) = resource.block();
        // SAFETY: the block is the resource's, with this layout, and the slice was its only owner. Its uses
        // happen before the next work of its stream, which this buffer holds.
        let buffer = unsafe {
            DeviceBuffer::from_raw_parts(RawParts {
                ptr,
                len: layout.bytes(),
                layout,
                stream: home,
                resource,
            })
        };
        Ok(Self::from_parts(buffer, stream, len))
    }

    /// Returns the slice that was taken over, whole, on the stream that it had. Work of this buffer's stream
    /// happens before the slice's next use: on its stream, and on others as far as cudarc tracks uses.
    ///
    /// # Errors
    /// Those of the driver. The error returns the buffer.
    pub fn give_back(mut self) -> Result<CudaSlice<T>, ConversionError<Self>> {
        match self.take_slice() {
            Ok(slice) => {
                // The slice owns the memory again, so that nothing is to be freed here.
                let _ = self.buffer.into_raw_parts();
                Ok(slice)
            }
            Err(error) => Err(ConversionError::new(error, self)),
        }
    }

    fn take_slice(&mut self) -> Result<CudaSlice<T>> {
        let home = self.resource().stream()?;
        self.set_stream(&home)?;
        self.resource().take()
    }
}
