//! The fuzz targets in one program, because they share most of their code. `MILLPOND_FUZZ` names the target.

#![no_main]

mod recording;
mod targets;
mod world;

use std::process;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use millpond_core::environment::variable;

use self::targets::TARGETS;
use self::world::World;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = variable("MILLPOND_FUZZ").unwrap_or_default();
    let name = name.to_string_lossy();
    let Some((_, run)) = TARGETS.iter().find(|(known, _)| *known == name) else {
        eprintln!(
            "MILLPOND_FUZZ=`{name}` is no target; name one of {}",
            TARGETS.map(|(known, _)| known).join(", ")
        );
        process::exit(2);
    };
    *run
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
