//! File systems that a test mounts for itself.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File systems of the test's own, in a mount namespace of its thread. The daemon is started by that thread.
#[derive(Debug, Default)]
pub struct HostDisks {
    mounted: Vec<PathBuf>,
}

impl HostDisks {
    pub fn new() -> HostDisks {
        // SAFETY: both calls take C strings or nothing, and change this thread alone.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "a mount namespace");
            let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
            assert_eq!(libc::mount(none, c"/".as_ptr(), none, private, none.cast()), 0, "private mounts");
        }
        HostDisks::default()
    }

    pub fn mount(&mut self, kind: &str, at: &Path, options: &str) {
        fs::create_dir(at).expect("a place");
        let at_text = CString::new(at.as_os_str().as_bytes()).expect("a path");
        let (kind, options) = (CString::new(kind).expect("a kind"), CString::new(options).expect("options"));
        let (kind, data) = (kind.as_ptr(), options.as_ptr().cast());
        // SAFETY: all are C strings that outlive the call.
        let mounted = unsafe { libc::mount(kind, at_text.as_ptr(), kind, 0, data) };
        assert_eq!(mounted, 0, "{}: {}", at.display(), std::io::Error::last_os_error());
        self.mounted.push(at.to_owned());
    }
}

impl Drop for HostDisks {
    fn drop(&mut self) {
        for at in self.mounted.iter().rev() {
            let at = CString::new(at.as_os_str().as_bytes()).expect("a path");
            // SAFETY: a C string that outlives the call. What stays goes with the namespace.
            unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
        }
    }
}
