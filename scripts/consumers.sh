#!/usr/bin/env bash
# Checks that programs can depend on millpond with any version of cudarc, and without cudarc.
#
#   scripts/consumers.sh [all]
#
# Each program is a separate crate in target/consumers, which depends on this working tree by path. So
# features that the workspace enables for all members cannot hide an error. Nothing is linked or run, so the
# script needs neither CUDA nor a GPU. With `all`, it checks every version of CUDA that cudarc supports.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
folder=$repository/target/consumers
export CARGO_TARGET_DIR=$folder/target CARGO_PROFILE_DEV_DEBUG=0 CARGO_TERM_COLOR=never
cudarc=$(sed -n '/^\[workspace.dependencies.cudarc\]$/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)

# A program with cudarc: streams, buffers, launches, and slices that are adopted and lent.
with_cudarc='
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use millpond::containers::{CudaBuffer, DeviceVec};
use millpond::driver::cuda;
use millpond::{AnyResource, DeviceMemoryResource, Result, StreamRef};

fn run(stream: &Arc<CudaStream>, kernel: &CudaFunction, pool: AnyResource) -> Result<Vec<f32>> {
    let mut values = CudaBuffer::<f32>::zeroed(1024, stream, pool)?;
    // SAFETY: this program is never run.
    unsafe { stream.launch_builder(kernel).arg(&mut values).launch(LaunchConfig::for_num_elems(9)) }.unwrap();
    Ok(stream.clone_dtoh(&values).unwrap())
}

fn both_ways(stream: &CudaStream, context: &Arc<CudaContext>, pool: &AnyResource) -> Result<StreamRef> {
    // SAFETY: the stream outlives every use of it here.
    let stream = unsafe { cuda::stream_ref_of(stream) }?;
    // SAFETY: this program is never run.
    unsafe { cuda::cudarc_stream_of(stream, &**pool.driver(), context) }?;
    Ok(stream)
}

fn slices(slice: CudaSlice<f32>, vec: &mut DeviceVec<f32>, kernel: &CudaFunction) -> Result<CudaSlice<f32>> {
    let mut adopted = CudaBuffer::adopt(slice)?;
    let stream = adopted.stream().clone();
    stream.memcpy_dtod(&adopted, &mut vec.cuda_view_mut(&stream)?).unwrap();
    // SAFETY: this program is never run.
    unsafe { stream.launch_builder(kernel).arg(&mut *vec).launch(LaunchConfig::for_num_elems(9)) }.unwrap();
    let copied: Result<_, DriverError> = adopted.lend_as_cuda_slice(|slice| stream.clone_dtod(slice))?;
    adopted.lend_as_cuda_view_mut(|mut view| stream.memcpy_dtod(&copied.unwrap(), &mut view))?.unwrap();
    Ok(adopted.give_back()?)
}

fn main() {
    println!("{:?} {:?}", run as fn(_, _, _) -> _, both_ways as fn(_, _, _) -> _);
    println!("{:?}", slices as fn(_, _, _) -> _);
}
'
# A program without cudarc.
without='
use millpond::driver::DeviceSpec;
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::{DeviceMemoryResourceExt, Result, StreamRef};

fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new())?;
    let block = pool.allocate_bytes(1000, StreamRef::LEGACY)?;
    // SAFETY: the block came from this stack with this size, once, and nothing uses it.
    unsafe { pool.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
    Ok(())
}
'

# consumer NAME PROGRAM DEPENDENCIES: creates a crate and checks it.
consumer() {
    local name=$1 program=$2 dependencies=$3 start=$SECONDS
    mkdir -p "$folder/$name/src"
    printf '%s' "$program" >"$folder/$name/src/main.rs"
    cat >"$folder/$name/Cargo.toml" <<END
[package]
name = "$name"
edition = "2024"

[workspace]

[dependencies]
$dependencies
END
    cp Cargo.lock "$folder/$name/Cargo.lock"
    echo "-- $name"
    if ! cargo check --quiet --manifest-path "$folder/$name/Cargo.toml"; then
        echo "a program does not build with"$'\n'"$dependencies" >&2
        exit 1
    fi
    echo "-- $name: builds, after $((SECONDS - start)) s"
}

# lacks NAME CRATE...: checks that a program depends on none of these crates, even indirectly.
lacks() {
    local name=$1 crate tree
    shift
    tree=$(cargo tree --quiet --manifest-path "$folder/$name/Cargo.toml" --edges normal --prefix none)
    for crate in "$@"; do
        if grep -q "^$crate v" <<<"$tree"; then
            echo "$name: the program depends on $crate, but did not ask for it" >&2
            exit 1
        fi
    done
}

mine() { echo "millpond = { path = \"$repository\"${1:+, }${1:-} }"; }
theirs() { echo "cudarc = { version = \"$cudarc\", default-features = false, features = [$1] }"; }
usual='"std", "driver", "dynamic-loading"'

none='default-features = false'
consumer nothing-chosen "$without" "$(mine "$none")"
lacks nothing-chosen cudarc csv jiff serde serde_derive thiserror syn
consumer no-cudarc "$without" "$(mine "$none, features = [\"logging\", \"serde\"]")"
lacks no-cudarc cudarc
# Another crate of the program chooses the version; millpond chooses none, or the same one.
consumer their-12080 "$with_cudarc" "$(mine)"$'\n'"$(theirs "$usual, \"cuda-12080\"")"
consumer our-12080 "$with_cudarc" \
    "$(mine "$none, features = [\"cuda-12080\"]")"$'\n'"$(theirs "$usual, \"cuda-12080\"")"
# As in candle: linked at build time, with the version of the installed CUDA.
consumer linked "$with_cudarc" \
    "$(mine)"$'\n'"$(theirs '"std", "driver", "dynamic-linking", "cuda-version-from-build-system"')"

if [[ ${1:-} = all ]]; then
    for version in $(sed -n 's/^cuda-\([0-9]*\) = .*/\1/p' Cargo.toml); do
        consumer "our-$version" "$with_cudarc" \
            "$(mine "$none, features = [\"cuda-$version\"]")"$'\n'"$(theirs "$usual, \"cuda-$version\"")"
    done
fi
