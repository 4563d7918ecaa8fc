//! JSON of every kind of field. `interop/grpc` compares it with Python's; here it is compared with what it
//! was.

use crate::golden::golden;
use crate::program::verbline;
use crate::server::Fixture;

const ECHO: &str = "verbline.kinds.Kinds/Echo";

#[test]
fn every_kind_of_field_comes_back() {
    let server = Fixture::new();
    let data = include_str!("../protos/every_kind.json");
    for address in server.both() {
        golden(
            "every-kind.json",
            &verbline(&["call", address, ECHO, "--pretty", "-d", data]).ok(),
        );
    }
}

/// The server describes it, and no file of the method's imports it.
#[test]
fn the_type_of_an_any_is_fetched() {
    let server = Fixture::new();
    let data =
        r#"{"any": {"@type": "type.googleapis.com/verbline.greeter.HelloReply", "message": "hi"}}"#;
    let said = verbline(&["call", &server.address, ECHO, "-d", data]).ok();
    assert_eq!(
        said,
        "{\"any\":{\"@type\":\"type.googleapis.com/verbline.greeter.HelloReply\",\"message\":\"hi\"}}\n"
    );
}
