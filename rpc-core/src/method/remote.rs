//! [`RemoteMethods`]: the methods that a server has named, as specs to call them with.
//!
//! Calls take a `&'static MethodSpec`, and compare its address. So a spec for a path that is only known
//! at run time is *interned*: it is allocated once in the process, and never freed. The paths are a
//! server's, which may name others at each connection, so three limits apply: to the length of a path,
//! to the specs of a channel, and to those of the process.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::{Idempotency, MethodKind, MethodSpec};

/// The most specs that a channel interns, over all of its connections. A server with more methods is
/// not known; with these, a channel keeps 5 MiB for ever at most.
const MOST_OF_CHANNEL: usize = 4096;

/// The most specs that the process interns: 16 channels, each to another server that names as many as
/// it can.
const MOST_OF_PROCESS: usize = 65_536;

/// The most bytes of a path. Those of services have some 50.
const LONGEST_PATH: usize = 1024;

/// The methods of a server: the result of [`Channel::methods`](crate::Channel::methods). Cheap to clone.
///
/// The specs are for calls of methods that are not known when the program is compiled, with
/// [`BytesCodec`](crate::BytesCodec). They have the path and the kind, which is all that a server says:
/// the idempotency is unknown, the names of the messages are empty, and the limits of messages are the
/// connection's.
///
/// A spec is allocated once for each path and kind, and never freed. A server could name other methods
/// at each connection, so a channel has at most 4,096 specs in its life, and the process 65,536. A
/// method beyond these limits, or with a path of more than 1,024 bytes, is not listed, and a warning is
/// logged.
#[derive(Clone)]
pub struct RemoteMethods(
    /// In the order of their paths, of which no two are the same.
    Arc<[&'static MethodSpec]>,
);

impl RemoteMethods {
    /// Creates the list of a server's methods, each with its path.
    pub(crate) fn new<'a>(
        methods: impl IntoIterator<Item = (&'a str, MethodKind)>,
        interner: &mut Interner,
    ) -> Self {
        let mut methods: Vec<_> = methods.into_iter().collect();
        // Which ones are left out does not depend on the order in which they come.
        methods.sort_unstable_by_key(|&(path, _)| path);
        let specs = methods.iter();
        let specs: Arc<[_]> = specs
            .filter_map(|&(path, kind)| interner.intern(path, kind))
            .collect();
        let left_out = methods.len() - specs.len();
        if left_out > 0 {
            log_limited!(
                warn,
                left_out,
                listed = specs.len(),
                "a server names methods beyond the limits of a channel, or of this process: \
                 `Channel::methods` does not list them, and generated clients call them as before"
            );
        }
        Self(specs)
    }

    /// Returns the method with this path, `package.Service/Method`, or `None` if the server has no such
    /// method.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&'static MethodSpec> {
        let found = self.0.binary_search_by_key(&path, |spec| spec.path);
        found.ok().map(|index| self.0[index])
    }

    /// Iterates over the methods, in the order of their paths.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'static MethodSpec> + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Debug for RemoteMethods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|spec| spec.path))
            .finish()
    }
}

type Specs = HashMap<(&'static str, MethodKind), &'static MethodSpec>;

/// All specs that have been interned.
static INTERNED: LazyLock<Mutex<Specs>> = LazyLock::new(Mutex::default);

/// The specs that a channel has interned.
#[derive(Debug, Default)]
pub(crate) struct Interner(Specs);

impl Interner {
    /// Returns the spec of a method. `None` beyond the limits.
    fn intern(&mut self, path: &str, kind: MethodKind) -> Option<&'static MethodSpec> {
        if let Some(spec) = find(&self.0, path, kind) {
            return Some(spec);
        }
        if self.0.len() >= MOST_OF_CHANNEL {
            return None;
        }
        let spec = intern(path, kind)?;
        self.0.insert((spec.path, kind), spec);
        Some(spec)
    }
}

/// Returns the spec of a method, the same one at each call. `None` beyond the limits.
fn intern(path: &str, kind: MethodKind) -> Option<&'static MethodSpec> {
    // Under this lock only the allocator can panic.
    let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(spec) = find(&interned, path, kind) {
        return Some(spec);
    }
    if interned.len() >= MOST_OF_PROCESS || path.len() > LONGEST_PATH {
        return None;
    }
    let path: &'static str = Box::leak(path.into());
    let spec = MethodSpec::new(path, kind, Idempotency::Unknown, "", "");
    let spec: &'static MethodSpec = Box::leak(Box::new(spec));
    interned.insert((path, kind), spec);
    Some(spec)
}

/// Looks up a path that need not be static.
fn find<'a>(
    specs: &HashMap<(&'a str, MethodKind), &'static MethodSpec>,
    path: &'a str,
    kind: MethodKind,
) -> Option<&'static MethodSpec> {
    specs.get(&(path, kind)).copied()
}

/// The methods of a channel's latest connection.
#[derive(Debug, Default)]
pub(crate) struct LatestMethods {
    latest: Mutex<Latest>,
    /// Locked by callers, and not by pollers, which do not wait for whoever reads a long list.
    interner: Mutex<Interner>,
}

#[derive(Debug, Default)]
struct Latest {
    /// What the server has named.
    named: Option<Arc<NamedMethods>>,
    /// The same as specs, once a caller has asked for them.
    methods: Option<RemoteMethods>,
}

/// The methods that a server names in the handshake, by path, each with its number.
pub(crate) type NamedMethods = HashMap<String, (u16, MethodKind)>;

impl LatestMethods {
    /// Notes the methods of a connection that has been established.
    pub(crate) fn set(&self, named: Arc<NamedMethods>) {
        let latest = Latest {
            named: Some(named),
            methods: None,
        };
        let mut locked = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *locked, latest);
        drop(locked);
        drop(before);
    }

    /// Returns the methods, or `None` before the first connection.
    pub(crate) fn get(&self) -> Option<RemoteMethods> {
        let named = {
            let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(methods) = &latest.methods {
                return Some(methods.clone());
            }
            Arc::clone(latest.named.as_ref()?)
        };
        let mut interner = self.interner.lock().unwrap_or_else(PoisonError::into_inner);
        let methods = of_names(&named, &mut interner);
        drop(interner);
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let is_latest = latest
            .named
            .as_ref()
            .is_some_and(|latest| Arc::ptr_eq(latest, &named));
        if is_latest {
            latest.methods = Some(methods.clone());
        }
        Some(methods)
    }
}

/// Returns the specs of what a server has named.
pub(crate) fn of_names(named: &NamedMethods, interner: &mut Interner) -> RemoteMethods {
    let methods = named.iter().map(|(path, &(_, kind))| (&**path, kind));
    RemoteMethods::new(methods, interner)
}

#[cfg(test)]
mod tests;
