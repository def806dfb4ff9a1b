//! Plans of recordings for the layer `plan`.

use millpond_planning::{Options, ProgramPlan};
use millpond_snapshot::placement::{Request, Sharing, for_layer};
use millpond_snapshot::recording::Recording;

use crate::{HEADER, read};

fn plan_of(recording: &Recording) -> ProgramPlan {
    let options = Options::default().rounds(1);
    let request = Request::new(Sharing::StreamSafe).options(options);
    for_layer(recording, &request).unwrap().1.unwrap()
}

fn log(rows: &[&str]) -> Recording {
    let rows = rows.iter().map(|row| format!("1,00:00:00.000001,{row}\n"));
    read(format!("{HEADER}{}", rows.collect::<String>()).as_bytes()).unwrap()
}

#[test]
fn the_hash_is_of_sizes_streams_births_and_deaths() {
    let hash = |rows: &[&str]| plan_of(&log(rows)).parts().log.to_string();
    let rows = ["allocate,0x10,5120,1", "allocate,0x20,700,2", "free,0x10,5120,1", "allocate,0x30,64,1"];
    // printf '5120 0 0 2\n700 1 1 -\n64 0 3 -\n' | sha256sum
    let known = "sha256:7abb5154088b7b80e0424527c813c713169475d42020afd4856a4e80ff941048";
    assert_eq!(hash(&rows), known);
    let failed = ["allocate failure,0x0,9,1", "allocate,0x1000,0,1", "free,0x1000,0,1"];
    for same in [
        ["allocate,0x90,5120,7", "allocate,0x20,700,4", "free,0x90,5120,7", "allocate,0x90,64,7"].to_vec(),
        [failed.as_slice(), &rows].concat(),
    ] {
        assert_eq!(hash(&same), known, "addresses, names of streams, and what takes no memory");
    }
    for other in [
        ["allocate,0x10,5121,1", rows[1], rows[2], rows[3]],
        [rows[0], "allocate,0x20,700,1", rows[2], rows[3]],
        [rows[0], rows[2], rows[1], rows[3]],
        [rows[0], rows[1], rows[3], rows[2]],
    ] {
        assert_ne!(hash(&other), known, "{other:?}");
    }
}

#[test]
fn the_begin_and_what_other_streams_free_have_no_slots() {
    let slots = |rows: &[&str]| {
        let plan = plan_of(&log(rows));
        let slots =
            plan.parts().allocations.iter().map(|it| it.slot.map(|slot| (slot.life.get(), slot.offset)));
        (slots.collect::<Vec<_>>(), plan.parts().lanes.clone(), plan.parts().beside)
    };
    let rows = [
        "allocate,0x10,1000,1",
        "allocate,0x20,2000,1",
        "allocate,0x30,1048576,1",
        "allocate,0x40,512,2",
        "free,0x40,512,1",
        "free,0x30,1048576,1",
        "allocate,0x50,524288,1",
    ];
    // The lead has at most 1/128 of the peak.
    assert_eq!(
        slots(&rows),
        (vec![None, None, Some((2, 0)), None, Some((1, 0))], vec![1 << 20, 0], 1024 + 2048 + 512)
    );
    let (large_first, lanes, beside) = slots(&rows[2..3]);
    assert_eq!((large_first, lanes, beside), (vec![Some((1, 0))], vec![1 << 20], 0));
}
