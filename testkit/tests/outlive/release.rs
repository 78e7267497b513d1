//! Releases of lodged, put in the place of the running one by rename.
//!
//! A release is the program under test with other bytes: its keeper and its runtime have another number in the padding
//! of their ELF headers, which nothing reads, and the digests that name them follow. So they are other programs, under
//! other names in `bin/`, that do the same. Their section headers, which only debuggers read, are zeroed, so that the
//! compressed program has room in the place of the old one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use lodge_testkit::lodge::bin;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// The last byte of an ELF header's identification: padding.
const PADDING: usize = 15;
/// Where a 64-bit ELF header says where the section headers are. They are the end of the file.
const SECTION_HEADERS: usize = 0x28;
const DIGEST_BYTES: usize = 32;

/// Where a daemon's program lies, to be replaced.
#[derive(Debug)]
pub struct ProgramDir {
    dir: TempDir,
    original: Vec<u8>,
}

impl ProgramDir {
    /// With the program under test as it is.
    pub fn new() -> ProgramDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let place = ProgramDir { dir, original: fs::read(bin("lodged")).expect("the program under test") };
        place.put(&place.original);
        place
    }

    pub fn lodged(&self) -> PathBuf {
        self.dir.path().join("lodged")
    }

    /// Replaces the program by the release of this number, while the old one may be running.
    ///
    /// The embedded programs are read from the directory to which a daemon of that release wrote them.
    pub fn install(&self, number: u8, home: &Path) {
        let mut release = self.original.clone();
        for name in ["keeper", "runtime"] {
            let (stored, digest) = first_stored(home, name);
            let embedded = compressed(&stored);
            let at = find(&release, &embedded, 0).expect("the daemon embeds what it stored");
            let other = with_number(stored, number);
            let replacement = compressed(&other);
            assert!(replacement.len() <= embedded.len(), "{} > {}", replacement.len(), embedded.len());
            release[at..at + replacement.len()].copy_from_slice(&replacement);
            let other = digest_of(&other);
            let mut told = 0;
            while let Some(at) = find(&release, &digest, told) {
                release[at..at + DIGEST_BYTES].copy_from_slice(&other);
                told = at + DIGEST_BYTES;
            }
            assert!(told > 0, "the digest of the {name} is nowhere");
        }
        release.push(number);
        self.put(&release);
    }

    fn put(&self, bytes: &[u8]) {
        let new = self.dir.path().join("lodged.new");
        // Written by another process: one of ours that is started meanwhile would inherit the open file, and what is
        // open for writing cannot be run.
        let mut writer = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(&new)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        writer.stdin.take().expect("a pipe").write_all(bytes).expect("a written program");
        assert!(writer.wait().expect("a child").success());
        fs::rename(new, self.lodged()).expect("a renamed file");
    }
}

/// What the first release stored under this name, and its digest.
fn first_stored(home: &Path, name: &str) -> (Vec<u8>, [u8; DIGEST_BYTES]) {
    let bytes = |path: PathBuf| fs::read(path).expect("a stored program");
    let mut found = stored(home, name).into_iter().map(bytes).filter(|bytes| bytes[PADDING] == 0);
    let first = found.next().expect("a program that was started");
    let digest = digest_of(&first);
    (first, digest)
}

/// The program of another release.
fn with_number(mut program: Vec<u8>, number: u8) -> Vec<u8> {
    let field: [u8; 8] = program[SECTION_HEADERS..][..8].try_into().expect("eight bytes");
    let headers = usize::try_from(u64::from_le_bytes(field)).expect("an offset");
    program[headers..].fill(0);
    program[PADDING] = number;
    program
}

/// As the daemon's build embeds it.
fn compressed(program: &[u8]) -> Vec<u8> {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
    zlib.write_all(program).expect("a Vec grows");
    zlib.finish().expect("a Vec grows")
}

/// The programs of this name in a state directory.
pub fn stored(home: &Path, name: &str) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(home.join("bin")).expect("programs").map(|entry| entry.expect("an entry").path());
    let prefix = format!("{name}-");
    entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
        .collect()
}

fn digest_of(program: &[u8]) -> [u8; DIGEST_BYTES] {
    Sha256::digest(program).into()
}

/// Where `part` is in `whole`, from `from` on.
fn find(whole: &[u8], part: &[u8], from: usize) -> Option<usize> {
    let rest = &whole[from..];
    // SAFETY: both are given with their lengths, and only read.
    let found = unsafe { libc::memmem(rest.as_ptr().cast(), rest.len(), part.as_ptr().cast(), part.len()) };
    (!found.is_null()).then(|| from + (found.addr() - rest.as_ptr().addr()))
}
