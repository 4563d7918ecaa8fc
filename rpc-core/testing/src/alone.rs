//! [`is_alone`]: a process of its own for a test of what a whole process shares.

use std::env;
use std::process::Command;

/// Set in the process of one test.
const ALONE: &str = "VERBLINE_TEST_ALONE";

/// Returns true in a process that runs this test alone. In the process of all tests it starts that
/// process, and returns false when the test has passed there. `test` is the test's whole name.
///
/// A test of the log needs it: while a process has one subscriber, `tracing` asks the thread that
/// reaches a line of the source first whether the line is logged, and keeps the answer for all threads.
/// Another test that comes first has no subscriber, and the line is lost for the test of the log.
///
/// # Panics
/// The test has failed in its process, or there is no test of this name.
pub fn is_alone(test: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let output = Command::new(env::current_exe().expect("a test has a file"))
        .args(["--exact", test])
        .env(ALONE, "1")
        .output()
        .expect("a test can be run again");
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{test} in a process of its own: {}\n{said}\n{errors}",
        output.status
    );
    false
}
