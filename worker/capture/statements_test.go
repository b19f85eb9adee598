package capture_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// statementBodies has a function body for each kind of PL/pgSQL statement that can take long. In the body, such a
// statement calls slow(), which sleeps for a minute. The declarations are those of statementFunction.
func statementBodies() map[string]string {
	return map[string]string{
		"assignment":                     "x := slow();",
		"IF":                             "IF slow() > 0 THEN NULL; END IF;",
		"CASE":                           "CASE slow() WHEN 1 THEN NULL; END CASE;",
		"WHILE":                          "WHILE slow() > 1 LOOP NULL; END LOOP;",
		"FOR with integer loop variable": "FOR i IN slow()..2 LOOP NULL; END LOOP;",
		"FOR over SELECT rows":           "FOR r IN SELECT slow() LOOP NULL; END LOOP;",
		"FOR over cursor":                "FOR r IN bound LOOP NULL; END LOOP;",
		"FOREACH over array":             "FOREACH x IN ARRAY ARRAY[slow()] LOOP NULL; END LOOP;",
		"EXIT":                           "LOOP EXIT WHEN slow() > 0; END LOOP;",
		"CONTINUE":                       "FOR i IN 1..1 LOOP CONTINUE WHEN slow() > 0; END LOOP;",
		"RETURN NEXT":                    "RETURN NEXT slow();",
		"RETURN QUERY":                   "RETURN QUERY SELECT slow();",
		"RAISE":                          "RAISE NOTICE '%', slow();",
		"ASSERT":                         "ASSERT slow() > 0;",
		"SQL statement":                  "SELECT slow() INTO x;",
		"EXECUTE":                        "EXECUTE 'SELECT slow()' INTO x;",
		"FOR over EXECUTE statement":     "FOR r IN EXECUTE 'SELECT slow()' LOOP NULL; END LOOP;",
		"OPEN":                           "OPEN bound_with(slow());",
		"FETCH":                          "OPEN c FOR SELECT slow(); FETCH c INTO x;",
		"MOVE":                           "OPEN c FOR SELECT slow(); MOVE c;",
		"PERFORM":                        "PERFORM slow();",
		"CALL":                           "CALL nothing(slow());",
		"DO":                             "DO 'BEGIN PERFORM slow(); END';",
		"during statement block local variable initialization": "DECLARE y int := slow(); BEGIN NULL; END;",
	}
}

// statementFunction is a function whose source has the statement in the fourth line.
const statementFunction = `CREATE OR REPLACE FUNCTION tested() RETURNS SETOF int LANGUAGE plpgsql AS $$
DECLARE x int; r record; c refcursor; bound CURSOR FOR SELECT slow(); bound_with CURSOR (k int) FOR SELECT k;
BEGIN
%s
END $$`

const statementHelpers = `
CREATE FUNCTION slow() RETURNS int LANGUAGE plpgsql VOLATILE AS $$ BEGIN PERFORM pg_sleep(60); RETURN 1; END $$;
CREATE PROCEDURE nothing(n int) LANGUAGE plpgsql AS $$ BEGIN NULL; END $$;
CREATE TABLE deferred (n int);
CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM slow(); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION later();
CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO deferred VALUES (1);
	COMMIT;
END $$;`

// TestStatements captures a backend in a statement of each kind, cancels it there, and compares with the CONTEXT.
func TestStatements(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		o := newObservation(t, binDir)
		o.server.Exec(t, statementHelpers)
		for kind, body := range statementBodies() {
			o.server.Exec(t, fmt.Sprintf(statementFunction, body))
			o.statement(t, kind, "SELECT tested()")
		}
		o.server.Exec(t, "CREATE OR REPLACE FUNCTION tested2() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN slow(); END'")
		o.statement(t, "RETURN", "SELECT tested2()")
		o.statement(t, "COMMIT", "CALL commits()")
	})
}

// languages are functions in Perl and Python that wait, and functions that call them.
const languages = `
CREATE EXTENSION plperl; CREATE EXTENSION plpython3u;
CREATE FUNCTION perl_f() RETURNS int LANGUAGE plperl AS $$ spi_exec_query('SELECT slow()'); return 1; $$;
CREATE FUNCTION "Perl ""g"""(n int) RETURNS int LANGUAGE plperl AS $$ spi_exec_query('SELECT perl_f()'); return 1; $$;
CREATE FUNCTION python_f() RETURNS int LANGUAGE plpython3u AS $$
plpy.execute("SELECT slow()")
return 1
$$;
CREATE FUNCTION "Löwe"(n int) RETURNS int LANGUAGE plpython3u AS $$
plpy.execute("SELECT perl_f()")
return 1
$$;
CREATE PROCEDURE python_p() LANGUAGE plpython3u AS $$
plpy.execute("SELECT slow()")
$$;
CREATE FUNCTION perl_trigger() RETURNS trigger LANGUAGE plperl AS $$ spi_exec_query('SELECT slow()'); return; $$;
CREATE FUNCTION python_trigger() RETURNS trigger LANGUAGE plpython3u AS $$
plpy.execute("SELECT slow()")
$$;
CREATE TABLE perl_table (n int); CREATE TABLE python_table (n int);
CREATE TRIGGER t BEFORE INSERT ON perl_table FOR EACH ROW EXECUTE FUNCTION perl_trigger();
CREATE TRIGGER t BEFORE INSERT ON python_table FOR EACH ROW EXECUTE FUNCTION python_trigger();
CREATE FUNCTION calls_others(f text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT ' || f;
	RETURN 1;
END $$`

// TestLanguages compares the levels of functions in Perl and Python. When such a function is cancelled in a query of
// its own, it throws the error anew: the CONTEXT begins with its own level.
func TestLanguages(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, binDir string) {
		o := newObservation(t, binDir)
		if _, err := o.watch.Exec(t.Context(), "LOAD 'plperl'; LOAD 'plpython3'"); err != nil {
			t.Skipf("no PL/Perl and PL/Python here: %v", err)
		}
		o.server.Exec(t, statementHelpers)
		o.server.Exec(t, languages)
		for _, c := range []struct {
			command string
			want    string // one of the levels
		}{
			{"SELECT perl_f()", `PL/Perl function "perl_f"`},
			{`SELECT "Perl ""g"""(1)`, `PL/Perl function "Perl "g""`},
			{"SELECT calls_others('perl_f()')", `PL/Perl function "perl_f"`},
			{"INSERT INTO perl_table VALUES (1)", `PL/Perl function "perl_trigger"`},
			{"DO LANGUAGE plperl $$ spi_exec_query('SELECT slow()') $$", "PL/Perl anonymous code block"},
			{"SELECT python_f()", `PL/Python function "python_f"`},
			{`SELECT "Löwe"(1)`, `PL/Python function "Löwe"`},
			{"SELECT calls_others('python_f()')", `PL/Python function "python_f"`},
			{"INSERT INTO python_table VALUES (1)", `PL/Python function "python_trigger"`},
			{"CALL python_p()", `PL/Python procedure "python_p"`},
			{`DO LANGUAGE plpython3u $$plpy.execute("SELECT slow()")$$`, "PL/Python anonymous code block"},
		} {
			tr, where := o.whereItSleeps(t, c.command)
			got, want := o.texts(t, tr), known(where)
			if len(want) == 0 || !slices.Contains(got, c.want) || len(got) < len(want) ||
				!slices.EqualFunc(got[len(got)-len(want):], want, sameLevel) {
				t.Errorf("%s: levels:\n%s\nbut CONTEXT:\n%s", c.command, strings.Join(got, "\n"), where)
			}
			// The error no longer has these levels: slow() and its calls.
			if inner := got[:max(0, len(got)-len(want))]; len(inner) < 2 || !strings.Contains(inner[0], "pg_sleep") {
				t.Errorf("%s: levels within it:\n%s", c.command, strings.Join(inner, "\n"))
			}
		}
	})
}

// statement runs the command until it sleeps, and compares; a level of that kind must be there.
func (o *observation) statement(t *testing.T, kind, command string) {
	t.Helper()
	tr, where := o.whereItSleeps(t, command)
	got, want := o.texts(t, tr), known(where)
	if !slices.EqualFunc(got, want, sameLevel) {
		t.Errorf("%s: levels:\n%s\nbut CONTEXT:\n%s\nafter %v, of them %v for names and %v for levels: %q", kind,
			strings.Join(got, "\n"), strings.Join(want, "\n"), tr.Total, tr.Symbolize, tr.Context, names(&tr.Threads[0]))
	}
	o.kinds = make(map[string]bool)
	o.note(tr)
	if !o.kinds[kind] {
		t.Errorf("%s: no level of that kind in:\n%s", kind, strings.Join(got, "\n"))
	}
}

// whereItSleeps runs the command until it sleeps, captures and cancels it, and returns the CONTEXT of its error.
func (o *observation) whereItSleeps(t *testing.T, command string) (tr *backtrace.Trace, where string) {
	t.Helper()
	result := o.start(command)
	pgtest.Wait(t, command+" to sleep", func() bool {
		tr = observe(t, o.pid, capture.Options{})
		return tr.Wait.Event == "PgSleep"
	})
	if _, err := o.watch.Exec(t.Context(), "SELECT pg_cancel_backend($1)", o.pid); err != nil {
		t.Fatal(err)
	}
	var pgErr *pgconn.PgError
	thrown := []string{"57014", "38000", "XX000"} // anew by Python and Perl
	if err := <-result; !errors.As(err, &pgErr) || !slices.Contains(thrown, pgErr.Code) {
		t.Fatalf("%s ended with %v", command, err)
	}
	return tr, pgErr.Where
}
