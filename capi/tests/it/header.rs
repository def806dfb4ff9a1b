//! Tests that `include/millpond.h` matches the sources.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("the configuration is right");
    let bindings = cbindgen::Builder::new().with_config(config);
    let bindings = [
        "status",
        "device",
        "order",
        "resource",
        "layers",
        "registry",
        "callback",
        "manager",
        "framework",
        "graph_pools",
        "cached",
        "debug_log",
        "throwing",
    ]
    .into_iter()
    .fold(bindings, |bindings, module| bindings.with_src(root.join(format!("src/{module}.rs"))))
    .generate()
    .expect("the sources can be read");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).expect("a header is text");
    let file = root.join("include/millpond.h");
    if std::env::var_os("MILLPOND_WRITE").is_some() {
        std::fs::write(&file, &made).expect("the header can be written");
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        known == made,
        "include/millpond.h is outdated; run MILLPOND_WRITE=1 cargo test -p millpond-capi --test it header::"
    );
}
