//! `effect-counter LOG`: counts what tools did to the world, outside Lodge.
//!
//! Every line that arrives is appended to the log before it is confirmed with `ok`. It ends when its standard input
//! does.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

fn main() -> ExitCode {
    let Some(log) = std::env::args_os().nth(1) else {
        eprintln!("usage: effect-counter LOG");
        return ExitCode::from(2);
    };
    match File::options().create(true).append(true).open(log).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(log: File) -> io::Result<()> {
    // Whoever started this holds the other end: when they are gone, so is the need to count.
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("listening {}", listener.local_addr()?);
    io::stdout().flush()?;
    let log = Arc::new(Mutex::new(log));
    for stream in listener.incoming() {
        let (stream, log) = (stream?, log.clone());
        std::thread::spawn(move || {
            if let Err(error) = count(&stream, &log) {
                eprintln!("effect-counter: {error}");
            }
        });
    }
    Ok(())
}

fn count(stream: &TcpStream, log: &Mutex<File>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut answers = stream;
    for line in BufReader::new(stream).lines() {
        // One write for a line: whoever reads meanwhile sees whole lines.
        let line = format!("{}\n", line?);
        log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())?;
        answers.write_all(b"ok\n")?;
    }
    Ok(())
}
