//! The Rust names of one module, message, enum or service.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use prost_types::FileDescriptorProto;

use crate::error::Error;

/// The Rust names that were taken, each with the item that has it.
#[derive(Default)]
pub(super) struct Scope<'a>(HashMap<String, Item<'a>>);

/// Something that has a Rust name.
pub(super) struct Item<'a> {
    /// The item for messages to the user: "service `demo.Greeter`".
    what: String,
    place: Place<'a>,
    /// Whether this is a module of messages. Packages and nested types may have such a module in
    /// common.
    is_shared: bool,
}

impl<'a> Item<'a> {
    /// Returns an item that needs its name for itself.
    pub(super) fn new(what: String, place: &Place<'a>) -> Item<'a> {
        Item {
            what,
            place: place.clone(),
            is_shared: false,
        }
    }

    /// Returns a module of messages.
    pub(super) fn module(what: String, place: &Place<'a>) -> Item<'a> {
        Item {
            is_shared: true,
            ..Item::new(what, place)
        }
    }

    /// Returns the error of an item that has no Rust name.
    pub(super) fn unnamed(self) -> Error {
        Error::NoRustName {
            file: self.place.on_disk.to_owned(),
            line: self.place.line(),
            what: self.what,
        }
    }
}

impl<'a> Scope<'a> {
    /// Gives `name` to `item`, unless another one has it.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is empty, or if another item has it. The error is about the one that
    /// stands second in its file.
    pub(super) fn take(&mut self, name: String, item: Item<'a>) -> Result<(), Error> {
        if name.is_empty() {
            return Err(item.unnamed());
        }
        let entry = match self.0.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(item);
                return Ok(());
            }
            Entry::Occupied(entry) => entry,
        };
        let other = entry.get();
        if item.is_shared && other.is_shared {
            return Ok(());
        }
        let (first, second) = match item.place.precedes(&other.place) {
            false => (other, &item),
            true => (&item, other),
        };
        Err(Error::NameTaken {
            file: second.place.on_disk.to_owned(),
            line: second.place.line(),
            what: second.what.clone(),
            name: entry.key().clone(),
            other: first.what.clone(),
        })
    }

    /// Gives `name` to `item` if no other item has it. Returns the one that has it now.
    pub(super) fn offer(&mut self, name: &str, item: Item<'a>) -> &str {
        &self.0.entry(name.to_owned()).or_insert(item).what
    }
}

/// The location of a descriptor in its file, from which its line can be looked up.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) file: &'a FileDescriptorProto,
    pub(super) on_disk: &'a Path,
    pub(super) path: Vec<i32>,
}

impl Place<'_> {
    /// Returns the location of the field `field`.
    pub(super) fn at(&self, field: i32) -> Self {
        Place {
            path: [self.path.as_slice(), &[field]].concat(),
            ..*self
        }
    }

    /// Returns the location of element `index` of the repeated field `field`.
    pub(super) fn below(&self, field: i32, index: usize) -> Self {
        Place {
            path: [self.path.as_slice(), &[field, index as i32]].concat(),
            ..*self
        }
    }

    /// Returns the line, counted from one, or `None` if the descriptors have no source information.
    pub(super) fn line(&self) -> Option<usize> {
        self.start().map(|(line, _)| line + 1)
    }

    /// Returns the line and the column, counted from zero.
    fn start(&self) -> Option<(usize, usize)> {
        let locations = &self.file.source_code_info.as_ref()?.location;
        let location = locations
            .iter()
            .find(|location| location.path == self.path)?;
        let [line, column, ..] = location.span[..] else {
            return None;
        };
        Some((usize::try_from(line).ok()?, usize::try_from(column).ok()?))
    }

    /// Returns true if this location is before `other` in the same file.
    fn precedes(&self, other: &Place<'_>) -> bool {
        self.file.name() == other.file.name() && self.start() < other.start()
    }
}
