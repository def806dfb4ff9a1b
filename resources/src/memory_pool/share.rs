//! Shares a pool's memory with other processes, through POSIX file descriptors and fabric handles.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use millpond_core::driver::{
    CaptureModeGuard, Driver, DriverResult, FabricHandle, HandleTypes, MemPool, MemPoolProps, MemPoolPtrData,
    call,
};
use millpond_core::{DevicePtr, DriverError, DriverHandle, Error, ErrorKind, Result, StreamRef};

use super::MemoryPool;
use super::handles;
use super::inner::Origin;

/// Shares a pool with other processes. The exporter sends a file descriptor or a fabric handle for the pool,
/// and then 64 bytes for each block.
impl MemoryPool {
    /// Returns a file descriptor with which another process can [import](Self::import_fd) the pool. Send the
    /// descriptor to the process over a Unix socket, or let a child process inherit the descriptor.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the pool was created without
    /// [`HandleTypes::POSIX_FD`]; [`Unsupported`](ErrorKind::Unsupported) for an imported pool; and the
    /// driver's errors.
    pub fn export_fd(&self) -> Result<OwnedFd> {
        self.check_export(HandleTypes::POSIX_FD)?;
        let fd = self.export(|driver| driver.mem_pool_export_to_fd(self.raw()))?;
        // SAFETY: the driver has just opened the descriptor for its caller, who owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Imports a pool of another process, the exporter. The imported pool cannot allocate.
    /// [`import_pointer`](Self::import_pointer) opens blocks that the exporter has exported from the pool.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if `fd` does not refer to a pool of the driver's
    /// device, and the driver's other errors.
    ///
    /// # Safety
    /// Neither the driver nor this library knows which process uses a block. So the caller guarantees two
    /// conditions for each imported block:
    /// - This process uses the block only after the exporter's allocation of the block is done on the device.
    /// - This process frees the block before the exporter does, and this free is done on the device by then.
    ///   A [`handshake`] tells the exporter when all importers are done.
    pub unsafe fn import_fd(driver: DriverHandle, fd: BorrowedFd<'_>) -> Result<Self> {
        let why = "the descriptor names no pool of this device; pass a descriptor that `export_fd` returned";
        Self::import(driver, why, |driver| driver.mem_pool_import_from_fd(fd.as_raw_fd()))
    }

    /// Returns a fabric handle with which another process can [import](Self::import_fabric) the pool. The
    /// process may be on another machine of the same NVLink domain. Send the 64 bytes in any way.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the pool was created without
    /// [`HandleTypes::FABRIC`]; [`Unsupported`](ErrorKind::Unsupported) for an imported pool; and the
    /// driver's errors.
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        self.check_export(HandleTypes::FABRIC)?;
        self.export(|driver| driver.mem_pool_export_to_fabric(self.raw()))
    }

    /// Exports the pool by a call. After a refusal for lack of an IMEX channel, driver 580 (CUDA 13.0) does
    /// not return from the pool's next export. So the refusal is remembered, and one thread exports at a
    /// time: the others learn of its refusal before they call.
    fn export<T>(&self, export: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> Result<T> {
        // Another thread may have held the lock when this process was forked.
        if self.driver().health().is_lost() {
            return self.call(export);
        }
        let is_refused = self.inner().is_export_refused.lock();
        if is_refused.get() {
            let error = DriverError::new(DriverError::NOT_PERMITTED, "cuMemPoolExportToShareableHandle");
            return Err(handles::explain(error.into(), &**self.driver()));
        }
        self.call(export).map_err(|error| {
            let code = error.driver_error().map(DriverError::code);
            if code == Some(DriverError::NOT_PERMITTED) && self.check_export(HandleTypes::FABRIC).is_ok() {
                is_refused.set(true);
            }
            handles::explain(error, &**self.driver())
        })
    }

    /// Imports a pool of another process, as [`import_fd`](Self::import_fd) does, through a fabric handle.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the handle names no pool that this device can
    /// reach; [`Unsupported`](ErrorKind::Unsupported) if this process cannot open the exporter's IMEX
    /// channel; and the driver's other errors.
    ///
    /// # Safety
    /// The conditions of [`import_fd`](Self::import_fd) hold.
    pub unsafe fn import_fabric(driver: DriverHandle, handle: &FabricHandle) -> Result<Self> {
        let why = "the handle names no pool that this device can reach; pass the 64 bytes that \
                   `export_fabric` returned, while the exporter's pool exists";
        Self::import(driver, why, |driver| driver.mem_pool_import_from_fabric(handle))
    }

    /// Imports a pool by a call. `why` is the reason if the driver does not know the handle.
    fn import(
        driver: DriverHandle,
        why: &str,
        import: impl FnOnce(&dyn Driver) -> DriverResult<MemPool>,
    ) -> Result<Self> {
        let raw = {
            let _captures = CaptureModeGuard::relaxed(&*driver);
            call(&*driver, import)
        };
        let raw = raw.map_err(|error| {
            let error = handles::explain(error, &*driver);
            match error.kind() {
                ErrorKind::Driver => Error::invalid_argument(why).on_device(driver.device()).caused_by(error),
                _ => error.context("importing a pool"),
            }
        })?;
        Ok(Self::register(driver, raw, Origin::Imported))
    }

    /// Returns a description of a block of this pool. A process that has imported the pool can open the block
    /// with the description.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a pointer outside this pool, and for a pool that
    /// was created without handles. Also the driver's errors, for example for an address inside a block.
    pub fn export_pointer(&self, ptr: DevicePtr) -> Result<MemPoolPtrData> {
        self.check_export(HandleTypes::NONE)?;
        if self.call(|driver| driver.pointer_mem_pool(ptr))? != Some(self.raw()) {
            let message = format!(
                "{ptr} is in no block of this pool; export the block from the pool that allocated it"
            );
            return Err(Error::invalid_argument(message).on_device(self.driver().device()));
        }
        // An H200's driver (580.159.04) refuses pointers of a pool that was never exported.
        let exported = self.call(|driver| driver.mem_pool_export_pointer(ptr)).or_else(|_| {
            self.export_any()?;
            self.call(|driver| driver.mem_pool_export_pointer(ptr))
        });
        exported.map_err(|error| error.context("exporting a block; pass its first byte"))
    }

    /// Exports the pool with a kind of handle that it has. Before CUDA 13.2, the driver does not say which
    /// kinds a foreign pool has, so this tries one after the other.
    fn export_any(&self) -> Result<()> {
        if self.check_export(HandleTypes::POSIX_FD).is_err() {
            return self.export_fabric().map(drop);
        }
        self.export_fd().map(drop).or_else(|error| match self.check_export(HandleTypes::FABRIC) {
            Ok(()) => self.export_fabric().map(drop),
            Err(_) => Err(error),
        })
    }

    /// Opens a block that the exporter has described with [`export_pointer`](Self::export_pointer). The block
    /// gets an address in this process.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if this pool was not imported, or if the driver
    /// refuses the description. The driver refuses it if the block is from another pool or was freed.
    pub fn import_pointer(&self, data: &MemPoolPtrData) -> Result<ImportedAllocation> {
        let refused = |why: &str| Error::invalid_argument(why).on_device(self.driver().device());
        if !self.is_imported() {
            return Err(refused(
                "this process made the pool; import blocks into a pool that this process imported",
            ));
        }
        let opened = self.call(|driver| driver.mem_pool_import_pointer(self.raw(), data));
        let ptr = opened.map_err(|error| match error.kind() {
            ErrorKind::Driver => refused(
                "the data describes no live block of the imported pool; export the block again, from that \
                 pool",
            )
            .caused_by(error),
            _ => error,
        })?;
        Ok(ImportedAllocation { pool: self.clone(), ptr: Some(ptr) })
    }

    /// Refuses the export of an imported pool, and of a pool without this handle. With no handle, the pool
    /// needs any.
    fn check_export(&self, handle: HandleTypes) -> Result<()> {
        self.refuse_import("be exported")?;
        let Origin::Made { props: MemPoolProps { handles, .. }, .. } = self.0.origin else { return Ok(()) };
        if !handles.is_none() && handles.contains(handle) {
            return Ok(());
        }
        let (what, option) = match handle {
            HandleTypes::POSIX_FD => ("file descriptors", "handles=fd"),
            HandleTypes::FABRIC => ("fabric handles", "handles=fabric"),
            _ => ("handles for other processes", "handles=fd or handles=fabric"),
        };
        let message = format!("the pool was made without {what}; make it with {option}");
        Err(Error::invalid_argument(message).on_device(self.driver().device()))
    }
}

/// A block of another process's pool, opened in this process. Dropping this value waits for the device, and
/// then frees the block in this process. [`free_on`](Self::free_on) frees the block without a wait.
#[derive(Debug)]
pub struct ImportedAllocation {
    pool: MemoryPool,
    ptr: Option<DevicePtr>,
}

impl ImportedAllocation {
    /// Returns the address of the block in this process.
    pub fn device_pointer(&self) -> DevicePtr {
        self.ptr.unwrap_or(DevicePtr::NULL)
    }

    /// Frees the block in the order of `stream`, without waiting. After the work of the stream is done, this
    /// process may tell the exporter that this process no longer uses the block.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the stream captures a graph, and the driver's
    /// errors. After any error, the method waits for the device and then frees the block.
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
        let is_usable = || !self.pool.inner().is_elsewhere() && !self.pool.driver().health().is_lost();
        let Some(ptr) = self.ptr.take().filter(|_| is_usable()) else { return };
        if let Err(error) = self.pool.inner().free_imported_after_all(ptr) {
            tracing::warn!(
                target: "millpond::share",
                %error,
                "cannot free an imported block; the driver keeps it"
            );
        }
    }
}

/// Creates a connection through which an exporter learns that its importers are done. Returns the exporter's
/// end and the importers' end.
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
/// [`Io`](ErrorKind::Io) if the process cannot open more file descriptors.
pub fn handshake() -> Result<(Importers, ImporterToken)> {
    let (reader, writer) = std::io::pipe()?;
    Ok((Importers(reader), ImporterToken(writer)))
}

/// The exporter's end of a [`handshake`].
#[derive(Debug)]
pub struct Importers(PipeReader);

impl Importers {
    /// Waits until every copy of the [`ImporterToken`] is closed. If an importing process ends, its copies
    /// are closed, too. The exporter must close its own copy after it has sent the token to the importers.
    ///
    /// # Errors
    /// [`Io`](ErrorKind::Io) if reading the connection fails.
    pub fn wait(mut self) -> Result<()> {
        // The content does not matter: the end of the file is the message. `copy` continues after a signal.
        std::io::copy(&mut self.0, &mut std::io::sink())?;
        Ok(())
    }
}

/// The importers' end of a [`handshake`]. Each importing process keeps a copy open while it uses imported
/// blocks.
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
