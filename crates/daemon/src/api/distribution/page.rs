//! Listings in pages: `n` items behind `last`.

use axum::http::{StatusCode, Uri};

use super::RegistryRefusal;

/// The default and the largest number of items per page.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// A page, and where the next one is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RegistryPage {
    pub items: Vec<String>,
    /// The header `Link`.
    pub link: Option<String>,
}

pub(super) fn paged(uri: &Uri, path: &str, mut items: Vec<String>) -> Result<RegistryPage, RegistryRefusal> {
    let (mut count, mut last) = (PAGE_DEFAULT, String::new());
    for (key, value) in form(uri.query().unwrap_or_default()) {
        match key.as_str() {
            "n" => {
                count = value.parse().map_err(|_| {
                    RegistryRefusal::new(
                        StatusCode::BAD_REQUEST,
                        "PAGINATION_NUMBER_INVALID",
                        "`n` is a number",
                    )
                })?;
            }
            "last" => last = value,
            _other => {}
        }
    }
    let count = count.min(PAGE_MAX);
    items.sort();
    items.dedup();
    items.retain(|item| *item > last);
    let more = items.len() > count;
    items.truncate(count);
    let link =
        items.last().filter(|_| more).map(|last| format!("<{path}?last={last}&n={count}>; rel=\"next\""));
    Ok(RegistryPage { items, link })
}

/// The pairs of a query. Names and tags need no escapes but for a slash or a colon, which some write so.
fn form(query: &str) -> impl Iterator<Item = (String, String)> {
    query.split('&').map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = ["%2F", "%2f"].iter().fold(value.to_owned(), |value, escape| value.replace(escape, "/"));
        let value = ["%3A", "%3a"].iter().fold(value, |value, escape| value.replace(escape, ":"));
        (key.to_owned(), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> (String, Option<String>) {
        let uri: Uri = format!("/v2/_catalog{query}").parse().unwrap();
        let items = ["c", "a", "b/x", "b/x", "d"].map(str::to_owned).to_vec();
        let page = paged(&uri, "/v2/_catalog", items).unwrap();
        (page.items.join(" "), page.link)
    }

    #[test]
    fn pages_follow_each_other_without_loss_or_repetition() {
        let next = |last: &str| Some(format!("</v2/_catalog?last={last}&n=2>; rel=\"next\""));
        assert_eq!(page(""), ("a b/x c d".into(), None));
        assert_eq!(page("?n=2"), ("a b/x".into(), next("b/x")));
        assert_eq!(page("?last=b/x&n=2"), ("c d".into(), None));
        assert_eq!(page("?last=b%2Fx&n=2"), ("c d".into(), None));
        assert_eq!(page("?last=zzz"), (String::new(), None));
        assert_eq!(page("?n=0"), (String::new(), None));
        assert_eq!(page("?n=99999999&x=y"), ("a b/x c d".into(), None));
        let uri: Uri = "/v2/_catalog?n=-1".parse().unwrap();
        assert_eq!(paged(&uri, "", Vec::new()).unwrap_err().code, "PAGINATION_NUMBER_INVALID");
    }
}
