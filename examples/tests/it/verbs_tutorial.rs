//! Runs the tutorial on the device that VERBLINE_DEVICE names, or on the software device.

use std::process::Command;

#[test]
fn it_does_what_it_says() {
    let device = std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    let output = Command::new(env!("CARGO_BIN_EXE_verbs_tutorial"))
        .arg(&device)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}\n{error}");
    let opened = format!("Opened {device}: ");
    for words in [
        "Devices of this machine:\n",
        &opened,
        "received 12 bytes, 'hello, verbs', with the immediate 0xfeed\n",
        "the send is complete; its slot was returned\n",
        "\nstate              RTS\n",
        "posted 8 shared receives; fewer than 4 raise an event\n",
        "woken: completion queue ",
        "received 'one'\n",
        "received 'three'\n",
        "received 'five'\n",
        "the device reports a shortage of receives: 3 are left\n",
        "posted 5 receives again and armed the limit of 4\n",
    ] {
        assert!(printed.contains(words), "'{words}' is not in\n{printed}");
    }
}

#[test]
fn a_device_that_is_not_there_is_a_sentence() {
    let output = Command::new(env!("CARGO_BIN_EXE_verbs_tutorial"))
        .arg("verbline_has_none")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("verbs_tutorial: there is no device named 'verbline_has_none'"),
        "{error}"
    );
}
