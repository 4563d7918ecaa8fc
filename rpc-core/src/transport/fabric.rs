//! [`Fabric`]: a device, which opens transports.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use super::{Admission, CoreClaim, CoreRefusal, FabricError, Transport};
use crate::limits::Intents;

/// A device, as the core sees it: it opens transports.
///
/// Cheap to clone. May be used from any thread, off the data path.
pub trait Fabric: Clone + Send + Sync + 'static {
    /// The type of its transports.
    type Transport: Transport;
    /// The handle through which a listener passes accepted connections to a poller's transport.
    type Port: Send + 'static;

    /// Opens a transport for the poller that runs on the calling thread.
    ///
    /// # Errors
    ///
    /// Returns [`FabricError`] if the device cannot provide what the intents need.
    fn open(&self, intents: &Intents) -> Result<Self::Transport, FabricError>;

    /// Returns the port of a transport that [`open`](Self::open) returned.
    fn port(&self, transport: &Self::Transport) -> Self::Port;

    /// Binds a socket to `host:port`, for [`listen`](Self::listen).
    ///
    /// # Errors
    ///
    /// Returns [`FabricError::Listen`] if this is no address, or not one of this machine and free.
    fn bind(&self, address: &str) -> Result<TcpListener, FabricError>;

    /// Listens for handshakes on a bound socket, on a thread of its own. Clients accepted by
    /// `admission` go to the port whose index it returned.
    ///
    /// # Errors
    ///
    /// Returns [`FabricError`] if the listener cannot be started.
    fn listen(
        &self,
        socket: TcpListener,
        ports: Vec<Self::Port>,
        admission: Arc<dyn Admission>,
    ) -> Result<Box<dyn Listener>, FabricError>;

    /// Returns when the certificate expires by which servers of this device prove who they are now. By
    /// default, they have none.
    fn certificate_expires(&self) -> Option<SystemTime> {
        None
    }

    /// Returns true in a process that cannot use what was opened before it was forked. The core asks
    /// before it waits for a thread, which such a process does not have. By default, no process is
    /// forked.
    fn is_forked() -> bool {
        false
    }

    /// Checks the form of a server's address, without looking it up. A channel checks its address
    /// before it does anything else. By default, every form is good.
    ///
    /// # Errors
    ///
    /// Returns an error that says how to write the address.
    fn check_address(&self, address: &str) -> io::Result<()> {
        let _ = address;
        Ok(())
    }

    /// Returns the cores that this process may use, in ascending order, even if the calling thread is
    /// pinned.
    fn allowed_cores(&self) -> Vec<usize>;

    /// Claims a core for a poller of this process, which has no claim of it. By default, there are no
    /// other processes.
    ///
    /// # Errors
    ///
    /// Returns [`CoreRefusal`], with the other process if one has the core.
    fn claim_core(&self, core: usize) -> Result<CoreClaim, CoreRefusal> {
        let _ = core;
        Ok(Box::new(()))
    }

    /// Pins the calling thread to a core.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error>;

    /// Undoes [`pin_current_thread`](Self::pin_current_thread).
    fn unpin_current_thread(&self) {}

    /// Starts a thread of the library, which is not pinned even if the calling thread is.
    ///
    /// # Errors
    ///
    /// Returns the system's error if it refuses a thread.
    fn start_thread<T: Send + 'static>(
        &self,
        name: &str,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        thread::Builder::new().name(name.to_owned()).spawn(run)
    }

    /// Like [`start_thread`](Self::start_thread), for a thread that outlives the device.
    ///
    /// # Errors
    ///
    /// Returns the system's error if it refuses a thread.
    fn start_thread_of_process(name: &str, run: fn()) -> io::Result<()> {
        let builder = thread::Builder::new().name(name.to_owned());
        builder.spawn(run).map(drop)
    }
}

/// Why nothing works in the child of a fork, and what the child can do.
pub(crate) const FORKED: &str = "this process was forked after its device was opened, which works in the parent only; a child has \
     to start a program (exec) that opens its own device";

/// A socket that accepts handshakes until it is dropped.
pub trait Listener: Send {
    /// Returns the bound address, with the port that the system chose if port 0 was requested.
    fn local_addr(&self) -> SocketAddr;
}
