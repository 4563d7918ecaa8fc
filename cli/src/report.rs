//! [`Report`]: what `-v` prints to standard error beside the responses.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use verbline::client::MethodSpec;
use verbline::{CallError, Metadata};

use crate::call::kind_name;
use crate::output::visible;
use crate::target::Target;

/// The times of a call, and its metadata.
#[derive(Debug)]
pub(crate) struct Report {
    is_verbose: bool,
    started: Instant,
    connecting: Duration,
    begun: Instant,
    learning: Duration,
    first_response: Option<Duration>,
    messages: u64,
}

impl Report {
    pub(crate) fn new(is_verbose: bool) -> Self {
        let now = Instant::now();
        Self {
            is_verbose,
            started: now,
            connecting: Duration::ZERO,
            begun: now,
            learning: Duration::ZERO,
            first_response: None,
            messages: 0,
        }
    }

    pub(crate) fn connected(&mut self, target: &Target) {
        self.connecting = target.connecting_took;
    }

    /// The types are known.
    pub(crate) fn found(&mut self, spec: &MethodSpec) {
        self.learning = self.started.elapsed().saturating_sub(self.connecting);
        self.say(&format!("method: {}, {}", spec.path, kind_name(spec.kind)));
    }

    /// The call begins.
    pub(crate) fn begin(&mut self) {
        self.begun = Instant::now();
    }

    pub(crate) fn responded(&mut self, metadata: &Metadata) {
        self.first_response = Some(self.begun.elapsed());
        self.metadata("initial metadata", metadata);
    }

    pub(crate) fn message(&mut self) {
        self.messages += 1;
    }

    pub(crate) fn ended(&self, trailers: &Metadata) {
        self.metadata("trailing metadata", trailers);
        self.say("status: OK; execution: answered");
        self.times();
    }

    /// The call has failed.
    pub(crate) fn failed(&self, error: &CallError) {
        self.metadata("trailing metadata", error.metadata());
        self.say(&format!(
            "status: {}; execution: {}",
            error.code(),
            error.execution()
        ));
        self.times();
    }

    fn times(&self) {
        let first = match self.first_response {
            Some(first) => format!("{first:.1?}"),
            None => "none".to_owned(),
        };
        self.say(&format!(
            "times: connecting {:.1?}, types {:.1?}, begin of the response {first}, end {:.1?}; {} received",
            self.connecting,
            self.learning,
            self.begun.elapsed(),
            match self.messages {
                1 => "1 message".to_owned(),
                count => format!("{count} messages"),
            },
        ));
    }

    fn metadata(&self, what: &str, metadata: &Metadata) {
        for (key, value) in metadata.iter() {
            let value = match (key.ends_with("-bin"), std::str::from_utf8(value)) {
                (false, Ok(text)) => text.to_owned(),
                _ => BASE64_STANDARD.encode(value),
            };
            self.say(&format!("{what}: {key}: {value}"));
        }
    }

    fn say(&self, line: &str) {
        if self.is_verbose {
            // Standard error may be closed: the responses are what counts.
            let _ = writeln!(io::stderr(), "{}", visible(line));
        }
    }
}
