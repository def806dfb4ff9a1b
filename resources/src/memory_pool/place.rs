//! The kind of a pool's memory and where it lies, which the driver does not always tell.

use millpond_core::driver::{
    AccessFlags, AccessLocation, Driver, DriverResult, MemAllocationType, MemLocation, MemPool,
    MemPoolAttribute, ask,
};
use millpond_core::{Accessibility, DriverError, Error, MemoryInfo, small_file};

/// The kind of a pool's memory and where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) location: MemLocation,
    pub(super) kind: MemAllocationType,
}

impl Place {
    /// Device memory, as most pools have.
    const DEVICE: Self = Self { location: MemLocation::Device, kind: MemAllocationType::Pinned };

    /// Whether the memory lies on the host alone.
    pub(super) fn is_host_memory(self) -> bool {
        self.kind == MemAllocationType::Pinned && self.location.is_host()
    }

    /// Whether the memory lies on the device alone.
    pub(super) fn is_device_memory(self) -> bool {
        self.kind == MemAllocationType::Pinned && !self.location.is_host()
    }

    /// Whose memory the pool takes.
    pub(super) fn takes(self) -> Accessibility {
        match self.kind {
            MemAllocationType::Managed => Accessibility::DEVICE_AND_HOST,
            MemAllocationType::Pinned if self.location.is_host() => Accessibility::HOST,
            MemAllocationType::Pinned => Accessibility::DEVICE,
        }
    }

    /// Returns the driver's answer about the memory that the pool takes.
    pub(super) fn memory_info(self, driver: &dyn Driver) -> DriverResult<MemoryInfo> {
        if self.is_host_memory() { driver.host_memory_info() } else { driver.mem_get_info() }
    }
}

/// Asks the driver for the place of a pool.
///
/// Before CUDA 13.2, the driver does not say how a foreign pool was made. The access of device and host
/// tells: a pool of managed memory has neither until it is set.
pub(super) fn of_pool(driver: &dyn Driver, pool: MemPool) -> DriverResult<Place> {
    match said(driver, pool) {
        Err(error) if error.is_sticky() => Err(error),
        Ok(Some(place)) => Ok(place),
        Ok(None) | Err(_) => by_access(driver, pool),
    }
}

fn said(driver: &dyn Driver, pool: MemPool) -> DriverResult<Option<Place>> {
    let ask = |attribute| ask(driver, |driver| driver.mem_pool_get_attribute(pool, attribute));
    let managed = u64::from(MemAllocationType::Managed.cuda_number());
    let is_managed = ask(MemPoolAttribute::AllocationType)? == managed;
    let kind = if is_managed { MemAllocationType::Managed } else { MemAllocationType::Pinned };
    let (location, id) = (ask(MemPoolAttribute::LocationType)?, ask(MemPoolAttribute::LocationId)?);
    Ok(MemLocation::from_cuda(location, id).map(|location| Place { location, kind }))
}

fn by_access(driver: &dyn Driver, pool: MemPool) -> DriverResult<Place> {
    let access = |from: AccessLocation| match ask(driver, |driver| driver.mem_pool_get_access(pool, from)) {
        Err(error) if error.is_sticky() => Err(error),
        answer => Ok::<_, DriverError>(answer.ok()),
    };
    let (device, host) = (access(driver.device().into())?, access(AccessLocation::Host)?);
    Ok(match (device, host) {
        (Some(AccessFlags::None), Some(AccessFlags::ReadWrite)) => {
            Place { location: MemLocation::Host, ..Place::DEVICE }
        }
        (Some(AccessFlags::None), Some(AccessFlags::None))
        | (Some(AccessFlags::ReadWrite), Some(AccessFlags::ReadWrite)) => {
            Place { kind: MemAllocationType::Managed, ..Place::DEVICE }
        }
        _ => Place::DEVICE,
    })
}

/// The system's list of NUMA nodes, such as `0-1,3`.
const NODES: &str = "/sys/devices/system/node/online";

/// Adds the reason and the remedy if the driver refused a pool on a NUMA node that the host does not have.
pub(super) fn explain(error: Error, driver: &dyn Driver, location: MemLocation) -> Error {
    let code = error.driver_error().map(DriverError::code);
    let refusals = [DriverError::INVALID_VALUE, DriverError::INVALID_DEVICE, DriverError::NOT_SUPPORTED];
    let (MemLocation::HostNuma(node), Some(true)) = (location, code.map(|code| refusals.contains(&code)))
    else {
        return error;
    };
    let nodes = small_file::read(NODES.as_ref()).ok();
    let why = match nodes.as_deref().map(str::trim) {
        Some(nodes) if has_node(nodes, node) => return error,
        Some(nodes) => format!("the host has no NUMA node {node}; name one of its nodes, {nodes} ({NODES})"),
        None => format!("the driver makes no pool of host memory on NUMA node {node}; name another node"),
    };
    let why = why + ", or none, which needs CUDA 13.0";
    Error::invalid_argument(why).on_device(driver.device()).caused_by(error)
}

fn has_node(nodes: &str, node: i32) -> bool {
    nodes.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<i32>(), last.parse::<i32>());
        matches!((first, last), (Ok(first), Ok(last)) if (first..=last).contains(&node))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_list_of_nodes_is_read() {
        for (nodes, has, lacks) in
            [("0", &[0][..], &[1, 7][..]), ("0-1,3,8-9", &[0, 1, 3, 8, 9], &[2, 4, 7, 10])]
        {
            assert!(has.iter().all(|node| has_node(nodes, *node)), "{nodes}");
            assert!(!lacks.iter().any(|node| has_node(nodes, *node)), "{nodes}");
        }
    }
}
