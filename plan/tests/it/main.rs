//! Tests the layer's documentation page.

mod layer_docs;
