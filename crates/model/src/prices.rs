//! What well-known models cost and how much they read, as their makers published it. `providers.yaml` overrides it.

use crate::request::CallUsage;

/// Millionths of a dollar for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    pub input: u64,
    pub output: u64,
    /// Input that the provider had in its cache.
    pub cached: u64,
    /// Input that it put there.
    pub cache_write: u64,
}

impl Price {
    /// What a call cost in millionths of a dollar, rounded to the nearest.
    pub fn cost(&self, usage: &CallUsage) -> u64 {
        let cached = usage.cached_tokens.min(usage.input_tokens);
        let written = usage.cache_write_tokens.min(usage.input_tokens - cached);
        let fresh = usage.input_tokens - cached - written;
        let parts = [
            (fresh, self.input),
            (cached, self.cached),
            (written, self.cache_write),
            (usage.output_tokens, self.output),
        ];
        let sum: u128 = parts.into_iter().map(|(tokens, price)| u128::from(tokens) * u128::from(price)).sum();
        u64::try_from((sum + 500_000) / 1_000_000).unwrap_or(u64::MAX)
    }
}

/// A model that this release knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownModel {
    name: &'static str,
    /// If its maker publishes it.
    pub(crate) context_window: Option<u64>,
    price: Price,
    /// Another price for calls whose input exceeds this many tokens.
    long: Option<(u64, Price)>,
}

impl KnownModel {
    pub(crate) fn price(&self, usage: &CallUsage) -> Price {
        match self.long {
            Some((above, price)) if usage.input_tokens > above => price,
            Some(_) | None => self.price,
        }
    }
}

/// The model of that name, or of which it is a dated or preview edition.
pub(crate) fn find_model(model: &str) -> Option<&'static KnownModel> {
    let model = model.strip_prefix("models/").unwrap_or(model);
    let fits = |known: &&KnownModel| match model.strip_prefix(known.name) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('-').is_some_and(is_edition),
        None => false,
    };
    KNOWN.iter().filter(fits).max_by_key(|known| known.name.len())
}

/// `20251001`, `2026-04-23`, `latest`, `preview`, `preview-09-2026`.
fn is_edition(rest: &str) -> bool {
    rest.split('-').all(|part| {
        matches!(part, "latest" | "preview")
            || part.len() > 1 && part.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// In thousandths of a dollar a million: input, cached input, output. What is put into a cache costs as much as
/// other input.
const fn price(input: u64, cached: u64, output: u64) -> Price {
    Price { input: input * 1000, cached: cached * 1000, output: output * 1000, cache_write: input * 1000 }
}

/// The same, where what is put into a cache costs a quarter more than other input.
const fn with_writes(input: u64, cached: u64, output: u64) -> Price {
    Price { cache_write: input * 1250, ..price(input, cached, output) }
}

const fn flat(name: &'static str, window: u64, price: Price) -> KnownModel {
    KnownModel { name, context_window: Some(window), price, long: None }
}

const fn tiered(name: &'static str, window: u64, price: Price, above: u64, long: Price) -> KnownModel {
    KnownModel { long: Some((above, long)), ..flat(name, window, price) }
}

const fn windowless(name: &'static str, price: Price) -> KnownModel {
    KnownModel { name, context_window: None, price, long: None }
}

const MILLION: u64 = 1_000_000;
const GEMINI: u64 = 1_048_576;

/// As their sources had it on 2026-11-15.
const KNOWN: &[KnownModel] = &[
    // platform.claude.com/docs/en/about-claude/pricing and the pages of the models
    windowless("claude-fable-5", with_writes(10_000, 1000, 50_000)),
    flat("claude-fable-5-1", MILLION, with_writes(10_000, 250, 50_000)),
    flat("claude-opus-5-5", MILLION, with_writes(4000, 200, 20_000)),
    flat("claude-opus-5", MILLION, with_writes(5000, 500, 25_000)),
    windowless("claude-opus-4-8", with_writes(5000, 500, 25_000)),
    windowless("claude-opus-4-7", with_writes(5000, 500, 25_000)),
    windowless("claude-opus-4-6", with_writes(5000, 500, 25_000)),
    flat("claude-opus-4-5", 200_000, with_writes(5000, 500, 25_000)),
    flat("claude-opus-4-1", 200_000, with_writes(15_000, 1500, 75_000)),
    flat("claude-sonnet-5", MILLION, with_writes(2000, 200, 10_000)),
    flat("claude-sonnet-4-5", 200_000, with_writes(3000, 300, 15_000)),
    flat("claude-haiku-4-5", 200_000, with_writes(1000, 100, 5000)),
    tiered("claude-haiku-5-5", MILLION, with_writes(100, 10, 500), 100_000, with_writes(500, 50, 2500)),
    // ai.google.dev/gemini-api/docs/pricing
    tiered("gemini-3.1-pro", GEMINI, price(2000, 200, 12_000), 200_000, price(4000, 400, 18_000)),
    flat("gemini-3-flash", GEMINI, price(500, 50, 3000)),
    flat("gemini-3.1-flash-lite", GEMINI, price(250, 25, 1500)),
    tiered("gemini-2.5-pro", GEMINI, price(1250, 125, 10_000), 200_000, price(2500, 250, 15_000)),
    flat("gemini-2.5-flash", GEMINI, price(300, 30, 2500)),
    flat("gemini-2.5-flash-lite", GEMINI, price(100, 10, 400)),
    // developers.openai.com/api/docs/pricing
    tiered("gpt-5.4", 1_050_000, price(2500, 250, 15_000), 272_000, price(5000, 500, 22_500)),
    flat("gpt-5", 400_000, price(1250, 125, 10_000)),
    flat("gpt-5-mini", 400_000, price(250, 25, 2000)),
    flat("gpt-5-nano", 400_000, price(50, 5, 400)),
    flat("gpt-4.1", 1_047_576, price(2000, 500, 8000)),
    flat("gpt-4.1-mini", 1_047_576, price(400, 100, 1600)),
    flat("gpt-4o", 128_000, price(2500, 1250, 10_000)),
    flat("gpt-4o-mini", 128_000, price(150, 75, 600)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn editions_of_a_model_are_that_model_and_other_models_are_not() {
        for (model, expected) in [
            ("claude-opus-4-5", Some("claude-opus-4-5")),
            ("claude-opus-4-5-20251101", Some("claude-opus-4-5")),
            ("claude-fable-5-1", Some("claude-fable-5-1")),
            ("gpt-5-2025-08-07", Some("gpt-5")),
            ("gpt-5-mini", Some("gpt-5-mini")),
            ("models/gemini-3.1-pro-preview", Some("gemini-3.1-pro")),
            ("gpt-5-pro", None),
            ("gpt-5.9", None),
            ("claude-opus-5-9", None),
            ("gpt", None),
            ("", None),
        ] {
            assert_eq!(find_model(model).map(|known| known.name), expected, "{model}");
        }
        let mut names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KNOWN.len(), "no model stands there twice");
    }

    #[test]
    fn cached_and_written_input_have_prices_of_their_own() {
        let price = with_writes(4000, 200, 20_000);
        let usage = |input_tokens, cached_tokens, cache_write_tokens, output_tokens| CallUsage {
            input_tokens,
            output_tokens,
            cached_tokens,
            cache_write_tokens,
        };
        assert_eq!(price.cost(&usage(0, 0, 0, 0)), 0);
        assert_eq!(price.cost(&usage(1_000_000, 0, 0, 0)), 4_000_000);
        assert_eq!(price.cost(&usage(1_000_000, 500_000, 250_000, 0)), 1_000_000 + 100_000 + 1_250_000);
        assert_eq!(price.cost(&usage(1, 0, 0, 1)), 24);
        assert_eq!(price.cost(&usage(5, 9, 9, 0)), 1, "more cached than there was is all of it");
        assert_eq!(price.cost(&usage(u64::MAX, 0, 0, u64::MAX)), u64::MAX);
    }

    #[test]
    fn a_long_prompt_has_the_price_of_long_prompts() {
        let pro = find_model("gemini-2.5-pro").unwrap();
        let of = |input_tokens| pro.price(&CallUsage { input_tokens, ..CallUsage::default() }).input;
        assert_eq!((of(200_000), of(200_001)), (1_250_000, 2_500_000));
    }
}
