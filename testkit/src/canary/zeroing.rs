//! A layer that submits work, because it clears blocks. It can make a mistake about the order of that work on
//! purpose.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use millpond_core::driver::{DriverResult, StreamFlags, call};
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{
    DeviceMemoryResource, DevicePtr, Driver, Error, Layer, Layout, Result, StreamRef, debug_as_text,
    downcast, forward_to_upstream,
};

/// A mistake of a layer that submits its own work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WrongWork {
    /// `is_stream_ordered` returns upstream's answer, as if the layer submitted no work.
    SaysReady,
    /// The work runs on the layer's own stream, and no other stream is ordered after it.
    OnItsOwnStream,
    /// The work runs on the legacy default stream, whatever the stream of the call.
    OnTheLegacyStream,
    /// A freed block is cleared after it was passed on.
    AfterPassingOn,
    /// A new block is cleared even if the stream captures a graph.
    AllocatesInCaptures,
    /// A freed block is cleared even if the stream captures a graph.
    FreesInCaptures,
    /// If a new block cannot be cleared, it never goes back to upstream.
    KeepsFailed,
    /// If a freed block cannot be cleared, it never goes back to upstream.
    LosesFailed,
    /// The errors of its work name no stack.
    NamesNoStack,
    /// Its driver calls do not record a lost device.
    HidesLoss,
}

impl WrongWork {
    /// Every mistake.
    pub const ALL: &'static [Self] = &[
        Self::SaysReady,
        Self::OnItsOwnStream,
        Self::OnTheLegacyStream,
        Self::AfterPassingOn,
        Self::AllocatesInCaptures,
        Self::FreesInCaptures,
        Self::KeepsFailed,
        Self::LosesFailed,
        Self::NamesNoStack,
        Self::HidesLoss,
    ];

    /// Returns the mistake as in a stack's text: `zeroing:wrong=says_ready`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SaysReady => "says_ready",
            Self::OnItsOwnStream => "on_its_own_stream",
            Self::OnTheLegacyStream => "on_the_legacy_stream",
            Self::AfterPassingOn => "after_passing_on",
            Self::AllocatesInCaptures => "allocates_in_captures",
            Self::FreesInCaptures => "frees_in_captures",
            Self::KeepsFailed => "keeps_failed",
            Self::LosesFailed => "loses_failed",
            Self::NamesNoStack => "names_no_stack",
            Self::HidesLoss => "hides_loss",
        }
    }
}

/// Adds a [`ZeroingResource`], correct or with a mistake.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "a canary has one mistake")]
pub struct ZeroingLayer(pub Option<WrongWork>);

impl ZeroingLayer {
    /// Builds `zeroing` from text.
    pub const ENTRY: LayerEntry = LayerEntry {
        name: "zeroing",
        about: "clears blocks when they are allocated and when they are freed",
        params: &[("wrong", "the mistake to make (default: none)")],
        kind: LayerKind::Layer(|params, upstream| {
            let wrong = params.text("wrong")?.map(|name| {
                let known = WrongWork::ALL.iter().find(|wrong| wrong.name() == name);
                known.copied().ok_or_else(|| Error::invalid_stack(format!("there is no mistake `{name}`")))
            });
            Ok(Arc::new(Self(wrong.transpose()?).layer(upstream)?))
        }),
    };
}

impl<R: DeviceMemoryResource> Layer<R> for ZeroingLayer {
    type Resource = ZeroingResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(ZeroingResource { upstream, wrong: self.0, own: OnceLock::new() })
    }
}

/// Clears blocks on the stream of each call, as a layer of a user may do. It is the example of a layer that
/// submits work and reports this work. On a stream that captures a graph, it clears no blocks.
pub struct ZeroingResource<R: DeviceMemoryResource> {
    upstream: R,
    wrong: Option<WrongWork>,
    own: OnceLock<StreamRef>,
}

impl<R: DeviceMemoryResource> ZeroingResource<R> {
    fn is(&self, wrong: WrongWork) -> bool {
        self.wrong == Some(wrong)
    }

    /// Clears a block. `in_captures`: also while the stream captures a graph, which is a mistake.
    fn clear(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef, in_captures: bool) -> Result<()> {
        if ptr.is_null() || !self.upstream.accessibility().device {
            return Ok(());
        }
        let driver = &**self.driver();
        // The query fails on the legacy stream while a blocking stream captures.
        if !in_captures && !matches!(call(driver, |driver| driver.stream_is_capturing(stream)), Ok(false)) {
            return Ok(());
        }
        let clear = |driver: &dyn Driver| {
            let stream = self.stream_of_work(stream)?;
            // SAFETY: the block is live, holds that many bytes, and is ordered for the call's stream.
            unsafe { driver.memset_d8_async(ptr, 0, layout.bytes(), stream) }
        };
        if self.is(WrongWork::HidesLoss) {
            return clear(driver).map_err(|error| Error::from(error).on_device(driver.device()));
        }
        call(driver, clear)
    }

    fn stream_of_work(&self, stream: StreamRef) -> DriverResult<StreamRef> {
        if self.is(WrongWork::OnTheLegacyStream) {
            return Ok(StreamRef::LEGACY);
        }
        if !self.is(WrongWork::OnItsOwnStream) {
            return Ok(stream);
        }
        match self.own.get() {
            Some(own) => Ok(*own),
            None => {
                let own = self.driver().stream_create(StreamFlags::NON_BLOCKING)?;
                Ok(*self.own.get_or_init(|| own))
            }
        }
    }
}

// SAFETY: blocks come from upstream and return to it with the same arguments. Without a mistake, the work is
// ordered before the next work on the call's stream, and `is_stream_ordered` says so.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for ZeroingResource<R>
where
    Self: Any,
{
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.upstream.allocate(layout, stream).map_err(|error| error.in_stack(self))?;
        let cleared = self.clear(ptr, layout, stream, self.is(WrongWork::AllocatesInCaptures));
        cleared.map(|()| ptr).map_err(|error| {
            if !self.is(WrongWork::KeepsFailed) {
                // SAFETY: the block was just allocated with this layout, and nothing uses it.
                unsafe { self.upstream.deallocate(ptr, layout, stream) };
            }
            let error = error.for_request(layout, stream);
            if self.is(WrongWork::NamesNoStack) { error } else { error.in_stack(self) }
        })
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let is_late = self.is(WrongWork::AfterPassingOn);
        let clear = || self.clear(ptr, layout, stream, self.is(WrongWork::FreesInCaptures));
        // A block that could not be cleared is freed anyway.
        if !is_late && clear().is_err() && self.is(WrongWork::LosesFailed) {
            return;
        }
        // SAFETY: the caller's promises hold for upstream, where the block came from; the work above is on
        // that stream.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
        if is_late {
            let _ = clear();
        }
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        downcast::<Self>(other).is_some_and(|other| self.upstream.is_equal(&other.upstream))
    }

    /// `true`, because the work is ordered only on the call's stream.
    fn is_stream_ordered(&self) -> bool {
        !self.is(WrongWork::SaysReady) || self.upstream.is_stream_ordered()
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, is_stream_ordered);
}

impl<R: DeviceMemoryResource> fmt::Display for ZeroingResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+zeroing", self.upstream)?;
        self.wrong.map_or(Ok(()), |wrong| write!(f, ":wrong={}", wrong.name()))
    }
}

debug_as_text!(ZeroingResource<R: DeviceMemoryResource>);

impl<R: DeviceMemoryResource> Drop for ZeroingResource<R> {
    fn drop(&mut self) {
        if let Some(own) = self.own.get() {
            // SAFETY: the stream belongs to this layer; its work still completes.
            let _ = call(&**self.driver(), |driver| unsafe { driver.stream_destroy(*own) });
        }
    }
}
