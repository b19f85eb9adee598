package capture_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
	"pg_stat_backtrace/unwind/cfi"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// probedCommands are commands that wait in different kinds of stacks.
var probedCommands = []string{
	"SELECT nonstop_nap(2)",
	"SELECT count(pg_sleep(3600)), x % 3 FROM nonstop_big WHERE x > (SELECT min(x) FROM nonstop_row) GROUP BY 2",
	"DO $$ BEGIN UPDATE nonstop_row SET x = length(pg_sleep(3600)::text); END $$",
}

// TestReturnProbesPostgres probes the return of each function in the stack of a waiting backend, and of several at a
// time. The backend then runs the same statement again.
func TestReturnProbesPostgres(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		if testing.Short() {
			t.Skip("takes long: not with -short")
		}
		server := pgtest.Lend(t, binDir, pgtest.Options{Conf: []string{"autovacuum = off"}}) // the plans stay the same
		server.Exec(t, waitingSchema)
		conn, control := server.Connect(t, server.User, "postgres"), server.Connect(t, server.User, "postgres")
		b := probedBackend{
			t: t, c: capturer(t), conn: conn, control: control, pid: int(conn.PgConn().PID()),
			tried: make(map[functionEntry]bool), files: make(map[string]probedFile),
		}
		for _, command := range probedCommands {
			b.command(command)
		}
		figure.Printf(t, "%s: %d stacks behind %d probed returns: %d whole; the callers of %d found, of %d missing",
			binDir, b.stacks, b.met, b.whole, b.found, b.missing)
		if b.met < 30 || b.found < 10 {
			t.Error("too few")
		}
	})
}

type probedBackend struct {
	t             *testing.T
	c             *capture.Capturer
	conn, control *pgx.Conn
	pid           int
	tried         map[functionEntry]bool
	files         map[string]probedFile // by path

	stacks, whole, met, found, missing int
}

// command compares the stacks of one command.
func (b *probedBackend) command(sql string) {
	b.t.Helper()
	want := physical(b.during(sql))
	var entries []functionEntry
	for _, pc := range want[1:] {
		if e, ok := b.entry(pc); ok && !slices.Contains(entries, e) {
			entries = append(entries, e)
		}
	}
	for i, e := range entries {
		if !b.tried[e] {
			b.tried[e] = true
			b.compare(sql, want, entries[i:i+1])
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		some := slices.DeleteFunc(slices.Clone(entries), func(functionEntry) bool { return random.IntN(4) > 0 })
		b.compare(sql, want, some)
	}
}

// compare runs the command until it waits once more, now with probes, and compares its stack with the stack without
// probes (want).
func (b *probedBackend) compare(sql string, want []uint64, probes []functionEntry) {
	b.t.Helper()
	b.t.Run("probed", func(t *testing.T) {
		for _, p := range probes {
			probeReturnAt(t, b.pid, p.file, p.offset)
		}
		th := b.during(sql)
		got := physical(th)
		b.stacks++
		b.whole += b2i(th.Whole)
		at := 0
		behind := false // the last frame was the return to a probe
		for i, pc := range got {
			if trampolineAt(th, pc) {
				b.met++
				behind = true
				continue
			}
			n := slices.Index(want[at:], pc)
			allowed := 0
			if behind {
				allowed = 1 + trampolinesBefore(th, got[:i])
			}
			if n < 0 || n > allowed {
				t.Fatalf("%s with %v: frame %d is %#x, %d frames are missing; got %x, want %x", sql, probes, i, pc, n, got, want)
			}
			if behind {
				b.found += b2i(n == 0)
				b.missing += n
			}
			at += n + 1
			behind = false
		}
		if th.Whole && at != len(want) {
			t.Errorf("%s with %v: %d frames of %d, and whole", sql, probes, at, len(want))
		}
		if !th.Whole && !strings.Contains(th.Stop, "return probe") {
			t.Errorf("%s with %v: %s", sql, probes, th.Stop)
		}
	})
}

// trampolinesBefore counts the addresses at the end of pcs that are returns to probes, except the last one.
func trampolinesBefore(th *backtrace.Thread, pcs []uint64) (n int) {
	for i := len(pcs) - 1; i >= 0 && trampolineAt(th, pcs[i]); i-- {
		n++
	}
	return n - 1
}

func trampolineAt(th *backtrace.Thread, pc uint64) bool {
	return slices.ContainsFunc(th.Frames, func(f backtrace.Frame) bool { return f.Address == pc && f.Module == "[uprobes]" })
}

// physical returns the addresses of a stack without those of inlined calls.
func physical(th *backtrace.Thread) (pcs []uint64) {
	for i := range th.Frames {
		if !th.Frames[i].Inlined {
			pcs = append(pcs, th.Frames[i].Address)
		}
	}
	return pcs
}

// during captures the backend while it waits in a command, and then cancels the command.
func (b *probedBackend) during(sql string) *backtrace.Thread {
	b.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = b.conn.PgConn().Exec(context.Background(), sql).ReadAll() // it is cancelled
	}()
	for deadline := time.Now().Add(3 * time.Minute); ; {
		var event string
		err := b.control.QueryRow(b.t.Context(), "SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = $1",
			b.pid).Scan(&event)
		if err != nil || time.Now().After(deadline) {
			b.t.Fatalf("%s does not wait: %q, %v", sql, event, err)
		}
		st, err := process.ReadStat(b.pid)
		if err != nil {
			b.t.Fatal(err)
		}
		if event == "PgSleep" && st.State == 'S' { // it reports the event before it sleeps
			break
		}
	}
	th := take(b.t, b.c, b.pid, capture.Options{})
	if _, err := b.control.Exec(b.t.Context(), "SELECT pg_cancel_backend($1)", b.pid); err != nil {
		b.t.Fatal(err)
	}
	<-ended
	return &th
}

// probedFile is an image and its call frame information.
type probedFile struct {
	img   *elfimage.Image
	table *cfi.Table
}

// functionEntry is where a function begins in its file.
type functionEntry struct {
	file   string
	offset uint64
}

// entry finds where the function before a return address begins.
func (b *probedBackend) entry(pc uint64) (functionEntry, bool) {
	b.t.Helper()
	maps, err := process.Maps(b.pid)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range maps {
		m := &maps[i]
		if pc < m.Start || pc >= m.End || !strings.HasPrefix(m.Path, "/") {
			continue
		}
		f, found := b.files[m.Path]
		if !found {
			f.img, f.table = imagetest.Open(b.t, m.Path, arch.Host())
			b.files[m.Path] = f
		}
		start, ok := entryOf(f.img, f.table, pc-m.Start+m.Offset)
		return functionEntry{m.Path, start}, ok
	}
	return functionEntry{}, false
}

// entryOf is entry by offsets in a file.
func entryOf(img *elfimage.Image, table *cfi.Table, offset uint64) (uint64, bool) {
	for _, s := range img.Segments() {
		if offset >= s.Offset && offset-s.Offset < s.Filesz {
			fde, err := table.Find(offset - s.Offset + s.Vaddr - 1)
			return fde.Start - s.Vaddr + s.Offset, err == nil
		}
	}
	return 0, false
}
