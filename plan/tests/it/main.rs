//! Tests of the layer's page of documentation.

mod layer_docs;
