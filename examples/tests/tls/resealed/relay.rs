//! [`Relay`]: somebody on the way who has the keys of both sides, and seals again what each of them says.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use tls_testing::sealer::{APPLICATION_DATA, HANDSHAKE, HEADER_LEN, Sealer};
use tls_testing::side::{Opener, Side};
use verbline::tls::{ClientTls, ServerTls};
use verbline_tls::{KEYS_AT_ONCE, MAX_PLAIN, RECORDS_PER_KEY};

/// Most records in a row that have no content: one more ends the connection.
const MOST_EMPTY: usize = 63;

/// A session ticket (RFC 8446, section 4.6.1): its lifetime, a number to add to its age, a nonce of one byte,
/// a ticket of two, and no extensions.
pub(super) const TICKET: [u8; 20] = [4, 0, 0, 16, 0, 0, 1, 0, 1, 2, 3, 4, 1, 5, 0, 2, 6, 7, 0, 0];

/// How a relay seals what it passes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Habit {
    /// In records as long as they may be.
    Plain,
    /// In whatever way the protocol permits.
    Odd,
}

/// Which of the two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Server,
}

/// Accepts clients, dials their server for each, and passes on what both say.
pub(super) struct Relay {
    pub(super) address: String,
    connections: Arc<Mutex<Vec<Arc<Connection>>>>,
}

impl Relay {
    /// Begins to relay to `server`. `tls` are what it is to clients, and to the server.
    pub(super) fn new(server: &str, tls: (ServerTls, ClientTls), habit: Habit) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections: Arc<Mutex<Vec<_>>> = Arc::default();
        let (server, accepted) = (server.to_owned(), Arc::clone(&connections));
        thread::spawn(move || {
            for client in listener.incoming() {
                let sockets = (client.unwrap(), TcpStream::connect(&server));
                let (client, Ok(server)) = sockets else {
                    continue;
                };
                let (tls, accepted) = (tls.clone(), Arc::clone(&accepted));
                // A handshake that fails is an error of the client, which tells of it.
                thread::spawn(move || relay([client, server], &tls, habit, &accepted));
            }
        });
        Self {
            address,
            connections,
        }
    }

    /// The connections so far. A client dials the one that carries its calls after that of its handshake.
    pub(super) fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.connections).clone()
    }
}

/// One TCP connection of a client, and the one to the server that belongs to it.
pub(super) struct Connection {
    to_client: Mutex<Speaker>,
    to_server: Mutex<Speaker>,
    /// Who has ended it, and how.
    end: OnceLock<(End, io::Error)>,
}

impl Connection {
    /// What this connection says to one side.
    pub(super) fn speaker_to(&self, end: End) -> MutexGuard<'_, Speaker> {
        lock(match end {
            End::Client => &self.to_client,
            End::Server => &self.to_server,
        })
    }

    /// Who has ended the connection, if it has ended.
    pub(super) fn end(&self) -> Option<&(End, io::Error)> {
        self.end.get()
    }

    /// Passes on what one side says to the other, until one of them ends the connection.
    fn pass(&self, mut opener: Opener, (from, socket): (End, &TcpStream), habit: Habit) {
        let to = match from {
            End::Client => End::Server,
            End::Server => End::Client,
        };
        let (end, error) = loop {
            match opener.read(socket) {
                Ok(plain) if plain.is_empty() => break (from, io::Error::other("it said so")),
                Ok(plain) => {
                    if let Err(error) = self.speaker_to(to).pass(&plain, habit) {
                        break (to, error);
                    }
                }
                Err(error) => break (from, error),
            }
        };
        let _ = self.end.set((end, error));
        let _ = socket.shutdown(Shutdown::Both);
        self.speaker_to(to).leave();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shakes hands with both, and passes on what they say.
fn relay(
    [client, server]: [TcpStream; 2],
    (as_server, as_client): &(ServerTls, ClientTls),
    habit: Habit,
    accepted: &Mutex<Vec<Arc<Connection>>>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let at_client = Side::accept(as_server, &client)?;
    let at_server = Side::connect(as_client, "127.0.0.1", &server)?;
    let speaker = |sealer, socket: &TcpStream, end| -> io::Result<_> {
        Ok(Mutex::new(Speaker::new(sealer, socket.try_clone()?, end)))
    };
    let connection = Arc::new(Connection {
        to_client: speaker(at_client.sealer, &client, End::Client)?,
        to_server: speaker(at_server.sealer, &server, End::Server)?,
        end: OnceLock::new(),
    });
    lock(accepted).push(Arc::clone(&connection));
    let other = Arc::clone(&connection);
    thread::spawn(move || connection.pass(at_client.opener, (End::Client, &client), habit));
    other.pass(at_server.opener, (End::Server, &server), habit);
    Ok(())
}

/// What says something to one side of a connection.
pub(super) struct Speaker {
    pub(super) sealer: Sealer,
    /// The last record with content.
    pub(super) last: Vec<u8>,
    socket: TcpStream,
    to: End,
    random: Random,
    /// Records in a row without content.
    empty: usize,
    /// Records that were sealed and not used for a change of the key.
    unused: u32,
    pub(super) said: Said,
}

/// How many records of each kind were said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    pub(super) records: u32,
    pub(super) empty: u32,
    pub(super) updates: u32,
    pub(super) requests: u32,
    pub(super) tickets: u32,
}

impl Speaker {
    fn new(sealer: Sealer, socket: TcpStream, to: End) -> Self {
        Self {
            sealer,
            last: Vec::new(),
            socket,
            to,
            random: Random::new(),
            empty: 0,
            unused: KEYS_AT_ONCE * RECORDS_PER_KEY,
            said: Said::default(),
        }
    }

    /// Says what the other side has said.
    fn pass(&mut self, mut plain: &[u8], habit: Habit) -> io::Result<()> {
        if let Habit::Plain = habit {
            // As it is, in records of the longest length.
            let sealed: Vec<u8> = plain
                .chunks(MAX_PLAIN)
                .flat_map(|plain| self.seal(plain, 0))
                .collect();
            return self.say(&sealed);
        }
        let mut sealed = Vec::new();
        while !plain.is_empty() {
            self.seal_what_says_nothing(&mut sealed);
            let most = match self.random.below(6) {
                0 => 1,
                1 => 2,
                2 => 3,
                3 => 17,
                4 => 1 + self.random.below(MAX_PLAIN),
                _ => MAX_PLAIN,
            };
            let (now, later) = plain.split_at(most.min(plain.len()));
            let padding = self.padding(MAX_PLAIN - now.len());
            sealed.extend(self.seal(now, padding));
            plain = later;
        }
        self.seal_what_says_nothing(&mut sealed);
        // In a few pieces, which begin and end anywhere.
        while !sealed.is_empty() {
            let len = match self.random.below(3) {
                0 => 1 + self.random.below(sealed.len().min(HEADER_LEN + 1)),
                1 => 1 + self.random.below(sealed.len()),
                _ => sealed.len(),
            };
            self.say(&sealed[..len])?;
            sealed.drain(..len);
        }
        Ok(())
    }

    /// Writes these bytes as they are.
    pub(super) fn say(&mut self, sealed: &[u8]) -> io::Result<()> {
        self.socket.write_all(sealed)
    }

    fn seal(&mut self, plain: &[u8], padding: usize) -> Vec<u8> {
        let mut inner = [plain, &[APPLICATION_DATA]].concat();
        inner.resize(inner.len() + padding, 0);
        let record = self.sealer.seal_inner(inner);
        match plain.is_empty() {
            true => {
                self.empty += 1;
                self.said.empty += 1;
            }
            false => {
                self.empty = 0;
                self.said.records += 1;
                self.last.clone_from(&record);
            }
        }
        record
    }

    /// Sometimes seals records without content, as many in a row as are permitted.
    fn seal_what_says_nothing(&mut self, sealed: &mut Vec<u8>) {
        let most = match self.random.below(40) {
            0 => MOST_EMPTY,
            number @ 1..20 => number % 4,
            _ => 0,
        };
        for _ in 0..most {
            if self.empty == MOST_EMPTY {
                return;
            }
            match self.random.below(6) {
                kind @ (0 | 1) if self.may_change_key() => {
                    let is_requested = kind == 1;
                    sealed.extend(self.sealer.seal_key_update(is_requested));
                    self.said.updates += 1;
                    self.said.requests += u32::from(is_requested);
                }
                2 if self.to == End::Client => {
                    sealed.extend(self.sealer.seal(HANDSHAKE, &TICKET));
                    self.said.tickets += 1;
                }
                _ => {
                    let padding = self.padding(MAX_PLAIN);
                    sealed.extend(self.seal(&[], padding));
                    continue;
                }
            }
            self.empty += 1;
        }
    }

    /// Returns true if a new key is permitted, and counts it.
    fn may_change_key(&mut self) -> bool {
        // With the record that tells of it.
        let sealed = self.sealer.sealed() as u32 + 1;
        let unused = (self.unused + sealed).min(KEYS_AT_ONCE * RECORDS_PER_KEY);
        let Some(left) = unused.checked_sub(RECORDS_PER_KEY) else {
            return false;
        };
        self.unused = left;
        true
    }

    /// Returns the length of a padding. Most records have none or little.
    fn padding(&mut self, most: usize) -> usize {
        match self.random.below(20) {
            0 => most,
            1 => self.random.below(most + 1),
            2..8 => self.random.below(100).min(most),
            _ => 0,
        }
    }

    fn leave(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Numbers that a seed repeats.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        let seed = RandomState::new().hash_one(()) | 1;
        // Of a test that fails.
        #[allow(clippy::print_stdout)]
        {
            println!("seed {seed:#x}");
        }
        Self(seed)
    }

    /// Returns a number less than `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let Self(state) = self;
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as usize % end
    }
}
