//! What a program needs to run: an interpreter, or libraries.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

const ELF: [u8; 4] = *b"\x7fELF";
const PT_INTERP: u32 = 3;
/// Headers that are looked at; programs have a dozen.
const HEADERS_MAX: u16 = 128;
/// Letters of a script's first line that are looked at.
const LINE_MAX: usize = 256;

/// A warning for people; nothing for a program that needs nothing or cannot be analysed.
pub(crate) fn of(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|meta| meta.is_file()))?;
    let mut begin = Vec::new();
    (&mut file).take(LINE_MAX as u64).read_to_end(&mut begin).ok()?;
    let shown = path.display();
    if let Some(line) = begin.strip_prefix(b"#!") {
        let line = String::from_utf8_lossy(line.split(|byte| *byte == b'\n').next().unwrap_or_default());
        let interpreter = crate::render::one_line(line.trim());
        return Some(format!("`{shown}` is a script: it needs `{interpreter}` where it runs"));
    }
    let dynamic = begin.starts_with(&ELF) && has_interpreter(&mut file, &begin).unwrap_or(false);
    dynamic.then(|| format!("`{shown}` is not linked statically: it needs its libraries where it runs"))
}

/// Whether an ELF file is loaded by another program, which looks for its libraries.
fn has_interpreter(file: &mut File, begin: &[u8]) -> io::Result<bool> {
    let (wide, little) = (begin.get(4) == Some(&2), begin.get(5) == Some(&1));
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = begin.get(at..at + bytes)?;
        let fold = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if little { field.iter().rev().fold(0, fold) } else { field.iter().fold(0, fold) })
    };
    // Where the headers are, how large each is and how many there are.
    let place = if wide {
        (number(32, 8), number(54, 2), number(56, 2))
    } else {
        (number(28, 4), number(42, 2), number(44, 2))
    };
    let (Some(start), Some(size), Some(count)) = place else { return Ok(false) };
    for nth in 0..count.min(u64::from(HEADERS_MAX)) {
        file.seek(SeekFrom::Start(start.saturating_add(nth * size)))?;
        let mut kind = [0; 4];
        file.read_exact(&mut kind)?;
        let kind = if little { u32::from_le_bytes(kind) } else { u32::from_be_bytes(kind) };
        if kind == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file of 64 bits with two headers, of which the second is of this kind.
    fn elf(kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 2 * 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (56, 2);
        bytes[64] = 1;
        bytes[64 + 56..64 + 60].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    #[test]
    fn only_dependencies_on_the_host_are_reported() {
        let path = std::env::temp_dir().join(format!("lodge-needs-{}", std::process::id()));
        let told = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("a file");
            of(&path)
        };
        assert!(told(&elf(PT_INTERP)).is_some_and(|words| words.contains("needs its libraries")));
        assert!(
            told(b"#!/bin/sh -e\necho\n").is_some_and(|words| words.contains("needs `/bin/sh -e` where"))
        );
        for other in [elf(2), elf(PT_INTERP)[..100].to_vec(), b"\x7fELF".to_vec(), b"MZ".to_vec(), Vec::new()]
        {
            assert_eq!(told(&other), None);
        }
        std::fs::remove_file(&path).expect("it goes");
        assert_eq!((of(&path), of(Path::new("/dev/zero"))), (None, None));
    }
}
