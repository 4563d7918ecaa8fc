//! Runs some of the attacks as `make attacks` does, for a short time.

use std::io::Write;
use std::process::Command;

/// Runs attacks on a device for a short time, and checks what does not depend on time: on a machine that runs
/// other tests, latencies mean nothing.
fn attacks_do_no_harm(device: &str, names: &[&str]) {
    let attack = env!("CARGO_BIN_EXE_attacks");
    if !rustix::process::geteuid().is_root() {
        const WHY: &str = "NOT RUN: this test starts processes of another user, so it needs root";
        assert!(std::env::var_os("CI").is_none(), "{WHY}");
        let output = Command::new(attack)
            .output()
            .expect("the program can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains("as root"),
            "{text}"
        );
        // Not by `eprintln`, which the test harness captures.
        let _ = writeln!(std::io::stderr(), "{WHY}");
        return;
    }
    let output = Command::new(attack)
        .args(names)
        .args(["--device", device, "--seconds", "1", "--rounds", "1"])
        .output()
        .expect("the program can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(lines.len(), names.len(), "{output:?}");
    for (line, name) in lines.iter().zip(names) {
        let (verdict, seen) = line.split_once(" | ").expect("a verdict and its reasons");
        assert!(verdict.starts_with(name), "{line}");
        for harm in [
            "errors", "refused", "blocked", "remains", "changed", "memory",
        ] {
            assert!(!verdict.contains(harm), "{line}");
        }
        assert!(seen.contains("good client: 0 errors"), "{line}");
        assert!(!seen.contains("gave up"), "{line}");
    }
}

#[test]
fn attacks_by_another_user_do_no_harm() {
    attacks_do_no_harm("soft", &["block", "slots", "files"]);
}

#[test]
fn attacks_by_the_same_user_do_no_harm() {
    attacks_do_no_harm("soft", &["blockwake", "notafile"]);
}

/// Each of them takes all connections of the server. Its new clients come from the same address, or, in
/// the last one, from another.
#[test]
fn attacks_over_tcp_keep_no_new_client_out() {
    attacks_do_no_harm("tcp", &["unclaimed", "halves", "deaf", "silent", "onecall"]);
}
