//! Places minimalloc's hard problems into the capacity that each fits into.

use std::path::Path;
use std::time::Duration;

use millpond_planning::{Fit, MinimallocCsv, Options, bounds, fits, validate};

const CAPACITY: u64 = 1 << 20;

fn fits_from_a_file(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/minimalloc/mm_{name}.csv"));
    let problem = MinimallocCsv::parse(&std::fs::read_to_string(path).unwrap()).unwrap().problem().unwrap();
    assert!(problem.blocks().len() >= 150, "{} blocks", problem.blocks().len());
    assert!(bounds(&problem).bytes <= CAPACITY);
    // The rounds end the search, on any machine.
    let options = Options::default().time(Duration::from_secs(3600));
    let Fit::Fits(plan) = fits(&problem, CAPACITY, &options) else { panic!("no placement was found") };
    let height = validate(&problem, &plan.offsets).unwrap();
    assert_eq!(height, plan.height);
    assert!(height <= CAPACITY, "{height}");
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
