//! Decides which values of the environment are hidden from people and models.
//!
//! A value is masked when a word of its key names a secret (`DB_PASSWORD`, `GITHUB_TOKEN`), or when the value looks like a
//! credential. Programs get every value unmasked.

/// Replaces a masked value.
pub(super) const MASKED: &str = "[masked]";

/// Words of a key, between its underscores, that name a secret.
const SECRET_WORDS: &[&str] = &[
    "APIKEY",
    "AUTH",
    "BEARER",
    "COOKIE",
    "COOKIES",
    "CREDENTIAL",
    "CREDENTIALS",
    "CREDS",
    "DSN",
    "JWT",
    "KEY",
    "KEYS",
    "PASS",
    "PASSCODE",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PASSWORDS",
    "PAT",
    "PIN",
    "PRIVATE",
    "PWD",
    "SALT",
    "SECRET",
    "SECRETS",
    "SESSIONID",
    "SIGNATURE",
    "TOKEN",
    "TOKENS",
    "WEBHOOK",
];

/// Ends of a word that name a secret where no underscore sets it apart: `PGPASSWORD`, `MYSECRET`.
const SECRET_ENDS: &[&str] = &["PASSWORD", "PASSWD", "SECRET", "TOKEN", "APIKEY"];

/// Prefixes of well-known credentials.
const SECRET_BEGINNINGS: &[&str] = &[
    "sk-",
    "sk_live_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "AIza",
    "eyJ",
    "Bearer ",
    "Basic ",
    "-----BEGIN ",
];

/// The value, or [`MASKED`] if it is a secret.
pub(crate) fn shown<'a>(key: &str, value: &'a str) -> &'a str {
    if is_secret_key(key) || is_secret_value(value) { MASKED } else { value }
}

fn is_secret_key(key: &str) -> bool {
    // These two are always directories.
    if ["PWD", "OLDPWD"].contains(&key) {
        return false;
    }
    key.split('_')
        .any(|word| SECRET_WORDS.contains(&word) || SECRET_ENDS.iter().any(|end| word.ends_with(end)))
}

fn is_secret_value(value: &str) -> bool {
    let value = value.trim_start();
    SECRET_BEGINNINGS.iter().any(|beginning| value.starts_with(beginning)) || has_userinfo(value)
}

/// Whether the value is a URL with a password.
fn has_userinfo(value: &str) -> bool {
    let Some((_, rest)) = value.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_masked_if_its_key_or_its_format_marks_a_secret() {
        for (key, value) in [
            ("DB_PASSWORD", "x"),
            ("PGPASSWORD", "x"),
            ("GITHUB_TOKEN", "x"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("SSH_KEY", "x"),
            ("DB_PWD", "x"),
            ("SLACK_WEBHOOK_URL", "x"),
            ("AUTH", "x"),
            ("PLAIN", "sk-abcdef"),
            ("PLAIN", "ghp_abcdef"),
            ("PLAIN", "  eyJhbGciOi"),
            ("PLAIN", "-----BEGIN PRIVATE KEY-----\nx"),
            ("DATABASE_URL", "postgres://me:hunter2@db.example/x"),
            ("PLAIN", "https://me:p@ss@host/path"),
        ] {
            assert_eq!(shown(key, value), MASKED, "{key}={value}");
        }
    }

    #[test]
    fn a_value_that_only_resembles_a_secret_is_shown() {
        for (key, value) in [
            ("KEYBOARD", "de"),
            ("MONKEY_NAME", "x"),
            ("COMPASS", "north"),
            ("AUTHOR", "me"),
            ("PWD", "/work"),
            ("OLDPWD", "/work"),
            ("TOKENIZER", "bpe"),
            ("DATABASE_URL", "postgres://db.example/x"),
            ("HOMEPAGE", "https://me@host/a:b"),
            ("EMPTY", ""),
            ("PLAIN", "skew"),
        ] {
            assert_eq!(shown(key, value), value, "{key}={value}");
        }
    }
}
