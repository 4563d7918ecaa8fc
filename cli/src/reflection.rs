//! [`Reflection`]: questions to the reflection of a server, in both versions of the protocol.

use std::cell::Cell;

use verbline::message::bytes::Bytes;
use verbline::reflection::v1::server_reflection_request::MessageRequest;
use verbline::reflection::v1::server_reflection_response::MessageResponse;
use verbline::reflection::v1::{
    ErrorResponse, ServerReflectionClient, ServerReflectionRequest, ServerReflectionResponse,
};
use verbline::reflection::v1alpha;
use verbline::{CallError, Code, sender};

use crate::failure::Failure;
use crate::target::Target;

/// The reflection of a server.
#[derive(Debug)]
pub(crate) struct Reflection<'a> {
    target: &'a Target,
    /// The server knows the older version only.
    is_alpha: Cell<bool>,
}

/// The files that the server has for a question, or why it has none.
pub(crate) type Files = Result<Vec<Bytes>, ErrorResponse>;

impl<'a> Reflection<'a> {
    pub(crate) fn new(target: &'a Target) -> Self {
        Self {
            target,
            is_alpha: Cell::new(false),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.target.address
    }

    /// Returns the names of the server's services, in their order.
    pub(crate) async fn services(&self) -> Result<Vec<String>, Failure> {
        match self
            .ask(MessageRequest::ListServices(String::new()))
            .await?
        {
            MessageResponse::ListServicesResponse(list) => {
                let mut names: Vec<String> = list
                    .service
                    .into_iter()
                    .map(|service| service.name)
                    .collect();
                names.sort_unstable();
                names.dedup();
                Ok(names)
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Returns the file that defines a symbol, and perhaps files that it imports.
    pub(crate) async fn file_of(&self, symbol: &str) -> Result<Files, Failure> {
        self.files(MessageRequest::FileContainingSymbol(symbol.to_owned()))
            .await
    }

    /// Returns a file, and perhaps files that it imports.
    pub(crate) async fn file_named(&self, name: &str) -> Result<Files, Failure> {
        self.files(MessageRequest::FileByFilename(name.to_owned()))
            .await
    }

    async fn files(&self, question: MessageRequest) -> Result<Files, Failure> {
        match self.ask(question).await? {
            MessageResponse::FileDescriptorResponse(files) => Ok(Ok(files.file_descriptor_proto)),
            MessageResponse::ErrorResponse(error) => Ok(Err(error)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Asks one question. The newer version is tried first.
    async fn ask(&self, question: MessageRequest) -> Result<MessageResponse, Failure> {
        let question = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(question),
        };
        if !self.is_alpha.get() {
            match self.ask_version(question.clone(), false).await {
                Err(error) if error.code() == Code::Unimplemented => self.is_alpha.set(true),
                answer => return self.answer(answer),
            }
        }
        match self.ask_version(question, true).await {
            Err(error) if error.code() == Code::Unimplemented => Err(Failure::NoReflection {
                address: self.address().to_owned(),
            }),
            answer => self.answer(answer),
        }
    }

    async fn ask_version(
        &self,
        question: ServerReflectionRequest,
        is_alpha: bool,
    ) -> Result<Option<ServerReflectionResponse>, CallError> {
        let (mut questions, messages) = sender();
        // There is room for one. If the call ends early, its response tells why.
        let _ = questions.send(question).await;
        drop(questions);
        let request = self.target.request(messages);
        let channel = self.target.channel.clone();
        let response = match is_alpha {
            false => {
                let client = ServerReflectionClient::new(channel);
                client.server_reflection_info(request).await?
            }
            true => {
                let client = v1alpha::ServerReflectionClient::new(channel);
                client.server_reflection_info(request).await?
            }
        };
        response.into_inner().message().await
    }

    fn answer(
        &self,
        answer: Result<Option<ServerReflectionResponse>, CallError>,
    ) -> Result<MessageResponse, Failure> {
        let answer = answer.map_err(|source| Failure::Reflection {
            address: self.address().to_owned(),
            source,
        })?;
        let answer = answer.and_then(|answer| answer.message_response);
        answer.ok_or_else(|| self.bad("it has not answered a question"))
    }

    fn unexpected(&self, answer: &MessageResponse) -> Failure {
        self.bad(&match answer {
            MessageResponse::ErrorResponse(error) => {
                let code = Code::from_i32(error.error_code);
                format!("it says {code}: {}", error.error_message)
            }
            _ => "the answer is that to another question".to_owned(),
        })
    }

    /// Returns the failure of an answer that cannot be used.
    pub(crate) fn bad(&self, what: &str) -> Failure {
        Failure::BadReflection {
            address: self.address().to_owned(),
            what: what.to_owned(),
        }
    }
}
