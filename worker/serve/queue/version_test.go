package queue_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/serve/queue"
)

// catalogSQL describes all that the extension consists of, a line each, without oids and without the order in which
// things were made.
const catalogSQL = `
WITH member AS (
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'pg_stat_backtrace'
), relation AS (
    SELECT c.* FROM pg_class c WHERE c.relnamespace = 'backtrace'::regnamespace
        OR c.oid IN (SELECT objid FROM member WHERE classid = 'pg_class'::regclass)
), line (what) AS (
    SELECT 'member ' || pg_describe_object(classid, objid, 0) FROM member
    UNION ALL SELECT 'function ' || p.oid::regprocedure || ' ' || pg_get_functiondef(p.oid)
    FROM member JOIN pg_proc p ON classid = 'pg_proc'::regclass AND p.oid = objid
    UNION ALL SELECT concat_ws(' ', 'privilege', pg_describe_object(classid, objid, 0), a.grantee::regrole,
        a.privilege_type, a.is_grantable)
    FROM (SELECT 'pg_proc'::regclass AS classid, oid AS objid, coalesce(proacl, acldefault('f', proowner)) AS acl
          FROM pg_proc
          UNION ALL SELECT 'pg_class'::regclass, oid, relacl FROM relation
          UNION ALL SELECT 'pg_type'::regclass, oid, coalesce(typacl, acldefault('T', typowner)) FROM pg_type
          UNION ALL SELECT 'pg_namespace'::regclass, oid, nspacl FROM pg_namespace) o
         JOIN member USING (classid, objid), aclexplode(o.acl) a
    UNION ALL SELECT concat_ws(' ', 'initial', pg_describe_object(i.classoid, i.objoid, 0), a.grantee::regrole,
        a.privilege_type)
    FROM pg_init_privs i JOIN member ON i.classoid = classid AND i.objoid = objid, aclexplode(i.initprivs) a
    UNION ALL SELECT concat_ws(' ', 'comment', pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description)
    FROM pg_description d WHERE (d.classoid, d.objoid) IN (SELECT classid, objid FROM member)
        OR d.classoid = 'pg_class'::regclass AND d.objoid IN (SELECT oid FROM relation)
    UNION ALL SELECT concat_ws(' ', 'relation', oid::regclass, relkind, relpersistence, relrowsecurity,
        relforcerowsecurity, relreplident, relhastriggers, reloptions::text) FROM relation
    UNION ALL SELECT concat_ws(' ', 'column', a.attnum, a.attrelid::regclass, a.attname, a.atttypid::regtype,
        a.attnotnull, a.attidentity, a.attstattarget, a.attacl::text, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_attribute a JOIN relation r ON r.oid = a.attrelid
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attnum > 0
    UNION ALL SELECT concat_ws(' ', 'constraint', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid))
    FROM pg_constraint c WHERE c.conrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM pg_index i
    WHERE i.indrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT 'view ' || oid::regclass || ' ' || pg_get_viewdef(oid) FROM relation WHERE relkind = 'v'
    UNION ALL SELECT concat_ws(' ', 'sequence', s.seqrelid::regclass, s.seqtypid::regtype, s.seqstart, s.seqincrement,
        s.seqmax, s.seqmin, s.seqcache, s.seqcycle) FROM pg_sequence s WHERE s.seqrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT concat_ws(' ', 'policy', polrelid::regclass, polname, polcmd, polpermissive,
        polroles::regrole[]::text, pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
    FROM pg_policy WHERE polrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT concat_ws(' ', 'trigger', tgrelid::regclass, tgname)
    FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM relation)
    UNION ALL SELECT concat_ws(' ', 'type', t.oid::regtype, t.typtype, t.typnotnull, t.typbasetype::regtype)
    FROM pg_type t JOIN member ON classid = 'pg_type'::regclass AND t.oid = objid
)
SELECT string_agg(what, E'\n' ORDER BY what COLLATE "C") FROM line`

// catalog returns all that the extension consists of, with the random name replaced.
func catalog(t *testing.T, c *pgx.Conn) string {
	t.Helper()
	text := value[string](t, c, catalogSQL)
	return regexp.MustCompile(`seal_[0-9a-f]{32}`).ReplaceAllString(text, "seal_RANDOM")
}

// TestVersions: a new extension is what an old one becomes by updates, in every object and privilege, also where
// default privileges give everything away.
func TestVersions(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		run(t, c, "DROP EXTENSION pg_stat_backtrace; CREATE ROLE webapp LOGIN; CREATE ROLE user1")
		plain := ""
		for _, generous := range []string{"", `ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO webapp, PUBLIC;
			ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO webapp, PUBLIC;
			ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO webapp WITH GRANT OPTION;
			ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO webapp;
			ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO webapp, PUBLIC`,
			`ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
			ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC`,
		} {
			run(t, c, generous)
			run(t, c, "CREATE EXTENSION pg_stat_backtrace VERSION '1.2'")
			want := catalog(t, c)
			if generous == "" {
				plain = want
			}
			differ(t, others.ReplaceAllString(plain, ""), others.ReplaceAllString(want, ""))
			s.testHardened(t, c)
			run(t, c, `DROP EXTENSION pg_stat_backtrace; CREATE EXTENSION pg_stat_backtrace VERSION '1.0';
				ALTER EXTENSION pg_stat_backtrace UPDATE TO '1.1'; ALTER EXTENSION pg_stat_backtrace UPDATE TO '1.2'`)
			differ(t, want, catalog(t, c))
			run(t, c, "DROP EXTENSION pg_stat_backtrace")
		}
	})
}

// others matches the privileges of the owner, explicit or by default.
var others = regexp.MustCompile(`(?m)^(privilege|initial) .* postgres [A-Z]+.*\n`)

// testHardened: a role that default privileges have given everything has nothing.
func (s *site) testHardened(t *testing.T, c *pgx.Conn) {
	t.Helper()
	if n := value[int](t, c, `SELECT count(*) FROM pg_class, aclexplode(relacl) a
		WHERE relnamespace = 'backtrace'::regnamespace AND a.grantee = 'webapp'::regrole`); n != 0 {
		t.Errorf("webapp has %d privileges", n)
	}
	if n := value[int](t, c, `SELECT count(*) FROM pg_proc p, aclexplode(proacl) a
		WHERE p.proname ~ 'backtrace' AND a.grantee = 'webapp'::regrole`); n != 0 {
		t.Errorf("webapp has %d functions", n)
	}
}

// differ shows the lines in which two catalogs differ.
func differ(t *testing.T, want, got string) {
	t.Helper()
	if got == want {
		return
	}
	there := map[string]int{}
	for line := range strings.Lines(want) {
		there[line]++
	}
	for line := range strings.Lines(got) {
		there[line]--
	}
	for line, n := range there {
		if n != 0 {
			t.Errorf("%+d %q", n, line)
		}
	}
}

// TestUpdateKeepsGrants: grants of an administrator on the users' and the worker's functions survive the update. Grants
// by default privileges do not.
func TestUpdateKeepsGrants(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		run(t, c, `DROP EXTENSION pg_stat_backtrace; CREATE ROLE webapp LOGIN; CREATE ROLE monitoring; CREATE ROLE backtracer;
			ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO webapp;
			ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO webapp`)
		run(t, c, `CREATE EXTENSION pg_stat_backtrace VERSION '1.0'; ALTER EXTENSION pg_stat_backtrace UPDATE TO '1.1';
			GRANT EXECUTE ON FUNCTION pg_get_backtrace(int), pg_get_backtrace_frames(int) TO monitoring;
			GRANT EXECUTE ON FUNCTION pg_get_backtrace_frames(int) TO backtracer WITH GRANT OPTION;
			GRANT SELECT ON pg_stat_backtrace TO monitoring;
			CREATE VIEW dependent AS SELECT pid, backtrace FROM pg_stat_backtrace;
			GRANT EXECUTE ON FUNCTION backtrace.claim, backtrace.finish, backtrace.journal, backtrace.prune TO backtracer`)
		id := value[int64](t, c, "SELECT pg_request_backtrace(1)")
		run(t, c, "ALTER EXTENSION pg_stat_backtrace UPDATE")
		got := value[string](t, c, `SELECT string_agg(has_function_privilege(r, f, 'EXECUTE')::text, ' ' ORDER BY r, f)
			FROM unnest('{webapp,monitoring,backtracer}'::name[]) r,
			     unnest(ARRAY['pg_get_backtrace(int)', 'backtrace.claim(int, bigint[], oid[])',
			         'pg_get_backtrace_frames(int)']) f`)
		// backtracer, monitoring, webapp: claim, pg_get_backtrace, pg_get_backtrace_frames
		const want = "true false true false true true false false false"
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if value[bool](t, c, "SELECT has_table_privilege('webapp', 'pg_stat_backtrace', 'SELECT')") ||
			!value[bool](t, c, "SELECT has_table_privilege('monitoring', 'pg_stat_backtrace', 'SELECT')") {
			t.Error("privileges on the view")
		}
		if n := value[int](t, c, "SELECT count(*) FROM pg_backtrace_result($1)", id); n != 1 {
			t.Error("the update has lost a request")
		}
	})
}

// TestUpdateByOther: after an update by another superuser, all objects belong to the extension's owner, and the worker
// serves the queue.
func TestUpdateByOther(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		run(t, c, `DROP EXTENSION pg_stat_backtrace; CREATE ROLE other SUPERUSER LOGIN; CREATE ROLE monitoring`)
		run(t, c, "CREATE EXTENSION pg_stat_backtrace")
		want := catalog(t, c)
		run(t, c, `DROP EXTENSION pg_stat_backtrace; CREATE EXTENSION pg_stat_backtrace VERSION '1.0'`)
		run(t, s.Connect(t, "other", "postgres"), "ALTER EXTENSION pg_stat_backtrace UPDATE TO '1.1'")
		run(t, c, "GRANT EXECUTE ON FUNCTION pg_get_backtrace_frames(int) TO monitoring")
		run(t, s.Connect(t, "other", "postgres"), "ALTER EXTENSION pg_stat_backtrace UPDATE")
		found, err := queue.Strange(t.Context(), c)
		if err != nil || len(found) > 0 {
			t.Errorf("after an update by another superuser: %q, %v", found, err)
		}
		if !value[bool](t, c, "SELECT has_function_privilege('monitoring', 'pg_get_backtrace_frames(int)', 'EXECUTE')") {
			t.Error("a grant is lost")
		}
		run(t, c, "REVOKE EXECUTE ON FUNCTION pg_get_backtrace_frames(int) FROM monitoring")
		initial := regexp.MustCompile(`(?m)^initial .*\n`) // before 18, ALTER ... OWNER does not change them
		differ(t, initial.ReplaceAllString(want, ""), initial.ReplaceAllString(catalog(t, c), ""))
	})
}

// TestUpdateRefused: the update names the objects that prevent it, and changes nothing.
func TestUpdateRefused(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		run(t, c, `DROP EXTENSION pg_stat_backtrace; CREATE EXTENSION pg_stat_backtrace VERSION '1.0';
			ALTER EXTENSION pg_stat_backtrace UPDATE TO '1.1'; CREATE SCHEMA "App";
			CREATE VIEW "App".frames AS SELECT level, function FROM pg_get_backtrace_frames(1);
			CREATE FUNCTION "App".depth() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM pg_get_backtrace_frames(1); END;
			CREATE TABLE "App".t (i int); CREATE PUBLICATION "Pub" FOR TABLE backtrace.request, "App".t;
			CREATE PUBLICATION every FOR ALL TABLES`)
		before := catalog(t, c)
		_, err := c.Exec(t.Context(), "ALTER EXTENSION pg_stat_backtrace UPDATE")
		var e *pgconn.PgError
		if !errors.As(err, &e) {
			t.Fatalf("the update: %v", err)
		}
		const detail = `function "App".depth() uses function pg_get_backtrace_frames(int).
publication "Pub" contains table backtrace.request.
view "App".frames uses function pg_get_backtrace_frames(int).`
		if e.Code != "2BP01" || e.Message != "cannot update pg_stat_backtrace: other objects depend on the old version" ||
			strings.Join(sorted(e.Detail), "\n") != detail || !strings.Contains(e.Hint, "ALTER PUBLICATION") {
			t.Errorf("%s %s\n%s\n%s", e.Code, e.Message, e.Detail, e.Hint)
		}
		differ(t, before, catalog(t, c))
		run(t, c, `DROP VIEW "App".frames; DROP FUNCTION "App".depth(); ALTER PUBLICATION "Pub" DROP TABLE backtrace.request;
			ALTER EXTENSION pg_stat_backtrace UPDATE`)
	})
}

// sorted returns the lines of a text in an order that does not depend on the database.
func sorted(text string) []string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return lines
}

// TestForeignTrigger: the owner's functions do not run the trigger of a role that has TRIGGER on the table, and the
// worker names the role and the privilege.
func TestForeignTrigger(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		admin := s.Connect(t, s.User, "postgres")
		run(t, admin, `CREATE ROLE webapp LOGIN; CREATE SCHEMA app AUTHORIZATION webapp;
			GRANT EXECUTE ON FUNCTION pg_request_backtrace(int, boolean) TO webapp;
			GRANT TRIGGER ON backtrace.request TO webapp`)
		worker := s.launch(t)
		pgtest.Wait(t, "the worker says what is wrong", func() bool {
			return strings.Contains(worker.text(), "role webapp has TRIGGER on table backtrace.request")
		})
		webapp := s.Connect(t, "webapp", "postgres")
		run(t, webapp, `CREATE FUNCTION app.up() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN EXECUTE 'ALTER ROLE webapp SUPERUSER'; RETURN NEW; END $$;
			CREATE TRIGGER up BEFORE INSERT OR UPDATE OR DELETE ON backtrace.request
			FOR EACH STATEMENT EXECUTE FUNCTION app.up()`)
		const refused = "55000 table backtrace.request has a trigger, rule or child table that is not the extension's"
		for _, c := range []*pgx.Conn{webapp, admin} {
			if got := code(t, c, "SELECT pg_request_backtrace(1)"); got != refused {
				t.Errorf("a request: %q", got)
			}
		}
		for _, sql := range []string{
			"SELECT * FROM backtrace.claim(1, '{}', '{}')", "SELECT backtrace.prune('0', 0, 1)",
			"SELECT backtrace.finish('{1}', '{x}', '{1}', '{1}', '{x}', '{NULL}', '{NULL}', '{NULL}', '{NULL}')",
			"SELECT backtrace.journal('{get}', '{10}', '{x}', '{1}', '{1}', '{now}', '{now}', '{x}', '{1}', '{1}', '{NULL}', " +
				"'{NULL}', '{NULL}', '{NULL}')",
		} {
			if got := code(t, admin, sql); got != refused {
				t.Errorf("%s: %q", sql, got)
			}
		}
		if value[bool](t, admin, "SELECT rolsuper FROM pg_roles WHERE rolname = 'webapp'") {
			t.Error("webapp is a superuser")
		}
		run(t, admin, "DROP TRIGGER up ON backtrace.request; REVOKE TRIGGER ON backtrace.request FROM webapp")
		if o := slowResult(t, admin, request(t, admin, pid(webapp))); o.State != "done" {
			t.Errorf("%+v", o)
		}
	})
}

// TestStrange checks that every difference from the scripts is found, and that no difference is reported without one.
func TestStrange(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		run(t, c, `CREATE ROLE webapp; CREATE ROLE backtracer; CREATE SCHEMA app AUTHORIZATION webapp;
			GRANT EXECUTE ON FUNCTION pg_get_backtrace(int) TO webapp; GRANT SELECT ON pg_stat_backtrace TO webapp;
			GRANT SELECT (pid) ON pg_stat_backtrace TO PUBLIC;
			GRANT EXECUTE ON FUNCTION backtrace.claim, backtrace.finish, backtrace.journal, backtrace.prune TO backtracer;
			CREATE FUNCTION app.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`)
		for _, change := range []struct{ sql, want string }{
			{"SELECT 1", ""},
			// A role with all privileges on a view cannot change a row by it.
			{"GRANT ALL ON ALL TABLES IN SCHEMA public TO webapp", ""},
			{"GRANT ALL (pid) ON pg_stat_backtrace TO webapp", ""},
			{
				"GRANT ALL ON pg_stat_backtrace TO webapp; SET ROLE webapp; " +
					"CREATE TRIGGER t INSTEAD OF INSERT ON pg_stat_backtrace FOR EACH ROW EXECUTE FUNCTION app.f(); RESET ROLE",
				"trigger t on view public.pg_stat_backtrace is not the extension's",
			},
			{"GRANT TRIGGER ON backtrace.request TO webapp", "role webapp has TRIGGER on table backtrace.request"},
			{"GRANT UPDATE (caller) ON backtrace.request TO webapp", "UPDATE on column backtrace.request.caller"},
			{"GRANT UPDATE ON SEQUENCE backtrace.request_id_seq TO PUBLIC", "PUBLIC has UPDATE on sequence"},
			{"GRANT CREATE ON SCHEMA backtrace TO webapp", "role webapp has CREATE on schema backtrace"},
			{"GRANT EXECUTE ON FUNCTION backtrace.prune TO PUBLIC", "PUBLIC has EXECUTE on function backtrace.prune"},
			{"GRANT EXECUTE ON FUNCTION backtrace.log_entry TO webapp", "EXECUTE on function backtrace.log_entry"},
			{"ALTER FUNCTION backtrace.served() OWNER TO webapp", "function backtrace.served() belongs to role webapp"},
			{"ALTER TABLE backtrace.request DISABLE ROW LEVEL SECURITY", "row security is off for backtrace.request"},
			{"CREATE POLICY p ON backtrace.request USING (true)", "policy p on table backtrace.request is not"},
			{"CREATE RULE r AS ON DELETE TO backtrace.request DO ALSO NOTHING", "rule r on table backtrace.request is not"},
			{"CREATE TABLE app.child () INHERITS (backtrace.request)", "table app.child is not the extension's"},
			{
				"CREATE TRIGGER t BEFORE INSERT ON backtrace.request FOR EACH ROW EXECUTE FUNCTION app.f()",
				"trigger t on table backtrace.request is not",
			},
			{"CREATE FUNCTION backtrace.bytes(name) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea'", "function backtrace.bytes(name) is"},
			{"CREATE OPERATOR backtrace.= (leftarg = text, rightarg = name, procedure = texteqname)", "operator backtrace.=(text,name)"},
			{"CREATE TABLE backtrace.t ()", "table backtrace.t is not the extension's"},
			{"CREATE DOMAIN backtrace.text AS int", "type backtrace.text is"},
			{"CREATE TEXT SEARCH DICTIONARY backtrace.d (TEMPLATE = simple)", "text search dictionary backtrace.d is"},
			{"CREATE COLLATION backtrace.c FROM \"C\"", "collation backtrace.c is"},
			{"CREATE STATISTICS app.s ON id, pid FROM backtrace.request", "statistics object app.s is"},
			{"ALTER DEFAULT PRIVILEGES IN SCHEMA backtrace GRANT ALL ON TABLES TO webapp", "default privileges on new relations"},
			{"CREATE UNLOGGED TABLE app.key (id bigint REFERENCES backtrace.request)", "constraint key_id_fkey on table app.key is"},
			{"ALTER TABLE backtrace.request ADD CHECK (pid <> 7)", "constraint request_pid_check on table backtrace.request is"},
			{
				"ALTER TABLE backtrace.request DROP CONSTRAINT request_check, ADD CONSTRAINT request_check CHECK (state <> 'x')",
				"constraint request_check on table backtrace.request is",
			},
			{"ALTER TABLE backtrace.request ALTER detail SET DEFAULT 'x'", "default value for column detail of table"},
			{"ALTER TABLE backtrace.request ALTER kind SET DEFAULT 'waiting'", "default value for column kind of table"},
			{"ALTER VIEW pg_stat_backtrace ALTER pid SET DEFAULT 1", "default value for column pid of view"},
			{"ALTER POLICY own ON backtrace.request USING (true)", "policy own on table backtrace.request is"},
			{"CREATE INDEX i ON backtrace.request ((backend + 1))", "index backtrace.i is"},
			{"CREATE TYPE app.t AS (i int); CREATE CAST (backtrace.answer AS app.t) WITH INOUT", "cast from backtrace.answer to app.t"},
			// A role without privileges cannot stop the queue by what each role may create.
			{"SET ROLE webapp; ALTER DEFAULT PRIVILEGES IN SCHEMA backtrace GRANT ALL ON TABLES TO PUBLIC; RESET ROLE", ""},
			{
				"GRANT USAGE ON TYPE pg_stat_backtrace TO webapp; SET ROLE webapp; CREATE TYPE app.t AS (i int); " +
					"CREATE FUNCTION app.c(app.t) RETURNS pg_stat_backtrace LANGUAGE sql AS 'SELECT NULL::pg_stat_backtrace'; " +
					"CREATE CAST (app.t AS pg_stat_backtrace) WITH FUNCTION app.c(app.t) AS IMPLICIT; RESET ROLE; " +
					"REVOKE USAGE ON TYPE pg_stat_backtrace FROM webapp", "",
			},
			// The same holds for expressions that name the schema, and for uses of the types and tables that each role may use.
			{"SET ROLE webapp; CREATE TEMP VIEW v AS SELECT 'backtrace'::regnamespace; RESET ROLE", ""},
			{
				`SET ROLE webapp;
				CREATE TABLE app.d (n regnamespace DEFAULT 'backtrace' CHECK (n <> 'backtrace'::regnamespace),
					g bool GENERATED ALWAYS AS (n = 'backtrace'::regnamespace) STORED);
				CREATE INDEX ON app.d ((n = 'backtrace'::regnamespace)); CREATE INDEX ON app.d (g) WHERE n = 'backtrace'::regnamespace;
				CREATE STATISTICS app.s ON (n = 'backtrace'::regnamespace), g FROM app.d;
				CREATE POLICY p ON app.d USING (n = 'backtrace'::regnamespace);
				CREATE TRIGGER t BEFORE UPDATE ON app.d FOR EACH ROW WHEN (NEW.n = 'backtrace'::regnamespace) EXECUTE FUNCTION app.f();
				CREATE RULE r AS ON INSERT TO app.d WHERE NEW.n = 'backtrace'::regnamespace DO INSTEAD NOTHING;
				CREATE TABLE app.parts (n regnamespace) PARTITION BY LIST ((n = 'backtrace'::regnamespace));
				CREATE DOMAIN app.n AS regnamespace DEFAULT 'backtrace' CHECK (VALUE = 'backtrace'::regnamespace);
				CREATE FUNCTION app.n(n regnamespace DEFAULT 'backtrace') RETURNS regnamespace LANGUAGE sql
				BEGIN ATOMIC SELECT 'backtrace'::regnamespace; END;
				CREATE MATERIALIZED VIEW app.m AS SELECT 'backtrace'::regnamespace; RESET ROLE;
				DO $$BEGIN IF current_setting('server_version_num')::int >= 150000 THEN
					EXECUTE 'CREATE PUBLICATION p FOR TABLE app.d WHERE (n = ''backtrace''::regnamespace)'; END IF; END$$`, "",
			},
			{
				`SET ROLE webapp; CREATE TABLE app.typed OF backtrace.answer; CREATE TABLE app.c (t backtrace.token, a backtrace.answer[]);
				CREATE VIEW app.v AS SELECT r.id, 'backtrace.request'::regclass, 'backtrace.served()'::regprocedure, 'backtrace.answer'::regtype
				FROM backtrace.request r;
				CREATE FUNCTION app.a(backtrace.answer) RETURNS bigint LANGUAGE sql BEGIN ATOMIC
				SELECT count(*) FROM backtrace.request; END; ALTER FUNCTION app.a DEPENDS ON EXTENSION pg_stat_backtrace; RESET ROLE`, "",
			},
			{"CREATE VIEW backtrace.v AS SELECT 'backtrace'::regnamespace", "view backtrace.v is"},
			{"CREATE EXTENSION pgcrypto SCHEMA backtrace", "function backtrace.crypt(text,text) is"},
			{"CREATE EXTENSION pgcrypto SCHEMA backtrace", "extension pgcrypto is"},
		} {
			run(t, c, "BEGIN; "+change.sql+"; SET LOCAL search_path = pg_catalog")
			found, err := queue.Strange(t.Context(), c)
			if err != nil {
				t.Fatalf("%s: %v", change.sql, err)
			}
			if got := strings.Join(found, "; "); change.want == "" && got != "" || !strings.Contains(got, change.want) {
				t.Errorf("%s: found %q, want %q", change.sql, got, change.want)
			}
			run(t, c, "ROLLBACK")
		}
	})
}

// TestPublication: a publication of all tables has none of the extension's, and a subscriber's extension works.
func TestPublication(t *testing.T) {
	conf := []string{"wal_level = logical", "max_wal_senders = 4"}
	oneSite(t, pgtest.Options{Conf: conf}, func(t *testing.T, s *site) {
		admin := s.Connect(t, s.User, "postgres")
		other := &site{Server: pgtest.Start(t, s.BinDir, pgtest.Options{Conf: conf}), program: s.program}
		other.extend(t, "postgres")
		there := other.Connect(t, other.User, "postgres")
		run(t, admin, "CREATE TABLE t (i int); CREATE PUBLICATION p FOR ALL TABLES")
		run(t, there, "CREATE TABLE t (i int)")
		s.work(t)
		other.work(t)
		if o := result(t, admin, request(t, admin, pid(admin))); o.State != "done" && o.SQLState == "" {
			t.Errorf("%+v", o)
		}
		own := request(t, there, pid(there))
		if _, err := there.Exec(t.Context(), "CREATE SUBSCRIPTION s CONNECTION '"+
			strings.ReplaceAll(s.DSN(s.User, "postgres"), "'", "''")+"' PUBLICATION p"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // before the servers stop: it holds a slot
			_, _ = there.Exec(context.WithoutCancel(t.Context()), "DROP SUBSCRIPTION s")
		})
		_ = value[string](t, admin, "SELECT coalesce(pg_get_backtrace($1::int), '')", other.PostmasterPID())
		for range 3 {
			if o := result(t, admin, request(t, admin, pid(admin))); o.State != "done" {
				t.Errorf("%+v", o)
			}
		}
		run(t, admin, "INSERT INTO t VALUES (1)")
		pgtest.Wait(t, "the subscriber has the other table's row", func() bool {
			return value[int](t, there, "SELECT count(*) FROM t") == 1
		})
		if n := value[int](t, there, "SELECT count(*) FROM backtrace.request WHERE id <> $1", own); n != 0 {
			t.Errorf("the subscriber has %d rows of the publisher", n)
		}
		if o := result(t, there, request(t, there, pid(there))); o.State != "done" {
			t.Errorf("%+v", o)
		}
		if n := value[int](t, admin, "SELECT count(*) FROM pg_publication_tables WHERE schemaname = 'backtrace'"); n != 0 {
			t.Errorf("%d tables are published", n)
		}
		// No standby, backup or stream of WAL has an unlogged table.
		if n := value[int](t, admin, `SELECT count(*) FROM pg_class WHERE relnamespace = 'backtrace'::regnamespace
			AND relkind IN ('r', 'm', 't') AND relpersistence <> 'u'`); n != 0 {
			t.Errorf("%d tables are in the WAL", n)
		}
	})
}

// TestScriptsRefuse: each script refuses objects that the extension did not make, and names them. Objects of other
// roles in the users' schema do not prevent an installation unless they have the name and the parameters of one of the
// extension's objects.
func TestScriptsRefuse(t *testing.T) {
	eachSite(t, pgtest.Options{}, func(t *testing.T, s *site) {
		c := s.Connect(t, s.User, "postgres")
		run(t, c, `DROP EXTENSION pg_stat_backtrace; CREATE ROLE gardener; GRANT ALL ON SCHEMA public TO gardener;
			CREATE FUNCTION public.boom() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`)
		for _, f := range []string{
			"pg_get_backtrace(text)", "pg_get_memory_contexts(text)", "pg_stat_get_wait_event_timing(int)", "pg_backtrace_result(text)",
			"pg_stat_get_wait_event_timing_overflow(int)", "pg_stat_get_wait_event_timing_by_query(int)", "pg_trace_function(int)",
		} {
			run(t, c, "CREATE FUNCTION "+f+" RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION "+f+" OWNER TO gardener")
		}
		refused := func(sql string, names ...string) {
			t.Helper()
			_, err := c.Exec(t.Context(), sql)
			var e *pgconn.PgError
			if !errors.As(err, &e) || e.Code != "55000" && e.Code != "42P06" {
				t.Errorf("%s: %v", sql, err)
				return
			}
			for _, name := range names {
				if !strings.Contains(e.Detail+e.Message, name) {
					t.Errorf("%s: %s (%s): no word of %s", sql, e.Message, e.Detail, name)
				}
			}
		}
		run(t, c, "CREATE SCHEMA backtrace AUTHORIZATION gardener")
		refused("CREATE EXTENSION pg_stat_backtrace", `schema "backtrace" already exists`, "role gardener")
		run(t, c, "DROP SCHEMA backtrace; CREATE EXTENSION pg_stat_backtrace VERSION '1.0'")
		// Neither prevents an update: an object in another schema that names the schema, and this setting.
		run(t, c, "CREATE TEMP VIEW own AS SELECT 'backtrace'::regnamespace; SET quote_all_identifiers = on")
		update := func(to, plant, uproot string, names ...string) {
			t.Helper()
			run(t, c, plant)
			refused("ALTER EXTENSION pg_stat_backtrace UPDATE TO '"+to+"'", names...)
			run(t, c, uproot+"; ALTER EXTENSION pg_stat_backtrace UPDATE TO '"+to+"'")
		}
		update("1.1", `CREATE TRIGGER boom BEFORE UPDATE ON backtrace.secret FOR EACH ROW EXECUTE FUNCTION boom();
			CREATE FUNCTION backtrace.f() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
			"DROP TRIGGER boom ON backtrace.secret; DROP FUNCTION backtrace.f()",
			"trigger boom on table backtrace.secret", "function backtrace.f()")
		update("1.2", `CREATE FUNCTION backtrace.bytes(value name) RETURNS bytea LANGUAGE sql AS $$SELECT ''::bytea$$;
			CREATE OPERATOR backtrace.= (LEFTARG = text, RIGHTARG = name, PROCEDURE = pg_catalog.texteqname);
			CREATE TABLE backtrace.child () INHERITS (backtrace.request); CREATE VIEW backtrace.v AS SELECT 1;
			CREATE RULE r AS ON INSERT TO backtrace.request DO ALSO NOTHING`,
			`DROP FUNCTION backtrace.bytes(name); DROP OPERATOR backtrace.= (text, name); DROP TABLE backtrace.child;
			DROP VIEW backtrace.v; DROP RULE r ON backtrace.request`,
			"function backtrace.bytes(name)", "operator backtrace.=(text,name)", "table backtrace.child",
			"view backtrace.v", "rule r on table backtrace.request")
		run(t, c, "DROP EXTENSION pg_stat_backtrace CASCADE")
		run(t, c, "CREATE EXTENSION pg_stat_backtrace")
	})
}
