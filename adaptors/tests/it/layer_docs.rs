//! Tests that the documentation of each layer lists its options as `--list-layers` prints them.

use millpond_testkit::layer_docs;

#[test]
fn pages_of_layers_are_as_their_entries() {
    layer_docs::check(concat!(env!("CARGO_MANIFEST_DIR"), "/layers"), millpond_adaptors::LAYERS);
}
