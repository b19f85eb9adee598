package locks

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/layout"
)

// TestSharedNames compares the names of all roles and databases with the catalogs: after renames that no session has looked at,
// with few buffers, after a rollback, after the catalogs got new files, and after a restart.
func TestSharedNames(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off", "shared_buffers = 1MB"}})
		control := s.Connect(t, s.User, "postgres")
		do := func(sql string) {
			t.Helper()
			if _, err := control.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
		do("DO $$ BEGIN FOR i IN 1..300 LOOP EXECUTE format('CREATE ROLE role%s', i); END LOOP; END $$")
		do("CREATE DATABASE one")
		open := func() *SharedNames {
			c, err := cluster.ByDataDir(s.DataDir)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Open(c)
			if err != nil {
				t.Fatal(err)
			}
			names, err := OpenSharedNames(&r.server.Program, c.Version, c.PostmasterPID, c.DataDir, r.Region)
			if err != nil {
				t.Fatal(err)
			}
			return names
		}
		long := open()
		for _, step := range []string{
			"SELECT",
			"DO $$ BEGIN FOR i IN 1..100 LOOP EXECUTE format('ALTER ROLE role%s RENAME TO renamed%s', i, i); END LOOP; END $$",
			"DO $$ BEGIN FOR i IN 101..150 LOOP EXECUTE format('DROP ROLE role%s', i); END LOOP; END $$; ALTER DATABASE one RENAME TO two",
			"BEGIN; ALTER ROLE role200 RENAME TO never; CREATE ROLE never2; ROLLBACK; CREATE ROLE later",
			"BEGIN; SAVEPOINT a; ALTER ROLE role201 RENAME TO inner201; RELEASE a; COMMIT",
			"BEGIN; SAVEPOINT a; ALTER ROLE role202 RENAME TO inner202; ROLLBACK TO a; COMMIT",
			"CREATE TABLE big AS SELECT repeat('x', 1000) FROM generate_series(1, 3000); CHECKPOINT",
			"ALTER ROLE role203 RENAME TO after_eviction",
			"VACUUM FULL pg_authid", "VACUUM FULL pg_database", "ALTER ROLE role204 RENAME TO after_vacuum",
			"VACUUM FREEZE pg_authid",
		} {
			do(step)
			fresh := open()
			for _, r := range []*SharedNames{fresh, long} {
				if err := r.Read(); err != nil {
					t.Fatal(err)
				}
			}
			long.took = 0 // it may search now
			if err := long.Search(); err != nil {
				t.Fatal(err)
			}
			// The catalogs are read afterwards, because a query notes which versions of the rows are valid.
			compareShared(t, step, control, fresh, long)
		}
		_ = control.Close(context.Background())
		s.Restart("fast")
		control = s.Connect(t, s.User, "postgres")
		r := open()
		if err := r.Read(); err != nil {
			t.Fatal(err)
		}
		compareShared(t, "a restart", control, r)
	})
}

// compareShared expects that the readers have the names in the catalogs, and no others.
func compareShared(t *testing.T, step string, c *pgx.Conn, readers ...*SharedNames) {
	t.Helper()
	for i, sql := range []string{"SELECT oid::int8, rolname FROM pg_authid", "SELECT oid::int8, datname FROM pg_database"} {
		rows, err := c.Query(context.Background(), sql)
		if err != nil {
			t.Fatal(err)
		}
		want := map[uint32]string{}
		var oid int64
		var name string
		if _, err := pgx.ForEachRow(rows, []any{&oid, &name}, func() error { want[uint32(oid)] = name; return nil }); err != nil {
			t.Fatal(err)
		}
		for j, r := range readers {
			got := []map[uint32][]string{r.Roles(), r.Databases()}[i]
			if len(got) != len(want) {
				t.Errorf("after %s: reader %d has %d names, not %d", step, j, len(got), len(want))
			}
			for oid, name := range want {
				if !slices.Equal(got[oid], []string{name}) {
					t.Errorf("after %s: reader %d has %q for %s", step, j, got[oid], name)
				}
			}
		}
	}
}

// TestQuickNames expects that a rename of a role, whose page is in a buffer, is read without a search, and that an idle reader
// makes no search.
func TestQuickNames(t *testing.T) {
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{})
		control := s.Connect(t, s.User, "postgres")
		exec := func(sql string) {
			t.Helper()
			if _, err := control.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
		exec("CREATE ROLE before; SELECT count(*) FROM pg_authid; SELECT count(*) FROM pg_database")
		c, err := cluster.ByDataDir(s.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		l, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		r, err := OpenSharedNames(&l.server.Program, c.Version, c.PostmasterPID, c.DataDir, l.Region)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Read(); err != nil {
			t.Fatal(err)
		}
		searched := r.searched
		exec("ALTER ROLE before RENAME TO after")
		if err := r.Read(); err != nil {
			t.Fatal(err)
		}
		compareShared(t, "a rename", control, r)
		if r.searched != searched {
			t.Error("a search for a page in a buffer")
		}
	})
}

// TestHostileSharedPages gives pages and buffers of the commit log with random content: none may make the reader fail.
func TestHostileSharedPages(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := &NameReader{memory: randomMemory{random}, dataDir: t.TempDir()}
	s := &SharedNames{reader: r, log: commitLog{r: r, l: layout.CommitLogOf(18), region: 8}}
	named := 0
	for range 2000 {
		page := make([]byte, 8192)
		binary.LittleEndian.PutUint16(page[18:], 8192|4)
		binary.LittleEndian.PutUint16(page[12:], uint16(24+4*random.IntN(20)))
		binary.LittleEndian.PutUint16(page[14:], uint16(100+random.IntN(1000)))
		for at := 24; at < 104; at += 4 {
			binary.LittleEndian.PutUint32(page[at:], uint32(100+random.IntN(200))<<17|1<<15|uint32(2000+random.IntN(5000)))
		}
		for range 3000 {
			page[1000+random.IntN(7192)] = byte(random.Uint32())
		}
		if names, err := s.namesOf(map[uint32][]byte{0: page}); err == nil {
			named += len(names)
		}
	}
	if named == 0 {
		t.Error("no page was read")
	}
}

// randomMemory has other content at each read. Some reads fail.
type randomMemory struct{ random *rand.Rand }

func (m randomMemory) Read(_ uint64, p []byte) (int, error) {
	if m.random.IntN(10) == 0 {
		return 0, fmt.Errorf("no memory")
	}
	clear(p)
	for range 16 {
		p[m.random.IntN(len(p))] = byte(m.random.Uint32N(4))
	}
	return len(p), nil
}
