//! The rules that decide whose code a stack frame runs.
//!
//! The first rule that matches a frame decides. A pattern describes a structure: a namespace, a folder, a
//! package. Names of single functions are only for C code, which has no namespaces.

use super::glob::fits;
use super::name::{has_file, is_native, qualified};
use super::path::{Place, place};
use super::{Frame, Kind};

/// The part of a frame that a rule examines. [`fits`] compares it with the patterns.
enum At {
    /// The qualified name of a native function without a namespace, if no source file is known.
    Function(&'static [&'static str]),
    /// The same without a namespace, if no source file is known.
    Sourceless(&'static [&'static str]),
    /// The source file of a native function, with `/` before its first folder.
    Source(&'static [&'static str]),
    /// The file of a package, and the function, as in `torch/_tensor.py:backward`.
    Package(&'static [&'static str]),
    /// The name of code that has no file, as in `<string>`.
    Named(&'static [&'static str]),
    /// Any file of the standard library, and scripts in a `bin` folder.
    Standard,
    /// Files that a compiler of PyTorch wrote.
    Generated,
}

/// The reason for the rule.
struct Rule {
    kind: Kind,
    at: At,
    /// The reason.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers, and for messages of tests"))]
    why: &'static str,
    /// An example that this rule decides: a function and its file.
    #[cfg(test)]
    example: (&'static str, &'static str),
}

/// Makes a rule. The example exists in tests only.
macro_rules! rule {
    ($kind:ident, $at:expr, $why:literal, $function:literal in $file:literal) => {
        Rule {
            kind: Kind::$kind,
            at: $at,
            why: $why,
            #[cfg(test)]
            example: ($function, $file),
        }
    };
}

use At::{Function, Generated, Named, Package, Source, Sourceless, Standard};

/// The rules for native frames.
static NATIVE: &[Rule] = &[
    rule!(
        Recorder,
        Function(&[
            "torch::unwind::*", "torch::CapturedTraceback::*", "*gather_with_cpp", "torch*::gather",
        ]),
        "the stack is recorded inside of the allocation",
        "torch::CapturedTraceback::gather(bool, bool, bool)" in "??"
    ),
    rule!(
        Allocator,
        Function(&["*CachingAllocator::*", "c10::*Allocator::*", "c10::*MemPool*", "at::detail::*empty_*"]),
        "PyTorch's allocators, and the functions that make a tensor of their memory",
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)" in ""
    ),
    rule!(
        Allocator,
        Function(&[
            "rmm::*", "cuda::mr::*", "millpond*::*", "cudaMalloc*", "cuMem*", "operator new*", "malloc",
            "libcudart*", "libcuda.so*", "libc10_cuda.so*",
        ]),
        "other allocators, and the driver's functions",
        "rmm::mr::device_memory_resource::allocate(unsigned long, rmm::cuda_stream_view)" in "??"
    ),
    // The namespace `torch::autograd` also contains the functions that Python calls, and the recording of the
    // graph.
    rule!(
        Autograd,
        Function(&[
            "torch::autograd::Engine::*", "torch::autograd::python::PythonEngine::*",
            "torch::autograd::Node::operator()", "torch::autograd::*::apply",
            "torch::autograd::generated::details::*", "torch::autograd::GraphTask::*",
            "torch::autograd::ReadyQueue::*", "torch::autograd::InputBuffer::*",
            "torch::autograd::*::call_unpack_hook", "THPEngine_*", "c10d::Reducer::*hook*",
            "c10d::Reducer::mark_*",
        ]),
        "the engine of the backward pass, its nodes, and the hooks that it calls",
        "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)" in "??"
    ),
    rule!(
        Dispatch,
        Function(&[
            "at::*", "c10::*", "c10d::*", "torch::*", "caffe2::*", "THP*", "pybind11::*", "torch_*::*",
            "*::THP*", "libtorch*", "libc10.so*",
        ]),
        "the namespaces of PyTorch and of its bindings to Python",
        "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)" in "??"
    ),
    rule!(
        Dispatch,
        Source(&[
            "*/aten/src/*", "*/torch/csrc/*", "*/c10/*", "*/pybind11/*", "*/Register*.cpp",
            "*/python_*.cpp", "*/Python*Kernel.cpp",
        ]),
        "sources of PyTorch whose functions have no namespace after optimization",
        "wrapper_CUDA_memory_format_empty" in "RegisterCUDA_0.cpp"
    ),
    rule!(
        Interpreter,
        Function(&[
            "_Py*", "PyBytes_*", "PyCFunction_*", "PyCode_*", "PyContext_*", "PyDict_*", "PyErr_*",
            "PyEval_*", "PyFunction_*", "PyGILState_*", "PyGen_*", "PyImport_*", "PyInit_*", "PyIter_*",
            "PyList_*", "PyMapping_*", "PyMethod_*", "PyNumber_*", "PyObject_*", "PyRun_*",
            "PySequence_*", "PyThread_*", "PyTuple_*", "PyType_*", "PyUnicode_*", "PyVectorcall_*",
            "Py_*",
        ]),
        "functions of CPython's interface",
        "_PyEval_EvalFrameDefault" in "??"
    ),
    rule!(
        Interpreter,
        Source(&[
            "*/Objects/*.c", "*/Python/*.c", "*/Python/*.h", "*/Modules/*.c", "*/Programs/*.c",
            "*/Include/*.h",
        ]),
        "the folders of CPython's sources",
        "cfunction_call" in "/usr/local/src/conda/python-3.14.6/Objects/methodobject.c"
    ),
    rule!(
        Interpreter,
        Source(&["*/csu/*", "*/nptl/*", "*/sysdeps/*", "*/libstdc++-v3/*"]),
        "the C library and the C++ library start programs and threads",
        "__libc_start_call_main" in "./csu/../sysdeps/x86/libc-start.c"
    ),
    rule!(
        Interpreter,
        Function(&[
            "std::*", "__gnu_cxx::*", "core::*", "alloc::*", "__rust_*",
            "execute_native_thread_routine*",
        ]),
        "standard libraries of C++ and Rust",
        "std::execute_native_thread_routine(void*)" in "/build/libstdc++/thread.cc"
    ),
    rule!(
        Interpreter,
        Sourceless(&[
            "_start", "__libc_*", "main", "start_thread*", "*clone", "*clone3", "ffi_call*",
            "_ctypes_*", "cfunction_*", "method_*", "vectorcall_*", "slot_*", "type_call*", "object_*",
            "partial_*", "run_mod*", "run_eval_code_obj*", "pyrun_*", "pymain_*", "builtin_*", "gen_*",
            "context_run*", "wrapperdescr_*", "wrap_*", "thread_run*", "pythread_wrapper*", "task_*",
            "do_call*", "function_code_*", "call_function*", "_call_*", "property_*", "map_*", "list_*",
            "tuple_*", "dict_*", "enum_*", "zip_*",
        ]),
        "static functions of CPython and of the C library, which have no prefix of their own",
        "cfunction_call.lto_priv.0" in ""
    ),
    rule!(
        Library,
        Source(&[
            "*/site-packages/*", "*/dist-packages/*", "*/usr/include/*", "*/usr/local/include/*",
            "*/usr/src/*", "*/targets/*-linux/include/*", "*/.cargo/registry/*", "*/rustc/*",
            "*/conda-bld/*",
        ]),
        "sources and headers that a package manager or a distribution installed",
        "thrust::detail::fill<float>(float*)" in "/usr/local/cuda/targets/x86_64-linux/include/thrust/fill.h"
    ),
    rule!(
        Library,
        Function(&[
            "cub::*", "thrust::*", "cutlass::*", "nccl*", "cublas*", "cudnn*", "cuda*", "flash*::*",
        ]),
        "libraries of NVIDIA and kernels in packages",
        "cublasCreate_v2" in "??"
    ),
];

/// The rules for Python's frames.
static PYTHON: &[Rule] = &[
    rule!(
        Autograd,
        Package(&[
            "torch/_tensor.py:*backward", "torch/autograd/__init__.py:*",
            "torch/autograd/graph.py:*_engine_run_backward", "torch/utils/checkpoint.py:*unpack_hook",
            "torch/_functorch/_aot_autograd/runtime_wrappers.py:*backward*",
        ]),
        "the functions that start the backward pass, or that only it calls",
        "_engine_run_backward" in "/opt/conda/lib/python3.12/site-packages/torch/autograd/graph.py"
    ),
    rule!(
        Torch,
        Package(&["torch/optim/optimizer.py:*zero_grad", "torch/nn/modules/module.py:*_apply"]),
        "these functions of base classes allocate or free memory of their own",
        "_apply" in "torch/nn/modules/module.py"
    ),
    rule!(
        Dispatch,
        Package(&[
            "torch/_*", "torch/functional.py:*", "torch/overrides.py:*", "torch/amp/*",
            "torch/autograd/*", "torch/compiler/*", "torch/fx/*", "torch/jit/*", "torch/library.py:*",
            "torch/nn/functional.py:*", "torch/nn/modules/container.py:*",
            "torch/nn/modules/module.py:*", "torch/nn/parallel/*", "torch/optim/lr_scheduler.py:*",
            "torch/optim/optimizer.py:*", "torch/profiler/*", "torch/utils/*",
        ]),
        "wrappers around an operator, a module or an optimizer, and the compiler",
        "_call_impl" in "torch/nn/modules/module.py"
    ),
    rule!(
        Torch,
        Package(&["torch/*"]),
        "the rest of PyTorch's Python code",
        "_multi_tensor_adam" in "/usr/local/lib/python3.10/dist-packages/torch/optim/adam.py"
    ),
    rule!(
        Torch,
        Generated,
        "Inductor wrote the file, so its lines are no one's source",
        "call" in "/cache/torchinductor_me/lu/cludit2ypsasomtvbubno3ruw44fsipvuctzhyb3ahz256v2ucwf.py"
    ),
    rule!(
        Library,
        Package(&["*"]),
        "a package manager installed the file",
        "forward" in "/opt/conda/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py"
    ),
    rule!(
        Interpreter,
        Standard,
        "the standard library calls functions of others, and starts programs and threads",
        "_bootstrap_inner" in "/usr/lib/python3.12/threading.py"
    ),
    rule!(
        Interpreter,
        Named(&["<frozen *"]),
        "modules inside of the interpreter",
        "_run_module_as_main" in "<frozen runpy>"
    ),
    rule!(
        User,
        Named(&[
            "<stdin>*", "<input>*", "<console>*", "<python-input-*", "<ipython-input-*", "<command-*",
            "<cell *", "<torch_package_*", "<doctest *",
        ]),
        "the user typed it, or packed it",
        "<module>" in "<ipython-input-3-4f9a2bd0c1de>"
    ),
    rule!(
        Autograd,
        Named(&["<backward of>"]),
        "the importer marks the frames of the forward pass so",
        "forward pass" in "<backward of>"
    ),
    rule!(
        Dispatch,
        Named(&["<eval_with_key>*"]),
        "PyTorch wrote the code",
        "forward" in "<eval_with_key>.12"
    ),
    rule!(
        Library,
        Named(&["<*>*"]),
        "a library wrote the code, as `dataclasses` does",
        "__init__" in "<string>"
    ),
];

impl Rule {
    /// Returns whether the rule matches a native frame with this qualified name and this source file.
    fn fits_native(&self, name: &str, source: Option<&str>) -> bool {
        let any = |patterns: &[&str], text: &str| patterns.iter().any(|pattern| fits(pattern, text));
        match self.at {
            Function(patterns) => any(patterns, name),
            Sourceless(patterns) => source.is_none() && !name.contains("::") && any(patterns, name),
            Source(patterns) => source.is_some_and(|source| any(patterns, source)),
            Package(_) | Named(_) | Standard | Generated => false,
        }
    }

    /// Returns whether the rule matches a Python frame.
    fn fits_python(&self, function: &str, place: &Place<'_>) -> bool {
        match (&self.at, place) {
            (Package(patterns), Place::Package(file)) => {
                // Patterns without a function match whole folders.
                let text = format!("{file}:{function}");
                patterns.iter().any(|pattern| fits(pattern, &text))
            }
            (Named(patterns), Place::Elsewhere(file)) => patterns.iter().any(|pattern| fits(pattern, file)),
            (Standard, Place::Standard(_) | Place::Script) | (Generated, Place::Generated(_)) => true,
            _ => false,
        }
    }
}

/// Returns whose code a frame runs.
///
/// ```
/// use millpond_snapshot::frames::{Frame, Kind, classify};
/// let frame = |function, file| Frame { function, file, line: 1 };
/// assert_eq!(classify(frame("attention", "/data/me/train.py")), Kind::User);
/// assert_eq!(classify(frame("torch::unwind::unwind()", "??")), Kind::Recorder);
/// let adamw = "/venv/lib/python3.12/site-packages/torch/optim/adamw.py";
/// assert_eq!(classify(frame("step", adamw)), Kind::Torch);
/// ```
pub fn classify(frame: Frame<'_>) -> Kind {
    find(frame).map_or_else(
        || {
            // Native code of the user is known by its source file and line, which frames of packages do not
            // have.
            let is_own = !is_native(frame) || (has_file(frame) && frame.line > 0);
            if is_own { Kind::User } else { Kind::Library }
        },
        |rule| rule.kind,
    )
}

/// Returns the rule that decides about a frame; `None` if no rule matches.
fn find(frame: Frame<'_>) -> Option<&'static Rule> {
    if is_native(frame) {
        let name = qualified(frame.function);
        let source = has_file(frame).then(|| format!("/{}", frame.file.replace('\\', "/")));
        return NATIVE.iter().find(|rule| rule.fits_native(&name, source.as_deref()));
    }
    let place = place(frame.file);
    PYTHON.iter().find(|rule| rule.fits_python(frame.function, &place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_decides_about_its_example_and_has_a_reason() {
        for rule in NATIVE.iter().chain(PYTHON) {
            let (function, file) = rule.example;
            let found = find(Frame { function, file, line: 1 });
            let found = found.unwrap_or_else(|| panic!("no rule fits {function} in {file}"));
            assert!(std::ptr::eq(found, rule), "{function} in {file}: decided by `{}`", found.why);
            assert!(rule.why.len() > 15, "{function}");
        }
    }
}
