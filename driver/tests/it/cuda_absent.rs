//! Tests that everything starts without CUDA and reports why CUDA cannot be used. With CUDA, the same calls
//! report the opposite.

use millpond_core::ErrorKind;
use millpond_driver::cuda::{self, CudaDriver};

#[test]
fn availability_count_and_open_agree() {
    match cuda::availability() {
        Ok(()) => {
            assert!(cuda::device_count() > 0);
            CudaDriver::open(0).unwrap();
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoDevice);
            assert!(error.to_string().contains("install or repair the NVIDIA driver"), "{error}");
            assert!(error.driver_error().is_some());
            assert_eq!((cuda::device_count(), cuda::current_ordinal()), (0, None));
            assert_eq!(CudaDriver::open(0).unwrap_err().kind(), ErrorKind::NoDevice);
        }
    }
}

#[test]
fn an_ordinal_that_no_machine_has_is_no_device() {
    let error = CudaDriver::open(u32::MAX >> 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDevice);
    assert_eq!(error.device().map(|device| device.ordinal()), Some(u32::MAX >> 2));
}
