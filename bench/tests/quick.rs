//! The measurements still run. What they measure is for `make bench` to say, on a machine with nothing else to do.

use std::process::Command;

/// At least the floors, and a row or two of every part, also where only root may look.
const ROWS_MIN: usize = 80;

#[test]
fn every_part_runs_and_its_rows_are_written_as_json() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let json = dir.path().join("rows.json");
    let output = Command::new(env!("CARGO_BIN_EXE_lodge-bench"))
        .args(["--quick", "--json"])
        .arg(&json)
        .output()
        .expect("lodge-bench runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let text = std::fs::read_to_string(&json).expect("the rows were written");
    let value: serde_json::Value = serde_json::from_str(&text).expect("the rows are JSON");
    let rows = value["rows"].as_array().expect("there are rows");
    assert!(rows.len() >= ROWS_MIN, "{} rows:\n{out}", rows.len());
    assert!(rows.iter().all(|row| row["value"].as_f64().is_some_and(f64::is_finite)), "{out}");
}
