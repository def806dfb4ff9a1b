//! Tests which stacks, layers, budgets and devices have metrics.

use std::sync::Arc;

use millpond_core::{DeviceMemoryResourceExt, DriverError, ErrorKind};
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
use millpond_metrics::Metrics;
use millpond_resources::registry;

use crate::{MIB, S, build, device, free, of};

const LIVE: &str = "millpond.memory.live";

#[test]
fn a_name_belongs_to_the_last_stack_of_a_device() {
    let (device, metrics) = (device(), Metrics::new());
    let [a, b] = [(); 2].map(|()| build("cuda+pool:initial=2MiB", &device));
    let elsewhere = build("cuda+pool", &crate::device());
    for name in ["", "default"] {
        let error = metrics.register(&a, name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("cannot have"), "{error}");
    }
    metrics.register(&elsewhere, "train").unwrap();
    metrics.register(&a, "train").unwrap();
    metrics.clone().register(&a, "train").unwrap();
    let block = b.allocate_bytes(MIB, S).unwrap();
    let live = || of(&metrics, LIVE, &a, &[("stack", "train")]);
    assert_eq!(live(), [0]);
    metrics.register(&b, "train").unwrap();
    assert_eq!(live(), [MIB]);
    assert_eq!(of(&metrics, LIVE, &elsewhere, &[]), [0], "the device is another");
    metrics.register(&a, "eval").unwrap();
    assert_eq!(of(&metrics, LIVE, &a, &[("stack", "eval")]), [0]);
    metrics.register(&a, "test").unwrap();
    assert_eq!(of(&metrics, LIVE, &a, &[]).len(), 2, "a stack has one name");
    free(&b, block, MIB);
    drop(b);
    assert_eq!(of(&metrics, LIVE, &a, &[]).len(), 1, "metrics keep no stack");
}

#[test]
fn a_default_is_seen_once() {
    let (stack, metrics) = (build("cuda+pool", &device()), Metrics::new());
    let id = stack.device();
    assert!(of(&metrics, LIVE, &stack, &[]).is_empty(), "it is no default yet");
    assert!(registry::replace_per_device_resource(id, Arc::clone(&stack)).unwrap().is_none());
    assert_eq!(of(&metrics, LIVE, &stack, &[("stack", "default")]), [0]);
    metrics.register(&stack, "train").unwrap();
    assert_eq!(of(&metrics, LIVE, &stack, &[("stack", "train")]), [0]);
    assert_eq!(of(&metrics, LIVE, &stack, &[]).len(), 1);
}

#[test]
fn a_stack_shows_only_the_figures_that_it_keeps() {
    let metrics = Metrics::new();
    let (plain, counted) = (build("cuda", &device()), build("cuda+statistics", &device()));
    metrics.register(&plain, "plain").unwrap();
    metrics.register(&counted, "counted").unwrap();
    let block = counted.allocate_bytes(MIB, S).unwrap();
    counted.allocate_bytes(1 << 50, S).unwrap_err();
    for family in metrics.families().iter().filter(|family| family.name.starts_with("millpond.")) {
        assert!(of(&metrics, family.name, &plain, &[]).is_empty(), "{}", family.name);
    }
    for (name, value) in [(LIVE, MIB), ("millpond.failures", 1), ("millpond.allocations", 1)] {
        assert_eq!(of(&metrics, name, &counted, &[]), [value], "{name}");
    }
    for name in ["millpond.memory.reserved", "millpond.memory.largest_free", "millpond.requests"] {
        assert!(of(&metrics, name, &counted, &[]).is_empty(), "{name}");
    }
    free(&counted, block, MIB);
}

#[test]
fn layers_have_limits_and_no_lists() {
    let metrics = Metrics::new();
    let stack = build(
        "cuda+pool:initial=4MiB,max=1GiB+tracking+recording+limiting:limit=64MiB+statistics",
        &device(),
    );
    metrics.register(&stack, "train").unwrap();
    let block = stack.allocate_bytes(MIB, S).unwrap();
    for (name, layer, value) in [
        ("limit", "pool", 1 << 30),
        ("limit", "limiting", 64 * MIB),
        ("usage", "limiting", MIB),
        ("live", "pool", MIB),
        ("live", "statistics", MIB),
    ] {
        let name = format!("millpond.layer.{name}");
        assert_eq!(of(&metrics, &name, &stack, &[("layer", layer)]), [value], "{name} {layer}");
    }
    let holders = |report: millpond_core::MemoryReport| -> (usize, usize) {
        report.layers.iter().fold((0, 0), |sum, it| (sum.0 + it.holders.len(), sum.1 + it.free.len()))
    };
    let (in_use, free_lists) = holders(stack.memory_report());
    assert!(in_use >= 1 && free_lists >= 1);
    assert_eq!(holders(stack.memory_figures()), (0, 0));
    free(&stack, block, MIB);
}

#[test]
fn budgets_of_a_tree_name_their_parents() {
    let (device, metrics) = (device(), Metrics::new());
    let job = build("cuda+budget:name=job,limit=8MiB", &device);
    let etl = build("cuda+budget:name=etl,limit=8MiB,parent=job", &device);
    let train = build("cuda+budget:name=train,limit=6MiB,parent=job,guaranteed=2MiB", &device);
    let block = etl.allocate_bytes(3 * MIB, S).unwrap();
    let other = train.allocate_bytes(MIB, S).unwrap();
    // No stack is registered: budgets have names of their own.
    for (name, budget, parent, value) in [
        ("usage", "job", "", 4 * MIB),
        ("usage", "etl", "job", 3 * MIB),
        ("usage", "train", "job", MIB),
        ("limit", "train", "job", 6 * MIB),
        ("guaranteed", "train", "job", 2 * MIB),
        ("guaranteed", "job", "", 0),
    ] {
        let name = format!("millpond.budget.{name}");
        let values = of(&metrics, &name, &job, &[("budget", budget), ("parent", parent)]);
        assert_eq!(values, [value], "{name} of {budget}");
    }
    free(&etl, block, 3 * MIB);
    free(&train, other, MIB);
    drop((etl, train));
    assert_eq!(of(&metrics, "millpond.budget.usage", &job, &[]), [0]);
}

#[test]
fn a_device_has_the_drivers_figures_or_none() {
    let (sim, metrics) = (SimDevice::new(SimConfig::h200()), Metrics::new());
    let stack = build("cuda", &(sim.clone() as _));
    metrics.register(&stack, "train").unwrap();
    let block = stack.allocate_bytes(512 * MIB, S).unwrap();
    let info = stack.driver().mem_get_info().unwrap();
    let (usage, limit) = ("hw.gpu.memory.usage", "hw.gpu.memory.limit");
    let id = stack.device().to_string();
    assert_eq!(of(&metrics, limit, &stack, &[("hw.id", &id)]), [info.total]);
    assert_eq!(of(&metrics, usage, &stack, &[("hw.id", &id)]), [info.total - info.free]);
    assert!(info.total - info.free >= 512 * MIB);
    sim.set_faults(FaultPlan::nth_of(CallKind::MemGetInfo, 0, DriverError::ILLEGAL_ADDRESS));
    assert!(of(&metrics, usage, &stack, &[]).is_empty());
    sim.set_faults(FaultPlan::none());
    free(&stack, block, 512 * MIB);
}
