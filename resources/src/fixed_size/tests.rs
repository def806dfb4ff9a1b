use millpond_core::misuse::MisuseKind;
use millpond_core::{DevicePtr, Layout};

use super::blocks::Blocks;
use crate::ordered::{ANYONE, Epoch, Growth, Owner, Request, Store};

const BLOCK: u64 = 1024;

fn blocks(regions: u64, blocks_per_region: u64) -> Blocks {
    let mut blocks = Blocks::new(BLOCK, 64);
    (0..3).for_each(|owner| blocks.add_owner(owner));
    for region in 0..regions {
        blocks.add_region(DevicePtr::new((region + 1) << 20), blocks_per_region * BLOCK, ANYONE, 0);
    }
    blocks
}

fn request(bytes: u64) -> Request {
    Request::new(Layout::new(bytes)).expect("not too large")
}

fn take(blocks: &mut Blocks, owner: Owner, bytes: u64) -> Option<DevicePtr> {
    blocks.take(owner, Epoch::MAX, &request(bytes))
}

#[test]
fn blocks_are_handed_out_once_and_come_back() {
    let mut blocks = blocks(2, 3);
    let mut seen: Vec<DevicePtr> = std::iter::from_fn(|| take(&mut blocks, ANYONE, 1000)).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 6);
    blocks.validate();
    for ptr in &seen {
        assert_eq!(blocks.give(*ptr, Layout::new(1000), 1, 4), Ok(()));
    }
    assert_eq!(blocks.free_bytes(1), 6 * BLOCK);
    assert!(take(&mut blocks, 2, 1).is_none(), "they belong to another stream");
    blocks.validate();
}

#[test]
fn a_point_covers_the_blocks_given_back_before_it() {
    let mut blocks = blocks(1, 3);
    let taken: Vec<DevicePtr> = std::iter::from_fn(|| take(&mut blocks, ANYONE, 1)).collect();
    for (ptr, epoch) in taken.iter().zip([1, 2, 2]) {
        blocks.give(*ptr, Layout::new(1), 1, epoch).expect("a block");
    }
    assert!(blocks.find(1, 0, &request(1)).is_none());
    assert_eq!(blocks.find(1, 1, &request(1)).map(|fit| fit.epoch), Some(1));
    blocks.migrate(1, 1, ANYONE, 0);
    assert_eq!((blocks.free_bytes(1), blocks.free_bytes(ANYONE)), (2 * BLOCK, BLOCK));
    blocks.validate();
}

#[test]
fn what_is_no_block_is_refused() {
    let mut blocks = blocks(1, 2);
    let ptr = take(&mut blocks, ANYONE, 100).expect("there are two");
    let mut give = |ptr, bytes| blocks.give(ptr, Layout::new(bytes), 1, 1);
    assert_eq!(give(DevicePtr::new(64), 100), Err(MisuseKind::ForeignPointer));
    assert_eq!(give(ptr.offset(256), 100), Err(MisuseKind::ForeignPointer));
    assert_eq!(give(ptr.offset(2 * BLOCK), 100), Err(MisuseKind::ForeignPointer), "beyond the region");
    assert_eq!(give(ptr, 101), Err(MisuseKind::WrongSize { allocated_bytes: 100 }));
    assert_eq!(give(ptr, 100), Ok(()));
    assert_eq!(give(ptr, 100), Err(MisuseKind::DoubleFree));
}

#[test]
fn only_regions_free_from_end_to_end_go_back() {
    let mut blocks = blocks(2, 2);
    let kept = take(&mut blocks, ANYONE, 1).expect("there are four");
    let (base, bytes) = blocks.remove_free_region().expect("one region is free");
    assert_eq!(bytes, 2 * BLOCK);
    assert!(!(base.address()..base.address() + bytes).contains(&kept.address()));
    assert_eq!(blocks.remove_free_region(), None);
    blocks.give(kept, Layout::new(1), 1, 1).expect("a block");
    assert_eq!(blocks.remove_free_region(), None, "a stream still owns a block of it");
    blocks.migrate(1, 1, ANYONE, 0);
    assert!(blocks.remove_free_region().is_some());
    blocks.validate();
}

#[test]
fn growth_follows_use_and_backs_off_in_whole_blocks() {
    let mut blocks = blocks(1, 8);
    assert_eq!(blocks.growth(&request(1)).map(|growth| growth.preferred), Some(BLOCK));
    (0..5).for_each(|_| assert!(take(&mut blocks, ANYONE, 1).is_some()));
    let growth = blocks.growth(&request(1)).expect("always");
    assert_eq!(growth, Growth { preferred: 5 * BLOCK, least: BLOCK, unit: BLOCK });
    let tried: Vec<u64> =
        std::iter::successors(Some(growth.preferred), |bytes| growth.after_refusal(*bytes)).collect();
    assert_eq!(tried, [5 * BLOCK, 3 * BLOCK, 2 * BLOCK, BLOCK]);
}
