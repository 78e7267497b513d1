//! Parses `WWW-Authenticate`, as RFC 9110 defines it and as registries write it.

/// Bytes of all challenges together.
const CHALLENGES_MAX: usize = 8 << 10;
const PARAMETERS_MAX: usize = 32;

/// One way to be let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AuthChallenge {
    Basic,
    /// A token from `realm`.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// The challenges that we support, in their order. Anything that cannot be parsed ends the list.
pub(super) fn read<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<AuthChallenge> {
    let mut found = Vec::new();
    let mut left = CHALLENGES_MAX;
    for value in values {
        let Some(rest) = left.checked_sub(value.len()) else { break };
        left = rest;
        if let Ok(text) = std::str::from_utf8(value) {
            read_one(text, &mut found);
        }
    }
    found
}

fn read_one(text: &str, found: &mut Vec<AuthChallenge>) {
    let mut reader = ChallengeReader { rest: text };
    while let Some(scheme) = reader.scheme() {
        let Some(parameters) = reader.parameters() else { return };
        let value = |name: &str| {
            let same = |(key, _): &&(String, String)| key == name;
            parameters.iter().find(same).map(|(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("basic") {
            found.push(AuthChallenge::Basic);
        } else if scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = value("realm")
        {
            found.push(AuthChallenge::Bearer { realm, service: value("service"), scope: value("scope") });
        }
    }
}

struct ChallengeReader<'a> {
    rest: &'a str,
}

impl<'a> ChallengeReader<'a> {
    /// The name of the next scheme. Leading commas are ignored.
    fn scheme(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start_matches([' ', '\t', ',']);
        self.token()
    }

    /// The `name=value` pairs of a scheme, until the next scheme or the end; `None` when they cannot be read.
    fn parameters(&mut self) -> Option<Vec<(String, String)>> {
        let mut parameters = Vec::new();
        loop {
            let before = self.rest;
            self.rest = self.rest.trim_start_matches([' ', '\t', ',']);
            if self.rest.is_empty() {
                return Some(parameters);
            }
            let name = self.token()?;
            self.blanks();
            let Some(rest) = self.rest.strip_prefix('=') else {
                // It was the name of the next scheme.
                self.rest = before;
                return Some(parameters);
            };
            self.rest = rest;
            self.blanks();
            let value = if self.rest.starts_with('"') { self.quoted()? } else { self.token()?.to_owned() };
            if parameters.len() == PARAMETERS_MAX {
                return None;
            }
            parameters.push((name.to_ascii_lowercase(), value));
        }
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn token(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|letter| !is_token(letter)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }

    fn quoted(&mut self) -> Option<String> {
        let mut value = String::new();
        let mut letters = self.rest.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Some(value);
                }
                '\\' => value.push(letters.next()?.1),
                plain => value.push(plain),
            }
        }
        None
    }
}

fn is_token(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~/:@".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Vec<AuthChallenge> {
        read(std::iter::once(text.as_bytes()))
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> AuthChallenge {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        AuthChallenge::Bearer { realm: realm.to_owned(), service: owned(service), scope: owned(scope) }
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let scope = Some("repository:a/b:pull,push");
        let expected = bearer("https://auth.docker.io/token", Some("registry.docker.io"), scope);
        assert_eq!(read_text(hub), std::slice::from_ref(&expected));
        assert_eq!(
            read_text(&format!("Basic realm=\"x, y\", {hub}")),
            [AuthChallenge::Basic, expected.clone()]
        );
        assert_eq!(read_text(&format!("{hub}, basic")), [expected, AuthChallenge::Basic]);
        assert_eq!(
            read_text("BEARER REALM = plain:token , error=\"x\""),
            [bearer("plain:token", None, None)]
        );
        assert_eq!(read_text(r#"Bearer realm="a\"b\\c""#), [bearer(r#"a"b\c"#, None, None)]);
        assert_eq!(read_text(",, Negotiate , Basic"), [AuthChallenge::Basic]);
    }

    #[test]
    fn what_is_no_challenge_is_none() {
        for text in [
            "",
            ",",
            "=",
            "Bearer",
            "Bearer realm",
            "Bearer realm=",
            "Bearer realm=\"open",
            "Bearer realm=\"open\\",
            "Bearer service=\"x\"",
            "\u{e9} Basic",
            "Bearer \"realm\"=x",
        ] {
            assert_eq!(read_text(text), [], "{text}");
        }
        assert_eq!(read_text(&"Basic,".repeat(10_000)), []);
        let many = format!("Bearer {} realm=x", "a=b,".repeat(100));
        assert_eq!(read_text(&many), []);
    }

    #[test]
    fn no_bytes_at_all_break_the_reader() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let pieces: [&[u8]; 16] = [
            b"Bearer ",
            b"Basic",
            b"realm=",
            b"\"",
            b"\\",
            b",",
            b" ",
            b"=",
            b"service=\"a\"",
            b"\xff",
            b"\xc3\xa9",
            b"\t",
            b"https://x/",
            b"\0",
            b"scope",
            b"'",
        ];
        for _ in 0..50_000 {
            let mut text = Vec::new();
            for _ in 0..next() % 24 {
                match next() % 8 {
                    0 => text.push(next() as u8),
                    _piece => text.extend_from_slice(pieces[next() as usize % pieces.len()]),
                }
            }
            let found = read([text.as_slice(), text.as_slice()].into_iter());
            for challenge in &found {
                if let AuthChallenge::Bearer { realm, .. } = challenge {
                    assert!(realm.len() <= text.len());
                }
            }
            assert_eq!(found.len() % 2, 0, "the second time as the first: {text:?}");
        }
    }
}
