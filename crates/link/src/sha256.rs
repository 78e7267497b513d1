//! SHA-256 (FIPS 180-4) and HMAC (RFC 2104), by hand, so that the keeper needs no dependency for them.

/// Bytes of a SHA-256 digest.
pub const DIGEST_LEN: usize = 32;
const BLOCK_LEN: usize = 64;

const ROUND: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

const START: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/// A SHA-256 digest in the making.
#[derive(Clone)]
pub struct Sha256 {
    state: [u32; 8],
    block: [u8; BLOCK_LEN],
    len: u64,
}

impl std::fmt::Debug for Sha256 {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The state may depend on a secret.
        out.write_str("Sha256")
    }
}

impl Default for Sha256 {
    fn default() -> Sha256 {
        Sha256 { state: START, block: [0; BLOCK_LEN], len: 0 }
    }
}

impl Sha256 {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> [u8; DIGEST_LEN] {
        let mut hash = Sha256::default();
        hash.update(bytes);
        hash.finish()
    }

    /// Takes in more bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = (self.len % BLOCK_LEN as u64) as usize;
            let take = bytes.len().min(BLOCK_LEN - at);
            self.block[at..at + take].copy_from_slice(&bytes[..take]);
            self.len += take as u64;
            bytes = &bytes[take..];
            if at + take == BLOCK_LEN {
                self.mix();
            }
        }
    }

    /// The digest of everything taken in.
    pub fn finish(mut self) -> [u8; DIGEST_LEN] {
        let bits = self.len * 8;
        let at = (self.len % BLOCK_LEN as u64) as usize;
        let zeros = if at < 56 { 55 - at } else { 119 - at };
        self.update(&[0x80]);
        self.update(&[0; BLOCK_LEN][..zeros]);
        self.update(&bits.to_be_bytes());
        let mut digest = [0; DIGEST_LEN];
        for (out, word) in digest.chunks_exact_mut(4).zip(self.state) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }

    fn mix(&mut self) {
        let mut words = [0u32; 64];
        for (word, bytes) in words.iter_mut().zip(self.block.chunks_exact(4)) {
            *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        for i in 16..64 {
            let (a, b) = (words[i - 15], words[i - 2]);
            let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
            let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
            words[i] = words[i - 16].wrapping_add(s0).wrapping_add(words[i - 7]).wrapping_add(s1);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = self.state;
        for (word, round) in words.iter().zip(ROUND) {
            let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(round).wrapping_add(*word);
            let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let majority = (a & b) ^ (a & c) ^ (b & c);
            let t2 = s0.wrapping_add(majority);
            (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
            (d, c, b, a) = (c, b, a, t1.wrapping_add(t2));
        }
        for (state, mixed) in self.state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *state = state.wrapping_add(mixed);
        }
    }
}

/// HMAC-SHA256 over the concatenation of `parts`.
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; DIGEST_LEN] {
    let mut padded = [0; BLOCK_LEN];
    if key.len() > BLOCK_LEN {
        padded[..DIGEST_LEN].copy_from_slice(&Sha256::of(key));
    } else {
        padded[..key.len()].copy_from_slice(key);
    }
    let mut inner = Sha256::default();
    inner.update(&padded.map(|byte| byte ^ 0x36));
    for part in parts {
        inner.update(part);
    }
    let mut outer = Sha256::default();
    outer.update(&padded.map(|byte| byte ^ 0x5c));
    outer.update(&inner.finish());
    outer.finish()
}

/// Compares in a time that does not depend on where the two differ.
pub fn same_bytes(left: &[u8; DIGEST_LEN], right: &[u8; DIGEST_LEN]) -> bool {
    let differing = left.iter().zip(right).fold(0, |sum, (l, r)| sum | (l ^ r));
    std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn sha256_agrees_with_fips_180_4() {
        let check = |input: &[u8], expected: &str| assert_eq!(hex(&Sha256::of(input)), expected);
        check(b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        check(b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check(
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        );
        check(&vec![b'a'; 1_000_000], "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }

    #[test]
    fn a_digest_does_not_depend_on_how_its_input_was_cut() {
        let input: Vec<u8> = (0..=255).collect();
        for cut in 0..input.len() {
            let mut hash = Sha256::default();
            hash.update(&input[..cut]);
            hash.update(&input[cut..]);
            assert_eq!(hash.finish(), Sha256::of(&input), "cut at {cut}");
        }
    }

    #[test]
    fn hmac_agrees_with_rfc_4231() {
        let check = |key: &[u8], data: &[u8], expected: &str| {
            assert_eq!(hex(&hmac_sha256(key, &[data])), expected);
            let (head, tail) = data.split_at(data.len() / 2);
            assert_eq!(hex(&hmac_sha256(key, &[head, tail])), expected);
        };
        check(&[0x0b; 20], b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        check(
            b"Jefe",
            b"what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        );
        check(&[0xaa; 20], &[0xdd; 50], "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
        check(
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        );
    }

    #[test]
    fn one_differing_bit_is_a_difference() {
        let left = [7; DIGEST_LEN];
        for at in 0..DIGEST_LEN {
            let mut right = left;
            right[at] ^= 1;
            assert!(!same_bytes(&left, &right));
        }
        assert!(same_bytes(&left, &left));
    }
}
