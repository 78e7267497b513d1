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
        /// What you call it; models are then written NAME/MODEL
        name: String,
        /// The protocol that it speaks
        #[arg(long)]
        kind: ProviderKindArg,
        /// Where it is, when not at the usual place
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
        /// The key; - reads it from stdin, so that it stays out of the shell's history
        #[arg(long, value_name = "KEY")]
        api_key: Option<String>,
        /// The models it may be asked for; any when absent
        #[arg(long, value_name = "MODEL,…", value_delimiter = ',')]
        models: Vec<String>,
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
    /// Try a provider: its address, its key and a model
    Test {
        /// A name that `provider ls` shows
        name: String,
        /// The model to ask for a few words; the first it is configured with when absent
        #[arg(long)]
        model: Option<String>,
    },
}
