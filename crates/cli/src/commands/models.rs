//! Which model a new agent gets, and API keys of well-known providers in the environment.
//!
//! Owns: that choice. Never: prints a key.

use std::ffi::OsString;
use std::fmt;

use lodge_proto::{
    AddProvider, ListProviders, ProviderAddParams, ProviderListParams, ProviderTestParams, ProviderView,
    TestProvider,
};

use super::request_id;
use super::templates::ChosenModel;
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;

/// Models that are named to a user who has to choose.
const MODELS_SHOWN: usize = 5;
const SCRIPT_KIND: &str = "script";
const OLLAMA_KIND: &str = "ollama";

/// A provider that many people have a key for.
struct KnownProvider {
    /// Also its kind.
    name: &'static str,
    /// The first that is set counts.
    variables: &'static [&'static str],
    /// A model that is good for work with tools.
    model: Option<&'static str>,
}

const KNOWN: [KnownProvider; 4] = [
    KnownProvider { name: "anthropic", variables: &["ANTHROPIC_API_KEY"], model: Some("claude-sonnet-5") },
    KnownProvider { name: "openai", variables: &["OPENAI_API_KEY"], model: Some("gpt-5") },
    KnownProvider {
        name: "gemini",
        variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        model: Some("gemini-2.5-pro"),
    },
    KnownProvider { name: OLLAMA_KIND, variables: &["OLLAMA_HOST"], model: None },
];

/// A provider that the environment has the access to.
pub(super) struct DetectedProvider {
    pub name: &'static str,
    pub variable: &'static str,
    value: String,
    model: Option<&'static str>,
}

/// Without the key.
impl fmt::Debug for DetectedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetectedProvider")
            .field("name", &self.name)
            .field("variable", &self.variable)
            .finish()
    }
}

/// The providers that the environment knows, in the order in which one is chosen.
pub(super) fn detect(variable: impl Fn(&str) -> Option<OsString>) -> Vec<DetectedProvider> {
    let value_of = |name: &str| {
        let value = variable(name)?.into_string().ok()?.trim().to_owned();
        (!value.is_empty()).then_some(value)
    };
    let detected = |known: &KnownProvider| {
        let found = known.variables.iter().find_map(|variable| Some((*variable, value_of(variable)?)));
        let (variable, value) = found?;
        Some(DetectedProvider { name: known.name, variable, value, model: known.model })
    };
    KNOWN.iter().filter_map(detected).collect()
}

impl DetectedProvider {
    /// The command that stores it. The key does not appear in it.
    pub(super) fn command(&self) -> String {
        let DetectedProvider { name, variable, .. } = self;
        if self.is_address() {
            return format!("lodge provider add {name} --kind {name} --base-url {}", self.base_url());
        }
        format!("printenv {variable} | lodge provider add {name} --kind {name} --api-key -")
    }

    pub(super) async fn store(&self, daemon: &mut DaemonClient<'_>) -> Result<(), CommandFailure> {
        let is_address = self.is_address();
        let params = ProviderAddParams {
            name: self.name.to_owned(),
            kind: self.name.to_owned(),
            base_url: is_address.then(|| self.base_url()),
            api_key: (!is_address).then(|| self.value.clone()),
            models: Vec::new(),
            retry_for: None,
            request_id: Some(request_id()?),
        };
        daemon.call::<AddProvider>(params).await.map(drop)
    }

    /// The model that an agent gets if the provider is stored later.
    pub(super) fn model(&self) -> Option<ChosenModel> {
        self.model.map(|model| ChosenModel::Real(format!("{}/{model}", self.name)))
    }

    /// Whether the variable has the address of a server, which needs no key.
    fn is_address(&self) -> bool {
        self.name == OLLAMA_KIND
    }

    /// `OLLAMA_HOST` may have neither a scheme nor a port, and may be what a server listens on.
    fn base_url(&self) -> String {
        let (scheme, address) = self.value.split_once("://").unwrap_or(("http", &self.value));
        let address = address.trim_end_matches('/').replace("0.0.0.0", "127.0.0.1");
        let port = if address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            ""
        } else {
            ":11434"
        };
        format!("{scheme}://{address}{port}")
    }
}

/// The providers that are configured, but for the scripted ones.
pub(super) async fn configured(daemon: &mut DaemonClient<'_>) -> Result<Vec<ProviderView>, CommandFailure> {
    let list = daemon.call::<ListProviders>(ProviderListParams { reveal: false }).await?;
    Ok(list.providers.into_iter().filter(|provider| provider.kind != SCRIPT_KIND).collect())
}

/// A model of the first provider that can be called; a scripted model if there is none.
pub(super) async fn choose(
    daemon: &mut DaemonClient<'_>,
    providers: &[ProviderView],
) -> Result<ChosenModel, CommandFailure> {
    let can_be_called = |provider: &&ProviderView| {
        let needs_key = provider.base_url.is_none() && provider.kind != OLLAMA_KIND;
        provider.problem.is_none() && (provider.api_key.is_some() || !needs_key)
    };
    let Some(provider) = providers.iter().find(can_be_called) else { return Ok(ChosenModel::Scripted) };
    let name = &provider.name;
    let real = |model: &str| Ok(ChosenModel::Real(format!("{name}/{model}")));
    if let Some(model) = provider.models.first() {
        return real(model);
    }
    let known = KNOWN.iter().find(|known| known.name == provider.kind && provider.base_url.is_none());
    if let Some(model) = known.and_then(|known| known.model) {
        return real(model);
    }
    // Only the server knows which models it has.
    let params = ProviderTestParams { name: name.clone(), model: None, request_id: None };
    let models = daemon.call::<TestProvider>(params).await?.models;
    match models.as_slice() {
        [only] => real(only),
        [] => Err(CommandFailure::refused(format!("the provider `{name}` lists no models"))
            .hint(format!("name one: `--model {name}/MODEL`"))),
        several => {
            let shown: Vec<String> =
                several.iter().take(MODELS_SHOWN).map(|model| format!("{name}/{model}")).collect();
            let more = if several.len() > MODELS_SHOWN { ", …" } else { "" };
            Err(CommandFailure::refused(format!("the provider `{name}` has several models"))
                .hint(format!("choose one with `--model`: {}{more}", shown.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Vec<DetectedProvider> {
        detect(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn keys_are_found_by_their_variables_and_never_shown() {
        let all =
            found(&[("OPENAI_API_KEY", " sk-1 "), ("GOOGLE_API_KEY", "g-2"), ("ANTHROPIC_API_KEY", " ")]);
        let names: Vec<(&str, &str)> = all.iter().map(|one| (one.name, one.variable)).collect();
        assert_eq!(names, [("openai", "OPENAI_API_KEY"), ("gemini", "GOOGLE_API_KEY")]);
        assert_eq!(
            all[0].command(),
            "printenv OPENAI_API_KEY | lodge provider add openai --kind openai --api-key -"
        );
        assert!(!format!("{all:?}").contains("sk-1"));
        assert_eq!(all[0].model(), Some(ChosenModel::Real("openai/gpt-5".to_owned())));
    }

    #[test]
    fn an_address_of_ollama_becomes_a_url() {
        for (value, url) in [
            ("127.0.0.1:11434", "http://127.0.0.1:11434"),
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("https://box.lan:443/", "https://box.lan:443"),
        ] {
            let all = found(&[("OLLAMA_HOST", value)]);
            assert_eq!(all[0].command(), format!("lodge provider add ollama --kind ollama --base-url {url}"));
        }
    }
}
