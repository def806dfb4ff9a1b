//! Places minimalloc's hard problems into the capacity that each fits into.

use std::path::Path;
use std::time::Duration;

use millpond_planning::{Fit, MinimallocCsv, Options, Problem, bounds, fits, validate};

const CAPACITY: u64 = 1 << 20;

fn csv(name: &str) -> MinimallocCsv {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/minimalloc/mm_{name}.csv"));
    MinimallocCsv::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn fits_from_a_file(name: &str) {
    let problem = csv(name).problem().unwrap();
    assert!(problem.blocks().len() >= 150, "{} blocks", problem.blocks().len());
    assert!(bounds(&problem).bytes <= CAPACITY);
    // The rounds end the search, on any machine.
    let options = Options::default().time(Duration::from_secs(3600));
    let Fit::Fits(plan) = fits(&problem, CAPACITY, &options) else { panic!("no placement was found") };
    let height = validate(&problem, &plan.offsets).unwrap();
    assert_eq!(height, plan.height);
    assert!(height <= CAPACITY, "{height}");
}

/// One stream needs no order with itself.
#[test]
fn one_stream_is_placed_as_in_host_order() {
    for name in ["A", "G"] {
        let csv = csv(name);
        let alone = Problem::stream_safe(csv.blocks(), csv.alignment().unwrap(), Vec::new()).unwrap();
        // Few rounds: no time ends them, and both placements depend on the seed alone.
        let options = Options::default().time(Duration::from_secs(3600)).rounds(3);
        for capacity in [CAPACITY, 2 * CAPACITY] {
            let [alone, in_host_order] =
                [&alone, &csv.problem().unwrap()].map(|problem| fits(problem, capacity, &options));
            assert_eq!(alone, in_host_order, "{name}, {capacity}");
        }
    }
}

macro_rules! problems {
    ($($test:ident $name:literal)*) => {
        $(
            #[test]
            fn $test() {
                fits_from_a_file($name);
            }
        )*
    };
}

problems! { a "A" b "B" c "C" d "D" e "E" f "F" g "G" h "H" i "I" j "J" k "K" }
