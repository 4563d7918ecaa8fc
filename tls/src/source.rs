//! [`Source`]: a value that is made of files, and follows them.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError, Weak};

use crate::certificate::sha256;
use crate::error::TlsError;
use crate::watch::{self, Look};

/// The longest file of certificates or of a key that is read, in bytes.
pub(crate) const MAX_FILE_LEN: u64 = 1024 * 1024;

/// A value that is made of the content of files, all of them together: a value is taken as a whole or
/// not at all.
pub(crate) struct Source<T> {
    /// What the value is, for the log.
    what: &'static str,
    taken: RwLock<Taken<T>>,
    /// `None` if the value does not change.
    files: Option<Files<T>>,
}

struct Files<T> {
    /// Each with the most bytes that are read of it.
    paths: Vec<(PathBuf, u64)>,
    make: Box<Make<T>>,
    /// Held while files are read, so that what was read first is not taken last.
    looked: Mutex<Looked>,
}

/// Makes the value of the files' contents, in the order of the files.
type Make<T> = dyn Fn(&[Vec<u8>]) -> Result<T, TlsError> + Send + Sync;

/// A value, and how many have been taken before it.
pub(crate) struct Taken<T> {
    pub(crate) generation: u64,
    pub(crate) value: Arc<T>,
}

impl<T> Clone for Taken<T> {
    fn clone(&self) -> Self {
        Self {
            generation: self.generation,
            value: Arc::clone(&self.value),
        }
    }
}

struct Looked {
    /// The hash of the content that the value is made of. The content itself is not kept: it may have a
    /// key.
    taken: [u8; 32],
    last: Seen,
}

/// What a look has found.
#[derive(PartialEq, Eq)]
enum Seen {
    Content([u8; 32]),
    /// The files cannot be read, for the reason in this sentence.
    Unreadable(String),
}

/// What has come of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is as at the look before.
    Same,
    /// The files have changed, and the new value is in use.
    Taken,
    /// The files have changed, and nothing can be made of them. The value stays.
    Refused,
    /// The files were bad, and are again those that the value is made of.
    Back,
}

impl<T: fmt::Display + Send + Sync + 'static> Source<T> {
    /// Creates a source that has no file, and does not change.
    pub(crate) fn fixed(what: &'static str, value: T) -> Arc<Self> {
        Arc::new(Self::with_files(what, value, None))
    }

    /// Reads the files now, and follows them from now on.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read or `make` fails.
    pub(crate) fn open(
        what: &'static str,
        paths: Vec<(PathBuf, u64)>,
        make: impl Fn(&[Vec<u8>]) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, TlsError> {
        let contents = read_all(&paths)?;
        let value = make(&contents)?;
        if paths.is_empty() {
            return Ok(Self::fixed(what, value));
        }
        let hash = hash(&contents);
        let files = Files {
            paths,
            make: Box::new(make),
            looked: Mutex::new(Looked {
                taken: hash,
                last: Seen::Content(hash),
            }),
        };
        let source = Arc::new(Self::with_files(what, value, Some(files)));
        let watched: Weak<Self> = Arc::downgrade(&source);
        watch::PROCESS.add(watched)?;
        Ok(source)
    }

    fn with_files(what: &'static str, value: T, files: Option<Files<T>>) -> Self {
        let value = Arc::new(value);
        Self {
            what,
            taken: RwLock::new(Taken {
                generation: 1,
                value,
            }),
            files,
        }
    }

    /// Returns the value, without a look at the files.
    pub(crate) fn get(&self) -> Taken<T> {
        if self.files.is_some() {
            watch::PROCESS.go_on();
        }
        // Nothing under this lock panics.
        self.taken
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reads the files now.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or nothing can be made of the files. The value stays,
    /// and the next look logs the reason, unless it was logged before.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let Some(files) = &self.files else {
            return Ok(());
        };
        let mut looked = files.looked();
        let contents = read_all(&files.paths)?;
        let hash = hash(&contents);
        if looked.taken != hash {
            let value = (files.make)(&contents)?;
            self.take(&mut looked, hash, value);
        }
        looked.last = Seen::Content(hash);
        Ok(())
    }

    /// Reads the files, takes what has changed, and logs it. What is bad is logged once.
    pub(crate) fn look(&self) -> Outcome {
        let Some(files) = &self.files else {
            return Outcome::Same;
        };
        // Without a wait: whoever reads the files now takes what has changed. In a child of a fork, it may be
        // a thread that is not there, and the other files are looked at all the same.
        let mut looked = match files.looked.try_lock() {
            Ok(looked) => looked,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Outcome::Same,
        };
        let contents = match read_all(&files.paths) {
            Ok(contents) => contents,
            Err(error) => {
                let seen = Seen::Unreadable(error.to_string());
                return self.refuse(&mut looked, seen, &error);
            }
        };
        let hash = hash(&contents);
        let seen = Seen::Content(hash);
        if looked.last == seen {
            return Outcome::Same;
        }
        if looked.taken == hash {
            looked.last = seen;
            tracing::info!(
                "the files of the {} are again as they were: {self}",
                self.what
            );
            return Outcome::Back;
        }
        match (files.make)(&contents) {
            Ok(value) => {
                self.take(&mut looked, hash, value);
                looked.last = seen;
                Outcome::Taken
            }
            Err(error) => self.refuse(&mut looked, seen, &error),
        }
    }

    fn take(&self, looked: &mut Looked, hash: [u8; 32], value: T) {
        tracing::info!(
            "the files of the {} have changed, and are used now: {value}",
            self.what
        );
        looked.taken = hash;
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        taken.generation += 1;
        taken.value = Arc::new(value);
    }

    fn refuse(&self, looked: &mut Looked, seen: Seen, error: &TlsError) -> Outcome {
        if looked.last == seen {
            return Outcome::Same;
        }
        looked.last = seen;
        tracing::warn!(
            "the {} stays as it is, since its files are bad: {error}",
            self.what
        );
        Outcome::Refused
    }
}

impl<T> Files<T> {
    fn looked(&self) -> MutexGuard<'_, Looked> {
        // A panic of a parser leaves the state of the look before it.
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Display + Send + Sync + 'static> Look for Source<T> {
    fn look(&self) {
        Self::look(self);
    }

    fn files(&self) -> String {
        let paths = self.files.iter().flat_map(|files| &files.paths);
        let paths: Vec<_> = paths.map(|(path, _)| path.display().to_string()).collect();
        paths.join(", ")
    }
}

/// The value.
impl<T: fmt::Display + Send + Sync + 'static> fmt::Display for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().value.fmt(f)
    }
}

fn hash(contents: &[Vec<u8>]) -> [u8; 32] {
    let each: Vec<_> = contents.iter().map(|content| sha256(&[content])).collect();
    let each: Vec<_> = each.iter().map(<[u8; 32]>::as_slice).collect();
    sha256(&each)
}

fn read_all(files: &[(PathBuf, u64)]) -> Result<Vec<Vec<u8>>, TlsError> {
    files
        .iter()
        .map(|(path, limit)| read(path, *limit))
        .collect()
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, TlsError> {
    let path = path.to_owned();
    // Before it is opened: opening a pipe waits for a writer.
    let is_file = fs::metadata(&path).map(|metadata| metadata.is_file());
    match is_file {
        Ok(true) => {}
        Ok(false) => return Err(TlsError::NotAFile { path }),
        Err(source) => return Err(TlsError::Read { path, source }),
    }
    let mut content = Vec::new();
    // One byte more shows that a file is too long, and a file that grows ends here as well.
    let length = File::open(&path).and_then(|file| file.take(limit + 1).read_to_end(&mut content));
    match length {
        Ok(_) if content.len() as u64 > limit => Err(TlsError::TooLong { path, limit }),
        Ok(_) => Ok(content),
        Err(source) => Err(TlsError::Read { path, source }),
    }
}
