//! TLS for [`Device`]: the security of the crate `verbline-tls`, as the transport uses it.

use std::sync::Arc;
use std::time::SystemTime;

use verbline_tls::{ClientTls, Handshake, Opened, Progress, Records, ServerTls};
use verbline_verbs::for_transport::{BadRecord, Opened as OpenedRecord, RecordLayer};

use super::Device;
use crate::transport::security::{
    ClientSecurity, Secured, SecurityError, SecurityHandshake, SecurityProgress, ServerSecurity,
};

impl Device {
    /// Returns the same device, whose servers prove who they are, and take only clients with TLS 1.3. With
    /// [`ServerTls::clients`], clients have to prove who they are, too.
    ///
    /// On every device, the set-up of a connection is encrypted: queue pair numbers, keys and addresses
    /// are not disclosed, and whoever does not prove what is demanded takes no place. What follows is encrypted over `tcp`, which a device of [`best`](Self::best) then uses.
    /// Over RDMA and shared memory it is **not encrypted**: see `docs/deploy.md`.
    ///
    /// Clients without TLS are told so and refused, unless
    /// [`allow_plaintext`](Self::allow_plaintext) is called, too. Both kinds use one port. A list of
    /// devices has to name `tcp` for its calls, which are encrypted, as `soft,tcp` does.
    #[must_use]
    pub fn with_server_tls(mut self, tls: ServerTls) -> Self {
        self.security.server = Some(Arc::new(tls));
        self
    }

    /// Returns the same device, whose clients connect only with TLS 1.3, and only to servers that prove
    /// to be who `tls` expects: on every device, and each time that a channel connects again.
    ///
    /// Over `tcp`, calls are encrypted, so a device of [`best`](Self::best) then offers it. Over RDMA and
    /// shared memory they are **not encrypted**: see `docs/deploy.md`.
    #[must_use]
    pub fn with_client_tls(mut self, tls: ClientTls) -> Self {
        self.security.client = Some(Arc::new(tls));
        self
    }
}

impl ServerSecurity for ServerTls {
    fn begin(&self) -> Result<Box<dyn SecurityHandshake>, SecurityError> {
        Ok(Box::new(Handshake::of_server(self)?))
    }

    fn demands_certificates(&self) -> bool {
        Self::demands_certificates(self)
    }

    fn expires(&self) -> SystemTime {
        self.identity().expires()
    }
}

impl ClientSecurity for ClientTls {
    fn begin(&self, host: &str) -> Result<Box<dyn SecurityHandshake>, SecurityError> {
        Ok(Box::new(Handshake::of_client(self, host)?))
    }
}

impl SecurityHandshake for Handshake {
    fn advance(
        self: Box<Self>,
        arrived: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> Result<SecurityProgress, SecurityError> {
        Ok(match Self::advance(*self, arrived, to_send)? {
            Progress::Waits(handshake) => SecurityProgress::Waits(Box::new(handshake)),
            Progress::Done(secured) => {
                let verbline_tls::Secured { records, peer } = *secured;
                SecurityProgress::Done(Secured {
                    layer: Box::new(TlsRecords(records)),
                    certificate: peer,
                })
            }
        })
    }
}

/// The records of a connection of TLS.
#[derive(Debug)]
struct TlsRecords(Records);

impl RecordLayer for TlsRecords {
    fn seal_with(
        &mut self,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        sealed: &mut Vec<u8>,
    ) -> Result<(), BadRecord> {
        let done = self.0.seal_with(len, fill, sealed);
        done.map_err(|error| BadRecord(error.sentence()))
    }

    fn seal_end(&mut self, sealed: &mut Vec<u8>) -> Result<(), BadRecord> {
        let done = self.0.seal_end(sealed);
        done.map_err(|error| BadRecord(error.sentence()))
    }

    fn open(&mut self, sealed: &mut [u8]) -> Result<Option<OpenedRecord>, BadRecord> {
        let opened = self.0.open(sealed);
        let opened = opened.map_err(|error| BadRecord(error.sentence()))?;
        Ok(opened.map(|Opened { plain, len, is_end }| OpenedRecord { plain, len, is_end }))
    }
}
