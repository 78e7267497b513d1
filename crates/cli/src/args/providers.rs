//! `provider`.

use clap::{Subcommand, ValueEnum};

/// The protocol that a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProviderKindArg {
    Openai,
    Anthropic,
    Gemini,
    Ollama,
    Script,
}

impl ProviderKindArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ProviderKindArg::Openai => "openai",
            ProviderKindArg::Anthropic => "anthropic",
            ProviderKindArg::Gemini => "gemini",
            ProviderKindArg::Ollama => "ollama",
            ProviderKindArg::Script => "script",
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProviderCommand {
    /// Add a provider
    Add {
        /// The provider's name; models are then written NAME/MODEL
        name: String,
        /// The provider's protocol
        #[arg(long)]
        kind: ProviderKindArg,
        /// Base URL, if not the default of its kind
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
        /// The API key; - reads it from stdin, which keeps it out of the shell's history
        #[arg(long, value_name = "KEY")]
        api_key: Option<String>,
        /// The allowed models; default: any
        #[arg(long, value_name = "MODEL,…", value_delimiter = ',')]
        models: Vec<String>,
        /// How long an outage may last before turns fail: 30s, 10m, 12h, or 0 to fail at once; default: 10m
        #[arg(long, value_name = "DURATION")]
        retry_for: Option<String>,
    },
    /// List providers
    Ls {
        /// Show keys instead of masking them
        #[arg(long)]
        reveal: bool,
    },
    /// Remove providers
    Rm {
        /// Names that `provider ls` shows
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Test a provider: its address, its key and a model
    Test {
        /// A name that `provider ls` shows
        name: String,
        /// The model to call; default: the first configured model
        #[arg(long)]
        model: Option<String>,
    },
}
