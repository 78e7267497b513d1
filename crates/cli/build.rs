//! Links the unwinder into the program, so that no command has to load it.

#![allow(clippy::disallowed_macros, reason = "this is how a build script speaks to cargo")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        // The code that walks a stack is taken into the program, as those that live in sandboxes have it: as a library of
        // its own it would be found, opened, mapped and bound at every start, an eighth of what an empty program takes.
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}
