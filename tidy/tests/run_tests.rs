//! The runner of test programs, `.ci/run-tests`.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Four tests, of which the second ends the process.
const DIES: &str = r#"
#[test] fn a_passes() {}
#[test] fn b_dies() { std::process::abort() }
#[test] fn c_fails() { panic!("as it should") }
#[test] fn d_passes() {}
"#;

/// Tests of which the first runs its own program again, which prints a result, and the second exits as if all
/// had passed.
const EXITS: &str = r#"
#[test] fn a_runs_another_test() {
    let this = std::env::current_exe().unwrap();
    assert!(std::process::Command::new(this).args(["--exact", "d_passes"]).status().unwrap().success());
}
#[test] fn b_exits() { std::process::exit(0) }
#[test] fn c_fails() { panic!("as it should") }
#[test] fn d_passes() {}
#[test] #[ignore] fn e_is_ignored() { panic!("nobody asked for it") }
"#;

/// Tests that are ignored by default, as those of kernel verbs are, of which the first ends the process.
const KERNEL: &str = r#"
#[test] #[ignore] fn a_dies() { std::process::abort() }
#[test] #[ignore] fn b_fails() { panic!("as it should") }
#[test] #[ignore] fn c_passes() {}
"#;

/// A test that waits until the program runs twice.
const MEETS: &str = r#"
#[test] fn a_meets_another() {
    std::fs::write(std::process::id().to_string(), "").unwrap();
    let is_process = |entry: &std::fs::DirEntry| entry.file_name().to_str().unwrap().parse::<u32>().is_ok();
    let start = std::time::Instant::now();
    while std::fs::read_dir(".").unwrap().map(Result::unwrap).filter(is_process).count() < 2 {
        assert!(start.elapsed().as_secs() < 60, "it runs alone");
        std::thread::yield_now();
    }
}
#[test] fn b_fails() { panic!("as it should") }
"#;

/// Runs a program with the runner, and returns its exit status and what it printed.
fn run(text: &str, name: &str, arguments: &[&str]) -> (Option<i32>, String) {
    run_as(text, &[name], arguments)
}

/// Runs a program once by each of these names.
fn run_as(text: &str, names: &[&str], arguments: &[&str]) -> (Option<i32>, String) {
    // Tests that run side by side have a directory each, as the thread that runs a test has its name.
    let thread = std::thread::current();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(thread.name().unwrap());
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let [source, program, plan] =
        ["source.rs", "program", "plan.json"].map(|file| directory.join(file));
    fs::write(&source, text).unwrap();
    let status = Command::new("rustc")
        .args(["--test", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(status.success());
    let [program, directory] = [&program, &directory].map(|path| path.display().to_string());
    let entry = |name: &&str| {
        format!(r#"{{"name": "package/{name}", "path": "{program}", "directory": "{directory}"}}"#)
    };
    let entries: Vec<_> = names.iter().map(entry).collect();
    fs::write(&plan, format!("[{}]", entries.join(","))).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(root.join(".ci/run-tests"))
        .args(["--one-at-a-time", "--run"])
        .arg(&plan)
        .args(arguments)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (
        output.status.code(),
        printed + &String::from_utf8_lossy(&output.stderr),
    )
}

/// Checks that the runner says that the program has ended early, and names these of its tests with their exit
/// statuses.
fn assert_names(text: &str, name: &str, expected: &[&str]) {
    let (status, printed) = run(text, name, &[]);
    assert_eq!(status, Some(1), "{printed}");
    let summary = printed.split_once("== Test programs\n").unwrap().1;
    let mut failed = summary
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("FAILED"));
    let program = failed.next().unwrap();
    assert!(program.contains("its process ended early"), "{printed}");
    let failed: Vec<_> = failed.map(str::trim_start).collect();
    let expected = expected
        .iter()
        .map(|test| format!("package/{name}: {test}"));
    assert_eq!(failed, expected.collect::<Vec<_>>(), "{printed}");
}

#[test]
fn a_program_that_dies_by_one_test_still_runs_and_names_the_others() {
    assert_names(
        DIES,
        "dies",
        &["b_dies, exit status -6", "c_fails, exit status 101"],
    );
}

#[test]
fn a_program_is_left_out_by_its_name_and_an_unknown_name_is_an_error() {
    let (status, printed) = run(DIES, "left_out", &["--without", "package/left_out"]);
    assert!(
        printed.contains("== 0 test programs, 0 failed"),
        "{printed}"
    );
    assert_eq!(status, Some(0), "{printed}");
    let (status, printed) = run(DIES, "left_out", &["--without", "package/other"]);
    assert!(printed.contains("no program package/other"), "{printed}");
    assert_eq!(status, Some(1), "{printed}");
}

#[test]
fn the_result_of_a_test_that_runs_its_own_program_is_not_that_of_the_program() {
    assert_names(
        EXITS,
        "exits",
        &["b_exits, exit status 0", "c_fails, exit status 101"],
    );
}

#[test]
fn tests_that_are_ignored_by_default_run_alone_too() {
    assert_names(
        KERNEL,
        "verbs_kernel",
        &["a_dies, exit status -6", "b_fails, exit status 101"],
    );
}

#[test]
fn a_test_that_is_left_out_has_to_exist() {
    let list = Path::new(env!("CARGO_TARGET_TMPDIR")).join("left-out.txt");
    let arguments = ["--where", "here", "--not", list.to_str().unwrap()];
    let name = "left_out";
    let left_out = |tests: &[&str]| {
        let lines = tests
            .iter()
            .map(|test| format!("here package/{name} {test}: it ends the process\n"));
        fs::write(&list, lines.collect::<String>()).unwrap();
        run(DIES, name, &arguments)
    };
    let (status, printed) = left_out(&["b_dies"]);
    assert_eq!(status, Some(1), "{printed}");
    assert!(printed.contains("2 passed; 1 failed"), "{printed}");
    assert!(printed.contains("exit status 101: c_fails"), "{printed}");

    let (status, printed) = left_out(&["a_passes", "b_dies", "c_fails", "d_passes"]);
    assert_eq!(status, Some(0), "{printed}");
    assert!(!printed.contains("running"), "{printed}");

    let (status, printed) = left_out(&["e_is_gone"]);
    assert_eq!(status, Some(1), "{printed}");
    assert!(
        printed.contains("package/left_out has no test e_is_gone"),
        "{printed}"
    );
}

#[test]
fn two_programs_at_a_time_are_each_shown_as_a_whole() {
    let (status, printed) = run_as(MEETS, &["one", "two"], &["--programs", "2"]);
    assert_eq!(status, Some(1), "{printed}");
    for name in ["one", "two"] {
        let (_, shown) = printed
            .split_once(&format!("== package/{name}\n"))
            .expect(&printed);
        let (shown, _) = shown.split_once("== ").unwrap();
        for line in ["a_meets_another ... ok", "b_fails ... FAILED"] {
            assert_eq!(shown.matches(line).count(), 1, "{line}: {printed}");
        }
    }
    assert!(
        printed.contains("== 2 test programs, 2 failed"),
        "{printed}"
    );
}
