//! What a program is told that is built without the feature `rdma`.

use rpc_transport_verbs::Device;

#[test]
fn without_kernel_verbs_it_takes_the_software_device_and_says_why() {
    let printed = Device::survey().to_string();
    let has_rdma =
        std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some());
    let why = if has_rdma {
        assert!(printed.contains("built without kernel verbs"), "{printed}");
        "no RDMA device can be used"
    } else {
        "there is no RDMA device here"
    };
    let conclusion =
        format!("Device::best() takes soft, and tcp if the program allows it: {why}.");
    assert!(printed.contains(&conclusion), "{printed}");
}

#[test]
fn an_rdma_device_is_told_which_feature_is_missing() {
    for name in ["mlx5_0", "rxe0", "rocep1s0f0", "siw0"] {
        let error = Device::open(name).unwrap_err().to_string();
        assert!(
            error.contains("the Cargo feature `rdma`") && error.contains("docs/rdma.md"),
            "{error}"
        );
    }
}
