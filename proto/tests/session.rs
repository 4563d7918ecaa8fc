//! `session.proto` documents the messages that `rpc-core` defines as Rust types: each side must
//! read the other's encoding.

use proto::session as documented;
use rpc_core::codegen::v1::prost::Message;
use rpc_core::session;

#[test]
fn a_clients_session_is_as_documented() {
    let own = session::ClientSession {
        version: 7,
        max_in_flight: 300,
        oldest_version: 2,
        stream_window: 32_768,
        max_message_len: 4_194_304,
    };
    let read = documented::ClientSession::decode(&own.encode_to_vec()[..]).unwrap();
    assert_eq!(
        read,
        documented::ClientSession {
            version: 7,
            max_in_flight: 300,
            oldest_version: 2,
            stream_window: 32_768,
            max_message_len: 4_194_304,
        }
    );
    assert_eq!(read.encode_to_vec(), own.encode_to_vec());
}

#[test]
fn a_servers_session_is_as_documented() {
    let own = session::ServerSession {
        version: 1,
        max_in_flight: 2,
        initial_credits: 3,
        methods: vec![session::NumberedMethod {
            path: "a.B/C".into(),
            number: 4,
            kind: 3,
        }],
        max_streams: 5,
        stream_window: 65_536,
        max_message_len: 4_194_304,
    };
    let read = documented::ServerSession::decode(&own.encode_to_vec()[..]).unwrap();
    let methods = vec![documented::NumberedMethod {
        path: "a.B/C".into(),
        number: 4,
        kind: 3,
    }];
    let expected = documented::ServerSession {
        version: 1,
        max_in_flight: 2,
        initial_credits: 3,
        methods,
        max_streams: 5,
        stream_window: 65_536,
        max_message_len: 4_194_304,
    };
    assert_eq!(read, expected);
    assert_eq!(read.encode_to_vec(), own.encode_to_vec());
}
