//! The Agentfile language, tested from outside.
//!
//! Owns: the helpers every test uses. Never: reaches into the crate.

mod form_mistakes;
mod grammar;
mod hostile;
mod load;
mod merge;
mod parents;
mod stock;
mod text_mistakes;
mod value_mistakes;

use std::collections::BTreeMap;
use std::path::Path;

use lodge_image::agentfile::{Agentfile, AgentfileErrors, Builder, LoadError, LoadedAgentfile, parse};

pub(crate) type Args = BTreeMap<String, String>;

pub(crate) fn args(pairs: &[(&str, &str)]) -> Args {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The images there are, by name. Refuses MCP, as a builder might.
#[derive(Default)]
pub(crate) struct AgentfileImages(pub(crate) BTreeMap<String, LoadedAgentfile>);

impl Builder for AgentfileImages {
    fn image(
        &self,
        reference: &str,
    ) -> Result<Option<LoadedAgentfile>, Box<dyn std::error::Error + Send + Sync>> {
        if reference == "torn" {
            return Err("the shelf broke".into());
        }
        Ok(self.0.get(reference).cloned())
    }

    fn pin(&self, reference: &str) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>> {
        match reference {
            "torn" => Err("the shelf broke".into()),
            "nobody" => Ok(None),
            other => Ok(Some(other.to_owned())),
        }
    }

    fn refuses(&self, agentfile: &Agentfile) -> Vec<(u32, &'static str)> {
        agentfile.mcps.iter().map(|mcp| (mcp.line, "MCP")).collect()
    }
}

pub(crate) fn load_dir(path: &Path, args: &Args) -> Result<LoadedAgentfile, LoadError> {
    lodge_image::agentfile::load_dir(path, args, &AgentfileImages::default())
}

pub(crate) fn load_inline(source: &[u8], args: &Args) -> Result<LoadedAgentfile, LoadError> {
    lodge_image::agentfile::load_inline(source, args, &AgentfileImages::default())
}

#[track_caller]
pub(crate) fn good(source: &str) -> Agentfile {
    good_with(source, &Args::new())
}

/// The CONFIG keys that are required and have no value.
pub(crate) fn unset(doc: &Agentfile) -> Vec<&str> {
    let unset = doc.configs.iter().filter(|config| config.required && config.value.is_none());
    unset.map(|config| config.key.as_str()).collect()
}

#[track_caller]
pub(crate) fn good_with(source: &str, args: &Args) -> Agentfile {
    match parse("Agentfile", source.as_bytes(), args) {
        Ok(agentfile) => agentfile,
        Err(errors) => panic!("unexpected mistakes:\n{errors}"),
    }
}

#[track_caller]
pub(crate) fn bad(source: &str) -> AgentfileErrors {
    match parse("Agentfile", source.as_bytes(), &Args::new()) {
        Ok(agentfile) => panic!("expected a mistake, got {agentfile:?}"),
        Err(errors) => errors,
    }
}

/// Compares all mistakes as `line:column code`.
#[track_caller]
pub(crate) fn check_mistakes(source: &str, expected: &[&str]) {
    let found: Vec<String> =
        bad(source).iter().map(|error| format!("{}:{} {}", error.line, error.column, error.code())).collect();
    assert_eq!(found, expected, "in:\n{source}");
}

/// Each case is a line below `FROM scratch` and its one mistake as `column code`.
#[track_caller]
pub(crate) fn check_lines(cases: &[(&str, &str)]) {
    for (line, expected) in cases {
        check_mistakes(&format!("FROM scratch\n{line}\n"), &[&format!("2:{expected}")]);
    }
}

/// The codes that occur in tables of cases, for the tests that no code is left out.
pub(crate) fn codes<'a>(tables: &[&[(&'a str, &'a str)]]) -> Vec<&'a str> {
    tables
        .iter()
        .flat_map(|table| table.iter())
        .filter_map(|(_, expected)| expected.split(' ').nth(1))
        .collect()
}

#[track_caller]
pub(crate) fn check_covered(all: &[&str], covered: &[&str]) {
    let missing: Vec<_> = all.iter().filter(|code| !covered.contains(code)).collect();
    assert!(missing.is_empty(), "codes without a test: {missing:?}");
}
