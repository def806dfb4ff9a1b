//! The methods of the trait that an adaptor leaves to its upstream.

/// Implements the methods that pass to the field `upstream` unchanged; an error names the adaptor's stack.
/// With `except is_stream_ordered`, the adaptor answers that by itself, because it submits work.
macro_rules! forward_to_upstream {
    () => {
        fn is_stream_ordered(&self) -> bool {
            self.upstream.is_stream_ordered()
        }

        $crate::forward::forward_to_upstream!(except is_stream_ordered);
    };
    (except is_stream_ordered) => {
        fn driver(&self) -> &::millpond_core::DriverHandle {
            self.upstream.driver()
        }

        fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
            Some(&self.upstream)
        }

        fn memory_info(&self) -> Result<::millpond_core::MemoryInfo> {
            self.upstream.memory_info().map_err(|error| error.in_stack(self))
        }

        fn accessibility(&self) -> ::millpond_core::Accessibility {
            self.upstream.accessibility()
        }

        fn statistics(&self) -> Option<::millpond_core::ResourceStatistics> {
            self.upstream.statistics()
        }

        fn trim(&self, keep_bytes: u64) -> Result<u64> {
            self.upstream.trim(keep_bytes).map_err(|error| error.in_stack(self))
        }
    };
}

pub(crate) use forward_to_upstream;
