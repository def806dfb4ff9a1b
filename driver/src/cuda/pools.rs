//! Pools of the stream-ordered allocator: attributes, access, and sharing with other processes.

use std::path::Path;

use millpond_core::DevicePtr;
use millpond_core::driver::{
    AccessFlags, AccessLocation, DriverError, DriverResult, FabricHandle, GraphMemAttribute,
    MemAllocationType, MemLocation, MemPool, MemPoolAttribute, MemPoolProps, MemPoolPtrData,
};
use smallvec::SmallVec;

use super::CudaDriver;
use super::abi::{self, AccessDesc, Location, PoolProps, PtrExportData};
use super::physical::with_os_handle;

// `SAFETY` comments: see `driver_impl`. Only unsafe code could have ended the pools used here.

/// Returns CUDA's number of the attribute, for this call.
fn number_of(attribute: MemPoolAttribute, call: &'static str) -> DriverResult<u32> {
    abi::pool_attribute(attribute).ok_or_else(|| DriverError::new(DriverError::NOT_SUPPORTED, call))
}

/// The channels of IMEX that this process sees. Fabric handles need one. Without one, the driver makes pools
/// with fabric handles, and then their export fails, hangs or ends the process (driver 580.159).
pub(super) const FABRIC_CHANNELS: &str = "/dev/nvidia-caps-imex-channels";

/// Returns whether the folder exists and has a file.
pub(super) fn has_files(folder: impl AsRef<Path>) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some())
}

/// Implements the methods of [`Driver`](millpond_core::Driver) with the same names.
impl CudaDriver {
    pub(super) fn mem_pool_create(&self, props: MemPoolProps) -> DriverResult<MemPool> {
        let _context = self.enter()?;
        let props = PoolProps::new(self.device, props);
        let mut pool = 0;
        // SAFETY: the results go to locals; `props` lives through the call, which copies it.
        unsafe { self.functions().mem_pool_create(&raw mut pool, &raw const props) }?;
        Ok(MemPool(pool))
    }

    pub(super) fn device_get_mem_pool(&self) -> DriverResult<MemPool> {
        let _context = self.enter()?;
        let mut pool = 0;
        // SAFETY: the results go to locals of the right types.
        unsafe { self.functions().device_get_mem_pool(&raw mut pool, self.device) }?;
        Ok(MemPool(pool))
    }

    pub(super) fn device_set_mem_pool(&self, pool: MemPool) -> DriverResult<()> {
        // A pool of a context that was reset must not become the process's pool.
        let _context = self.enter()?;
        // SAFETY: the driver gave the device.
        unsafe { self.functions().device_set_mem_pool(self.device, pool.0) }
    }

    pub(super) fn mem_get_default_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
    ) -> DriverResult<MemPool> {
        let _context = self.enter()?;
        let (mut pool, mut location) = (0, Location::of(location, self.device));
        // SAFETY: the results go to locals; the location lives through the call.
        unsafe {
            let (pool, location) = (&raw mut pool, &raw mut location);
            self.functions().mem_get_default_mem_pool(pool, location, kind.cuda_number())
        }?;
        Ok(MemPool(pool))
    }

    pub(super) fn mem_get_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
    ) -> DriverResult<MemPool> {
        let _context = self.enter()?;
        let (mut pool, mut location) = (0, Location::of(location, self.device));
        // SAFETY: the results go to locals; the location lives through the call.
        unsafe {
            let (pool, location) = (&raw mut pool, &raw mut location);
            self.functions().mem_get_mem_pool(pool, location, kind.cuda_number())
        }?;
        Ok(MemPool(pool))
    }

    pub(super) fn mem_set_mem_pool(
        &self,
        location: MemLocation,
        kind: MemAllocationType,
        pool: MemPool,
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        let mut location = Location::of(location, self.device);
        // SAFETY: the location lives through the call.
        unsafe { self.functions().mem_set_mem_pool(&raw mut location, kind.cuda_number(), pool.0) }
    }

    pub(super) fn mem_pool_get_attribute(
        &self,
        pool: MemPool,
        attribute: MemPoolAttribute,
    ) -> DriverResult<u64> {
        let _context = self.enter()?;
        let (functions, number) = (self.functions(), number_of(attribute, "cuMemPoolGetAttribute")?);
        if abi::pool_attribute_is_int(number) {
            let mut value = 0_u32;
            // SAFETY: the results go to locals; CUDA's `int` and enumerations are 32 bits wide.
            unsafe { functions.mem_pool_get_attribute(pool.0, number, (&raw mut value).cast()) }?;
            return Ok(u64::from(value));
        }
        let mut value = 0_u64;
        // SAFETY: the results go to locals of the right types.
        unsafe { functions.mem_pool_get_attribute(pool.0, number, (&raw mut value).cast()) }?;
        Ok(value)
    }

    pub(super) fn mem_pool_set_attribute(
        &self,
        pool: MemPool,
        attribute: MemPoolAttribute,
        mut value: u64,
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        let (functions, number) = (self.functions(), number_of(attribute, "cuMemPoolSetAttribute")?);
        if abi::pool_attribute_is_int(number) {
            let mut value = i32::from(value != 0);
            // SAFETY: the call reads an `int` through the pointer.
            return unsafe { functions.mem_pool_set_attribute(pool.0, number, (&raw mut value).cast()) };
        }
        // SAFETY: the call reads 64 bits through the pointer.
        unsafe { functions.mem_pool_set_attribute(pool.0, number, (&raw mut value).cast()) }
    }

    pub(super) fn device_get_graph_mem_attribute(&self, attribute: GraphMemAttribute) -> DriverResult<u64> {
        let _context = self.enter()?;
        let (mut value, number) = (0_u64, attribute as u32);
        let place = (&raw mut value).cast();
        // SAFETY: the result goes to a local; all of these attributes are 64 bits wide.
        unsafe { self.functions().device_get_graph_mem_attribute(self.device, number, place) }?;
        Ok(value)
    }

    pub(super) fn device_reset_graph_mem_attribute(&self, attribute: GraphMemAttribute) -> DriverResult<()> {
        let _context = self.enter()?;
        let (mut value, number) = (0_u64, attribute as u32);
        let place = (&raw mut value).cast();
        // SAFETY: the call reads 64 bits through the pointer.
        unsafe { self.functions().device_set_graph_mem_attribute(self.device, number, place) }
    }

    pub(super) fn device_graph_mem_trim(&self) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the driver gave the device.
        unsafe { self.functions().device_graph_mem_trim(self.device) }
    }

    /// Returns CUDA's location of a place that accesses a pool, for this call.
    fn access_from(&self, from: AccessLocation, call: &'static str) -> DriverResult<Location> {
        Ok(match from {
            AccessLocation::Device(device) => Location::device(self.device_number(device, call)?),
            AccessLocation::Host => Location::HOST,
            AccessLocation::HostNuma(node) => Location::of(MemLocation::HostNuma(node), self.device),
            AccessLocation::HostNumaCurrent => Location::of(MemLocation::HostNumaCurrent, self.device),
        })
    }

    pub(super) fn mem_pool_set_access(
        &self,
        pool: MemPool,
        access: AccessFlags,
        from: &[AccessLocation],
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        let flags = abi::access_flags(access);
        let describe = |from: &AccessLocation| {
            Ok(AccessDesc { location: self.access_from(*from, "cuMemPoolSetAccess")?, flags })
        };
        let access: SmallVec<[AccessDesc; 8]> = from.iter().map(describe).collect::<DriverResult<_>>()?;
        // SAFETY: `access` has that many descriptions and lives through the call.
        unsafe { self.functions().mem_pool_set_access(pool.0, access.as_ptr(), access.len() as u64) }
    }

    pub(super) fn mem_pool_get_access(
        &self,
        pool: MemPool,
        from: AccessLocation,
    ) -> DriverResult<AccessFlags> {
        let _context = self.enter()?;
        let mut location = self.access_from(from, "cuMemPoolGetAccess")?;
        let mut flags = 0;
        // SAFETY: the results go to locals; the location lives through the call.
        unsafe { self.functions().mem_pool_get_access(&raw mut flags, pool.0, &raw mut location) }?;
        Ok(abi::access_flags_from(flags))
    }

    pub(super) fn mem_pool_export_to_fd(&self, pool: MemPool) -> DriverResult<i32> {
        let _context = self.enter()?;
        let (mut fd, kind) = (-1_i32, abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        // SAFETY: a file descriptor is an `int`, which `fd` takes.
        unsafe {
            self.functions().mem_pool_export_to_shareable_handle((&raw mut fd).cast(), pool.0, kind, 0)
        }?;
        Ok(fd)
    }

    pub(super) fn mem_pool_import_from_fd(&self, fd: i32) -> DriverResult<MemPool> {
        let _context = self.enter()?;
        let kind = abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut pool = 0;
        // SAFETY: the results go to locals; the driver refuses a descriptor that it did not export.
        with_os_handle(fd, |os_handle| unsafe {
            self.functions().mem_pool_import_from_shareable_handle(&raw mut pool, os_handle, kind, 0)
        })?;
        Ok(MemPool(pool))
    }

    pub(super) fn mem_pool_export_to_fabric(&self, pool: MemPool) -> DriverResult<FabricHandle> {
        let _context = self.enter()?;
        let (mut handle, kind) = (FabricHandle([0; 64]), abi::CU_MEM_HANDLE_TYPE_FABRIC);
        // SAFETY: a fabric handle is 64 bytes, which `handle` takes.
        unsafe {
            self.functions().mem_pool_export_to_shareable_handle((&raw mut handle.0).cast(), pool.0, kind, 0)
        }?;
        Ok(handle)
    }

    pub(super) fn mem_pool_import_from_fabric(&self, handle: &FabricHandle) -> DriverResult<MemPool> {
        let _context = self.enter()?;
        let (mut pool, mut handle) = (0, handle.0);
        let (place, kind) = ((&raw mut handle).cast(), abi::CU_MEM_HANDLE_TYPE_FABRIC);
        // SAFETY: the results go to locals; the call reads the 64 bytes, and the driver checks them.
        unsafe { self.functions().mem_pool_import_from_shareable_handle(&raw mut pool, place, kind, 0) }?;
        Ok(MemPool(pool))
    }

    pub(super) fn mem_pool_export_pointer(&self, ptr: DevicePtr) -> DriverResult<MemPoolPtrData> {
        let _context = self.enter()?;
        let mut data = PtrExportData([0; 64]);
        // SAFETY: the results go to locals; the driver refuses a pointer that belongs to no exported pool.
        unsafe { self.functions().mem_pool_export_pointer(&raw mut data, ptr.address()) }?;
        Ok(MemPoolPtrData(data.0))
    }

    pub(super) fn mem_pool_import_pointer(
        &self,
        pool: MemPool,
        data: &MemPoolPtrData,
    ) -> DriverResult<DevicePtr> {
        let _context = self.enter()?;
        let (mut ptr, mut data) = (0, PtrExportData(data.0));
        // SAFETY: the results go to locals; the driver refuses data that does not describe the pool's memory.
        unsafe { self.functions().mem_pool_import_pointer(&raw mut ptr, pool.0, &raw mut data) }?;
        Ok(DevicePtr::new(ptr))
    }

    pub(super) fn pointer_mem_pool(&self, ptr: DevicePtr) -> DriverResult<Option<MemPool>> {
        let _context = self.enter()?;
        let (mut pool, attribute) = (0_u64, abi::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
        // SAFETY: the results go to locals; the attribute is a handle. Any address is allowed.
        let answer = unsafe {
            self.functions().pointer_get_attribute((&raw mut pool).cast(), attribute, ptr.address())
        };
        match answer {
            Ok(()) => Ok((pool != 0).then_some(MemPool(pool))),
            Err(error) if error.code() == DriverError::INVALID_VALUE => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_files_if_it_exists_and_is_not_empty() {
        let folder = std::env::temp_dir().join(format!("millpond-channels-{}", std::process::id()));
        assert!(!has_files(&folder), "there is no folder");
        std::fs::create_dir(&folder).unwrap();
        let is_empty = !has_files(&folder);
        std::fs::write(folder.join("channel0"), "").unwrap();
        let has_one = has_files(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(is_empty && has_one);
    }
}
