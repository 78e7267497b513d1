//! A daemon without agents, its command line, and what lies in its store of images.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lodge_testkit::lodge::{Lodge, until};

/// A daemon that logs as one does by default.
pub(crate) fn daemon() -> Lodge {
    let mut lodge = Lodge::new();
    lodge.set_env("LODGED_LOG_LEVEL", "info");
    lodge.start();
    lodge
}

/// How long a command takes, which must succeed.
pub(crate) fn timed<S: AsRef<OsStr>>(lodge: &Lodge, args: impl IntoIterator<Item = S>) -> Duration {
    let from = Instant::now();
    lodge.cli_ok(args);
    from.elapsed()
}

fn blobs(lodge: &Lodge) -> PathBuf {
    lodge.home().join("registry/blobs/sha256")
}

/// Waits until nothing is left in a store whose images were all removed.
pub(crate) fn until_empty(lodge: &Lodge) {
    until("the store is empty", || {
        std::fs::read_dir(blobs(lodge)).expect("a store").next().is_none().then_some(())
    });
}

/// The file of a digest.
pub(crate) fn blob(lodge: &Lodge, digest: &str) -> PathBuf {
    blobs(lodge).join(digest.trim_start_matches("sha256:"))
}

/// This machine's, as images call it.
pub(crate) fn platform() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{arch}")
}

/// The archive of the stock tools, when it was made.
pub(crate) fn stock_archive() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = exe.parent().and_then(Path::parent).ok_or("this program lies in no target directory")?;
    let archive = target.join("stock/stock.tar");
    if archive.is_file() {
        Ok(archive)
    } else {
        Err("there is no archive of them: run `make stock`".to_owned())
    }
}
