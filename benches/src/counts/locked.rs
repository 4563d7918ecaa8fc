//! [`Locked`]: the instructions of a program that wait for the core's stores.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use super::callgrind::Place;
use crate::Outcome;

/// The addresses of a program's locked instructions: those with the prefix `lock`, exchanges with memory,
/// which lock without it, and full fences. Each waits until the core's stores are in its cache, which takes 20
/// cycles or more. A count of instructions does not show that.
///
/// Those of shared libraries are not among them.
#[derive(Clone, Debug)]
pub struct Locked {
    /// The program, as callgrind names it.
    object: String,
    addresses: HashSet<u64>,
}

impl Locked {
    /// Finds them with `objdump`, which is where a linker is: in binutils.
    ///
    /// # Errors
    ///
    /// Fails if `objdump` cannot be run, or finds no instruction.
    pub fn of(program: &Path) -> Outcome<Self> {
        let output = Command::new("objdump")
            .args(["--disassemble", "--no-show-raw-insn"])
            .arg(program)
            .output()
            .map_err(|error| format!("cannot run objdump (package binutils): {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || text.lines().filter_map(instruction).next().is_none() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("objdump {} failed: {stderr}", program.display()).into());
        }
        Ok(Self {
            object: program.canonicalize()?.display().to_string(),
            addresses: locked(&text),
        })
    }

    /// Returns true if there is such an instruction at this place.
    #[must_use]
    pub fn contains(&self, place: &Place) -> bool {
        self.addresses.contains(&place.address) && place.object == self.object
    }
}

/// Returns the addresses of the locked instructions in what objdump prints.
fn locked(text: &str) -> HashSet<u64> {
    let all = text.lines().filter_map(instruction);
    all.filter(|(_, instruction)| is_locked(instruction))
        .map(|(address, _)| address)
        .collect()
}

/// Parses a line with an address and an instruction.
fn instruction(line: &str) -> Option<(u64, &str)> {
    let (address, instruction) = line.trim_start().split_once(":\t")?;
    Some((u64::from_str_radix(address, 16).ok()?, instruction))
}

fn is_locked(instruction: &str) -> bool {
    let (name, operands) = instruction.split_once(' ').unwrap_or((instruction, ""));
    match name {
        "lock" | "mfence" => true,
        // Of two registers, it is a longer no-op.
        "xchg" => operands.contains('('),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_exchanges_with_memory_and_full_fences_are_found() {
        let text = "\n/bin/x:     file format elf64-x86-64\n\n\
            00000000000e8200 <_ZN3std4sync9lock mfence>:\n   \
            e8200:\tlock decq (%rax)\n   \
            e8204:\txchg   %ax,%ax\n   \
            e8206:\txchg   %eax,0x28(%rsi)\n   \
            e8209:\tmfence\n   \
            e820c:\tlfence\n   \
            e820f:\tcall   e8206 <lock>\n   \
            e8214:\tlock orl $0x0,-0x40(%rsp)\n";
        let expected = [0xe8200, 0xe8206, 0xe8209, 0xe8214];
        assert_eq!(locked(text), expected.into());
    }
}
