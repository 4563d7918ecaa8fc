//! What `device_info` says on the software device, which is everywhere, and how it ends where a
//! device cannot be used.

use std::process::{Command, Output};

/// Runs the program with an argument, if any, and with what the environment is to name.
fn device_info(argument: Option<&str>, named: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_device_info"));
    command.args(argument).env_remove("VERBLINE_DEVICE");
    if let Some(named) = named {
        command.env("VERBLINE_DEVICE", named);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn it_says_what_there_is_which_is_taken_and_why_and_what_a_poller_gets() {
    let output = device_info(None, Some("soft"));
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "soft: shared memory of this host",
        "  port 1      active, shared memory, MTU 4096",
        "Device::best() opens soft: the environment variable VERBLINE_DEVICE names it.",
        "device soft, each poller: messages up to 4096 bytes, 64 connections",
    ] {
        assert!(
            said.lines().any(|said| said.starts_with(line)),
            "'{line}' is not in\n{said}"
        );
    }
}

/// With the feature it depends on the machine's devices.
#[cfg(not(feature = "rdma"))]
#[test]
fn without_kernel_verbs_it_takes_the_software_device_and_says_why() {
    let output = device_info(None, None);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let has_rdma =
        std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some());
    let why = if has_rdma {
        assert!(said.contains("built without kernel verbs"), "{said}");
        "no RDMA device can be used"
    } else {
        "there is no RDMA device here"
    };
    let conclusion = format!("Device::best() takes soft: {why}.\n");
    assert!(said.contains(&conclusion), "{said}");
}

#[test]
fn the_argument_outweighs_the_environment() {
    let output = device_info(Some("soft"), Some("soft:2"));
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("\ndevice soft, each poller"), "{said}");
}

#[test]
fn a_device_that_cannot_be_used_is_a_sentence_and_a_failure() {
    for output in [
        device_info(Some("soft:2"), None),
        device_info(None, Some("soft:2")),
    ] {
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(
            said.ends_with("device_info: 'soft' has no port 2; it has 1\n"),
            "{said}"
        );
        // What can be used is said all the same.
        assert!(text(&output.stdout).contains("Device::best() "));
    }
}

#[cfg(not(feature = "rdma"))]
#[test]
fn the_name_of_an_rdma_device_is_told_that_the_feature_is_missing() {
    let output = device_info(Some("mlx5_0"), None);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("the Cargo feature `rdma`") && said.contains("docs/rdma.md"),
        "{said}"
    );
}
