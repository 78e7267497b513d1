//! The programs of a tool: files of this host that the request names.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

use lodge_image::oci::{NewBin, PLATFORMS_MAX, Platform, ProgramLayer, StreamError};
use lodge_image::{Blobs, Pins};
use lodge_proto::{BinProgram, ErrorBody};

use super::platforms::unknown;
use crate::images::ImageError;

/// Bytes of all programs of one tool: a client waits while they are packed.
const PROGRAMS_MAX: u64 = 512 << 20;
const READABLE: &str = "name a file that the daemon can read";

/// A program that can be packed.
#[derive(Debug)]
pub(super) struct PackableProgram {
    pub platform: Platform,
    pub size: u64,
    path: String,
    file: File,
}

impl PackableProgram {
    /// Reads it into the store, as the program of a tool.
    pub fn pack(mut self, new: &NewBin, blobs: &Blobs, pins: &Pins) -> Result<ProgramLayer, ErrorBody> {
        new.pack_program(blobs, pins, self.size, &mut self.file).map_err(|error| match error {
            StreamError::Blob(error) => ImageError::from(error).into(),
            StreamError::Bad(error) => unreadable(&self.path, &error.to_string(), "try again"),
            StreamError::Io { cause } => unreadable(&self.path, &cause.to_string(), READABLE),
        })
    }
}

/// Opens the program for each platform. All faults that are visible without reading the files are reported.
pub(super) fn programs(given: &[BinProgram]) -> Result<Vec<PackableProgram>, ErrorBody> {
    let invalid = |what: String| {
        ErrorBody::new("params.invalid", what).hint("programs are named like `linux/amd64:/path/program`")
    };
    if given.is_empty() {
        return Err(invalid("a tool has a program for one platform at least".to_owned()));
    }
    if given.len() > PLATFORMS_MAX {
        return Err(invalid(format!("a tool has programs for {PLATFORMS_MAX} platforms at most")));
    }
    let mut platforms = Vec::new();
    let mut known = BTreeSet::new();
    for BinProgram { platform, .. } in given {
        let read = Platform::read(platform).map_err(|error| invalid(error.to_string()))?;
        if let Some((what, hint)) = unknown(&read) {
            return Err(ErrorBody::new("params.invalid", what).hint(hint));
        }
        if !known.insert(read.clone()) {
            return Err(invalid(format!("there are two programs for `{read}`")));
        }
        platforms.push(read);
    }
    let mut left = PROGRAMS_MAX;
    let mut programs = Vec::new();
    for (platform, BinProgram { path, .. }) in platforms.into_iter().zip(given) {
        let (file, size) = open(path, left)?;
        left -= size;
        programs.push(PackableProgram { platform, size, path: path.clone(), file });
    }
    Ok(programs)
}

fn unreadable(path: &str, why: &str, hint: &str) -> ErrorBody {
    let shown = lodge_image::agentfile::shown(path);
    ErrorBody::new("bin.unreadable", format!("`{shown}` cannot be the program of a tool: {why}")).hint(hint)
}

/// A program's file, which has up to `max` bytes, and its size.
fn open(path: &str, max: u64) -> Result<(File, u64), ErrorBody> {
    let bad = |why: &str, hint: &str| unreadable(path, why, hint);
    if path.is_empty() || path.contains('\0') {
        return Err(bad("that is no path", READABLE));
    }
    // A pipe without a writer is not waited for, and a device does nothing when it is opened.
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC);
    let file = options.open(path).map_err(|cause| bad(&cause.to_string(), READABLE))?;
    let meta = file.metadata().map_err(|cause| bad(&cause.to_string(), READABLE))?;
    if meta.is_dir() {
        return Err(bad("it is a directory", "name the program in it"));
    }
    if !meta.is_file() {
        return Err(bad("it is no regular file", READABLE));
    }
    if meta.len() > max {
        return Err(bad(
            &format!("the programs of a tool have {PROGRAMS_MAX} bytes at most, all together"),
            "strip it, or make tools of its parts",
        ));
    }
    if meta.len() == 0 {
        return Err(bad("it is empty", "name the program itself"));
    }
    Ok((file, meta.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&str, &str)]) -> Result<usize, (String, String)> {
        let given: Vec<BinProgram> = pairs
            .iter()
            .map(|(platform, path)| BinProgram { platform: (*platform).into(), path: (*path).into() })
            .collect();
        programs(&given).map(|read| read.len()).map_err(|error| {
            assert!(error.data.hint.is_some(), "{error:?}");
            (error.data.code, error.message)
        })
    }

    #[test]
    fn what_cannot_be_a_program_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(place("good"), "#!/bin/sh\n").unwrap();
        std::fs::write(place("empty"), "").unwrap();
        File::create(place("huge")).and_then(|file| file.set_len(PROGRAMS_MAX + 1)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
        assert_eq!(asked(&[("linux/amd64", &place("good")), ("linux/arm64", &place("good"))]), Ok(2));
        let good = place("good");
        for (pairs, code, words) in [
            (vec![], "params.invalid", "one platform at least"),
            (vec![("linux", good.as_str())], "params.invalid", "no platform"),
            (vec![("", &good)], "params.invalid", "no platform"),
            (vec![("linux/amd64/x/y", &good)], "params.invalid", "no platform"),
            (vec![("linux/../x", &good)], "params.invalid", "no platform"),
            (vec![("linux/amd46", &good)], "params.invalid", "no architecture"),
            (vec![("linux/amd64", &good), ("linux/amd64", &good)], "params.invalid", "two programs"),
            (vec![("linux/amd64", "")], "bin.unreadable", "no path"),
            (vec![("linux/amd64", "/a\0b")], "bin.unreadable", "no path"),
            (vec![("linux/amd64", "/no/such/file")], "bin.unreadable", "No such file"),
            (vec![("linux/amd64", dir.path().to_str().unwrap())], "bin.unreadable", "a directory"),
            (vec![("linux/amd64", &place("pipe"))], "bin.unreadable", "no regular file"),
            (vec![("linux/amd64", "/dev/zero")], "bin.unreadable", "no regular file"),
            (vec![("linux/amd64", &place("empty"))], "bin.unreadable", "empty"),
            (vec![("linux/amd64", &place("huge"))], "bin.unreadable", "bytes at most"),
        ] {
            let (found, message) = asked(&pairs).unwrap_err();
            assert!(found == code && message.contains(words), "{pairs:?}: {found} {message}");
        }
        let many: Vec<(&str, &str)> = (0..=PLATFORMS_MAX).map(|_| ("linux/amd64", good.as_str())).collect();
        assert!(asked(&many).unwrap_err().1.contains("at most"));
    }
    #[test]
    fn a_program_that_changes_its_size_while_it_is_read_is_reported_and_nothing_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rg");
        let blobs = Blobs::open(&dir.path().join("registry")).unwrap();
        let (name, labels) = ("rg".to_owned(), Default::default());
        let new = NewBin { name, description: None, usage: None, labels, programs: Vec::new() };
        let packed_after = |change: &dyn Fn()| {
            std::fs::write(&path, "as it was").unwrap();
            let platform = "linux/amd64".to_owned();
            let given = BinProgram { platform, path: path.to_str().unwrap().to_owned() };
            let program = programs(&[given]).unwrap().remove(0);
            change();
            program.pack(&new, &blobs, &blobs.pins())
        };
        for changed in ["as it was, and more", "as it"] {
            let error = packed_after(&|| std::fs::write(&path, changed).unwrap()).unwrap_err();
            assert_eq!(error.data.code, "bin.unreadable");
            assert!(error.message.contains("changed while it was read"), "{}", error.message);
        }
        let files = |below: &str| std::fs::read_dir(dir.path().join("registry").join(below)).unwrap().count();
        assert_eq!((files("blobs/sha256"), files("temp")), (0, 0));
        packed_after(&|| {}).unwrap();
        assert_eq!((files("blobs/sha256"), files("temp")), (1, 0));
    }
}
