//! Tests the containers with cudarc and without a GPU, against a stand-in for libcuda and libcublas that
//! checks the order of streams. Each test runs in its own process, since a process loads the libraries only
//! once.
#![cfg(all(feature = "cudarc", target_os = "linux"))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, sys};
use libloading::Library;
use millpond_containers::{CudaBuffer, DeviceBuffer, DeviceScalar, DeviceVec, Stream};
use millpond_core::driver::StreamFlags;
use millpond_core::{DeviceMemoryResource, ErrorKind, StreamRef};
use millpond_driver::cuda::{self, CudaDriver};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::CudaMemoryResource;

const IN_CHILD: &str = "MILLPOND_TEST_WITH_FAKE_CUDARC";

/// Compiles the stand-in under the names that the loaders look for, and returns its folder.
static FAKE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake_cuda");
    std::fs::create_dir_all(&folder).unwrap();
    // First under another name, so that a concurrent test process never loads half a library.
    let unfinished = folder.join(format!("{}.so", std::process::id()));
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--crate-type=cdylib", "--crate-name=fake", "--edition=2024", "-o"])
        .arg(&unfinished)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_cuda/fake.rs"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&unfinished, folder.join("libcuda.so.1")).unwrap();
    // One library under all names, so that they share their state.
    for name in ["libcuda.so", "libcublas.so"] {
        let _ = std::os::unix::fs::symlink("libcuda.so.1", folder.join(name));
    }
    folder
});

/// The objects of a test: a stream of cudarc and one of millpond, and plain memory.
pub(crate) struct Bench {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) own: Stream,
    pub(crate) cuda: Arc<CudaMemoryResource>,
    fake: Library,
}

impl Bench {
    fn new() -> Self {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let driver = CudaDriver::open(0).unwrap();
        let own = Stream::new(driver.clone(), StreamFlags::NON_BLOCKING).unwrap();
        // SAFETY: the stand-in's initialisers do nothing.
        let fake = unsafe { Library::new("libcuda.so.1") }.unwrap();
        Self { context, stream, own, cuda: Arc::new(CudaMemoryResource::new(driver)), fake }
    }

    /// Returns a vector on cudarc's stream.
    pub(crate) fn vec(&self, data: &[f32]) -> DeviceVec<f32, Arc<CudaMemoryResource>> {
        // SAFETY: the stream lives as long as the test.
        let on = unsafe { cuda::stream_ref_of(&self.stream) }.unwrap();
        DeviceVec::from_host(data, on, self.cuda.clone()).unwrap()
    }

    pub(crate) fn buffer(&self, data: &[f32]) -> CudaBuffer<f32, Arc<CudaMemoryResource>> {
        CudaBuffer::from_host(data, &self.stream, self.cuda.clone()).unwrap()
    }

    fn read(&self, slice: &CudaSlice<f32>) -> Vec<f32> {
        self.stream.clone_dtoh(slice).unwrap()
    }

    /// Returns the problems that the stand-in has found since the last call.
    pub(crate) fn problems(&self) -> String {
        let mut text = vec![0; 1 << 16];
        type Problems = unsafe extern "C" fn(*mut u8, usize) -> usize;
        // SAFETY: the type matches the function, which writes at most that many bytes.
        let len =
            unsafe { self.fake.get::<Problems>("fake_problems").unwrap()(text.as_mut_ptr(), text.len()) };
        String::from_utf8(text[..len].to_vec()).unwrap()
    }

    pub(crate) fn frees(&self) -> u64 {
        // SAFETY: the type matches the function.
        unsafe { self.fake.get::<extern "C" fn() -> u64>("fake_frees").unwrap()() }
    }

    pub(crate) fn host_waits(&self) -> u64 {
        // SAFETY: the type matches the function.
        unsafe { self.fake.get::<extern "C" fn() -> u64>("fake_host_waits").unwrap()() }
    }

    /// Returns whether the next work of `then` waits for the last work of `first`.
    pub(crate) fn is_ordered(&self, first: &CudaStream, then: &CudaStream) -> bool {
        let [first, then] = [first, then].map(|stream| stream.cu_stream() as u64);
        // SAFETY: the type matches the function.
        unsafe { self.fake.get::<extern "C" fn(u64, u64) -> bool>("fake_is_ordered").unwrap()(first, then) }
    }

    pub(crate) fn new_streams<const N: usize>(&self) -> [Arc<CudaStream>; N] {
        std::array::from_fn(|_| self.context.new_stream().unwrap())
    }

    pub(crate) fn reset(&self) {
        // SAFETY: the type matches the function.
        unsafe { self.fake.get::<extern "C" fn()>("fake_reset").unwrap()() }
    }

    pub(crate) fn fail_events(&self, count: u64) {
        // SAFETY: the type matches the function.
        unsafe { self.fake.get::<extern "C" fn(u64)>("fake_fail_events").unwrap()(count) }
    }
}

/// Runs `body`, the test of this name, in a process with the stand-in as its driver. The process fails if the
/// stand-in finds a problem.
fn with_fake(test: &str, body: impl FnOnce(&Bench)) {
    run_with_fake(&format!("cudarc_fake::{test}"), body);
}

/// Does the same for a test of any file, by its full name.
pub(crate) fn run_with_fake(test: &str, body: impl FnOnce(&Bench)) {
    if std::env::var_os(IN_CHILD).is_some() {
        let bench = Bench::new();
        body(&bench);
        assert_eq!(bench.problems(), "");
        return;
    }
    let mut path = FAKE.clone().into_os_string();
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(rest);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(IN_CHILD, "1")
        .env("LD_LIBRARY_PATH", path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}", output.status);
}

/// Launches a kernel with an address and a count.
macro_rules! launch {
    ($name:expr, $bench:expr, $stream:expr, $values:expr, $count:expr) => {{
        use cudarc::driver::PushKernelArg as _;
        let module = $bench.context.load_module(cudarc::nvrtc::Ptx::from_src("")).unwrap();
        let (kernel, count) = (module.load_function($name).unwrap(), $count as u32);
        // SAFETY: the kernel takes an address and a count, and stays inside.
        unsafe {
            let mut launch = $stream.launch_builder(&kernel);
            launch.arg($values).arg(&count).launch(cudarc::driver::LaunchConfig::for_num_elems(count))
        }
    }};
}
pub(crate) use launch;

/// Launches the kernel that doubles values.
macro_rules! twice {
    ($bench:expr, $stream:expr, $values:expr, $count:expr) => {{
        crate::cudarc_fake::launch!("twice", $bench, $stream, $values, $count).unwrap();
    }};
}
pub(crate) use twice;

/// Launches the kernel that only reads values.
macro_rules! look {
    ($bench:expr, $stream:expr, $values:expr, $count:expr) => {{
        crate::cudarc_fake::launch!("look", $bench, $stream, $values, $count).unwrap();
    }};
}
pub(crate) use look;

#[test]
fn the_stand_in_sees_a_missing_order() {
    with_fake("the_stand_in_sees_a_missing_order", |bench| {
        let other = bench.context.new_stream().unwrap();
        // A vector has no events.
        let mut values = bench.vec(&[1.0; 8]);
        twice!(bench, bench.stream, &mut values, 8);
        twice!(bench, other, &mut values, 8);
        assert!(bench.problems().contains("without waiting"));
        drop(values);
        // The case for `lend_as_cuda_slice`: a slice over memory inside a block, which cudarc would free.
        let values = bench.buffer(&[1.0; 8]);
        let address = values.device_ptr(&bench.stream).0;
        // SAFETY: the stand-in refuses the free when the slice is dropped.
        drop(unsafe { bench.stream.upgrade_device_ptr::<f32>(address + 4, 1) });
        assert!(bench.problems().contains("which is no block"));
    });
}

#[test]
fn containers_and_parts_of_them_go_where_slices_go() {
    with_fake("containers_and_parts_of_them_go_where_slices_go", |bench| {
        let stream = &bench.stream;
        let mut vec = bench.vec(&[1.0, 2.0, 3.0, 4.0]);
        twice!(bench, stream, &mut vec, 4);
        twice!(bench, stream, &vec, 1);
        assert_eq!(stream.clone_dtoh(&vec.cuda_view(stream).unwrap()).unwrap(), [4.0, 4.0, 6.0, 8.0]);
        let mut view = vec.cuda_view_mut(stream).unwrap();
        twice!(bench, stream, &mut view.try_slice_mut(1..=2).unwrap(), 2);
        stream.memset_zeros(&mut view.try_slice_mut(3..).unwrap()).unwrap();
        let (mut first, second) = view.try_split_at_mut(1).unwrap();
        stream.memcpy_dtod(&second.as_view().try_slice(..1).unwrap(), &mut first).unwrap();
        assert_eq!(vec.to_host().unwrap(), [8.0, 8.0, 12.0, 0.0]);

        let mut scalar = DeviceScalar::from_vec(bench.vec(&[21.0])).unwrap();
        twice!(bench, stream, &mut scalar, 1);
        assert_eq!(stream.clone_dtoh(&scalar.cuda_view(stream).unwrap()).unwrap(), [42.0]);
        let mut bytes: DeviceBuffer<_> = scalar.into_vec().into_buffer();
        twice!(bench, stream, &bytes, 1);
        stream.memset_zeros(&mut bytes.cuda_view_mut(stream).unwrap().try_slice_mut(..3).unwrap()).unwrap();
        assert_eq!(bytes.to_host::<f32>().unwrap(), [f32::from_bits(84_f32.to_bits() & 0xFF00_0000)]);
    });
}

#[test]
fn a_part_on_another_stream_is_ordered() {
    with_fake("a_part_on_another_stream_is_ordered", |bench| {
        let other = bench.context.new_stream().unwrap();
        let mut values = bench.buffer(&[1.0; 8]);
        assert_eq!(other.clone_dtoh(&values.as_view().try_slice(2..4).unwrap()).unwrap(), [1.0; 2]);
        other.memset_zeros(&mut values.as_view_mut().try_slice_mut(6..).unwrap()).unwrap();
        twice!(bench, bench.stream, &mut values, 8);
        assert_eq!(other.clone_dtoh(&values).unwrap(), [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0]);
    });
}

#[test]
fn a_range_outside_is_none() {
    with_fake("a_range_outside_is_none", |bench| {
        let mut values = bench.buffer(&[0.0; 4]);
        let view = values.as_view();
        let max = usize::MAX;
        assert!(view.try_slice(2..5).is_none() && view.try_slice(..=4).is_none());
        assert!(view.try_slice(5..).is_none() && view.try_slice(max..).is_none());
        assert!(view.try_slice(..=max).is_none());
        #[expect(clippy::reversed_empty_ranges, reason = "the test needs a refused range")]
        let reversed = view.try_slice(3..2);
        assert!(reversed.is_none());
        assert_eq!(view.try_slice(4..).map(|rest| rest.is_empty()), Some(true));
        assert!(values.as_view_mut().try_split_at_mut(5).is_none());
        assert_eq!(values.as_view_mut().try_split_at_mut(3).map(|(a, b)| (a.len(), b.len())), Some((3, 1)));
    });
}

#[test]
fn a_matrix_product_takes_buffers_and_views() {
    with_fake("a_matrix_product_takes_buffers_and_views", |bench| {
        let blas = CudaBlas::new(bench.stream.clone()).unwrap();
        let (transa, transb) = (CUBLAS_OP_N, CUBLAS_OP_N);
        let (m, n, k) = (2, 3, 2);
        let (lda, ldb, ldc) = (m, k, m);
        let config = GemmConfig { transa, transb, m, n, k, alpha: 2.0, lda, ldb, beta: 1.0, ldc };
        // Column by column: [1 3; 2 4] times [1 0 1; 0 1 1].
        let a = bench.buffer(&[1.0, 2.0, 3.0, 4.0]);
        let b = bench.vec(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let mut c = bench.buffer(&[1.0; 6]);
        // SAFETY: the sizes match the matrices.
        unsafe { blas.gemm(config, &a, &b.cuda_view(&bench.stream).unwrap(), &mut c) }.unwrap();
        let product = c.into_vec(bench.own.as_ref()).unwrap().to_host().unwrap();
        assert_eq!(product, [3.0, 5.0, 7.0, 9.0, 9.0, 13.0]);
    });
}

#[test]
fn what_cannot_be_converted_is_returned() {
    with_fake("what_cannot_be_converted_is_returned", |bench| {
        // A view requires the container's stream.
        let mut vec = DeviceVec::from_host(&[5.0_f32; 4], bench.own.as_ref(), bench.cuda.clone()).unwrap();
        for error in [
            vec.cuda_view(&bench.stream).unwrap_err(),
            vec.cuda_view_mut(&bench.context.default_stream()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("set_stream"), "{error}");
        }
        // SAFETY: the stream is dropped before its owner.
        let borrowed =
            unsafe { cuda::cudarc_stream_of(bench.own.as_ref(), &**vec.resource().driver(), &bench.context) };
        assert_eq!(vec.cuda_view(&borrowed.unwrap()).unwrap().len(), 4);

        let sim = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let simulated = DeviceVec::from_host(&[7_u32, 8], StreamRef::LEGACY, sim).unwrap();
        let refused = CudaBuffer::from_vec(simulated, &bench.stream).unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::InvalidArgument);
        assert_eq!(refused.into_value().to_host().unwrap(), [7, 8]);

        let odd = DeviceBuffer::from_host(&[1_u8, 2, 3], bench.own.as_ref(), bench.cuda.clone()).unwrap();
        let (error, odd) = CudaBuffer::<u32, _>::from_buffer(odd, &bench.stream).unwrap_err().into_parts();
        assert!(error.to_string().contains("3 bytes"), "{error}");
        assert_eq!(odd.to_host::<u8>().unwrap(), [1, 2, 3]);

        bench.fail_events(1);
        let refused = CudaBuffer::from_vec(vec, &bench.stream).unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::OutOfMemory);
        let buffer = CudaBuffer::from_vec(refused.into_value(), &bench.stream).unwrap();
        bench.fail_events(1);
        let refused = buffer.into_vec(bench.own.as_ref()).unwrap_err();
        let vec = refused.into_value().into_vec(bench.own.as_ref()).unwrap();
        assert_eq!((vec.stream(), vec.to_host().unwrap()), (bench.own.as_ref(), vec![5.0; 4]));
        assert!(DeviceScalar::from_vec(vec).is_err());
    });
}

#[test]
fn an_adopted_slice_is_freed_once_and_in_order() {
    with_fake("an_adopted_slice_is_freed_once_and_in_order", |bench| {
        let other = bench.context.new_stream().unwrap();
        let mut slice = bench.stream.clone_htod(&[1.0_f32, 2.0, 3.0]).unwrap();
        other.memset_zeros(&mut slice.slice_mut(2..)).unwrap();
        let values = CudaBuffer::adopt(slice).unwrap();
        assert_eq!((values.len(), values.resource().to_string()), (3, "cuda_slice".to_owned()));
        let mut values = values.into_vec(bench.own.as_ref()).unwrap();
        assert_eq!(values.to_host().unwrap(), [1.0, 2.0, 0.0]);
        values.set_to_zero_async(1).unwrap();
        values.resize(1, bench.own.as_ref()).unwrap();
        values.resize(3, bench.own.as_ref()).unwrap();
        let error = values.resize(4, bench.own.as_ref()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(values.to_host().unwrap(), [1.0, 0.0, 0.0]);
        values.set_to_zero_async(0).unwrap();
        // Any function takes it now. The thread that drops it has no current context.
        let values: DeviceVec<f32> = values.into_any();
        std::thread::spawn(move || drop(values)).join().unwrap();
        assert_eq!(bench.frees(), 1);

        // SAFETY: no memory is named.
        let empty = unsafe { bench.stream.upgrade_device_ptr::<f32>(0, 0) };
        assert_eq!(CudaBuffer::adopt(empty).unwrap().give_back().unwrap().leak(), 0);
        assert_eq!(bench.frees(), 1);
    });
}

/// A buffer that was taken apart forgets which stream used it last.
#[test]
fn an_adopted_slice_that_was_taken_apart_is_freed_after_all_work() {
    with_fake("an_adopted_slice_that_was_taken_apart_is_freed_after_all_work", |bench| {
        let slice = bench.stream.clone_htod(&[1.0_f32, 2.0]).unwrap();
        let mut values = CudaBuffer::adopt(slice).unwrap().into_vec(bench.own.as_ref()).unwrap();
        values.set_to_zero_async(0).unwrap();
        drop(values.into_buffer().into_raw_parts());
        assert_eq!(bench.frees(), 1);
    });
}

#[test]
fn an_adopted_slice_is_given_back() {
    with_fake("an_adopted_slice_is_given_back", |bench| {
        let [other, third] = [(); 2].map(|()| bench.context.new_stream().unwrap());
        let mut slice = bench.stream.clone_htod(&[1.0_f32, 2.0]).unwrap();
        for round in 0..3 {
            let mut values = CudaBuffer::adopt(slice).unwrap();
            values.set_stream(&other).unwrap();
            twice!(bench, other, &mut values, 2);
            let values = values.into_vec(bench.own.as_ref()).unwrap();
            bench.fail_events(1);
            let values = CudaBuffer::from_vec(values, &other).unwrap_err().into_value();
            let values = CudaBuffer::from_vec(values, &other).unwrap();
            bench.fail_events(1);
            let values = values.give_back().unwrap_err().into_value();
            twice!(bench, other, &values, 1);
            slice = values.give_back().unwrap();
            assert_eq!(slice.stream(), &bench.stream);
            // cudarc's tracking orders a use on another stream.
            let [one, two] = [4_f32.powi(round + 1), 2_f32.powi(round + 2)];
            assert_eq!(third.clone_dtoh(&slice).unwrap(), [one, two]);
        }
        assert_eq!(bench.frees(), 0);
        drop(slice);
        assert_eq!(bench.frees(), 1);
    });
}

#[test]
fn a_slice_of_the_per_thread_stream_is_adopted_on_another_thread() {
    with_fake("a_slice_of_the_per_thread_stream_is_adopted_on_another_thread", |bench| {
        // SAFETY: the uses of the adopted slice are ordered, as the stand-in checks.
        unsafe { bench.context.disable_event_tracking() };
        let slice = bench.context.per_thread_stream().clone_htod(&[3.0_f32; 4]).unwrap();
        std::thread::scope(|scope| {
            let values = scope.spawn(|| {
                let mut values = CudaBuffer::adopt(slice).unwrap();
                let stream = values.stream().clone();
                twice!(bench, stream, &mut values, 4);
                values
            });
            let values = values.join().unwrap();
            assert_eq!(bench.context.per_thread_stream().clone_dtoh(&values).unwrap(), [6.0; 4]);
            let slice = values.give_back().unwrap();
            assert_eq!(slice.stream().clone_dtoh(&slice).unwrap(), [6.0; 4]);
            scope.spawn(|| drop(CudaBuffer::adopt(slice).unwrap()));
        });
        assert_eq!(bench.frees(), 1);
    });
}

#[test]
fn adopted_and_allocated_buffers_have_one_type() {
    fn shared<T: Send + Sync>(value: T) -> T {
        value
    }
    with_fake("adopted_and_allocated_buffers_have_one_type", |bench| {
        let other = bench.context.new_stream().unwrap();
        let adopted = CudaBuffer::adopt(bench.stream.clone_htod(&[1.0_f32; 8]).unwrap()).unwrap();
        look!(bench, other, &adopted, 8);
        let before = bench.host_waits();
        let both: [CudaBuffer<f32>; 2] = shared([adopted.into_any(), bench.buffer(&[1.0; 8]).into_any()]);
        let [mut adopted, mut allocated] = both;
        twice!(bench, bench.stream, &mut adopted, 8);
        twice!(bench, other, &mut adopted, 8);
        assert_eq!(bench.host_waits(), before);
        twice!(bench, other, &mut allocated, 8);
        assert_eq!(other.clone_dtoh(&adopted).unwrap(), [4.0; 8]);
        assert_eq!(bench.frees(), 0);
        drop(adopted);
        assert_eq!(bench.frees(), 1);
        let vec = allocated.into_vec(bench.own.as_ref()).unwrap();
        assert_eq!(vec.to_host().unwrap(), [2.0; 8]);
    });
}

#[test]
fn adopted_memory_is_copied_to_grow() {
    with_fake("adopted_memory_is_copied_to_grow", |bench| {
        let adopted = CudaBuffer::adopt(bench.stream.clone_htod(&[1.0_f32; 8]).unwrap()).unwrap();
        let on = bench.own.as_ref();
        let mut vec = adopted.into_vec(on).unwrap();
        let error = vec.resize(1000, on).unwrap_err().to_string();
        assert!(error.contains("with DeviceVec::copy_of"), "{error}");
        let mut copy = DeviceVec::copy_of(&vec, on, bench.cuda.clone()).unwrap();
        copy.resize(1000, on).unwrap();
        assert_eq!(copy.to_host().unwrap()[..8], [1.0; 8]);
    });
}

/// After a reset, the address may belong to another allocation.
#[test]
fn an_adopted_slice_is_not_freed_after_a_reset() {
    with_fake("an_adopted_slice_is_not_freed_after_a_reset", |bench| {
        let adopt = || CudaBuffer::adopt(bench.stream.clone_htod(&[1.0_f32]).unwrap()).unwrap();
        let (freed, given) = (adopt(), adopt());
        bench.reset();
        drop(freed);
        assert_eq!(bench.frees(), 0);
        let (error, given) = given.give_back().unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::Poisoned);
        drop(given);
        assert_eq!(bench.frees(), 0);
    });
}

#[test]
fn a_slice_that_cannot_be_adopted_is_returned() {
    with_fake("a_slice_that_cannot_be_adopted_is_returned", |bench| {
        let whole = bench.stream.clone_htod(&[1.0_f32, 2.0, 3.0]).unwrap();
        let address = whole.leak();
        // SAFETY: the memory has these values, and the slice is leaked.
        let part = unsafe { bench.stream.upgrade_device_ptr::<f32>(address + 4, 2) };
        let (error, part) = CudaBuffer::adopt(part).unwrap_err().into_parts();
        assert!(error.to_string().contains("adopt a whole allocation"), "{error}");
        assert_eq!(bench.read(&part), [2.0, 3.0]);
        part.leak();
        // SAFETY: the memory belongs to the slice that was leaked.
        let whole = unsafe { bench.stream.upgrade_device_ptr::<f32>(address, 3) };
        bench.context.record_err::<()>(Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)));
        let (error, whole) = CudaBuffer::adopt(whole).unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::Driver);
        assert_eq!(bench.read(&whole), [1.0, 2.0, 3.0]);
        assert_eq!(bench.frees(), 0);
    });
}

#[test]
fn a_lent_slice_frees_nothing() {
    with_fake("a_lent_slice_frees_nothing", |bench| {
        let other = bench.context.new_stream().unwrap();
        let mut values = bench.buffer(&[1.0, 2.0, 3.0]);
        // Other streams wait for the buffer's work, and the buffer waits for theirs.
        let copy = values.lend_as_cuda_slice(|slice| other.clone_dtod(slice)).unwrap().unwrap();
        twice!(bench, bench.stream, &mut values, 3);
        assert_eq!(other.clone_dtoh(&copy).unwrap(), [1.0, 2.0, 3.0]);
        let written = values.lend_as_cuda_view_mut(|mut view| other.memset_zeros(&mut view.slice_mut(1..)));
        written.unwrap().unwrap();
        twice!(bench, bench.stream, &mut values, 3);
        // SAFETY: the slice stays in its place.
        unsafe { values.lend_as_cuda_slice_mut(|slice| other.memcpy_htod(&[9.0], slice)) }.unwrap().unwrap();
        assert_eq!(bench.stream.clone_dtoh(&values).unwrap(), [9.0, 0.0, 0.0]);

        let panicked = catch_unwind(AssertUnwindSafe(|| values.lend_as_cuda_slice(|_| panic!("on purpose"))));
        assert!(panicked.is_err_and(|payload| payload.downcast_ref() == Some(&"on purpose")));
        assert_eq!(bench.stream.clone_dtoh(&values).unwrap(), [9.0, 0.0, 0.0]);
        assert_eq!(bench.frees(), 0);
        drop(copy);
        assert_eq!(bench.frees(), 1);
    });
}

#[test]
fn a_slice_that_cudarc_cannot_make_is_an_error() {
    with_fake("a_slice_that_cudarc_cannot_make_is_an_error", |bench| {
        let values = bench.buffer(&[1.0, 2.0]);
        bench.fail_events(1);
        let error = values.lend_as_cuda_slice(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Driver);
        bench.context.record_err::<()>(Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)));
        let error = values.lend_as_cuda_slice(|_| ()).unwrap_err();
        assert!(error.to_string().contains("earlier"), "{error}");
        assert_eq!(values.lend_as_cuda_slice(|slice| bench.read(slice)).unwrap(), [1.0, 2.0]);
    });
}
