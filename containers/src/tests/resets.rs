//! Tests containers whose device's context was reset: every call reports it, and dropping them leaves
//! nothing.

use millpond_core::AnyResource;
use millpond_core::stack::{LayerTable, StackSpec};

use super::*;
use crate::{HostStaging, StreamAllocator};

#[test]
fn containers_of_a_reset_context_say_so_and_leave_nothing() {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    for text in [
        "cuda",
        "managed",
        "pinned_host",
        "cuda+pool",
        "cuda+pool:pages=off",
        "cuda_async",
        "cuda_async+pool",
    ] {
        let first = SimDevice::new(SimConfig::h200());
        let before = (first.used_bytes(), first.live_bytes());
        for which in 0..3 {
            let driver: DriverHandle = first.open_again();
            let stack: AnyResource = text.parse::<StackSpec>().unwrap().build(&table, &driver).unwrap();
            let own = Stream::new(driver.clone(), StreamFlags::NON_BLOCKING).unwrap();
            let stream = [own.as_ref(), StreamRef::LEGACY, StreamRef::PER_THREAD][which];
            let staging = HostStaging::new(driver.clone());
            let event = Event::new(driver, EventFlags::default()).unwrap();
            event.record(stream).unwrap();
            let mut buffer = DeviceBuffer::from_host(&[7_u8; 1 << 20], stream, stack.clone()).unwrap();
            let vec = DeviceVec::from_host(&[1_u32, 2, 3], stream, stack.clone()).unwrap();
            let scalar = DeviceScalar::from_value(5_u64, stream, stack.clone()).unwrap();
            let other = StreamAllocator::new(stack.clone(), stream).buffer(1000).unwrap();
            let copy = vec.copy_to_host_async(&staging).unwrap();
            first.open_again().reset_context();

            let answers = [
                buffer.to_host::<u8>().map(drop),
                buffer.copy_from_host(&[1_u8]),
                buffer.resize(2 << 20, StreamRef::LEGACY),
                buffer.copy_from_host_async(&[1_u8], &staging),
                vec.copy_to_host_async(&staging).map(drop),
                scalar.value().map(drop),
                DeviceBuffer::copy_of(&other, StreamRef::LEGACY, stack.clone()).map(drop),
                copy.wait().map(drop),
                own.synchronize(),
                event.synchronize(),
            ];
            for (index, answer) in answers.into_iter().enumerate() {
                let error = answer.unwrap_err();
                let is_said = error.is_sticky() && error.to_string().contains("was reset");
                assert!(is_said, "{text}, stream {which}, call {index}: {error}");
            }
            drop((buffer, vec, scalar, other, staging, event, own, stack));
            first.open_again().synchronize().unwrap();
            assert_eq!((first.used_bytes(), first.live_bytes()), before, "{text}, stream {which}");
            assert_eq!((first.live_allocations(), first.live_events()), (0, 0), "{text}, stream {which}");
        }
        assert_eq!(first.violations(), [], "{text}");
    }
}
