//! Gives the memory of stacks to Prometheus and to OpenTelemetry.
//!
//! A [`Metrics`] sees the default resource of each device, and the stacks that the program registers with a
//! name. It also sees all [budgets](millpond_adaptors::budget) of the process, and the memory of each device
//! that has such a stack. It keeps no stack alive. The metrics of a dropped stack are gone.
//!
//! | you want | call |
//! |---|---|
//! | text for Prometheus, in the OpenMetrics format | `Metrics::render` (feature `prometheus`) |
//! | a collector for a registry of the crate `prometheus-client` | `Metrics` is one (feature `prometheus`) |
//! | instruments of an OpenTelemetry meter | `Metrics::observe` (feature `opentelemetry`) |
//! | the values, for another system | [`Metrics::families`] |
//!
//! ```
//! use millpond_core::DriverHandle;
//! use millpond_core::stack::{LayerTable, StackSpec};
//! use millpond_driver::sim::{SimConfig, SimDevice};
//! use millpond_metrics::Metrics;
//!
//! let layers = LayerTable::new(millpond_resources::LAYERS.iter().copied());
//! let device: DriverHandle = SimDevice::new(SimConfig::h200());
//! let pool = "cuda+pool:initial=2MiB".parse::<StackSpec>()?.build(&layers, &device)?;
//!
//! let metrics = Metrics::new();
//! metrics.register(&pool, "train")?;
//! let reserved = metrics.family("millpond.memory.reserved").expect("a metric of this crate");
//! assert!(reserved.samples.iter().any(|sample| sample.value == 2 << 20));
//! # Ok::<(), millpond_core::Error>(())
//! ```
//!
//! # Names
//! The metrics have the names, units and types of OpenTelemetry. Prometheus' names are made from them by
//! OpenTelemetry's rules: `millpond.memory.live` in `By` is `millpond_memory_live_bytes`, and the counter
//! `millpond.allocations` is `millpond_allocations_total`. So one dashboard serves both.
//!
#![doc = include_str!("../metrics.md")]
//!
//! # Cost
//! Allocations and frees do nothing for metrics. A scrape reads the figures that the stacks keep anyway, as
//! [`memory_figures`](millpond_core::DeviceMemoryResourceExt::memory_figures) does. It takes the lock of each
//! pool for a moment, and asks the driver once for each device and each pool of the driver. While a scrape
//! reads a stack, it keeps the stack alive. If the last owner drops the stack during that time, the scrape
//! drops the stack later.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod catalogue;
mod family;
mod now;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod pool_figures;
#[cfg(feature = "prometheus")]
mod prometheus;
mod registered;

pub use catalogue::Kind;
pub use family::{Family, Sample};
#[cfg(feature = "prometheus")]
#[cfg_attr(docsrs, doc(cfg(feature = "prometheus")))]
pub use prometheus::CONTENT_TYPE;
pub use registered::{DEFAULT_STACK, Metrics};
