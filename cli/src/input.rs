//! Requests from JSON: read one at a time, and made into messages.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::PathBuf;
use std::thread;

use prost_reflect::MessageDescriptor;
use prost_reflect::prost::Message as _;
use serde_json::Value as Json;
use tokio::sync::mpsc;
use verbline::message::bytes::Bytes;

use crate::arguments::Data;
use crate::failure::Failure;
use crate::from_json::{self, Unique};
use crate::schema::Schema;
use crate::to_json::name_in;

/// Values that have been read and not been sent yet. One more is being read.
const READ_AHEAD: usize = 4;

/// The requests of a call, as they are read.
#[derive(Debug)]
pub(crate) struct Input {
    values: mpsc::Receiver<Result<Json, Failure>>,
    message: MessageDescriptor,
    was_given: bool,
    /// Requests that have been taken.
    count: usize,
}

impl Input {
    /// Begins to read, on a thread of its own: reading waits for whoever writes, and the call goes on
    /// meanwhile. The thread ends with the input, or with the process.
    pub(crate) fn open(data: Option<Data>, message: MessageDescriptor) -> Result<Self, Failure> {
        let was_given = data.is_some();
        let reader: Box<dyn Read + Send> = match data {
            None => Box::new(io::empty()),
            Some(Data::Json(text)) => Box::new(Cursor::new(text)),
            Some(Data::StandardInput) => Box::new(BufReader::new(io::stdin())),
            Some(Data::File(from)) => match File::open(&from) {
                Ok(file) => Box::new(BufReader::new(file)),
                Err(source) => return Err(Failure::Unreadable { from, source }),
            },
        };
        let (sender, values) = mpsc::channel(READ_AHEAD);
        thread::Builder::new()
            .name("verbline-input".to_owned())
            .spawn(move || read(reader, &sender))
            .map_err(Failure::Runtime)?;
        Ok(Self {
            values,
            message,
            was_given,
            count: 0,
        })
    }

    /// Returns false if the command line has no input.
    pub(crate) fn was_given(&self) -> bool {
        self.was_given
    }

    /// Returns the next request, encoded, or `None` at the end.
    pub(crate) async fn next(&mut self, schema: &Schema<'_>) -> Result<Option<Bytes>, Failure> {
        let Some(value) = self.values.recv().await else {
            return Ok(None);
        };
        let json = value?;
        self.count += 1;
        let mut types = Vec::new();
        types_of_any(&json, &mut types);
        for name in types {
            schema.message(name).await?;
        }
        // More is known, if types were fetched.
        let descriptor = schema.newest(&self.message);
        match from_json::message(&json, &descriptor) {
            Ok(message) => Ok(Some(message.encode_to_vec().into())),
            Err(misfit) => Err(Failure::DoesNotFit {
                number: self.count,
                message: descriptor.full_name().to_owned(),
                misfit,
            }),
        }
    }
}

fn read(reader: impl Read, values: &mpsc::Sender<Result<Json, Failure>>) {
    let stream = serde_json::Deserializer::from_reader(reader).into_iter::<Unique>();
    for (index, value) in stream.enumerate() {
        let value = value
            .map(|Unique(json)| json)
            .map_err(|source| match source.io_error_kind() {
                Some(_) => Failure::Unreadable {
                    from: PathBuf::from("the input"),
                    source: source.into(),
                },
                None => Failure::NotJson {
                    number: index + 1,
                    source,
                },
            });
        let is_end = value.is_err();
        // The call may have ended.
        if values.blocking_send(value).is_err() || is_end {
            return;
        }
    }
}

/// Collects the names of the types that values of `Any` say.
fn types_of_any<'a>(json: &'a Json, names: &mut Vec<&'a str>) {
    match json {
        Json::Object(members) => {
            let url = members.get("@type").and_then(Json::as_str);
            names.extend(url.map(name_in));
            members
                .values()
                .for_each(|value| types_of_any(value, names));
        }
        Json::Array(values) => values.iter().for_each(|value| types_of_any(value, names)),
        _ => {}
    }
}
