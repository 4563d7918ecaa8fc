//! [`logged`]: what is logged on this thread.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Runs `f`, and returns the lines of this crate: their levels and messages.
pub(crate) fn logged(f: impl FnOnce()) -> Vec<(Level, String)> {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), f);
    let lines = lines.0.lock().unwrap();
    lines.clone()
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target().starts_with("verbline_tls") {
            let mut text = Text(String::new());
            event.record(&mut text);
            let line = (*event.metadata().level(), text.0);
            self.0.lock().unwrap().push(line);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{value:?}"));
    }
}
