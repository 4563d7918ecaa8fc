//! The lock-free pieces of the other packages, under the module paths that they have there. Their
//! models are in the same files.

// What only the rest of their packages uses is unused here.
#![allow(dead_code, missing_docs, unreachable_pub, unused_imports)]

#[path = "../../../biased-lock/src"]
mod biased_lock {
    mod lock;
    mod membarrier;
    mod sync;
    mod thread_id;
}

#[path = "../../../rpc-core/src/driver"]
mod driver {
    pub(crate) mod wakeup;
}

#[path = "../../../rpc-core/src/shared"]
mod shared {
    pub(crate) mod marks;
}

#[path = "../../../rpc-transport-verbs/src/transport"]
mod transport {
    pub(crate) mod peer_clock;
}

#[path = "../../../rpc-transport-verbs/verbs/src/system_error.rs"]
mod system_error;

/// Those of a build that simulates nothing.
mod hooks {
    macro_rules! point {
        ($point:ident) => {};
    }
    pub(crate) use point;
}

#[path = "../../../rpc-transport-verbs/verbs/src/provider"]
mod provider {
    pub(crate) mod soft {
        pub(crate) mod shared {
            pub(crate) mod announcements;
            pub(crate) mod commit;
            pub(crate) mod memory;
            pub(crate) mod ring {
                pub(crate) mod closed;
            }
            pub(crate) mod sequence_lock;
            pub(crate) mod sync;
            pub(crate) mod wake;
        }
    }
}
