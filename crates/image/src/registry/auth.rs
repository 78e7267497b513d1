//! Authentication at registries: logins and tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use reqwest::{Method, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::time::Instant;

use super::challenge::{self, AuthChallenge};
use super::error::{AttemptError, RegistryError};
use super::http::{OutgoingBody, RegistryRequest, RepositoryClient, SentBytes, plain};
use super::net::{REDIRECTS_MAX, RedirectPolicy, RequestReach, same_origin, shown_host};
use super::retry::retry_advice;
use super::{RegistryClient, RegistryLogin};

/// Bytes of the answer with a token.
const TOKEN_MAX: u64 = 64 << 10;
/// The default lifetime of a token in the protocol.
const TOKEN_GOOD: Duration = Duration::from_secs(60);
/// However long it says that it is good.
const TOKEN_GOOD_MAX: Duration = Duration::from_secs(3_600);
const PASSES_MAX: usize = 64;
const CLIENT: &str = "lodge";
/// Bytes of what a challenge may have us repeat.
const REPEATED_MAX: usize = 1_024;

/// What we want to do with a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RegistryRight {
    Pull,
    Push,
}

/// What lets us in, for a while.
#[derive(Default)]
pub(super) struct RegistryTokens {
    held: Mutex<BTreeMap<TokenKey, RegistryToken>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TokenKey {
    host: String,
    repository: String,
    right: RegistryRight,
}

struct RegistryToken {
    /// Of `Authorization`.
    value: HeaderValue,
    until: Instant,
}

impl fmt::Debug for RegistryTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passes").finish_non_exhaustive()
    }
}

impl TokenKey {
    fn of(home: &RepositoryClient, right: RegistryRight) -> TokenKey {
        TokenKey { host: home.host.clone(), repository: home.repository.clone(), right }
    }
}

impl RegistryTokens {
    pub(super) fn lock_pins(&self, home: &RepositoryClient, right: RegistryRight) -> Option<HeaderValue> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let pass = held.get(&TokenKey::of(home, right))?;
        (Instant::now() < pass.until).then(|| pass.value.clone())
    }

    fn keep(&self, home: &RepositoryClient, right: RegistryRight, pass: RegistryToken) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, pass| Instant::now() < pass.until);
        if held.len() >= PASSES_MAX {
            held.pop_first();
        }
        held.insert(TokenKey::of(home, right), pass);
    }

    pub(super) fn forget(&self, home: &RepositoryClient, right: RegistryRight) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&TokenKey::of(home, right));
    }
}

impl RegistryClient {
    /// Gets what lets us in, as an answer that turned us away says.
    pub(super) async fn obtain(
        &self,
        home: &RepositoryClient,
        right: RegistryRight,
        turned_away: &Response,
    ) -> Result<HeaderValue, AttemptError> {
        self.inner.passes.forget(home, right);
        let values = turned_away.headers().get_all(WWW_AUTHENTICATE);
        let challenges = challenge::read(values.iter().map(HeaderValue::as_bytes));
        let login = self.login(&home.host).await?;
        let bearer = challenges.iter().find(|challenge| matches!(challenge, AuthChallenge::Bearer { .. }));
        let pass = match bearer.or(challenges.first()) {
            Some(AuthChallenge::Bearer { realm, service, scope }) => {
                let realm =
                    self.realm(home, turned_away, realm, service.as_deref(), scope.as_deref(), right)?;
                self.token(home, &realm, login.as_ref()).await?
            }
            Some(AuthChallenge::Basic) => self.basic(home, login.as_ref())?,
            None => return Err(denied(home, "it wants a login, and not one of a kind that is known here")),
        };
        let value = pass.value.clone();
        self.inner.passes.keep(home, right, pass);
        Ok(value)
    }

    async fn login(&self, host: &str) -> Result<Option<RegistryLogin>, AttemptError> {
        let (logins, asked) = (Arc::clone(&self.inner.logins), host.to_owned());
        let found = tokio::task::spawn_blocking(move || logins.login(&asked)).await;
        let failed = |why: String| RegistryError::Login { host: host.to_owned(), why };
        let found = found.map_err(|_| failed("the lookup was interrupted".to_owned()))?;
        Ok(found.map_err(failed)?)
    }

    fn basic(
        &self,
        home: &RepositoryClient,
        login: Option<&RegistryLogin>,
    ) -> Result<RegistryToken, AttemptError> {
        match login {
            None => Err(denied(home, NO_LOGIN)),
            Some(login) if login.is_token => {
                Err(denied(home, "it wants a password, and the login is an identity token"))
            }
            Some(login) => {
                let value = self.basic_value(home, login)?;
                Ok(RegistryToken { value, until: Instant::now() + TOKEN_GOOD })
            }
        }
    }

    fn basic_value(
        &self,
        home: &RepositoryClient,
        login: &RegistryLogin,
    ) -> Result<HeaderValue, AttemptError> {
        let unusable = || {
            let why = "it has letters that cannot be sent".to_owned();
            RegistryError::Login { host: home.host.clone(), why }
        };
        let client = self.inner.clients.get(&home.base, RequestReach::Anywhere).map_err(|_| unusable())?;
        let request = client.get(home.base.clone()).basic_auth(&login.user, Some(&login.secret)).build();
        let headers = request.map_err(|_| unusable())?.headers().get(AUTHORIZATION).cloned();
        Ok(headers.ok_or_else(unusable)?)
    }

    /// The address of the token service, checked: a login goes only to the registry itself, or over an encrypted
    /// connection.
    fn realm(
        &self,
        home: &RepositoryClient,
        turned_away: &Response,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
        right: RegistryRight,
    ) -> Result<TokenRealm, AttemptError> {
        let reach = self.inner.clients.reach_from(turned_away);
        let bad = |why: String| AttemptError::contradiction(&home.host, format!("for a token, {why}"));
        let url = Url::parse(realm).map_err(|_| bad("it redirects to an invalid address".to_owned()))?;
        let hop = self.inner.clients.hop(&home.base, url.as_str(), RedirectPolicy::Elsewhere, reach);
        let url = hop.map_err(|why| bad(why.to_string()))?;
        if [service, scope].iter().flatten().any(|text| text.len() > REPEATED_MAX) {
            return Err(bad("it has us say too much".to_owned()));
        }
        let actions = match right {
            RegistryRight::Pull => "pull",
            RegistryRight::Push => "pull,push",
        };
        let own = || format!("repository:{}:{actions}", home.repository);
        let reach = if same_origin(&url, &home.base) { RequestReach::Anywhere } else { reach };
        let scope = scope.map_or_else(own, str::to_owned);
        Ok(TokenRealm { url, reach, service: service.map(str::to_owned), scope })
    }

    async fn token(
        &self,
        home: &RepositoryClient,
        realm: &TokenRealm,
        login: Option<&RegistryLogin>,
    ) -> Result<RegistryToken, AttemptError> {
        let answer = match login {
            Some(login) if login.is_token => self.exchange(realm, login).await?,
            Some(login) => self.ask_realm(realm, Some(self.basic_value(home, login)?)).await?,
            None => self.ask_realm(realm, None).await?,
        };
        let status = answer.status();
        let again = retry_advice(answer.headers());
        let host = shown_host(&realm.url);
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let refused = |login: &RegistryLogin| {
                    format!("it does not accept the login of `{}`", plain(&login.user))
                };
                return Err(denied(home, login.map_or_else(|| NO_LOGIN.to_owned(), refused)));
            }
            other if other.is_success() => {}
            other => {
                let why = "it gives no token".to_owned();
                let error = RegistryError::Refused { host, status: other.as_u16(), why };
                let passing = other.is_server_error() || other == StatusCode::TOO_MANY_REQUESTS;
                return Err(if passing { AttemptError { error, again } } else { error.into() });
            }
        }
        let body = self.read_bounded(answer, TOKEN_MAX).await?;
        body.and_then(|body| read_token(&body))
            .ok_or_else(|| AttemptError::contradiction(&host, "what it gives for a token is none"))
    }

    /// Asks for a token, with a login or without.
    async fn ask_realm(
        &self,
        realm: &TokenRealm,
        login: Option<HeaderValue>,
    ) -> Result<Response, AttemptError> {
        let mut url = realm.url.clone();
        realm.write_query(&mut url);
        for _ in 0..=REDIRECTS_MAX {
            let mut headers = HeaderMap::new();
            if let Some(login) = &login {
                headers.insert(AUTHORIZATION, login.clone());
            }
            let ask = RegistryRequest::new(Method::GET, url.clone(), RegistryRight::Pull, "a token");
            let answer = self.send(&ask, &url, realm.reach, headers).await?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let hop = self.inner.clients.hop(
                &url,
                location.unwrap_or("//"),
                RedirectPolicy::SameOrigin,
                realm.reach,
            );
            url = hop.map_err(|why| AttemptError::contradiction(&shown_host(&url), why.to_string()))?;
        }
        Err(AttemptError::contradiction(
            &shown_host(&url),
            format!("it redirected us more than {REDIRECTS_MAX} times"),
        ))
    }

    /// Exchanges an identity token for one that lets us in.
    async fn exchange(&self, realm: &TokenRealm, login: &RegistryLogin) -> Result<Response, AttemptError> {
        let mut form = realm.url.clone();
        form.set_query(None);
        realm.write_query(&mut form);
        form.query_pairs_mut()
            .append_pair("grant_type", "refresh_token")
            .append_pair("client_id", CLIENT)
            .append_pair("refresh_token", &login.secret);
        let form = form.query().unwrap_or_default().to_owned();
        let body = || OutgoingBody { body: form.clone().into(), pulse: SentBytes::default() };
        let mut ask = RegistryRequest::new(Method::POST, realm.url.clone(), RegistryRight::Pull, "a token");
        ask.body = Some(&body);
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        self.send(&ask, &realm.url, realm.reach, HeaderMap::from_iter([(CONTENT_TYPE, kind)])).await
    }
}

const NO_LOGIN: &str = "it wants a login, and there is none for it";

/// The address of the token service, and the scope of the token.
struct TokenRealm {
    url: Url,
    reach: RequestReach,
    service: Option<String>,
    scope: String,
}

impl TokenRealm {
    fn write_query(&self, url: &mut Url) {
        let mut query = url.query_pairs_mut();
        if let Some(service) = &self.service {
            query.append_pair("service", service);
        }
        query.append_pair("scope", &self.scope);
    }
}

fn denied(home: &RepositoryClient, why: impl Into<String>) -> AttemptError {
    RegistryError::Denied { host: home.host.clone(), why: why.into() }.into()
}

fn read_token(body: &[u8]) -> Option<RegistryToken> {
    #[derive(Deserialize)]
    struct TokenReply {
        token: Option<String>,
        access_token: Option<String>,
        expires_in: Option<u64>,
    }
    let given: TokenReply = serde_json::from_slice(body).ok()?;
    let token = given.token.or(given.access_token).filter(|token| !token.is_empty())?;
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    let good = given.expires_in.map_or(TOKEN_GOOD, Duration::from_secs).min(TOKEN_GOOD_MAX);
    // Not to the last second: it has to arrive.
    Some(RegistryToken { value, until: Instant::now() + good * 9 / 10 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_by_both_of_its_names_and_only_if_it_can_be_sent() {
        let value = |body: &str| read_token(body.as_bytes()).map(|pass| pass.value);
        assert_eq!(value(r#"{"token":"a"}"#).unwrap(), "Bearer a");
        assert_eq!(value(r#"{"access_token":"b","expires_in":300}"#).unwrap(), "Bearer b");
        assert_eq!(
            value(r#"{"token":"a","access_token":"b","expires_in":18446744073709551615}"#).unwrap(),
            "Bearer a"
        );
        for bad in ["", "{}", r#"{"token":""}"#, r#"{"token":"a\nHost: b"}"#, r#"{"token":7}"#, "[]"] {
            assert!(value(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn neither_logins_nor_tokens_are_seen_when_they_are_printed() {
        let login = RegistryLogin { user: "u".to_owned(), secret: "hush".to_owned(), is_token: false };
        let pass = read_token(br#"{"token":"hush"}"#).unwrap();
        let printed = format!("{login:?} {:?} {:?}", pass.value, RegistryTokens::default());
        assert!(printed.contains("\"u\"") && !printed.contains("hush"), "{printed}");
    }
}
