//! Providers: a file of the operator's, changed by one call at a time.

use std::sync::Arc;

use lodge_image::agentfile::nearest;
use lodge_model::{BadRetryFor, NewProvider, ProviderKind, RetryFor, Secret};
use lodge_proto::{
    AddProvider, ApiMethod, Done, ErrorBody, ListProviders, ProviderAddParams, ProviderList,
    ProviderListParams, ProviderRef, ProviderTestParams, ProviderTested, ProviderView, RemoveProvider,
    TestProvider,
};
use serde_json::Value;

use super::methods::{Reply, keep, known_answer, reply};
use super::params;
use crate::auth::ApiCaller;
use crate::chain;
use crate::room::DiskNeed;
use crate::shell::{Shell, now};
use crate::view;
use lodge_engine::{Observation, RequestKey};

pub(super) async fn call(
    shell: &Arc<Shell>,
    who: &ApiCaller,
    method: &str,
    given: Value,
    key: Option<RequestKey>,
) -> Reply {
    match method {
        AddProvider::NAME => {
            let new = params::<AddProvider>(given.clone())?;
            once::<AddProvider>(shell, who, &given, key, provider_add(shell, new)).await
        }
        ListProviders::NAME => reply::<ListProviders>(provider_list(shell, &params::<ListProviders>(given)?)),
        RemoveProvider::NAME => {
            let named = params::<RemoveProvider>(given.clone())?;
            once::<RemoveProvider>(shell, who, &given, key, provider_remove(shell, named)).await
        }
        TestProvider::NAME => {
            reply::<TestProvider>(provider_test(shell, &params::<TestProvider>(given)?).await)
        }
        other => Err(ErrorBody::new("method.not_found", format!("there is no method `{other}`"))),
    }
}

/// Makes a change to a file, one at a time, and keeps its answer with the request's id.
async fn once<M: ApiMethod>(
    shell: &Arc<Shell>,
    who: &ApiCaller,
    given: &Value,
    key: Option<RequestKey>,
    change: impl Future<Output = Result<M::Reply, ErrorBody>>,
) -> Reply {
    let _alone = shell.file_changes.lock().await;
    // The same request may have been at work while this one waited.
    let (who, given) = (who.clone(), given.clone());
    if let Some(known) = shell.read_few(move |at| known_answer(at, &who, M::NAME, &given)).await? {
        return Ok(known);
    }
    shell.room.admit(DiskNeed::Room, now())?;
    Ok(keep(shell, key, view::text(&change.await?)).await?)
}

async fn provider_add(shell: &Arc<Shell>, given: ProviderAddParams) -> Result<ProviderView, ErrorBody> {
    let kind = ProviderKind::named(&given.kind).ok_or_else(|| {
        ErrorBody::new("provider.invalid", format!("`{}` is not a kind of provider", given.kind))
            .hint("kinds are openai, anthropic, gemini, ollama and script")
    })?;
    let retry_for = given.retry_for.as_deref().map(retry_for).transpose()?;
    let new = NewProvider {
        name: given.name.clone(),
        kind,
        base_url: given.base_url,
        api_key: given.api_key.map(Secret::new),
        models: given.models,
        retry_for,
    };
    blocking(shell, move |shell| shell.providers().add(&new).map_err(|error| provider_error(&error))).await?;
    shell.report(Observation::ProvidersChanged).await;
    let all = providers(shell, false)?;
    let added = all.into_iter().find(|provider| provider.name == given.name);
    added.ok_or_else(|| ErrorBody::new("daemon.internal", "the provider is not in the file"))
}

fn retry_for(given: &str) -> Result<RetryFor, ErrorBody> {
    given.parse().map_err(|why: BadRetryFor| {
        ErrorBody::new("provider.invalid", format!("`{given}` is no value of `retry-for`"))
            .hint(why.to_string())
    })
}

fn provider_list(shell: &Shell, given: &ProviderListParams) -> Result<ProviderList, ErrorBody> {
    let error = shell.providers().last_error();
    let hint = error.as_ref().and_then(|error| error.hint());
    let error = error.map(|error| error.to_string());
    Ok(ProviderList { providers: providers(shell, given.reveal)?, error, hint })
}

fn providers(shell: &Shell, reveal: bool) -> Result<Vec<ProviderView>, ErrorBody> {
    let list = shell.providers().list().map_err(|error| provider_error(&error))?;
    let shown = list.into_iter().map(|provider| {
        let revealed = reveal.then(|| shell.providers().get(&provider.name).ok()).flatten();
        let key = revealed.and_then(|provider| provider.reveal_key().map(str::to_owned)).or(provider.key);
        ProviderView {
            name: provider.name,
            kind: provider.kind.as_str().to_owned(),
            base_url: provider.base_url,
            api_key: key,
            models: provider.models,
            retry_for: provider.retry_for.map(|time| time.to_string()),
            builtin: provider.implicit,
            problem: provider.problem.map(|problem| problem.to_string()),
        }
    });
    Ok(shown.collect())
}

async fn provider_remove(shell: &Arc<Shell>, given: ProviderRef) -> Result<Done, ErrorBody> {
    blocking(shell, move |shell| {
        shell.providers().remove(&given.name).map_err(|error| provider_error(&error))
    })
    .await?;
    Ok(Done { done: true })
}

async fn provider_test(shell: &Shell, given: &ProviderTestParams) -> Result<ProviderTested, ErrorBody> {
    let provider = shell.providers().get(&given.name).map_err(|error| {
        let body = provider_error(&error);
        // The provider may be in the file, which is not in effect.
        match (error, shell.providers().last_error()) {
            (lodge_model::ProvidersError::NotFound { .. }, Some(broken)) => {
                let body = body.because(format!("providers.yaml is not in effect: {broken}"));
                broken.hint().map_or(body.clone(), |hint| body.hint(hint))
            }
            (_, Some(_) | None) => body,
        }
    })?;
    match lodge_model::test(&provider, given.model.as_deref(), shell.calls()).await {
        Ok(tested) => Ok(ProviderTested {
            ok: true,
            ms: u64::try_from(tested.latency.as_millis()).unwrap_or(u64::MAX),
            models: tested.models,
            answered: tested.answered,
        }),
        Err(error) => {
            let mut body = ErrorBody::new(error.code(), error.to_string());
            body.data.cause = std::error::Error::source(&error).map(chain);
            body.data.hint = error.hint();
            Err(body)
        }
    }
}

/// Runs file work off the runtime's workers.
async fn blocking<T: Send + 'static>(
    shell: &Arc<Shell>,
    work: impl FnOnce(&Shell) -> Result<T, ErrorBody> + Send + 'static,
) -> Result<T, ErrorBody> {
    let shell = shell.clone();
    let done = tokio::task::spawn_blocking(move || work(&shell)).await;
    done.unwrap_or_else(|error| Err(ErrorBody::new("daemon.internal", error.to_string())))
}

fn provider_error(error: &lodge_model::ProvidersError) -> ErrorBody {
    if let lodge_model::ProvidersError::NotFound { name, known } = error {
        let hint = "`lodge provider ls` lists all providers, `lodge provider add` adds one";
        let near = nearest(name, known.iter().map(String::as_str));
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        return ErrorBody::new(error.code(), format!("no provider `{name}`")).hint(format!("{near}{hint}"));
    }
    let mut body = ErrorBody::new(error.code(), error.to_string());
    body.data.cause = std::error::Error::source(error).map(chain);
    body.data.hint = error.hint();
    body
}
