//! Each program says how to use it and what to try next, and rejects arguments that are wrong before
//! it does anything.

use std::process::{Command, Output};

const PROGRAMS: [&str; 17] = [
    env!("CARGO_BIN_EXE_blob_client"),
    env!("CARGO_BIN_EXE_blob_server"),
    env!("CARGO_BIN_EXE_chat_client"),
    env!("CARGO_BIN_EXE_chat_server"),
    env!("CARGO_BIN_EXE_device_info"),
    env!("CARGO_BIN_EXE_greeter_client"),
    env!("CARGO_BIN_EXE_greeter_load"),
    env!("CARGO_BIN_EXE_greeter_server"),
    env!("CARGO_BIN_EXE_in_process"),
    env!("CARGO_BIN_EXE_observed_server"),
    env!("CARGO_BIN_EXE_route_guide_client"),
    env!("CARGO_BIN_EXE_route_guide_server"),
    env!("CARGO_BIN_EXE_shared_client"),
    env!("CARGO_BIN_EXE_tokio_server"),
    env!("CARGO_BIN_EXE_verbs_tutorial"),
    env!("CARGO_BIN_EXE_watch_client"),
    env!("CARGO_BIN_EXE_watch_server"),
];

/// Runs a program that ends by itself because of its arguments.
fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

#[test]
fn each_program_says_how_to_use_it_and_what_is_next() {
    for program in PROGRAMS {
        let output = run(program, &["--help"]);
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{program}");
        let last = help.trim_end().lines().last().unwrap_or_default();
        assert!(last.starts_with("Next: "), "{program}:\n{help}");
    }
}

#[test]
fn an_argument_that_is_wrong_is_an_error_of_usage() {
    for program in PROGRAMS {
        let output = run(program, &["--wrong"]);
        assert_eq!(output.status.code(), Some(2), "{program}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("unexpected argument '--wrong'"), "{error}");
        assert!(error.contains("Usage: "), "{error}");
    }
}

#[test]
fn a_server_whose_arguments_are_swapped_creates_nothing() {
    for program in [
        env!("CARGO_BIN_EXE_blob_server"),
        env!("CARGO_BIN_EXE_watch_server"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let output = Command::new(program)
            .args(["127.0.0.1:0", "store"])
            .current_dir(&directory)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("expected host:port"), "{error}");
        let created = std::fs::read_dir(&directory).unwrap().count();
        assert_eq!(created, 0, "{program}");
    }
}
