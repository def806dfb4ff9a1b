//! Tests minimalloc's CSV: reading, writing, and errors with their line.

use millpond_planning::{Block, MinimallocCsv, Problem};

fn refused(text: &str) -> String {
    MinimallocCsv::parse(text).unwrap_err().to_string()
}

#[test]
fn columns_have_aliases_and_any_order() {
    let csv = MinimallocCsv::parse("size, end ,start,buffer_id\n64,9,3,a\n\n32,4,4,b\n").unwrap();
    let spans: Vec<_> =
        csv.rows().iter().map(|row| (row.id.as_str(), row.lower, row.upper, row.size)).collect();
    assert_eq!(spans, [("a", 3, 10, 64), ("b", 4, 5, 32)]);
}

#[test]
fn upper_is_exclusive_and_end_is_not() {
    let upper = MinimallocCsv::parse("id,lower,upper,size\na,0,5,1\n").unwrap();
    let end = MinimallocCsv::parse("buffer,begin,end,size\na,0,4,1\n").unwrap();
    assert_eq!(upper.rows()[0].upper, end.rows()[0].upper);
}

#[test]
fn alignments_are_planned_with_their_common_multiple() {
    let csv = MinimallocCsv::parse("id,lower,upper,size,alignment\na,0,5,1,4\nb,0,5,1,6\n").unwrap();
    assert_eq!(csv.problem().unwrap().alignment(), 12);
}

#[test]
fn an_offset_is_replaced() {
    let csv = MinimallocCsv::parse("offset,id,lower,upper,size,hint\n7,a,0,5,1,-1\n").unwrap();
    assert_eq!((csv.rows()[0].offset, csv.rows()[0].hint), (Some(7), None));
    assert_eq!(csv.with_offsets(&[12]), "id,lower,upper,size,hint,offset\na,0,5,1,-1,12\n");
}

/// The csv crate writes such fields.
#[test]
fn a_field_in_quotes_may_have_commas() {
    let csv = MinimallocCsv::parse("id,lower,upper,size\n\"a, \"\"b\"\"\",0,5,1\n").unwrap();
    assert_eq!(csv.rows()[0].id, "a, \"b\"");
    assert_eq!(csv.with_offsets(&[7]), "id,lower,upper,size,offset\n\"a, \"\"b\"\"\",0,5,1,7\n");
}

#[test]
fn what_is_written_can_be_read() {
    let block = |birth, death, size, stream| Block { birth, death, size, stream };
    let problem = Problem::new(vec![block(0, 3, 100, 1), block(2, 9, 50, 7)], 256).unwrap();
    let csv = MinimallocCsv::parse(&problem.to_minimalloc_csv(Some(&[0, 256]))).unwrap();
    assert_eq!(csv.problem().unwrap().blocks(), problem.blocks());
    assert_eq!(csv.problem().unwrap().alignment(), 256);
    assert_eq!(csv.rows()[1].offset, Some(256));
}

#[test]
fn mistakes_are_named_with_their_line() {
    let cases = [
        ("", "line 1: the file is empty; its first line must name the columns"),
        ("id,lower,upper\n", "line 1: the column `size` is missing"),
        ("id,lower,upper,size,color\n", "line 1: unknown column `color`"),
        ("id,lower,upper,size,end\n", "line 1: the column `end` appears twice"),
        ("id,lower,upper,size\na,0,1\n", "line 2: the row has 3 fields, but the header has 4 columns"),
        (
            "id,lower,upper,size\na,0,1,2\n\nb,x,1,2\n",
            "line 4: `x` in column `lower` is not a whole number of at most 64 bits",
        ),
        (
            "id,lower,upper,size\r\na,0,1,2\r\n\r\nb,x,1,2",
            "line 4: `x` in column `lower` is not a whole number of at most 64 bits",
        ),
        (
            "id,lower,upper,size\na,5,5,2\n",
            "line 2: the buffer begins at 5 but ends at 5, which is not later",
        ),
        (
            "id,lower,end,size\na,5,18446744073709551615,2\n",
            "line 2: the position after `end` does not fit into 64 bits",
        ),
        (
            "id,lower,upper,size,alignment\na,0,1,2,0\n",
            "line 2: the alignment is 0; write 1 for no alignment",
        ),
        (
            "id,lower,upper,size,gaps\na,0,9,2,3\n",
            "line 2: `3` in column `gaps` is not of the form 3-5 or 3-5@0:64",
        ),
        (
            "id,lower,upper,size,gaps\na,0,9,2,3-12\n",
            "line 2: the gap 3-12 is not within the buffer's lifetime",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(refused(text), message);
    }
}

#[test]
fn sizes_that_exceed_64_bits_are_refused() {
    let text = format!("id,lower,upper,size\na,0,5,{0}\nb,0,5,{0}\n", u64::MAX);
    let csv = MinimallocCsv::parse(&text).unwrap();
    assert!(csv.problem().unwrap_err().to_string().contains("64 bits"));
}
