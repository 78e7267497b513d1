//! Mistakes in what an Agentfile names: files beside it, and parents.
//!
//! Owns: their words. Never: finds them (see `load`).

use super::codes;
use crate::agentfile::error::{shown, shown_cause};

/// A file or a parent that an Agentfile names is not available. Paths are as the Agentfile has them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileMistake {
    #[error("`{}` could not be read: {}", shown(path), shown(why))]
    Unreadable { path: String, why: String },
    #[error("`{}` is not a regular file", shown(path))]
    NotRegular { path: String },
    #[error("`{}` leads out of the Agentfile's directory, to `{}`", shown(path), shown(target))]
    Outside { path: String, target: String },
    #[error("`{}` changed while it was read", shown(path))]
    Exchanged { path: String },
    #[error("`{}` is too large", shown(path))]
    TooLarge { path: String, max: u64 },
    #[error("with `{}` the files of this agent are too large together", shown(path))]
    TotalTooLarge { path: String, max: u64 },
    #[error("the context `{}` is not UTF-8", shown(path))]
    ContextNotUtf8 { path: String },
    #[error("`{}` is a file, and an Agentfile without a directory has none", shown(path))]
    NoDirectory { path: String },
    #[error("there is no Agentfile in `{}`", shown(path))]
    NoAgentfile { path: String },
    #[error("there is no image `{}` here", shown(image))]
    NoImage { image: String },
    #[error("the image `{}` could not be read: {}", shown(image), shown_cause(why))]
    ImageUnreadable { image: String, why: String },
    #[error("there is no tool `{}` here, and the name has no registry", shown(image))]
    NoBin { image: String },
    #[error("the tool `{}` could not be pulled: {}", shown(image), shown_cause(why))]
    BinUnreadable { image: String, why: String },
    #[error("{}", shown_cause(why))]
    NoProgram { why: String },
    #[error("FROM leads back to where it came from: {}", chain(names))]
    Cycle { names: Vec<String> },
    #[error("there are too many parents: {}", chain(names))]
    TooDeep { names: Vec<String>, max: usize },
}

codes! { FileMistake:
    Unreadable => "agentfile.file_unreadable",
    NotRegular => "agentfile.file_not_regular",
    Outside => "agentfile.file_outside",
    Exchanged => "agentfile.file_exchanged",
    TooLarge => "agentfile.added_file_too_large",
    TotalTooLarge => "agentfile.files_too_large",
    ContextNotUtf8 => "agentfile.context_not_utf8",
    NoDirectory => "agentfile.no_directory",
    NoAgentfile => "agentfile.not_found",
    NoImage => "agentfile.parent_not_found",
    ImageUnreadable => "agentfile.parent_unreadable",
    NoBin => "agentfile.bin_not_found",
    BinUnreadable => "agentfile.bin_unreadable",
    NoProgram => "agentfile.program_not_found",
    Cycle => "agentfile.parent_cycle",
    TooDeep => "agentfile.too_many_parents",
}

impl FileMistake {
    pub fn expected(&self) -> String {
        match self {
            FileMistake::Unreadable { .. } => "a file that the daemon can read".to_owned(),
            FileMistake::NotRegular { .. } => "a plain file".to_owned(),
            FileMistake::Outside { .. } => "a file below the Agentfile's directory".to_owned(),
            FileMistake::Exchanged { .. } => "files that do not change during the build".to_owned(),
            FileMistake::TooLarge { max, .. } => format!("at most {max} bytes"),
            FileMistake::TotalTooLarge { max, .. } => {
                format!("at most {max} bytes of CONTEXT and ADD files, those of parents included")
            }
            FileMistake::ContextNotUtf8 { .. } => "UTF-8 text".to_owned(),
            FileMistake::NoDirectory { .. } => "an Agentfile without files".to_owned(),
            FileMistake::NoAgentfile { .. } => "a directory with an Agentfile, or the file itself".to_owned(),
            FileMistake::NoImage { .. } | FileMistake::ImageUnreadable { .. } => {
                "the name of an image, a path, or `scratch`".to_owned()
            }
            FileMistake::NoBin { .. } | FileMistake::BinUnreadable { .. } => {
                "`host:program`, a local tool, or one in a registry".to_owned()
            }
            FileMistake::NoProgram { .. } => "a program of this host".to_owned(),
            FileMistake::Cycle { .. } => "a chain of parents that ends with `FROM scratch`".to_owned(),
            FileMistake::TooDeep { max, .. } => format!("at most {max} parents above an agent"),
        }
    }

    pub fn hint(&self) -> String {
        match self {
            FileMistake::Unreadable { path, .. } => {
                format!("check that `{}` is there and readable", shown(path))
            }
            FileMistake::NotRegular { .. } => "name a plain file".to_owned(),
            FileMistake::Outside { .. } => {
                "copy the file next to the Agentfile instead of linking to it".to_owned()
            }
            FileMistake::Exchanged { .. } => "build again when nothing changes the directory".to_owned(),
            FileMistake::TooLarge { .. } | FileMistake::TotalTooLarge { .. } => {
                "make it smaller, or mount it with `lodge run -v HOST:TARGET`".to_owned()
            }
            FileMistake::ContextNotUtf8 { .. } => "save it as UTF-8, or add it with ADD".to_owned(),
            FileMistake::NoDirectory { .. } => {
                "write the text as a heredoc, or build from the directory instead of stdin".to_owned()
            }
            FileMistake::NoAgentfile { .. } => "check the path; it starts at this Agentfile".to_owned(),
            FileMistake::NoImage { image } => {
                let name = shown(image);
                format!(
                    "`lodge image ls` lists the images there are; build it with `lodge image build DIR -t {name}`"
                )
            }
            FileMistake::ImageUnreadable { .. } => "build that image again, or pull it".to_owned(),
            FileMistake::NoBin { image } => match crate::stock_hint(image) {
                Some(hint) => hint.to_owned(),
                None => {
                    "`lodge bin ls` lists the tools there are; a program of this host is written `host:program`"
                        .to_owned()
                }
            },
            FileMistake::BinUnreadable { .. } => {
                "check the name; `lodge bin pull` pulls only the tool".to_owned()
            }
            FileMistake::NoProgram { .. } => {
                "install that program on this host, or remove the line".to_owned()
            }
            FileMistake::Cycle { .. } => "let one of them start with `FROM scratch`".to_owned(),
            FileMistake::TooDeep { .. } => "flatten some of them into one".to_owned(),
        }
    }
}

fn chain(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", shown(name))).collect::<Vec<_>>().join(" → ")
}
