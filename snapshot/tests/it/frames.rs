//! Tests which line of a stack is the user's: frames of real programs, whole stacks, and all snapshots.

use std::collections::HashSet;

use millpond_snapshot::explain::{Explanation, Holder, Style, explain, print};
use millpond_snapshot::export::Format;
use millpond_snapshot::frames::{Frame, Kind, UserStack, classify};
use millpond_snapshot::recording::Recording;
use proptest::prelude::*;

use crate::frame_table::FRAMES;
use crate::pickle::{Py, pickle};
use crate::snapshots::{facts, snapshot};
use crate::{imported, read};

const MIB: u64 = 1 << 20;

const BASE: u64 = 0x7f00_0000_0000;

fn dict(fields: impl IntoIterator<Item = (&'static str, Py)>) -> Py {
    Py::Dict(fields.into_iter().collect())
}

fn frame(function: &str, file: &str, line: u64) -> Py {
    dict([("name", function.into()), ("filename", file.into()), ("line", line.into())])
}

/// The size of a block in MiB, its stack, and more fields of its entry.
type Block = (u64, Vec<Py>, Vec<(&'static str, Py)>);

/// A snapshot of blocks.
fn recording(blocks: Vec<Block>) -> Recording {
    let entries = blocks.into_iter().enumerate().map(|(at, (size, frames, more))| {
        let fields = [
            ("action", "alloc".into()),
            ("addr", (BASE + at as u64 * 1024 * MIB).into()),
            ("size", (size * MIB).into()),
            ("stream", 0.into()),
            ("frames", Py::List(frames)),
        ];
        dict(fields.into_iter().chain(more))
    });
    let traces = Py::List(vec![Py::List(entries.collect())]);
    imported(&pickle(&dict([("segments", Py::List(Vec::new())), ("device_traces", traces)]), 4))
}

/// The frames of an allocation as PyTorch records them by default, innermost first, before the user's.
fn recorded_by_default() -> Vec<Py> {
    const CACHING: &str = "c10::cuda::CUDACachingAllocator::Native";
    let frame = |name: &str| frame(name, "??", 0);
    vec![
        frame("torch::unwind::unwind()"),
        frame("torch::CapturedTraceback::gather(bool, bool, bool)"),
        self::frame("torch::cuda::(anonymous namespace)::gather_with_cpp()", "memory_snapshot.cpp", 0),
        frame(&format!("{CACHING}::DeviceCachingAllocator::malloc(int, unsigned long, CUstream_st*)")),
        frame(&format!(
            "{CACHING}::NativeCachingAllocator::malloc(void**, int, unsigned long, CUstream_st*)"
        )),
        frame(&format!("{CACHING}::NativeCachingAllocator::allocate(unsigned long)")),
        frame("at::TensorBase at::detail::_empty_generic()"),
        frame("at::detail::empty_generic()"),
        frame("at::detail::empty_cuda()"),
        frame("at::native::empty_cuda()"),
    ]
}

/// Returns the holders at the peak.
fn holders(explanation: &Explanation) -> &[Holder] {
    &explanation.moments[0].holders
}

fn text(explanation: &Explanation, style: Style) -> String {
    let mut text = Vec::new();
    print(explanation, style, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn frames_of_real_programs_have_their_kinds() {
    assert!(FRAMES.len() >= 80, "{}", FRAMES.len());
    let different: HashSet<_> = FRAMES.iter().map(|(_, frame)| (frame.function, frame.file)).collect();
    assert_eq!(different.len(), FRAMES.len(), "a frame is listed twice");
    let wrong: Vec<String> = FRAMES
        .iter()
        .map(|&(kind, frame)| (kind, frame, classify(frame)))
        .filter(|(kind, _, found)| kind != found)
        .map(|(kind, frame, found)| format!("{frame:?}: {found:?}, not {kind:?}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for kind in Kind::ALL {
        assert!(FRAMES.iter().any(|(of, _)| *of == kind), "no frame is {kind:?}");
    }
}

#[test]
fn a_stack_with_cpp_frames_leads_with_the_line_of_the_program() {
    let file = "/data/user/train.py";
    let lines = [("embed", 10, 40), ("attention", 20, 30), ("mlp", 30, 20)];
    let blocks = lines.iter().map(|&(function, line, size)| {
        let own = [frame(function, file, line), frame("main", file, 99)];
        (size, recorded_by_default().into_iter().chain(own).collect(), Vec::new())
    });
    let recording = recording(blocks.collect());
    let explanation = explain(&recording, None);
    let leads: Vec<&str> = holders(&explanation).iter().map(|holder| holder.lead.as_str()).collect();
    assert_eq!(leads, ["train.py:10 in embed", "train.py:20 in attention", "train.py:30 in mlp"]);
    let first = &holders(&explanation)[0];
    assert_eq!((first.stack.len(), first.frames.len(), first.stacks), (8, 12, 1));
    let kinds: Vec<Kind> = first.frames.iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds[..3], [Kind::Recorder; 3]);
    assert_eq!(kinds[3..9], [Kind::Allocator; 6]);
    assert_eq!(kinds[9..], [Kind::Dispatch, Kind::User, Kind::User]);

    let short = text(&explanation, Style::new(false));
    let shown = "30MiB in 1 block: train.py:20 in attention\n      from train.py:99 in main\n      \
                 + 10 frames of PyTorch\n";
    assert!(short.contains(shown), "{short}");
    assert!(!short.contains("torch::unwind"), "{short}");
    let long = text(&explanation, Style::new(false).with_all_frames(true));
    assert!(long.contains("\n      recorder    torch::unwind::unwind() (??:0)\n"), "{long}");
    assert!(long.contains(&format!("\n      user        attention ({file}:20)\n")), "{long}");

    let export = |format: Format| {
        let mut out = Vec::new();
        format.write(&recording, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let folded = export(Format::Folded);
    assert!(folded.contains("train.py:99 in main;train.py:20 in attention;(PyTorch) 31457280\n"), "{folded}");
    assert!(export(Format::AllFrames).contains("torch::unwind::unwind() (??:0) 31457280\n"));
}

#[test]
fn stacks_that_differ_in_folded_frames_are_one_holder() {
    let own = || vec![frame("attention", "/data/user/train.py", 20)];
    let with = |mut inner: Vec<Py>| {
        inner.extend(own());
        inner
    };
    let linear = frame("linear", "/venv/lib/python3.12/site-packages/torch/nn/functional.py", 2000);
    let recording = recording(vec![
        (3, with(recorded_by_default()), Vec::new()),
        (4, with(vec![linear]), Vec::new()),
        (5, own(), Vec::new()),
        (1, vec![frame("attention", "/data/user/train.py", 21)], Vec::new()),
    ]);
    let explanation = explain(&recording, None);
    let [first, second] = holders(&explanation) else { panic!("{:?}", holders(&explanation)) };
    assert_eq!((first.bytes, first.blocks, first.stacks), (12 * MIB, 3, 3));
    assert_eq!((second.bytes, second.lead.as_str()), (MIB, "train.py:21 in attention"));
    // The fields of one stack come from the largest.
    assert_eq!(first.stack, ["attention (/data/user/train.py:20)"]);
}

#[test]
fn the_backward_pass_leads_with_its_operator_or_with_the_line_of_the_forward_pass() {
    let engine = || {
        let mut frames = recorded_by_default();
        frames.extend(
            [
                "at::_ops::empty_strided::call(c10::ArrayRef<c10::SymInt>)",
                "at::_ops::mm::redispatch(c10::DispatchKeySet, at::Tensor const&, at::Tensor const&)",
                "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)",
                "torch::autograd::generated::details::mm_mat1_grad(at::Tensor const&)",
                "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)",
                "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)",
                "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
                "std::execute_native_thread_routine(void*)",
            ]
            .map(|name| frame(name, "??", 0)),
        );
        frames.extend([frame("start_thread", "./nptl/pthread_create.c", 442), frame("clone3", "??", 0)]);
        frames
    };
    let lines = [
        "  File \"/data/user/train.py\", line 50, in step\n    loss = model(x)\n",
        "  File \"/data/user/train.py\", line 12, in forward\n    return self.up(x)\n",
        "  File \"/venv/lib/python3.12/site-packages/torch/nn/functional.py\", line 9, in linear\n",
    ];
    let forward = Py::List(lines.into_iter().map(Py::from).collect());
    let recording = recording(vec![
        (9, engine(), Vec::new()),
        (8, engine(), vec![("forward_frames", forward)]),
        (1, Vec::new(), Vec::new()),
    ]);
    let explanation = explain(&recording, None);
    let [operator, line, none] = holders(&explanation) else { panic!("{:?}", holders(&explanation)) };
    assert_eq!((operator.lead.as_str(), operator.in_backward), ("aten::mm in MmBackward0", true));
    assert_eq!((line.lead.as_str(), line.in_backward), ("train.py:12 in forward", true));
    assert_eq!(none.lead, "(no stack)");
    let shown = text(&explanation, Style::new(false));
    assert!(shown.contains("aten::mm in MmBackward0, in backward\n"), "{shown}");
    assert!(shown.contains("      from train.py:50 in step\n"), "{shown}");
}

#[test]
fn compiled_code_leads_with_its_source() {
    let hash = "cludit2ypsasomtvbubno3ruw44fsipvuctzhyb3ahz256v2ucwf";
    let generated = dict([
        ("name", "call".into()),
        ("filename", format!("/cache/torchinductor_me/lu/{hash}.py").as_str().into()),
        ("line", 240.into()),
        ("fx_original_trace", "File \"/data/user/model.py\", line 22, in forward\n  a = self.up(x)\n".into()),
    ]);
    let wrapper =
        frame("compile_wrapper", "/venv/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", 1);
    let main = frame("<module>", "/data/user/train.py", 7);
    let recording = recording(vec![(1, vec![generated, wrapper, main], Vec::new())]);
    let explanation = explain(&recording, None);
    assert_eq!(holders(&explanation)[0].lead, "model.py:22 in forward");
    assert_eq!(holders(&explanation)[0].frames.len(), 4);
}

#[test]
fn blocks_without_python_code_say_so() {
    // The recording has the frames of Python only, so a thread of the backward pass has none.
    let recording = recording(vec![
        (2, Vec::new(), Vec::new()),
        (1, vec![frame("main", "/data/user/train.py", 7)], Vec::new()),
    ]);
    assert_eq!(holders(&explain(&recording, None))[0].lead, "(no Python code, as in the backward pass)");
}

/// Returns the lead and the path of modules of a stack.
fn seen(frames: &[(&str, &str, u64)]) -> (String, Option<String>) {
    let stack = UserStack::new(frames.iter().map(|&(function, file, line)| Frame { function, file, line }));
    (stack.lead("/data/user/"), stack.module_path())
}

#[test]
fn the_path_of_modules_is_what_the_frames_tell() {
    const MODEL: &str = "/data/user/model.py";
    const LLAMA: &str = "/venv/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py";
    const MODULE: &str = "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py";
    let lead = "model.py:20 in attention".to_owned();
    let named = [
        ("attention", MODEL, 20),
        ("Block.forward", MODEL, 30),
        ("Module._call_impl", MODULE, 1790),
        ("make.<locals>.GPT.forward", MODEL, 40),
    ];
    assert_eq!(seen(&named), (lead.clone(), Some("GPT.forward > Block.forward".to_owned())));
    let plain = [("attention", MODEL, 20), ("forward", MODEL, 30), ("forward", MODEL, 40)];
    assert_eq!(seen(&plain), (lead, Some("forward: model.py:40 > :30".to_owned())));
    let library = [
        ("_call_impl", MODULE, 1790),
        ("forward", LLAMA, 252),
        ("_call_impl", MODULE, 1790),
        ("forward", LLAMA, 971),
        ("<module>", "/data/user/train.py", 9),
    ];
    let path = "forward: modeling_llama.py:971 > :252".to_owned();
    assert_eq!(seen(&library), ("train.py:9 in <module>".to_owned(), Some(path)));
    assert_eq!(seen(&[("forward", MODEL, 30)]), ("model.py:30 in forward".to_owned(), None));
}

#[test]
fn without_the_user_a_library_leads_then_pytorch_then_an_operator() {
    const SITE: &str = "/venv/lib/python3.12/site-packages";
    let (adam, lightning) = (format!("{SITE}/torch/optim/adamw.py"), format!("{SITE}/lightning/loop.py"));
    let optimizer = format!("{SITE}/torch/optim/optimizer.py");
    let step =
        [("_use_grad", optimizer.as_str(), 70), ("step", adam.as_str(), 90), ("wrapper", &optimizer, 80)];
    assert_eq!(seen(&step).0, "torch/optim/adamw.py:90 in step");
    let trained = [&step[..], &[("run", lightning.as_str(), 5)]].concat();
    assert_eq!(seen(&trained).0, "lightning/loop.py:5 in run");
    let called = [&trained[..], &[("main", "/data/user/train.py", 3)]].concat();
    assert_eq!(seen(&called), ("train.py:3 in main".to_owned(), Some("torch/optim/adamw.py".to_owned())));
    let operator = [
        ("torch::unwind::unwind()", "??", 0),
        ("at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)", "??", 0),
        ("_start", "??", 0),
    ];
    assert_eq!(seen(&operator).0, "aten::empty");
    let native = [
        ("torch::unwind::unwind()", "??", 0),
        ("at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)", "??", 0),
        ("train(Model&)", "/data/user/src/train.cpp", 88),
        ("main", "/data/user/src/main.cpp", 12),
    ];
    assert_eq!(seen(&native).0, "src/train.cpp:88 in train");
}

/// Frames of the table, in any order.
fn stacks() -> impl Strategy<Value = Vec<Frame<'static>>> {
    let frame = (0..FRAMES.len()).prop_map(|at| FRAMES[at].1);
    proptest::collection::vec(frame, 1..12)
}

proptest! {
    #[test]
    fn the_lead_is_no_frame_of_the_recorder_or_the_allocator_if_there_are_others(frames in stacks()) {
        let stack = UserStack::new(frames.iter().copied());
        let kinds: Vec<Kind> = stack.frames().iter().map(|(_, kind)| *kind).collect();
        let is_low = |kind: &Kind| matches!(kind, Kind::Recorder | Kind::Allocator);
        if let millpond_snapshot::frames::Lead::Frame(at) = stack.first() {
            prop_assert!(!is_low(&kinds[*at]) || kinds.iter().all(is_low), "{frames:?}");
        }
        let user = |frame: &Frame<'_>, kind: Kind| kind == Kind::User && frame.file.ends_with(".py");
        if let Some(at) = stack.frames().iter().position(|(frame, kind)| user(frame, *kind)) {
            let python = stack.shown().first().map(|&at| stack.frames()[at].1);
            prop_assert_eq!(python, Some(Kind::User));
            prop_assert!(stack.shown()[0] <= at);
        }
        prop_assert!(!stack.lead("").is_empty());
        let folded = stack.folded();
        let sum = folded.pytorch + folded.allocator + folded.libraries + folded.interpreter;
        prop_assert_eq!(sum + stack.shown().len(), frames.len());
    }

    #[test]
    fn any_texts_are_read(function in ".{0,60}", file in ".{0,60}", line in 0..3_u64) {
        let frame = Frame { function: &function, file: &file, line };
        let stack = UserStack::new([frame, frame]);
        let (_, _, _) = (stack.lead(&file), stack.module_path(), stack.parts());
    }
}

#[test]
fn stacks_of_snapshots_lead_with_the_program() {
    let (mut with_user, mut led) = (0, 0);
    for (name, _) in facts() {
        let recording = snapshot(&name);
        let stacks: HashSet<_> = recording.events().filter_map(|event| event.stack).collect();
        for stack in stacks {
            // The program of all of them is `make.py`.
            let frames: Vec<Frame<'_>> = recording.stack(stack).collect();
            let Some(own) = frames.iter().find(|frame| frame.file == "make.py") else { continue };
            let lead = recording.user_stack(stack).lead(recording.user_folder());
            with_user += 1;
            led += usize::from(lead == format!("make.py:{} in {}", own.line, own.function));
        }
    }
    assert!(with_user > 100 && led * 100 >= with_user * 98, "{led} of {with_user}");
}

#[test]
fn a_log_keeps_the_frames_for_its_readers() {
    let recording = recording(vec![(1, vec![frame("main", "/data/user/train.py", 7)], Vec::new())]);
    let mut log = Vec::new();
    recording.write_csv(&mut log).unwrap();
    let again = read(&log).unwrap();
    let stack = again.event(0).unwrap().stack.unwrap();
    assert_eq!(again.user_stack(stack).lead(again.user_folder()), "train.py:7 in main");
}
