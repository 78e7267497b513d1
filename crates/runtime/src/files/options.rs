//! The arguments of a file tool: options by name, and words.

use std::collections::VecDeque;
use std::ffi::OsString;

use super::FileError;

/// The arguments of one call, as its tool reads them.
pub(super) struct Arguments {
    usage: &'static str,
    /// What is not an option, in order.
    pub(super) words: VecDeque<OsString>,
    flags: Vec<&'static str>,
    values: Vec<(&'static str, OsString)>,
}

impl Arguments {
    /// Splits the arguments. Options may be anywhere; after `--` everything is a word.
    pub(super) fn split(
        args: Vec<OsString>,
        usage: &'static str,
        flags: &[&'static str],
        values: &[&'static str],
    ) -> Result<Arguments, FileError> {
        let mut split = Arguments { usage, words: VecDeque::new(), flags: Vec::new(), values: Vec::new() };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let Some(option) = arg.to_str().filter(|arg| arg.starts_with("--")) else {
                split.words.push_back(arg);
                continue;
            };
            if option == "--" {
                split.words.extend(args);
                break;
            }
            let (name, given) = match option.split_once('=') {
                Some((name, value)) => (name, Some(OsString::from(value))),
                None => (option, None),
            };
            if let Some(flag) = flags.iter().find(|known| **known == name && given.is_none()) {
                split.flags.push(flag);
            } else if let Some(known) = values.iter().find(|known| **known == name) {
                let value = given.or_else(|| args.next());
                split
                    .values
                    .push((known, value.ok_or_else(|| split.wrong(format!("`{name}` needs a value")))?));
            } else {
                return Err(split.wrong(format!("there is no option `{name}`")));
            }
        }
        Ok(split)
    }

    pub(super) fn wrong(&self, problem: String) -> FileError {
        FileError::Usage { problem, usage: self.usage }
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    pub(super) fn value(&self, name: &str) -> Option<&OsString> {
        self.values.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// A number of an option, at least 1.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, FileError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let number = value.to_str().and_then(|text| text.trim().parse::<u64>().ok());
        match number {
            Some(number) => Ok(Some(number.max(1))),
            None => Err(self.wrong(format!("`{name}` needs a number, not `{}`", value.display()))),
        }
    }

    /// The next word, which must be there.
    pub(super) fn word(&mut self, what: &str) -> Result<OsString, FileError> {
        let word = self.words.pop_front();
        word.ok_or_else(|| self.wrong(format!("{what} is missing")))
    }

    /// Refuses words that are left.
    pub(super) fn end(&self) -> Result<(), FileError> {
        match self.words.front() {
            Some(word) => Err(self.wrong(format!("`{}` is not expected", word.display()))),
            None => Ok(()),
        }
    }
}
