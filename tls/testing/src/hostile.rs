//! [`bytes`]: a hostile peer of either side of a handshake, as a function of bytes. It serves a test and the
//! fuzz target `tls`; see `rpc_core_testing::hostile`.
//!
//! The peer does what the bytes say. It has the keys of its connection, so it seals any content, cuts the
//! genuine messages of its handshake into records as it likes, and says other things between them.

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use rustls::{AlertDescription, ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use verbline_tls::{
    ClientAuth, ClientTls, Handshake, Identity, MAX_PLAIN, MAX_WAITING, Progress, Roots, Secured,
    ServerTls,
};

use crate::sealer::{APPLICATION_DATA, HANDSHAKE, HEADER_LEN, Sealer, Secrets, header};
use crate::{Authority, Issued};

/// The TLS of both sides, which know each other.
static BOTH: LazyLock<(ServerTls, ClientTls)> = LazyLock::new(|| {
    let authority = Authority::new("root");
    let roots = || Roots::from_pem(authority.pem().as_bytes()).unwrap();
    let identity = |issued: Issued| {
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).unwrap()
    };
    let server = ServerTls::new(identity(authority.issue_to("localhost")));
    let client = ClientTls::new(roots()).identity(identity(authority.issue_to("client.example")));
    (server.clients(roots(), ClientAuth::Required), client)
});

/// A message KeyUpdate, without its last byte.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];

/// How far the attacked side has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// It has ended the connection in the handshake.
    Refused,
    /// It waits for more of the handshake.
    Waits,
    /// The handshake is complete.
    Done,
    /// The handshake was complete, and a later record has ended the connection.
    Ended,
}

/// Attacks one side with these bytes.
///
/// # Panics
///
/// Panics if it finds a violation of what must hold whatever a peer does.
pub fn bytes(bytes: &[u8]) -> Reached {
    let mut script = Script(bytes);
    let first = script.byte();
    let (is_server, is_keyless) = (first & 1 == 0, first & 2 != 0);
    // A client of another protocol is refused after this side's hello.
    let is_of_another = first & 4 != 0;
    let (server, client) = &*BOTH;
    let (mut victim, mut attacker) = match is_server {
        true => (
            Victim::new(Handshake::of_server(server).unwrap()),
            Attacker::default(),
        ),
        false => {
            let mut victim = Victim::new(Handshake::of_client(client, "localhost").unwrap());
            victim.advance();
            let attacker = match is_keyless {
                true => Attacker::default(),
                false => Attacker::server(server.config(), &victim.said),
            };
            (victim, attacker)
        }
    };
    if is_server && !is_keyless {
        if is_of_another {
            return refuse_another_protocol(client, victim);
        }
        attacker = Attacker::client(client, &mut victim);
    }
    while let Some(step) = script.next() {
        if victim.has_refused() {
            break;
        }
        attacker.act(step % 16, &mut script, &mut victim.arrived);
        // Sometimes several things arrive at once.
        if step & 0x80 == 0 {
            let was_done = matches!(victim.state, State::Done(_));
            victim.advance();
            if !was_done && matches!(victim.state, State::Done(_)) {
                assert!(!is_keyless, "there is no handshake without keys");
                assert!(
                    attacker.messages.is_empty(),
                    "a handshake has all of its messages"
                );
            }
        }
    }
    victim.advance();
    assert!(
        attacker.plain.starts_with(&victim.heard),
        "it heard what nobody has said"
    );
    match victim.state {
        State::Begins(_) => Reached::Waits,
        State::Done(_) => Reached::Done,
        State::Refused => Reached::Refused,
        State::Ended => Reached::Ended,
    }
}

/// Lets a client offer another protocol only. It has to hear the reason of its refusal.
fn refuse_another_protocol(tls: &ClientTls, mut victim: Victim) -> Reached {
    let mut config = ClientConfig::clone(&tls.config());
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = tls.server_name("localhost").unwrap();
    let mut genuine = ClientConnection::new(Arc::new(config), name).unwrap();
    genuine.write_tls(&mut victim.arrived).unwrap();
    victim.advance();
    assert!(
        victim.has_refused(),
        "no client of another protocol is taken"
    );
    genuine.read_tls(&mut Cursor::new(&victim.said)).unwrap();
    let reason = genuine.process_new_packets().unwrap_err();
    let wanted = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
    assert_eq!(reason, wanted);
    Reached::Refused
}

/// Reads arguments from bytes. What is past the end is zero.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn piece(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (piece, rest) = self.0.split_at(len);
        self.0 = rest;
        piece
    }
}

/// The attacked side.
struct Victim {
    state: State,
    arrived: Vec<u8>,
    said: Vec<u8>,
    /// The application's bytes that it has taken.
    heard: Vec<u8>,
}

enum State {
    Begins(Handshake),
    Done(Box<Secured>),
    Refused,
    Ended,
}

impl Victim {
    fn new(handshake: Handshake) -> Self {
        Self {
            state: State::Begins(handshake),
            arrived: Vec::new(),
            said: Vec::new(),
            heard: Vec::new(),
        }
    }

    fn has_refused(&self) -> bool {
        matches!(self.state, State::Refused | State::Ended)
    }

    /// Handles what has arrived.
    fn advance(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Refused) {
            State::Begins(handshake) => {
                match handshake.advance(&mut self.arrived, &mut self.said) {
                    Ok(Progress::Waits(handshake)) => {
                        assert!(self.arrived.len() < MAX_WAITING, "it waits for too much");
                        State::Begins(handshake)
                    }
                    Ok(Progress::Done(secured)) => State::Done(secured),
                    Err(error) => {
                        assert!(!error.to_string().is_empty());
                        State::Refused
                    }
                }
            }
            other => other,
        };
        let State::Done(secured) = &mut self.state else {
            return;
        };
        loop {
            let before = self.arrived.len();
            match secured.records.open(&mut self.arrived) {
                Ok(None) => return,
                Ok(Some(opened)) => {
                    assert!(opened.plain.len() <= MAX_PLAIN && opened.len <= before);
                    self.heard.extend_from_slice(&self.arrived[opened.plain]);
                    self.arrived.drain(..opened.len);
                    if opened.is_end {
                        break;
                    }
                    // What it owes is sent with its next record.
                    let mut sealed = Vec::new();
                    secured.records.seal(b"x", &mut sealed).unwrap();
                }
                Err(_) => break,
            }
        }
        self.state = State::Ended;
    }
}

/// The attacking side: what it has of its handshake.
#[derive(Default)]
struct Attacker {
    /// The genuine records in the clear that it has not sent.
    clear: Vec<u8>,
    /// The genuine messages that it has not sent, and that are sealed.
    messages: Vec<u8>,
    /// For the records of the handshake.
    sealer: Option<Sealer>,
    /// For the records after the handshake.
    later: Option<Sealer>,
    /// The handshake is complete on this side.
    later_begins: bool,
    /// What it has said to the application.
    plain: Vec<u8>,
}

impl Attacker {
    /// A client that has said its hello to the victim, and has heard the answer.
    fn client(tls: &ClientTls, victim: &mut Victim) -> Self {
        let secrets = Secrets::default();
        let mut config = ClientConfig::clone(&tls.config());
        config.key_log = Arc::new(secrets.clone());
        let name = tls.server_name("localhost").unwrap();
        let mut genuine = ClientConnection::new(Arc::new(config), name).unwrap();
        genuine.write_tls(&mut victim.arrived).unwrap();
        victim.advance();
        genuine.read_tls(&mut Cursor::new(&victim.said)).unwrap();
        genuine.process_new_packets().unwrap();
        let mut flight = Vec::new();
        while genuine.wants_write() {
            genuine.write_tls(&mut flight).unwrap();
        }
        Self::with_flight(&secrets, "CLIENT", &flight)
    }

    /// A server that was told this hello, and has sent its own one.
    fn server(config: Arc<ServerConfig>, hello: &[u8]) -> Self {
        let secrets = Secrets::default();
        let mut config = ServerConfig::clone(&config);
        config.key_log = Arc::new(secrets.clone());
        let mut genuine = ServerConnection::new(Arc::new(config)).unwrap();
        genuine.read_tls(&mut Cursor::new(hello)).unwrap();
        genuine.process_new_packets().unwrap();
        let mut flight = Vec::new();
        while genuine.wants_write() {
            genuine.write_tls(&mut flight).unwrap();
        }
        Self::with_flight(&secrets, "SERVER", &flight)
    }

    /// An attacker that has not sent its genuine flight.
    fn with_flight(secrets: &Secrets, side: &str, mut flight: &[u8]) -> Self {
        let sealer = || secrets.sealer(&format!("{side}_HANDSHAKE_TRAFFIC_SECRET"));
        let mut opener = sealer().expect("both hellos were said");
        let mut attacker = Self {
            sealer: sealer(),
            later: secrets.sealer(&format!("{side}_TRAFFIC_SECRET_0")),
            ..Self::default()
        };
        while let Some(&[content, _, _, high, low]) = flight.first_chunk::<HEADER_LEN>() {
            let len = HEADER_LEN + usize::from(u16::from_be_bytes([high, low]));
            let (record, rest) = flight.split_at(len);
            if content == APPLICATION_DATA {
                let mut inner = opener.open(record).expect("its own record");
                assert_eq!(inner.pop(), Some(HANDSHAKE));
                attacker.messages.extend(inner);
            } else {
                attacker.clear.extend_from_slice(record);
            }
            flight = rest;
        }
        attacker
    }

    /// Does one thing.
    fn act(&mut self, what: u8, script: &mut Script<'_>, to: &mut Vec<u8>) {
        let some = |from: &mut Vec<u8>, len: u8| -> Vec<u8> {
            let len = usize::from(len).min(from.len());
            from.drain(..len).collect()
        };
        let sealed = match what {
            0 => script.piece().to_vec(),
            1 => some(&mut self.clear, script.byte()),
            2 => std::mem::take(&mut self.clear),
            3 => {
                let messages = some(&mut self.messages, script.byte());
                self.seal_messages(&messages)
            }
            4 => {
                let messages = std::mem::take(&mut self.messages);
                self.seal_messages(&messages)
            }
            // Another message before, or in the middle of, a genuine one.
            5 => {
                let mut messages = script.piece().to_vec();
                messages.extend(some(&mut self.messages, script.byte()));
                self.seal(HANDSHAKE, &messages)
            }
            6 => self.seal(script.byte(), script.piece()),
            7 => {
                let mut inner = script.piece().to_vec();
                inner.resize(inner.len() + usize::from(script.byte()), 0);
                self.seal_inner(inner)
            }
            8 => {
                let piece = script.piece();
                [&header(script.byte(), piece.len())[..], piece].concat()
            }
            // A ChangeCipherSpec, which says nothing.
            9 => vec![20, 3, 3, 0, 1, 1],
            10 => {
                let update = self.seal(HANDSHAKE, &[&KEY_UPDATE[..], &[script.byte()]].concat());
                if let Some(sealer) = self.current() {
                    sealer.update();
                }
                update
            }
            11 => {
                let len = usize::from(script.byte()) * 68;
                self.seal(script.byte(), &vec![script.byte(); len])
            }
            // The same record many times over.
            12 => {
                let (content_type, piece) = (script.byte(), script.piece());
                let times = 0..script.byte();
                times.flat_map(|_| self.seal(content_type, piece)).collect()
            }
            13 => header(script.byte(), usize::from(script.byte()) * 257).to_vec(),
            _ => self.seal(APPLICATION_DATA, script.piece()),
        };
        to.extend(sealed);
        self.later_begins = self.messages.is_empty();
    }

    /// Seals messages, unless there are none: an empty record is not permitted.
    fn seal_messages(&mut self, messages: &[u8]) -> Vec<u8> {
        match messages.is_empty() {
            true => Vec::new(),
            false => self.seal(HANDSHAKE, messages),
        }
    }

    fn seal(&mut self, content_type: u8, content: &[u8]) -> Vec<u8> {
        self.seal_inner([content, &[content_type]].concat())
    }

    fn seal_inner(&mut self, inner: Vec<u8>) -> Vec<u8> {
        // The type is behind the content, and zeros may follow it.
        let content_type = inner.iter().rposition(|byte| *byte != 0);
        if let Some(len @ 0..=MAX_PLAIN) = content_type
            && inner[len] == APPLICATION_DATA
        {
            self.plain.extend_from_slice(&inner[..len]);
        }
        match self.current() {
            Some(sealer) => sealer.seal_inner(inner),
            None => inner,
        }
    }

    /// The sealer of this moment. The keys change with the last message of the handshake.
    fn current(&mut self) -> Option<&mut Sealer> {
        match self.later_begins {
            true => self.later.as_mut(),
            false => self.sealer.as_mut(),
        }
    }
}
