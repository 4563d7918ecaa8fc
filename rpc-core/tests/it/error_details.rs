//! Typed details of errors, over a call, as bytes and as garbage.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{FAIL, call};
use rpc_core::codegen::v1::prost::Message;
use rpc_core::codegen::v1::prost_types::Any;
use rpc_core::error_details::{
    BadRequest, DebugInfo, ErrorDetails, ErrorDetailsError, ErrorInfo, Help, LocalizedMessage,
    PreconditionFailure, QuotaFailure, RequestInfo, ResourceInfo, RetryInfo, bad_request, help,
    messages, precondition_failure, quota_failure,
};
use rpc_core::{Code, Request, Response, Status};
use rpc_core_testing::Pair;

fn text(text: &str) -> String {
    text.to_owned()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = pairs.iter().map(|(key, value)| (text(key), text(value)));
    owned.collect()
}

/// All standard details, and one of another type.
fn all() -> ErrorDetails {
    ErrorDetails {
        error_info: Some(ErrorInfo {
            reason: text("CARD_EXPIRED"),
            domain: text("payments.example.com"),
            metadata: pairs(&[("card", "7"), ("year", "2020")]),
        }),
        retry_info: Some(RetryInfo::after(Duration::from_millis(2500))),
        debug_info: Some(DebugInfo {
            stack_entries: vec![text("main.rs:1"), text("lib.rs:2")],
            detail: text("a bug"),
        }),
        quota_failure: Some(QuotaFailure {
            violations: vec![quota_failure::Violation {
                subject: text("project:7"),
                description: text("too many"),
                api_service: text("payments"),
                quota_metric: text("calls"),
                quota_id: text("calls-per-day"),
                quota_dimensions: pairs(&[("region", "north")]),
                quota_value: 100,
                future_quota_value: Some(0),
            }],
        }),
        precondition_failure: Some(PreconditionFailure {
            violations: vec![precondition_failure::Violation {
                r#type: text("TERMS"),
                subject: text("account:7"),
                description: text("accept the terms"),
            }],
        }),
        bad_request: Some(BadRequest {
            field_violations: vec![bad_request::FieldViolation {
                field: text("address.lines[1]"),
                description: text("too long"),
                reason: text("TOO_LONG"),
                localized_message: Some(LocalizedMessage {
                    locale: text("de"),
                    message: text("zu lang"),
                }),
            }],
        }),
        request_info: Some(RequestInfo {
            request_id: text("42"),
            serving_data: text("secret"),
        }),
        resource_info: Some(ResourceInfo {
            resource_type: text("table"),
            resource_name: text("orders"),
            owner: text("ada"),
            description: text("locked"),
        }),
        help: Some(Help {
            links: vec![help::Link {
                description: text("the manual"),
                url: text("https://example.com"),
            }],
        }),
        localized_message: Some(LocalizedMessage {
            locale: text("en-US"),
            message: text("Your card has expired."),
        }),
        other: vec![Any {
            type_url: text("type.example.com/shop.Order"),
            value: vec![8, 7],
        }],
    }
}

/// Returns each of the standard details alone, with its name.
fn each() -> Vec<(&'static str, ErrorDetails, Vec<u8>)> {
    let all = all();
    macro_rules! alone {
        ($($field:ident: $name:literal),*) => {
            vec![$({
                let message = all.$field.clone().unwrap();
                let bytes = message.encode_to_vec();
                ($name, ErrorDetails::from(message), bytes)
            }),*]
        };
    }
    alone!(
        error_info: "ErrorInfo",
        retry_info: "RetryInfo",
        debug_info: "DebugInfo",
        quota_failure: "QuotaFailure",
        precondition_failure: "PreconditionFailure",
        bad_request: "BadRequest",
        request_info: "RequestInfo",
        resource_info: "ResourceInfo",
        help: "Help",
        localized_message: "LocalizedMessage"
    )
}

fn failed(details: ErrorDetails) -> Status {
    Status::with_error_details(Code::FailedPrecondition, "not now", details)
}

/// Returns the details that the client of a handler with these details receives.
fn sent(details: ErrorDetails) -> ErrorDetails {
    let pair = Pair::new(|methods| {
        let details = details.clone();
        methods.unary(&FAIL, move |_: Request<Vec<u8>>| {
            let status = failed(details.clone());
            async move { Err::<Response<Vec<u8>>, _>(status) }
        });
    });
    let channel = pair.connect();
    let error = pair.run(call(&channel, &FAIL, "")).unwrap_err();
    let status = error.status().unwrap();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(status.message(), "not now");
    status.error_details().unwrap()
}

#[test]
fn details_of_each_type_reach_the_client() {
    for (name, details, _) in each() {
        assert_eq!(sent(details.clone()), details, "{name}");
    }
    assert_eq!(sent(all()), all());
    assert_eq!(sent(ErrorDetails::default()), ErrorDetails::default());
}

#[test]
fn the_bytes_are_an_encoded_status_of_google_rpc() {
    for (name, details, value) in each() {
        let any = Any {
            type_url: format!("type.googleapis.com/google.rpc.{name}"),
            value,
        };
        let expected = messages::Status {
            code: 9,
            message: text("not now"),
            details: vec![any],
        };
        assert_eq!(failed(details).details(), expected.encode_to_vec());
    }
    // Written by hand: the fields of `Status`, then those of `Any`, then those of `LocalizedMessage`.
    let short = LocalizedMessage {
        locale: text("en"),
        message: text("no"),
    };
    let status = Status::with_error_details(Code::NotFound, "gone", short);
    let url = b"type.googleapis.com/google.rpc.LocalizedMessage";
    let any = [
        &[0x0a, url.len() as u8][..],
        url,
        &[0x12, 8],
        b"\x0a\x02en\x12\x02no",
    ]
    .concat();
    let expected = [b"\x08\x05\x12\x04gone\x1a", &[any.len() as u8][..], &any].concat();
    assert_eq!(status.details(), expected);
}

#[test]
fn a_status_without_details_has_none() {
    let details = Status::not_found("gone").error_details().unwrap();
    assert_eq!(details, ErrorDetails::default());
}

#[test]
fn details_of_one_type_are_told_by_name_and_none_is_lost() {
    let help = |domain: &str, url: &str| Any {
        type_url: format!("{domain}/google.rpc.Help"),
        value: Help {
            links: vec![help::Link {
                url: text(url),
                ..help::Link::default()
            }],
        }
        .encode_to_vec(),
    };
    let (first, second) = (help("example.com", "first"), help("", "second"));
    let encoded = messages::Status {
        details: vec![first, second.clone()],
        ..messages::Status::default()
    };
    let status = Status::not_found("gone").with_details(encoded.encode_to_vec());
    let details = status.error_details().unwrap();
    assert_eq!(details.help.unwrap().links[0].url, "first");
    assert_eq!(details.other, [second]);
}

#[test]
fn garbage_is_an_error() {
    let status = |details: Vec<u8>| Status::not_found("gone").with_details(details);
    let error = status(vec![0xff; 3]).error_details().unwrap_err();
    assert!(matches!(error, ErrorDetailsError::NotAStatus(_)), "{error}");

    let type_url = text("type.googleapis.com/google.rpc.Help");
    let broken = Any {
        type_url: type_url.clone(),
        value: vec![0x0a, 200],
    };
    let encoded = messages::Status {
        details: vec![broken],
        ..messages::Status::default()
    };
    let error = status(encoded.encode_to_vec()).error_details().unwrap_err();
    assert!(
        matches!(&error, ErrorDetailsError::Detail { type_url: of, .. } if *of == type_url),
        "{error}"
    );
    assert!(error.to_string().contains("google.rpc.Help"), "{error}");
}

#[test]
fn a_delay_is_a_duration() {
    let delay = Duration::new(3, 500_000_000);
    assert_eq!(RetryInfo::after(delay).delay(), Some(delay));
    assert_eq!(RetryInfo::default().delay(), None);
    // Longer than the message can say.
    assert_eq!(RetryInfo::after(Duration::MAX).delay(), None);
}
