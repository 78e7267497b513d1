//! The instructions and how each is written.
//!
//! Owns: keywords, their usage lines, and guesses at what a misspelt one meant. Never: parses arguments.

use std::fmt;

/// Longest word worth guessing about; no keyword is near it.
const GUESS_MAX: usize = 24;

macro_rules! keywords {
    ($($variant:ident $word:literal $usage:literal,)*) => {
        /// One instruction of the language.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Keyword { $($variant),* }

        impl Keyword {
            pub const ALL: &'static [Keyword] = &[$(Keyword::$variant),*];

            pub fn word(self) -> &'static str {
                match self { $(Keyword::$variant => $word),* }
            }

            /// The forms of the instruction, to be put between backticks.
            pub(super) fn usage(self) -> &'static str {
                match self { $(Keyword::$variant => $usage),* }
            }
        }
    };
}

keywords! {
    From "FROM" "FROM scratch`, `FROM <image>` or `FROM ./path",
    Runtime "RUNTIME" "RUNTIME <image or host:program>",
    Model "MODEL" "MODEL provider/model",
    Name "NAME" "NAME name",
    Context "CONTEXT" "CONTEXT NAME [\"description\"] <<EOF` or `CONTEXT NAME [\"description\"] file://path",
    Config "CONFIG" "CONFIG key=value [\"description\"]`, `CONFIG key` or `CONFIG key!",
    Env "ENV" "ENV KEY=value [\"description\"]",
    Bin "BIN" "BIN name <image, host:program or builtin:program> [safe] [\"description\"] [<<USAGE]",
    Shell "SHELL" "SHELL host [safe] [\"description\"]` or `SHELL stock [safe] [\"description\"]",
    Exec "EXEC" "EXEC [\"word\", \"word\"]",
    Add "ADD" "ADD path [name] [\"description\"]",
    Label "LABEL" "LABEL key=value",
    Arg "ARG" "ARG key[=default]",
    Capability "CAPABILITY" "CAPABILITY name [name…]",
    Limit "LIMIT" "LIMIT key value",
    Network "NETWORK" "NETWORK none|public|lan|host` or `NETWORK name[:port] …",
    Mcp "MCP" "MCP name <url>` or `MCP name <image or host:program> [argument…]",
    Skill "SKILL" "SKILL <name or image>",
    Service "SERVICE" "SERVICE name image [optional] [KEY=value…] [healthcheck=\"command\"]",
    Schedule "SCHEDULE" "SCHEDULE \"cron\" \"prompt\"` or `SCHEDULE \"cron\" <<PROMPT",
    On "ON" "ON \"pattern\" \"prompt\"` or `ON \"pattern\" <<PROMPT",
}

impl fmt::Display for Keyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Keyword {
    /// Keywords are read in any case.
    pub(super) fn read(word: &str) -> Option<Keyword> {
        Keyword::ALL.iter().copied().find(|keyword| keyword.word().eq_ignore_ascii_case(word))
    }

    /// The keyword a misspelt word most likely meant.
    pub(super) fn guess(word: &str) -> Option<Keyword> {
        let word = word.to_ascii_uppercase();
        nearest(&word, Keyword::ALL.iter().map(|keyword| keyword.word())).and_then(Keyword::read)
    }
}

/// What to do about an instruction from another language.
pub(super) fn foreign(word: &str) -> Option<&'static str> {
    Some(match word.to_ascii_uppercase().as_str() {
        "COPY" => "use `ADD path [name]` to bake a file into the image",
        "CMD" | "ENTRYPOINT" => "use `EXEC [\"word\"]` for the runtime's first arguments",
        "RUN" => "nothing is run during a build: add programs with `BIN name <image or host:program>`",
        "VOLUME" | "MOUNT" => "mount with `lodge run -v HOST:TARGET`",
        "PROMPT" | "SYSTEM" => "use `CONTEXT SOUL <<EOF` for the system prompt",
        "TOOL" => "use `BIN name <image or host:program>`",
        "WORKDIR" => {
            "remove it: tools and jobs start in /workspace; add files with `ADD` or `lodge run -v HOST:TARGET`"
        }
        "USER" => "remove it: Lodge gives each agent its own user",
        "EXPOSE" => "remove it: an agent listens on no port of the host; NETWORK says what it may reach",
        "CRON" => "use `SCHEDULE \"cron\" \"prompt\"`",
        _ => return None,
    })
}

/// The nearest of some upper- or lower-case words, if it is near enough to be a slip of the finger.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > GUESS_MAX {
        return None;
    }
    known
        .map(|candidate| (distance(word.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|(distance, candidate)| *distance * 2 < candidate.len() && *distance <= 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits between two words; swapping two neighbours counts as one.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let width = b.len() + 1;
    let mut table = vec![0; (a.len() + 1) * width];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i * width + j] = if i == 0 || j == 0 {
                i + j
            } else {
                let cost = usize::from(a[i - 1] != b[j - 1]);
                let mut best = (table[(i - 1) * width + j] + 1)
                    .min(table[i * width + j - 1] + 1)
                    .min(table[(i - 1) * width + j - 1] + cost);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(table[(i - 2) * width + j - 2] + 1);
                }
                best
            };
        }
    }
    table[a.len() * width + b.len()]
}
