//! [`Configs`]: configurations that are built again when what they are made of has changed.

use std::sync::{Arc, Mutex, PoisonError};

/// The name of Verbline's protocol in the handshake (ALPN). A peer that offers other names only is
/// refused.
pub const ALPN: &[u8] = b"verbline";

/// The name of HTTP/2 in the handshake.
pub(crate) const HTTP2: &[u8] = b"h2";

/// A configuration, once for each protocol.
pub(crate) struct Configs<C> {
    pub(crate) verbline: Arc<C>,
    pub(crate) http2: Arc<C>,
}

impl<C> Clone for Configs<C> {
    fn clone(&self) -> Self {
        Self {
            verbline: Arc::clone(&self.verbline),
            http2: Arc::clone(&self.http2),
        }
    }
}

/// The generations of an identity and of roots: 0 for what is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generations {
    pub(crate) identity: u64,
    pub(crate) roots: u64,
}

/// The configurations that were built last.
pub(crate) struct Cached<C>(Mutex<Option<(Generations, Configs<C>)>>);

impl<C> Cached<C> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns the configurations of `generations`, which `build` makes if they are not those of the
    /// last call.
    pub(crate) fn get(
        &self,
        generations: Generations,
        build: impl FnOnce() -> Configs<C>,
    ) -> Configs<C> {
        // A build that panics leaves the configurations of before, with their generations.
        let mut built = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, configs)) = &*built
            && *of == generations
        {
            return configs.clone();
        }
        let configs = build();
        *built = Some((generations, configs.clone()));
        configs
    }
}
