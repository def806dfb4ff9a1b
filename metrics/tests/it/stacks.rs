//! Tests which stacks, layers, budgets and devices have metrics.

use std::sync::Arc;

use millpond_adaptors::{BudgetLayer, StatisticsLayer};
use millpond_core::{AnyResource, DeviceMemoryResourceExt, DriverError, ErrorKind};
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
    let counted = build("cuda+statistics", &device());
    metrics.register(&counted, "counted").unwrap();
    let block = counted.allocate_bytes(MIB, S).unwrap();
    counted.allocate_bytes(1 << 50, S).unwrap_err();
    for (name, value) in [(LIVE, MIB), ("millpond.allocations", 1)] {
        assert_eq!(of(&metrics, name, &counted, &[]), [value], "{name}");
    }
    for name in ["millpond.memory.reserved", "millpond.memory.largest_free", "millpond.requests"] {
        assert!(of(&metrics, name, &counted, &[]).is_empty(), "{name}");
    }
    free(&counted, block, MIB);
}

/// A stack without figures is refused, instead of having no metrics without a word.
#[test]
fn a_stack_without_figures_is_told_what_to_add() {
    let metrics = Metrics::new();
    for text in ["cuda", "managed", "cuda+recording", "cuda_async_view", "cuda+retry"] {
        let error = metrics.register(&build(text, &device()), "plain").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let advice = format!("`{text}` keeps no figures, so it has no metrics; add the layer `statistics`");
        assert!(error.to_string().contains(&advice), "{error}");
    }
    for text in ["cuda+statistics", "cuda+tracking", "cuda+limiting:limit=1MiB", "cuda_async", "cuda+pool"] {
        let stack = build(text, &device());
        metrics.register(&stack, "counted").unwrap();
        assert!(metrics.families().iter().any(|it| !of(&metrics, it.name, &stack, &[]).is_empty()), "{text}");
    }
}

/// The driver counts the memory of its pools, so a stack over its own pool shows these figures.
#[test]
fn a_pool_of_the_driver_has_the_drivers_figures() {
    let metrics = Metrics::new();
    let (plain, counted) = (build("cuda_async", &device()), build("cuda_async+statistics", &device()));
    metrics.register(&plain, "plain").unwrap();
    metrics.register(&counted, "counted").unwrap();
    for (stack, live) in [(&plain, 2 * MIB), (&counted, 2 * MIB - 1)] {
        let block = stack.allocate_bytes(2 * MIB - 1, S).unwrap();
        let value = |name: &str| of(&metrics, &format!("millpond.memory.{name}"), stack, &[]);
        assert_eq!((value("live"), value("peak")), (vec![live], vec![live]), "{stack}");
        let (reserved, peak) = (value("reserved"), value("reserved_peak"));
        assert!(reserved == peak && reserved.len() == 1 && reserved[0] >= live, "{stack}: {reserved:?}");
        free(stack, block, 2 * MIB - 1);
    }
}

/// Every failed request that the program sees counts once, whichever layer refused it. A request that a layer
/// above served does not count.
#[test]
fn each_failed_request_counts_once_by_kind() {
    let budget = |name: &str| format!("budget:name={name},limit=4MiB");
    for (text, kind) in [
        ("cuda_async".to_owned(), "memory"),
        ("cuda_async_pinned".to_owned(), "memory"),
        ("cuda+statistics".to_owned(), "memory"),
        ("cuda+tracking".to_owned(), "memory"),
        ("cuda+pool:max=4MiB".to_owned(), "memory"),
        ("cuda+arena".to_owned(), "memory"),
        ("cuda+fixed_size:block_size=1MiB".to_owned(), "memory"),
        ("cuda+binning:bins=1MiB".to_owned(), "memory"),
        ("cuda+pool+capture_scopes".to_owned(), "memory"),
        ("cuda+pool+aligned:alignment=4096".to_owned(), "memory"),
        ("cuda+limiting:limit=4MiB".to_owned(), "limit"),
        ("cuda+pool+limiting:limit=4MiB".to_owned(), "limit"),
        ("cuda+limiting:limit=4MiB+pool".to_owned(), "limit"),
        ("cuda+limiting:limit=4MiB+pool+statistics+recording".to_owned(), "limit"),
        ("cuda+limiting:limit=4MiB+thread_safe+retry:timeout=0s".to_owned(), "limit"),
        (format!("cuda+pool+{}", budget("counted")), "budget"),
        (format!("cuda+pool+{}+tracking+statistics", budget("counted")), "budget"),
        (format!("cuda+pool+{}+limiting:limit=4194304GiB", budget("counted")), "budget"),
        (format!("cuda+{}+fallback:to=(cuda+limiting:limit=4MiB)", budget("counted")), "budget"),
    ] {
        let (metrics, stack) = (Metrics::new(), build(&text, &device()));
        metrics.register(&stack, "train").unwrap();
        let failures = |kind| of(&metrics, "millpond.failures", &stack, &[("kind", kind)]);
        for failed in 1..4 {
            let small = stack.allocate_bytes(1000, S).unwrap();
            assert!(stack.allocate_bytes(1 << 50, S).unwrap_err().is_out_of_memory(), "{text}");
            free(&stack, small, 1000);
            for known in ["memory", "limit", "budget"] {
                assert_eq!(failures(known), [if known == kind { failed } else { 0 }], "{known} of {text}");
            }
        }
    }
    let (metrics, stack) = (Metrics::new(), build("cuda+limiting:limit=4MiB+fallback:to=(cuda)", &device()));
    metrics.register(&stack, "train").unwrap();
    let block = stack.allocate_bytes(8 * MIB, S).unwrap();
    let value = |name: &str, labels: &[(&str, &str)]| of(&metrics, name, &stack, labels);
    assert_eq!(value("millpond.failures", &[]), [0, 0, 0], "the fallback served it");
    assert_eq!(value("millpond.layer.failures", &[("layer", "limiting")]), [1]);
    free(&stack, block, 8 * MIB);
}

/// Two budgets over one pool: the pool's figures appear once, and name both stacks.
#[test]
fn a_shared_pool_counts_once() {
    let (device, metrics) = (device(), Metrics::new());
    let pool = build("cuda+pool:initial=4MiB", &device);
    let share = |name: &str| -> AnyResource {
        Arc::clone(&pool).layer(BudgetLayer::new(name, 8 * MIB)).unwrap().into_any()
    };
    let (etl, train) = (share("shared etl"), share("shared train"));
    metrics.register(&train, "train").unwrap();
    metrics.register(&etl, "etl").unwrap();
    let blocks = [&etl, &train].map(|stack| (stack, stack.allocate_bytes(MIB, S).unwrap()));
    train.allocate_bytes(16 * MIB, S).unwrap_err();
    let both = [("stack", "etl + train")];
    let value = |name: &str, labels: &[(&str, &str)]| of(&metrics, name, &pool, labels);
    for (name, sum) in [(LIVE, 2 * MIB), ("millpond.memory.reserved", 4 * MIB), ("millpond.allocations", 2)] {
        assert_eq!((value(name, &[]), value(name, &both)), (vec![sum], vec![sum]), "{name}");
    }
    assert_eq!(value("millpond.layer.live", &[]), [2 * MIB], "the layer appears once, too");
    let budget = |name: &str, stack: &str| value(name, &[("stack", stack), ("layer", "budget")]);
    assert_eq!(
        (budget("millpond.layer.usage", "etl"), budget("millpond.layer.usage", "train")),
        (vec![MIB], vec![MIB])
    );
    let failures = |stack: &str| value("millpond.failures", &[("stack", stack), ("kind", "budget")]);
    assert_eq!((failures("etl"), failures("train")), (vec![0], vec![1]), "each has its own");
    metrics.register(&pool, "pool").unwrap();
    assert_eq!(value(LIVE, &[("stack", "etl + pool + train")]), [2 * MIB]);
    assert!(metrics.register(&etl, "etl + train").unwrap_err().to_string().contains("joins the names"));
    blocks.into_iter().for_each(|(stack, block)| free(stack, block, MIB));
    // Plain memory below keeps no figures, so nothing is shared.
    let cuda = build("cuda", &device);
    let [a, b] = ["a", "b"].map(|name| {
        let stack = Arc::clone(&cuda).layer(StatisticsLayer::new()).unwrap().into_any();
        metrics.register(&stack, name).unwrap();
        stack
    });
    let block = a.allocate_bytes(MIB, S).unwrap();
    assert_eq!((value(LIVE, &[("stack", "a")]), value(LIVE, &[("stack", "b")])), (vec![MIB], vec![0]));
    free(&a, block, MIB);
    drop(b);
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
    let stack = build("cuda+statistics", &(sim.clone() as _));
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
