//! Generates the methods that an adaptor passes on to its upstream.

/// Generates the methods of [`DeviceMemoryResource`](crate::DeviceMemoryResource) that an adaptor does not
/// implement itself. Each generated method passes its arguments to the upstream. If the upstream returns an
/// error, the method adds the text of the adaptor's stack to the error.
///
/// After `except`, list the methods that you implement yourself. The macro expects the upstream in the field
/// `upstream`. If your field has another name, write the field before `except`, as in
/// `forward_to_upstream!(self.inner, except allocate)`. The upstream may be any resource, including an
/// [`AnyResource`](crate::AnyResource).
///
/// Three generated methods do not call the upstream:
/// - `upstream` returns the field.
/// - `provide` lists no trait.
/// - `is_equal` returns `true` only if `other` is the same adaptor object, which is always safe. If your
///   adaptor keeps no state about its blocks, you may implement `is_equal` yourself and compare the
///   upstreams, as in the example below.
///
/// If your adaptor [submits work](crate::DeviceMemoryResource#layers-that-submit-work), implement
/// `is_stream_ordered` yourself and return `true`.
///
/// ```
/// use std::fmt;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use millpond_core::{
///     DeviceMemoryResource, DevicePtr, Layout, Result, StreamRef, downcast, forward_to_upstream,
/// };
///
/// /// Counts requests.
/// #[derive(Debug)]
/// struct Counted<R> {
///     upstream: R,
///     requests: AtomicU64,
/// }
///
/// impl<R: fmt::Display> fmt::Display for Counted<R> {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "{}+counted", self.upstream)
///     }
/// }
///
/// // SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
/// unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for Counted<R> {
///     fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
///         self.requests.fetch_add(1, Ordering::Relaxed);
///         self.upstream.allocate(layout, stream).map_err(|error| error.in_stack(self))
///     }
///
///     fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
///         downcast::<Self>(other).is_some_and(|other| self.upstream.is_equal(&other.upstream))
///     }
///
///     forward_to_upstream!(except allocate, is_equal);
/// }
/// ```
#[macro_export]
macro_rules! forward_to_upstream {
    () => {
        $crate::forward_to_upstream!(self.upstream, except);
    };
    (except $($own:ident),+ $(,)?) => {
        $crate::forward_to_upstream!(self.upstream, except $($own),+);
    };
    (self.$($field:tt).+) => {
        $crate::forward_to_upstream!(self.$($field).+, except);
    };
    (self.$($field:tt).+, except $($own:ident),* $(,)?) => {
        $crate::__forward_method!(allocate [$($field).+] $($own)*);
        $crate::__forward_method!(deallocate [$($field).+] $($own)*);
        $crate::__forward_method!(driver [$($field).+] $($own)*);
        $crate::__forward_method!(upstream [$($field).+] $($own)*);
        $crate::__forward_method!(memory_info [$($field).+] $($own)*);
        $crate::__forward_method!(is_equal [$($field).+] $($own)*);
        $crate::__forward_method!(is_stream_ordered [$($field).+] $($own)*);
        $crate::__forward_method!(accessibility [$($field).+] $($own)*);
        $crate::__forward_method!(statistics [$($field).+] $($own)*);
        $crate::__forward_method!(trim [$($field).+] $($own)*);
        $crate::__forward_method!(provide [$($field).+] $($own)*);
    };
}

/// Generates one method, unless its name is in the list after the field.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_method {
    (allocate $field:tt allocate $($own:ident)*) => {};
    (deallocate $field:tt deallocate $($own:ident)*) => {};
    (driver $field:tt driver $($own:ident)*) => {};
    (upstream $field:tt upstream $($own:ident)*) => {};
    (memory_info $field:tt memory_info $($own:ident)*) => {};
    (is_equal $field:tt is_equal $($own:ident)*) => {};
    (is_stream_ordered $field:tt is_stream_ordered $($own:ident)*) => {};
    (accessibility $field:tt accessibility $($own:ident)*) => {};
    (statistics $field:tt statistics $($own:ident)*) => {};
    (trim $field:tt trim $($own:ident)*) => {};
    (provide $field:tt provide $($own:ident)*) => {};
    ($method:ident $field:tt $other:ident $($own:ident)*) => {
        $crate::__forward_method!($method $field $($own)*);
    };
    (allocate [$($field:tt)+]) => {
        fn allocate(
            &self,
            layout: $crate::Layout,
            stream: $crate::StreamRef,
        ) -> $crate::Result<$crate::DevicePtr> {
            $crate::DeviceMemoryResource::allocate(&self.$($field)+, layout, stream)
                .map_err(|error| error.in_stack(self))
        }
    };
    (deallocate [$($field:tt)+]) => {
        unsafe fn deallocate(
            &self,
            ptr: $crate::DevicePtr,
            layout: $crate::Layout,
            stream: $crate::StreamRef,
        ) {
            // SAFETY: the caller's promises hold for the upstream too: the block came from there.
            unsafe { $crate::DeviceMemoryResource::deallocate(&self.$($field)+, ptr, layout, stream) }
        }
    };
    (driver [$($field:tt)+]) => {
        fn driver(&self) -> &$crate::DriverHandle {
            $crate::DeviceMemoryResource::driver(&self.$($field)+)
        }
    };
    (upstream [$($field:tt)+]) => {
        fn upstream(&self) -> ::core::option::Option<&dyn $crate::DeviceMemoryResource> {
            ::core::option::Option::Some(&self.$($field)+)
        }
    };
    (memory_info [$($field:tt)+]) => {
        fn memory_info(&self) -> $crate::Result<$crate::MemoryInfo> {
            $crate::DeviceMemoryResource::memory_info(&self.$($field)+)
                .map_err(|error| error.in_stack(self))
        }
    };
    (is_equal [$($field:tt)+]) => {
        fn is_equal(&self, other: &dyn $crate::DeviceMemoryResource) -> bool {
            $crate::is_same(self, other)
        }
    };
    (is_stream_ordered [$($field:tt)+]) => {
        fn is_stream_ordered(&self) -> bool {
            $crate::DeviceMemoryResource::is_stream_ordered(&self.$($field)+)
        }
    };
    (accessibility [$($field:tt)+]) => {
        fn accessibility(&self) -> $crate::Accessibility {
            $crate::DeviceMemoryResource::accessibility(&self.$($field)+)
        }
    };
    (statistics [$($field:tt)+]) => {
        fn statistics(&self) -> ::core::option::Option<$crate::ResourceStatistics> {
            $crate::DeviceMemoryResource::statistics(&self.$($field)+)
        }
    };
    (trim [$($field:tt)+]) => {
        fn trim(&self, keep_bytes: u64) -> $crate::Result<u64> {
            $crate::DeviceMemoryResource::trim(&self.$($field)+, keep_bytes)
                .map_err(|error| error.in_stack(self))
        }
    };
    (provide [$($field:tt)+]) => {
        fn provide(&self, _traits: &mut $crate::Traits) {}
    };
}
