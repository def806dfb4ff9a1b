//! The common code of the fuzz targets.

mod recording;
mod world;

pub use recording::{check, import};
pub use world::World;
