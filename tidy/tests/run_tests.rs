//! The runner of test programs, `.ci/run-tests`.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Four tests, of which the second ends the process.
const PROGRAM: &str = r#"
#[test] fn a_passes() {}
#[test] fn b_dies() { std::process::abort() }
#[test] fn c_fails() { panic!("as it should") }
#[test] fn d_passes() {}
"#;

/// Runs the program with the runner, and returns its exit status and what it printed.
fn run(name: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&directory).unwrap();
    let [source, program, plan] =
        ["source.rs", "program", "plan.json"].map(|file| directory.join(file));
    fs::write(&source, PROGRAM).unwrap();
    let status = Command::new("rustc")
        .args(["--test", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(status.success());
    let [program, directory] = [&program, &directory].map(|path| path.display().to_string());
    let entry = format!(
        r#"[{{"name": "package/program", "path": "{program}", "directory": "{directory}"}}]"#
    );
    fs::write(&plan, entry).unwrap();
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

#[test]
fn a_program_that_dies_by_one_test_still_runs_and_names_the_others() {
    let (status, printed) = run("dies", &[]);
    assert_eq!(status, Some(1), "{printed}");
    let summary = printed.split_once("== Test programs\n").unwrap().1;
    let failed: Vec<_> = summary
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("FAILED"))
        .collect();
    let [program, died, failed] = failed[..] else {
        panic!("{printed}");
    };
    assert!(program.contains("its process ended early"), "{printed}");
    assert!(
        died.contains("package/program: b_dies, exit status -6"),
        "{printed}"
    );
    assert!(
        failed.contains("package/program: c_fails, exit status 101"),
        "{printed}"
    );
}

#[test]
fn a_test_that_is_left_out_has_to_exist() {
    let list = Path::new(env!("CARGO_TARGET_TMPDIR")).join("left-out.txt");
    let arguments = ["--where", "here", "--not", list.to_str().unwrap()];
    fs::write(&list, "here package/program b_dies: it ends the process\n").unwrap();
    let (status, printed) = run("left_out", &arguments);
    assert_eq!(status, Some(1), "{printed}");
    assert!(printed.contains("2 passed; 1 failed"), "{printed}");
    assert!(printed.contains("exit status 101: c_fails"), "{printed}");

    fs::write(&list, "here package/program e_is_gone: nobody knows\n").unwrap();
    let (status, printed) = run("left_out", &arguments);
    assert_eq!(status, Some(1), "{printed}");
    assert!(
        printed.contains("package/program has no test e_is_gone"),
        "{printed}"
    );
}
