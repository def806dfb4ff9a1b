//! An allocator from a shared library, as a memory resource.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use millpond_core::{
    ALLOCATION_ALIGNMENT, AnyResource, DeviceMemoryResource, DevicePtr, DriverError, DriverHandle, Error,
    ErrorKind, Layout, MemoryInfo, Result, StreamRef, debug_as_text, is_same,
};
use millpond_testkit::program::{Habits, ScopeOfGraphs};

use crate::calls::Handle;
use crate::current::Entered;
use crate::error::{problem, texts};

type Traits = unsafe extern "C" fn() -> u32;
type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type Allocate = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, usize, Handle) -> c_int;
type Deallocate = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, Handle);
type Destroy = unsafe extern "C" fn(*mut c_void);

/// The numbers of `judge/allocator.h`.
const FREES_ON_OWN_STREAM: u32 = 1;
const KEEPS_EVENTS: u32 = 2;
const SURVIVES_FAULTS: u32 = 4;
const WORKS_IN_CAPTURES: u32 = 8;
const ENDS_BEFORE_STREAMS: u32 = 16;
const CAPTURES_IN_SCOPES: u32 = 32;

type NewScope = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type OpenScope = unsafe extern "C" fn(*mut c_void, Handle) -> c_int;
type CloseScope = unsafe extern "C" fn(*mut c_void, Handle);
type TellOfCapture = unsafe extern "C" fn(*mut c_void, c_int);

/// The functions of an allocator with scopes for captured graphs.
#[derive(Clone, Copy, Debug)]
struct ScopeFunctions {
    new: NewScope,
    open: OpenScope,
    close: CloseScope,
    free: Destroy,
    tell: TellOfCapture,
}

/// The functions of an allocator's library.
///
/// The library stays open until the process ends, because it may have thread-local values of threads that
/// still run.
#[derive(Debug)]
pub struct Allocator {
    name: String,
    traits: u32,
    create: Create,
    allocate: Allocate,
    deallocate: Deallocate,
    destroy: Destroy,
    scopes: Option<ScopeFunctions>,
}

impl Allocator {
    /// Opens a library that exports the functions of `judge/allocator.h`. Open the [`Shim`](crate::Shim)
    /// first, so that the library's calls of CUDA reach it.
    ///
    /// # Errors
    /// If the file cannot be opened, or if it lacks one of the functions.
    pub fn open(file: &Path) -> std::result::Result<Arc<Self>, String> {
        let failed = |error| problem(file, &error);
        // SAFETY: the user asks to run the library's code, as for any program.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        // SAFETY: `judge/allocator.h` declares the functions with these types.
        let allocator = unsafe {
            let traits = library.get::<Traits>("judge_traits").map_err(failed)?;
            Self {
                name: file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(),
                traits: traits(),
                create: *library.get::<Create>("judge_create").map_err(failed)?,
                allocate: *library.get::<Allocate>("judge_allocate").map_err(failed)?,
                deallocate: *library.get::<Deallocate>("judge_deallocate").map_err(failed)?,
                destroy: *library.get::<Destroy>("judge_destroy").map_err(failed)?,
                scopes: match library.get::<NewScope>("judge_scope_new") {
                    Err(_) => None,
                    Ok(new) => Some(ScopeFunctions {
                        new: *new,
                        open: *library.get::<OpenScope>("judge_scope_open").map_err(failed)?,
                        close: *library.get::<CloseScope>("judge_scope_close").map_err(failed)?,
                        free: *library.get::<Destroy>("judge_scope_free").map_err(failed)?,
                        tell: *library.get::<TellOfCapture>("judge_capture").map_err(failed)?,
                    }),
                },
            }
        };
        std::mem::forget(library);
        Ok(Arc::new(allocator))
    }

    /// Returns the library's file name, without its ending.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the habits that the library declares. CUDA allows waits for unrecorded events, so every
    /// allocator may also wait for such events.
    pub fn habits(&self) -> Habits {
        Habits::default()
            .frees_on_own_stream(self.traits & FREES_ON_OWN_STREAM != 0)
            .keeps_events(self.traits & KEEPS_EVENTS != 0)
            .waits_for_unrecorded(true)
            .ends_before_streams(self.traits & ENDS_BEFORE_STREAMS != 0)
            .captures_in_scopes(self.traits & CAPTURES_IN_SCOPES != 0)
    }

    /// Returns whether the allocator stays correct when driver calls fail.
    pub fn survives_faults(&self) -> bool {
        self.traits & SURVIVES_FAULTS != 0
    }

    /// Returns whether the allocator works while streams capture graphs.
    pub fn works_in_captures(&self) -> bool {
        self.traits & WORKS_IN_CAPTURES != 0
    }

    /// Returns whether the allocator has scopes for captured graphs.
    pub fn has_scopes(&self) -> bool {
        self.scopes.is_some()
    }

    /// Makes an allocator on a device.
    ///
    /// # Errors
    /// If the library fails.
    pub fn build(self: &Arc<Self>, driver: &DriverHandle) -> Result<AnyResource> {
        let mut handle = std::ptr::null_mut();
        let made = {
            let _entered = Entered::new(driver);
            // SAFETY: the place is writable.
            unsafe { (self.create)(&raw mut handle) }
        };
        if made != 0 {
            return Err(self.failed("judge_create", made));
        }
        Ok(Arc::new(Foreign { allocator: Arc::clone(self), driver: Arc::clone(driver), handle: At(handle) }))
    }

    fn failed(&self, function: &str, code: c_int) -> Error {
        let name = texts(code).map_or(c"an unknown error", |texts| texts.runtime).to_string_lossy();
        Error::new(ErrorKind::Driver, format!("{function} of {} returns {name} ({code})", self.name))
    }
}

/// A pointer to an allocator.
#[derive(Clone, Copy)]
struct At(*mut c_void);

// SAFETY: `judge/allocator.h` demands that allocators can be called from any thread.
unsafe impl Send for At {}
// SAFETY: as above; the functions may be called at the same time.
unsafe impl Sync for At {}

/// An allocator of a library on one device, as a memory resource.
pub struct Foreign {
    allocator: Arc<Allocator>,
    driver: DriverHandle,
    handle: At,
}

// SAFETY: duties 1, 2 and 5 are the library's. This type exists to judge whether the library keeps them.
unsafe impl DeviceMemoryResource for Foreign {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.alignment() > ALLOCATION_ALIGNMENT {
            let text = format!("{} has no alignment above {ALLOCATION_ALIGNMENT}", self.allocator.name);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let mut ptr = std::ptr::null_mut();
        let _entered = Entered::new(&self.driver);
        // SAFETY: the handle came from `judge_create` and is destroyed in `drop`; the place is writable.
        let answer = unsafe {
            (self.allocator.allocate)(self.handle.0, &raw mut ptr, layout.bytes() as usize, raw(stream))
        };
        match answer {
            0 => Ok(DevicePtr::new(ptr.expose_provenance() as u64)),
            DriverError::OUT_OF_MEMORY => Err(Error::out_of_memory(layout, stream)),
            code => Err(self.allocator.failed("judge_allocate", code).for_request(layout, stream)),
        }
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if layout.bytes() == 0 {
            return;
        }
        let ptr = std::ptr::with_exposed_provenance_mut(ptr.address() as usize);
        let _entered = Entered::new(&self.driver);
        // SAFETY: the handle is as in `allocate`; duty 12 of the caller says the rest.
        unsafe { (self.allocator.deallocate)(self.handle.0, ptr, layout.bytes() as usize, raw(stream)) }
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.driver.mem_get_info()?)
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }
}

/// A stream as CUDA's calls name it.
fn raw(stream: StreamRef) -> Handle {
    std::ptr::with_exposed_provenance_mut(stream.handle() as usize)
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _entered = Entered::new(&self.driver);
        // SAFETY: the handle came from `judge_create`, and this is its last use.
        unsafe { (self.allocator.destroy)(self.handle.0) }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.allocator.name)
    }
}

debug_as_text!(Foreign);

impl Foreign {
    /// The allocator behind a resource, and its functions for scopes.
    fn with_scopes(resource: &AnyResource) -> Result<(&Self, ScopeFunctions)> {
        let resource: &dyn Any = &**resource;
        let found = resource.downcast_ref::<Self>().and_then(|own| Some((own, own.allocator.scopes?)));
        found.ok_or_else(|| Error::new(ErrorKind::Unsupported, "the allocator has no scopes"))
    }

    /// Makes a scope for captured graphs.
    ///
    /// # Errors
    /// If the allocator has no scopes, or if the library fails.
    pub fn new_scope(resource: &AnyResource) -> Result<Box<dyn ScopeOfGraphs>> {
        let (own, functions) = Self::with_scopes(resource)?;
        let mut scope = std::ptr::null_mut();
        let _entered = Entered::new(&own.driver);
        // SAFETY: the handle is as in `allocate`; the place is writable.
        match unsafe { (functions.new)(own.handle.0, &raw mut scope) } {
            0 => Ok(Box::new(ForeignScope(Arc::new(Owned {
                resource: resource.clone(),
                driver: own.driver.clone(),
                functions,
                scope: At(scope),
            })))),
            code => Err(own.allocator.failed("judge_scope_new", code)),
        }
    }

    /// Tells the allocator that a capture begins, or that it has ended.
    pub fn tell_of_capture(resource: &AnyResource, begins: bool) {
        let Ok((own, functions)) = Self::with_scopes(resource) else { return };
        let _entered = Entered::new(&own.driver);
        // SAFETY: the handle is as in `allocate`.
        unsafe { (functions.tell)(own.handle.0, begins.into()) }
    }
}

/// A scope, which lives until it is dropped and open for no stream.
struct Owned {
    /// The allocator, which must outlive its scopes.
    resource: AnyResource,
    driver: DriverHandle,
    functions: ScopeFunctions,
    scope: At,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _entered = Entered::new(&self.driver);
        // SAFETY: the scope came from `judge_scope_new`, and this is its last use.
        unsafe { (self.functions.free)(self.scope.0) }
    }
}

struct ForeignScope(Arc<Owned>);

impl ScopeOfGraphs for ForeignScope {
    fn open(&self, stream: StreamRef) -> Result<Box<dyn Send>> {
        let Owned { resource, driver, functions, scope } = &*self.0;
        let _entered = Entered::new(driver);
        // SAFETY: the scope came from `judge_scope_new`, and is freed after its last use.
        match unsafe { (functions.open)(scope.0, raw(stream)) } {
            0 => Ok(Box::new(Opened { scope: Arc::clone(&self.0), stream })),
            code => Err(Error::new(ErrorKind::Driver, format!("judge_scope_open of {resource}: {code}"))),
        }
    }
}

/// A scope that is open for a stream.
struct Opened {
    scope: Arc<Owned>,
    stream: StreamRef,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Owned { driver, functions, scope, .. } = &*self.scope;
        let _entered = Entered::new(driver);
        // SAFETY: the scope was opened for the stream, and is freed after this.
        unsafe { (functions.close)(scope.0, raw(self.stream)) }
    }
}
