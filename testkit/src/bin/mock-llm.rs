//! `mock-llm --port 0 --log FILE`: an OpenAI-compatible model server that does as the messages say.

use std::io;
use std::process::ExitCode;

use lodge_testkit::mock;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match mock::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(if error.kind() == io::ErrorKind::InvalidInput { 2 } else { 1 })
        }
    }
}
