//! The output of `device_info` on the software device, which exists on every machine, and its exit
//! status if a device cannot be used.

use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program with these arguments, and with VERBLINE_DEVICE set to `named`, if any.
fn device_info<'a>(arguments: impl IntoIterator<Item = &'a str>, named: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_device_info"));
    command.args(arguments).env_remove("VERBLINE_DEVICE");
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
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "soft: shared memory of this host",
        "  port 1      active, shared memory, MTU 4096",
        "Device::best() opens soft: the environment variable VERBLINE_DEVICE names it.",
        "device soft, each poller: messages up to 4 MiB received and 2 GiB sent, 64 connections",
        "  long       messages that do not fit a slot",
        "             by RDMA READ through memory windows",
    ] {
        assert!(
            printed.lines().any(|printed| printed.starts_with(line)),
            "'{line}' is not in\n{printed}"
        );
    }
}

#[test]
fn the_argument_outweighs_the_environment() {
    let output = device_info(Some("soft"), Some("soft:2"));
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(printed.contains("\ndevice soft, each poller"), "{printed}");
}

#[test]
fn a_device_that_cannot_be_used_is_a_sentence_and_a_failure() {
    for output in [
        device_info(Some("soft:2"), None),
        device_info(None, Some("soft:2")),
    ] {
        assert_eq!(output.status.code(), Some(1));
        let printed = text(&output.stderr);
        assert!(
            printed.ends_with("device_info: 'soft' has no port 2; it has 1\n"),
            "{printed}"
        );
        // The report on usable devices is printed anyway.
        assert!(text(&output.stdout).contains("Device::best() "));
    }
}

#[test]
fn it_prints_all_that_a_device_a_port_and_a_queue_pair_say() {
    let output = device_info(["soft"], None);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "device soft: channel adapter, transport shared memory",
        "  fw_ver                    0.",
        "  node_guid                 ",
        "  max_sge                   ",
        "port 1 of soft",
        "  state                active",
        "  physical_state       link up",
        "  capabilities         none",
        "  gid 0                ",
        "  pkey 0               0xffff (full member)",
        "a queue pair of soft, connected to itself",
        "  qp_type            RC",
        "  state              RTS",
        "  timeout            67.109ms for an acknowledgement",
        "  retry_cnt          6, so 469.762ms for a silent peer",
        "  rnr_retry          for ever",
    ] {
        assert!(
            printed.lines().any(|printed| printed.starts_with(line)),
            "'{line}' is not in\n{printed}"
        );
    }
}

#[test]
fn as_json_it_is_one_value_with_numbers_in_units() {
    let output = device_info(["--json", "soft"], None);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = all["devices"].as_array().unwrap();
    let soft = devices
        .iter()
        .find(|device| device["name"] == "soft")
        .unwrap();
    assert_eq!(soft["transport"], "shared memory");
    let attributes = &soft["attributes"];
    assert_eq!(attributes["port_count"], 1);
    assert!(attributes["max_qp"].as_u64().unwrap() > 1000);
    assert_eq!(attributes["max_locked_len"], Value::Null, "no limit");
    let port = &soft["ports"][0];
    assert_eq!(port["attributes"]["active_mtu"], 4096);
    assert_eq!(port["attributes"]["flags"]["names"][0], "GRH_REQUIRED");
    assert_eq!(port["pkeys"][0]["pkey"], 0xffff);
    let queue_pair = &soft["queue_pair"];
    assert_eq!(queue_pair["init"]["qp_type"], "RC");
    let attributes = &queue_pair["attributes"];
    assert_eq!(attributes["state"], "RTS");
    assert_eq!(attributes["timeout_ns"], 4096 << 14);
    assert_eq!(attributes["rnr_retry"], Value::Null, "for ever");
    assert_eq!(attributes["qkey"], Value::Null, "a connection has none");
    assert_eq!(attributes["dest_qp_num"], queue_pair["init"]["qp_num"]);
    let limits = all["poller"]["limits"].as_str().unwrap();
    assert!(limits.starts_with("device soft, each poller"), "{limits}");
}

#[test]
fn as_json_a_device_that_cannot_be_used_is_an_error_in_the_value_and_a_failure() {
    let output = device_info(["--json", "soft:2"], None);
    assert_eq!(output.status.code(), Some(1));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["poller"]["limits"], Value::Null);
    let error = all["poller"]["error"].as_str().unwrap();
    assert_eq!(error, "'soft' has no port 2; it has 1");
}

#[test]
fn it_helps() {
    let output = device_info(["--help"], None);
    assert!(output.status.success());
    let printed = text(&output.stdout);
    for words in ["--json", "mlx5_0:1:3", "VERBLINE_DEVICE", "nanoseconds"] {
        assert!(printed.contains(words), "'{words}' is not in\n{printed}");
    }
    // An unknown option is rejected with a hint.
    let output = device_info(["--yaml"], None);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--help"));
}
