//! The results of a command that takes several arguments.

use serde::Serialize;

use crate::failure::{CommandExit, CommandFailure};
use crate::render;
use crate::words::{Words, put};

/// Printing the outcome of several: as they come, or as one array at the end.
pub(super) struct ResultList<'a> {
    words: &'a Words,
    asked: usize,
    things: Vec<serde_json::Value>,
    failed: bool,
    first: bool,
}

impl<'a> ResultList<'a> {
    pub(super) fn new(words: &'a Words, asked: usize) -> Self {
        ResultList { words, asked, things: Vec::new(), failed: false, first: true }
    }

    pub(super) fn done<T: Serialize>(
        &mut self,
        thing: &T,
        text: impl Fn() -> String,
    ) -> Result<(), CommandFailure> {
        if !self.words.json {
            let text = text();
            let apart = !std::mem::take(&mut self.first) && text.lines().count() > 1;
            return put(&format!("{}{text}", if apart { "\n" } else { "" }));
        }
        if self.asked == 1 {
            return self.words.json(thing);
        }
        let value = serde_json::to_value(thing)
            .map_err(|cause| CommandFailure::refused("could not write the output").because(cause))?;
        self.things.push(value);
        Ok(())
    }

    /// If there was only one argument, its failure fails the command; of several, each failure is reported.
    pub(super) fn failed(&mut self, failure: CommandFailure) -> Result<(), CommandFailure> {
        match failure {
            CommandFailure::Told(report) if self.asked > 1 => {
                render::error(&report);
                self.failed = true;
                Ok(())
            }
            other => Err(other),
        }
    }

    pub(super) fn finish(self) -> Result<(), CommandFailure> {
        if self.words.json && self.asked > 1 {
            self.words.json(&self.things)?;
        }
        if self.failed { Err(CommandFailure::Silent(CommandExit::Refused)) } else { Ok(()) }
    }
}
