//! Takes over the memory of a `CudaSlice`, and gives it back.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::CudaSlice;
use millpond_core::Result;

use super::CudaBuffer;
use crate::{AdoptedSlice, ConversionError, DeviceBuffer, RawParts};

/// Converts memory that cudarc allocated to a buffer and back.
impl<T: Any> CudaBuffer<T, AdoptedSlice<T>> {
    /// Takes over a slice from cudarc, without a copy. The buffer stays on the slice's stream. To turn the
    /// buffer into a vector, call [`into_vec`](Self::into_vec). To get the slice back, call
    /// [`give_back`](Self::give_back). To get a `CudaBuffer<T>`, call [`into_any`](Self::into_any). If the
    /// container is dropped instead, cudarc frees the memory on the slice's stream. The memory is freed after
    /// all work that the container knows of.
    ///
    /// Uses of the slice on other streams run before uses of the container, if cudarc has tracked them.
    /// cudarc tracks only the last read and the last write of a slice. While its event tracking is off,
    /// cudarc tracks nothing.
    ///
    /// If the slice is on a per-thread default stream, the call waits for the device. The reason is that
    /// cudarc does not tell which thread the stream belongs to.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the slice begins inside an
    /// allocation (not at a multiple of 256 bytes). The same error if the slice's context is not the primary
    /// context of the device. Also the driver's errors, and an error that cudarc has stored from an earlier
    /// call. The returned [`ConversionError`] contains the slice.
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
        // SAFETY: the block belongs to the resource, with this layout, and the slice was its only owner. Its
        // uses happen before the next work of its stream, which this buffer keeps alive.
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

    /// Returns the whole slice that was taken over, on its original stream. Work on this buffer's stream runs
    /// before the next use of the slice on the original stream. If cudarc tracks events, that work also runs
    /// before uses of the slice on other streams.
    ///
    /// # Errors
    /// The driver's errors. The returned [`ConversionError`] contains this buffer.
    pub fn give_back(mut self) -> Result<CudaSlice<T>, ConversionError<Self>> {
        match self.take_slice() {
            Ok(slice) => {
                // The slice owns the memory again, so nothing is freed here.
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
