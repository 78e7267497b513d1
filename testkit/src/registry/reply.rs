//! What an honest registry would answer.

use super::{RecordedRequest, RegistryDoor, RegistryFault, RegistryTables, digest};

pub(super) struct RegistryReply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl RegistryReply {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> RegistryReply {
        RegistryReply { status, headers: Vec::new(), body: body.into() }
    }

    fn error(status: u16, code: &str) -> RegistryReply {
        let body = format!(r#"{{"errors":[{{"code":"{code}","message":"{}"}}]}}"#, code.to_lowercase());
        RegistryReply::new(status, body).with("Content-Type", "application/json")
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> RegistryReply {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

pub(super) fn reply(
    state: &mut RegistryTables,
    seen: &RecordedRequest,
    faults: &[RegistryFault],
) -> RegistryReply {
    for fault in faults {
        if let RegistryFault::Answer { status, headers, body } = fault {
            return RegistryReply { status: *status, headers: headers.clone(), body: body.clone() };
        }
    }
    let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
    let mut answer = if path == "/token" {
        token(state, seen)
    } else if let Some(refused) = refused(&state.door, seen) {
        refused
    } else {
        routed(state, seen, path, query)
    };
    for fault in faults {
        if let RegistryFault::Body(other) = fault {
            answer.body.clone_from(other);
        }
    }
    let no_ranges = faults.iter().any(|fault| matches!(fault, RegistryFault::NoRanges));
    if path.contains("/blobs/sha256:") && !no_ranges { ranged(seen, answer) } else { answer }
}

fn token(state: &RegistryTables, seen: &RecordedRequest) -> RegistryReply {
    let RegistryDoor::Token { login, token, .. } = &state.door else {
        return RegistryReply::error(404, "NO_REALM");
    };
    let by_password = login.as_ref().map(|login| format!("Basic {login}"));
    let form = String::from_utf8_lossy(&seen.body);
    let by_token = form.split('&').find_map(|pair| pair.strip_prefix("refresh_token="));
    let let_in = match login {
        None => true,
        Some(login) => seen.header("authorization") == by_password.as_deref() || by_token == Some(login),
    };
    if !let_in {
        return RegistryReply::error(401, "UNAUTHORIZED");
    }
    RegistryReply::new(200, format!(r#"{{"token":"{token}","expires_in":300}}"#))
}

fn refused(door: &RegistryDoor, seen: &RecordedRequest) -> Option<RegistryReply> {
    let (wanted, challenge) = match door {
        RegistryDoor::Everybody => return None,
        RegistryDoor::Basic { login } => (format!("Basic {login}"), "Basic realm=\"mock\"".to_owned()),
        RegistryDoor::Token { realm, token, .. } => {
            (format!("Bearer {token}"), format!("Bearer realm=\"{realm}\",service=\"mock\""))
        }
    };
    let shown = seen.header("authorization") == Some(wanted.as_str());
    (!shown).then(|| RegistryReply::error(401, "UNAUTHORIZED").with("WWW-Authenticate", challenge))
}

fn routed(state: &mut RegistryTables, seen: &RecordedRequest, path: &str, query: &str) -> RegistryReply {
    let Some(rest) = path.strip_prefix("/v2/") else { return RegistryReply::error(404, "NOT_HERE") };
    if let Some((repository, id)) = rest.split_once("/blobs/uploads/") {
        return upload(state, seen, repository, id, query);
    }
    if let Some((_, digest)) = rest.split_once("/blobs/") {
        return match state.blobs.get(digest) {
            Some(bytes) => RegistryReply::new(200, bytes.to_vec()).with("Docker-Content-Digest", digest),
            None => RegistryReply::error(404, "BLOB_UNKNOWN"),
        };
    }
    let Some((repository, reference)) = rest.split_once("/manifests/") else {
        return RegistryReply::error(404, "NOT_HERE");
    };
    if seen.method == "PUT" {
        let kind = seen.header("content-type").unwrap_or_default();
        let digest = state.name(repository, reference, kind, seen.body.clone());
        return RegistryReply::new(201, "").with("Docker-Content-Digest", digest);
    }
    let found = state.manifests.get(&(repository.to_owned(), reference.to_owned()));
    match found.and_then(|(kind, digest)| Some((kind, digest, state.blobs.get(digest)?))) {
        Some((kind, digest, bytes)) => RegistryReply::new(200, bytes.to_vec())
            .with("Content-Type", kind.clone())
            .with("Docker-Content-Digest", digest.clone()),
        None => RegistryReply::error(404, "MANIFEST_UNKNOWN"),
    }
}

fn upload(
    state: &mut RegistryTables,
    seen: &RecordedRequest,
    repository: &str,
    id: &str,
    query: &str,
) -> RegistryReply {
    let id = if seen.method == "POST" { state.seen.len().to_string() } else { id.to_owned() };
    if seen.method == "POST" {
        state.uploads.insert(id.clone(), Vec::new());
    }
    let Some(bytes) = state.uploads.get_mut(&id) else {
        return RegistryReply::error(404, "BLOB_UPLOAD_UNKNOWN");
    };
    if seen.method == "PATCH" {
        let begin = seen.header("content-range").and_then(|range| range.split_once('-')?.0.parse().ok());
        if begin != Some(bytes.len()) {
            return RegistryReply::error(416, "RANGE_INVALID");
        }
        bytes.extend_from_slice(&seen.body);
    }
    let range = format!("0-{}", bytes.len().saturating_sub(1));
    if seen.method == "PUT" {
        bytes.extend_from_slice(&seen.body);
        let wanted = query.split('&').find_map(|pair| pair.strip_prefix("digest="));
        if wanted.map(|text| text.replace("%3A", ":")) != Some(digest(bytes)) {
            return RegistryReply::error(400, "DIGEST_INVALID");
        }
        let whole = state.uploads.remove(&id).unwrap_or_default();
        let digest = state.put(whole);
        return RegistryReply::new(201, "").with("Docker-Content-Digest", digest);
    }
    let status = if seen.method == "GET" { 204 } else { 202 };
    RegistryReply::new(status, "")
        .with("Location", format!("/v2/{repository}/blobs/uploads/{id}"))
        .with("Range", range)
}

/// The requested range.
fn ranged(seen: &RecordedRequest, mut answer: RegistryReply) -> RegistryReply {
    let range = seen.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    let Some(begin) = range.and_then(|begin| begin.parse::<usize>().ok()) else { return answer };
    if answer.status != 200 {
        return answer;
    }
    let whole = answer.body.len();
    if begin >= whole {
        return RegistryReply::error(416, "RANGE_INVALID");
    }
    answer.body.drain(..begin);
    answer.status = 206;
    answer.with("Content-Range", format!("bytes {begin}-{}/{whole}", whole - 1))
}
