//! `/v1/proof`: what a client asks before it sends its token (see `lodge_proto::proof`). It needs no token.

use std::sync::Arc;

use axum::extract::{ConnectInfo, Path, State};
use axum::response::{IntoResponse, Response as HttpResponse};
use lodge_core::TokenId;
use lodge_core::token::TokenStatus;
use lodge_proto::ErrorBody;
use lodge_proto::proof::{self, Proof};
use serde_json::Value;

use super::Api;
use super::connections::Connection;
use super::http::{self, KeepOpen};
use super::methods::internal;
use crate::auth;
use crate::shell::now;

pub(super) async fn prove(
    State(api): State<Arc<Api>>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    Path((id, nonce)): Path<(String, String)>,
) -> HttpResponse {
    match proof_for(&api, &connection, &id, &nonce).await {
        Ok(proof) => {
            let mut answer = axum::Json(proof).into_response();
            // The token is sent on this connection, and on no other.
            if connection.may_stay_for_proof() {
                answer.extensions_mut().insert(KeepOpen);
            }
            answer
        }
        Err(error) => http::failed(Value::Null, error),
    }
}

async fn proof_for(api: &Api, connection: &Connection, id: &str, nonce: &str) -> Result<Proof, ErrorBody> {
    let Some(addr) = connection.local() else {
        return Err(ErrorBody::new("method.not_found", "proofs are for TCP")
            .hint("on a Unix socket, check the credentials of the peer"));
    };
    let Some(nonce) = proof::nonce(nonce) else {
        let wanted = format!("send {} bytes in hex", proof::NONCE_LEN);
        return Err(ErrorBody::new("request.invalid", "the nonce is malformed").hint(wanted));
    };
    let id: TokenId = id.parse().map_err(|_| auth::not_ours())?;
    let row = api
        .shell
        .reader
        .read_few(move |store| store.token(&id))
        .await
        .map_err(internal)?
        .ok_or_else(auth::not_ours)?;
    match row.standing(now()) {
        TokenStatus::Live => {}
        TokenStatus::Expired => return Err(auth::expired()),
        TokenStatus::Revoked => return Err(auth::revoked()),
    }
    let token = api.gate.value(&row).map_err(|error| ErrorBody::new("daemon.internal", error.to_string()))?;
    Ok(Proof::of(&token, &nonce, api.shell.epoch, addr))
}
