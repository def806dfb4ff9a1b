//! Shares a pool's memory with other processes, through POSIX file descriptors.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use millpond_core::driver::{HandleTypes, MemPoolPtrData};
use millpond_core::{DevicePtr, DriverError, DriverHandle, Error, ErrorKind, Result, StreamRef};

use super::MemoryPool;
use super::inner::Origin;

/// Sharing between processes: first the pool, by a descriptor, then any of its blocks, by 64 bytes each.
impl MemoryPool {
    /// Returns a file descriptor with which another process can [import](Self::import_fd) the pool. Send it
    /// over a Unix socket, or let a child process inherit it.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the pool was made without
    /// [`HandleTypes::POSIX_FD`], [`Unsupported`](ErrorKind::Unsupported) for an imported one, and the
    /// driver's error.
    pub fn export_fd(&self) -> Result<OwnedFd> {
        self.check_export()?;
        let fd = self.call(|driver| driver.mem_pool_export_to_fd(self.raw()))?;
        // SAFETY: the driver has just opened the descriptor for its caller, who owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Imports another process's pool. An imported pool does not allocate:
    /// [`import_pointer`](Self::import_pointer) opens the blocks that the other process exports.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the driver knows no such pool, and the driver's
    /// other errors.
    ///
    /// # Safety
    /// Neither the driver nor this library knows which process uses the memory. The caller guarantees that
    /// - this process frees each imported block, and completes that free, before the exporter frees the
    ///   block: [`handshake`] tells the exporter so;
    /// - this process uses the block only after the exporter's allocation is done on the device.
    pub unsafe fn import_fd(driver: DriverHandle, fd: BorrowedFd<'_>) -> Result<Self> {
        let raw = {
            let _captures = millpond_core::driver::CaptureModeGuard::relaxed(&*driver);
            millpond_core::driver::call(&*driver, |driver| driver.mem_pool_import_from_fd(fd.as_raw_fd()))
        };
        let raw = raw.map_err(|error| {
            let is_refused = error.kind() == ErrorKind::Driver;
            let why = "the descriptor names no pool of this device; pass the descriptor that a pool exported";
            if is_refused {
                Error::invalid_argument(why).on_device(driver.device()).caused_by(error)
            } else {
                error.context("importing a pool")
            }
        })?;
        Ok(Self::register(driver, raw, Origin::Imported))
    }

    /// Describes a block of this pool for the process that imported it.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a pointer outside this pool, or a pool without
    /// handles; the driver's error.
    pub fn export_pointer(&self, ptr: DevicePtr) -> Result<MemPoolPtrData> {
        self.check_export()?;
        if self.call(|driver| driver.pointer_mem_pool(ptr))? != Some(self.raw()) {
            let message = format!("{ptr} is in no block of this pool; export it from the pool that it is of");
            return Err(Error::invalid_argument(message).on_device(self.driver().device()));
        }
        // An H200's driver (580.159.04) refuses pointers of a pool that was never exported.
        let again = |_: DriverError| {
            drop(self.export_fd());
            self.driver().mem_pool_export_pointer(ptr)
        };
        self.call(|driver| driver.mem_pool_export_pointer(ptr).or_else(again))
            .map_err(|error| error.context("exporting a block; pass its first byte"))
    }

    /// Opens a block that the exporter described, at an address of this process.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if this pool was not imported, or the driver refuses
    /// the description: it is from another pool, or the block was freed.
    pub fn import_pointer(&self, data: &MemPoolPtrData) -> Result<ImportedAllocation> {
        let refused = |why: &str| Error::invalid_argument(why).on_device(self.driver().device());
        if !self.is_imported() {
            return Err(refused(
                "this pool was made here; import blocks into the pool that import_fd returned",
            ));
        }
        let opened = self.call(|driver| driver.mem_pool_import_pointer(self.raw(), data));
        let ptr = opened.map_err(|error| match error.kind() {
            ErrorKind::Driver => refused(
                "it describes no living block of the pool that was imported; export the block again, from \
                     that pool",
            )
            .caused_by(error),
            _ => error,
        })?;
        Ok(ImportedAllocation { pool: self.clone(), ptr: Some(ptr) })
    }

    fn check_export(&self) -> Result<()> {
        self.refuse_import("be exported")?;
        match self.0.origin {
            Origin::Made { props, .. } if !props.handles.contains(HandleTypes::POSIX_FD) => {
                let message = "the pool was made without file descriptors for other processes; make it with \
                               handles that are descriptors (handles=fd)";
                Err(Error::invalid_argument(message).on_device(self.driver().device()))
            }
            _ => Ok(()),
        }
    }
}

/// A block of another process, open in this process until it is freed.
///
/// Dropping it waits for the device; [`free_on`](Self::free_on) does not.
#[derive(Debug)]
pub struct ImportedAllocation {
    pool: MemoryPool,
    ptr: Option<DevicePtr>,
}

impl ImportedAllocation {
    /// Returns the block's address in this process.
    pub fn device_pointer(&self) -> DevicePtr {
        self.ptr.unwrap_or(DevicePtr::NULL)
    }

    /// Frees the block in the order of `stream`. Tell the exporter once that stream's work is done.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) while the stream captures a graph, and the driver's
    /// errors. In both cases, the block is freed after a wait for the device.
    pub fn free_on(mut self, stream: StreamRef) -> Result<()> {
        let Some(ptr) = self.ptr else { return Ok(()) };
        if self.pool.call(|driver| driver.stream_is_capturing(stream))? {
            let why = "a block of another process cannot be freed by a graph; free it outside the capture";
            return Err(Error::invalid_argument(why).on_device(self.pool.driver().device()));
        }
        self.pool.inner().free_imported(ptr, stream)?;
        self.ptr = None;
        Ok(())
    }
}

impl Drop for ImportedAllocation {
    fn drop(&mut self) {
        let Some(ptr) = self.ptr.take().filter(|_| !self.pool.driver().health().is_lost()) else { return };
        if let Err(error) = self.pool.inner().free_imported_after_all(ptr) {
            tracing::warn!(
                target: "millpond::share",
                %error,
                "cannot free an imported block; the driver keeps it"
            );
        }
    }
}

/// Makes the two ends through which an exporter learns that its importers are done.
///
/// ```
/// use millpond_resources::memory_pool::handshake;
///
/// let (importers, token) = handshake()?;
/// // … the token goes to the other process, along with the pool's descriptor. There:
/// drop(token); // once its frees are done
/// // … and here:
/// importers.wait()?;
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
/// # Errors
/// [`Io`](ErrorKind::Io) if the process can have no more descriptors.
pub fn handshake() -> Result<(Importers, ImporterToken)> {
    let (reader, writer) = std::io::pipe()?;
    Ok((Importers(reader), ImporterToken(writer)))
}

/// The exporter's end of a [`handshake`].
#[derive(Debug)]
pub struct Importers(PipeReader);

impl Importers {
    /// Waits until every copy of the token is closed; the end of an importing process also closes its copy.
    /// The exporter closes its copy after sending it.
    ///
    /// # Errors
    /// [`Io`](ErrorKind::Io).
    pub fn wait(mut self) -> Result<()> {
        // The content does not matter: the end of the file is the message. `copy` continues after a signal.
        std::io::copy(&mut self.0, &mut std::io::sink())?;
        Ok(())
    }
}

/// The importers' end of a [`handshake`]: keep it open, or a copy of it, while blocks are imported.
#[derive(Debug)]
pub struct ImporterToken(PipeWriter);

impl AsFd for ImporterToken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<ImporterToken> for OwnedFd {
    fn from(token: ImporterToken) -> Self {
        token.0.into()
    }
}

impl From<OwnedFd> for ImporterToken {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}
