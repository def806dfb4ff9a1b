//! Tests `gate` (budgets, exit status, Markdown, JUnit) and the commands `record`, `completions` and `man`.

use std::path::Path;

use serde_json::Value;

use crate::support::{Folder, Run, program, snapshot};

fn gate(file: &Path, budget: &Path, flags: &[&str]) -> Run {
    let mut command = program();
    command.arg("gate").arg(file).arg("--budget").arg(budget).args(flags);
    command.output().unwrap().into()
}

#[test]
fn a_file_is_within_the_budget_that_it_wrote_and_a_byte_more_is_not() {
    let folder = Folder::new();
    let budget = folder.path("budget.toml");
    assert_eq!(gate(&snapshot("plain"), &budget, &["--write"]).status, 0);
    let run = gate(&snapshot("plain"), &budget, &[]);
    assert_eq!(run.status, 0, "{}{}", run.stdout, run.stderr);
    let text = std::fs::read_to_string(&budget).unwrap();
    let line = text.lines().find(|line| line.starts_with("peak_allocated_bytes")).unwrap();
    let bytes: u64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
    let tight =
        folder.write("tight.toml", text.replace(line, &format!("peak_allocated_bytes = {}", bytes - 1)));
    let byte = folder.write("byte.toml", "peak_allocated_bytes = 1\n");
    let run = gate(&snapshot("plain"), &byte, &[]);
    assert!(run.status == 1 && run.stdout.contains("the budget allows 1B\n"), "{}", run.stdout);
    let run = gate(&snapshot("plain"), &tight, &["--format", "json"]);
    assert_eq!(run.status, 1);
    let gate: Value = serde_json::from_str(&run.stdout).unwrap();
    let over: Vec<&Value> =
        gate["checks"].as_array().unwrap().iter().filter(|check| check["is_within"] == false).collect();
    assert_eq!(over.len(), 1);
    assert_eq!(
        (&over[0]["quantity"], &over[0]["measured"]),
        (&"peak_allocated".into(), &(bytes as f64).into())
    );
}

#[test]
fn a_budget_from_a_run_that_failed_or_is_not_whole_is_written_with_a_warning() {
    let folder = Folder::new();
    let budget = folder.path("budget.toml");
    let late = folder.log("1,00:00:00.000001,free,0x7000,640,0\n1,00:00:00.000002,allocate,0x10,512,0\n");
    for (file, why) in [
        (snapshot("out_of_memory"), "this run has 1 failed request, and the budget allows as many"),
        (late, "the budget may be too low: "),
    ] {
        let run = gate(&file, &budget, &["--write"]);
        assert_eq!((run.status, budget.exists()), (0, true), "{}", run.stderr);
        assert!(run.stderr.starts_with("warning: ") && run.stderr.contains(why), "{}", run.stderr);
    }
    assert_eq!(gate(&snapshot("plain"), &budget, &["--write"]).stderr, "");
}

#[test]
fn reserved_bytes_have_a_tolerance_and_the_ratio_to_the_bound_is_compared() {
    let folder = Folder::new();
    let written = folder.path("budget.toml");
    gate(&snapshot("plain"), &written, &["--write"]);
    let text = std::fs::read_to_string(written).unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let reserved = value("peak_reserved_bytes") as u64;
    let of = |text: String| gate(&snapshot("plain"), &folder.write("other.toml", text), &[]).status;
    assert_eq!(of(format!("peak_reserved_bytes = {}", reserved * 99 / 100)), 0);
    assert_eq!(of(format!("peak_reserved_bytes = {}", reserved * 97 / 100)), 1);
    let exactly = format!("peak_reserved_bytes = {}\nreserved_tolerance_percent = 0.0", reserved - 1);
    assert_eq!(of(exactly), 1);
    let ratio = value("peak_reserved_bytes") / value("peak_allocated_bytes");
    assert_eq!(of(format!("reserved_over_bound = {}", ratio + 0.001)), 0);
    assert_eq!(of(format!("reserved_over_bound = {}", ratio - 0.001)), 1);
    assert_eq!(of("failures = 0".to_owned()), 0);
    let failed = folder.write("failures.toml", "failures = 0");
    assert_eq!(gate(&snapshot("out_of_memory"), &failed, &[]).status, 1);
}

#[test]
fn what_a_file_does_not_say_is_within_no_budget() {
    let folder = Folder::new();
    let log = folder.log("1,00:00:00.000001,allocate,0x10,512,0\n");
    let budget = folder.write("budget.toml", "peak_reserved_bytes = 1000000");
    let run = gate(&log, &budget, &[]);
    assert_eq!(run.status, 1);
    assert!(run.stdout.contains("does not have this figure"), "{}", run.stdout);
    assert!(run.stdout.contains("needs at least 512B\n"), "{}", run.stdout);
}

#[test]
fn budgets_that_cannot_be_read_are_bad_input() {
    let folder = Folder::new();
    for (text, says) in [
        ("", "names no quantity"),
        ("peak = 5", "unknown field `peak`"),
        ("failures = 0\nreserved_tolerance_percent = -1.0", "0 percent or more"),
        ("reserved_over_bound = nan", "a ratio"),
        ("peak_allocated_bytes = \"a\"", "invalid type"),
    ] {
        let budget = folder.write("budget.toml", text);
        gate(&snapshot("small"), &budget, &[]).fails_with(2, &["budget.toml", says]);
    }
    gate(&snapshot("small"), &folder.path("none.toml"), &[]).fails_with(2, &["none.toml", "add --write"]);
    // The error for another path must not claim that there is no budget yet.
    std::fs::write(folder.path("file"), "").unwrap();
    gate(&snapshot("small"), &folder.path("file/b.toml"), &[]).fails_with(2, &["Not a directory"]);
    let log = folder.log("1,00:00:00.000001,allocate,0x10,512,0\n");
    gate(&log, &log, &["--write"]).fails_with(2, &["overwriting"]);
}

#[test]
fn markdown_is_added_and_junit_counts_what_failed() {
    let folder = Folder::new();
    let log = folder.write(
        "a&b<c>\"d`e|f.csv",
        "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000001,allocate,0x10,512,0\n",
    );
    let budget = folder.write("budget.toml", "peak_allocated_bytes = 511\nfailures = 0");
    let (markdown, junit) = (folder.write("summary.md", "before\n"), folder.path("junit.xml"));
    let flags = ["--markdown", markdown.to_str().unwrap(), "--junit", junit.to_str().unwrap()];
    assert_eq!(gate(&log, &budget, &flags).status, 1);
    let markdown = std::fs::read_to_string(markdown).unwrap();
    assert!(
        markdown.starts_with("before\n") && markdown.contains("| `peak_allocated_bytes` | 512B"),
        "{markdown}"
    );
    let rows = markdown.lines().filter(|line| line.starts_with('|'));
    assert!(rows.clone().all(|row| row.matches('|').count() == 5), "{markdown}");
    assert_eq!(rows.count(), 4);
    let xml = std::fs::read_to_string(junit).unwrap();
    assert!(xml.contains("<testsuite name=\"millpond gate\" tests=\"2\" failures=\"1\">"), "{xml}");
    assert!(xml.contains("a&amp;b&lt;c&gt;&quot;d`e|f.csv"), "{xml}");
    assert_eq!((xml.matches("<testcase").count(), xml.matches("<failure").count()), (2, 1));
    is_well_formed(&xml);
}

#[test]
fn what_cannot_be_written_is_no_file_over_its_budget_and_no_output_is_another() {
    let folder = Folder::new();
    let log = folder.log("1,00:00:00.000001,allocate,0x10,512,0\n");
    let budget = folder.write("budget.toml", "peak_allocated_bytes = 512");
    let missing = folder.path("nowhere/x.xml");
    let missing = missing.to_str().unwrap();
    gate(&log, &budget, &["--junit", missing]).fails_with(2, &["cannot be written", missing]);
    gate(&log, &budget, &["--markdown", missing]).fails_with(2, &["cannot be written", missing]);
    let (own, same) = (budget.to_str().unwrap(), folder.path("same"));
    let same = same.to_str().unwrap();
    for flags in [["--markdown", own, "--junit", same], ["--junit", own, "--markdown", same]] {
        gate(&log, &budget, &flags).fails_with(2, &["named twice"]);
    }
    std::fs::write(same, "").unwrap();
    gate(&log, &budget, &["--junit", same, "--markdown", same]).fails_with(2, &["named twice"]);
    assert_eq!(std::fs::read_to_string(&budget).unwrap(), "peak_allocated_bytes = 512");
}

/// A float has only 53 bits of precision.
#[test]
fn a_byte_more_counts_at_any_size() {
    let folder = Folder::new();
    let bytes = (1_u64 << 53) + 1;
    let log = folder.write("large.csv", format!("id,lower,upper,size\na,0,10,{bytes}\n"));
    for (budget, status) in [(bytes, 0), (bytes - 1, 1)] {
        let budget = folder.write("budget.toml", format!("peak_allocated_bytes = {budget}"));
        assert_eq!(gate(&log, &budget, &[]).status, status);
    }
}

/// Checks that XML elements end in the opposite order of their starts, and that texts contain no markup.
fn is_well_formed(xml: &str) {
    let mut open = Vec::new();
    let (mut rest, mut elements) = (xml.split_once("?>").unwrap().1, 0);
    while let Some((text, tag)) = rest.split_once('<') {
        assert!(text.trim().is_empty(), "{text}");
        let (tag, after) = tag.split_once('>').unwrap();
        rest = after;
        elements += 1;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap());
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert!(open.is_empty() && elements > 3, "{open:?}");
}

#[test]
fn record_prints_the_lines_and_explain_prints_them_where_a_file_lacks_something() {
    let record = |names: &[&str]| Run::from(program().arg("record").args(names).output().unwrap());
    let all = record(&[]);
    for (name, line) in [
        ("pytorch", "_record_memory_history(max_entries=1000000, stacks=\"python\")"),
        ("rmm", "log_file_name=\"rmm.csv\""),
        ("cupy", "rmm_cupy_allocator"),
        ("nsys", "nsys export --type sqlite"),
        ("millpond", "MILLPOND_STACK="),
    ] {
        let one = record(&[name]);
        assert!(one.status == 0 && one.stdout.contains(line), "{}", one.stdout);
        assert!(all.stdout.contains(&one.stdout), "{}", all.stdout);
    }
    let explain = |name: &str| Run::from(program().arg("explain").arg(snapshot(name)).output().unwrap());
    assert!(explain("state_only").stdout.contains("  torch.cuda.memory._record_memory_history("));
    assert!(!explain("plain").stdout.contains("_record_memory_history("));
}

#[test]
fn completions_and_the_man_page_name_the_commands() {
    let run = |words: &[&str]| Run::from(program().args(words).output().unwrap());
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let completions = run(&["completions", shell]);
        assert!(completions.status == 0 && completions.stdout.contains("explain"), "{shell}");
    }
    let of_plan = run(&["man", "plan"]);
    assert!(of_plan.status == 0 && of_plan.stdout.contains("millpond\\-replay\\-plan"), "{}", of_plan.stdout);
    assert!(of_plan.stdout.contains("\\-\\-capacity") && of_plan.stdout.contains("\\-\\-color"));
    run(&["man", "paln"]).fails_with(2, &["no command `paln`", "did you mean `plan`?"]);
    let man = run(&["man"]);
    assert!(man.status == 0 && man.stdout.contains(".TH millpond-replay 1"), "{}", man.stdout);
    let wrong = program().arg("completions").arg("bsh").output().unwrap();
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("similar value exists: 'bash'"));
}

#[test]
fn the_stack_that_record_prints_for_millpond_writes_a_log_that_is_explained() {
    let line = Run::from(program().args(["record", "millpond"]).output().unwrap()).stdout;
    let stack = line.split('\'').nth(1).unwrap();
    let folder = Folder::new();
    let log = folder.path("millpond.csv");
    let stack = stack.replace("millpond.csv", log.to_str().unwrap());
    assert_eq!(Run::of(&snapshot("small"), &["--stack", &stack]).status, 0);
    let explained = Run::from(program().arg("explain").arg(&log).output().unwrap());
    assert!(explained.status == 0 && explained.stdout.contains("at the peak"), "{}", explained.stderr);
}
