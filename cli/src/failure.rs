//! [`Failure`]: what went wrong, and the exit code of each command for it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use prost_reflect::DescriptorError;
use verbline::device::FabricError;
use verbline::{CallError, ChannelError, Code, ConnectError, DeviceError};
use verbline_gateway::GrpcConnectError;
use verbline_load::MergeError;
use verbline_load::report::ReportError;

use crate::arguments::Command;
use crate::from_json::Misfit;
use crate::nearest::{did_you_mean, or_list};

/// The reason that a command has not done what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("{0}")]
    Metadata(#[from] verbline::message::MetadataError),
    #[error("{0}")]
    Device(#[from] DeviceError),
    #[error(
        "{address} is a gRPC server, over HTTP/2, and has nothing to do with the device '{device}': leave --device \
         out, or what stands before :// if it is a Verbline server"
    )]
    NoDevice { address: String, device: String },
    #[error("{0}")]
    Tls(#[from] verbline::tls::TlsError),
    #[error("{0}")]
    Fabric(#[from] FabricError),
    #[error("{what}{hint}", what = .0, hint = .0.hint())]
    Channel(#[from] ChannelError),
    #[error("{what}{hint}", what = .0, hint = .0.hint())]
    Grpc(#[from] GrpcConnectError),
    #[error("cannot connect to {address}: no answer within {timeout:?} (--timeout)")]
    ConnectTimeout { address: String, timeout: Duration },
    /// The status of the call that was asked for.
    #[error("{source}{}", lines(.details))]
    Call {
        source: CallError,
        /// Each in JSON.
        details: Vec<String>,
    },
    #[error("cannot learn the types of {address}, because its reflection has failed: {source}")]
    Reflection { address: String, source: CallError },
    #[error(
        "{address} has no reflection, so the types of its messages are not known: name their .proto file with \
         --proto, or add reflection to the server"
    )]
    NoReflection { address: String },
    #[error(
        "{address} has no reflection, so its services cannot be listed: add reflection to the server, or read its \
         .proto file"
    )]
    NotListed { address: String },
    #[error(
        "{address} does not describe {symbol}: {why}. Name the .proto file with --proto, or give the server the \
         descriptors"
    )]
    NotDescribed {
        address: String,
        symbol: String,
        why: String,
    },
    #[error("the reflection of {address} breaks the protocol: {what}")]
    BadReflection { address: String, what: String },
    #[error("the descriptors of {file} contradict themselves or each other: {source}")]
    BadDescriptors {
        file: String,
        source: DescriptorError,
    },
    // With the file and the line, which are in `Debug` only.
    #[error("{0:?}")]
    BadProto(protox::Error),
    #[error("{} has no method {method}{}", .of, or_list(.near))]
    NoMethod {
        of: String,
        method: String,
        near: Vec<String>,
    },
    #[error("{} has no service {service}{}", .of, or_list(.near))]
    NoService {
        of: String,
        service: String,
        near: Vec<String>,
    },
    #[error("{} has no symbol {symbol}{}", .of, or_list(.near))]
    NoSymbol {
        of: String,
        symbol: String,
        near: Vec<String>,
    },
    #[error("{symbol} is not in {files}{}", did_you_mean(.near))]
    NotInFiles {
        files: String,
        symbol: String,
        near: Vec<String>,
    },
    #[error(
        "{path} has {of_file} in the .proto file, and {of_server} at the server: it is another version of the file"
    )]
    OtherKind {
        path: String,
        of_file: &'static str,
        of_server: &'static str,
    },
    #[error("cannot read the requests from {}: {source}", .from.display())]
    Unreadable { from: PathBuf, source: io::Error },
    #[error("request {number} is not JSON: {source}")]
    NotJson {
        number: usize,
        source: serde_json::Error,
    },
    #[error("request {number} does not fit {message}: {misfit}")]
    DoesNotFit {
        number: usize,
        message: String,
        misfit: Misfit,
    },
    #[error("{path} takes one request, and there are several: remove all but one")]
    SeveralRequests { path: String },
    #[error("{path} takes a request, and there is none: `-d {{}}` sends an empty message")]
    NoRequest { path: String },
    #[error(
        "a response of the type {message} does not decode: {why}. Is the .proto file that of the server?"
    )]
    Undecodable { message: String, why: String },
    #[error("a response of the type {message} cannot be JSON: {why}")]
    NotForJson { message: String, why: String },
    #[error("the watch has ended: {0}")]
    WatchEnded(String),
    #[error("{option} is {number}, and --processes {processes}: each process needs one at least")]
    FewForProcesses {
        option: &'static str,
        number: u32,
        processes: u32,
    },
    #[error(
        "--in-flight is {in_flight}, and --connections {connections}: some connections would have no call. Raise \
         --in-flight"
    )]
    IdleConnections { in_flight: u32, connections: u32 },
    #[error(
        "{option} and {other} both have several values: a sweep raises one thing. Give one of them a single value"
    )]
    SeveralSweeps {
        option: &'static str,
        other: &'static str,
    },
    #[error(
        "--processes cannot share standard input: write the requests to a file, and name it with -d @FILE"
    )]
    InputForParts,
    #[error(
        "{path} has {kind}, so there is no response to each message: leave --each-message out, and say the requests \
         of a call with --messages"
    )]
    NoMessages {
        path: &'static str,
        kind: &'static str,
    },
    #[error("{path} has {kind}, and takes one request: leave --messages out")]
    OneRequest {
        path: &'static str,
        kind: &'static str,
    },
    #[error(
        "{path} has a stream of responses, whose rate is the server's: leave --rate or --each-message out"
    )]
    NoRateOfResponses { path: &'static str },
    #[error(
        "no message of the type {message} was found that has {wanted} bytes: the nearest one has {nearest}. Ask for \
         that, or leave the number out"
    )]
    OtherLength {
        message: String,
        wanted: usize,
        nearest: usize,
    },
    #[error("{path} has ended its stream without a message")]
    NoMessage { path: &'static str },
    #[error(
        "the first call has not been answered after {waited:?}. With --timeout, calls that are not answered in \
         time are counted as failed"
    )]
    FirstCallWaits { waited: Duration },
    #[error("interrupted before there was anything to record")]
    Interrupted,
    #[error("cannot start another process: {0}")]
    StartPart(io::Error),
    #[error("a process of this load has ended without a record: {said}")]
    Part { said: String },
    #[error("a process of this load has said something else than was expected: {0}")]
    BadPart(serde_json::Error),
    #[error("the records of several processes do not belong together: {0}")]
    Merge(#[from] MergeError),
    #[error("cannot write {}: {source}", .file.display())]
    Unwritable { file: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", .file.display())]
    UnreadableRuns { file: PathBuf, source: io::Error },
    #[error("{} is no file that `verbline bench --json` has written: {source}", .file.display())]
    NotRuns { file: PathBuf, source: ReportError },
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// Who reads the output has gone, and wants no more of it.
    #[error("standard output is closed")]
    PipeClosed,
}

/// What may be meant, where the other protocol's server is at the address.
trait Hint {
    fn hint(&self) -> &'static str;
}

impl Hint for ChannelError {
    fn hint(&self) -> &'static str {
        let Self::Connect(error) = self else {
            return "";
        };
        match &**error {
            ConnectError::NotVerbline { .. } => {
                ". If it is a gRPC server, write http:// before the address"
            }
            ConnectError::Security { source, .. }
                if source.to_string().contains("is no Verbline server") =>
            {
                ". If it is a gRPC server, write https:// before the address"
            }
            // Its words are for programs.
            ConnectError::Refused { reason, .. } if reason.contains("`with_client_tls`") => {
                ". Of this program, that is --ca FILE, or --tls"
            }
            _ => "",
        }
    }
}

impl Hint for GrpcConnectError {
    fn hint(&self) -> &'static str {
        match self {
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => "",
            Self::Connect { target, .. } | Self::Timeout { target, .. }
                if target.starts_with("http://") =>
            {
                ". If it is a Verbline server, leave http:// out"
            }
            _ => "",
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::Channel(ChannelError::Connect(Arc::new(error)))
    }
}

impl From<CallError> for Failure {
    fn from(source: CallError) -> Self {
        let details = Vec::new();
        Self::Call { source, details }
    }
}

fn lines(details: &[String]) -> String {
    let lines = details.iter().map(|detail| format!("\n  detail: {detail}"));
    lines.collect()
}

impl Failure {
    /// Returns true if there is nothing to say.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Self::PipeClosed)
    }

    /// Returns the code of gRPC, if the server has failed or cannot be reached.
    fn status(&self) -> Option<Code> {
        match self {
            Self::Call { source, .. } | Self::Reflection { source, .. } => Some(source.code()),
            Self::Channel(ChannelError::Connect(error)) => match **error {
                ConnectError::Address { .. } | ConnectError::Device { .. } => None,
                _ => Some(Code::Unavailable),
            },
            Self::Grpc(GrpcConnectError::Target { .. } | GrpcConnectError::Tls { .. }) => None,
            Self::Grpc(_) => Some(Code::Unavailable),
            Self::ConnectTimeout { .. } => Some(Code::DeadlineExceeded),
            Self::BadReflection { .. } => Some(Code::Internal),
            _ => None,
        }
    }
}

/// What the exit code of a command depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exit {
    /// 65 to 80 are statuses of the call, and nothing else.
    Call,
    Health,
    Other,
}

/// The numbers of sysexits.h.
const EX_UNAVAILABLE: u8 = 69;
const EX_IOERR: u8 = 74;

impl Exit {
    pub(crate) fn of(command: &Command) -> Self {
        match command {
            Command::Call(_) => Self::Call,
            Command::Health(_) => Self::Health,
            _ => Self::Other,
        }
    }

    pub(crate) fn code(self, failure: &Failure) -> ExitCode {
        ExitCode::from(match (self, failure) {
            (_, Failure::PipeClosed) => 0,
            (Self::Health, _) => 2,
            (Self::Call, Failure::NoMethod { .. } | Failure::NoService { .. }) => {
                of_status(Code::Unimplemented)
            }
            (Self::Call, failure) => failure.status().map_or(1, of_status),
            (Self::Other, Failure::Output(_)) => EX_IOERR,
            (Self::Other, failure) if failure.status().is_some() => EX_UNAVAILABLE,
            (Self::Other, _) => 1,
        })
    }
}

/// Adds 64 to the number of a code, from 1 to 16.
fn of_status(code: Code) -> u8 {
    64 + u8::try_from(code.number()).unwrap_or(2)
}
