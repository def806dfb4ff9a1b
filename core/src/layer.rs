//! Layers. Each layer builds a resource on top of another one.

use crate::Result;

/// Builds a resource on top of another resource.
///
/// A layer is a value that holds the configuration of the resource. [`layer`](Self::layer) builds the
/// resource. If a layer builds several resources that share state, the layer's documentation says so.
///
/// The order of the layers matters. The layer that is added last is the outermost. For example, statistics
/// above a pool count the requests of the program. Statistics below the pool count the regions that the pool
/// allocates. `examples/stack.rs` shows both orders.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer for `{R}`; pass a layer, such as `PoolLayer::new()`",
    label = "this cannot go on top of `{R}`",
    note = "`layer_fn` makes a layer of a closure, and `option_layer` of an `Option`; `StackSpec` builds a \
            stack from text"
)]
pub trait Layer<R> {
    /// The resource that the layer builds.
    type Resource;

    /// Builds the resource on top of `upstream`.
    ///
    /// # Errors
    /// The errors of building the resource. For example, a pool may fail to reserve its first region.
    fn layer(self, upstream: R) -> Result<Self::Resource>;
}

/// A layer that adds nothing: `layer` returns the upstream itself.
#[derive(Clone, Copy, Default, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it does nothing, and so needs no options")]
pub struct Identity;

impl<R> Layer<R> for Identity {
    type Resource = R;

    fn layer(self, upstream: R) -> Result<R> {
        Ok(upstream)
    }
}

/// A layer made of a closure; see [`layer_fn`].
#[derive(Clone, Copy, Debug)]
pub struct LayerFn<F>(F);

/// Makes a layer from a closure. The closure builds the resource on top of the upstream that it receives.
pub fn layer_fn<F>(build: F) -> LayerFn<F> {
    LayerFn(build)
}

impl<R, S, F: FnOnce(R) -> Result<S>> Layer<R> for LayerFn<F> {
    type Resource = S;

    fn layer(self, upstream: R) -> Result<S> {
        (self.0)(upstream)
    }
}

/// An optional layer; see [`option_layer`].
#[derive(Clone, Copy, Debug)]
pub struct OptionLayer<L>(Option<L>);

/// Makes a layer that may be absent. An absent layer (`None`) adds nothing. In both cases, the result is an
/// [`AnyResource`](crate::AnyResource).
pub fn option_layer<L>(layer: Option<L>) -> OptionLayer<L> {
    OptionLayer(layer)
}

impl<R, L> Layer<R> for OptionLayer<L>
where
    R: crate::DeviceMemoryResource + Send + Sync,
    L: Layer<R>,
    L::Resource: crate::DeviceMemoryResource + Send + Sync,
{
    type Resource = crate::AnyResource;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(match self.0 {
            Some(layer) => std::sync::Arc::new(layer.layer(upstream)?),
            None => std::sync::Arc::new(upstream),
        })
    }
}
