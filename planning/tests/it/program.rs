//! Tests plans of programs as text: round trips and refusals.

use std::io::{self, BufReader, Read};

use millpond_planning::{
    Block, LogHash, MOST_ALLOCATIONS, Options, PlanParts, PlannedAllocation, PlannedSlot, Problem,
    ProgramPlan, plan,
};
use proptest::prelude::*;

fn block(bytes: u64, stream: u32, life: u32, offset: u64) -> PlannedAllocation {
    let slot = life.try_into().ok().map(|life| PlannedSlot { life, offset });
    PlannedAllocation { bytes, stream, slot }
}

fn parts() -> PlanParts {
    PlanParts {
        log: LogHash([0xa7; 32]),
        alignment: 256,
        lanes: vec![1536, 512],
        bound: 1792,
        beside: 256,
        allocations: vec![
            block(1024, 0, 2, 0),
            block(512, 0, 1, 1024),
            block(256, 0, 0, 0),
            block(512, 1, 2, 0),
            block(512, 0, 1, 0),
        ],
    }
}

const TEXT: &str = "millpond plan 1
log sha256:a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7
alignment 256
streams 2
lane 1536
lane 512
bound 1792
ratio 1.14286
beside 256
allocations 5
bytes stream life offset
1024 0 2 0
512 0 1 1024
256 0 - -
512 1 2 0
512 0 1 0
";

#[test]
fn a_plan_is_written_as_it_is_read() {
    let plan = ProgramPlan::new(parts()).unwrap();
    assert_eq!(plan.to_string(), TEXT);
    assert_eq!(ProgramPlan::read(TEXT.as_bytes()).unwrap(), plan);
    assert_eq!((plan.parts().bytes(), plan.parts().ratio()), (2048, 8.0 / 7.0));
}

fn refusal(text: &[u8]) -> String {
    ProgramPlan::read(text).expect_err("the text is not a plan").to_string()
}

#[test]
fn a_wrong_line_is_named_with_the_reason() {
    let replaced = |line: usize, new: &str| {
        let mut lines: Vec<&str> = TEXT.lines().collect();
        lines[line - 1] = new;
        refusal((lines.join("\n") + "\n").as_bytes())
    };
    let cases = [
        (1, "id,lower,upper,size", "line 1: this is not a plan; a plan begins with `millpond plan 1`"),
        (1, "millpond plan 12", "line 1: unknown plan version 12; this millpond reads 1"),
        (2, "hash 1", "line 2: the line should begin with `log `"),
        (
            2,
            "log sha256:A7",
            "line 2: `sha256:A7` is not a hash; a hash is `sha256:` and 64 hexadecimal digits",
        ),
        (3, "alignment -1", "line 3: `-1` is not a whole number of at most 64 bits"),
        (3, "alignment 0", "the alignment is 0; write 1 for no alignment"),
        (4, "streams 257", "line 4: 257 streams exceed the limit of 256"),
        (4, "streams 1", "line 6: the line should begin with `bound `"),
        (4, "streams 3", "line 7: the line should begin with `lane `"),
        (
            5,
            "lane 18446744073709551615",
            "line 8: the ratio is 1.14286, but the lanes divided by the bound are",
        ),
        (7, "bound 01792", "line 7: `01792` is not a whole number of at most 64 bits"),
        (7, "bound +1792", "line 7: `+1792` is not a whole number of at most 64 bits"),
        (8, "ratio 1", "line 8: the ratio is 1, but the lanes divided by the bound are 1.14286"),
        (10, "allocations 6", "line 17: the file ends after 5 of 6 allocations"),
        (10, "allocations 4", "line 16: the file continues after its last allocation"),
        (10, "allocations 1048577", "line 10: 1048577 allocations exceed the limit of 1048576"),
        (11, "bytes stream", "line 11: the line should be `bytes stream life offset`"),
        (
            12,
            "1024 0 2",
            "line 12: the line needs 4 words, as in `bytes stream life offset`, but the number of its words \
             is 3",
        ),
        (12, "1024 0 - 0", "line 12: life and offset must both be `-`, or both be numbers"),
        (12, "1024 0 0 0", "line 12: life must be at least 1 and fit into 32 bits"),
        (12, "1024 0 4294967296 0", "line 12: life must be at least 1 and fit into 32 bits"),
        (12, "1024 0 6 0", "line 12: it lives for 6 allocations, which is more than the plan has"),
        (12, "1024 x 2 0", "line 12: `x` is not a whole number of at most 64 bits"),
        (12, "1024 1 2 0", "line 12: stream 1 comes before stream 0; number streams by first use"),
        (12, "1024 2 2 0", "line 12: there is no stream 2; the plan has 2 streams, numbered from 0"),
        (12, "1000 0 2 0", "line 12: 1000 bytes are not a positive multiple of the alignment 256"),
        (12, "0 0 2 0", "line 12: 0 bytes are not a positive multiple of the alignment 256"),
        (12, "1024 0 2 128", "line 12: the offset 128 is not a multiple of the alignment 256"),
        (12, "1024 0 2 768", "line 12: 1024 bytes at 768 end outside of its lane of 1536 bytes"),
        (12, "1024 0 2 18446744073709551360", "line 12: 1024 bytes at 18446744073709551360 end outside"),
        (13, "512 0 1 768", "line 13: it shares bytes with allocation 1, which is live at the same time"),
        (16, "512 0 5 0", "line 16: it shares bytes with allocation 1, which is live at the same time"),
        (15, "512 0 1 0", "stream 1 has no allocation"),
    ];
    for (line, new, why) in cases {
        let found = replaced(line, new);
        assert!(found.starts_with(why), "{new}: {found}");
    }
}

#[test]
fn what_is_no_text_or_has_no_end_is_refused() {
    assert_eq!(refusal(b""), "line 1: this is not a plan; a plan begins with `millpond plan 1`");
    assert_eq!(refusal(b"millpond plan 1"), "line 1: the file is truncated here");
    assert_eq!(refusal(b"millpond plan 1\n"), "line 2: the file ends before its line `log`");
    assert_eq!(refusal(b"millpond plan 1\nlog \xff\n"), "line 2: the line is not UTF-8 text");
    // A row without its line end may have lost digits.
    assert_eq!(refusal(TEXT.trim_end().as_bytes()), "line 16: the file is truncated here");
    let nothing = TEXT.replace(" 2 0\n", " - -\n").replace(" 1 0\n", " - -\n").replace(" 1 1024\n", " - -\n");
    assert_eq!(refusal(nothing.as_bytes()), "no allocation has a slot");
}

#[test]
fn endless_lines_and_files_are_not_read_to_their_end() {
    /// Counts the bytes that are read.
    struct Counted<R>(R, u64);
    impl<R: Read> Read for Counted<R> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(buffer)?;
            self.1 += read as u64;
            Ok(read)
        }
    }
    let mut endless = BufReader::new(Counted(io::repeat(b'1'), 0));
    let error = ProgramPlan::read(&mut endless).unwrap_err().to_string();
    assert_eq!(error, "line 1: the line is too long");
    assert!(endless.get_ref().1 < 1 << 16);
    let rows = TEXT.replace("allocations 5", "allocations 4");
    let mut endless = BufReader::new(Counted(rows.as_bytes().chain(io::repeat(b'\n')), 0));
    assert_eq!(
        ProgramPlan::read(&mut endless).unwrap_err().to_string(),
        "line 16: the file continues after its last allocation"
    );
    assert!(endless.get_ref().1 < 1 << 16);
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let text = BufReader::new(TEXT.as_bytes()[..20].chain(Broken));
    assert_eq!(
        ProgramPlan::read(text).unwrap_err().to_string(),
        "line 2: cannot read the line: the disk is gone"
    );
}

#[test]
fn parts_that_are_wrong_are_refused() {
    let refused = |change: &dyn Fn(&mut PlanParts)| {
        let mut parts = parts();
        change(&mut parts);
        ProgramPlan::new(parts).expect_err("the plan is wrong").to_string()
    };
    assert_eq!(
        refused(&|it| it.bound = 2049),
        "the lanes have 2048 bytes in all, which is less than the bound"
    );
    assert_eq!(refused(&|it| it.lanes[1] = u64::MAX), "the lanes together exceed 64 bits");
    assert_eq!(refused(&|it| it.lanes.resize(257, 0)), "257 streams exceed the limit of 256");
    assert_eq!(
        refused(&|it| it.allocations = vec![block(256, 0, 1, 0); MOST_ALLOCATIONS + 1]),
        "1048577 allocations exceed the limit of 1048576"
    );
    assert_eq!(
        refused(&|it| it.allocations[1].slot.as_mut().unwrap().offset = 512),
        "allocation 2: it shares bytes with allocation 1, which is live at the same time"
    );
}

/// Returns plans of random allocations on one or two streams, in the memory that a planner gives them.
fn plans() -> impl Strategy<Value = ProgramPlan> {
    let row = (1..40u64, any::<bool>(), 0..12u32);
    prop::collection::vec(row, 1..40).prop_map(|rows| {
        let length = rows.len() as u32;
        let mut allocations: Vec<_> = (0..)
            .zip(&rows)
            // The first allocation is on stream 0.
            .map(|(at, (size, other, life))| {
                let life = if at == 0 { 1 } else { (*life).min(length - at) };
                block(size * 256, u32::from(at > 0 && *other), life, 0)
            })
            .collect();
        let streams = allocations.iter().map(|it| it.stream + 1).max().unwrap();
        let lanes = (0..streams).map(|stream| {
            let of_lane: Vec<usize> = (0..rows.len())
                .filter(|&at| allocations[at].stream == stream && allocations[at].slot.is_some())
                .collect();
            let block = |&at: &usize| {
                let life = u64::from(allocations[at].slot.unwrap().life.get());
                Block { birth: at as u64, death: at as u64 + life, size: allocations[at].bytes, stream: 0 }
            };
            let problem = Problem::new(of_lane.iter().map(block).collect(), 256).unwrap();
            let found = plan(&problem, &Options::default().rounds(1).threads(1));
            for (at, offset) in of_lane.iter().zip(&found.offsets) {
                allocations[*at].slot.as_mut().unwrap().offset = *offset;
            }
            (found.height, found.bound)
        });
        let (lanes, bounds): (Vec<u64>, Vec<u64>) = lanes.collect();
        let (log, bound) = (LogHash([1; 32]), bounds.iter().sum());
        ProgramPlan::new(PlanParts { log, alignment: 256, lanes, bound, beside: 0, allocations }).unwrap()
    })
}

proptest! {
    #[test]
    fn what_a_planner_placed_comes_back(plan in plans()) {
        prop_assert_eq!(ProgramPlan::read(plan.to_string().as_bytes()).unwrap(), plan);
    }

    /// A damaged file is refused with a message, or is another valid plan.
    #[test]
    fn a_damaged_file_is_refused_or_right(
        plan in plans(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8, any::<u8>()), 1..6),
    ) {
        let mut text = plan.to_string().into_bytes();
        for (at, kind, byte) in damage {
            let at = at.index(text.len());
            match kind {
                0 => text[at] = byte,
                1 => text[at] = b'0' + byte % 10,
                2 => drop(text.remove(at)),
                _ => text.insert(at, b"0123456789 -\n"[usize::from(byte) % 13]),
            }
            if text.is_empty() {
                break;
            }
        }
        match ProgramPlan::read(text.as_slice()) {
            Ok(read) => {
                prop_assert_eq!(ProgramPlan::new(read.parts().clone()).unwrap(), read.clone());
                prop_assert_eq!(ProgramPlan::read(read.to_string().as_bytes()).unwrap(), read);
            }
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
        }
    }

    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(ProgramPlan::read(bytes.as_slice()).is_err());
    }

    /// A plan that is cut anywhere is not a plan.
    #[test]
    fn a_file_that_is_cut_is_refused(plan in plans(), at in any::<prop::sample::Index>()) {
        let text = plan.to_string();
        let cut = &text.as_bytes()[..at.index(text.len())];
        prop_assert!(ProgramPlan::read(cut).is_err());
    }
}
