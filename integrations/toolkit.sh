# Source this file to build and run programs of CUDA's toolkit without a GPU: CUDA's headers and nvcc from
# wheels, and millpond's simulated device under the names of CUDA's libraries. Needs Python with pip, a
# package index, and a C compiler. `toolkit fetch` sets the variables for building, and `toolkit simulate`
# also those for linking and running.
# shellcheck shell=bash

toolkit() {
    local repository target folder
    repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    target=${CARGO_TARGET_DIR:-$repository/target}
    folder=$target/toolkit
    if [[ ! -e $folder/complete ]]; then
        rm -rf "$folder"
        # cuda-core needs CUDA 13.0 or later, and cutile 13.2; cudarc 0.19.10 refuses versions after 13.4.
        python3 -m pip install --quiet --no-deps --only-binary=:all: --target "$folder" \
            nvidia-cuda-runtime==13.2.86 nvidia-cuda-crt==13.2.86 nvidia-cuda-nvcc==13.2.86 \
            nvidia-nvvm==13.2.86 nvidia-curand==10.4.5.25 libclang==18.1.1 || return
        # The linker looks for a name without a version.
        ln -s libcudart.so.13 "$folder/nvidia/cu13/lib/libcudart.so" || return
        touch "$folder/complete"
    fi
    export CUDA_HOME=$folder/nvidia/cu13
    export PATH=$CUDA_HOME/bin:$PATH
    export LIBCLANG_PATH=$folder/clang/native
    # The wheel of libclang has no headers of its own; GCC's serve.
    BINDGEN_EXTRA_CLANG_ARGS=-isystem$(cc -print-file-name=include) || return
    # Without a GPU, nvcc cannot find out for which one it compiles.
    export BINDGEN_EXTRA_CLANG_ARGS CUDA_ARCH=${CUDA_ARCH:-90}
    [[ $1 == simulate ]] || return 0

    cargo build --quiet --locked --manifest-path "$repository/Cargo.toml" --target-dir "$target" \
        -p millpond-shim || return
    export CUDA_LIB_DIR=$target/simulated
    mkdir -p "$CUDA_LIB_DIR"
    local name
    for name in libcuda.so libcuda.so.1 libcudart.so; do
        ln -sf ../debug/libmillpond_shim.so "$CUDA_LIB_DIR/$name" || return
    done
    # The simulated device also has the runtime's functions, except those with which an object of nvcc
    # registers its kernels. It runs no kernels, so these do nothing.
    cc -x c -c -fPIC -o "$CUDA_LIB_DIR/registration.o" - <<'END' || return
void **__cudaRegisterFatBinary(void *binary) { return (void **)binary; }
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
END
    rm -f "$CUDA_LIB_DIR/libcudart_static.a"
    ar rc "$CUDA_LIB_DIR/libcudart_static.a" "$CUDA_LIB_DIR/registration.o" || return
    export LD_LIBRARY_PATH=$CUDA_LIB_DIR MILLPOND_DEVICE=sim:8GiB
}
