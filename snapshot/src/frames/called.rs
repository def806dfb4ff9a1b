//! Names the framework's function that a line of a call stack calls.

use super::name::{is_native, operator, qualified};
use super::path::{Place, place};
use super::{Frame, Kind};

/// The source files of PyTorch's bindings, and where Python finds the functions in them.
const BINDINGS: [(&str, &str); 3] = [
    ("python_torch_functions", "torch."),
    ("python_nn_functions", "torch.nn.functional."),
    ("python_variable_methods", "Tensor."),
];

/// Files of PyTorch whose public functions users call, and where Python finds these functions. The other
/// functions in these files, such as `_call_impl`, come between a call and its function.
const PUBLIC: [(&str, &str); 4] = [
    ("torch/functional.py", "torch."),
    ("torch/nn/functional.py", "torch.nn.functional."),
    ("torch/nn/modules/module.py", "torch.nn.Module."),
    ("torch/_tensor.py", "Tensor."),
];

/// Returns the function that a code line calls, as in `torch.cat`, `aten::mm` or `torch.optim.adam.step`.
/// `inside` are the frames that the line leads to, the outermost first. Frames between a call and its
/// function, such as `_call_impl`, are skipped. Returns `None` if the frames do not tell the function, or if
/// it is the backward pass, which is told in other words.
pub(super) fn called<'a>(inside: impl Iterator<Item = &'a (Frame<'a>, Kind)>) -> Option<String> {
    for &(frame, kind) in inside {
        let name = match (kind, is_native(frame)) {
            (Kind::Autograd | Kind::Allocator | Kind::Recorder, _) => return None,
            (_, true) => native(frame),
            (Kind::Library | Kind::Torch | Kind::Dispatch, false) => python(frame, kind),
            _ => None,
        };
        if name.is_some() {
            return name;
        }
    }
    None
}

/// Returns the name of a function of PyTorch's bindings, or of an operator.
fn native(frame: Frame<'_>) -> Option<String> {
    let name = qualified(frame.function);
    let file = frame.file.rsplit(['/', '\\']).next().unwrap_or("");
    let bound = name.strip_prefix("torch::autograd::THPVariable_").and_then(|function| {
        let (_, place) = BINDINGS.iter().find(|(source, _)| file.starts_with(source))?;
        Some(format!("{place}{function}"))
    });
    bound.or_else(|| operator(&name))
}

/// Returns the name of a Python function of a package, with its module.
fn python(frame: Frame<'_>, kind: Kind) -> Option<String> {
    let Place::Package(file) = place(frame.file) else { return None };
    if let Some((_, place)) = PUBLIC.iter().find(|(public, _)| file == *public) {
        let name = frame.function.rsplit('.').next().unwrap_or(frame.function);
        return (!name.starts_with('_')).then(|| format!("{place}{name}"));
    }
    let module = file.strip_suffix(".py").filter(|_| kind != Kind::Dispatch)?;
    let module = module.strip_suffix("/__init__").unwrap_or(module);
    // A module's own code only imports.
    (frame.function != "<module>").then(|| format!("{}.{}", module.replace('/', "."), frame.function))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::classify;

    fn of(inside: &[(&str, &str)]) -> Option<String> {
        let frames = inside.iter().map(|(function, file)| Frame { function, file, line: 1 });
        let frames: Vec<_> = frames.map(|frame| (frame, classify(frame))).collect();
        called(frames.iter())
    }

    #[test]
    fn the_outermost_function_of_a_framework_is_named() {
        const BINDING: &str = "torch::autograd::THPVariable_cat(_object*, _object*, _object*)";
        const OPERATOR: &str = "at::_ops::cat::call(c10::IListRef<at::Tensor> const&, long)";
        for (inside, expected) in [
            (&[("PyCMethod_New", "??"), (BINDING, "python_torch_functions_2.cpp")][..], Some("torch.cat")),
            (&[(BINDING, "python_variable_methods.cpp")], Some("Tensor.cat")),
            (&[(BINDING, "python_nn_functions.cpp")], Some("torch.nn.functional.cat")),
            // Without the source file, the operator tells the function.
            (&[(BINDING, "libtorch_python.so"), (OPERATOR, "??")], Some("aten::cat")),
            (
                &[
                    ("_wrapped_call_impl", "torch/nn/modules/module.py"),
                    ("_call_impl", "torch/nn/modules/module.py"),
                    ("forward", "torch/nn/modules/linear.py"),
                    (OPERATOR, "??"),
                ],
                Some("torch.nn.modules.linear.forward"),
            ),
            (&[("relu", "torch/nn/functional.py"), (OPERATOR, "??")], Some("torch.nn.functional.relu")),
            (&[("einsum", "torch/functional.py")], Some("torch.einsum")),
            (
                &[("Module.to", "torch/nn/modules/module.py"), ("_apply", "torch/nn/modules/module.py")],
                Some("torch.nn.Module.to"),
            ),
            (
                &[("wrapper", "torch/optim/optimizer.py"), ("step", "torch/optim/adam.py")],
                Some("torch.optim.adam.step"),
            ),
            (
                &[("train", "/v/lib/python3.12/site-packages/transformers/trainer.py")],
                Some("transformers.trainer.train"),
            ),
            (&[("backward", "torch/_tensor.py"), (OPERATOR, "??")], None),
            (&[("at::detail::empty_cuda(int)", "??"), (OPERATOR, "??")], None),
            (&[("contextmanager", "/usr/lib/python3.12/contextlib.py")], None),
            (&[], None),
        ] {
            assert_eq!(of(inside).as_deref(), expected, "{inside:?}");
        }
    }
}
