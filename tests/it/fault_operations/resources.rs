//! The operations of `millpond-resources` and `millpond-adaptors` beyond the trait, and of stacks as text.

use std::sync::Arc;
use std::time::Duration;

use millpond::adaptors::budget::Zero;
use millpond::adaptors::{
    AlignedLayer, BudgetLayer, FallbackResourceAdaptor, LimitingLayer, PrefetchResourceAdaptor, RetryLayer,
};
use millpond::plan::{PlanMemoryResource, ProgramPlan};
use millpond::resources::share::ImportedBlock;
use millpond::resources::{
    ArenaMemoryResource, ArenaOptions, BinningLayer, CaptureScope, CudaMemoryResource, Decay,
    FixedSizeMemoryResource, FixedSizeOptions, HostMemoryResource, HostResource, ManagedMemoryResource,
    PageableHostMemoryResource, PagesMode, PinnedHostMemoryResource, PoolLayer, PoolMemoryResource,
    PoolOptions, SamHeadroomMemoryResource, Share, SystemMemoryResource, get_current_device_resource,
    get_per_device_resource, replace_per_device_resource, reset_current_device_resource,
    reset_per_device_resource, set_current_device_resource, set_per_device_resource,
};
use millpond::stack::StackSpec;
use millpond::{AnyResource, ByteSize, DeviceMemoryResource, DeviceMemoryResourceExt, Layout, Result};
use millpond_testkit::faults::{Operation, Stage};

use super::support::{act, on_stage, use_of};

const MIB: u64 = 1 << 20;

fn cuda(stage: &Stage) -> CudaMemoryResource {
    CudaMemoryResource::new(stage.driver())
}

fn pool(stage: &Stage, layer: PoolLayer) -> Result<PoolMemoryResource<CudaMemoryResource>> {
    cuda(stage).layer(layer)
}

fn build(stage: &Stage, text: &str) -> Result<AnyResource> {
    text.parse::<StackSpec>()?.build(&millpond::layers(), &stage.driver())
}

/// Returns a plan for the requests of `use_of`.
fn plan() -> ProgramPlan {
    let lines = [
        "millpond plan 1\nlog sha256:",
        "0000000000000000000000000000000000000000000000000000000000000000\n",
        "alignment 256\nstreams 2\nlane 1049600\nlane 1049600\nbound 2099200\nratio 1.00000\nbeside 0\n",
        "allocations 4\nbytes stream life offset\n",
        "1024 0 2 0\n1048576 0 1 1024\n1024 1 2 0\n1048576 1 1 1024\n",
    ];
    ProgramPlan::read(lines.concat().as_bytes()).expect("it is a plan")
}

/// Builds a stack from its text, and uses it.
macro_rules! stack {
    ($text:literal) => {
        Operation::new(concat!("StackSpec::build of ", $text), |stage| {
            on_stage(stage, |stage| use_of(&build(stage, $text)?, stage))
        })
    };
}

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::new("PoolMemoryResource::new", |stage| {
        on_stage(stage, |stage| {
            let options = PoolOptions::default().initial_bytes(4 * MIB).maximum_bytes(Some(64 * MIB));
            use_of(&PoolMemoryResource::new(cuda(stage), options)?, stage)
        })
    }),
    Operation::new("PoolMemoryResource::new (over regions)", |stage| {
        on_stage(stage, |stage| use_of(&pool(stage, PoolLayer::new().pages(PagesMode::Off))?, stage))
    }),
    Operation::with_peer("PoolMemoryResource::add_peer", |stage| {
        let pool = pool(stage, PoolLayer::new().initial_bytes(4 * MIB))?;
        on_stage(stage, move |stage| {
            pool.add_peer(stage.peer().device())?;
            use_of(&pool, stage)
        })
    }),
    Operation::new("PoolMemoryResource::decay_step", |stage| {
        let pool = pool(stage, PoolLayer::new().decay(Decay::Over(Duration::from_millis(1))))?;
        let mut now = Duration::ZERO;
        on_stage(stage, move |stage| {
            use_of(&pool, stage)?;
            for _ in 0..20 {
                now += Duration::from_millis(1);
                pool.decay_step(now)?;
            }
            Ok(())
        })
    }),
    Operation::new("PoolMemoryResource::release_unused", |stage| {
        let pool = pool(stage, PoolLayer::new())?;
        on_stage(stage, move |stage| {
            use_of(&pool, stage)?;
            pool.release_unused(0, stage.a()).map(drop)
        })
    }),
    Operation::new("PoolMemoryResource::export_block", |stage| {
        let pool = pool(stage, PoolLayer::new().share(Share::Fd))?;
        let ptr = pool.allocate_bytes(3 * MIB, stage.a())?;
        act(move || pool.export_block(ptr, 3 * MIB).map(drop))
    }),
    Operation::new("ImportedBlock::open", |stage| {
        let pool = pool(stage, PoolLayer::new().share(Share::Fd))?;
        let ptr = pool.allocate_bytes(9 * MIB, stage.a())?;
        let driver = stage.driver();
        act(move || {
            let (description, descriptors) = pool.export_block(ptr, 9 * MIB)?.into_parts();
            ImportedBlock::open(&driver, &description, descriptors).map(drop)
        })
    }),
    Operation::new("DeviceMemoryResource::trim of a pool", |stage| {
        let pool = pool(stage, PoolLayer::new())?;
        on_stage(stage, move |stage| {
            use_of(&pool, stage)?;
            pool.trim(0).map(drop)
        })
    }),
    Operation::new("DeviceMemoryResource::memory_info of a pool", |stage| {
        let pool = pool(stage, PoolLayer::new())?;
        act(move || pool.memory_info().map(drop))
    }),
    Operation::new("DeviceMemoryResourceExt::memory_report", |stage| {
        let pool = pool(stage, PoolLayer::new().initial_bytes(4 * MIB))?;
        on_stage(stage, move |stage| {
            drop(pool.memory_report());
            use_of(&pool, stage)
        })
    }),
    Operation::new("DeviceMemoryResourceExt::allocate_sync", |stage| {
        let pool = pool(stage, PoolLayer::new())?;
        act(move || {
            let ptr = pool.allocate_sync(Layout::new(MIB))?;
            // SAFETY: the block came from this pool with this layout, and nothing uses it.
            unsafe { pool.deallocate_sync(ptr, Layout::new(MIB)) };
            Ok(())
        })
    }),
    Operation::new("ArenaMemoryResource::new", |stage| {
        on_stage(stage, |stage| {
            let resource = ArenaMemoryResource::new(cuda(stage), ArenaOptions::default())?;
            use_of(&resource, stage)
        })
    }),
    Operation::new("FixedSizeMemoryResource::new", |stage| {
        on_stage(stage, |stage| {
            let options = FixedSizeOptions::default().preallocated_blocks(2);
            use_of(&FixedSizeMemoryResource::new(cuda(stage), options)?, stage)
        })
    }),
    Operation::new("PlanMemoryResource::new", |stage| {
        on_stage(stage, |stage| {
            let stack = PlanMemoryResource::new(pool(stage, PoolLayer::new())?, &plan())?;
            (0..4).try_for_each(|_| use_of(&stack, stage))
        })
    }),
    Operation::new("PlanMemoryResource::open", |stage| {
        let plan = include_str!("../../../testkit/plans/equal_1024.plan");
        let file = std::env::temp_dir().join(format!("millpond-faults-{}.plan", std::process::id()));
        std::fs::write(&file, plan).expect("the folder for temporary files is writable");
        on_stage(stage, move |stage| {
            let stack = PlanMemoryResource::open(pool(stage, PoolLayer::new())?, &file)?;
            (0..4).try_for_each(|_| use_of(&stack, stage))
        })
    }),
    Operation::new("BinningLayer (as a layer)", |stage| {
        on_stage(stage, |stage| {
            use_of(&cuda(stage).layer(BinningLayer::new().add_bin(2 * MIB).exponents(18, 20))?, stage)
        })
    }),
    // --- Memory of the driver and of the host ---
    Operation::new("CudaMemoryResource::new", |stage| on_stage(stage, |stage| use_of(&cuda(stage), stage))),
    Operation::new("CudaMemoryResource::memory_info", |stage| {
        let resource = cuda(stage);
        act(move || resource.memory_info().map(drop))
    }),
    Operation::new("CudaMemoryResource (a free that a capture refused)", |stage| {
        let resource = cuda(stage);
        on_stage(stage, move |stage| {
            let ptr = resource.allocate_bytes(MIB, stage.a())?;
            drop(stage.device().begin_capture(stage.a()));
            // SAFETY: the block came from this resource with this size, and nothing uses it.
            unsafe { resource.deallocate_bytes(ptr, MIB, stage.a()) };
            stage.device().end_capture(stage.a());
            use_of(&resource, stage)
        })
    }),
    Operation::new("ManagedMemoryResource::new", |stage| {
        on_stage(stage, |stage| use_of(&ManagedMemoryResource::new(stage.driver()), stage))
    }),
    Operation::new("PinnedHostMemoryResource::new", |stage| {
        on_stage(stage, |stage| use_of(&PinnedHostMemoryResource::new(stage.driver()), stage))
    }),
    Operation::new("PinnedHostMemoryResource::memory_info", |stage| {
        let resource = PinnedHostMemoryResource::new(stage.driver());
        act(move || resource.memory_info().map(drop))
    }),
    Operation::new("PageableHostMemoryResource::new", |stage| {
        on_stage(stage, |stage| use_of(&PageableHostMemoryResource::new(stage.driver()), stage))
    }),
    Operation::new("SystemMemoryResource::new", |stage| {
        on_stage(stage, |stage| use_of(&SystemMemoryResource::new(stage.driver())?, stage))
    }),
    Operation::new("SystemMemoryResource::memory_info", |stage| {
        let resource = SystemMemoryResource::new(stage.driver())?;
        act(move || resource.memory_info().map(drop))
    }),
    Operation::new("SamHeadroomMemoryResource::new", |stage| {
        on_stage(stage, |stage| use_of(&SamHeadroomMemoryResource::new(stage.driver(), MIB)?, stage))
    }),
    Operation::new("HostResource::new", |stage| {
        on_stage(stage, |stage| {
            let resource = HostResource::new(PinnedHostMemoryResource::new(stage.driver()))?;
            let block = resource.allocate(Layout::new(1000))?;
            // SAFETY: the block came from this resource with this layout, and nothing uses it.
            unsafe { resource.deallocate(block, Layout::new(1000)) };
            Ok(())
        })
    }),
    Operation::new("HostMemoryResource::allocate", |stage| {
        let resource = HostResource::new(build(stage, "pinned_host+pool:max=8MiB")?)?;
        act(move || {
            let block = resource.allocate(Layout::new(1000))?;
            // SAFETY: the block came from this resource with this layout, and nothing uses it.
            unsafe { resource.deallocate(block, Layout::new(1000)) };
            Ok(())
        })
    }),
    // --- The default resources ---
    Operation::new("get_per_device_resource", |stage| {
        on_stage(stage, |stage| use_of(&get_per_device_resource(stage.driver().device())?, stage))
    }),
    Operation::new("set_per_device_resource", |stage| {
        on_stage(stage, |stage| {
            let (id, pool) = (stage.driver().device(), pool(stage, PoolLayer::new())?);
            let before = set_per_device_resource(id, pool.into_any())?;
            let used = get_per_device_resource(id).and_then(|resource| use_of(&resource, stage));
            set_per_device_resource(id, before)?;
            used
        })
    }),
    Operation::new("replace_per_device_resource", |stage| {
        on_stage(stage, |stage| {
            let (id, pool) = (stage.driver().device(), pool(stage, PoolLayer::new())?);
            let before = replace_per_device_resource(id, pool.into_any())?;
            let used = get_per_device_resource(id).and_then(|resource| use_of(&resource, stage));
            before.map_or_else(|| reset_per_device_resource(id), |it| set_per_device_resource(id, it))?;
            used
        })
    }),
    Operation::new("reset_per_device_resource", |stage| {
        on_stage(stage, |stage| reset_per_device_resource(stage.driver().device()).map(drop))
    }),
    Operation::new("get_current_device_resource", |stage| {
        on_stage(stage, |stage| {
            stage.device().make_current();
            use_of(&get_current_device_resource()?, stage)
        })
    }),
    Operation::new("set_current_device_resource", |stage| {
        on_stage(stage, |stage| {
            stage.device().make_current();
            set_current_device_resource(cuda(stage).into_any()).map(drop)
        })
    }),
    Operation::new("reset_current_device_resource", |stage| {
        on_stage(stage, |stage| {
            stage.device().make_current();
            reset_current_device_resource().map(drop)
        })
    }),
    // --- Adaptors ---
    Operation::new("AlignedLayer (as a layer)", |stage| {
        let resource = pool(stage, PoolLayer::new())?.layer(AlignedLayer::new(4096).threshold_bytes(0))?;
        on_stage(stage, move |stage| use_of(&resource, stage))
    }),
    Operation::new("BudgetLayer (as a layer)", |stage| {
        on_stage(stage, |stage| {
            let layer = BudgetLayer::new("job", ByteSize::PercentOfFree(50.0)).zero(Zero::Handover);
            use_of(&cuda(stage).layer(layer)?, stage)
        })
    }),
    Operation::new("BudgetLayer::open", |stage| {
        on_stage(stage, |stage| {
            let layer = BudgetLayer::new("job", ByteSize::PercentOfFree(50.0));
            layer.open(&*stage.driver()).map(drop)
        })
    }),
    Operation::new("FallbackResourceAdaptor::new", |stage| {
        on_stage(stage, |stage| {
            let upstream = pool(stage, PoolLayer::new().maximum_bytes(MIB))?;
            let fallback = ManagedMemoryResource::new(stage.driver());
            use_of(&FallbackResourceAdaptor::new(upstream, fallback)?, stage)
        })
    }),
    Operation::new("LimitingLayer (as a layer)", |stage| {
        on_stage(stage, |stage| {
            use_of(&cuda(stage).layer(LimitingLayer::new(ByteSize::PercentOfFree(50.0)))?, stage)
        })
    }),
    Operation::new("PrefetchResourceAdaptor::new", |stage| {
        on_stage(stage, |stage| {
            use_of(&PrefetchResourceAdaptor::new(ManagedMemoryResource::new(stage.driver())), stage)
        })
    }),
    Operation::new("RetryLayer (as a layer)", |stage| {
        let layer = RetryLayer::new().timeout(Duration::from_micros(1));
        let resource = Arc::new(pool(stage, PoolLayer::new())?.layer(layer)?);
        on_stage(stage, move |stage| use_of(&resource, stage))
    }),
    // --- Captures ---
    Operation::new("CaptureScope::begin", |stage| {
        let stack = build(stage, "cuda+pool+capture_scopes")?;
        on_stage(stage, move |stage| {
            let scope = CaptureScope::of(&stack)?;
            let opened = scope.begin(stage.a())?;
            let used = use_of(&stack, stage);
            drop(opened.end());
            used
        })
    }),
    // --- Stacks as text ---
    Operation::new("ByteSize::resolve", |stage| {
        on_stage(stage, |stage| ByteSize::PercentOfFree(10.0).resolve(&*stage.driver()).map(drop))
    }),
    stack!("cuda+pool:initial=10%,max=75%+statistics+tracking"),
    stack!("cuda+pool:pages=off,initial=10%+limiting:limit=50%"),
    stack!("cuda+arena:size=20%"),
    stack!("managed+pool:max=50%+prefetch"),
    stack!("cuda_async:initial=10%,max=75%+thread_safe"),
    stack!("system+pool+aligned:alignment=4KiB"),
    stack!("sam_headroom:headroom=10%+logging:file=/dev/null"),
    stack!("pinned_host+pool:max=10%+fallback:to=(host)"),
];
