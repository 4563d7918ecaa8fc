//! What the system says about memory that a program registers: a card's driver, too, refuses memory that
//! is not there.

use std::fs;

use crate::boundary::{Errno, say};

/// The file that pages of regions are in: see `pages`.
const OUR_FILE: &str = "/memfd:verbline-arena";

/// Checks that the bytes are mapped, and may be written if a device writes them: `EFAULT`. If the pages
/// will be `replaced`, they must not be memory that other processes share, which would go on with the
/// pages that were there: `EOPNOTSUPP`.
pub(crate) fn check(first: usize, len: usize, written: bool, replaced: bool) -> Result<(), Errno> {
    let end = first.checked_add(len).ok_or(Errno::INVALID)?;
    check_in(
        &fs::read_to_string("/proc/self/maps")?,
        first..end,
        written,
        replaced,
    )
}

fn check_in(
    maps: &str,
    bytes: std::ops::Range<usize>,
    written: bool,
    replaced: bool,
) -> Result<(), Errno> {
    let mut checked = bytes.start;
    // `start-end permissions offset device inode path`, in the order of the addresses.
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(permissions)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (start, end) = range.split_once('-').unwrap_or_default();
        let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        if number(end) <= checked {
            continue;
        }
        if number(start) > checked
            || !permissions.starts_with('r')
            || (written && !permissions.starts_with("rw"))
        {
            break;
        }
        let is_ours = fields.nth(3).is_some_and(|path| path.starts_with(OUR_FILE));
        if replaced && permissions.ends_with('s') && !is_ours {
            say(&"register: the memory is shared with other processes, and would not be any more");
            return Err(Errno::UNSUPPORTED);
        }
        checked = number(end);
        if checked >= bytes.end {
            return Ok(());
        }
    }
    say(&format_args!(
        "register: nothing that permits it is mapped at {checked:#x}"
    ));
    Err(Errno(libc::EFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_or_not_writable_is_refused() {
        let maps = "1000-3000 rw-p 00000000 00:00 0   [heap]\n\
            3000-4000 r--p 00000000 08:01 17  /usr/lib/some file\n\
            4000-5000 rw-s 00000000 00:01 18  /memfd:verbline-arena (deleted)\n\
            5000-6000 rw-s 00000000 00:01 19  /dev/shm/others\n\
            8000-9000 ---p 00000000 00:00 0\n";
        let fault = Err(Errno(libc::EFAULT));
        for (bytes, written, replaced, expected) in [
            (0x1000..0x3000, true, true, Ok(())),
            (0x1000..0x3001, true, true, fault),
            (0x1000..0x3001, false, true, Ok(())),
            (0x3fff..0x5000, false, true, Ok(())),
            (0x4000..0x5001, true, true, Err(Errno::UNSUPPORTED)),
            (0x4000..0x5001, true, false, Ok(())),
            (0xfff..0x1001, true, true, fault),
            (0x5fff..0x6001, true, false, fault),
            (0x7000..0x7001, false, false, fault),
            (0x8000..0x8001, false, false, fault),
            (0x9000..0x9001, false, false, fault),
        ] {
            let checked = check_in(maps, bytes.clone(), written, replaced);
            assert_eq!(checked, expected, "{bytes:x?}, {written}, {replaced}");
        }
    }
}
