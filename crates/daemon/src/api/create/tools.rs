//! Programs of the host, as they are found when an agent is created.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lodge_core::record::{BinRecord, RuntimeRecord, ToolRecord};
use lodge_proto::ErrorBody;
use sha2::{Digest, Sha256};

use super::hex;

/// Where `host:` programs may live: what every sandbox sees of the host.
const HOST_PROGRAM_ROOTS: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/opt"];
/// Where a bare program name is looked for. The daemon's own PATH may name places that sandboxes do not see.
const HOST_PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Finds a host program and records where it is and what it is.
pub(super) fn find_tool(bin: &BinRecord) -> Result<ToolRecord, ErrorBody> {
    let missing = |why: String| {
        ErrorBody::new("bin.not_found", format!("BIN {}: {why}", bin.name))
            .hint("install that program on this host, or remove the BIN line")
    };
    let path = find(&bin.host).ok_or_else(|| missing(absent(&bin.host)))?;
    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
    let visible = |path: &Path| HOST_PROGRAM_ROOTS.iter().any(|root| path.starts_with(root));
    if !visible(&path) || !visible(&real) {
        let path = real.display();
        return Err(missing(format!("`{path}` is not visible inside a sandbox"))
            .hint("host programs must live below /usr, /bin, /sbin or /opt"));
    }
    let digest = digest_of(&path).map_err(|error| missing(unreadable(&path, &error)))?;
    let path = path.display().to_string();
    let description = if bin.description.is_empty() {
        format!("the program `{}`", bin.host)
    } else {
        bin.description.clone()
    };
    Ok(ToolRecord {
        name: bin.name.clone(),
        source: format!("host:{}", bin.host),
        path,
        digest,
        safe: bin.safe,
        description,
        usage: bin.usage.clone(),
    })
}

/// Finds the program that is an agent's runtime. It is shown to the sandbox by itself, so it may live anywhere.
pub(super) fn find_runtime(program: &str) -> Result<RuntimeRecord, ErrorBody> {
    let missing = |why: String| {
        ErrorBody::new("runtime.not_found", format!("RUNTIME: {why}"))
            .hint("install that program on this host, or remove RUNTIME to have the stock one")
    };
    let path = find(program).ok_or_else(|| missing(absent(program)))?;
    // The real path, so that a link that is changed later leads nowhere else.
    let path = path.canonicalize().map_err(|error| missing(unreadable(&path, &error)))?;
    let digest = digest_of(&path).map_err(|error| missing(unreadable(&path, &error)))?;
    let path =
        path.to_str().ok_or_else(|| missing(format!("`{}` is not written in UTF-8", path.display())))?;
    Ok(RuntimeRecord { path: path.to_owned(), digest, ..named_runtime(program) })
}

/// A runtime as an image names it, wherever that program is.
pub(in crate::api) fn named_runtime(program: &str) -> RuntimeRecord {
    RuntimeRecord { source: format!("host:{program}"), ..RuntimeRecord::default() }
}

/// A program of this host by its path, or by its name where programs are.
fn find(program: &str) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = if program.starts_with('/') {
        vec![PathBuf::from(program)]
    } else if program.is_empty() || program.contains('/') {
        Vec::new()
    } else {
        HOST_PATH.iter().map(|dir| Path::new(dir).join(program)).collect()
    };
    let runs = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    candidates.into_iter().find(runs)
}

fn absent(program: &str) -> String {
    format!("there is no program `{program}` on this host")
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("`{}` could not be read: {error}", path.display())
}

/// The digest of a program, read in pieces: programs can be large.
fn digest_of(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("sha256:{}", hex(&hash.finalize()))),
            read => hash.update(&piece[..read]),
        }
    }
}
