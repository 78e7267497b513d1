//! Which environment keys a person may set, in ENV and with `-e`.
//!
//! Owns: the key rule and the reserved list. Never: looks at values.

use super::error::shown;

const KEY_MAX: usize = 255;
const RESERVED: [&str; 7] =
    ["PATH", "HOME", "TMPDIR", "LANG", "OTTERS_AGENT_ROOT", "OTTERSD_URL", "OTTERS_AGENT_TOKEN"];
const RESERVED_PREFIXES: [&str; 2] = ["XDG_", "LODGE_"];
const CREDENTIAL_SUFFIXES: [&str; 2] = ["_API_KEY", "_API_BASE"];

/// Why an environment key was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvKeyError {
    #[error("`{}` is not an environment key", shown(key))]
    Malformed { key: String },
    #[error("the environment key `{}` is reserved", shown(key))]
    Reserved { key: String },
    #[error("the environment key `{}` belongs to a provider", shown(key))]
    Credential { key: String },
}

impl EnvKeyError {
    pub const CODES: &'static [&'static str] =
        &["env.key_malformed", "env.key_reserved", "env.key_credential"];

    pub fn code(&self) -> &'static str {
        match self {
            EnvKeyError::Malformed { .. } => "env.key_malformed",
            EnvKeyError::Reserved { .. } => "env.key_reserved",
            EnvKeyError::Credential { .. } => "env.key_credential",
        }
    }

    pub fn expected(&self) -> String {
        match self {
            EnvKeyError::Malformed { .. } => format!("`[A-Z_][A-Z0-9_]*`, at most {KEY_MAX} characters"),
            EnvKeyError::Reserved { .. } => {
                format!("any key but {}, XDG_* and LODGE_*", RESERVED.join(", "))
            }
            EnvKeyError::Credential { .. } => "any key not ending in _API_KEY or _API_BASE".to_owned(),
        }
    }

    pub fn hint(&self) -> String {
        match self {
            EnvKeyError::Malformed { key } => {
                let fixed: String = key
                    .chars()
                    .take(KEY_MAX)
                    .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
                    .collect();
                match check_env_key(&fixed) {
                    Ok(()) if key.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                        format!(
                            "write `{fixed}`: keys have capital letters, so that no two differ in case only"
                        )
                    }
                    Ok(()) => format!("write `{fixed}`"),
                    Err(reserved @ (EnvKeyError::Reserved { .. } | EnvKeyError::Credential { .. })) => {
                        format!("keys have capital letters, and {reserved}")
                    }
                    Err(EnvKeyError::Malformed { .. }) => {
                        "use capital letters, digits and `_`, not starting with a digit".to_owned()
                    }
                }
            }
            EnvKeyError::Reserved { .. } => "Lodge sets this one itself: choose another key".to_owned(),
            EnvKeyError::Credential { .. } => {
                "keys stay in the daemon: run `lodge provider add`, or choose another key".to_owned()
            }
        }
    }
}

/// Checks a key for ENV or `-e`.
pub fn check_env_key(key: &str) -> Result<(), EnvKeyError> {
    let owned = || key.to_owned();
    if !well_formed(key) {
        return Err(EnvKeyError::Malformed { key: owned() });
    }
    if RESERVED.contains(&key) || RESERVED_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
        return Err(EnvKeyError::Reserved { key: owned() });
    }
    if CREDENTIAL_SUFFIXES.iter().any(|suffix| key.ends_with(suffix)) {
        return Err(EnvKeyError::Credential { key: owned() });
    }
    Ok(())
}

/// The shape alone: `^[A-Z_][A-Z0-9_]*$`.
pub(super) fn well_formed(key: &str) -> bool {
    key.len() <= KEY_MAX
        && key.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && key.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}
