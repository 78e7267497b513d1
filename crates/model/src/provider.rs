//! One provider, ready to be called: variables expanded, address and key checked.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderValue;

use crate::pause::RetryFor;
use crate::prices::{self, Price};
use crate::request::CallUsage;
use crate::secret::Secret;

/// The protocol a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    Openai,
    Anthropic,
    Gemini,
    Ollama,
    Script,
}

impl ProviderKind {
    pub const ALL: [Self; 5] = [Self::Openai, Self::Anthropic, Self::Gemini, Self::Ollama, Self::Script];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
            Self::Script => "script",
        }
    }

    /// The default URL.
    pub(crate) fn default_url(self) -> &'static str {
        match self {
            Self::Openai => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com",
            Self::Gemini => "https://generativelanguage.googleapis.com/v1beta",
            Self::Ollama => "http://127.0.0.1:11434",
            Self::Script => "file:///",
        }
    }

    /// The kind of that name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

const RETRY_FOR_DEFAULT: Duration = Duration::from_secs(10 * 60);

/// Time limits of one provider; an absent one is the context's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Option<Duration>,
    pub first_byte: Option<Duration>,
    pub idle: Option<Duration>,
}

/// What its owner says of a provider besides where it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ProviderSettings {
    pub(crate) timeouts: Timeouts,
    pub(crate) retry_for: Option<RetryFor>,
    /// By model.
    pub(crate) prices: BTreeMap<String, Price>,
    /// Tokens, by model.
    pub(crate) context_windows: BTreeMap<String, u64>,
}

#[derive(Clone, PartialEq)]
pub struct Provider {
    pub name: String,
    pub kind: ProviderKind,
    /// For `script` a file or directory, else an address. May come from a variable, so it is not printed.
    pub(crate) base_url: Option<String>,
    pub(crate) api_key: Option<Secret>,
    /// Empty: any.
    pub models: Vec<String>,
    pub timeouts: Timeouts,
    retry_for: Option<RetryFor>,
    prices: BTreeMap<String, Price>,
    context_windows: BTreeMap<String, u64>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("api_key", &self.api_key)
            .field("models", &self.models)
            .finish_non_exhaustive()
    }
}

/// Why a provider that is listed cannot be called. It concerns this one only; the others work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderProblem {
    #[error("`{key}` of provider `{provider}` names the variable `{variable}`, which is not set")]
    VariableUnset { provider: String, key: &'static str, variable: String },
    #[error("`{key}` of provider `{provider}` has a `${{` without a variable name and a `}}`")]
    BadVariable { provider: String, key: &'static str },
    #[error("`base-url` of provider `{provider}` is not an http or https address")]
    BadUrl { provider: String },
    #[error("`base-url` of provider `{provider}` has a user, a query or a fragment in it")]
    UrlWithExtras { provider: String },
    #[error("`api-key` of provider `{provider}` has characters that no header can hold")]
    BadKey { provider: String },
}

impl ProviderProblem {
    pub fn code(&self) -> &'static str {
        match self {
            Self::VariableUnset { .. } => "provider.variable_unset",
            Self::BadVariable { .. } => "provider.bad_variable",
            Self::BadUrl { .. } | Self::UrlWithExtras { .. } => "provider.bad_url",
            Self::BadKey { .. } => "provider.bad_key",
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::VariableUnset { variable, .. } => {
                Some(format!("set `{variable}` in the daemon's environment and restart it"))
            }
            Self::BadVariable { .. } => Some("write `${NAME}`".to_owned()),
            Self::BadUrl { .. } => Some("an example: https://api.openai.com/v1".to_owned()),
            Self::UrlWithExtras { .. } => Some("put the key under `api-key`".to_owned()),
            Self::BadKey { .. } => {
                Some("look for a line break or a space copied along with the key".to_owned())
            }
        }
    }
}

/// A provider as written, variables not expanded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProviderEntry<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: ProviderKind,
    pub(crate) base_url: Option<&'a str>,
    pub(crate) api_key: Option<&'a Secret>,
    pub(crate) models: &'a [String],
    pub(crate) settings: &'a ProviderSettings,
}

impl Provider {
    /// The key itself, for a person who asked to see it.
    pub fn reveal_key(&self) -> Option<&str> {
        self.api_key.as_ref().map(Secret::expose)
    }

    /// A provider that needs no file: for tests and for trying one out before it is added.
    pub fn new(
        name: &str,
        kind: ProviderKind,
        base_url: Option<&str>,
        api_key: Option<Secret>,
    ) -> Result<Self, ProviderProblem> {
        checked(Self {
            name: name.to_owned(),
            kind,
            base_url: base_url.map(str::to_owned),
            api_key,
            models: Vec::new(),
            timeouts: Timeouts::default(),
            retry_for: None,
            prices: BTreeMap::new(),
            context_windows: BTreeMap::new(),
        })
    }

    pub(crate) fn expand(
        written: ProviderEntry<'_>,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ProviderProblem> {
        let value = |key, text: &str| expand(written.name, key, text, lookup);
        let base_url = written.base_url.map(|url| value("base-url", url)).transpose()?;
        let api_key = written.api_key.map(|secret| value("api-key", secret.expose())).transpose()?;
        checked(Self {
            name: written.name.to_owned(),
            kind: written.kind,
            base_url,
            api_key: api_key.filter(|key| !key.is_empty()).map(Secret::new),
            models: written.models.to_vec(),
            timeouts: written.settings.timeouts,
            retry_for: written.settings.retry_for,
            prices: written.settings.prices.clone(),
            context_windows: written.settings.context_windows.clone(),
        })
    }

    /// The address to call. Only meaningful for kinds that are called over HTTP.
    pub(crate) fn url(&self) -> Url {
        let text = self.base_url.as_deref().unwrap_or(self.kind.default_url());
        // Both were parsed before: this one when the provider was made, the default by a test.
        Url::parse(text).unwrap_or_else(|_| unreachable!("a provider's address is checked when it is made"))
    }

    /// How long after the first failure a call is tried again.
    pub fn retry_for(&self) -> Duration {
        self.retry_for.map_or(RETRY_FOR_DEFAULT, |time| time.0)
    }

    /// It is called at its maker's own address, so that the maker's list of prices holds.
    pub(crate) fn is_official(&self) -> bool {
        let official = Url::parse(self.kind.default_url());
        official.is_ok_and(|official| official.host_str() == self.url().host_str())
    }

    /// What a call to `model` cost in millionths of a dollar, if its price is known.
    pub fn cost(&self, model: &str, usage: &CallUsage) -> Option<u64> {
        if let Some(price) = self.prices.get(model) {
            return Some(price.cost(usage));
        }
        match self.kind {
            // One's own machine sends no bill.
            ProviderKind::Ollama | ProviderKind::Script => Some(0),
            ProviderKind::Openai | ProviderKind::Anthropic | ProviderKind::Gemini if self.is_official() => {
                prices::find_model(model).map(|known| known.price(usage).cost(usage))
            }
            ProviderKind::Openai | ProviderKind::Anthropic | ProviderKind::Gemini => None,
        }
    }

    /// The context window that its owner wrote down for `model`.
    pub(crate) fn written_context_window(&self, model: &str) -> Option<u64> {
        self.context_windows.get(model).copied()
    }

    /// How many tokens `model` can read and write in one call, if that is known.
    pub fn context_window(&self, model: &str) -> Option<u64> {
        self.written_context_window(model)
            .or_else(|| prices::find_model(model).and_then(|known| known.context_window))
    }
}

fn checked(provider: Provider) -> Result<Provider, ProviderProblem> {
    let name = || provider.name.clone();
    if let (Some(text), true) = (&provider.base_url, provider.kind != ProviderKind::Script) {
        let url = Url::parse(text).map_err(|_| ProviderProblem::BadUrl { provider: name() })?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(ProviderProblem::BadUrl { provider: name() });
        }
        let has_user = !url.username().is_empty() || url.password().is_some();
        if has_user || url.query().is_some() || url.fragment().is_some() {
            return Err(ProviderProblem::UrlWithExtras { provider: name() });
        }
    }
    if provider.api_key.as_ref().is_some_and(|key| HeaderValue::from_str(key.expose()).is_err()) {
        return Err(ProviderProblem::BadKey { provider: name() });
    }
    Ok(provider)
}

/// Replaces each `${NAME}`. Any other `$` is literal.
fn expand(
    provider: &str,
    key: &'static str,
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ProviderProblem> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        let named = after.split_once('}').filter(|(name, _)| is_variable_name(name));
        let Some((name, tail)) = named else {
            return Err(ProviderProblem::BadVariable { provider: provider.to_owned(), key });
        };
        let value = lookup(name).ok_or_else(|| ProviderProblem::VariableUnset {
            provider: provider.to_owned(),
            key,
            variable: name.to_owned(),
        })?;
        expanded.push_str(&value);
        rest = tail;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

pub(crate) fn is_variable_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let lookup = |name: &str| (name == "A").then(|| "${B}".to_owned());
        let seen = expand("p", "api-key", text, &lookup);
        assert_eq!(seen.as_deref().map_err(|problem| problem.code()), expected, "{text}");
    }

    #[test]
    fn variables_are_replaced_once_and_other_dollars_stay() {
        check("plain $5 $A", Ok("plain $5 $A"));
        check("x${A}y${A}", Ok("x${B}y${B}"));
        check("${C}", Err("provider.variable_unset"));
        for bad in ["${", "${}", "${A", "${A B}", "${1}"] {
            check(bad, Err("provider.bad_variable"));
        }
    }

    #[test]
    fn addresses_and_keys_are_checked_when_a_provider_is_made() {
        assert!(ProviderKind::ALL.iter().all(|kind| Url::parse(kind.default_url()).is_ok()));
        let code = |url, key: Option<&str>| {
            Provider::new("p", ProviderKind::Openai, url, key.map(Secret::new))
                .map_err(|problem| problem.code())
                .err()
        };
        assert_eq!(code(Some("http://h:1/v1"), Some("k")), None);
        for bad in ["h:1/v1", "file:///x", "unix:/x", "", "http://u:p@h/", "http://h/?k=1", "http://h/#f"] {
            assert_eq!(code(Some(bad), None), Some("provider.bad_url"), "{bad}");
        }
        assert_eq!(code(None, Some("a\nb")), Some("provider.bad_key"));
    }
}
