//! Connections: requests one after the other, and answers with what goes wrong with them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::reply::{RegistryReply, reply};
use super::{RecordedRequest, RegistryFault, RegistryState};

const HEAD_LINE_MAX: u64 = 128 << 10;
const PIECE: usize = 64 << 10;

pub(super) fn serve(shared: &RegistryState, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(mut seen) = head(&mut reader)? {
        if shared.has_ended() {
            return Ok(());
        }
        let faults = shared.state().faults(&seen.method, &seen.path);
        let take = faults.iter().find_map(|fault| match fault {
            RegistryFault::TakeOnly(bytes) => Some(*bytes),
            _other => None,
        });
        let length = seen.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        seen.body.reserve(usize::try_from(length).unwrap_or(0));
        (&mut reader).take(take.map_or(length, |take| take.min(length))).read_to_end(&mut seen.body)?;
        let at = {
            let mut state = shared.state();
            state.seen.push(seen.clone());
            state.seen.len() - 1
        };
        let answer = reply(&mut shared.state(), &seen, &faults);
        if take.is_some() {
            return Ok(());
        }
        if faults.iter().any(|fault| matches!(fault, RegistryFault::Silence)) {
            shared.stall();
            return Ok(());
        }
        let counted = |bytes: u64| shared.state().seen[at].served += bytes;
        if !write(shared, &mut writer, &seen, answer, &faults, counted)? {
            return Ok(());
        }
    }
    Ok(())
}

/// The head of the next request; `None` at the end.
fn head(reader: &mut BufReader<TcpStream>) -> io::Result<Option<RecordedRequest>> {
    let mut seen = RecordedRequest::default();
    let mut first = String::new();
    if reader.take(HEAD_LINE_MAX).read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace();
    seen.method = words.next().unwrap_or_default().to_owned();
    seen.path = words.next().unwrap_or_default().to_owned();
    loop {
        let mut line = String::new();
        reader.take(HEAD_LINE_MAX).read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(Some(seen)) };
        seen.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// Returns whether the connection continues.
fn write(
    shared: &RegistryState,
    writer: &mut TcpStream,
    seen: &RecordedRequest,
    mut answer: RegistryReply,
    faults: &[RegistryFault],
    counted: impl Fn(u64),
) -> io::Result<bool> {
    let mut trickle = None;
    let (mut cut, mut stall, mut endless, mut told) = (None, None, false, answer.body.len() as u64);
    for fault in faults {
        match fault {
            RegistryFault::CutAt(at) => cut = Some(*at),
            RegistryFault::StallAt(at) => stall = Some(*at),
            RegistryFault::Trickle(pause) => trickle = Some(*pause),
            RegistryFault::Endless => endless = true,
            RegistryFault::Length(length) => told = *length,
            RegistryFault::Header(name, value) => {
                answer.headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
                answer.headers.push((name.clone(), value.clone()));
            }
            RegistryFault::Answer { .. }
            | RegistryFault::Body(_)
            | RegistryFault::NoRanges
            | RegistryFault::Silence
            | RegistryFault::TakeOnly(_) => {}
        }
    }
    let mut head = format!("HTTP/1.1 {} Whatever\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if endless {
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
    } else if answer.status == 204 {
        head.push_str("\r\n");
    } else {
        head.push_str(&format!("Content-Length: {told}\r\n\r\n"));
    }
    writer.write_all(head.as_bytes())?;
    if seen.method == "HEAD" {
        return Ok(true);
    }
    if endless {
        return write_for_ever(writer, counted);
    }
    let whole = answer.body.len();
    let end = [cut, stall].into_iter().flatten().min().map_or(whole, |at| whole.min(at as usize));
    for piece in answer.body[..end].chunks(trickle.map_or(PIECE, |_| 1)) {
        // Before it is sent: a client may check the count as soon as it has everything.
        counted(piece.len() as u64);
        writer.write_all(piece)?;
        trickle.into_iter().for_each(std::thread::sleep);
    }
    if stall.is_some() {
        shared.stall();
    }
    Ok(cut.is_none() && stall.is_none() && told == whole as u64)
}

/// Until the reader is gone.
fn write_for_ever(writer: &mut TcpStream, counted: impl Fn(u64)) -> io::Result<bool> {
    let piece = vec![b' '; PIECE];
    loop {
        writer.write_all(format!("{PIECE:x}\r\n").as_bytes())?;
        writer.write_all(&piece)?;
        writer.write_all(b"\r\n")?;
        counted(PIECE as u64);
    }
}
