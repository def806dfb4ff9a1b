//! Shares memory with another process (IPC).
//!
//! NBEP 7 uses CUDA's legacy IPC handles, which exist only for memory that `cuMemAlloc` allocated. So if a
//! stack shares memory this way, its pools need `pages=off`, as in `cuda+pool:pages=off`. If a pool maps its
//! memory itself, it can share the memory through file descriptors: `cuda+pool:share=fd` and
//! `millpond_resources::share`.
//!
//! CUDA shares whole allocations, but a block of a pool is only a part of an allocation. So an [`IpcHandle`]
//! also contains the offset of the memory in its allocation. The bytes of a handle have this format:
//!
//! ```text
//! magic "MPIPC\r\n\x1a"   8 bytes
//! version                 u16     1
//! total length            u32     bytes, this header included
//! CUDA's handle           64 bytes
//! bytes                   u64     how long the memory is
//! offset                  u64     where it starts inside the allocation
//! source                  u8      0: unknown, 1: follows
//!   device                u32     the CUDA ordinal; the highest bit marks a simulated device
//!   name                  u16 and that many bytes of UTF-8
//! ```
//! All numbers are little endian.

use millpond_core::driver::{CaptureModeGuard, Driver, IpcMemHandle, call};
use millpond_core::{DeviceId, DriverError, DriverHandle, Error, ErrorKind, Result};

use crate::MemoryPointer;

const MAGIC: [u8; 8] = *b"MPIPC\r\n\x1a";
const VERSION: u16 = 1;
/// The bytes up to and including the source's flag.
const FIXED_BYTES: usize = 8 + 2 + 4 + 64 + 8 + 8 + 1;
const SIM_BIT: u32 = 1 << 31;

/// The device of shared memory, as the sharing process numbers it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SourceInfo {
    /// The device. Another process may number it differently.
    pub device: DeviceId,
    /// The name of the device.
    pub name: String,
}

/// A handle with which another process can open memory.
///
/// In the process that made the handle, the handle keeps the memory alive ([`base`](Self::base)).
/// [`to_bytes`](Self::to_bytes) and [`from_bytes`](Self::from_bytes) copy the handle to another process. This
/// copy does not keep the memory alive. So the sharing process must keep the memory until the other process
/// has closed its handle.
///
/// ```no_run
/// # use millpond_plugin::{IpcHandle, MemoryManager};
/// # fn share(manager: &dyn MemoryManager, send: impl Fn(&[u8])) -> millpond_core::Result<()> {
/// let memory = manager.memalloc(1 << 20)?;
/// send(&manager.get_ipc_handle(&memory)?.to_bytes());
/// # Ok(()) }
/// # fn receive(bytes: &[u8], driver: &millpond_core::DriverHandle) -> millpond_core::Result<()> {
/// // in the other process
/// let mut handle = IpcHandle::from_bytes(bytes)?;
/// let memory = handle.open(driver)?;
/// // … use memory.device_pointer() …
/// handle.close()
/// # }
/// ```
#[derive(Debug)]
pub struct IpcHandle {
    base: Option<MemoryPointer>,
    handle: IpcMemHandle,
    bytes: u64,
    source_info: Option<SourceInfo>,
    offset: u64,
    opened: Option<MemoryPointer>,
}

impl IpcHandle {
    /// Makes a handle of `bytes` bytes at `offset` in the allocation that CUDA's `handle` names. In the
    /// process that owns the memory, `base` is the memory itself.
    pub fn new(
        base: Option<MemoryPointer>,
        handle: IpcMemHandle,
        bytes: u64,
        source_info: Option<SourceInfo>,
        offset: u64,
    ) -> Self {
        Self { base, handle, bytes, source_info, offset, opened: None }
    }

    /// Returns the memory, if this process made the handle.
    pub fn base(&self) -> Option<&MemoryPointer> {
        self.base.as_ref()
    }

    /// Returns CUDA's handle of the whole allocation.
    pub fn handle(&self) -> &IpcMemHandle {
        &self.handle
    }

    /// Returns the number of bytes of the memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the device of the memory, as the sharing process numbers it.
    pub fn source_info(&self) -> Option<&SourceInfo> {
        self.source_info.as_ref()
    }

    /// Returns the offset of the memory in the allocation, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Maps the memory into this process. This handle and the returned pointer both keep the mapping open.
    /// [`close`](Self::close) ends the mapping even if the pointer still exists.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidArgument`] in three cases: this process made the handle, the handle is
    /// already open, or the handle names bytes beyond the allocation. Otherwise returns an error of the
    /// driver.
    pub fn open(&mut self, driver: &DriverHandle) -> Result<MemoryPointer> {
        let device = driver.device();
        if self.base.is_some() {
            return Err(Error::invalid_argument(
                "this process made the handle and owns the memory; open the handle in another process",
            ));
        }
        if self.opened.as_ref().is_some_and(MemoryPointer::is_live) {
            return Err(Error::invalid_argument("the handle is already open; close it first"));
        }
        let end = self.offset.checked_add(self.bytes).ok_or_else(|| self.out_of_bounds(u64::MAX))?;
        let _captures = CaptureModeGuard::relaxed(&**driver);
        let ptr = call(&**driver, |driver| driver.ipc_open_mem_handle(&self.handle))
            .map_err(|error| error.context("opening shared memory"))?;
        let closer = DriverHandle::clone(driver);
        let whole = MemoryPointer::with_finalizer(device, ptr, end, move |_| {
            let _captures = CaptureModeGuard::relaxed(&*closer);
            // SAFETY: the pointer came from `ipc_open_mem_handle`. This closure runs at most once: no pointer
            // is left, or `close` has declared all pointers dead.
            if let Err(error) = call(&*closer, |driver| unsafe { driver.ipc_close_mem_handle(ptr) }) {
                tracing::debug!(target: "millpond::plugin", %error, "could not close shared memory");
            }
        });
        // The handle came from another process, so its data about the allocation is compared with the
        // driver's data.
        if let Ok((base, size)) = call(&**driver, |driver| driver.mem_get_address_range(ptr))
            && end > size.saturating_sub(ptr.address().saturating_sub(base.address()))
        {
            return Err(self.out_of_bounds(size));
        }
        let memory = whole.view(self.offset..end)?;
        self.opened = Some(whole);
        Ok(memory)
    }

    /// Ends the mapping. After that, pointers from [`open`](Self::open) are not live.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidArgument`] if the handle is not open.
    pub fn close(&mut self) -> Result<()> {
        match self.opened.take() {
            Some(opened) => opened.free(),
            None => Err(Error::invalid_argument("the handle is not open; open it first")),
        }
    }

    /// Returns the handle as bytes for another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + 64);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 4]); // the length, written below
        out.extend(self.handle.0);
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.push(u8::from(self.source_info.is_some()));
        if let Some(SourceInfo { device, name }) = &self.source_info {
            let mark = if device.is_sim() { SIM_BIT } else { 0 };
            out.extend((device.ordinal() | mark).to_le_bytes());
            let name = cut(name, u16::MAX);
            out.extend((name.len() as u16).to_le_bytes());
            out.extend(name.as_bytes());
        }
        let length = out.len() as u32;
        out[10..14].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// Reads bytes that [`to_bytes`](Self::to_bytes) returned.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidArgument`] if the bytes are not exactly one handle of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader { rest: bytes };
        if reader.array::<8>()? != MAGIC {
            return Err(malformed("they do not start with the magic bytes"));
        }
        let version = u16::from_le_bytes(reader.array()?);
        if version != VERSION {
            return Err(malformed(&format!("their version is {version}, but this millpond reads {VERSION}")));
        }
        let length = u32::from_le_bytes(reader.array()?) as usize;
        if length != bytes.len() {
            return Err(malformed(&format!("the header says {length} bytes, but there are {}", bytes.len())));
        }
        let handle = IpcMemHandle(reader.array()?);
        let size = u64::from_le_bytes(reader.array()?);
        let offset = u64::from_le_bytes(reader.array()?);
        if size.checked_add(offset).is_none() {
            return Err(malformed("size and offset overflow"));
        }
        let source_info = match reader.array::<1>()? {
            [0] => None,
            [1] => Some(reader.source_info()?),
            _ => return Err(malformed("the flag of the source is neither 0 nor 1")),
        };
        if !reader.rest.is_empty() {
            return Err(malformed("extra bytes follow the handle"));
        }
        Ok(Self::new(None, handle, size, source_info, offset))
    }

    fn out_of_bounds(&self, size: u64) -> Error {
        Error::invalid_argument(format!(
            "the handle names {} bytes at offset {}, but the allocation has {size} bytes; ask the sharing \
             process for a new handle",
            self.bytes, self.offset
        ))
    }
}

/// Makes a handle of `memory` for another process, in the way that most managers need. The handle contains
/// CUDA's handle of the allocation around the memory, and the offset of the memory in the allocation.
///
/// # Errors
/// Returns [`ErrorKind::InvalidArgument`] if the memory was freed or is empty. Returns
/// [`ErrorKind::Unsupported`] if CUDA cannot share the memory this way: managed memory, stream-ordered
/// memory, or memory that a pool mapped (such a pool needs `pages=off`).
pub fn get_ipc_handle(driver: &dyn Driver, memory: &MemoryPointer) -> Result<IpcHandle> {
    if !memory.is_live() {
        return Err(memory.gone("share"));
    }
    if memory.device_pointer().is_null() {
        return Err(Error::invalid_argument("a null pointer cannot be shared; allocate at least one byte"));
    }
    let ptr = memory.device_pointer();
    let (base, handle) = call(driver, |driver| {
        let (base, _) = driver.mem_get_address_range(ptr)?;
        Ok((base, driver.ipc_get_mem_handle(base)?))
    })
    .map_err(|error| explain_share(error).on_device(driver.device()))?;
    let source_info = SourceInfo { device: driver.device(), name: driver.name() };
    let offset = ptr.address() - base.address();
    Ok(IpcHandle::new(Some(memory.own()), handle, memory.bytes(), Some(source_info), offset))
}

fn explain_share(error: Error) -> Error {
    let refused = |error: &&DriverError| error.code() == DriverError::INVALID_VALUE || error.is_unsupported();
    if let Some(cause) = error.driver_error().filter(refused) {
        return Error::new(
            ErrorKind::Unsupported,
            "NBEP 7 uses CUDA's legacy IPC handles, which exist only for memory of cuMemAlloc; share memory \
             that its manager allocated with cuMemAlloc",
        )
        .caused_by(cause.clone());
    }
    error.context("sharing memory with another process")
}

/// Returns the longest prefix of `text` that has at most `bytes` bytes.
fn cut(text: &str, bytes: u16) -> &str {
    let mut end = text.len().min(usize::from(bytes));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn malformed(why: &str) -> Error {
    Error::invalid_argument(format!("these bytes are not an IPC handle: {why}; pass all bytes of the handle"))
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) =
            self.rest.split_first_chunk::<N>().ok_or_else(|| malformed("they end too soon"))?;
        self.rest = rest;
        Ok(*head)
    }

    fn source_info(&mut self) -> Result<SourceInfo> {
        let number = u32::from_le_bytes(self.array()?);
        let device =
            if number & SIM_BIT == 0 { DeviceId::cuda(number) } else { DeviceId::sim(number & !SIM_BIT) };
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let (name, rest) =
            self.rest.split_at_checked(length).ok_or_else(|| malformed("they end too soon"))?;
        self.rest = rest;
        let name = std::str::from_utf8(name).map_err(|_| malformed("the device's name is not UTF-8"))?;
        Ok(SourceInfo { device, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(source_info: Option<SourceInfo>) -> IpcHandle {
        let mut raw = [0; 64];
        raw.iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
        IpcHandle::new(None, IpcMemHandle(raw), 1 << 40, source_info, 768)
    }

    fn source() -> SourceInfo {
        SourceInfo { device: DeviceId::sim(3), name: "Müllers Gerät".to_owned() }
    }

    #[test]
    fn bytes_come_back_as_they_were() {
        for source_info in [None, Some(source()), Some(SourceInfo { device: DeviceId::cuda(1), ..source() })]
        {
            let sent = handle(source_info);
            let back = IpcHandle::from_bytes(&sent.to_bytes()).unwrap();
            assert_eq!(back.handle(), sent.handle());
            assert_eq!((back.bytes(), back.offset()), (1 << 40, 768));
            assert_eq!(back.source_info(), sent.source_info());
            assert!(back.base().is_none());
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let name = "ü".repeat(40_000);
        let sent = handle(Some(SourceInfo { name: name.clone(), ..source() }));
        let back = IpcHandle::from_bytes(&sent.to_bytes()).unwrap();
        let cut = &back.source_info().unwrap().name;
        assert_eq!(cut.len(), 65_534);
        assert!(name.starts_with(cut.as_str()));
    }

    #[test]
    fn every_truncation_and_every_addition_is_refused() {
        let bytes = handle(Some(source())).to_bytes();
        for length in 0..bytes.len() {
            assert!(IpcHandle::from_bytes(&bytes[..length]).is_err(), "{length} bytes were accepted");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(IpcHandle::from_bytes(&longer).is_err());
    }

    #[test]
    fn wrong_bytes_are_refused_with_the_reason() {
        let good = handle(Some(source())).to_bytes();
        let message = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            let error = IpcHandle::from_bytes(&bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.to_string()
        };
        assert!(message(&|bytes| bytes[0] = b'X').contains("do not start"));
        assert!(message(&|bytes| bytes[8] = 9).contains("version is 9"));
        assert!(message(&|bytes| bytes[10] ^= 1).contains("but there are"));
        assert!(message(&|bytes| bytes[78..94].fill(0xFF)).contains("overflow"));
        assert!(message(&|bytes| bytes[FIXED_BYTES - 1] = 2).contains("flag"));
        assert!(message(&|bytes| bytes[FIXED_BYTES - 1] = 0).contains("extra bytes"));
        assert!(message(&|bytes| bytes[FIXED_BYTES + 4] = 0xFF).contains("end too soon"));
        assert!(message(&|bytes| *bytes.last_mut().unwrap() = 0xFF).contains("UTF-8"));
    }

    #[test]
    fn closing_what_is_not_open_is_refused() {
        assert_eq!(handle(None).close().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
