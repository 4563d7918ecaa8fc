use super::*;
use crate::codec::{Codec, ProstCodec};

#[test]
fn a_call_error_is_one_pointer_wide() {
    assert_eq!(size_of::<Result<(), CallError>>(), size_of::<usize>());
}

#[test]
fn an_error_says_what_and_whether_it_may_have_run() {
    let error = CallError::new(
        Cause::Disconnected(CloseReason::PeerGone),
        Execution::MayHaveRun,
    );
    assert_eq!(error.code(), Code::Unavailable);
    assert!(
        error.to_string().ends_with("the call may have run"),
        "{error}"
    );
    let error = CallError::new(
        Cause::RequestTooLong {
            message_len: 9000,
            limit: 4096,
            exceeded: LengthLimit::Receiver,
        },
        Execution::NeverSent,
    );
    assert_eq!(
        error.to_string(),
        "RESOURCE_EXHAUSTED: the request's message of 9000 bytes exceeds the server's limit of 4096 \
         bytes: raise `max_message_len` on the server; the call was never sent"
    );
    assert_eq!(format!("{error:?}"), error.to_string());
}

/// The server may be hostile, and the error may be printed to a terminal.
#[test]
fn what_a_server_says_is_printed_without_control_characters_and_reported_as_it_is() {
    let said = "\x1b[2Jno\nINFO all is well";
    let longest = Duration::from_secs(10);
    let error = CallError::not_started(Status::unavailable(said), longest);
    assert_eq!(
        error.to_string(),
        "UNAVAILABLE: \\u{1b}[2Jno\\nINFO all is well; try again in 10s"
    );
    assert_eq!(error.message(), said);
    assert_eq!(error.pushback(), Some(longest));
    let short = Duration::from_millis(2);
    let error = CallError::not_started(Status::unavailable(""), short);
    assert_eq!(error.pushback(), Some(short));
}

#[test]
fn a_response_over_its_budget_exhausts_resources() {
    // 500,000 empty fields of two bytes with a length.
    let bytes = [10, 0].repeat(500_000);
    let error = <ProstCodec as Codec<u64>>::decode(&bytes).unwrap_err();
    let error = CallError::new(Cause::Undecodable(error), Execution::Answered);
    assert_eq!(error.code(), Code::ResourceExhausted);
    let expected = "cannot decode the response: the 1000000 bytes of `u64` would take more than 28262144 bytes";
    assert!(error.to_string().contains(expected), "{error}");
    let error = <ProstCodec as Codec<u64>>::decode(&[8]).unwrap_err();
    let error = CallError::new(Cause::Undecodable(error), Execution::Answered);
    assert_eq!(error.code(), Code::Internal);
}

#[test]
fn a_call_may_be_made_again_if_it_did_not_run_and_the_reason_may_pass() {
    let closed = Cause::NotConnected {
        address: "host:1".to_owned(),
        latest: None,
    };
    let is_retryable = |cause, execution| CallError::new(cause, execution).is_retryable();
    let gone = || Cause::Disconnected(CloseReason::PeerGone);
    assert!(is_retryable(gone(), Execution::NeverSent));
    assert!(!is_retryable(gone(), Execution::MayHaveRun));
    assert!(!is_retryable(closed, Execution::NeverSent));
    let path = "a.B/C";
    assert!(!is_retryable(
        Cause::Unimplemented { path },
        Execution::NeverSent
    ));
    let too_late = Cause::DeadlineExceeded { latest: None };
    assert!(!is_retryable(too_late, Execution::NeverSent));
    let too_long = Cause::request_too_long(9, MessageLimit::new(8, LengthLimit::Sender));
    assert!(!is_retryable(too_long, Execution::NeverSent));
    let overloaded = || Status::resource_exhausted("too many calls");
    assert!(CallError::not_started(overloaded(), Duration::ZERO).is_retryable());
    assert!(!CallError::remote(overloaded()).is_retryable());
}

#[test]
fn a_servers_status_is_read_through_the_error() {
    let mut metadata = Metadata::new();
    metadata.insert("a", "1").unwrap();
    let status = Status::not_found("no user 7").with_details(vec![1]);
    let error = CallError::remote(status.with_metadata(metadata));
    assert_eq!(error.message(), "no user 7");
    assert_eq!(error.details(), [1]);
    assert_eq!(error.metadata().get("a"), Some("1"));
    let error = CallError::new(
        Cause::DeadlineExceeded { latest: None },
        Execution::NeverSent,
    );
    assert_eq!(error.message(), "the call's deadline passed");
    assert_eq!(
        error.to_string(),
        "DEADLINE_EXCEEDED: the call's deadline passed; the call was never sent"
    );
    assert!(error.details().is_empty() && error.metadata().is_empty());
}

#[test]
fn the_sources_of_an_error_do_not_repeat_its_sentence() {
    let cause = io::Error::other("the cable is cut");
    let status = Status::unavailable("no route").with_source(Arc::new(cause));
    let error = CallError::remote(status);
    assert_eq!(error.to_string(), "UNAVAILABLE: no route");
    let source = error.source().map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("the cable is cut"));
    assert!(
        CallError::remote(Status::unavailable(""))
            .source()
            .is_none()
    );
}

#[test]
fn any_error_has_the_code_of_the_first_source_that_has_one() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot load user 7")]
    struct Load<E: Error + 'static>(#[source] E);

    let status = Status::from_error(Load(Status::not_found("no row")));
    assert_eq!(status.to_string(), "NOT_FOUND: cannot load user 7");
    let file = io::Error::from(io::ErrorKind::PermissionDenied);
    assert_eq!(
        Status::from_error(Load(file)).code(),
        Code::PermissionDenied
    );
    assert_eq!(Status::from_error("some text").code(), Code::Unknown);
    let wrapped = io::Error::other(Status::not_found("no row").with_details(vec![7]));
    let status = Status::from_error(Load(wrapped));
    assert_eq!(
        (status.code(), status.details()),
        (Code::NotFound, &[7][..])
    );
    assert_eq!(
        Status::from_error(io::Error::other("x")).code(),
        Code::Unknown
    );
    let remote = CallError::remote(Status::not_found("no user 7"));
    let expected = "NOT_FOUND: in a nested call: no user 7";
    assert_eq!(Status::from_error(remote).to_string(), expected);
    let call = CallError::new(Cause::Cancelled, Execution::NeverSent);
    assert_eq!(Status::from_error(Load(call)).code(), Code::Cancelled);
    let itself = Status::aborted("again").with_details(vec![1]);
    assert_eq!(Status::from_error(itself).details(), [1]);
}

#[test]
fn a_nested_failure_keeps_its_code_and_its_source() {
    let status = Status::from(CallError::remote(Status::not_found("no user 7")));
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(status.message(), "in a nested call: no user 7");
    assert!(status.source().is_some());
}

#[test]
fn clients_do_not_learn_which_server_a_handler_calls() {
    let cause = Cause::NotConnected {
        address: "10.0.0.5:50051".to_owned(),
        latest: None,
    };
    let error = CallError::new(cause, Execution::NeverSent);
    let status = Status::from(error);
    assert_eq!(
        status.to_string(),
        "UNAVAILABLE: in a nested call: the server cannot be reached"
    );
    let source = status.source().map(ToString::to_string);
    assert!(source.is_some_and(|source| source.contains("10.0.0.5")));
}

#[test]
fn a_status_from_elsewhere_is_printed_with_what_is_known_of_the_call() {
    for (execution, expected) in [
        (Execution::NeverSent, "ABORTED: no; the call was never sent"),
        (Execution::MayHaveRun, "ABORTED: no; the call may have run"),
        (Execution::NotStarted, "ABORTED: no"),
        (Execution::Answered, "ABORTED: no"),
    ] {
        let status = Status::aborted("no").with_details(&b"why"[..]);
        let error = CallError::from_status(status, execution);
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.execution(), execution);
        assert_eq!((error.code(), error.message()), (Code::Aborted, "no"));
        assert_eq!(error.details(), b"why");
        let is_the_servers = matches!(error.cause(), Cause::Remote(_));
        let was_received = matches!(execution, Execution::NotStarted | Execution::Answered);
        assert_eq!(is_the_servers, was_received);
        let pushed_back = error.with_pushback(Duration::from_secs(1));
        assert_eq!(pushed_back.pushback(), Some(Duration::from_secs(1)));
        assert_eq!(
            pushed_back.to_string(),
            format!("{expected}; try again in 1s")
        );
        assert_eq!(pushed_back.with_pushback(Duration::ZERO).pushback(), None);
    }
}

#[test]
fn an_error_never_says_ok() {
    let ok = Status::new(Code::Ok, "fine").with_details(&b"why"[..]);
    let error = CallError::from_status(ok, Execution::Answered);
    assert_eq!(error.to_string(), "UNKNOWN: fine");
    assert_eq!(error.details(), b"why");
}
