package doctor

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/worker/report/units"
)

// roles reports which roles may call pg_get_backtrace, because the server refuses calls of other roles with a message that
// has no hint.
func roles(ctx context.Context, conn *pgx.Conn, p *place) (finding, error) {
	var granted []string
	var schema string
	err := conn.QueryRow(ctx, `SELECT pg_catalog.quote_ident(n.nspname),
		ARRAY(SELECT CASE WHEN a.grantee = 0 THEN 'every role' ELSE pg_catalog.pg_get_userbyid(a.grantee)::text END
			FROM pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
			WHERE a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner ORDER BY 1)
		FROM pg_catalog.pg_extension e
			JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.refobjid = e.oid
				AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'e'
			JOIN pg_catalog.pg_proc p ON p.oid = d.objid AND p.proname = 'pg_get_backtrace' AND p.pronargs = 1
			JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
		WHERE e.extname = 'pg_stat_backtrace'`).Scan(&schema, &granted)
	return grants(granted, schema, p), err
}

// grants returns the finding on the roles that may call the function.
func grants(granted []string, schema string, p *place) finding {
	const what, most = "roles", 5
	prefix := ""
	if strings.Trim(schema, "abcdefghijklmnopqrstuvwxyz0123456789_") == "" { // other names would need quotes of the shell, too
		prefix = schema + "."
	}
	if len(granted) == 0 {
		return finding{
			absent, what, "only superusers may call pg_get_backtrace(): other roles get \"permission denied for function pg_get_backtrace\"",
			p.change("GRANT EXECUTE ON FUNCTION "+prefix+"pg_get_backtrace(int) TO pg_monitor") +
				"  # or another role: it sees backends of its own, and of roles whose privileges it has",
		}
	}
	text := strings.Join(granted[:min(len(granted), most)], ", ")
	if n := len(granted) - most; n > 0 {
		text += " and " + units.Count(n, "other")
	}
	return finding{good, what, "beside superusers, may call pg_get_backtrace(): " + text, ""}
}
