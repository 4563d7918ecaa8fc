//! [`Device`] as the [`Fabric`] of `rpc-core`: opens transports, listens, and claims cores.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use rpc_core::Intents;
use rpc_core::transport::{Admission, CoreClaim, CoreRefusal, Fabric, FabricError, Listener};
use verbline_verbs::for_transport::{self, is_forked};

use super::{Device, cores, setup};
use crate::connect::address;
use crate::connect::control_thread::{self, ListenerConfig};
use crate::connect::server::{self, Port};
use crate::transport::VerbsTransport;
use crate::transport::queue_pairs::Plaintext;

impl Fabric for Device {
    type Transport = VerbsTransport;
    type Port = Port;

    fn open(&self, intents: &Intents) -> Result<VerbsTransport, FabricError> {
        let plaintext = self.security.plaintext(self.plaintext);
        let mut transport = setup::open(&self.names, plaintext, intents, &self.sizing)?;
        transport.secure_as_client(self.security.client.clone());
        Ok(transport)
    }

    fn port(&self, transport: &VerbsTransport) -> Port {
        transport.port()
    }

    fn bind(&self, address: &str) -> Result<TcpListener, FabricError> {
        server::bind(address).map_err(|source| FabricError::Listen {
            address: address.to_owned(),
            source,
        })
    }

    fn listen(
        &self,
        socket: TcpListener,
        ports: Vec<Port>,
        admission: Arc<dyn Admission>,
    ) -> Result<Box<dyn Listener>, FabricError> {
        if self.security.requires_encryption && self.security.server.is_none() {
            return Err(FabricError::Device {
                device: self.name().to_owned(),
                action: "cannot take clients".to_owned(),
                source: "it has `require_encryption`, and no `with_server_tls`: add it".into(),
            });
        }
        let address = server::listen(&socket).map_err(FabricError::Socket)?;
        if self.security.plaintext(self.plaintext) == Plaintext::Allowed {
            tracing::info!(
                %address,
                "taking calls over TCP, which are not encrypted, from whoever reaches this address"
            );
        }
        if let Some(security) = &self.security.server {
            let who = match security.demands_certificates() {
                true => "with a certificate",
                false => "whether or not they have a certificate",
            };
            let also = match self.security.takes_plain_clients() {
                true => ", and clients without it, since it has `allow_plaintext`",
                false => "",
            };
            tracing::info!(
                %address,
                "taking clients with TLS, {who}{also}. Over tcp, their calls are encrypted; over shared memory \
                 and RDMA, they are not"
            );
        }
        let config = ListenerConfig {
            ports,
            admission,
            security: self.security.server.clone(),
            takes_plain: self.security.takes_plain_clients(),
        };
        let listening = control_thread::control()
            .and_then(|control| control.listen(socket, address, config))
            .map_err(|source| FabricError::Listen {
                address: address.to_string(),
                source,
            })?;
        Ok(Box::new(listening))
    }

    fn certificate_expires(&self) -> Option<SystemTime> {
        let security = self.security.server.as_ref();
        security.map(|security| security.expires())
    }

    fn is_forked() -> bool {
        is_forked()
    }

    fn check_address(&self, address: &str) -> io::Result<()> {
        address::check(address)
    }

    fn allowed_cores(&self) -> Vec<usize> {
        for_transport::allowed_cores().unwrap_or_else(|error| {
            tracing::warn!(%error, "the system did not report which cores this process may use");
            Vec::new()
        })
    }

    fn claim_core(&self, core: usize) -> Result<CoreClaim, CoreRefusal> {
        cores::claim(core)
    }

    fn pin_current_thread(&self, core: usize) -> Result<(), io::Error> {
        for_transport::pin(core)
    }

    fn unpin_current_thread(&self) {
        for_transport::unpin();
    }

    fn start_thread<T: Send + 'static>(
        &self,
        name: &str,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        for_transport::start_thread(name, run)
    }

    fn start_thread_of_process(name: &str, run: fn()) -> io::Result<()> {
        for_transport::start_thread(name, run).map(drop)
    }
}
