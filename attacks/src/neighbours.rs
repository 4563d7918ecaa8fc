//! Attacks by processes of the server's own user.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, SealFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::formats::{self, links, memory};
use super::peer::{self, Peer};
use crate::attack::Target;
use benches::Outcome;

/// Sets whether reads and writes of a file wait. The flag belongs to the open file, which all
/// processes that have the file share.
fn set_blocking(file: impl AsFd, is_blocking: bool) -> rustix::io::Result<()> {
    let mut flags = fcntl_getfl(&file)?;
    flags.set(OFlags::NONBLOCK, !is_blocking);
    fcntl_setfl(&file, flags)
}

/// Writes to a wake file until it takes no more.
fn fill(file: impl AsFd) -> rustix::io::Result<()> {
    set_blocking(&file, false)?;
    while rustix::io::write(&file, &[1; 4096]).is_ok() {}
    Ok(())
}

/// Returns the two ends of a wake file: the one that the server writes, and the one that it should
/// wake.
fn wake_file() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Connects with a wake file that is full and blocks its writer, and makes the server write it.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn block_wake(target: &Target, time: Duration) -> Outcome<String> {
    let end = Instant::now() + time;
    let (wake, _unread) = wake_file()?;
    let mut peer = Peer::connect(target, wake)?;
    let (mut requests, mut answers) = (0, 0);
    while Instant::now() < end {
        fill(&peer.ours.wake)?;
        set_blocking(&peer.ours.wake, true)?;
        peer.request()?;
        requests += 1;
        thread::sleep(Duration::from_millis(50));
        answers += peer.take_messages()?;
    }
    Ok(format!("{requests} requests, {answers} answers"))
}

/// Makes the file that wakes the server block its reader, fills it, and takes back what it can.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn block_read(target: &Target, time: Duration) -> Outcome<String> {
    let end = Instant::now() + time;
    let (wake, _unread) = wake_file()?;
    let peer = Peer::connect(target, wake)?;
    let file = &peer.theirs.wake;
    let mut rounds: u64 = 0;
    while Instant::now() < end {
        set_blocking(file, false)?;
        let _ = rustix::io::write(file, &[1]);
        let _ = rustix::io::read(file, &mut [0; 8]);
        if rounds.is_multiple_of(4096) {
            fill(file)?;
        }
        set_blocking(file, true)?;
        rounds += 1;
        if rounds.is_multiple_of(1024) {
            thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(format!("{rounds} rounds"))
}

/// Clears all that it can write of its announcements to the server and of the server's sleep note.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn clear(target: &Target, time: Duration) -> Outcome<String> {
    let end = Instant::now() + time;
    let (wake, _unread) = wake_file()?;
    let peer = Peer::connect(target, wake)?;
    let (mut rounds, mut notes) = (0_u64, 0_u64);
    let zeros = [0; memory::ANNOUNCEMENTS_LEN];
    while Instant::now() < end {
        for _ in 0..64 {
            memory::write_at(&peer.theirs.announcements, &zeros, 0)?;
            notes += u64::from(memory::write_at(&peer.theirs.note, &zeros[..64], 0).is_ok());
            rounds += 1;
        }
    }
    Ok(format!(
        "{rounds} rounds, in {notes} of them the note could be written"
    ))
}

/// Announces arenas of 256 MiB each that no memory backs.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn sparse(target: &Target, time: Duration) -> Outcome<String> {
    const ARENAS: u64 = 4;
    let arena = memory::empty_arena(256 << 20)?;
    announce(target, time, &arena, ARENAS)
}

/// Announces more arenas of one page than a process may have mappings.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn maps(target: &Target, time: Duration) -> Outcome<String> {
    const ARENAS: u64 = 70_000;
    let seals = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let arena = memory::shared_memory(4096, &[1], seals)?;
    announce(target, time, &arena, ARENAS)
}

/// Announces the same arena under `count` numbers, again on a new link whenever the server closes
/// the link.
fn announce(target: &Target, time: Duration, arena: &OwnedFd, count: u64) -> Outcome<String> {
    let end = Instant::now() + time;
    let (mut announced, mut links, mut reason) = (0_u64, 0, String::new());
    let server = formats::gids_of(target.pid)?[0];
    let own = formats::own_gid(&server, 1);
    while Instant::now() < end {
        let link = match peer::dial(&server, &own) {
            Ok(link) => link,
            Err(error) => {
                reason = error.to_string();
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        links += 1;
        for number in 0..count {
            if let Err(error) = peer::send(&link, &links::arena(number), &[arena.as_fd()]) {
                reason = error.to_string();
                break;
            }
            announced += 1;
        }
        // Keep what was accepted for a while.
        thread::sleep(Duration::from_secs(1));
    }
    Ok(format!("{announced} arenas over {links} links {reason}"))
}

/// Attaches with a regular file where a wake file is expected.
///
/// # Errors
///
/// Fails if the attack cannot be tried.
pub(crate) fn not_a_file(target: &Target, time: Duration) -> Outcome<String> {
    const CONTENT: &[u8] = b"hello";
    let path = std::env::temp_dir().join(format!("verbline-attack-{}", std::process::id()));
    std::fs::write(&path, CONTENT)?;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .append(true)
        .open(&path)?;
    let attached = Peer::attach(target, file.into());
    if let Ok(mut peer) = attached {
        // The server may take it until it wants to wake this peer.
        let _ = peer.request();
        thread::sleep(time);
    }
    let after = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    Ok(match after == CONTENT {
        true => "the file is unchanged".to_owned(),
        false => format!(
            "THE FILE WAS CHANGED to {:?}",
            after.escape_ascii().to_string()
        ),
    })
}
