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
        format!("Device::best() takes soft, and tcp where shared memory cannot be had: {why}.");
    assert!(printed.contains(&conclusion), "{printed}");
}

#[test]
fn the_name_of_an_rdma_device_is_told_that_the_feature_is_missing() {
    let error = Device::open("mlx5_0").unwrap_err().to_string();
    assert!(
        error.contains("the Cargo feature `rdma`") && error.contains("docs/rdma.md"),
        "{error}"
    );
}
