//! `token issue`, `ls` and `revoke`.

use lodge_proto::{
    IssueToken, ListTokens, RevokeToken, TokenIssueParams, TokenListParams, TokenRef, TokenView,
};

use super::names::AgentNames;
use super::results::ResultList;
use super::{CommandContext, request_id};
use crate::args::TokenCommand;
use crate::failure::CommandFailure;
use crate::render::{ago, now_s, or_dash, until};
use crate::words::put;

pub(super) async fn token(context: &CommandContext, command: TokenCommand) -> Result<(), CommandFailure> {
    match command {
        TokenCommand::Issue { agent, name, expires } => {
            let request_id = Some(request_id()?);
            issue(context, TokenIssueParams { agent, name, expires_in_s: expires, request_id }).await
        }
        TokenCommand::Ls { all } => list(context, all).await,
        TokenCommand::Revoke { tokens } => revoke(context, tokens).await,
    }
}

async fn issue(context: &CommandContext, params: TokenIssueParams) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let issued = daemon.call::<IssueToken>(params).await?;
    if context.words.json {
        return context.words.json(&issued);
    }
    let TokenView { id, expires_at, .. } = &issued.view;
    context.words.print_note(&format!("{id}, valid until {expires_at}; it is not shown again"));
    put(&format!("{}\n", issued.token))
}

async fn list(context: &CommandContext, all: bool) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut tokens: Vec<TokenView> = Vec::new();
    let mut after = None;
    loop {
        let params = TokenListParams { all, after, limit: None };
        let page = daemon.call::<ListTokens>(params).await?;
        tokens.extend(page.tokens);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&tokens);
    }
    if context.words.quiet {
        return put(&tokens.iter().map(|token| format!("{}\n", token.id)).collect::<String>());
    }
    let (now, mut names) = (now_s(), AgentNames::default());
    let mut rows: Vec<Vec<String>> = Vec::new();
    for token in &tokens {
        let whom = match &token.agent {
            Some(agent) => names.of(&mut daemon, agent).await?,
            None => "operator".to_owned(),
        };
        let (issued, expires) = (ago(&token.issued_at, now), until(&token.expires_at, now));
        rows.push(vec![
            token.id.clone(),
            or_dash(token.name.as_deref()),
            whom,
            token.status.clone(),
            issued,
            expires,
        ]);
    }
    context.put_table(&["ID", "NAME", "FOR", "STATUS", "ISSUED", "EXPIRES"], &rows)
}

async fn revoke(context: &CommandContext, ids: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, ids.len());
    for token in ids {
        let params = TokenRef { token, request_id: Some(request_id()?) };
        match daemon.call::<RevokeToken>(params).await {
            Ok(view) => batch.done(&view, || format!("{}\n", view.id))?,
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}
