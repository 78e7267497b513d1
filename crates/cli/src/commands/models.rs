//! Which model a new agent gets, and API keys of well-known providers in the environment.
//!
//! Owns: that choice. Never: prints a key.

use std::ffi::OsString;
use std::fmt;

use lodge_proto::{
    AddProvider, ListProviders, ProviderAddParams, ProviderListParams, ProviderTestParams, ProviderView,
    TestProvider,
};

use super::templates::ChosenModel;
use super::{CommandContext, can_ask, read_line, request_id};
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::render::one_line;
use crate::words::prompt_for;

/// Models that an error names.
const MODELS_IN_HINT: usize = 5;
/// Models that a question lists.
const MODELS_IN_QUESTION: usize = 30;
/// A version of a model has at least so many digits behind its name, as in `-2507`.
const DATE_CHARS: usize = 4;
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

/// What is known of the model of a new agent.
#[derive(Debug)]
pub(super) enum ModelOffer {
    /// One that is configured or that its provider lists; the scripted one if no provider can be called.
    One(ChosenModel),
    /// The provider lists these, and none that is known to be good for work with tools.
    Several { provider: String, models: Vec<String> },
    /// The provider did not list any. The likely model is `provider/model`.
    Unlisted { provider: String, likely: Option<String>, failure: CommandFailure },
}

/// Finds a model of the first provider that can be called. A model that is not configured is one that the provider lists.
pub(super) async fn find_model(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    providers: &[ProviderView],
) -> ModelOffer {
    let can_be_called = |provider: &&ProviderView| {
        let needs_key = provider.base_url.is_none() && provider.kind != OLLAMA_KIND;
        provider.problem.is_none() && (provider.api_key.is_some() || !needs_key)
    };
    let Some(provider) = providers.iter().find(can_be_called) else {
        return ModelOffer::One(ChosenModel::Scripted);
    };
    let name = &provider.name;
    if let Some(model) = provider.models.first() {
        return ModelOffer::One(real(name, model));
    }
    let preferred = KNOWN.iter().find(|known| known.name == provider.kind).and_then(|known| known.model);
    context.words.progress(&format!("asking `{name}` for its models"));
    let params = ProviderTestParams { name: name.clone(), model: None, request_id: None };
    match daemon.call::<TestProvider>(params).await {
        Ok(tested) => offer_of(name, preferred, tested.models),
        Err(failure) => {
            // Another server that speaks the vendor's protocol has models of its own.
            let likely = preferred.filter(|_| provider.base_url.is_none());
            let likely = likely.map(|model| format!("{name}/{model}"));
            ModelOffer::Unlisted { provider: name.clone(), likely, failure }
        }
    }
}

fn real(provider: &str, model: &str) -> ChosenModel {
    ChosenModel::Real(format!("{provider}/{model}"))
}

/// What a list of models offers: the preferred one, or its newest dated version.
fn offer_of(provider: &str, preferred: Option<&str>, models: Vec<String>) -> ModelOffer {
    let is_version = |model: &str, of: &str| {
        let date = model.strip_prefix(of).and_then(|rest| rest.strip_prefix('-'));
        date.is_some_and(|date| {
            date.len() >= DATE_CHARS && date.chars().all(|c| c.is_ascii_digit() || c == '-')
        })
    };
    let found = preferred.and_then(|preferred| {
        let exact = models.iter().find(|model| *model == preferred);
        exact.or_else(|| models.iter().filter(|model| is_version(model, preferred)).max())
    });
    match (found, models.as_slice()) {
        (Some(model), _) => ModelOffer::One(real(provider, model)),
        (None, [only]) => ModelOffer::One(real(provider, only)),
        (None, []) => {
            let failure = CommandFailure::refused(format!("the provider `{provider}` lists no models"));
            ModelOffer::Unlisted { provider: provider.to_owned(), likely: None, failure }
        }
        (None, [_, _, ..]) => ModelOffer::Several { provider: provider.to_owned(), models },
    }
}

/// The model that was found, or that a user at a terminal chooses.
pub(super) async fn take_model(
    context: &CommandContext,
    offer: ModelOffer,
) -> Result<ChosenModel, CommandFailure> {
    match offer {
        ModelOffer::One(model) => Ok(model),
        ModelOffer::Several { provider, models } if can_ask(&context.words) => {
            ask_model(&provider, &models).await
        }
        ModelOffer::Several { provider, models } => {
            let shown: Vec<String> =
                models.iter().take(MODELS_IN_HINT).map(|model| format!("{provider}/{model}")).collect();
            let more = if models.len() > MODELS_IN_HINT { ", …" } else { "" };
            Err(CommandFailure::refused(format!("the provider `{provider}` has several models"))
                .hint(format!("choose one with `--model`: {}{more}", shown.join(", "))))
        }
        ModelOffer::Unlisted { provider, failure, .. } => {
            Err(failure.and_hint(&format!("`--model {provider}/MODEL` names a model")))
        }
    }
}

async fn ask_model(provider: &str, models: &[String]) -> Result<ChosenModel, CommandFailure> {
    prompt_for(&format!("`{provider}` has these models:\n"));
    for (number, model) in models.iter().take(MODELS_IN_QUESTION).enumerate() {
        prompt_for(&format!("  {:2}  {}\n", number + 1, one_line(model)));
    }
    if let Some(more @ 1..) = models.len().checked_sub(MODELS_IN_QUESTION) {
        prompt_for(&format!("  and {more} more: `lodge provider test {provider}` lists all\n"));
    }
    loop {
        prompt_for("Which model? (a number or a name) ");
        let Some(line) = read_line().await? else {
            return Err(CommandFailure::usage("no model was chosen")
                .hint(format!("name one: `--model {provider}/MODEL`")));
        };
        let answer = line.trim();
        let by_number = answer.parse::<usize>().ok().and_then(|number| models.get(number.checked_sub(1)?));
        let name = answer.strip_prefix(provider).and_then(|rest| rest.strip_prefix('/')).unwrap_or(answer);
        match by_number.or_else(|| models.iter().find(|model| *model == name)) {
            Some(model) => return Ok(real(provider, model)),
            None if answer.is_empty() => {}
            None => prompt_for(&format!("`{answer}` is none of these. ")),
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

    #[test]
    fn a_model_is_taken_only_from_the_list_of_its_provider() {
        let offered = |preferred: Option<&str>, models: &[&str]| match offer_of(
            "work",
            preferred,
            models.iter().map(|model| (*model).to_owned()).collect(),
        ) {
            ModelOffer::One(model) => model.name().to_owned(),
            ModelOffer::Several { models, .. } => format!("{} models", models.len()),
            ModelOffer::Unlisted { .. } => "none".to_owned(),
        };
        let preferred = Some("gpt-5");
        assert_eq!(offered(preferred, &["dall-e", "gpt-5", "gpt-5-2026-01-01"]), "work/gpt-5");
        assert_eq!(
            offered(preferred, &["gpt-5-2025-08-07", "gpt-5-2026-01-01", "gpt-5-mini", "gpt-5-4"]),
            "work/gpt-5-2026-01-01"
        );
        assert_eq!(offered(preferred, &["gpt-5-mini", "gpt-5-nano"]), "2 models");
        assert_eq!(offered(preferred, &["qwen3:8b"]), "work/qwen3:8b");
        assert_eq!(offered(None, &["a", "b", "c"]), "3 models");
        assert_eq!(offered(preferred, &[]), "none");
    }
}
