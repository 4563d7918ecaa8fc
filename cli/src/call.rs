//! `verbline call`: one call of any kind.

use std::collections::BTreeSet;
use std::future::pending;
use std::pin::pin;

use prost_reflect::{DynamicMessage, MessageDescriptor, MethodDescriptor, ReflectMessage};
use verbline::client::{Idempotency, MethodKind, MethodSpec, SendCaller};
use verbline::error_details::messages as google_rpc;
use verbline::message::BytesCodec;
use verbline::message::bytes::Bytes;
use verbline::message::prost::Message as _;
use verbline::{CallError, Sender, sender};

use crate::arguments::Call;
use crate::failure::Failure;
use crate::input::Input;
use crate::method_name::MethodName;
use crate::nearest::nearest;
use crate::output::Output;
use crate::report::Report;
use crate::schema::Schema;
use crate::target::Target;
use crate::to_json::{Json, unknown_types};

const RAW: BytesCodec = BytesCodec;

pub(crate) async fn run(arguments: Call, output: &mut Output) -> Result<(), Failure> {
    let mut report = Report::new(arguments.verbose);
    // What is wrong with files is told without a server.
    let files = match arguments.protos.files.is_empty() {
        true => None,
        false => Some(Schema::of_files(&arguments.protos)?),
    };
    let target = Target::connect(arguments.connection).await?;
    report.connected(&target);
    let schema = files.unwrap_or_else(|| Schema::of_server(&target));
    let (spec, method) = look_up(&arguments.method, &target, &schema).await?;
    report.found(spec);
    let mut call = OneCall {
        spec,
        target: &target,
        schema: &schema,
        input: Input::open(arguments.data, method.input())?,
        responses: Responses {
            schema: &schema,
            message: method.output(),
            is_pretty: arguments.pretty,
            output,
            report: &mut report,
        },
    };
    match call.make().await {
        Err(Failure::Call { source, .. }) => {
            report.failed(&source);
            let details = error_details(&source, &schema).await;
            Err(Failure::Call { source, details })
        }
        ended => ended,
    }
}

/// Returns the method as calls name it, and as its types are described.
pub(crate) async fn look_up(
    name: &MethodName,
    target: &Target,
    schema: &Schema<'_>,
) -> Result<(&'static MethodSpec, MethodDescriptor), Failure> {
    let path = name.to_string();
    let Some(methods) = target.methods() else {
        let method = schema.method(name, false).await?;
        // A call takes a spec that lives for ever. There is one call in a process.
        let path: &'static str = Box::leak(path.into_boxed_str());
        let spec = MethodSpec::new(path, kind_of(&method), Idempotency::Unknown, "", "");
        return Ok((Box::leak(Box::new(spec)), method));
    };
    let Some(spec) = methods.get(&path) else {
        return Err(Failure::NoMethod {
            of: target.address.clone(),
            near: nearest(&path, methods.iter().map(|spec| spec.path)),
            method: path,
        });
    };
    let method = schema.method(name, true).await?;
    if kind_of(&method) != spec.kind {
        return Err(Failure::OtherKind {
            path,
            of_file: kind_name(kind_of(&method)),
            of_server: kind_name(spec.kind),
        });
    }
    Ok((spec, method))
}

fn kind_of(method: &MethodDescriptor) -> MethodKind {
    match (method.is_client_streaming(), method.is_server_streaming()) {
        (false, false) => MethodKind::Unary,
        (true, false) => MethodKind::ClientStreaming,
        (false, true) => MethodKind::ServerStreaming,
        (true, true) => MethodKind::Streaming,
    }
}

pub(crate) fn kind_name(kind: MethodKind) -> &'static str {
    match kind {
        MethodKind::Unary => "one request and one response",
        MethodKind::ClientStreaming => "a stream of requests and one response",
        MethodKind::ServerStreaming => "one request and a stream of responses",
        MethodKind::Streaming => "a stream of requests and a stream of responses",
        _ => "streams of a kind that this program does not know",
    }
}

struct OneCall<'a> {
    spec: &'static MethodSpec,
    target: &'a Target,
    schema: &'a Schema<'a>,
    input: Input,
    responses: Responses<'a>,
}

impl OneCall<'_> {
    async fn make(&mut self) -> Result<(), Failure> {
        if !self.spec.kind.client_streams() {
            let request = self.only_request().await?;
            return self.send_one(request).await;
        }
        // Declared before the call, and so dropped after it: to drop it is to say that the stream is
        // complete, which one that ends with bad JSON is not.
        let (sender, messages) = sender();
        let mut sender = Some(sender);
        let request = self.target.request(messages);
        let channel = &self.target.channel;
        let responses = &mut self.responses;
        let call = pin!(async {
            responses.report.begin();
            if self.spec.kind.server_streams() {
                let response = channel.streaming_with(self.spec, request, RAW, RAW).await?;
                responses.stream(response).await
            } else {
                let response = channel
                    .client_streaming_with(self.spec, request, RAW, RAW)
                    .await?;
                responses.one(response).await
            }
        });
        let feeding = feed(&mut self.input, self.schema, &mut sender);
        tokio::select! {
            biased;
            ended = call => ended,
            failure = feeding => Err(failure),
        }
    }

    async fn send_one(&mut self, request: Bytes) -> Result<(), Failure> {
        let request = self.target.request(request);
        let channel = &self.target.channel;
        self.responses.report.begin();
        if self.spec.kind.server_streams() {
            let response = channel
                .server_streaming_with(self.spec, request, RAW, RAW)
                .await?;
            self.responses.stream(response).await
        } else {
            let response = channel.unary_with(self.spec, request, RAW, RAW).await?;
            self.responses.one(response).await
        }
    }

    /// Returns the only request. No input at all is an empty message.
    async fn only_request(&mut self) -> Result<Bytes, Failure> {
        let path = || self.spec.path.to_owned();
        let Some(first) = self.input.next(self.schema).await? else {
            return match self.input.was_given() {
                true => Err(Failure::NoRequest { path: path() }),
                false => Ok(Bytes::new()),
            };
        };
        match self.input.next(self.schema).await? {
            None => Ok(first),
            Some(_) => Err(Failure::SeveralRequests { path: path() }),
        }
    }
}

/// Sends requests as they come, and ends the stream after the last one. Returns only if one is bad.
async fn feed(
    input: &mut Input,
    schema: &Schema<'_>,
    sender: &mut Option<Sender<Bytes>>,
) -> Failure {
    loop {
        match input.next(schema).await {
            Ok(Some(request)) => {
                let Some(sender) = sender else { break };
                // The response of a call that has ended tells why.
                if sender.send(request).await.is_err() {
                    break;
                }
            }
            Ok(None) => {
                *sender = None;
                break;
            }
            Err(failure) => return failure,
        }
    }
    pending().await
}

/// Prints responses as they come.
struct Responses<'a> {
    schema: &'a Schema<'a>,
    message: MessageDescriptor,
    is_pretty: bool,
    output: &'a mut Output,
    report: &'a mut Report,
}

impl Responses<'_> {
    async fn one(&mut self, response: verbline::Response<Bytes>) -> Result<(), Failure> {
        self.report.responded(response.metadata());
        self.print(response.get_ref()).await?;
        self.report.ended(response.trailing_metadata());
        Ok(())
    }

    async fn stream(
        &mut self,
        response: verbline::Response<verbline::Streaming<Bytes>>,
    ) -> Result<(), Failure> {
        self.report.responded(response.metadata());
        let mut messages = response.into_inner();
        while let Some(message) = messages.message().await? {
            self.print(&message).await?;
        }
        self.report.ended(&messages.trailers().await?);
        Ok(())
    }

    async fn print(&mut self, bytes: &Bytes) -> Result<(), Failure> {
        self.report.message();
        let message = decode(bytes, &self.message, self.schema).await?;
        self.output.line(&to_json(&message, self.is_pretty)?)
    }
}

/// Returns the JSON of a message, in one line or indented.
fn to_json(message: &DynamicMessage, is_pretty: bool) -> Result<String, Failure> {
    let text = match is_pretty {
        true => serde_json::to_string_pretty(&Json(message)),
        false => serde_json::to_string(&Json(message)),
    };
    text.map_err(|error| Failure::NotForJson {
        message: message.descriptor().full_name().to_owned(),
        why: error.to_string(),
    })
}

/// Returns the details of an error in JSON.
async fn error_details(error: &CallError, schema: &Schema<'_>) -> Vec<String> {
    // Other bytes than those of a status are no details that are known.
    let Ok(status) = google_rpc::Status::decode(error.details()) else {
        return Vec::new();
    };
    let mut details = Vec::new();
    let any = schema.error_detail();
    for detail in status.details {
        let decoded = decode(&detail.encode_to_vec(), &any, schema).await;
        let json = decoded.and_then(|message| to_json(&message, false));
        details.push(json.unwrap_or_else(|failure| format!("{}: {failure}", detail.type_url)));
    }
    details
}

/// Decodes a message, with the types that it has in values of `Any`.
async fn decode(
    bytes: &[u8],
    message: &MessageDescriptor,
    schema: &Schema<'_>,
) -> Result<DynamicMessage, Failure> {
    let mut asked = BTreeSet::new();
    loop {
        let newest = schema.newest(message);
        let decoded =
            DynamicMessage::decode(newest, bytes).map_err(|error| Failure::Undecodable {
                message: message.full_name().to_owned(),
                why: error.to_string(),
            })?;
        let mut unknown = BTreeSet::new();
        unknown_types(&decoded, &mut unknown);
        let mut is_new = false;
        for name in unknown {
            if asked.insert(name.clone()) {
                // A server that does not know it, or has no reflection, leaves it unknown.
                is_new |= matches!(schema.message(&name).await, Ok(Some(_)));
            }
        }
        if !is_new {
            return Ok(decoded);
        }
    }
}
