//! Tests vectors and scalars as RMM's tests test a `device_uvector` and a `device_scalar`.

use std::fmt::Debug;

use bytemuck::Pod;
use millpond_core::{AnyResource, DeviceMemoryResourceExt};
use millpond_resources::ManagedMemoryResource;

use super::*;
use crate::{DeviceScalar, DeviceVec, HostStaging};

/// The inputs of the tests of one type.
struct Setting {
    device: Arc<SimDevice>,
    resource: AnyResource,
    stream: Stream,
    staging: HostStaging,
}

impl Setting {
    fn new(is_managed: bool) -> Self {
        let device = SimDevice::new(SimConfig::h200());
        let resource = match is_managed {
            true => ManagedMemoryResource::new(device.clone()).into_any(),
            false => CudaMemoryResource::new(device.clone()).into_any(),
        };
        let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING).unwrap();
        Self { staging: HostStaging::new(device.clone()), device, resource, stream }
    }

    fn stream(&self) -> StreamRef {
        self.stream.as_ref()
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.staging.trim().unwrap();
            assert_eq!((self.device.live_allocations(), self.device.violations()), (0, vec![]));
        }
    }
}

/// Runs a test for values of five types, in plain and in managed memory.
macro_rules! for_types {
    ($($test:ident => $check:ident;)*) => {$(
        #[test]
        fn $test() {
            for is_managed in [false, true] {
                let setting = Setting::new(is_managed);
                $check(&setting, [1_i8, -2, 3]);
                $check(&setting, [1_i32, i32::MIN, 3]);
                $check(&setting, [u64::MAX, 2, 3]);
                $check(&setting, [1.5_f32, -2.5, f32::MAX]);
                $check(&setting, [1.5_f64, -2.5, 0.25]);
            }
        }
    )*};
}

for_types! {
    a_vector_has_a_length_and_no_more_capacity => lengths;
    a_vector_is_copied => copies;
    growth_keeps_the_values_and_the_block_where_it_can => growth;
    values_are_read_and_written_one_by_one => elements;
    a_vector_becomes_a_buffer_and_back => buffers;
    a_scalar_holds_one_value => scalars;
    copies_through_staging_memory_do_not_need_the_caller_to_wait => asynchronous;
}

fn lengths<T: Pod + PartialEq + Debug>(setting: &Setting, values: [T; 3]) {
    let make = |len| DeviceVec::<T>::uninit(len, setting.stream(), setting.resource.clone()).unwrap();
    let empty = make(0);
    assert!(empty.is_empty() && empty.as_ptr().is_null());
    assert_eq!((empty.len(), empty.capacity(), empty.to_host().unwrap()), (0, 0, vec![]));
    let some = make(12345);
    assert_eq!((some.len(), some.capacity(), some.is_empty()), (12345, 12345, false));
    assert_eq!(some.size_bytes(), 12345 * size_of::<T>() as u64);
    assert_eq!((some.stream(), some.device()), (setting.stream(), setting.device.device()));
    assert!(some.resource().is_equal(&*setting.resource));
    assert_eq!(some.to_host().unwrap().len(), 12345);
    let zeroed = DeviceVec::<T>::zeroed(3, setting.stream(), setting.resource.clone()).unwrap();
    assert_eq!(zeroed.to_host().unwrap(), [T::zeroed(); 3]);
    assert!(DeviceVec::<T>::zeroed(0, setting.stream(), setting.resource.clone()).unwrap().is_empty());
    let full = DeviceVec::from_host(&values, setting.stream(), setting.resource.clone()).unwrap();
    let mut two = [T::zeroed(); 2];
    full.copy_to_host(&mut two).unwrap();
    assert_eq!((full.to_host().unwrap().as_slice(), &two[..]), (&values[..], &values[..2]));
}

fn copies<T: Pod + PartialEq + Debug>(setting: &Setting, values: [T; 3]) {
    let mut vec = DeviceVec::from_host(&values, setting.stream(), setting.resource.clone()).unwrap();
    vec.reserve(1000, setting.stream()).unwrap();
    let copy = DeviceVec::copy_of(&vec, StreamRef::LEGACY, setting.resource.clone()).unwrap();
    assert_eq!((copy.len(), copy.capacity(), copy.stream()), (3, 3, StreamRef::LEGACY));
    assert_ne!(copy.as_ptr(), vec.as_ptr());
    vec.set(0, values[2]).unwrap();
    assert_eq!(copy.to_host().unwrap(), values);
    let moved = copy;
    assert_eq!(moved.to_host().unwrap(), values);
}

fn growth<T: Pod + PartialEq + Debug>(setting: &Setting, values: [T; 3]) {
    let stream = setting.stream();
    let mut vec = DeviceVec::from_host(&values, stream, setting.resource.clone()).unwrap();
    let block = vec.as_ptr();
    vec.resize(2, stream).unwrap();
    assert_eq!((vec.len(), vec.capacity(), vec.as_ptr()), (2, 3, block));
    vec.shrink_to_fit(stream).unwrap();
    assert_eq!((vec.len(), vec.capacity()), (2, 2));
    vec.resize(100, stream).unwrap();
    assert_eq!((vec.len(), vec.capacity()), (100, 100));
    assert_eq!(vec.to_host().unwrap()[..2], values[..2]);
    let grown = vec.as_ptr();
    vec.reserve(50, stream).unwrap();
    assert_eq!((vec.len(), vec.capacity(), vec.as_ptr()), (100, 100, grown));
    vec.reserve(200, stream).unwrap();
    assert_eq!((vec.len(), vec.capacity()), (100, 200));
    vec.resize(0, stream).unwrap();
    assert_eq!((vec.is_empty(), vec.capacity()), (true, 200));
    vec.shrink_to_fit(stream).unwrap();
    assert_eq!((vec.capacity(), vec.as_ptr().is_null()), (0, true));
    vec.set_stream(StreamRef::LEGACY).unwrap();
    assert_eq!(vec.stream(), StreamRef::LEGACY);
}

fn elements<T: Pod + PartialEq + Debug>(setting: &Setting, values: [T; 3]) {
    let mut vec = DeviceVec::<T>::zeroed(5, setting.stream(), setting.resource.clone()).unwrap();
    for (index, value) in values.iter().enumerate() {
        vec.set(index, *value).unwrap();
        assert_eq!(vec.get(index).unwrap(), *value);
        let at = vec.element_ptr(index).unwrap();
        assert_eq!(at, vec.as_ptr().offset((index * size_of::<T>()) as u64));
    }
    assert_eq!((vec.first().unwrap(), vec.last().unwrap()), (values[0], T::zeroed()));
    {
        let value = values[2];
        vec.set_async(4, &value, &setting.staging).unwrap();
    }
    assert_eq!(vec.last().unwrap(), values[2]);
    vec.set_to_zero_async(1).unwrap();
    assert_eq!(vec.to_host().unwrap(), [values[0], T::zeroed(), values[2], T::zeroed(), values[2]]);
    let before = vec.to_host().unwrap();
    let errors = [
        vec.get(5).map(drop).unwrap_err(),
        vec.set(5, values[0]).unwrap_err(),
        vec.set_async(5, &values[0], &setting.staging).unwrap_err(),
        vec.set_to_zero_async(5).unwrap_err(),
        vec.element_ptr(5).map(drop).unwrap_err(),
    ];
    for error in errors {
        let message = "index 5 is outside of the vector, whose length is 5; resize the vector first";
        assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, message));
    }
    assert_eq!(vec.to_host().unwrap(), before);
    vec.resize(0, setting.stream()).unwrap();
    for error in [vec.first().map(drop).unwrap_err(), vec.last().map(drop).unwrap_err()] {
        let message = "index 0 is outside of the vector, whose length is 0; resize the vector first";
        assert_eq!(error.message(), message);
    }
}

fn buffers<T: Pod + PartialEq + Debug>(setting: &Setting, values: [T; 3]) {
    let vec = DeviceVec::from_host(&values, setting.stream(), setting.resource.clone()).unwrap();
    let (block, bytes) = (vec.as_ptr(), vec.size_bytes());
    assert_eq!(vec.as_buffer().to_host::<u8>().unwrap(), bytemuck::cast_slice::<T, u8>(&values));
    let buffer = vec.into_buffer();
    assert_eq!((buffer.as_ptr(), buffer.len()), (block, bytes));
    let vec = DeviceVec::<T>::from_buffer(buffer).unwrap();
    assert_eq!((vec.as_ptr(), vec.to_host().unwrap().as_slice()), (block, &values[..]));
    let odd = DeviceBuffer::new(7, setting.stream(), setting.resource.clone()).unwrap();
    let error = DeviceVec::<[T; 3]>::from_buffer(odd).map(drop).unwrap_err();
    let (size, alignment) = (3 * size_of::<T>(), align_of::<T>());
    let message = format!(
        "7 bytes aligned to 256 are not a whole number of values of {size} bytes aligned to {alignment}; \
         make the buffer with that size and alignment"
    );
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, message.as_str()));
}

fn scalars<T: Pod + PartialEq + Debug>(setting: &Setting, values: [T; 3]) {
    let stream = setting.stream();
    let fresh = DeviceScalar::<T>::uninit(stream, setting.resource.clone()).unwrap();
    assert!(!fresh.as_ptr().is_null() && fresh.value().is_ok());
    let mut scalar = DeviceScalar::from_value(values[0], stream, setting.resource.clone()).unwrap();
    assert_eq!((scalar.value().unwrap(), scalar.stream()), (values[0], stream));
    let copy = DeviceScalar::copy_of(&scalar, StreamRef::LEGACY, setting.resource.clone()).unwrap();
    assert_ne!(copy.as_ptr(), scalar.as_ptr());
    scalar.set_value(values[1]).unwrap();
    assert_eq!((scalar.value().unwrap(), copy.value().unwrap()), (values[1], values[0]));
    scalar.set_value_async(&{ values[2] }, &setting.staging).unwrap();
    assert_eq!(scalar.value().unwrap(), values[2]);
    scalar.set_to_zero_async().unwrap();
    assert_eq!(scalar.value().unwrap(), T::zeroed());
    scalar.set_stream(StreamRef::LEGACY).unwrap();
    assert_eq!((scalar.stream(), scalar.device()), (StreamRef::LEGACY, setting.device.device()));
    assert!(scalar.resource().is_equal(&*setting.resource));
    assert_eq!(copy.into_vec().to_host().unwrap(), [values[0]]);
}

fn asynchronous<T: Pod + PartialEq + Debug>(setting: &Setting, values: [T; 3]) {
    let mut vec = DeviceVec::<T>::zeroed(3, setting.stream(), setting.resource.clone()).unwrap();
    let before = vec.copy_to_host_async(&setting.staging).unwrap();
    {
        let mut gone = values.to_vec();
        vec.copy_from_host_async(&gone, &setting.staging).unwrap();
        gone.fill(T::zeroed());
    }
    let after = vec.copy_to_host_async(&setting.staging).unwrap();
    drop(vec);
    assert_eq!((after.len(), after.is_empty()), (3, false));
    let mut found = values;
    after.wait_into(&mut found).unwrap();
    assert_eq!((found, before.wait().unwrap()), (values, vec![T::zeroed(); 3]));
}

#[test]
fn a_negative_zero_stays_one() {
    let setting = Setting::new(false);
    let mut vec = DeviceVec::<f32>::zeroed(2, setting.stream(), setting.resource.clone()).unwrap();
    vec.set(0, -0.0).unwrap();
    vec.set_async(1, &-0.0, &setting.staging).unwrap();
    assert_eq!(vec.to_host().unwrap().map_bits(), [(-0.0_f32).to_bits(); 2]);
    vec.set_to_zero_async(1).unwrap();
    assert_eq!(vec.get(1).unwrap().to_bits(), 0);
    let mut scalar = DeviceScalar::from_value(-0.0_f64, setting.stream(), setting.resource.clone()).unwrap();
    assert_eq!(scalar.value().unwrap().to_bits(), (-0.0_f64).to_bits());
    scalar.set_value_async(&1.0, &setting.staging).unwrap();
    scalar.set_value_async(&-0.0, &setting.staging).unwrap();
    assert_eq!(scalar.value().unwrap().to_bits(), (-0.0_f64).to_bits());
}

trait MapBits {
    fn map_bits(&self) -> Vec<u32>;
}

impl MapBits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|value| value.to_bits()).collect()
    }
}

#[test]
fn sizes_that_overflow_are_refused_and_change_nothing() {
    let setting = Setting::new(false);
    let stream = setting.stream();
    let too_many = usize::MAX / 8 + 1;
    let made = DeviceVec::<u64>::uninit(too_many, stream, setting.resource.clone()).map(drop);
    let mut vec = DeviceVec::from_host(&[1_u64, 2], stream, setting.resource.clone()).unwrap();
    let errors = [
        made.unwrap_err(),
        vec.resize(too_many, stream).unwrap_err(),
        vec.reserve(too_many, StreamRef::LEGACY).unwrap_err(),
    ];
    for error in errors {
        let message = format!(
            "{too_many} elements of 8 bytes are more than an address space holds; check the number for an \
             overflow"
        );
        assert_eq!((error.kind(), error.message()), (ErrorKind::OutOfMemory, message.as_str()));
    }
    assert_eq!((vec.len(), vec.capacity(), vec.stream()), (2, 2, stream));
    assert_eq!(vec.to_host().unwrap(), [1, 2]);
}

#[test]
fn values_are_aligned() {
    #[derive(Clone, Copy)]
    #[repr(align(4096))]
    struct Page(#[allow(dead_code)] [u8; 4096]);
    // SAFETY: a page consists of bytes without padding, and all of them may be zero.
    unsafe impl bytemuck::Zeroable for Page {}

    let setting = Setting::new(false);
    let mut pages = DeviceVec::<Page>::zeroed(3, setting.stream(), setting.resource.clone()).unwrap();
    assert!(pages.as_ptr().is_aligned_to(4096));
    pages.resize(1000, setting.stream()).unwrap();
    assert!(pages.element_ptr(999).unwrap().is_aligned_to(4096));
    assert_eq!((pages.len(), pages.size_bytes()), (1000, 4096 * 1000));
    let bytes = DeviceVec::<u8>::uninit(1, setting.stream(), setting.resource.clone()).unwrap();
    assert!(bytes.as_ptr().is_aligned_to(256));
    assert!(format!("{bytes:?}").contains("len: 1"));
}

#[test]
fn a_scalar_is_made_of_a_vector_of_one() {
    let setting = Setting::new(false);
    let vec = |data: &[u32]| DeviceVec::from_host(data, setting.stream(), setting.resource.clone()).unwrap();
    let scalar = DeviceScalar::from_vec(vec(&[7])).unwrap();
    assert_eq!((scalar.value().unwrap(), scalar.as_vec().len()), (7, 1));
    for wrong in [vec(&[]), vec(&[7, 8])] {
        let error = DeviceScalar::from_vec(wrong.into_any()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
