//! The environment that people give an agent, checked. Values are kept byte for byte.

use lodge_image::agentfile;
use lodge_proto::ErrorBody;

/// The longest value: what the kernel takes of one string is little more.
const VALUE_BYTES_MAX: usize = 64 * 1_024;
/// All keys and values together: they travel with every program that is started.
const ENV_BYTES_MAX: usize = 256 * 1_024;

/// Checks what is set with `-e`.
pub(in crate::api) fn check_env<'a>(
    env: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<(), ErrorBody> {
    let bad = |what: String| ErrorBody::new("agent.bad_env", what);
    let mut total = 0;
    for (key, value) in env {
        total += key.len() + value.len() + 2;
        agentfile::check_env_key(key).map_err(|error| bad(error.to_string()).hint(error.hint()))?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(bad(format!("the value of `{key}` is over {VALUE_BYTES_MAX} bytes"))
                .hint("put it into a file, and mount that with -v"));
        }
        if value.contains('\0') {
            return Err(bad(format!("the value of `{key}` has a zero byte in it"))
                .hint("arguments cannot contain it; put it into a file"));
        }
    }
    if total > ENV_BYTES_MAX {
        return Err(bad(format!("the environment is over {ENV_BYTES_MAX} bytes"))
            .hint("put large values into a file, and mount that with -v"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pairs: &[(&str, &str)]) -> Result<(), String> {
        let env: Vec<(String, String)> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        check_env(env.iter().map(|(key, value)| (key, value))).map_err(|error| {
            assert!(error.data.code == "agent.bad_env" && error.data.hint.is_some(), "{error:?}");
            error.message
        })
    }

    #[test]
    fn reserved_keys_and_values_that_no_program_can_get_are_refused() {
        for key in [
            "PATH",
            "HOME",
            "TMPDIR",
            "LANG",
            "XDG_CONFIG_HOME",
            "XDG_ANYTHING",
            "LODGE_AGENT_ROOT",
            "LODGE_X",
            "OPENAI_API_KEY",
            "OPENAI_API_BASE",
            "lower",
            "1A",
            "A-B",
            "A B",
            "",
            "A=B",
        ] {
            assert!(check(&[(key, "x")]).is_err(), "{key}");
        }
        assert!(check(&[("A", "x\0y")]).unwrap_err().contains("zero byte"));
        let (largest, larger) = ("x".repeat(VALUE_BYTES_MAX), "x".repeat(VALUE_BYTES_MAX + 1));
        assert_eq!(check(&[("A", &largest), ("B", "a=b\nc\td ünï 🦦 \u{1}"), ("C", "")]), Ok(()));
        assert!(check(&[("A", &larger)]).unwrap_err().contains("`A`"));
        let many = [("A", largest.as_str()), ("B", &largest), ("C", &largest), ("D", &largest)];
        assert!(check(&many).unwrap_err().contains("the environment is over"));
    }
}
