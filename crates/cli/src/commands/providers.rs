//! `provider add`, `ls`, `rm` and `test`.

use std::io::{self, IsTerminal};

use lodge_proto::{
    AddProvider, ListProviders, ProviderAddParams, ProviderListParams, ProviderRef, ProviderTestParams,
    ProviderView, RemoveProvider, TestProvider,
};

use super::results::ResultList;
use super::stdin::read_stdin;
use super::{CommandContext, request_id};
use crate::args::ProviderCommand;
use crate::failure::CommandFailure;
use crate::render::{one_line, or_dash};
use crate::words::{HiddenInput, print_message, prompt_for, put};

pub(super) async fn provider(
    context: &CommandContext,
    command: ProviderCommand,
) -> Result<(), CommandFailure> {
    match command {
        ProviderCommand::Add { name, kind, base_url, api_key, models, retry_for } => {
            let api_key = match api_key.as_deref() {
                Some("-") if io::stdin().is_terminal() => Some(key_from_terminal(&name)?),
                Some("-") => Some(key_from_stdin().await?),
                _ => api_key,
            };
            let kind = kind.name().to_owned();
            let models = models.into_iter().filter(|model| !model.is_empty()).collect();
            let request_id = Some(request_id()?);
            let new = ProviderAddParams { name, kind, base_url, api_key, models, retry_for, request_id };
            add(context, new).await
        }
        ProviderCommand::Ls { reveal } => list(context, reveal).await,
        ProviderCommand::Rm { names } => remove(context, names).await,
        ProviderCommand::Test { name, model } => test(context, name, model).await,
    }
}

/// Asks for a key without showing it.
fn key_from_terminal(name: &str) -> Result<String, CommandFailure> {
    prompt_for(&format!("API key for {name}: "));
    let hidden = HiddenInput::begin();
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    drop(hidden);
    print_message("");
    read.map_err(|cause| CommandFailure::refused("could not read the key").because(cause))?;
    match line.trim() {
        "" => Err(CommandFailure::usage("there is no key").hint("paste it and press Enter; it is not shown")),
        key => Ok(key.to_owned()),
    }
}

async fn key_from_stdin() -> Result<String, CommandFailure> {
    let text = read_stdin("the key").await?;
    match text.trim() {
        "" => Err(CommandFailure::usage("there is no key on stdin").hint(
            "pipe it in, as in `printf %s \"$KEY\" | lodge provider add NAME --kind KIND --api-key -`; at a terminal, `-` \
             asks for it",
        )),
        key => Ok(key.to_owned()),
    }
}

async fn add(context: &CommandContext, params: ProviderAddParams) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let added = daemon.call::<AddProvider>(params).await?;
    if context.words.json { context.words.json(&added) } else { put(&format!("{}\n", added.name)) }
}

async fn list(context: &CommandContext, reveal: bool) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let list = daemon.call::<ListProviders>(ProviderListParams { reveal }).await?;
    if let Some(error) = &list.error {
        print_message(&format!("warning: providers.yaml is not in effect: {error}"));
        if let Some(hint) = &list.hint {
            print_message(&format!("hint: {hint}"));
        }
    }
    if context.words.json {
        return context.words.json(&list.providers);
    }
    if context.words.quiet {
        return put(&list
            .providers
            .iter()
            .map(|provider| format!("{}\n", provider.name))
            .collect::<String>());
    }
    // Most providers use the default: then the column would be empty.
    let has_retry_for = list.providers.iter().any(|provider| provider.retry_for.is_some());
    let row = |provider: &ProviderView| {
        let models = if provider.models.is_empty() { "any".to_owned() } else { provider.models.join(",") };
        let mut row = vec![
            provider.name.clone(),
            provider.kind.clone(),
            or_dash(provider.base_url.as_deref()),
            or_dash(provider.api_key.as_deref()),
            models,
        ];
        if has_retry_for {
            row.push(or_dash(provider.retry_for.as_deref()));
        }
        row.push(or_dash(provider.problem.as_deref()));
        row
    };
    let rows: Vec<Vec<String>> = list.providers.iter().map(row).collect();
    let mut header = vec!["NAME", "KIND", "BASE URL", "KEY", "MODELS"];
    if has_retry_for {
        header.push("RETRY FOR");
    }
    header.push("PROBLEM");
    context.put_table(&header, &rows)
}

async fn remove(context: &CommandContext, names: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, names.len());
    for name in names {
        let params = ProviderRef { name: name.clone(), request_id: Some(request_id()?) };
        match daemon.call::<RemoveProvider>(params).await {
            Ok(_) => {
                batch.done(&serde_json::json!({ "name": name, "removed": true }), || format!("{name}\n"))?
            }
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

async fn test(context: &CommandContext, name: String, model: Option<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let params = ProviderTestParams { name: name.clone(), model, request_id: None };
    let tested = daemon.call::<TestProvider>(params).await?;
    if context.words.json {
        return context.words.json(&tested);
    }
    match &tested.answered {
        Some(model) => context.words.print_note(&format!("{model} of {name} answered in {} ms", tested.ms)),
        None => {
            context.words.print_note(&format!(
                "{name} listed its models in {} ms; none of them was called",
                tested.ms
            ));
            context.words.print_note(&format!("to try one: lodge provider test {name} --model MODEL"));
        }
    }
    put(&tested.models.iter().map(|model| format!("{}\n", one_line(model))).collect::<String>())
}
