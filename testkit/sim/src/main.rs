//! `lodge-sim --seed S --steps N --runs R`: runs seeds S, S+1, … and prints the first failure with its trace.

use std::process::ExitCode;
use std::time::Instant;

use lodge_sim::{SimMutation, Tally, run};

const USAGE: &str = "usage: lodge-sim [--seed S] [--steps N] [--runs R] [--trace LINES]";

struct SimArgs {
    seed: u64,
    steps: u64,
    runs: u64,
    trace: usize,
}

fn main() -> ExitCode {
    let wanted = match parse_args(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("error: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let mut all = Tally::default();
    for seed in wanted.seed..wanted.seed + wanted.runs {
        match run(seed, wanted.steps, SimMutation::None, wanted.trace) {
            Ok(tally) => all = all.plus(tally),
            Err(failure) => {
                println!("{failure}");
                eprintln!("again: lodge-sim --seed {seed} --steps {} --runs 1", wanted.steps);
                return ExitCode::FAILURE;
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{} seeds from {}: {all:?}", wanted.runs, wanted.seed);
    println!("{:.0} steps a second", all.steps as f64 / seconds);
    ExitCode::SUCCESS
}

fn parse_args(mut args: impl Iterator<Item = String>) -> Result<SimArgs, String> {
    let mut wanted = SimArgs { seed: 1, steps: 20_000, runs: 10, trace: 200 };
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number: u64 = value.parse().map_err(|_| format!("`{value}` is not a number"))?;
        match flag.as_str() {
            "--seed" => wanted.seed = number,
            "--steps" => wanted.steps = number,
            "--runs" => wanted.runs = number,
            "--trace" => wanted.trace = usize::try_from(number).unwrap_or(usize::MAX),
            _ => return Err(format!("there is no `{flag}`")),
        }
    }
    Ok(wanted)
}
