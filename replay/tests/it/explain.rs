//! Tests of the command `explain`.

use crate::support::{Folder, Run, program, snapshot};

const MIB: u64 = 1 << 20;

#[test]
fn a_device_of_some_bytes_is_a_forgotten_unit() {
    let explain = |size: &str| -> Run {
        let log = snapshot("small");
        program().arg("explain").arg(log).args(["--device-memory", size]).output().unwrap().into()
    };
    for size in ["80", "0", "1048575", "80kB"] {
        explain(size).fails_with(2, &["less than any device has", "80GiB"]);
    }
    assert_eq!(explain("80GiB").status, 0);
    explain("1048576").fails_with(2, &["--device-memory: ", "a device with 1MiB contradicts the file: "]);
}

#[test]
fn a_text_with_sums_has_failed_requests_and_no_other_events() {
    let text = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshot/tests/readers/oom_old.txt");
    for command in ["explain", "import"] {
        let run: Run = program().arg(command).arg(&text).output().unwrap().into();
        assert!(run.stdout.contains("2 failed requests"), "{}", run.stdout);
        let told = run.stdout.split("not known:").next().unwrap();
        assert!(
            !["allocation", "frees", "event ", "streams", "blocks ("].iter().any(|word| told.contains(word)),
            "{told}"
        );
    }
}

#[test]
fn the_command_prints_text_and_json() {
    let file = snapshot("out_of_memory");
    let run = |flags: &[&str]| -> Run {
        let run: Run = program().arg("explain").arg(&file).args(flags).output().unwrap().into();
        assert_eq!(run.status, 0, "{}", run.stderr);
        run
    };
    let text = run(&[]).stdout;
    for part in [
        "any allocator needs at least 600MiB; the recorded one reserved at most 560MiB",
        "limit: the device had",
        "at the failed request, event 145:",
        "  wanted",
        "  pinned",
        "not known:",
        " in 20 blocks: make.py:",
        "      from make.py:",
    ] {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
    let stacks = run(&["--stacks"]).stdout;
    assert!(stacks.contains("      user        <module> (make.py:"), "{stacks}");
    let report: serde_json::Value =
        serde_json::from_str(&run(&["--format", "json", "--device-memory", "150109880320B"]).stdout).unwrap();
    let least = serde_json::Value::from(600 * MIB);
    let failure = &report["moments"][1];
    assert_eq!((&failure["occasion"], &failure["wanted_bytes"]), (&"failure".into(), &(300 * MIB).into()));
    assert!(failure["outside_bytes"].as_u64() > Some(0), "{failure}");
    assert_eq!(report["diagnoses"][0]["code"], "limit");
    // `plan` proves for this file that its blocks and the failed request fit into exactly this size.
    assert_eq!((&report["bound_host_order"], &report["bound_stream_safe"]), (&least, &least));
    assert_eq!(report["not_known"][0]["code"], "other_allocators");
}

#[test]
fn a_page_explains_with_the_size_of_the_device_too() {
    let folder = Folder::new();
    let page = folder.path("page.html");
    let has_outside = |flags: &[&str]| {
        let mut program = program();
        program.arg("report").arg(snapshot("out_of_memory")).arg("-o").arg(&page).args(["--plan-time", "0"]);
        let run: Run = program.args(flags).output().unwrap().into();
        assert_eq!(run.status, 0, "{}", run.stderr);
        std::fs::read_to_string(&page).unwrap().contains("\"outside_bytes\":1")
    };
    assert!(has_outside(&["--device-memory", "150109880320B"]));
    assert!(!has_outside(&[]));
}
