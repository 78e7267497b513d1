//! Errors of trials at a keeper's start.
//!
//! A layer that the host refuses is missing for the life of the sandbox. A temporary failure ends the start, so that
//! the next start may have the layer.

use std::io;

/// Why a trial did not succeed.
#[derive(Debug)]
pub(crate) enum TrialError {
    /// It could not be tried, for a reason that can pass.
    NotTried(io::Error),
    /// This host does not allow it, or does not have it.
    Refused(io::Error),
}

impl TrialError {
    /// What failed, and whether that can pass.
    pub(crate) fn during(what: &'static str) -> impl Fn(io::Error) -> TrialError {
        move |cause| {
            let named = io::Error::other(format!("cannot {what}: {cause}"));
            if can_pass(&cause) { TrialError::NotTried(named) } else { TrialError::Refused(named) }
        }
    }

    pub(crate) fn refused(why: impl Into<String>) -> TrialError {
        TrialError::Refused(io::Error::other(why.into()))
    }

    pub(crate) fn not_tried(why: impl Into<String>) -> TrialError {
        TrialError::NotTried(io::Error::other(why.into()))
    }
}

impl From<io::Error> for TrialError {
    fn from(error: io::Error) -> TrialError {
        if can_pass(&error) { TrialError::NotTried(error) } else { TrialError::Refused(error) }
    }
}

/// Separates a failure that can pass, which is the outer error, from a refusal.
pub(crate) fn settle<T>(tried: Result<T, TrialError>) -> io::Result<io::Result<T>> {
    match tried {
        Ok(value) => Ok(Ok(value)),
        Err(TrialError::Refused(error)) => Ok(Err(error)),
        Err(TrialError::NotTried(error)) => Err(error),
    }
}

/// Whether a host that is less busy would not fail like this.
fn can_pass(error: &io::Error) -> bool {
    const PASSING: [i32; 8] = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOMEM,
        libc::ENOBUFS,
        libc::ENOSPC,
        libc::EAGAIN,
        libc::EINTR,
        libc::ETIMEDOUT,
    ];
    error.kind() == io::ErrorKind::TimedOut
        || error.raw_os_error().is_some_and(|errno| PASSING.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_can_pass_is_no_refusal_also_once_it_is_named() {
        let os = io::Error::from_raw_os_error;
        for passing in [os(libc::EMFILE), os(libc::ENOMEM), os(libc::EAGAIN), io::ErrorKind::TimedOut.into()]
        {
            assert!(matches!(TrialError::during("do it")(passing), TrialError::NotTried(_)));
        }
        for lasting in [os(libc::EPERM), os(libc::ENOSYS), os(libc::EINVAL), io::Error::other("never")] {
            assert!(matches!(TrialError::during("do it")(lasting), TrialError::Refused(_)));
        }
        assert!(settle::<()>(Err(os(libc::ENFILE).into())).is_err());
        assert!(matches!(settle::<()>(Err(os(libc::EPERM).into())), Ok(Err(_))));
    }
}
