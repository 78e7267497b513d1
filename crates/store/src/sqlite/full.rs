//! Whether an error of SQLite means that the disk is full, and nothing worse.
//!
//! A full disk leaves nothing in doubt: the transaction is rolled back and may be retried. After a failed flush the
//! kernel may have dropped pages, and reports that only once. So a failed flush never counts as a full disk.

use rusqlite::{Connection, Error, ErrorCode, ffi};

/// Errors that a full disk gives too, when what failed is a write or making a file larger.
const GROWING: [i32; 6] = [
    ffi::SQLITE_IOERR_WRITE,
    ffi::SQLITE_IOERR_TRUNCATE,
    ffi::SQLITE_IOERR_SHMOPEN,
    ffi::SQLITE_IOERR_SHMSIZE,
    ffi::SQLITE_IOERR_SHMMAP,
    ffi::SQLITE_CANTOPEN,
];

/// Whether the last operation of `connection` failed because the disk is full, or the owner's quota.
pub(crate) fn is_full(connection: &Connection, cause: &Error) -> bool {
    let Some(failure) = cause.sqlite_error() else { return false };
    if failure.code == ErrorCode::DiskFull {
        return true;
    }
    GROWING.contains(&failure.extended_code) && is_no_room(system_error(connection))
}

fn is_no_room(errno: i32) -> bool {
    [libc::ENOSPC, libc::EDQUOT].contains(&errno)
}

/// The kernel's error of the last failed operation.
fn system_error(connection: &Connection) -> i32 {
    // SAFETY: the handle is of an open connection that this thread has alone, and the call only reads from it.
    unsafe { ffi::sqlite3_system_errno(connection.handle()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32) -> Error {
        Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn a_flush_that_failed_is_never_taken_for_a_full_disk() {
        let flushes =
            [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC, ffi::SQLITE_IOERR, ffi::SQLITE_CORRUPT];
        for code in flushes {
            assert!(!GROWING.contains(&code), "{code}");
            assert!(!is_full(&Connection::open_in_memory().unwrap(), &failure(code)), "{code}");
        }
        assert!(is_full(&Connection::open_in_memory().unwrap(), &failure(ffi::SQLITE_FULL)));
    }

    #[test]
    fn a_file_that_cannot_grow_is_a_full_disk_only_when_the_kernel_says_so() {
        let dir = tempfile::tempdir().unwrap();
        // A missing directory: the same code for another reason.
        let connection = Connection::open_in_memory().unwrap();
        let missing = dir.path().join("missing/file.db");
        let failed = connection.execute("ATTACH ?1 AS other", [missing.to_str().unwrap()]).unwrap_err();
        assert_eq!(failed.sqlite_extended_error_code(), Some(ffi::SQLITE_CANTOPEN));
        assert!(!is_full(&connection, &failed));
        assert!(is_no_room(libc::ENOSPC) && is_no_room(libc::EDQUOT) && !is_no_room(libc::EIO));
    }
}
