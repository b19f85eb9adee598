package e2e

import (
	"testing"
)

// catalog checks the objects that CREATE EXTENSION makes, in another database: the properties of the two functions
// about one process, the required extensions, and that DROP EXTENSION leaves nothing.
func catalog(t *testing.T, s *site) {
	s.Exec(t, "CREATE DATABASE catalog")
	boss := s.connect(t, s.User, "catalog")
	const required = `
		SELECT string_agg(DISTINCT requires::text, ' ') FROM pg_available_extension_versions
		WHERE name = 'pg_stat_backtrace'`
	if got := boss.text(t, required); got != "{plpgsql}" {
		t.Errorf("required extensions: %s", got)
	}
	const objects = `
		SELECT concat_ws(' ', (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_class),
			(SELECT count(*) FROM pg_namespace), (SELECT count(*) FROM pg_type), (SELECT count(*) FROM pg_description),
			(SELECT count(*) FROM pg_init_privs), (SELECT count(*) FROM pg_depend))`
	target := s.idle(t, "boss")
	before := boss.text(t, objects)
	for range 3 {
		boss.run(t, "CREATE EXTENSION pg_stat_backtrace")
		stack(t, "in another database", boss.text(t, ask1(target)))
		for function, result := range map[string]string{"pg_get_backtrace": "text", "pg_log_backtrace": "boolean"} {
			got := boss.text(t, `
				SELECT concat_ws(' ', pg_get_function_identity_arguments(p.oid), p.prorettype::regtype, p.provolatile,
					p.proisstrict, p.proparallel, p.proretset, e.extname)
				FROM pg_proc p
				JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
				JOIN pg_extension e ON e.oid = d.refobjid
				WHERE p.oid = ($1 || '(int)')::regprocedure`, function)
			if want := "pid integer " + result + " v t r f pg_stat_backtrace"; got != want {
				t.Errorf("%s: %s, want %s", function, got, want)
			}
		}
		boss.run(t, "DROP EXTENSION pg_stat_backtrace")
		if got := boss.text(t, objects); got != before {
			t.Errorf("after DROP EXTENSION: %s objects, before: %s", got, before)
		}
	}
}
