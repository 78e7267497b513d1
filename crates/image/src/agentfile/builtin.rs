//! The programs that ship with the daemon, which BIN names as `builtin:program`.
//!
//! Owns: their names, and what a model reads about them. Never: the programs themselves (see `crates/runtime/src/files`).

/// What is before the name of such a program in BIN.
pub(crate) const BUILTIN_PREFIX: &str = "builtin:";

/// One program that ships with the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Builtin {
    pub name: &'static str,
    /// Used if BIN has none.
    pub description: &'static str,
    /// Used if BIN has none.
    pub usage: &'static str,
    /// It changes nothing, so running it twice does no harm.
    pub safe: bool,
}

/// All of them.
pub const BUILTINS: &[Builtin] = &[
    Builtin { name: "read", description: "Reads a text file, with line numbers.", usage: READ, safe: true },
    Builtin {
        name: "write",
        description: "Creates a text file, or replaces all of it.",
        usage: WRITE,
        safe: false,
    },
    Builtin {
        name: "replace",
        description: "Changes a part of a text file: replaces one exact text by another.",
        usage: REPLACE,
        safe: false,
    },
    Builtin { name: "list", description: "Lists the files of a directory.", usage: LIST, safe: true },
    Builtin {
        name: "search",
        description: "Searches files for a regular expression.",
        usage: SEARCH,
        safe: true,
    },
];

/// The program of that name.
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == name)
}

const READ: &str = r#"`{"args": ["PATH"]}` prints the file; each line starts with its number and a tab, which are not part of the file.
`{"args": ["PATH", "--offset", "200", "--limit", "100"]}` prints 100 lines from line 200 on.
At most 2000 lines are printed; the last line of the output says how to read on."#;

const WRITE: &str = r#"`{"args": ["PATH"], "stdin": "all of the file\n"}` writes the text of `stdin`. Missing directories are created.
`{"args": ["PATH", "text\n"]}` is the same with the text as an argument; an empty text empties the file.
To change a part of a file, use a tool for replacing instead."#;

const REPLACE: &str = r#"`{"args": ["PATH", "OLD", "NEW"]}` replaces OLD by NEW. OLD is exact text, not a pattern: copy it from the file with its
indentation and line breaks, without line numbers. It must occur exactly once; add lines around it if it occurs more often.
`{"args": ["--all", "PATH", "OLD", "NEW"]}` replaces every occurrence. An empty NEW removes OLD.
Several changes of one file at once, all or none: `{"args": ["PATH"], "stdin": "<<<<<<< SEARCH\nold lines\n=======\nnew lines\n>>>>>>> REPLACE\n"}`, with as many such blocks as needed."#;

const LIST: &str = r#"`{"args": ["PATH"]}` lists one directory; `.` is the current one. Directories end with `/`, files have their size in bytes.
`{"args": ["PATH", "--depth", "3"]}` lists three levels. `.git`, `node_modules`, `target` and the like are named and not entered.
At most 1000 entries are listed."#;

const SEARCH: &str = r#"`{"args": ["PATTERN"]}` searches all text files below the current directory and prints PATH:LINE:TEXT.
`{"args": ["PATTERN", "PATH", "PATH"]}` searches these files and directories.
Options: `--literal` (PATTERN is plain text), `--ignore-case`, `--files` (only the paths), `--name "*.rs"` (only files with such names), `--limit N` (matches, 200 without it).
PATTERN is a regular expression such as `^fn \w+_test`, without look-around and back-references. A match is within one line."#;
