package locks

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestNames compares the names of all relations of a database with pg_class, after changes that are in the shared buffers
// only, while transactions are open, and after a restart.
func TestNames(t *testing.T) {
	pgtest.Each(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{Conf: []string{"autovacuum = off", "shared_buffers = 2MB"}})
		s.Exec(t, `CREATE TABLE stock (n int PRIMARY KEY); CREATE TABLE "Ünï cödé; name" (n int); CREATE TABLE gone (n int);
			CREATE TABLE old_name (n int); CREATE TABLE open_name (n int);
			DO $$ BEGIN FOR i IN 1..300 LOOP EXECUTE format('CREATE TABLE t%s (n int)', i); END LOOP; END $$; CHECKPOINT;
			ALTER TABLE old_name RENAME TO new_name; DROP TABLE gone;
			DO $$ BEGIN FOR i IN 1..100 LOOP EXECUTE format('ALTER TABLE t%s RENAME TO renamed%s', i, i); END LOOP; END $$`)
		control := s.Connect(t, s.User, "postgres")
		compare(t, openNames(t, s), control, 0)

		other := s.Connect(t, s.User, "postgres")
		if _, err := other.Exec(context.Background(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Exec(context.Background(), "ALTER TABLE open_name RENAME TO later_name"); err != nil {
			t.Fatal(err)
		}
		compare(t, openNames(t, s), control, 1) // it has two names that may become true
		if _, err := other.Exec(context.Background(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		_ = other.Close(context.Background())
		_ = control.Close(context.Background())
		s.Restart("fast")
		compare(t, openNames(t, s), s.Connect(t, s.User, "postgres"), 0)
	})
}

// TestNamesAfterLostRead: after a read of the server that did not end in time, later reads give the names again.
func TestNamesAfterLostRead(t *testing.T) {
	s := pgtest.Start(t, pgtest.Newest(t), pgtest.Options{})
	r := openNames(t, s)
	const pgClass = 1259
	var database uint32
	if err := s.Connect(t, s.User, "postgres").QueryRow(context.Background(),
		"SELECT oid FROM pg_database WHERE datname = 'postgres'").Scan(&database); err != nil {
		t.Fatal(err)
	}
	blocks, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = blocks.Close() }()
	ended := make(chan struct{})
	if process.WithTimeout(s.PostmasterPID(), func() { _, _ = unix.Read(int(blocks.Fd()), make([]byte, 1)) }, func() { close(ended) }) {
		t.Fatal("the read that blocks has ended")
	}
	if got := r.Names(database, []uint32{pgClass}); len(got) > 0 {
		t.Errorf("while a read blocks: %v", got)
	}
	_ = release.Close()
	<-ended
	clear(r.names) // as after the time for which a result is used
	if got := r.Names(database, []uint32{pgClass}); got[pgClass] != "pg_class" {
		t.Errorf("after the read: %v", got)
	}
}

func openNames(t *testing.T, s *pgtest.Server) *NameReader {
	t.Helper()
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	program, err := cluster.ProgramOf(c.PostmasterPID)
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenNames(&program, c.Version, c.PostmasterPID, c.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// compare expects the names that the server has, except that some may be missing.
func compare(t *testing.T, r *NameReader, c *pgx.Conn, missing int) {
	t.Helper()
	// Reading each row lets the server note which of its versions are valid.
	rows, err := c.Query(context.Background(), "SELECT oid::int8, relname, (SELECT oid::int8 FROM pg_database WHERE datname = 'postgres') FROM pg_class")
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[uint32]string)
	var oids []uint32
	var database uint32
	for rows.Next() {
		var oid, in int64
		var name string
		if err := rows.Scan(&oid, &name, &in); err != nil {
			t.Fatal(err)
		}
		want[uint32(oid)], database = name, uint32(in)
		oids = append(oids, uint32(oid))
	}
	got := r.Names(database, append(oids, 1, 4_000_000_000))
	for oid, name := range want {
		if got[oid] == "" && missing > 0 {
			missing--
			continue
		}
		if got[oid] != name {
			t.Errorf("relation %d is %q, not %q", oid, got[oid], name)
		}
	}
	if missing > 0 {
		t.Errorf("%d more names than are certain", missing)
	}
	if len(got) > len(want) {
		t.Errorf("%d names of %d relations", len(got), len(want))
	}
	if len(r.Names(database+1, oids)) > 0 || len(r.Names(0, oids)) > 0 {
		t.Error("names in a database that does not exist")
	}
}

// TestHostilePages gives pages with random content: no page may make the reader fail.
func TestHostilePages(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	errors := 0
	for range 20_000 {
		page := make([]byte, 8192)
		binary.LittleEndian.PutUint16(page[18:], 8192|4)
		binary.LittleEndian.PutUint16(page[12:], uint16(24+4*random.IntN(200)))
		binary.LittleEndian.PutUint16(page[14:], uint16(random.IntN(8193)))
		for at := 24; at < 1000; at += 4 {
			length, offset := uint32(random.IntN(300)), uint32(random.IntN(8192))
			binary.LittleEndian.PutUint32(page[at:], length<<17|uint32(random.IntN(4))<<15|offset)
		}
		for range 500 {
			page[1000+random.IntN(7192)] = byte(random.Uint32())
		}
		wanted := map[uint32][]string{0: nil, random.Uint32N(1000): nil}
		if addNames(page, wanted) != nil {
			errors++
		}
		for oid, names := range wanted {
			if len(names) > 2 {
				t.Fatalf("%d names of relation %d", len(names), oid)
			}
		}
	}
	if errors == 0 {
		t.Error("no page was refused")
	}
}

// BenchmarkSearch: the cost of one search.
func BenchmarkSearch(b *testing.B) {
	for _, count := range []int{16 << 10, 1 << 20} {
		b.Run(fmt.Sprint(count, " buffers"), func(b *testing.B) {
			m := fakeNames{count: count}
			r := &NameReader{memory: m, descriptors: 8, blocks: 16, count: 24}
			for b.Loop() {
				if _, err := r.buffers(5, 1259); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// fakeNames is memory without a page of pg_class.
type fakeNames struct{ count int }

func (f fakeNames) Read(addr uint64, p []byte) (int, error) {
	if addr == 24 {
		binary.LittleEndian.PutUint32(p, uint32(f.count))
	}
	return len(p), nil
}
