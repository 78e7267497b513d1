//! Tokens that were issued and revoked while the daemon died: what they open, and what they do not.

use lodge_proto::PAGE_MAX;
use lodge_proto::client::ClientError;
use serde_json::{Value, json};

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
        let opened: Result<Value, ClientError> = async {
            self.lodge.try_client_with(&token.value).await?.call("agent/get", json!({"agent": agent})).await
        }
        .await;
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
        let listed: Result<Value, ClientError> =
            client.call("token/list", json!({"all": true, "limit": PAGE_MAX})).await;
        let named: Vec<Value> = listed
            .ok()
            .and_then(|listed| listed["tokens"].as_array().cloned())
            .unwrap_or_default()
            .into_iter()
            .filter(|token| token["name"] == name)
            .collect();
        if !matches!(named.as_slice(), [one] if one["id"] == id) {
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
