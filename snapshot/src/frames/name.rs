//! The names of native functions, as unwinders print them.

use super::Frame;

/// The texts that native frames have for a file if the unwinder found no source.
const NO_FILE: [&str; 5] = ["", "??", "<invalid>", "<unknown>", "?"];

/// The endings of native source files. The last three are for Cython.
const SOURCES: [&str; 17] = [
    "c", "cc", "cpp", "cxx", "c++", "cu", "cuh", "h", "hh", "hpp", "inc", "s", "rs", "ipp", "pyx", "pxd",
    "pxi",
];

/// Returns whether the source file of the frame is known.
pub(super) fn has_file(frame: Frame<'_>) -> bool {
    !NO_FILE.contains(&frame.file) && !is_binary(frame.file)
}

/// Returns whether a file is a library, or the program of the interpreter. If PyTorch finds symbols the fast
/// way (`TORCH_SYMBOLIZE_MODE=fast`), its frames name such files, with addresses as line numbers.
fn is_binary(file: &str) -> bool {
    let name = file.rsplit(['/', '\\']).next().unwrap_or(file).to_ascii_lowercase();
    let is_version = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_library = [".dll", ".dylib", ".pyd", ".so"].iter().any(|end| name.ends_with(end))
        || name.rsplit_once(".so.").is_some_and(|(_, version)| is_version(version));
    let python = name.strip_prefix("python").map(|rest| rest.strip_suffix(".exe").unwrap_or(rest));
    is_library || python.is_some_and(is_version)
}

/// Returns whether the frame belongs to compiled code.
pub(crate) fn is_native(frame: Frame<'_>) -> bool {
    let end = frame.file.rsplit_once('.').map_or("", |(_, end)| end).to_ascii_lowercase();
    !has_file(frame) || SOURCES.contains(&end.as_str())
}

/// Returns a function's name with its namespaces, but without its return type, its arguments and its template
/// arguments: `at::native::add` for `at::Tensor at::native::add<float>(int)`. A method of a Rust trait has
/// the name of its type: `pool::Pool::get` for `<pool::Pool<R> as core::Get>::get`.
pub(super) fn qualified(function: &str) -> String {
    match of_rust_type(function) {
        Some((of, method)) => format!("{}{method}", without_types(of)),
        None => without_types(function),
    }
}

/// Returns the type and the rest of a name of Rust such as `<Type as Trait>::method` or `<Type>::method`.
fn of_rust_type(function: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    let is_end = |(at, char): &(usize, char)| {
        match char {
            '<' => depth += 1,
            // The arrow of a function's type is no bracket.
            '>' if !function[..*at].ends_with('-') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    };
    let (end, _) = function.char_indices().find(is_end).filter(|(end, _)| *end > 0)?;
    let (inner, method) = (&function[1..end], &function[end + 1..]);
    let of = type_before_as(inner).trim_start_matches(['&', '*']);
    method.starts_with("::").then_some((of, method))
}

/// Returns the text before the ` as ` that is in no brackets.
fn type_before_as(inner: &str) -> &str {
    let is_outside = |(at, _): &(usize, &str)| {
        let before = &inner[..*at];
        before.matches('<').count() + before.matches("->").count() == before.matches('>').count()
    };
    inner.match_indices(" as ").find(is_outside).map_or(inner, |(at, _)| &inner[..at])
}

fn without_types(function: &str) -> String {
    const ANONYMOUS: &str = "(anonymous namespace)";
    let mut name = String::new();
    let mut depth = 0_usize;
    let mut rest = function;
    while let Some(char) = rest.chars().next() {
        if depth == 0 && rest.starts_with(ANONYMOUS) {
            name.push_str(ANONYMOUS);
            rest = &rest[ANONYMOUS.len()..];
            continue;
        }
        rest = &rest[char.len_utf8()..];
        match char {
            _ if depth == 0 && name.ends_with("operator") && "<>(-=".contains(char) => name.push(char),
            // In `operator()(int)`, the first pair of parentheses belongs to the name.
            ')' if depth == 0 => name.push(')'),
            '(' if depth == 0 && !name.is_empty() => break,
            '<' | '(' => depth += 1,
            '>' | ')' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 && !name.ends_with("operator") && !rest.is_empty() => name.clear(),
            _ if depth == 0 => name.push(char),
            _ => {}
        }
    }
    name
}

/// Returns the operator that a native function calls: `aten::empty` for
/// `at::_ops::empty_memory_format::call`.
pub(super) fn operator(qualified: &str) -> Option<String> {
    let name = qualified.strip_prefix("at::_ops::")?.split("::").next()?;
    // The rest of the name is an overload: `Tensor` in `add_Tensor`, `out` in `mm_out`.
    let overload = name.match_indices('_').find(|(at, _)| {
        let rest = &name[at + 1..];
        let first = rest.split('_').next().unwrap_or(rest);
        rest.starts_with(char::is_uppercase)
            || ["out", "int", "dim"].contains(&first)
            || rest == "memory_format"
    });
    Some(format!("aten::{}", overload.map_or(name, |(at, _)| &name[..at])))
}

/// Returns the node of the backward pass that a native function runs: `MmBackward0` for
/// `torch::autograd::generated::MmBackward0::apply`.
pub(super) fn node(qualified: &str) -> Option<&str> {
    let class = qualified.strip_prefix("torch::autograd::")?.strip_suffix("::apply")?;
    let class = class.rsplit("::").next()?;
    (class != "PyNode" && class != "CppNode").then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_types_and_arguments() {
        for (function, expected) in [
            ("torch::unwind::unwind()", "torch::unwind::unwind"),
            ("at::TensorBase at::detail::_empty_generic()", "at::detail::_empty_generic"),
            (
                "at::(anonymous namespace)::(anonymous namespace)::wrapper(std::optional<bool>)",
                "at::(anonymous namespace)::(anonymous namespace)::wrapper",
            ),
            (
                "c10::impl::wrap_<c10::Compiled<at::Tensor (c10::Allocator*), &x::y>, int>::call(int)",
                "c10::impl::wrap_::call",
            ),
            (
                "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)",
                "torch::autograd::Node::operator()",
            ),
            ("void my::kernel<float, (int)4>(float*)", "my::kernel"),
            ("cfunction_call.lto_priv.0", "cfunction_call.lto_priv.0"),
            ("a::b(int)::{lambda()#1}::operator()() const", "a::b"),
            ("<a::b::Pool<R> as c::Get>::get", "a::b::Pool::get"),
            ("<a::Pool<<R as b::Of>::It> as c::Get<d::E>>::get::{{closure}}", "a::Pool::get::{{closure}}"),
            ("<&mut a::Pool>::get", "a::Pool::get"),
            ("<fn(a::B) -> c::D as core::ops::FnOnce<()>>::call_once", "fn::call_once"),
            ("a::b::<impl c::Get for d::Arc<R>>::get", "a::b::::get"),
            ("<<<", ""),
            ("", ""),
            ("(((<<< >>", ""),
        ] {
            assert_eq!(qualified(function), expected, "{function}");
        }
    }

    #[test]
    fn operators_lose_their_overloads() {
        for (name, expected) in [
            ("at::_ops::empty_memory_format::call", Some("aten::empty")),
            ("at::_ops::empty_memory_format::redispatch", Some("aten::empty")),
            ("at::_ops::add_Tensor::call", Some("aten::add")),
            ("at::_ops::mm_out::call", Some("aten::mm")),
            ("at::_ops::softmax_int::call", Some("aten::softmax")),
            ("at::_ops::sum_dim_IntList::call", Some("aten::sum")),
            ("at::_ops::zeros_like::call", Some("aten::zeros_like")),
            ("at::_ops::_softmax::call", Some("aten::_softmax")),
            ("at::native::empty_cuda", None),
        ] {
            assert_eq!(operator(name).as_deref(), expected, "{name}");
        }
        assert_eq!(node("torch::autograd::generated::MmBackward0::apply"), Some("MmBackward0"));
        assert_eq!(node("torch::autograd::AccumulateGrad::apply"), Some("AccumulateGrad"));
        assert_eq!(node("torch::autograd::PyNode::apply"), None);
    }

    #[test]
    fn a_frame_without_a_source_is_native() {
        let native = |file| is_native(Frame { function: "f", file, line: 1 });
        for file in
            ["", "??", "a/b.cpp", "call.c", "generated_cases.c.h", "clone.S", "kernel.cu", "main.rs", "a.pyx"]
        {
            assert!(native(file), "{file}");
        }
        for file in [
            "torch/lib/libtorch_cpu.so",
            "/lib/libc.so.6",
            "/usr/bin/python3.12",
            "C:\\py\\python.exe",
            "_C.pyd",
        ] {
            assert!(native(file), "{file}");
        }
        for file in
            ["train.py", "python/train.py", "a.source", "<string>", "<ipython-input-3-abc>", "bin/torchrun"]
        {
            assert!(!native(file), "{file}");
        }
    }
}
