//! The secret that a keeper and the daemon share.

use std::fmt;

/// Bytes of a [`KeeperSecret`].
pub const SECRET_LEN: usize = 32;

/// Proves either end of a link to the other. Never crosses the wire, never shows in a log.
#[derive(Clone)]
pub struct KeeperSecret([u8; SECRET_LEN]);

impl KeeperSecret {
    pub fn new(bytes: [u8; SECRET_LEN]) -> KeeperSecret {
        KeeperSecret(bytes)
    }

    pub fn expose(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }
}

impl fmt::Debug for KeeperSecret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("[secret]")
    }
}

impl Drop for KeeperSecret {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites bytes in a way that the compiler does not remove.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

#[cfg(test)]
mod tests {
    use super::KeeperSecret;

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", KeeperSecret::new([65; 32])), "[secret]");
    }
}
