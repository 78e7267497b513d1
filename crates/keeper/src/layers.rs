//! The list of what fences a sandbox, kept while the fence is built.

use std::io;

use lodge_link::Layer;

/// Each layer once, in the order in which it was tried.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub(crate) list: Vec<Layer>,
}

impl Layers {
    pub(crate) fn holds(&mut self, name: &str) {
        self.list.push(Layer { name: name.to_owned(), missing: None });
    }

    pub(crate) fn missing(&mut self, name: &str, why: impl Into<String>) {
        self.list.push(Layer { name: name.to_owned(), missing: Some(why.into()) });
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.list.iter().any(|layer| layer.name == name && layer.missing.is_none())
    }

    /// Records how an attempt went, and whether the layer holds.
    pub(crate) fn note(&mut self, name: &str, tried: io::Result<()>) -> bool {
        match tried {
            Ok(()) => {
                self.holds(name);
                true
            }
            Err(error) => {
                self.missing(name, error.to_string());
                false
            }
        }
    }
}
