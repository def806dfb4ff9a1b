//! The command line of `millpond-replay` for a program with a layer of its own:
//! `cargo run -p millpond-replay --example own_layers -- app.csv --stack cuda+own_pool`

use std::process::ExitCode;
use std::sync::Arc;

use millpond_core::Layer;
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_replay::{cli, compare};
use millpond_resources::PoolLayer;

/// The layer behind `own_pool` in a stack's text: here, a pool with the program's settings.
const OWN_POOL: LayerEntry = LayerEntry {
    name: "own_pool",
    about: "the pool of this program",
    params: &[("initial", "bytes taken at once (default 64MiB)")],
    kind: LayerKind::Layer(|params, upstream| {
        let initial = params.bytes("initial", &**upstream.driver())?.unwrap_or(64 << 20);
        Ok(Arc::new(PoolLayer::new().initial_bytes(initial).layer(upstream)?))
    }),
};

fn main() -> ExitCode {
    cli::main(&compare::layers().with([OWN_POOL]))
}
