package spool

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// genuine is the statement of backtrace.ask.
const genuine = "SELECT backtrace.call(caller, verb, targets, waiting) AS answer"

// forger is the same statement with other arguments: for a superuser.
const forger = "SELECT backtrace.call(10, 'get', '{100}', '{}')"

// An impostor is code that imitates backtrace.ask in PG_CONTEXT, as far as a role can do that.
type impostor struct {
	name   string
	create string // what makes it; an error means that it is no valid SQL, as it should be
	call   string
}

// testImposture: no function, statement, name or comment makes backtrace.call take its caller for backtrace.ask.
func (s *site) testImposture(t *testing.T) {
	boss := s.Connect(t, s.User, "postgres")
	ask := text(t, boss, "SELECT to_regproc('backtrace.ask')::oid::regprocedure::text")
	run(t, boss, "GRANT CREATE ON DATABASE postgres TO granted")
	c := s.Connect(t, "granted", "postgres")
	run(t, c, `CREATE SCHEMA "backtrace.ask"; CREATE SCHEMA evil; CREATE DOMAIN evil.seal AS int`)
	made := 0
	for _, f := range impostors(ask) {
		if _, err := c.Exec(t.Context(), f.create); err != nil {
			continue
		}
		made++
		got, err := query(t.Context(), c, "SELECT "+f.call+"::text")
		if code := describe(err)[:5]; err == nil || code != "42501" && code != "42601" {
			t.Errorf("%s: %s %s", f.name, got, describe(err))
		}
	}
	if made < 9 {
		t.Errorf("only %d impostors could be made", made)
	}
	run(t, c, `DROP SCHEMA evil CASCADE; DROP SCHEMA "backtrace.ask" CASCADE`)
	run(t, boss, "REVOKE CREATE ON DATABASE postgres FROM granted")
	s.testHonest(t, c)
	// PostgreSQL translates what PG_CONTEXT says, where its messages are installed.
	const untranslated = `SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc
		WHERE 'lc_messages=C' = ANY (proconfig)`
	if got := text(t, boss, untranslated); got != "call enqueue" {
		t.Errorf("without translation run: %s", got)
	}
}

func impostors(ask string) []impostor {
	behind := "\nPL/pgSQL function " + ask + " line 6 at SQL statement\n"
	chain := "\nSQL statement \"" + genuine + `"` + behind
	quoted := `"` + strings.ReplaceAll(chain, `"`, `""`) + `"` // as an identifier
	bare := strings.TrimSuffix(genuine, " AS answer")
	return []impostor{
		plpgsql("the same statement", "evil.ask()", genuine+" INTO a"),
		plpgsql("an assignment", "evil.a1()", "a := backtrace.call(caller, verb, targets, waiting)"),
		plpgsql("dynamic SQL", "evil.a2()", execute(forger+" AS answer")),
		plpgsql("the name of the column", "evil.a3()", execute(forger+" AS "+quoted)),
		plpgsql("a bare label", "evil.a4()", bare+`"`+behind+`" INTO a`),
		plpgsql("a label behind the label", "evil.a5()", genuine+`"`+behind+`" INTO a`),
		plpgsql("a comment", "evil.a6()", execute(forger+" AS answer /*"+chain+"*/")),
		plpgsql("a comment before", "evil.a7()", execute("/*"+chain+"*/ "+forger)),
		plpgsql("a comment in plain SQL", "evil.a8()", genuine+" /*"+chain+"*/ INTO a"),
		plpgsql("a second statement", "evil.a9()", execute(forger+`; SELECT 1 AS "`+behind+`"`)),
		{
			"an overload of ask",
			impostorFunction("evil.ask(seal evil.seal, verb text, targets int[], waiting text[])", genuine+" INTO a"),
			"evil.ask(0, '', '{}', '{}')",
		},
		{
			"a quoted schema", impostorFunction(`"backtrace.ask".ask(evil.seal, text, int[], text[])`, genuine+" INTO a"),
			`"backtrace.ask".ask(0, '', '{}', '{}')`,
		},
		{
			"a name of several lines", `CREATE FUNCTION evil.` + quoted[:60] + `"() RETURNS text LANGUAGE sql AS $$ ` + forger +
				`::text $$`, `evil.` + quoted[:60] + `"()`,
		},
		{
			"an SQL function",
			"CREATE FUNCTION evil.s1(caller oid, verb text, targets int[], waiting text[]) RETURNS text[] LANGUAGE sql AS $$ " +
				genuine + " $$", "evil.s1(10, 'get', '{100}', '{}')",
		},
	}
}

func plpgsql(name, function, statement string) impostor {
	return impostor{name, impostorFunction(function, statement), function}
}

// impostorFunction makes a PL/pgSQL function with the variables of backtrace.ask.
func impostorFunction(function, statement string) string {
	return "CREATE FUNCTION " + function + ` RETURNS text LANGUAGE plpgsql AS $f$
		DECLARE caller oid := 10; verb text := 'get'; targets int[] := '{100}'; waiting text[] := '{}'; a text[];
		BEGIN ` + statement + "; RETURN a; END $f$"
}

func execute(sql string) string { return "EXECUTE $q$" + sql + "$q$ INTO a" }

// testHonest: requests of the extension's functions are never taken for those of an impostor.
func (s *site) testHonest(t *testing.T, c *pgx.Conn) {
	t.Helper()
	run(t, c, `BEGIN; DO $$ BEGIN PERFORM pg_get_backtrace(2); EXCEPTION WHEN OTHERS THEN NULL; END $$`)
	for name, sql := range map[string]string{
		"after an error that was caught": "SELECT pg_get_backtrace(100)",
		"in a subquery":                  "SELECT (SELECT pg_get_backtrace(x) FROM generate_series(100, 100) x)",
		"in the arguments of another":    "SELECT pg_get_backtrace(100 + 0 * length(pg_get_backtrace(100)))",
	} {
		if got := text(t, c, sql); got != "#0 get 100" {
			t.Errorf("%s: %s", name, got)
		}
	}
	run(t, c, "ROLLBACK")
}

// testOlderName: PL/pgSQL keeps the name under which a session first called a function. A role makes a function with
// the name of backtrace.ask before there is an extension, calls it, and renames its schema.
func (s *site) testOlderName(t *testing.T) {
	boss := s.Connect(t, s.User, "postgres")
	run(t, boss, "CREATE DATABASE early")
	run(t, boss, "GRANT CREATE ON DATABASE early TO granted")
	boss, c := s.Connect(t, s.User, "early"), s.Connect(t, "granted", "early")
	run(t, c, `CREATE SCHEMA backtrace; CREATE DOMAIN backtrace.seal AS int;
		CREATE FUNCTION backtrace.ask(seal backtrace.seal, verb text, targets int[], waiting text[]) RETURNS text[]
		LANGUAGE plpgsql AS $$ DECLARE caller oid := 10; result text[]; BEGIN
			IF verb = '' THEN RETURN NULL; END IF;
			`+genuine+` INTO result; RETURN result; END $$`)
	if got := text(t, c, "SELECT coalesce(backtrace.ask(0, '', '{}', '{}')::text, 'first call')"); got != "first call" {
		t.Fatal(got)
	}
	run(t, c, "ALTER SCHEMA backtrace RENAME TO before")
	run(t, boss, "CREATE EXTENSION pg_stat_backtrace")
	// The seal's name is known now, too late: the function keeps the name that it had.
	const seal = `SELECT quote_ident(typname) FROM pg_type
		WHERE typnamespace = 'backtrace'::regnamespace AND typtype = 'd'`
	run(t, c, "ALTER DOMAIN before.seal RENAME TO "+text(t, boss, seal))
	if got := fails(t, c, "SELECT before.ask(0, 'get', '{100}', '{}')::text"); got != forged {
		t.Error(got)
	}
	run(t, boss, fmt.Sprintf("SELECT pg_terminate_backend(%d)", c.PgConn().PID()))
	_ = boss.Close(t.Context())
}
