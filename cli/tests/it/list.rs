//! `verbline list`.

use crate::golden::golden;
use crate::program::verbline;
use crate::server::Fixture;

#[test]
fn the_services_of_a_server_are_listed_over_both_protocols() {
    let server = Fixture::new();
    for address in server.both() {
        golden("list.txt", &verbline(&["list", address]).ok());
    }
}

#[test]
fn the_methods_of_a_service_are_listed_over_both_protocols() {
    let server = Fixture::new();
    for address in server.both() {
        let listed = verbline(&["list", address, "verbline.kinds.Kinds"]).ok();
        golden("list-methods.txt", &listed);
    }
}

/// A Verbline server names its methods to each client.
#[test]
fn a_verbline_server_without_reflection_is_listed() {
    let server = Fixture::without_reflection();
    let services = verbline(&["list", &server.address]).ok();
    assert_eq!(services, "grpc.health.v1.Health\nverbline.kinds.Kinds\n");
    let methods = verbline(&["list", &server.address, "grpc.health.v1.Health"]).ok();
    assert_eq!(
        methods,
        "grpc.health.v1.Health.Check\ngrpc.health.v1.Health.Watch\n"
    );
}

#[test]
fn a_grpc_server_without_reflection_is_not_listed() {
    let server = Fixture::without_reflection();
    for arguments in [&["list", &*server.grpc][..], &["list", &server.grpc, "a.B"]] {
        let says = verbline(arguments).failed(1);
        assert!(says.contains("has no reflection"), "{says}");
    }
}

#[test]
fn a_service_that_does_not_exist_is_refused_with_the_nearest_name() {
    let server = Fixture::new();
    for address in server.both() {
        let says = verbline(&["list", address, "verbline.greter.Greeter"]).failed(1);
        assert_eq!(
            says,
            format!(
                "verbline: {address} has no service verbline.greter.Greeter; did you mean \
                 verbline.greeter.Greeter?\n"
            )
        );
    }
}
