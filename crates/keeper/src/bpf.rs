//! Instructions of classic BPF, of which filters for calls and for packets are made.

/// An instruction that continues with the next one.
pub(crate) fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Compares the loaded value with a constant, and skips this many instructions.
pub(crate) fn jump(test: u32, k: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt: if_true, jf: if_false, k }
}

/// Ends the filter.
pub(crate) fn answer(value: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}
