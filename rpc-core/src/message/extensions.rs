//! [`Extensions`]: values that travel with a request or a response inside a process.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;

type AnyMap = HashMap<TypeId, Box<dyn Any + Send + Sync>>;

/// Values keyed by their type. One layer of a program passes data to another layer in them. They
/// are never sent.
#[derive(Default)]
pub struct Extensions(
    // As in `Metadata`, boxing the map makes an empty map a null pointer.
    #[allow(clippy::box_collection)] Option<Box<AnyMap>>,
);

impl Extensions {
    /// Creates an empty map, without allocating.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Inserts a value and returns the previous value of the same type.
    pub fn insert<V: Send + Sync + 'static>(&mut self, value: V) -> Option<V> {
        let previous = self
            .0
            .get_or_insert_default()
            .insert(TypeId::of::<V>(), Box::new(value));
        previous
            .and_then(|previous| previous.downcast().ok())
            .map(|previous| *previous)
    }

    /// Returns the value of this type.
    #[must_use]
    pub fn get<V: Send + Sync + 'static>(&self) -> Option<&V> {
        self.0.as_ref()?.get(&TypeId::of::<V>())?.downcast_ref()
    }

    /// Returns the value of this type for modification.
    pub fn get_mut<V: Send + Sync + 'static>(&mut self) -> Option<&mut V> {
        self.0.as_mut()?.get_mut(&TypeId::of::<V>())?.downcast_mut()
    }

    /// Removes the value of this type, and returns it.
    pub fn remove<V: Send + Sync + 'static>(&mut self) -> Option<V> {
        let removed = self.0.as_mut()?.remove(&TypeId::of::<V>())?;
        removed.downcast().ok().map(|value| *value)
    }

    /// Returns true if there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|map| map.is_empty())
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Extensions({})",
            self.0.as_ref().map_or(0, |map| map.len())
        )
    }
}
