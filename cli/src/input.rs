//! Requests from JSON: read one at a time, and made into messages.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::PathBuf;
use std::thread;

use prost_reflect::MessageDescriptor;
use prost_reflect::prost::Message as _;
use serde::de::DeserializeSeed;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use verbline::message::bytes::Bytes;

use crate::arguments::Data;
use crate::expected;
use crate::failure::Failure;
use crate::schema::Schema;

/// Values that have been read and not been sent yet. One more is being read.
const READ_AHEAD: usize = 4;

/// The requests of a call, as they are read.
#[derive(Debug)]
pub(crate) struct Input {
    values: mpsc::Receiver<Result<Box<RawValue>, Failure>>,
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
        let value = value?;
        self.count += 1;
        let text = value.get();
        if text.contains("\"@type\"") {
            for name in types_of_any(text) {
                schema.message(&name).await?;
            }
        }
        // The pool has grown, if types were fetched.
        let message = schema.newest(&self.message);
        parse(text, self.count, message).map(Some)
    }
}

fn read(reader: impl Read, values: &mpsc::Sender<Result<Box<RawValue>, Failure>>) {
    let stream = serde_json::Deserializer::from_reader(reader).into_iter::<Box<RawValue>>();
    for (index, value) in stream.enumerate() {
        let value = value.map_err(|source| match source.io_error_kind() {
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

/// Makes a message of JSON.
fn parse(text: &str, number: usize, message: MessageDescriptor) -> Result<Bytes, Failure> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut deserializer, &mut track);
    match message.clone().deserialize(tracked) {
        Ok(message) => Ok(message.encode_to_vec().into()),
        Err(error) => {
            let path = track.path();
            Err(Failure::DoesNotFit {
                number,
                expected: expected::at(&path, &message, text),
                message: message.full_name().to_owned(),
                path: path.to_string(),
                why: error.to_string(),
            })
        }
    }
}

/// Returns the names of the types that values of `Any` say.
fn types_of_any(text: &str) -> Vec<String> {
    fn collect(value: &serde_json::Value, names: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                if let Some(url) = map.get("@type").and_then(|url| url.as_str()) {
                    names.push(
                        url.rsplit_once('/')
                            .map_or(url, |(_, name)| name)
                            .to_owned(),
                    );
                }
                map.values().for_each(|value| collect(value, names));
            }
            serde_json::Value::Array(values) => {
                values.iter().for_each(|value| collect(value, names));
            }
            _ => {}
        }
    }
    let mut names = Vec::new();
    // What is no JSON is refused when it is parsed.
    if let Ok(value) = serde_json::from_str(text) {
        collect(&value, &mut names);
    }
    names
}
