//! Tokens that were issued and revoked while the daemon died: what they open, and what they do not.

use lodge_proto::client::ClientError;
use lodge_proto::{AgentRef, GetAgent, ListTokens, PAGE_MAX, TokenListParams, TokenView};

use super::changes::EDITOR;
use super::report::BrokenPromise;
use super::world::CrashWorld;
use crate::trouble::{Trouble, refused};

/// A token that was issued.
#[derive(Debug)]
pub struct IssuedToken {
    pub id: String,
    pub value: String,
    /// The one agent that it is for.
    pub agent: Option<usize>,
}

impl CrashWorld {
    pub async fn expect_open(&mut self, token: &IssuedToken) {
        let agent = &self.agents[token.agent.unwrap_or(EDITOR)].id;
        let named = AgentRef { agent: agent.clone(), request_id: None };
        let opened =
            async { self.lodge.try_client_with(&token.value).await?.call::<GetAgent>(&named).await }.await;
        if let Err(error) = opened {
            self.report.add(BrokenPromise::Lost, format!("the token {} opens nothing: {error:?}", token.id));
        }
    }

    pub async fn expect_closed(&mut self, token: &IssuedToken) {
        match self.lodge.try_client_with(&token.value).await {
            Err(ClientError::Handshake { status: Some(401), .. }) => {}
            other => {
                self.report
                    .add(BrokenPromise::Lost, format!("the token {} was revoked, and: {other:?}", token.id));
            }
        }
    }

    pub async fn expect_one_token(&mut self, id: &str, name: &str) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        let params = TokenListParams { all: true, limit: Some(PAGE_MAX), ..TokenListParams::default() };
        let listed = client.call::<ListTokens>(&params).await;
        let named: Vec<TokenView> = listed
            .map(|listed| listed.tokens)
            .unwrap_or_default()
            .into_iter()
            .filter(|token| token.name.as_deref() == Some(name))
            .collect();
        if !matches!(named.as_slice(), [one] if one.id == id) {
            self.report.add(BrokenPromise::Duplicated, format!("the token {id} is listed as {named:?}"));
        }
        Ok(())
    }

    /// Every token opens what it did, and every revoked one nothing.
    pub async fn check_tokens(&mut self) {
        for token in std::mem::take(&mut self.tokens) {
            self.expect_open(&token).await;
        }
        for token in std::mem::take(&mut self.revoked) {
            self.expect_closed(&token).await;
        }
    }
}
