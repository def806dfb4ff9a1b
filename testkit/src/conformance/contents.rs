//! Checks that a block holds the values that were written into it.

use millpond_core::StreamRef;

use super::Outcome::{self, Passed, Skipped};
use super::context::{Block, Context};

bodies![
    contents_are_read_back,
    both_ends_of_a_large_block,
    neighbours_keep_their_contents,
    blocks_are_copied_to_blocks,
    a_fill_fills_one_block_only,
    contents_survive_trim,
];

/// Bytes that differ from block to block.
fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|index| (index.wrapping_mul(31) ^ seed.wrapping_mul(97) ^ (index >> 8)) as u8).collect()
}

fn write(context: &Context<'_>, block: Block, data: &[u8]) {
    let bytes = data.len() as u64;
    assert!(bytes <= block.layout.bytes());
    if block.is_on_host() {
        return block.write_on_host(data);
    }
    // SAFETY: `data` outlives the copy, which is waited for. The range lies in the live block, and the copy
    // is on the block's stream.
    let copied = unsafe { context.driver.memcpy_htod_async(block.ptr, data.as_ptr(), bytes, block.stream) };
    copied
        .and_then(|()| context.driver.stream_synchronize(block.stream))
        .unwrap_or_else(|error| panic!("{error}"));
}

fn read(context: &Context<'_>, block: Block, offset: u64, bytes: u64) -> Vec<u8> {
    assert!(offset + bytes <= block.layout.bytes());
    let mut data = vec![0; bytes as usize];
    if block.is_on_host() {
        block.read_on_host(offset, &mut data);
        return data;
    }
    let (source, target) = (block.ptr.offset(offset), data.as_mut_ptr());
    // SAFETY: `data` has room for `bytes` and outlives the copy, which is waited for. The range lies in the
    // live block, and the copy is on the block's stream.
    let copied = unsafe { context.driver.memcpy_dtoh_async(target, source, bytes, block.stream) };
    copied
        .and_then(|()| context.driver.stream_synchronize(block.stream))
        .unwrap_or_else(|error| panic!("{error}"));
    data
}

fn contents_are_read_back(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let stream = context.stream();
    for (seed, bytes) in [1, 255, 256, 257, 4096, 100_003, 1 << 20].into_iter().enumerate() {
        let data = pattern(seed as u64, context.clip(bytes));
        let block = resource.get(data.len() as u64, *stream);
        write(context, block, &data);
        assert!(read(context, block, 0, data.len() as u64) == data, "{} bytes differ", data.len());
        resource.put(block);
    }
    Passed
}

fn both_ends_of_a_large_block(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let block = resource.get(context.clip(64 << 20), StreamRef::LEGACY);
    let data = pattern(1, 1000);
    write(context, block, &data);
    let tail = Block { ptr: block.ptr.offset(block.layout.bytes() - 1000), ..block };
    write(context, tail, &data);
    assert!(read(context, block, 0, 1000) == data, "the first bytes differ");
    assert!(read(context, block, block.layout.bytes() - 1000, 1000) == data, "the last bytes differ");
    resource.put(block);
    Passed
}

fn neighbours_keep_their_contents(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let sizes = (0..32_u64).map(|index| context.clip(200 + 173 * (index % 5)));
    let mut blocks: Vec<(Block, Vec<u8>)> = Vec::new();
    for (seed, bytes) in sizes.enumerate() {
        let block = resource.get(bytes, StreamRef::LEGACY);
        let data = pattern(seed as u64, bytes);
        write(context, block, &data);
        blocks.push((block, data));
    }
    for index in (0..blocks.len()).step_by(2) {
        resource.put(blocks[index].0);
        let block = resource.get(blocks[index].1.len() as u64, StreamRef::LEGACY);
        let data = pattern(1000 + index as u64, block.layout.bytes());
        write(context, block, &data);
        blocks[index] = (block, data);
    }
    for (index, (block, data)) in blocks.into_iter().enumerate() {
        assert!(read(context, block, 0, data.len() as u64) == data, "block {index} was overwritten");
        resource.put(block);
    }
    Passed
}

fn blocks_are_copied_to_blocks(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let data = pattern(5, context.clip(5000));
    let bytes = data.len() as u64;
    let (from, to) = (resource.get(bytes, StreamRef::LEGACY), resource.get(bytes, StreamRef::LEGACY));
    write(context, from, &data);
    if from.is_on_host() {
        [from, to].into_iter().for_each(|block| resource.put(block));
        return Skipped("the device cannot reach the memory");
    }
    // SAFETY: both ranges are live blocks of this size, and all work is on one stream.
    let copied = unsafe { context.driver.memcpy_dtod_async(to.ptr, from.ptr, bytes, StreamRef::LEGACY) };
    copied.unwrap_or_else(|error| panic!("{error}"));
    assert!(read(context, to, 0, bytes) == data, "the copy differs");
    resource.put(from);
    resource.put(to);
    Passed
}

fn a_fill_fills_one_block_only(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let blocks: Vec<Block> = (0..3).map(|_| resource.get(context.clip(1024), StreamRef::LEGACY)).collect();
    let bytes = blocks[0].layout.bytes();
    if blocks[0].is_on_host() {
        blocks.into_iter().for_each(|block| resource.put(block));
        return Skipped("the device cannot reach the memory");
    }
    for (value, block) in (1_u8..).zip([blocks[0], blocks[2], blocks[1]]) {
        // SAFETY: the range is a live block, and all work is on one stream.
        let filled = unsafe { context.driver.memset_d8_async(block.ptr, value, bytes, StreamRef::LEGACY) };
        filled.unwrap_or_else(|error| panic!("{error}"));
    }
    for (value, block) in [1_u8, 3, 2].into_iter().zip(&blocks) {
        assert!(
            read(context, *block, 0, bytes).iter().all(|byte| *byte == value),
            "not all bytes are {value}"
        );
    }
    blocks.into_iter().for_each(|block| resource.put(block));
    Passed
}

fn contents_survive_trim(context: &Context<'_>) -> Outcome {
    use millpond_core::DeviceMemoryResource;
    let resource = context.build();
    let blocks: Vec<Block> = (0..8).map(|_| resource.get(context.clip(1 << 20), StreamRef::LEGACY)).collect();
    for (seed, block) in blocks.iter().enumerate() {
        write(context, *block, &pattern(seed as u64, 512.min(block.layout.bytes())));
    }
    blocks.iter().step_by(2).for_each(|block| resource.put(*block));
    resource.trim(0).unwrap_or_else(|error| panic!("{error}"));
    for (seed, block) in blocks.iter().enumerate().skip(1).step_by(2) {
        let bytes = 512.min(block.layout.bytes());
        assert!(
            read(context, *block, 0, bytes) == pattern(seed as u64, bytes),
            "block {seed} lost its contents"
        );
        resource.put(*block);
    }
    Passed
}
