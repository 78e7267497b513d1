//! Tokens, as far as they are stored: their terms, never their values.

use lodge_core::TokenId;
use lodge_core::token::TokenRow;
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use crate::reads::{ID_MATCHES_MAX, Result, TokenFilter, TokenReads};
use crate::sqlite::rows;

/// How long a token is listed after it was over.
const LISTED_MS: i64 = 30 * 24 * 60 * 60 * 1_000;

impl TokenReads for SqliteSnapshot<'_> {
    fn tokens(&self, filter: TokenFilter<'_>, limit: u32) -> Result<Vec<TokenRow>> {
        let live_at = filter.live_at.map(lodge_core::Timestamp::ms);
        self.with(|c| {
            c.prepare_cached(
                "SELECT * FROM tokens WHERE jti > ?1 AND (?2 IS NULL OR (revoked_at IS NULL AND expires_at > ?2)) \
                 ORDER BY jti LIMIT ?3",
            )?
            .query_map(params![filter.after.unwrap_or(""), live_at, limit], rows::token)?
            .collect()
        })
    }

    fn token(&self, id: &TokenId) -> Result<Option<TokenRow>> {
        self.with(|c| {
            c.prepare_cached("SELECT * FROM tokens WHERE jti = ?1")?
                .query_row([id.as_str()], rows::token)
                .optional()
        })
    }

    fn find_tokens(&self, given: &str) -> Result<Vec<TokenId>> {
        self.with(|c| {
            c.prepare_cached("SELECT jti FROM tokens WHERE jti >= ?1 AND jti < ?1 || '{' LIMIT ?2")?
                .query_map((given, ID_MATCHES_MAX), |row| rows::id(row, "jti"))?
                .collect()
        })
    }
}

pub(crate) fn unrevoked(c: &Connection) -> rusqlite::Result<Vec<TokenRow>> {
    c.prepare("SELECT * FROM tokens WHERE revoked_at IS NULL ORDER BY jti")?
        .query_map([], rows::token)?
        .collect()
}

pub(crate) fn put(tx: &Connection, row: &TokenRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO tokens (jti, issuer, name, agent, issued_at, expires_at, revoked_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
         ON CONFLICT (jti) DO UPDATE SET revoked_at = coalesce(tokens.revoked_at, excluded.revoked_at)",
    )?
    .execute(params![
        row.id.as_str(),
        row.holder.code(),
        row.name,
        row.holder.agent().map(lodge_core::AgentId::as_str),
        row.issued_at.ms(),
        row.expires_at.ms(),
        row.revoked_at.map(lodge_core::Timestamp::ms),
    ])?;
    // Tokens that expired long before this one was issued are useless.
    tx.prepare_cached("DELETE FROM tokens WHERE expires_at < ?1")?
        .execute([row.issued_at.ms() - LISTED_MS])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use lodge_core::record::Write;
    use lodge_core::token::TokenHolder;
    use lodge_core::{IdSource, Timestamp};

    use super::*;

    fn row(ids: &mut IdSource, expires_ms: i64) -> TokenRow {
        let at = Timestamp::from_ms(1);
        let id = TokenId::new(ids, at);
        let expires_at = Timestamp::from_ms(expires_ms);
        TokenRow {
            id,
            holder: TokenHolder::Operator,
            name: None,
            issued_at: at,
            expires_at,
            revoked_at: None,
        }
    }

    #[test]
    fn a_revoked_token_stays_revoked_whatever_is_written_and_is_not_loaded_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.db");
        let mut opened = crate::sqlite::open(&path, &[1; 64]).unwrap();
        let mut ids = IdSource::new(1);
        let (kept, over, old) = (row(&mut ids, 100), row(&mut ids, 100), row(&mut ids, 10));
        let revoked = TokenRow { revoked_at: Some(Timestamp::from_ms(5)), ..over.clone() };
        let late = TokenRow { revoked_at: Some(Timestamp::from_ms(9)), ..over.clone() };
        for group in [vec![&kept, &over, &old], vec![&revoked], vec![&over], vec![&late]] {
            let writes: Vec<Write> = group.into_iter().map(|row| Write::Token(row.clone())).collect();
            opened.writer.commit(&writes, ()).unwrap().into_inner();
        }
        assert_eq!(opened.reader.here(|snapshot| snapshot.token(&over.id)).unwrap(), Some(revoked.clone()));
        let ids_of = |rows: Vec<TokenRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
        let live = TokenFilter { live_at: Some(Timestamp::from_ms(50)), ..TokenFilter::default() };
        assert_eq!(
            ids_of(opened.reader.here(|snapshot| snapshot.tokens(live, 10)).unwrap()),
            std::slice::from_ref(&kept.id)
        );
        assert_eq!(
            opened.reader.here(|snapshot| snapshot.tokens(TokenFilter::default(), 10)).unwrap().len(),
            3
        );
        assert_eq!(opened.reader.here(|snapshot| snapshot.find_tokens(over.id.as_str())).unwrap(), [over.id]);
        drop(opened);
        let mut loaded = ids_of(crate::sqlite::open(&path, &[1; 64]).unwrap().loaded.tokens);
        let mut unrevoked = vec![kept.id, old.id];
        loaded.sort();
        unrevoked.sort();
        assert_eq!(loaded, unrevoked);
    }
}
